"""Which partitions a broker holds: so that what a broker's end costs depends on what it held, not on the cluster.

Noun: `Hosting`, partitions by broker, kept up with an image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from penstock.cluster.image import ClusterImage, TopicImage, diff


class Hosting:
    """Of one image at a time; `follow` takes it to the next."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._held: defaultdict[int, dict[str, set[int]]] = defaultdict(dict)
        for topic in image.topics.values():
            self._add(topic)

    def of(self, brokers: Iterable[int]) -> Iterator[tuple[TopicImage, list[int]]]:
        """The topics that these brokers hold something of, each with the numbers of those partitions, in order."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        for broker in brokers:
            for name, indexes in self._held.get(broker, {}).items():
                found[name] |= indexes
        for name in sorted(found):
            yield self.image.topics[name], sorted(found[name])

    def follow(self, image: ClusterImage) -> None:
        change = diff(self.image, image)
        for topic in change.topics_removed.values():
            self._remove(topic)
        for before, after in change.topics_changed.values():
            if [one.replicas for one in before.partitions] != [one.replicas for one in after.partitions]:
                self._remove(before)
                self._add(after)
        for topic in change.topics_added.values():
            self._add(topic)
        self.image = image

    def _add(self, topic: TopicImage) -> None:
        for index, partition in enumerate(topic.partitions):
            for broker in partition.replicas:
                self._held[broker].setdefault(topic.name, set()).add(index)

    def _remove(self, topic: TopicImage) -> None:
        for partition in topic.partitions:
            for broker in partition.replicas:
                self._held[broker].pop(topic.name, None)
