"""`penstock offsets`: where partitions begin and end, and which offset belongs to a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.cluster import Cluster, cluster_command, failure, show_failures
from penstock.cli.options import topics_named, watch_option
from penstock.cli.output import JSON, Output, format_option
from penstock.cli.tables import show_table
from penstock.cli.values import Moment, NameAndPartitions, time_text

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.client.consumer.types import TopicPartition

_EXIT_PARTLY = 1


@click.command(short_help="Show the first and last offsets of partitions, or those of a time.")
@topics_named(required=False, partitions=True)
@click.option("--time", "--at", "time_ms", type=Moment(), help="Also the first record at or after this time.")
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default="read_uncommitted",
    show_default=True, help="Whether the end is that of all records or of committed ones.",
)  # fmt: skip
@watch_option
@format_option
@cluster_command
def offsets(
    cluster: Cluster,
    names: tuple[NameAndPartitions, ...],
    time_ms: int | None,
    isolation_level: str,
    output_format: str,
) -> None:
    """Show where partitions begin and end, and how many records lie between.

    Without TOPIC, all topics that are not internal. TIME is 2026-11-15T10:30 (local), 2026-11-15T10:30:00Z, "1h ago",
    or milliseconds since 1970.

    \b
    Exit code: 1  a partition could not be asked; it is reported
               4  there is no such topic
    """
    if time_ms is not None:
        cluster.check_times()
    with cluster.admin() as admin:
        wanted = partitions_meant(admin, names)
        columns = [
            _asked(admin, wanted, end, isolation_level)
            for end in ("earliest", "latest", *([time_ms] if time_ms is not None else []))
        ]
    _show(Output(), output_format, wanted, columns, time_ms)


def partitions_meant(admin: Admin, topics: Sequence[NameAndPartitions]) -> list[TopicPartition]:
    """The partitions that are named, all of a topic that is named alone. Raises Refused for one that does not exist."""
    from penstock.cli.partitions import explained_topics, no_such_partition
    from penstock.cli.topics_report import is_internal
    from penstock.client.consumer.types import TopicPartition
    from penstock.client.errors import PenstockError

    described = admin.describe_topics([item.topic for item in topics] or None)
    found: dict[TopicPartition, None] = {}
    for name, answer in sorted(described.items()):
        if isinstance(answer, PenstockError):
            raise explained_topics(admin, {name: answer})[name]
        if not topics and is_internal(answer):
            continue
        there = [part.index for part in answer.partitions]
        named = [item.partitions for item in topics if item.topic == name]
        chosen = there if not named or None in named else [index for each in named for index in each or ()]
        missing = [index for index in chosen if index not in there]
        if missing:
            raise no_such_partition(name, missing[0], len(there))
        found.update(dict.fromkeys(TopicPartition(name, index) for index in chosen))
    return list(found)


def offsets_at(admin: Admin, partitions: Sequence[TopicPartition], where: Any) -> dict[TopicPartition, int]:
    """The offset of each partition at "earliest", "latest" or a time; -1 where no record is that young."""
    from penstock.client.admin import OffsetResult

    found = {}
    for partition, answer in admin.list_offsets(dict.fromkeys(partitions, where)).items():
        if not isinstance(answer, OffsetResult):
            raise answer
        found[partition] = answer.offset
    return found


def _asked(admin: Admin, wanted: Sequence[TopicPartition], end: Any, isolation_level: str) -> dict[TopicPartition, Any]:
    return dict(admin.list_offsets(dict.fromkeys(wanted, end), isolation_level=isolation_level))


def _show(
    output: Output,
    output_format: str,
    wanted: Sequence[TopicPartition],
    columns: Sequence[dict[TopicPartition, Any]],
    time_ms: int | None,
) -> None:
    from penstock.client.errors import PenstockError

    rows: list[dict[str, object]] = []
    failures: list[PenstockError] = []
    for partition in wanted:
        answers = [column[partition] for column in columns]
        failures += [answer for answer in answers if isinstance(answer, PenstockError)][:1]
        begin, end, *at = [None if isinstance(answer, PenstockError) else answer for answer in answers]
        row: dict[str, object] = {
            "topic": partition.topic,
            "partition": partition.partition,
            "begin": begin.offset if begin else None,
            "end": end.offset if end else None,
            "records": end.offset - begin.offset if begin and end else None,
        }
        if at:
            row["atOffset"] = at[0].offset if at[0] and at[0].offset >= 0 else None
            row["atTime"] = at[0].timestamp if at[0] and at[0].timestamp >= 0 else None
        rows.append(row)
    if output_format == JSON:
        document: dict[str, object] = {"partitions": rows, "failed": [failure(error) for error in failures]}
        output.json(document | ({} if time_ms is None else {"time": time_ms}), indent=2)
    else:
        titles = ["TOPIC", "PARTITION", "BEGIN", "END", "RECORDS"]
        if time_ms is not None:
            titles += ["AT", "TIME OF RECORD"]
            for row in rows:
                row["atTime"] = time_text(row["atTime"] if isinstance(row["atTime"], int) else None)
        show_table(output, titles, [list(row.values()) for row in rows])
        if not rows:
            output.nothing("There are no topics.")
    output.flush()
    show_failures(failures, output_format)
    if failures:
        click.get_current_context().exit(_EXIT_PARTLY)
