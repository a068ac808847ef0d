"""Partitions that a command line names, found in the cluster.

Rule: a name that is wrong is told before anything is done, with the nearest one that is right; `TOPIC` is all of its
partitions, `TOPIC:0,2` these.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.cli.cluster import Refused, told

if TYPE_CHECKING:
    from penstock.cli.cluster import Cluster
    from penstock.cli.output import CommandError
    from penstock.cli.values import NameAndPartitions
    from penstock.client.admin import Admin, PartitionDescription
    from penstock.client.consumer.types import TopicPartition
    from penstock.client.errors import PenstockError


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
                raise no_such_partition(topic, key.partition, len(of_topic))
            found[key] = of_topic[key]
    return found


def no_such_topic(topic: str, there: Iterable[str]) -> Refused:
    """With the topic that was perhaps meant."""
    return no_such("topic", topic, there, "UNKNOWN_TOPIC_OR_PARTITION")


def no_such_group(group: str, there: Iterable[str]) -> Refused:
    return no_such("group", group, there, "GROUP_ID_NOT_FOUND")


def no_such(noun: str, name: str, there: Iterable[str], code: str) -> Refused:
    from difflib import get_close_matches

    near = get_close_matches(name, list(there), n=1)
    hint = f"Did you mean {near[0]}?" if near else f"`penstock {noun}s list` shows the {noun}s."
    return Refused(f"There is no {noun} {name!r}.", hint, code=code)


def no_such_partition(topic: str, index: int, count: int) -> Refused:
    has = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
    return Refused(f"Topic {topic!r} has no partition {index}.", f"It has {has}.", code="UNKNOWN_TOPIC_OR_PARTITION")


def is_new_topic(cluster: Cluster, topic: str, *, create: bool) -> bool:
    """Whether the topic to be written to does not exist yet.

    With `create` it exists when this returns. Without it, at a terminal, Refused: it may be a typing mistake.
    """
    from penstock.client.admin import TopicSpec
    from penstock.client.errors import PenstockError, UnknownTopic

    with cluster.admin() as admin:
        try:
            found = admin.describe_topics([topic]).get(topic)
        except PenstockError:
            return False  # whoever may not describe a topic may still write to it
        if not isinstance(found, UnknownTopic):
            return False
        if create:
            admin.create_topic(TopicSpec(topic), exist_ok=True)
        elif sys.stdin.isatty():
            missing = no_such_topic(topic, admin.list_topics())
            raise Refused(missing.problem, f"{missing.hint} --create creates it.", code=missing.code)
    return True


def explained_topics(admin: Admin, errors: Mapping[str, PenstockError]) -> dict[str, CommandError]:
    """The errors of topics by name; one that does not exist with the one that was perhaps meant."""
    from penstock.client.errors import UnknownTopic

    is_unknown = any(isinstance(error, UnknownTopic) for error in errors.values())
    there = admin.list_topics(include_internal=True) if is_unknown else []
    return {
        name: no_such_topic(name, there) if isinstance(error, UnknownTopic) and name not in there else told(error)
        for name, error in errors.items()
    }
