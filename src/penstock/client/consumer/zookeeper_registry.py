"""The registry of consumers in ZooKeeper, and who owns what: the rebalance algorithm of Kafka 0.7 to 0.9. Pure.

    /consumers/<group>/ids/<consumer>            its subscription; ephemeral
    /consumers/<group>/owners/<topic>/<number>   the thread that reads the partition; ephemeral
    /consumers/<group>/offsets/<topic>/<number>  the next offset
    /brokers/topics/<topic>                      its partitions and their replicas

Every member of a group reads the same registry and comes to the same decision, without a coordinator. For each topic,
the partitions are sorted by number, the threads of all members that subscribe to it by name, and each thread gets a
range; the first ones get one more if it does not divide evenly.

    7 partitions, threads g_a-0 g_a-1 g_b-0      0 1 2 | 3 4 | 5 6

Threads are compared as text, as Kafka does: thread 10 comes before thread 2. In Kafka 0.7 partitions were named after
their broker, so a range had neighbours on one broker. Since 0.8 Kafka sorts by number alone, and members that sort in
another order would fight over partitions. A group of these consumers only may sort by broker, and then by number.

    partitions 0 2 4 on broker 1, 1 3 5 on broker 2, threads g_a-0 g_b-0      by broker 0 2 4 | 1 3 5
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import ConfigError
from penstock.wire.protocol import INTERNAL_TOPICS

CONSUMERS: Final = "/consumers"
BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"

Kind = Literal["static", "white_list", "black_list"]
PartitionOrder = Literal["number", "broker"]
_KINDS: Final[tuple[Kind, ...]] = ("static", "white_list", "black_list")
_FILTER_0_7: Final = re.compile(r"([*!])(\d{1,9})\1(.+)", re.DOTALL)
_MAX_STREAMS: Final = 10_000
_MAX_PARTITION: Final = 2**31 - 1


class RegistryError(ValueError):
    """A document in the registry cannot be understood."""


# --------------------------------------------------------------------------------------------------- paths


class GroupPaths(NamedTuple):
    """The paths of one group."""

    group: str

    @property
    def ids(self) -> str:
        return f"{CONSUMERS}/{self.group}/ids"

    def consumer(self, consumer: str) -> str:
        return f"{self.ids}/{consumer}"

    def owners(self, topic: str) -> str:
        return f"{CONSUMERS}/{self.group}/owners/{topic}"

    def owner(self, partition: TopicPartition) -> str:
        return f"{self.owners(partition.topic)}/{partition.partition}"


def check_node_name(what: str, name: str) -> None:
    """ConfigError for a name that a node cannot have."""
    if not name or "/" in name or not name.isprintable() or name in (".", "..", "zookeeper"):
        raise ConfigError(f"{name!r} cannot be the name of a {what} in ZooKeeper", hint="Rename it, without /")


# --------------------------------------------------------------------------------------------------- subscriptions


@dataclass(frozen=True, slots=True)
class Subscription:
    """Streams by topic, or by one regular expression for the topics that are read, or that are not."""

    kind: Kind
    streams: Mapping[str, int]

    def streams_of(self, topics: Iterable[str]) -> dict[str, int]:
        """How many threads read each topic. `topics` are those that exist; only filters need them."""
        if self.kind == "static":
            return dict(self.streams)
        ((pattern, count),) = self.streams.items()
        compiled = compiled_filter(pattern)
        wants_match = self.kind == "white_list"
        return {
            name: count
            for name in topics
            if name not in INTERNAL_TOPICS and (compiled.fullmatch(name) is not None) == wants_match
        }

    @property
    def stream_count(self) -> int:
        return max(self.streams.values())


def _is_stream_count(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= _MAX_STREAMS


def filter_text(pattern: str) -> str:
    """A filter as Kafka writes it: commas separate alternatives; blanks and quotes around it are removed."""
    return pattern.strip().replace(",", "|").replace(" ", "").strip("\"'")


def compiled_filter(pattern: str) -> re.Pattern[str]:
    """RegistryError."""
    try:
        return re.compile(pattern)
    except re.error as reason:
        raise RegistryError(f"{pattern[:100]!r} is not a regular expression: {reason}") from None


def subscribe(
    topics: Sequence[str], streams: int | Mapping[str, int], pattern: str | None, exclude: str | None
) -> Subscription:
    """The subscription for these arguments of a consumer; raises ConfigError."""
    if isinstance(streams, Mapping):
        if topics or pattern is not None or exclude is not None:
            raise ConfigError("streams names the topics already", hint="Give topics, a filter, or streams by topic")
        found = Subscription("static", dict(streams))
    elif [bool(topics), pattern is not None, exclude is not None].count(True) != 1:
        raise ConfigError(
            "a ZooKeeperConsumer needs topics, a pattern or an exclude, and only one of them",
            hint="A member of a group registers with a list of topics, a white-list or a black-list",
        )
    elif topics:
        found = Subscription("static", dict.fromkeys(topics, streams))
    else:
        kind: Kind = "black_list" if pattern is None else "white_list"
        found = Subscription(kind, {filter_text(str(exclude if pattern is None else pattern)): streams})
    if not found.streams:
        raise ConfigError("streams names no topic")
    for name, count in found.streams.items():
        if not _is_stream_count(count):
            raise ConfigError(f"streams is {count!r}; it must be 1 to {_MAX_STREAMS}")
        if found.kind == "static":
            check_node_name("topic", name)
    if found.kind != "static":
        try:
            compiled_filter(next(iter(found.streams)))
        except RegistryError as error:
            raise ConfigError(str(error)) from None
    return found


def encode_registration(subscription: Subscription, now_ms: int) -> bytes:
    """Version 1, as Kafka 0.8 and 0.9 write it."""
    document = {
        "version": 1,
        "subscription": dict(subscription.streams),
        "pattern": subscription.kind,
        "timestamp": str(now_ms),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode_registration(data: bytes) -> Subscription:
    """RegistryError. Kafka 0.7 wrote streams by topic, or "*2*<white-list>" and "!2!<black-list>"."""
    old = _FILTER_0_7.fullmatch(data.decode("utf-8", "replace").strip())
    if old is not None:
        return _checked("white_list" if old[1] == "*" else "black_list", {old[3]: int(old[2])})
    document = _json(data)
    if "subscription" not in document:
        return _checked("static", document)
    kind = document.get("pattern", "static")
    if kind not in _KINDS:
        raise RegistryError(f"unknown kind of subscription {str(kind)[:40]!r}")
    return _checked(kind, document["subscription"])


def _checked(kind: Kind, streams: Any) -> Subscription:
    if not isinstance(streams, dict) or not streams or (kind != "static" and len(streams) > 1):
        raise RegistryError("it does not say how many streams read which topics")
    for name, count in streams.items():
        if not _is_stream_count(count):
            raise RegistryError(f"{str(count)[:40]!r} streams for {name[:100]!r}")
        if kind != "static":
            compiled_filter(name)
    return Subscription(kind, streams)


def decode_partitions(data: bytes, order: PartitionOrder = "number") -> list[int]:
    """The numbers of a topic's partitions, in the order in which they are shared, from its document; RegistryError.

    The broker of a partition is its preferred leader, the first of its replicas: members that read the same document
    agree on it, and a change of leaders that is soon undone moves no partition.
    """
    found = _json(data).get("partitions")
    if not isinstance(found, dict) or not all(
        name.isascii() and name.isdigit() and int(name) <= _MAX_PARTITION for name in found
    ):
        raise RegistryError("it has no partitions")
    if order == "number":
        return sorted(map(int, found))
    return [number for _, number in sorted((_preferred_leader(each), int(name)) for name, each in found.items())]


def _preferred_leader(replicas: object) -> int:
    if not isinstance(replicas, list) or not replicas or type(replicas[0]) is not int:
        raise RegistryError("it does not say which brokers have its partitions")
    return replicas[0]


def _json(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise RegistryError("it is not an object")
    return document


# --------------------------------------------------------------------------------------------------- decisions


class Registry(NamedTuple):
    """What a member has read: the subscriptions in its group, the topics that exist, the partitions of each topic in
    the order in which they are shared, and whether there are brokers."""

    members: Mapping[str, Subscription]
    topics: frozenset[str]
    partitions: Mapping[str, Sequence[int]]
    has_brokers: bool = True

    @property
    def has_filters(self) -> bool:
        return any(each.kind != "static" for each in self.members.values())


def thread_id(consumer: str, number: int) -> str:
    return f"{consumer}-{number}"


def topics_of(members: Mapping[str, Subscription], consumer: str, topics: frozenset[str]) -> dict[str, int]:
    """The topics that a member reads, and how many of its threads read each."""
    own = members.get(consumer)
    return {} if own is None else own.streams_of(topics)


def assign(registry: Registry, consumer: str) -> dict[TopicPartition, int]:
    """The partitions of one member, and the number of the thread that reads each."""
    wanted = topics_of(registry.members, consumer, registry.topics)
    by_member = {name: each.streams_of(registry.topics) for name, each in registry.members.items()}
    found: dict[TopicPartition, int] = {}
    for topic, own_count in sorted(wanted.items()):
        threads = sorted(
            thread_id(name, number) for name, streams in by_member.items() for number in range(streams.get(topic, 0))
        )
        positions = {name: index for index, name in enumerate(threads)}
        partitions = registry.partitions.get(topic, ())
        for number in range(own_count):
            share = range_of(positions[thread_id(consumer, number)], len(threads), len(partitions))
            found.update((TopicPartition(topic, partitions[index]), number) for index in share)
    return found


def range_of(position: int, threads: int, partitions: int) -> range:
    """Which of the sorted partitions the thread at this position gets."""
    share, extra = divmod(partitions, threads)
    start = share * position + min(position, extra)
    return range(start, start + share + (position < extra))


class Rebalance(NamedTuple):
    """What to give up first, and what to claim then; both with the number of the thread."""

    release: dict[TopicPartition, int]
    claim: dict[TopicPartition, int]


def rebalance(owned: Mapping[TopicPartition, int], wanted: Mapping[TopicPartition, int]) -> Rebalance:
    """The steps from what a member owns to what it should own. Partitions that stay are not interrupted."""
    return Rebalance(
        {partition: number for partition, number in owned.items() if wanted.get(partition) != number},
        {partition: number for partition, number in wanted.items() if owned.get(partition) != number},
    )
