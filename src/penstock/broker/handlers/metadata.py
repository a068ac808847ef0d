"""Metadata: brokers, topics, partitions and their leaders.

A missing topic that is requested by name is created first, if client and broker allow it; the response waits for that.

Clients repeat the same requests, and responses change only with the cluster image. Responses without an error are
therefore cached as bytes until the image changes. That of a large cluster is made in slices, once.

The authorized operations, which few clients ask for, are those of a cluster without an authorizer;
`authorization_rules` replaces them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from functools import partial
from typing import Final

from penstock.broker.request import Answer, Encoded, Request, Services, distinct
from penstock.cluster.image import ClusterImage, TopicImage
from penstock.cluster.topic_names import check_topic_name
from penstock.security.acls import NO_OPERATIONS, OPERATIONS_OF, ResourceType, bits_of
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

_Wanted = tuple[str, int, tuple[tuple[str | None, bytes], ...] | None]
"""Listener, version and topics; None: all topics."""


class MetadataAnswers:
    """Responses as bytes, by listener, version and topics, for one cluster image; the least recently used go first."""

    MAX_BYTES: Final = 32 * 1024 * 1024
    MAX_TOPICS: Final = 16
    """Topics of a request whose response is cached: larger requests are rarely repeated."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._answers: dict[_Wanted, Encoded] = {}
        self._bytes = 0
        self.making: dict[tuple[str, int], asyncio.Future[None]] = {}
        """By listener and version, the end of the making of a response that names all topics."""

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
    # A topic that is named a thousand times is described once.
    wanted = topics if len(topics) == 1 else distinct(topics, identity_of)
    image = services.cluster.image
    key = None
    # The response to a part of a request is merged with others, so it is not encoded yet.
    if request.size and len(wanted) <= MetadataAnswers.MAX_TOPICS and not _wants_operations(message):
        key = (request.session.listener, request.version, tuple((topic.name, topic.topic_id) for topic in wanted))
        kept = services.metadata_answers.get(image, key)
        if kept is not None:
            answer(kept)
            return

    missing = [topic.name for topic in wanted if topic.name and _may_create(services, message, topic.name)]
    if not missing:
        slices = _named(services, request, wanted, key, answer)
        services.long_requests.finish(request.channel, slices)
        return

    def look_up() -> None:
        services.long_requests.finish(request.channel, _named(services, request, wanted, None, answer))

    async def create() -> None:
        await services.topic_creation.create(missing)
        look_up()

    services.spawn(create(), lambda error: look_up())


def identity_of(topic: MetadataRequestTopic) -> object:
    return topic.name, topic.topic_id


def _named(
    services: Services, request: Request, wanted: list[MetadataRequestTopic], key: _Wanted | None, answer: Answer
) -> Generator[None, None, None]:
    """Answer for these topics. With a key, the response is kept."""
    image = services.cluster.image
    topics: list[MetadataResponseTopic] = []
    partitions = 0
    for topic in wanted:
        found = yield from _look_up(services, image, topic, request.version)
        topics.append(found)
        partitions += 1 + len(found.partitions) % _SLICE_PARTITIONS
        if partitions > _SLICE_PARTITIONS:
            partitions = 0
            yield
    response = _response(services, request, topics, image)
    if key is None or any(topic.error_code or any(each.error_code for each in topic.partitions) for topic in topics):
        answer(response)  # encoded in slices
        return
    if sum(len(topic.partitions) for topic in topics) <= _SLICE_PARTITIONS:
        body = response_codec(ApiKey.METADATA, request.version).encode(response)
    else:
        chunks = yield from response_codec(ApiKey.METADATA, request.version).encode_slices(response)
        body = b"".join(_buffers(chunks))
    answer(services.metadata_answers.keep(image, key, body))


def _answer_all_topics(services: Services, request: Request, answer: Answer) -> None:
    kept = services.metadata_answers.get(services.cluster.image, (request.session.listener, request.version, None))
    if kept is not None and not _wants_operations(request.message):
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
    answers, wanted = services.metadata_answers, (request.session.listener, request.version)
    while (making := answers.making.get(wanted)) is not None:
        await making
    kept = answers.get(services.cluster.image, (*wanted, None))
    if kept is not None and not _wants_operations(request.message):
        answer(kept)
        return
    made: asyncio.Future[None] = services.loop.create_future()
    answers.making[wanted] = made
    try:
        await services.long_requests.through(_all(services, request, answer), request.channel)
    finally:
        del answers.making[wanted]
        made.set_result(None)


def _all(services: Services, request: Request, answer: Answer) -> Generator[None, None, None]:
    image = services.cluster.image
    topics: list[MetadataResponseTopic] = []
    partitions = 0
    for topic in image.topics.values():
        if topic.name in image.deleting:
            continue
        known = yield from _known(image, topic)
        topics.append(known)
        partitions += 1 + len(known.partitions) % _SLICE_PARTITIONS
        if partitions > _SLICE_PARTITIONS:
            partitions = 0
            yield
    response = _response(services, request, topics, image)
    if _wants_operations(request.message) or any(each.error_code for topic in topics for each in topic.partitions):
        answer(response)
        return
    body = yield from response_codec(ApiKey.METADATA, request.version).encode_slices(response)
    answer(
        services.metadata_answers.keep(
            image, (request.session.listener, request.version, None), b"".join(_buffers(body))
        )
    )


def _buffers(chunks: Iterable[object]) -> list[bytes]:
    return [chunk for chunk in chunks if isinstance(chunk, bytes)]


def _may_create(services: Services, message: MetadataRequest, name: str) -> bool:
    return (
        message.allow_auto_topic_creation
        and services.settings.auto_create_topics_enable
        and name not in services.cluster.image.topics
        and check_topic_name(name) is None
    )


def _wants_operations(message: MetadataRequest) -> bool:
    return message.include_topic_authorized_operations or message.include_cluster_authorized_operations


def _response(
    services: Services, request: Request, topics: list[MetadataResponseTopic], image: ClusterImage | None = None
) -> MetadataResponse:
    image = image or services.cluster.image
    message: MetadataRequest = request.message
    if message.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = bits_of(OPERATIONS_OF[ResourceType.TOPIC])
    with_operations = message.include_cluster_authorized_operations
    return MetadataResponse(
        cluster_authorized_operations=bits_of(OPERATIONS_OF[ResourceType.CLUSTER])
        if with_operations
        else NO_OPERATIONS,
        brokers=[
            MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in services.live_brokers(request.session.listener, image)
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
    )


def _look_up(
    services: Services, image: ClusterImage, wanted: MetadataRequestTopic, version: int
) -> Generator[None, None, MetadataResponseTopic]:
    if not wanted.name:
        found = image.topic_by_id(wanted.topic_id) if wanted.topic_id != NO_UUID else None
        if found is None or found.name in image.deleting:
            # Below version 12 a name may be missing in a request, but not in a response.
            name = wanted.name if version >= _FIRST_VERSION_WITHOUT_NAMES else ""
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=wanted.topic_id)
        return (yield from _known(image, found))
    found = image.topics.get(wanted.name)
    if found is not None and found.name not in image.deleting:
        return (yield from _known(image, found))
    bad = check_topic_name(wanted.name)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if bad is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=code, name=wanted.name, is_internal=wanted.name in INTERNAL_TOPICS)


def _known(image: ClusterImage, topic: TopicImage) -> Generator[None, None, MetadataResponseTopic]:
    """The row of a topic, with a yield after every few hundred partitions."""
    known = MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=topic.name in INTERNAL_TOPICS, partitions=[]
    )
    count = len(topic.partitions)
    for begin in range(0, count, _SLICE_PARTITIONS):
        if begin:
            yield
        known.partitions += [
            _partition(image, topic, index) for index in range(begin, min(count, begin + _SLICE_PARTITIONS))
        ]
    return known


def _partition(image: ClusterImage, topic: TopicImage, index: int) -> MetadataResponsePartition:
    partition = topic.partitions[index]
    leader = image.live_leader(partition)
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=list(image.offline_replicas(topic, index)),
    )
