"""`penstock topics trim`: delete the oldest records of partitions.

The plan is made partition by partition and shown before anything is deleted. It never leaves a partition's range: an
offset before its beginning deletes nothing, one behind its end deletes everything. A time means all records before the
first one that is at least as young.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from penstock.cli.cluster import Cluster, cluster_command, failure, show_failures
from penstock.cli.offsets import offsets_at, partitions_meant
from penstock.cli.options import asking_options, confirmed_plan, topics_named
from penstock.cli.output import JSON, CommandError, Output, counted, format_option
from penstock.cli.tables import show_table
from penstock.cli.values import Duration, Moment, NameAndPartitions, now_ms

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.client.consumer.types import TopicPartition
    from penstock.client.errors import PenstockError

_EXIT_PARTLY = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition: where it begins and ends, and where it begins afterwards."""

    partition: TopicPartition
    begin: int
    end: int
    before: int

    @property
    def records(self) -> int:
        """Offsets that go, which is at least as many as records."""
        return self.before - self.begin


@click.command(short_help="Delete the oldest records of topics.")
@topics_named(required=True, partitions=True)
@click.option("--before-offset", "--offset", type=click.IntRange(min=0), metavar="N", help="Records below this offset.")
@click.option("--before-time", type=Moment(), help="Records before the first one at or after this time.")
@click.option("--older-than", type=Duration(), help="The same for a time so long ago: 7d, 1h30m.")
@click.option("--all-records", is_flag=True, help="All records there are now.")
@asking_options
@format_option
@cluster_command
def trim(
    cluster: Cluster,
    names: tuple[NameAndPartitions, ...],
    before_offset: int | None,
    before_time: int | None,
    older_than: int | None,
    all_records: bool,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Delete the oldest records of topics or of some of their partitions. It cannot be undone.

    Shows what would go, and asks at a terminal; without one it deletes only if --execute is given.

    \b
    penstock topics trim views --older-than 7d
    penstock topics trim views:0,2 --before-offset 120000 --execute
    penstock topics trim views --all-records --dry-run

    \b
    Exit code: 0  planned, or done
               1  some partitions could not be trimmed; they are reported. Or you said no
               4  refused: there is no such topic
    """
    limits = [before_offset is not None, before_time is not None, older_than is not None, all_records]
    if sum(limits) != 1:
        raise CommandError(
            "Which records are meant?", "Give one of --before-offset, --before-time, --older-than and --all-records."
        )
    if older_than is not None:
        before_time = max(0, now_ms() - older_than)
    if before_time is not None:
        cluster.check_times()
    output = Output()
    with cluster.admin() as admin:
        cuts = _plan(admin, partitions_meant(admin, names), before_offset, before_time)
        wanted = [cut for cut in cuts if cut.records]
        if output_format != JSON:
            _show(output, cuts)
        failures: dict[TopicPartition, PenstockError] = {}
        total = sum(cut.records for cut in wanted)
        question = f"Delete {counted(total, 'record')} of {counted(len(wanted), 'partition')}?"
        done = bool(wanted) and confirmed_plan(question, dry_run=dry_run, execute=execute)
        if done:
            failures = _carry_out(admin, wanted)
    if output_format == JSON:
        output.json({"executed": done, "partitions": [_document(cut, failures) for cut in cuts]}, indent=2)
    elif done:
        gone = [cut for cut in wanted if cut.partition not in failures]
        output.line(f"Deleted {counted(sum(cut.records for cut in gone), 'record')}.")
    elif wanted:
        output.line(output.style("Dry run: nothing was deleted. Add --execute to do it.", "yellow"))
    output.flush()
    show_failures(failures.values(), output_format)
    if failures:
        click.get_current_context().exit(_EXIT_PARTLY)


def _plan(
    admin: Admin, partitions: Sequence[TopicPartition], before_offset: int | None, before_time: int | None
) -> list[Cut]:
    begins, ends = offsets_at(admin, partitions, "earliest"), offsets_at(admin, partitions, "latest")
    at = offsets_at(admin, partitions, before_time) if before_time is not None else {}
    cuts = []
    for partition in partitions:
        begin, end = begins[partition], ends[partition]
        wanted = end if before_offset is None else before_offset
        if at.get(partition, -1) >= 0:
            wanted = at[partition]
        cuts.append(Cut(partition, begin, end, min(max(wanted, begin), end)))
    return cuts


def _carry_out(admin: Admin, cuts: Sequence[Cut]) -> dict[TopicPartition, PenstockError]:
    """Delete; those that failed."""
    from penstock.client.errors import PenstockError

    answers = admin.delete_records({cut.partition: cut.before for cut in cuts})
    return {partition: answer for partition, answer in answers.items() if isinstance(answer, PenstockError)}


def _show(output: Output, cuts: Sequence[Cut]) -> None:
    rows = [(*cut.partition, cut.begin, cut.end, cut.before, cut.records) for cut in cuts]
    show_table(output, ("TOPIC", "PARTITION", "BEGIN", "END", "NEW BEGIN", "DELETED"), rows)
    if not any(cut.records for cut in cuts):
        output.line("Nothing to delete: no record is that old.")
    output.flush()


def _document(cut: Cut, failures: Mapping[TopicPartition, PenstockError]) -> dict[str, object]:
    error = failures.get(cut.partition)
    return {
        "topic": cut.partition.topic,
        "partition": cut.partition.partition,
        "begin": cut.begin,
        "end": cut.end,
        "newBegin": cut.before,
        "deleted": cut.records,
        "error": None if error is None else failure(error),
    }
