"""DescribeTopicPartitions: topics page by page, with their eligible leader replicas (KIP-966).

Topics are sorted by name. A page ends at its limit, if need be in the middle of a topic; the cursor says where the next
one begins. The authorized operations are those of a cluster without an authorizer; `authorization_rules` replaces them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from penstock.broker.request import Answer, Request, Services
from penstock.cluster.image import ClusterImage, TopicImage
from penstock.security.acls import OPERATIONS_OF, ResourceType, bits_of
from penstock.wire.protocol import INTERNAL_TOPICS, ErrorCode
from penstock.wire.schemas.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

_AT_ONCE: Final = 500
"""Partitions that are described in one slice."""


def handle(services: Services, request: Request, answer: Answer) -> None:
    services.long_requests.finish(request.channel, _pages(services, request, answer))


def _pages(services: Services, request: Request, answer: Answer) -> Generator[None, None, None]:
    message: DescribeTopicPartitionsRequest = request.message
    image = services.cluster.image
    names = sorted({topic.name for topic in message.topics} or set(image.topics) - image.deleting)
    first, index = (None, 0) if message.cursor is None else (message.cursor.topic_name, message.cursor.partition_index)
    left = min(services.settings.max_request_partition_size_limit, max(1, message.response_partition_limit))
    response = DescribeTopicPartitionsResponse()
    described = 0
    for name in names:
        if first is not None and name < first:
            continue
        begin = max(0, index) if name == first else 0
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=begin)
            break
        topic = image.topic(name)
        if topic is None or name in image.deleting:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=code, name=name))
            left -= 1
            continue
        rows: list[DescribeTopicPartitionsResponsePartition] = []
        end = min(len(topic.partitions), begin + left)
        for number in range(begin, end):
            rows.append(_row(image, topic, number))
            described += 1
            if described % _AT_ONCE == 0:
                yield
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name, topic_id=topic.topic_id, is_internal=name in INTERNAL_TOPICS, partitions=rows
            )
        )
        left -= len(rows)
        if begin + len(rows) < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=begin + len(rows))
            break
    everything = bits_of(OPERATIONS_OF[ResourceType.TOPIC])
    for row in response.topics:
        row.topic_authorized_operations = everything
    answer(response)


def _row(image: ClusterImage, topic: TopicImage, index: int) -> DescribeTopicPartitionsResponsePartition:
    partition = topic.partitions[index]
    leader = image.live_leader(partition)
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=[],
        offline_replicas=list(image.offline_replicas(topic, index)),
    )
