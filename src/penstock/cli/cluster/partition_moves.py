"""Partition reassignments as data: plan files, progress, throttles.

The plan file is that of kafka-reassign-partitions, so that plans can be exchanged:

    {"version": 1, "partitions": [{"topic": "views", "partition": 0, "replicas": [1, 2, 3]}]}

Unknown fields are ignored; a partition or replica listed twice, or a broker that does not exist, is rejected before
anything moves. A replica is complete when it is in sync; until then its share is estimated from log sizes.

A throttle is a leader rate and a follower rate on each broker, which apply to the replicas that their topic lists as
throttled. For a move, all current replicas may have to send, and the added ones fetch; replicas that are in sync are
not slowed down. Every rate and list that was set at run time counts as a throttle, so that a forgotten one can be
found.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.cli.connection import Rejected
from penstock.cli.output import CommandError, Output, show_table
from penstock.cli.topics.partitions import DETAILS_TIMEOUT_MS, all_partitions, no_such_topic
from penstock.client.admin import Admin, ConfigResource, PartitionReassignment
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.runtime.quantities import counted, human_bytes

if TYPE_CHECKING:
    from penstock.client.admin import PartitionDescription
    from penstock.client.cluster_metadata import Node


Wanted = Mapping[TopicPartition, tuple[int, ...]]

_VERSION: Final = 1
_ANY_FOLDER: Final = "any"
_EXAMPLE: Final = (
    'Use the format of kafka-reassign-partitions: {"version":1,"partitions":[{"topic":"views","partition":0,'
    '"replicas":[1,2]}]}; `penstock reassign plan -o FILE` writes one.'
)


class Move(NamedTuple):
    """The change of a partition. `size_bytes` is the size of a copy, None if no broker reports it."""

    key: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int | None

    @property
    def copies(self) -> tuple[int, ...]:
        """Brokers that get a copy."""
        return tuple(broker for broker in self.after if broker not in self.before)


class _Entry(msgspec.Struct):
    topic: str
    partition: int
    replicas: list[int]
    log_dirs: list[str] | None = None


class _Plan(msgspec.Struct):
    version: int
    partitions: list[_Entry]


# --- files


def read_plan(file: str) -> dict[TopicPartition, tuple[int, ...]]:
    """The plan in a file, or on standard input for "-". Raises CommandError."""
    name = "standard input" if file == "-" else file
    try:
        if file == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(file, "rb") as stream:
                data = stream.read()
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}.", _EXAMPLE) from None
    try:
        return parse_plan(data)
    except ValueError as error:
        raise CommandError(f"{name} is not a valid plan: {error}.", _EXAMPLE) from None


def parse_plan(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Parse a plan. Raises ValueError."""
    try:
        document = msgspec.json.decode(data, type=_Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if document.version != _VERSION:
        raise ValueError(f"version {document.version} is not supported, only {_VERSION}")
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for entry in document.partitions:
        key = TopicPartition(entry.topic, entry.partition)
        if key in found:
            raise ValueError(f"{key} is listed twice")
        if not entry.replicas or len(set(entry.replicas)) < len(entry.replicas):
            raise ValueError(f"the replicas of {key} are {entry.replicas}; at least one is needed, and none twice")
        if any(folder != _ANY_FOLDER for folder in entry.log_dirs or ()):
            raise ValueError(f"log_dirs of {key} names a folder; only {_ANY_FOLDER!r} is supported")
        found[key] = tuple(entry.replicas)
    return found


def write_plan(file: str, wanted: Wanted) -> None:
    """CommandError."""
    try:
        with open(file, "wb") as stream:
            stream.write(plan_text(wanted))
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}.", "Choose a file that can be written.") from None


def plan_text(wanted: Wanted) -> bytes:
    entries = [
        {"topic": key.topic, "partition": key.partition, "replicas": list(replicas)} for key, replicas in wanted.items()
    ]
    return msgspec.json.format(msgspec.json.encode({"version": _VERSION, "partitions": entries}), indent=2) + b"\n"


# --- what a plan does


def moves_of(
    wanted: Wanted,
    described: Mapping[TopicPartition, PartitionDescription],
    sizes: Mapping[TopicPartition, int],
) -> list[Move]:
    """The partitions that differ from a plan."""
    return [
        Move(key, described[key].replicas, replicas, sizes.get(key))
        for key, replicas in wanted.items()
        if described[key].replicas != replicas
    ]


def check_plan(wanted: Wanted, described: Mapping[TopicPartition, PartitionDescription], nodes: Iterable[Node]) -> None:
    """Rejected if the plan names a partition or broker that does not exist."""
    topics = {key.topic for key in described}
    alive = {node.id for node in nodes}
    for key, replicas in wanted.items():
        if key.topic not in topics:
            raise no_such_topic(key.topic, topics)
        if key not in described:
            raise Rejected(
                f"Topic {key.topic} has no partition {key.partition}.", "Compute a new plan: penstock reassign plan"
            )
        missing = sorted(set(replicas) - alive - set(described[key].replicas))
        if missing:
            brokers = ", ".join(map(str, missing))
            raise Rejected(
                f"The plan puts {key} on broker {brokers}, which does not exist.",
                "`penstock brokers` shows the brokers.",
            )


# --- showing


def show_moves(output: Output, moves: Sequence[Move]) -> None:
    copies = sum(len(move.copies) for move in moves)
    # The same replicas in another order: nothing is copied.
    reordered = sum(not move.copies and len(move.after) == len(move.before) for move in moves)
    total = human_bytes(copied_bytes(moves))
    facts = [f"{counted(copies, 'replica')} copied ({total})"]
    if reordered:
        facts.append(f"{counted(reordered, 'partition')} with only a new preferred leader")
    output.line(f"{counted(len(moves), 'partition')} to change: {', '.join(facts)}")
    rows = [
        (
            move.key.topic,
            move.key.partition,
            move.before,
            move.after,
            move.copies,
            None if move.size_bytes is None else human_bytes(move.size_bytes),
        )
        for move in moves
    ]
    show_table(output, ("TOPIC", "PARTITION", "FROM", "TO", "COPIED TO", "SIZE"), rows, "  ")


def copied_bytes(moves: Iterable[Move]) -> int:
    return sum(len(move.copies) * (move.size_bytes or 0) for move in moves)


def show_balance(
    output: Output, before: Mapping[TopicPartition, Sequence[int]], wanted: Wanted, nodes: Iterable[Node]
) -> None:
    """Replicas and preferred leaderships of each broker, before and after."""
    after = {key: wanted.get(key, replicas) for key, replicas in before.items()}
    held = [_held(state) for state in (before, after)]
    first = [Counter(replicas[0] for replicas in state.values() if replicas) for state in (before, after)]
    racks = {node.id: node.rack for node in nodes}
    brokers = sorted(racks.keys() | held[0].keys() | held[1].keys())
    rows = [
        (
            broker,
            racks.get(broker) if broker in racks else "(offline)",
            held[0][broker],
            held[1][broker],
            first[0][broker],
            first[1][broker],
        )
        for broker in brokers
    ]
    titles = ("BROKER", "RACK", "REPLICAS", "AFTER", "PREFERRED", "AFTER")
    show_table(output, titles, rows, "  ")


def _held(state: Mapping[TopicPartition, Sequence[int]]) -> Counter[int]:
    return Counter(broker for replicas in state.values() for broker in replicas)


def move_document(move: Move) -> dict[str, object]:
    return {
        "topic": move.key.topic,
        "partition": move.key.partition,
        "replicas": list(move.after),
        "from": list(move.before),
        "copies": list(move.copies),
        "bytes": move.size_bytes,
    }


_POLL_S: Final = 0.5
_ALMOST_COPIED: Final = 0.99

Sizes = Mapping[tuple[int, TopicPartition], int]


class Progress(NamedTuple):
    """A move in progress. `behind` are the replicas not in sync yet; `done` is from 0 to 1, or None."""

    key: TopicPartition
    move: PartitionReassignment
    behind: tuple[int, ...]
    done: float | None


def replica_sizes(admin: Admin) -> dict[tuple[int, TopicPartition], int]:
    """The size of every replica, by broker; brokers that do not answer are left out."""
    return {
        (broker, key): size
        for broker, folders in admin.describe_log_dirs(timeout_ms=DETAILS_TIMEOUT_MS).items()
        if not isinstance(folders, PenstockError)
        for folder in folders
        for key, size in folder.sizes.items()
    }


def largest_sizes(sizes: Sizes) -> dict[TopicPartition, int]:
    """The size of each partition's largest replica, which is the size of a copy."""
    largest: dict[TopicPartition, int] = {}
    for (_, key), size in sizes.items():
        largest[key] = max(size, largest.get(key, 0))
    return largest


def progress_of(admin: Admin, moving: Mapping[TopicPartition, PartitionReassignment]) -> list[Progress]:
    if not moving:
        return []
    described = all_partitions(admin)
    sizes = replica_sizes(admin)
    found: list[Progress] = []
    for key, move in sorted(moving.items()):
        part = described.get(key)
        isr = () if part is None else part.isr
        behind = tuple(broker for broker in move.adding if broker not in isr)
        leader = None if part is None or part.leader is None else part.leader.id
        found.append(Progress(key, move, behind, _copied(key, move, behind, leader, sizes)))
    return found


def _copied(
    key: TopicPartition, move: PartitionReassignment, behind: tuple[int, ...], leader: int | None, sizes: Sizes
) -> float | None:
    if not behind:
        return 1.0
    whole = sizes.get((leader, key)) if leader is not None else None
    if whole is None:
        return None
    have = sum(
        1.0 if broker not in behind else min(_ALMOST_COPIED, sizes.get((broker, key), 0) / whole) if whole else 0.0
        for broker in move.adding
    )
    return have / len(move.adding)


def show_progress(output: Output, found: list[Progress]) -> None:
    rows = [
        (
            each.key.topic,
            each.key.partition,
            each.move.replicas,
            each.move.adding,
            each.move.removing,
            each.behind,
            None if each.done is None else f"{each.done:.0%}",
        )
        for each in found
    ]
    show_table(output, ("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING", "BEHIND", "COPIED"), rows)


def progress_document(each: Progress) -> dict[str, object]:
    return {
        "topic": each.key.topic,
        "partition": each.key.partition,
        "replicas": list(each.move.replicas),
        "adding": list(each.move.adding),
        "removing": list(each.move.removing),
        "behind": list(each.behind),
        "copied": None if each.done is None else round(each.done, 4),
    }


def wait_until_done(
    admin: Admin, keys: Collection[TopicPartition] | None, timeout_ms: int | None, tell: Callable[[str], None]
) -> int:
    """Wait for these moves, or for all. Returns how many are still in progress after the time-out."""
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    printed = -1
    while True:
        left = len(admin.list_partition_reassignments(keys))
        if not left:
            return 0
        if left != printed:
            tell(f"{counted(left, 'partition')} being moved ...")
            printed = left
        left_s = _POLL_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            return left
        time.sleep(min(_POLL_S, left_s))


RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_ALTERED: Final = frozenset({"dynamic broker", "topic"})

Changes = Mapping[ConfigResource, Mapping[str, str | None]]


def throttle_changes(moves: Sequence[Move], bytes_per_s: int) -> Changes:
    """The settings that throttle these moves."""
    changes: dict[ConfigResource, dict[str, str | None]] = {}
    copied = [move for move in moves if move.copies]
    for broker in sorted({broker for move in copied for broker in (*move.before, *move.after)}):
        changes[ConfigResource.broker(broker)] = dict.fromkeys(RATES, str(bytes_per_s))
    leading: dict[str, list[str]] = {}
    following: dict[str, list[str]] = {}
    for move in copied:
        topic, index = move.key
        leading.setdefault(topic, []).extend(f"{index}:{broker}" for broker in move.before)
        following.setdefault(topic, []).extend(f"{index}:{broker}" for broker in move.copies)
    for topic, replicas in leading.items():
        values = (",".join(replicas), ",".join(following[topic]))
        changes[ConfigResource.topic(topic)] = dict(zip(LISTS, values, strict=True))
    return changes


def removal_of(changes: Changes) -> Changes:
    """The changes that undo these."""
    return {resource: dict.fromkeys(values) for resource, values in changes.items()}


def find_throttles(admin: Admin, brokers: Iterable[int], topics: Iterable[str]) -> dict[ConfigResource, dict[str, str]]:
    """The throttles in force, by the broker or topic that they are set on."""
    wanted = [*map(ConfigResource.broker, brokers), *map(ConfigResource.topic, topics)]
    found: dict[ConfigResource, dict[str, str]] = {}
    for resource, settings in admin.describe_configs(wanted).items():
        if isinstance(settings, PenstockError):
            continue
        own = {
            name: entry.value
            for name in (*RATES, *LISTS)
            if (entry := settings.get(name)) is not None and entry.source in _ALTERED and entry.value
        }
        if own:
            found[resource] = own
    return found


def apply_throttles(admin: Admin, changes: Changes) -> None:
    """Set the throttles. If one is rejected, removes those set before it and raises."""
    done: dict[ConfigResource, Mapping[str, str | None]] = {}
    for resource, values in changes.items():
        error = admin.alter_configs({resource: values})[resource]
        if error is not None:
            admin.alter_configs(removal_of(done))
            raise error
        done[resource] = values


def remove_throttles(admin: Admin, resources: Iterable[ConfigResource]) -> list[PenstockError]:
    """Remove rates and lists. Returns those that could not be removed."""
    changes: dict[ConfigResource, dict[str, str | None]] = {
        resource: dict.fromkeys(RATES if resource.kind == "broker" else LISTS) for resource in resources
    }
    return [error for error in admin.alter_configs(changes).values() if error is not None]
