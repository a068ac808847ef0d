"""How far moves of partitions are: what `penstock reassign status` shows, and waiting for the end.

Rule: a replica is there when it is in sync; how much of it is copied is told by the sizes of its log and the leader's,
which are near the truth, and 100 % only at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from penstock.cli.output import Output, counted
from penstock.cli.partitions import PATIENCE_MS, all_partitions
from penstock.cli.tables import show_table
from penstock.client.admin import Admin, PartitionReassignment
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import PenstockError

_POLL_S: Final = 0.5
_NEARLY: Final = 0.99

Sizes = Mapping[tuple[int, TopicPartition], int]


class Progress(NamedTuple):
    """A move that is under way. `behind` are those that are not in sync yet; `done` is from 0 to 1, or not known."""

    key: TopicPartition
    move: PartitionReassignment
    behind: tuple[int, ...]
    done: float | None


def replica_sizes(admin: Admin) -> dict[tuple[int, TopicPartition], int]:
    """Of every replica, by broker; brokers that cannot be asked are left out."""
    return {
        (broker, key): size
        for broker, folders in admin.describe_log_dirs(timeout_ms=PATIENCE_MS).items()
        if not isinstance(folders, PenstockError)
        for folder in folders
        for key, size in folder.sizes.items()
    }


def largest_sizes(sizes: Sizes) -> dict[TopicPartition, int]:
    """Of each partition, its largest replica: what a copy of it takes."""
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
        1.0 if broker not in behind else min(_NEARLY, sizes.get((broker, key), 0) / whole) if whole else 0.0
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
    """How many of these moves, or of all, are under way after the time; 0 as soon as none is."""
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    told = -1
    while True:
        left = len(admin.list_partition_reassignments(keys))
        if not left:
            return 0
        if left != told:
            tell(f"{counted(left, 'partition')} being moved ...")
            told = left
        left_s = _POLL_S if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            return left
        time.sleep(min(_POLL_S, left_s))
