"""ListPartitionReassignments: ongoing moves of partitions."""

from __future__ import annotations

from penstock.broker.request import Answer, Request, Services
from penstock.cluster.image import PartitionImage
from penstock.wire.schemas.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: ListPartitionReassignmentsRequest = request.message
    image = services.cluster.image
    wanted = None if message.topics is None else {topic.name: set(topic.partition_indexes) for topic in message.topics}
    topics: list[OngoingTopicReassignment] = []
    for topic in image.topics.values():
        if topic.name in image.deleting or (wanted is not None and topic.name not in wanted):
            continue
        moving = [
            _ongoing(index, partition)
            for index, partition in enumerate(topic.partitions)
            if (partition.adding or partition.removing) and (wanted is None or index in wanted[topic.name])
        ]
        if moving:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=moving))
    answer(ListPartitionReassignmentsResponse(error_message=None, topics=topics))


def _ongoing(index: int, partition: PartitionImage) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
    )
