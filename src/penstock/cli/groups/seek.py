"""The plan of `penstock groups seek`, partition by partition, and its execution.

A plan stays within each partition: an offset before its start becomes the start, one behind its end becomes the end,
and the plan says so. A timestamp after the last record means the end. A group with members is not moved, since they
would commit their own offsets over the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.cli.connection import Rejected, error_document
from penstock.cli.output import JSON, Output, printable, show_table
from penstock.cli.topics.partitions import offsets_at, selected_partitions
from penstock.cli.values import NameAndPartitions, now_ms
from penstock.client.admin import Admin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError, UnknownGroup
from penstock.runtime.quantities import counted

NEW = "new"
"""The state of a group that does not exist yet."""


@dataclass(frozen=True, slots=True)
class Target:
    """The option that gives the target (`to_earliest`, `shift_by`), and its number."""

    kind: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A partition: its committed offset, its new one, and why that differs from the request."""

    partition: TopicPartition
    committed: int | None
    offset: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    group: str
    state: str
    members: int
    moves: tuple[Move, ...]


def make_plan(admin: Admin, group: str, topics: Sequence[NameAndPartitions], target: Target) -> Plan:
    """The plan. Raises UnknownTopic, and Rejected if there is nothing to move."""
    try:
        described = admin.describe_group(group, with_lag=False)
        state, members = described.state, len(described.members)
    except UnknownGroup:
        # Committing offsets creates a group.
        state, members = NEW, 0
    committed = {key: stored.offset for key, stored in admin.group_offsets(group).items()} if state != NEW else {}
    partitions = selected_partitions(admin, topics) if topics else sorted(committed)
    if not partitions:
        raise Rejected(
            f"Group {group!r} has no committed offsets.", "Name topics with --topic instead of --all-topics."
        )
    begins = offsets_at(admin, partitions, "earliest")
    ends = offsets_at(admin, partitions, "latest")
    at = offsets_at(admin, partitions, _time_ms(target)) if target.kind in _BY_TIME else {}
    moves = []
    for partition in partitions:
        wanted, note = _wanted(target, committed.get(partition), begins[partition], ends[partition], at.get(partition))
        offset = min(max(wanted, begins[partition]), ends[partition])
        if offset != wanted:
            note = f"{wanted} is out of range; nearest is {offset}"
        moves.append(Move(partition, committed.get(partition), offset, note))
    return Plan(group, state, members, tuple(moves))


_BY_TIME = ("to_time", "by_duration")


def _time_ms(target: Target) -> int:
    return target.number if target.kind == "to_time" else max(0, now_ms() - target.number)


def _wanted(target: Target, committed: int | None, begin: int, end: int, at: int | None) -> tuple[int, str]:
    """The offset of the target in a partition, and a note."""
    if target.kind == "to_earliest":
        return begin, ""
    if target.kind == "to_latest":
        return end, ""
    if target.kind == "to_offset":
        return target.number, ""
    if target.kind in _BY_TIME:
        return (at, "") if at is not None and at >= 0 else (end, "no record is that recent; moved to the end")
    if committed is None:
        return begin, "no committed offset; moved to the beginning"
    return committed + (target.number if target.kind == "shift_by" else 0), ""


def check_idle(plan: Plan) -> None:
    """Raise Rejected if the group has members."""
    if plan.members:
        raise Rejected(
            f"Group {plan.group!r} is {plan.state.lower()} and has {counted(plan.members, 'member')}.",
            "Stop its consumers first: they would overwrite the new offsets.",
            code="NON_EMPTY_GROUP",
        )


def execute_plan(admin: Admin, plan: Plan) -> dict[TopicPartition, PenstockError]:
    """Commit the plan. Returns the failures."""
    check_idle(plan)
    answers = admin.set_group_offsets(plan.group, {move.partition: move.offset for move in plan.moves})
    return {partition: error for partition, error in answers.items() if error is not None}


def show_plan(output: Output, plan: Plan) -> None:
    rows = []
    for move in plan.moves:
        change = None if move.committed is None else f"{move.offset - move.committed:+d}"
        rows.append((*move.partition, move.committed, move.offset, change, move.note))
    show_table(output, ("TOPIC", "PARTITION", "COMMITTED", "NEW", "CHANGE", "NOTE"), rows)
    output.flush()


def show_outcome(
    output: Output, output_format: str, plan: Plan, failures: Mapping[TopicPartition, PenstockError], *, executed: bool
) -> None:
    if output_format == JSON:
        moves = [
            {
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "committed": move.committed,
                "offset": move.offset,
                "note": move.note or None,
                "error": error_document(failures[move.partition]) if move.partition in failures else None,
            }
            for move in plan.moves
        ]
        facts = {"group": plan.group, "state": plan.state, "members": plan.members, "executed": executed}
        output.json({**facts, "moves": moves}, indent=2)
    elif executed:
        output.line(f"Moved {printable(plan.group)} in {counted(len(plan.moves) - len(failures), 'partition')}.")
    else:
        output.line(output.style("Dry run: nothing was changed. Add --execute to move the group.", "yellow"))
        if plan.members:
            output.line(f"The group has {counted(plan.members, 'member')}; stop them first.")
        if plan.state == NEW:
            output.line(f"Group {printable(plan.group)!r} does not exist; --execute would create it.")
    output.flush()
