"""What is asked of a controller, and what comes of it: the parts that several changes share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from penstock.cluster.configs import ConfigEdit, ResourceKind
from penstock.cluster.errors import InvalidRequest, Refusal
from penstock.cluster.image import ClusterImage, TopicImage


class TopicOutcome(NamedTuple):
    """What came of a change of a topic: the topic as it is then, or was before its deletion; or why there is none."""

    name: str
    topic: TopicImage | None = None
    refusal: Refusal | None = None


class NewPartitions(NamedTuple):
    """A topic is to have `total` partitions; `assignments` are the replicas of the new ones."""

    topic: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None


class ConfigChange(NamedTuple):
    """Some edits, or a whole new set in `replacement`."""

    kind: ResourceKind
    name: str
    edits: Sequence[ConfigEdit] = ()
    replacement: Mapping[str, str | None] | None = None


class ConfigOutcome(NamedTuple):
    kind: ResourceKind
    name: str
    refusal: Refusal | None = None


class Images(NamedTuple):
    """The image on which a change was decided, and the one after it."""

    before: ClusterImage
    after: ClusterImage


Result = Images | Refusal


def topic_outcome(name: str, result: Result) -> TopicOutcome:
    if isinstance(result, Refusal):
        return TopicOutcome(name, refusal=result)
    return TopicOutcome(name, result.after.topics[name])


def deletion_outcome(wanted: str | bytes, result: Result) -> TopicOutcome:
    if isinstance(result, Refusal):
        return TopicOutcome(wanted if isinstance(wanted, str) else "", refusal=result)
    topic = result.before.topics[wanted] if isinstance(wanted, str) else result.before.topic_by_id(wanted)
    return TopicOutcome("" if topic is None else topic.name, topic)


def config_outcome(change: ConfigChange, result: Result) -> ConfigOutcome:
    return ConfigOutcome(change.kind, change.name, result if isinstance(result, Refusal) else None)


def repeated(keys: Sequence[Hashable]) -> frozenset[Hashable]:
    return frozenset(key for key, count in Counter(keys).items() if count > 1)


def refuse_repeated(key: Hashable, twice: frozenset[Hashable]) -> None:
    if key in twice:
        raise InvalidRequest("the request names the same thing twice")
