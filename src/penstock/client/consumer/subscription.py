"""What a consumer wants to read: topics by name, by pattern, or partitions that it names itself.

Rule: a pattern must match the whole name, as Kafka's white-lists do; `exclude` takes names away again. By a pattern
alone internal topics are never chosen. `match` is asked with every new picture of the cluster, so topics that appear
later are picked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.client.consumer.types import TopicPartition

Pattern = str | re.Pattern[str]


class Wish(NamedTuple):
    """A subscription; at most one of topics, pattern and partitions says something."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    exclude: re.Pattern[str] | None = None
    partitions: frozenset[TopicPartition] | None = None

    @property
    def is_empty(self) -> bool:
        return not self.topics and self.pattern is None and not self.partitions

    @property
    def is_manual(self) -> bool:
        return self.partitions is not None

    @property
    def needs_all_topics(self) -> bool:
        return self.pattern is not None

    def match(self, existing: Mapping[str, bool]) -> frozenset[str]:
        """The topics meant, out of `existing` (name: is it internal); names are meant even before they exist."""
        if self.pattern is None:
            return self.topics
        return frozenset(
            name
            for name, is_internal in existing.items()
            if not is_internal and self.pattern.fullmatch(name) and not self._is_excluded(name)
        )

    def _is_excluded(self, name: str) -> bool:
        return self.exclude is not None and self.exclude.fullmatch(name) is not None


def wish_for(
    topics: Iterable[str] = (),
    pattern: Pattern | None = None,
    exclude: Pattern | None = None,
) -> Wish:
    """A subscription by names or by pattern; ValueError says what does not go together.

    `exclude` alone is a black-list: every topic but those.
    """
    if isinstance(topics, str):
        topics = (topics,)
    names = frozenset(topics)
    for name in names:
        if not name:
            raise ValueError("a topic's name is empty")
    if names and (pattern is not None or exclude is not None):
        raise ValueError("subscribe to topics by name or by pattern, not both")
    if exclude is not None and pattern is None:
        pattern = ".*"
    return Wish(names, _compiled(pattern, "pattern"), _compiled(exclude, "exclude"))


def wish_for_partitions(partitions: Iterable[tuple[str, int]]) -> Wish:
    """Partitions chosen by the caller: no group moves them."""
    chosen = frozenset(TopicPartition(topic, partition) for topic, partition in partitions)
    for partition in chosen:
        if partition.partition < 0:
            raise ValueError(f"{partition.topic} has no partition {partition.partition}")
    return Wish(partitions=chosen)


def _compiled(pattern: Pattern | None, what: str) -> re.Pattern[str] | None:
    if pattern is None or isinstance(pattern, re.Pattern):
        return pattern
    try:
        return re.compile(pattern)
    except re.error as reason:
        raise ValueError(f"{what} {pattern!r} is not a regular expression: {reason}") from None
