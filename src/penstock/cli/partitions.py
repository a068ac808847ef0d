"""Partitions that a command line names, found in the cluster.

Rule: a name that is wrong is told before anything is done, with the nearest one that is right; `TOPIC` is all of its
partitions, `TOPIC:0,2` these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from penstock.cli.cluster import Refused

if TYPE_CHECKING:
    from penstock.cli.values import NameAndPartitions
    from penstock.client.admin import Admin, PartitionDescription
    from penstock.client.consumer.types import TopicPartition


PATIENCE_MS: Final = 5_000
"""For what a broker adds to a picture that is worth showing without it: one that hangs does not hold it up."""


def all_partitions(admin: Admin) -> dict[TopicPartition, PartitionDescription]:
    """Of all topics that can be described, internal ones too."""
    from penstock.client.admin import TopicDescription
    from penstock.client.consumer.types import TopicPartition

    return {
        TopicPartition(name, part.index): part
        for name, topic in sorted(admin.describe_topics().items())
        if isinstance(topic, TopicDescription)
        for part in topic.partitions
    }


def named_partitions(admin: Admin, wanted: Iterable[NameAndPartitions]) -> dict[TopicPartition, PartitionDescription]:
    """Those that were named. Refused if one of them does not exist."""
    from penstock.client.consumer.types import TopicPartition

    described = all_partitions(admin)
    found: dict[TopicPartition, PartitionDescription] = {}
    for topic, indexes in wanted:
        of_topic = {key: part for key, part in described.items() if key.topic == topic}
        if not of_topic:
            raise no_such_topic(topic, {key.topic for key in described})
        chosen = of_topic if indexes is None else [TopicPartition(topic, index) for index in indexes]
        for key in chosen:
            if key not in of_topic:
                raise Refused(
                    f"Topic {topic} has no partition {key.partition}.",
                    f"It has {len(of_topic)}, numbered from 0; `penstock topics describe {topic}` shows them.",
                )
            found[key] = of_topic[key]
    return found


def no_such_topic(topic: str, there: Iterable[str]) -> Refused:
    from difflib import get_close_matches

    near = get_close_matches(topic, list(there), n=1)
    advice = f"Did you mean {near[0]}?" if near else "`penstock topics list` shows the topics there are."
    return Refused(f"There is no topic {topic!r}.", advice)
