"""Metadata: brokers, topics, partitions and their leaders.

A missing topic that is requested by name is created first, if client and broker allow it; the response waits for that.

Clients repeat the same requests, and responses change only with the cluster image. Responses without an error are
therefore cached as bytes until the image changes. That of a large cluster is made in slices, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from functools import partial
from typing import Final

from penstock.broker.request import Answer, Encoded, Request, Services
from penstock.cluster.image import ClusterImage, TopicImage
from penstock.cluster.topic_names import check_topic_name
from penstock.wire.protocol import INTERNAL_TOPICS, ApiKey, ErrorCode, response_codec
from penstock.wire.schemas.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.types import NO_UUID

_FIRST_VERSION_WITHOUT_NAMES = 12
_SLICE_PARTITIONS: Final = 500

_Wanted = tuple[int, tuple[tuple[str | None, bytes], ...] | None]


class MetadataAnswers:
    """Responses as bytes, by version and topics, for one cluster image; the least recently used go first."""

    MAX_BYTES: Final = 32 * 1024 * 1024
    MAX_TOPICS: Final = 16
    """Topics of a request whose response is cached: larger requests are rarely repeated."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._answers: dict[_Wanted, Encoded] = {}
        self._bytes = 0
        self.making: dict[int, asyncio.Future[None]] = {}
        """By version, the end of the making of a response that names all topics."""

    def get(self, image: ClusterImage, wanted: _Wanted) -> Encoded | None:
        if image is not self._image:
            return None
        found = self._answers.pop(wanted, None)
        if found is not None:
            self._answers[wanted] = found
        return found

    def keep(self, image: ClusterImage, wanted: _Wanted, body: bytes) -> Encoded:
        """Cache the response of an image."""
        if image is not self._image:
            self._image = image
            self._answers.clear()
            self._bytes = 0
        former = self._answers.pop(wanted, None)
        answer = self._answers[wanted] = Encoded(body=body)
        self._bytes += len(body) - (0 if former is None else len(former.body))
        while self._bytes > self.MAX_BYTES and len(self._answers) > 1:
            oldest = next(iter(self._answers))
            self._bytes -= len(self._answers.pop(oldest).body)
        return answer


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: MetadataRequest = request.message
    topics = message.topics
    if topics is None or (not topics and request.version == 0):
        _answer_all_topics(services, request, answer)
        return
    wanted = topics
    image = services.cluster.image
    key = None
    if len(wanted) <= MetadataAnswers.MAX_TOPICS:
        key = (request.version, tuple((topic.name, topic.topic_id) for topic in wanted))
        kept = services.metadata_answers.get(image, key)
        if kept is not None:
            answer(kept)
            return

    def look_up() -> list[MetadataResponseTopic]:
        return [_look_up(services, topic, request.version) for topic in wanted]

    missing = [topic.name for topic in wanted if topic.name and _may_create(services, message, topic.name)]
    if not missing:
        response = _response(services, look_up())
        if key is None or sum(len(topic.partitions) for topic in response.topics) > _SLICE_PARTITIONS:
            answer(response)  # encoded in slices
        elif any(topic.error_code or any(each.error_code for each in topic.partitions) for topic in response.topics):
            answer(response)
        else:
            body = response_codec(ApiKey.METADATA, request.version).encode(response)
            answer(services.metadata_answers.keep(image, key, body))
        return

    async def create() -> None:
        await services.topic_creation.create(missing)
        answer(_response(services, look_up()))

    services.spawn(create(), lambda error: answer(_response(services, look_up())))


def _answer_all_topics(services: Services, request: Request, answer: Answer) -> None:
    kept = services.metadata_answers.get(services.cluster.image, (request.version, None))
    if kept is not None:
        answer(kept)
    elif _is_small(services.cluster.image):
        for _ in _all(services, request, answer):
            pass
    else:
        services.long_requests.start(request.channel, request.size, partial(_make_all, services, request, answer))


def _is_small(image: ClusterImage) -> bool:
    partitions = 0
    for topic in image.topics.values():
        partitions += 1 + len(topic.partitions)
        if partitions > _SLICE_PARTITIONS:
            return False
    return True


async def _make_all(services: Services, request: Request, answer: Answer) -> None:
    """Make the response of a large cluster in slices, or wait until another request has made it."""
    answers, version = services.metadata_answers, request.version
    while (making := answers.making.get(version)) is not None:
        await making
    kept = answers.get(services.cluster.image, (version, None))
    if kept is not None:
        answer(kept)
        return
    made: asyncio.Future[None] = services.loop.create_future()
    answers.making[version] = made
    try:
        await services.long_requests.through(_all(services, request, answer), request.channel)
    finally:
        del answers.making[version]
        made.set_result(None)


def _all(services: Services, request: Request, answer: Answer) -> Generator[None, None, None]:
    image = services.cluster.image
    topics: list[MetadataResponseTopic] = []
    partitions = 0
    for topic in image.topics.values():
        if topic.name in image.deleting:
            continue
        known = _known(image, topic)
        topics.append(known)
        partitions += 1 + len(known.partitions)
        if partitions > _SLICE_PARTITIONS:
            partitions = 0
            yield
    response = _response(services, topics, image)
    if any(each.error_code for topic in topics for each in topic.partitions):
        answer(response)
        return
    body = yield from response_codec(ApiKey.METADATA, request.version).encode_slices(response)
    answer(services.metadata_answers.keep(image, (request.version, None), b"".join(_buffers(body))))


def _buffers(chunks: Iterable[object]) -> list[bytes]:
    return [chunk for chunk in chunks if isinstance(chunk, bytes)]


def _may_create(services: Services, message: MetadataRequest, name: str) -> bool:
    return (
        message.allow_auto_topic_creation
        and services.settings.auto_create_topics_enable
        and name not in services.cluster.image.topics
        and check_topic_name(name) is None
    )


def _response(
    services: Services, topics: list[MetadataResponseTopic], image: ClusterImage | None = None
) -> MetadataResponse:
    image = image or services.cluster.image
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in services.live_brokers(image)
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
    )


def _look_up(services: Services, wanted: MetadataRequestTopic, version: int) -> MetadataResponseTopic:
    image = services.cluster.image
    if not wanted.name:
        found = image.topic_by_id(wanted.topic_id) if wanted.topic_id != NO_UUID else None
        if found is None or found.name in image.deleting:
            # Below version 12 a name may be missing in a request, but not in a response.
            name = wanted.name if version >= _FIRST_VERSION_WITHOUT_NAMES else ""
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=wanted.topic_id)
        return _known(image, found)
    found = image.topics.get(wanted.name)
    if found is not None and found.name not in image.deleting:
        return _known(image, found)
    bad = check_topic_name(wanted.name)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if bad is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=code, name=wanted.name, is_internal=wanted.name in INTERNAL_TOPICS)


def _known(image: ClusterImage, topic: TopicImage) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=list(image.offline_replicas(partition)),
            )
            for index, partition in enumerate(topic.partitions)
            for leader in (image.live_leader(partition),)
        ],
    )
