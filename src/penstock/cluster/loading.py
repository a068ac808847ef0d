"""The image of a cluster, read from its metadata tree.

Rule: what vanishes while it is read was deleted, and is left out; what cannot be understood is a LayoutError that names
its path, since a cluster with a hole in its metadata would delete what it no longer knows of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from penstock.cluster import paths
from penstock.cluster.errors import LayoutError, NoNode
from penstock.cluster.image import NO_CONTROLLER, NO_ID, ClusterImage, PartitionImage, Settings, TopicImage
from penstock.cluster.layout import (
    BrokerRegistration,
    Replicas,
    decode_broker,
    decode_broker_epochs,
    decode_cluster_id,
    decode_config,
    decode_controller,
    decode_controller_epoch,
    decode_partition_state,
    decode_topic,
)
from penstock.cluster.tree import Node, Tree, find

OnUnreadable = Callable[[LayoutError], None]


async def load_image(tree: Tree) -> ClusterImage:
    """Everything that the tree tells of the cluster. LayoutError, TreeError."""
    image = await load_unmanned(tree)
    return replace(image, brokers=await load_brokers(tree))


async def load_unmanned(tree: Tree) -> ClusterImage:
    """The same but for the brokers. LayoutError, TreeError."""
    cluster_id = await find(tree, paths.CLUSTER_ID)
    controller = await find(tree, paths.CONTROLLER)
    epoch = await find(tree, paths.CONTROLLER_EPOCH)
    image = ClusterImage(
        cluster_id="" if cluster_id is None else decode_cluster_id(cluster_id.data),
        controller_id=NO_CONTROLLER if controller is None else decode_controller(controller.data),
        controller_epoch=0 if epoch is None else decode_controller_epoch(epoch.data),
        topic_configs=await _load_configs(tree, paths.TOPIC_CONFIGS),
        broker_configs=await _load_configs(tree, paths.BROKER_CONFIGS),
    )
    image = image.with_topics(await _load_topics(tree))
    return image.with_deleting(await marked_for_deletion(tree))


async def load_brokers(tree: Tree, unreadable: OnUnreadable | None = None) -> dict[int, BrokerRegistration]:
    """The live brokers, in the order of their ids. LayoutError, unless `unreadable` takes it; TreeError."""
    found: dict[int, BrokerRegistration] = {}
    for name, node in await _nodes_under(tree, paths.BROKER_IDS):
        try:
            if not (name.isascii() and name.isdigit() and len(name) <= 10):
                raise LayoutError(f"{paths.BROKER_IDS}/{name}", "its name is no broker's id")
            found[int(name)] = decode_broker(int(name), node.data, node.created)
        except LayoutError as error:
            if unreadable is None:
                raise
            unreadable(error)
    return dict(sorted(found.items()))


async def load_broker_epochs(tree: Tree) -> dict[int, int]:
    """LayoutError, TreeError."""
    node = await find(tree, paths.BROKER_EPOCHS)
    return {} if node is None else decode_broker_epochs(node.data)


async def marked_for_deletion(tree: Tree) -> list[str]:
    """The topics that are to go, those that are gone already included."""
    try:
        return await tree.children(paths.DELETE_TOPICS)
    except NoNode:
        return []


async def _load_configs(tree: Tree, folder: str) -> dict[str, Settings]:
    return {name: decode_config(f"{folder}/{name}", node.data) for name, node in await _nodes_under(tree, folder)}


async def _load_topics(tree: Tree) -> list[TopicImage]:
    documents = [(name, decode_topic(name, node.data)) for name, node in await _nodes_under(tree, paths.TOPICS)]
    states = [paths.partition_state(name, index) for name, topic in documents for index in range(len(topic.partitions))]
    nodes = iter(zip(states, await tree.get_many(states), strict=True))
    return [
        TopicImage(
            name,
            NO_ID if topic.topic_id is None else topic.topic_id,
            tuple(_partition(replicas, *next(nodes)) for replicas in topic.partitions),
        )
        for name, topic in documents
    ]


def _partition(assignment: Replicas, path: str, node: Node | None) -> PartitionImage:
    if node is None:
        return PartitionImage(assignment.replicas, adding=assignment.adding, removing=assignment.removing)
    state = decode_partition_state(path, node.data)
    return PartitionImage(
        assignment.replicas,
        state.leader,
        state.leader_epoch,
        state.isr,
        assignment.adding,
        assignment.removing,
        state.controller_epoch,
        state.recovering,
        node.version,
        state.elr,
    )


async def _nodes_under(tree: Tree, folder: str) -> Iterable[tuple[str, Node]]:
    try:
        names = await tree.children(folder)
    except NoNode:
        return []
    nodes = await tree.get_many([f"{folder}/{name}" for name in names])
    return [(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]
