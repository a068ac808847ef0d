"""Metadata: brokers, topics, partitions and their leaders.

A topic that is asked for by name and missing is created first, where both the client and the broker allow it; the
answer then waits for that, so that a client need not come back to find it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.request import Answer, Request
from penstock.cluster.image import ClusterImage, TopicImage
from penstock.cluster.topic_names import check_topic_name
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.types import NO_UUID

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
_NAMELESS_VERSION = 12


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: MetadataRequest = request.message
    wanted = message.topics
    if wanted is None or (not wanted and request.version == 0):
        image = broker.cluster.image
        topics = [topic for topic in image.topics.values() if topic.name not in image.deleting]
        answer(_response(broker, [_known(image, topic) for topic in topics]))
        return

    def look_up() -> list[MetadataResponseTopic]:
        return [_look_up(broker, topic, request.version) for topic in wanted]

    missing = [topic.name for topic in wanted if topic.name and _may_create(broker, message, topic.name)]
    if not missing:
        answer(_response(broker, look_up()))
        return

    async def create() -> None:
        await broker.create_automatically(missing)
        answer(_response(broker, look_up()))

    broker.spawn(create(), lambda error: answer(_response(broker, look_up())))


def _may_create(broker: Broker, message: MetadataRequest, name: str) -> bool:
    return (
        message.allow_auto_topic_creation
        and broker.settings.auto_create_topics_enable
        and name not in broker.cluster.image.topics
        and check_topic_name(name) is None
    )


def _response(broker: Broker, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    image = broker.cluster.image
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in broker.live_brokers()
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
    )


def _look_up(broker: Broker, wanted: MetadataRequestTopic, version: int) -> MetadataResponseTopic:
    image = broker.cluster.image
    if not wanted.name:
        found = image.topic_by_id(wanted.topic_id) if wanted.topic_id != NO_UUID else None
        if found is None or found.name in image.deleting:
            # Below version 12 a name may be missing in a request, but not in an answer.
            name = wanted.name if version >= _NAMELESS_VERSION else ""
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
