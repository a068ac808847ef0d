"""ListPartitionReassignments: ongoing moves of partitions."""

from __future__ import annotations

from collections.abc import Generator

from penstock.broker.request import PART_ELEMENTS, Answer, Request, Services
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.wire.schemas.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    services.long_requests.finish(request.channel, _listed(services.cluster.image, request.message, answer))


def _listed(
    image: ClusterImage, message: ListPartitionReassignmentsRequest, answer: Answer
) -> Generator[None, None, None]:
    wanted: dict[str, set[int]] | None = None if message.topics is None else {}
    if wanted is not None:
        for number, named in enumerate(message.topics or (), 1):
            wanted.setdefault(named.name, set()).update(named.partition_indexes)
            if not number % PART_ELEMENTS:
                yield
    topics: list[OngoingTopicReassignment] = []
    for number, topic in enumerate(image.topics.values(), 1):
        if not number % PART_ELEMENTS:
            yield
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
