"""Changes of partitions, gathered into one decision. Pure.

Noun: `Changes`, an image and what is to be different in some of its partitions.

Rule: what a partition becomes is written once, on condition that its state is as it was, and not at all if nothing is
different. The states of partitions that get another leader come first, as somebody waits for them; what a topic's
replicas are comes last: then no state names somebody who is no replica, wherever the writing ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.cluster import paths
from penstock.cluster.decision import Decision, TopicPartition
from penstock.cluster.image import NO_ID, NO_STATE, ClusterImage, PartitionImage, TopicImage
from penstock.cluster.layout import NO_LEADER, encode_partition_state, encode_topic
from penstock.cluster.topics import state_of
from penstock.cluster.tree import Create, Operation, Set


class Changes:
    """On one image. What was put is what `partition` finds from then on."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._after: dict[str, dict[int, PartitionImage]] = {}

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        """The partition as it is by now; None for one that is not there, or whose topic is on its way out."""
        if topic in self.image.deleting:
            return None
        changed = self._after.get(topic, {}).get(index)
        return self.image.partition(topic, index) if changed is None else changed

    def put(self, topic: str, index: int, after: PartitionImage) -> None:
        """Let an existing partition be this; version and controller epoch of its state are seen to here."""
        before = self.image.topics[topic].partitions[index]
        epoch, version = before.controller_epoch, before.state_version
        if not is_same_state(before, after):
            epoch, version = self.image.controller_epoch, version + 1
        if (after.controller_epoch, after.state_version) != (epoch, version):
            after = replace(after, controller_epoch=epoch, state_version=version)
        changed = self._after.setdefault(topic, {})
        if after == before:
            changed.pop(index, None)
        else:
            changed[index] = after

    def decision(self) -> Decision:
        moved: list[Operation] = []
        others: list[Operation] = []
        assigned: list[Operation] = []
        unclean: list[TopicPartition] = []
        topics: list[TopicImage] = []
        for topic, after in self._topics():
            topics.append(topic)
            before = self.image.topics[topic.name]
            if any(before.partitions[index].assignment != item.assignment for index, item in after.items()):
                assigned.append(stored_assignment(topic))
            for index, item in after.items():
                was = before.partitions[index]
                if item.state_version != was.state_version:
                    (moved if item.leader != was.leader else others).append(stored(topic.name, index, was, item))
                if is_unclean(was, item):
                    unclean.append((topic.name, index))
        image = self.image.with_topics(topics) if topics else self.image
        return Decision((*moved, *others, *assigned), image, tuple(unclean))

    def _topics(self) -> Iterator[tuple[TopicImage, dict[int, PartitionImage]]]:
        for name, changed in self._after.items():
            if changed:
                topic = self.image.topics[name]
                partitions = list(topic.partitions)
                for index, after in changed.items():
                    partitions[index] = after
                yield replace(topic, partitions=tuple(partitions)), changed


def is_same_state(one: PartitionImage, other: PartitionImage) -> bool:
    """Whether leader, epoch, ISR and ELR are the same, and there is a state at all."""
    return (
        one.leader == other.leader
        and one.leader_epoch == other.leader_epoch
        and one.isr == other.isr
        and one.elr == other.elr
        and one.recovering == other.recovering
        and (one.state_version == NO_STATE) == (other.state_version == NO_STATE)
    )


def is_unclean(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether the new leader may lack what was committed."""
    if before.state_version == NO_STATE or after.leader in (NO_LEADER, before.leader):
        return False
    return after.leader not in before.isr and after.leader not in before.elr


def stored(topic: str, index: int, before: PartitionImage, after: PartitionImage) -> Operation:
    """What writes a partition's new state, if it is still as it was."""
    path, data = paths.partition_state(topic, index), encode_partition_state(state_of(after))
    return Create(path, data) if before.state_version == NO_STATE else Set(path, data, before.state_version)


def stored_assignment(topic: TopicImage) -> Operation:
    """What writes who holds the partitions of a topic."""
    topic_id = None if topic.topic_id == NO_ID else topic.topic_id
    return Set(paths.topic(topic.name), encode_topic(topic_id, [item.assignment for item in topic.partitions]))
