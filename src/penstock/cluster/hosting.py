"""Which partitions a broker holds: so that what a broker's end costs depends on what it held, not on the cluster.

Noun: `Hosting`, partitions by broker, and those that are being moved, kept up with an image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from penstock.cluster.decision import TopicPartition
from penstock.cluster.image import ClusterImage, TopicImage, diff


class Hosting:
    """Of one image at a time; `follow` takes it to the next."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._held: defaultdict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
        self._moving: dict[str, tuple[int, ...]] = {}
        for topic in image.topics.values():
            self._add(topic)

    def of(self, brokers: Iterable[int]) -> Iterator[tuple[TopicImage, list[int]]]:
        """The topics that these brokers hold something of, each with the numbers of those partitions, in order."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        for broker in brokers:
            for name, indexes in self._held.get(broker, {}).items():
                found[name].update(indexes)
        for name in sorted(found):
            yield self.image.topics[name], sorted(found[name])

    def moving(self) -> list[TopicPartition]:
        """The partitions that get other replicas, in order."""
        return [(name, index) for name in sorted(self._moving) for index in self._moving[name]]

    def follow(self, image: ClusterImage) -> None:
        change = diff(self.image, image)
        for topic in change.topics_removed.values():
            self._remove(topic)
        for before, after in change.topics_changed.values():
            if not _is_held_alike(before, after):
                self._remove(before)
                self._add(after)
        for topic in change.topics_added.values():
            self._add(topic)
        self.image = image

    def _add(self, topic: TopicImage) -> None:
        held: defaultdict[int, list[int]] = defaultdict(list)
        moving: list[int] = []
        for index, partition in enumerate(topic.partitions):
            for broker in partition.replicas:
                held[broker].append(index)
            if partition.adding or partition.removing:
                moving.append(index)
        for broker, indexes in held.items():
            self._held[broker][topic.name] = tuple(indexes)
        if moving:
            self._moving[topic.name] = tuple(moving)

    def _remove(self, topic: TopicImage) -> None:
        for broker in {broker for partition in topic.partitions for broker in partition.replicas}:
            self._held[broker].pop(topic.name, None)
        self._moving.pop(topic.name, None)


def _is_held_alike(one: TopicImage, other: TopicImage) -> bool:
    if len(one.partitions) != len(other.partitions):
        return False
    pairs = zip(one.partitions, other.partitions, strict=True)
    return all(before is after or before.assignment == after.assignment for before, after in pairs)
