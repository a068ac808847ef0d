"""What becomes of partitions when brokers come and go. Pure.

Rule: a broker that came back is one that went and another that came, however fast it was: what it knew in its former
life, it may not know any more. Only partitions of those brokers are looked at.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from penstock.cluster.decision import Decision
from penstock.cluster.elections import elect, stored
from penstock.cluster.hosting import Hosting
from penstock.cluster.image import ClusterImage, TopicImage
from penstock.cluster.partition_rules import RulesOf
from penstock.cluster.tree import Operation


def brokers_changed(
    hosting: Hosting,
    image: ClusterImage,
    came: Collection[int],
    went: Collection[int],
    forgetful: Collection[int],
    rules_of: RulesOf,
) -> Decision:
    """`image` has the brokers that are live now; `came` those that are new or back, `forgetful` those of them that
    did not stop cleanly. The operations are independent of one another: they may be done in parts.
    """
    operations: list[Operation] = []
    topics: list[TopicImage] = []
    for topic, indexes in hosting.of({*came, *went}):
        rules = rules_of(topic.name)
        partitions = list(topic.partitions)
        before = len(operations)
        for index in indexes:
            partition = partitions[index]
            after = elect(partition, image.brokers.keys(), came, image.controller_epoch, rules, forgetful)
            if after is not None:
                operations.append(stored(topic, index, partition, after))
                partitions[index] = after
        if len(operations) > before:
            topics.append(replace(topic, partitions=tuple(partitions)))
    return Decision(tuple(operations), image.with_topics(topics) if topics else image)
