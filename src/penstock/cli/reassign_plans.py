"""Plans of `penstock reassign`: which partitions get which replicas, as files and as tables.

The file is that of Kafka's own tool, so that plans go both ways:

    {"version": 1, "partitions": [{"topic": "views", "partition": 0, "replicas": [1, 2, 3]}]}

Rule: whatever else is in it is ignored, which is how our own output can say more; but what cannot be meant (a partition
twice, a replica twice, a broker that is not there) is refused before anything is moved.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.cli.cluster import Refused
from penstock.cli.output import CommandError, Output, counted, human_bytes
from penstock.cli.partitions import no_such_topic
from penstock.cli.tables import show_table
from penstock.client.consumer.types import TopicPartition

if TYPE_CHECKING:
    from penstock.client.admin import PartitionDescription
    from penstock.client.cluster_view import Node

Wanted = Mapping[TopicPartition, tuple[int, ...]]

_VERSION: Final = 1
_ANY_FOLDER: Final = "any"
_EXAMPLE: Final = (
    'Give the form of kafka-reassign-partitions, as {"version":1,"partitions":[{"topic":"views","partition":0,'
    '"replicas":[1,2]}]}; `penstock reassign plan -o FILE` writes one.'
)


class Move(NamedTuple):
    """What becomes of a partition. `size_bytes` is what a copy of it takes, None if no broker says."""

    key: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int | None

    @property
    def copies(self) -> tuple[int, ...]:
        """Who gets one."""
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
    """The plan of a file, or of standard input by the name "-". CommandError."""
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
        raise CommandError(f"{name} is not a plan: {error}.", _EXAMPLE) from None


def parse_plan(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """ValueError says what is wrong with it."""
    try:
        document = msgspec.json.decode(data, type=_Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if document.version != _VERSION:
        raise ValueError(f"its version is {document.version}, and {_VERSION} is known")
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for entry in document.partitions:
        key = TopicPartition(entry.topic, entry.partition)
        if key in found:
            raise ValueError(f"{key} is listed twice")
        if not entry.replicas or len(set(entry.replicas)) < len(entry.replicas):
            raise ValueError(f"the replicas of {key} are {entry.replicas}: at least one, and none of them twice")
        if any(folder != _ANY_FOLDER for folder in entry.log_dirs or ()):
            raise ValueError(f"log_dirs of {key} names a folder; brokers choose it themselves, as by {_ANY_FOLDER!r}")
        found[key] = tuple(entry.replicas)
    return found


def write_plan(file: str, wanted: Wanted) -> None:
    """CommandError."""
    try:
        with open(file, "wb") as stream:
            stream.write(plan_text(wanted))
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}.", "Name a file that can be written.") from None


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
    """The partitions of a plan that are not as it wants them."""
    return [
        Move(key, described[key].replicas, replicas, sizes.get(key))
        for key, replicas in wanted.items()
        if described[key].replicas != replicas
    ]


def check_plan(wanted: Wanted, described: Mapping[TopicPartition, PartitionDescription], nodes: Iterable[Node]) -> None:
    """Refused if it names what is not there."""
    topics = {key.topic for key in described}
    alive = {node.id for node in nodes}
    for key, replicas in wanted.items():
        if key.topic not in topics:
            raise no_such_topic(key.topic, topics)
        if key not in described:
            raise Refused(
                f"Topic {key.topic} has no partition {key.partition}.", "Make a new plan: penstock reassign plan"
            )
        missing = sorted(set(replicas) - alive - set(described[key].replicas))
        if missing:
            brokers = ", ".join(map(str, missing))
            raise Refused(
                f"The plan puts {key} on broker {brokers}, which is not there.",
                "`penstock brokers` shows those there are.",
            )


# --- showing


def show_moves(output: Output, moves: Sequence[Move]) -> None:
    copies = sum(len(move.copies) for move in moves)
    # The same replicas in another order: nothing is copied.
    reordered = sum(not move.copies and len(move.after) == len(move.before) for move in moves)
    total = human_bytes(copied_bytes(moves))
    facts = [f"{counted(copies, 'replica')} copied ({total})"]
    if reordered:
        facts.append(f"{counted(reordered, 'partition')} with another preferred leader only")
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
    """How many replicas each broker has, and how many it leads by preference, before and after."""
    after = {key: wanted.get(key, replicas) for key, replicas in before.items()}
    held = [_held(state) for state in (before, after)]
    first = [Counter(replicas[0] for replicas in state.values() if replicas) for state in (before, after)]
    racks = {node.id: node.rack for node in nodes}
    brokers = sorted(racks.keys() | held[0].keys() | held[1].keys())
    rows = [
        (
            broker,
            racks.get(broker) if broker in racks else "(away)",
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
