"""The end of a topic. Pure.

Noun: `Deletions`, of which topic who has still to say that its replicas are gone.

    marked      /admin/delete_topics/<name>: nobody leads, joins, grows or moves it from then on
    awaited     every replica, one by one, is reported gone by its broker; one that is away reports when it is back
    finished    everything of the topic goes from the tree, and the mark last: then the name is free

Rule: the topic is there until nothing of it is anywhere: a broker that slept through a deletion cannot bring back
records of an old topic under a new one of its name. A report names the topic by its id: a late one, about a topic of
the same name before, changes nothing (KIP-570). A new controller begins by awaiting all again: who has nothing left
says so at once.
"""

from __future__ import annotations

from penstock.cluster import parts, paths
from penstock.cluster.decision import Decision
from penstock.cluster.errors import UnknownTopic
from penstock.cluster.image import ClusterImage, TopicImage
from penstock.cluster.topics import delete_topic
from penstock.cluster.tree import Create, Delete

Replica = tuple[int, int]
"""A partition's number and a broker's id."""


def mark_deleted(image: ClusterImage, name: str) -> Decision:
    """Refusal. A topic that is marked already needs nothing more."""
    if name not in image.topics:
        raise UnknownTopic(f"there is no topic {name[:300]!r}")
    if name in image.deleting:
        return Decision((), image)
    return Decision((Create(paths.deletion(name)),), image.with_deleting((name,)))


def delete_at_once(image: ClusterImage, name: str) -> Decision:
    """The end of a topic for which nobody is waited. Refusal. One that takes several parts is marked first: what is
    left of it in between must not be taken for a topic.
    """
    decision = delete_topic(image, name)
    if len(decision.operations) <= parts.MAX_OPERATIONS - parts.TOGETHER:
        return decision
    mark = paths.deletion(name)
    return decision._replace(operations=(Create(mark), *decision.operations, Delete(mark)))


class Deletions:
    """Of the topics that are marked in the image that is followed."""

    def __init__(self, image: ClusterImage) -> None:
        self._awaited: dict[str, tuple[bytes, set[Replica]]] = {}
        self.follow(image)

    def follow(self, image: ClusterImage) -> None:
        """Await topics that are marked by now, and forget those that are gone."""
        self._awaited = {
            name: known if known is not None and known[0] == topic.topic_id else (topic.topic_id, _replicas(topic))
            for name in sorted(image.deleting)
            for topic in (image.topics[name],)
            for known in (self._awaited.get(name),)
        }

    def reported_gone(self, name: str, topic_id: bytes, partition: int, broker_id: int) -> None:
        """A broker has nothing of this partition, and will never make it again."""
        found = self._awaited.get(name)
        if found is not None and found[0] == topic_id:
            found[1].discard((partition, broker_id))

    def awaited(self, name: str) -> frozenset[Replica]:
        """Whose report is missing; nobody's for a topic that is not being deleted."""
        found = self._awaited.get(name)
        return frozenset() if found is None else frozenset(found[1])

    def awaited_of(self, broker_id: int) -> dict[str, list[int]]:
        """What a broker is asked to remove, now or when it is back: partitions by topic."""
        found = {
            name: sorted(partition for partition, broker in replicas if broker == broker_id)
            for name, (_, replicas) in self._awaited.items()
        }
        return {name: partitions for name, partitions in found.items() if partitions}

    def finished(self) -> list[str]:
        """The topics of which nothing is left."""
        return [name for name, (_, replicas) in self._awaited.items() if not replicas]

    def finish(self, image: ClusterImage, name: str) -> Decision | None:
        """The end of such a topic; None while something is left, or it is no topic that is being deleted."""
        topic = image.topics.get(name)
        found = self._awaited.get(name)
        if topic is None or found is None or found[0] != topic.topic_id or found[1]:
            return None
        decision = delete_topic(image, name)
        return Decision((*decision.operations, Delete(paths.deletion(name))), decision.image)


def _replicas(topic: TopicImage) -> set[Replica]:
    """Of a partition that is being moved, also those that are being added or removed."""
    return {
        (index, broker)
        for index, partition in enumerate(topic.partitions)
        for broker in (*partition.replicas, *partition.adding, *partition.removing)
    }
