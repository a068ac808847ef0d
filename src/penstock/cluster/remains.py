"""What a controller that ended in the middle of a change left in the tree.

Rule: a topic is made from its name down to the states of its partitions, and deleted the other way round; whatever was
left in between is found by looking, and brought to where the change can be finished.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cluster import paths
from penstock.cluster.decision import Decision
from penstock.cluster.errors import NoNode
from penstock.cluster.image import NO_STATE, ClusterImage, TopicImage
from penstock.cluster.tree import Create, Delete, Operation, Tree


def has_stateless(image: ClusterImage) -> bool:
    """Whether a partition that is to stay has no state."""
    return any(_stateless(image))


async def missing_nodes(tree: Tree, image: ClusterImage) -> tuple[Operation, ...]:
    """What makes the nodes above the states that partitions lack. TreeError."""
    wanted: dict[str, None] = {}
    for topic, index in _stateless(image):
        wanted[paths.partitions(topic.name)] = None
        wanted[paths.partition(topic.name, index)] = None
    nodes = await tree.get_many(list(wanted))
    return tuple(Create(path) for path, node in zip(wanted, nodes, strict=True) if node is None)


async def remains_of_deletions(tree: Tree, image: ClusterImage, marked: Iterable[str]) -> Decision:
    """What is left of topics that were being deleted, and would be in the way of the rest. TreeError."""
    operations: list[Operation] = []
    left: list[str] = []
    for name in marked:
        topic = image.topics.get(name)
        if topic is not None:
            operations += await _without_states(tree, topic)
            continue
        if name in image.topic_configs:
            left.append(name)
            operations.append(Delete(paths.topic_config(name)))
        operations.append(Delete(paths.deletion(name)))
    return Decision(tuple(operations), image.without_topic_configs(left) if left else image)


async def _without_states(tree: Tree, topic: TopicImage) -> list[Operation]:
    """The nodes of partitions that have no state any more, and the one above them if none has."""
    stateless = {str(index) for index, each in enumerate(topic.partitions) if each.state_version == NO_STATE}
    if not stateless:
        return []
    try:
        children = await tree.children(paths.partitions(topic.name))
    except NoNode:
        return []
    operations: list[Operation] = [
        Delete(f"{paths.partitions(topic.name)}/{child}") for child in children if child in stateless
    ]
    if len(stateless) == len(topic.partitions) and len(operations) == len(children):
        operations.append(Delete(paths.partitions(topic.name)))
    return operations


def _stateless(image: ClusterImage) -> Iterable[tuple[TopicImage, int]]:
    return (
        (topic, index)
        for topic in image.topics.values()
        if topic.name not in image.deleting
        for index, partition in enumerate(topic.partitions)
        if partition.state_version == NO_STATE
    )
