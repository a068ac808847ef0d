"""`penstock elect`: elect preferred leaders, or a leader at any price.

A preferred election loses nothing and needs no confirmation. An unclean election may lose acknowledged records: it
needs named partitions or --all, and asks at a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal

import click

from penstock.cli.connection import Cluster, Rejected, cluster_command, error_document
from penstock.cli.options import confirmation_options, dry_run_option, topic_arguments
from penstock.cli.output import JSON, CommandError, Output, confirm, format_option, show_table
from penstock.cli.values import NameAndPartitions
from penstock.runtime.quantities import counted

if TYPE_CHECKING:
    from penstock.client.admin import Admin, PartitionDescription
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.client.errors import PenstockError

_SHOWN_MAX: Final = 10
# For how long metadata may be behind an election that is over.
_METADATA_TIMEOUT_S: Final = 5.0
_METADATA_POLL_S: Final = 0.1

_EXIT_CODES = """\b
    Exit code: 0  done, or nothing to do
               4  an election failed; the message says why"""


@click.group(epilog=_EXIT_CODES)
def elect() -> None:
    """Elect partition leaders: the preferred ones, or unclean ones if no in-sync replica is left."""


@elect.command(short_help="Move leadership back to the preferred leaders.")
@topic_arguments(required=False, partitions=True)
@dry_run_option
@format_option
@cluster_command
def preferred(
    cluster: Cluster, names: tuple[NameAndPartitions, ...], dry_run: bool, execute: bool, output_format: str
) -> None:
    """Move leadership back to the preferred leaders, which are the first replicas of partitions.

    Without TOPIC, of all partitions. After a broker was offline, others lead its partitions; this restores the balance.
    Nothing is copied and nothing is lost.
    """
    if dry_run:
        _show_candidates(cluster, names, output_format, lambda part: _leader(part) != part.replicas[0])
        return
    _elect(cluster, "preferred", names, output_format)


@elect.command(short_help="Elect any live replica; acknowledged records may be lost.")
@topic_arguments(required=False, partitions=True)
@click.option("--all", "everything", is_flag=True, help="Elect for all partitions without a leader.")
@confirmation_options
@format_option
@cluster_command
def unclean(
    cluster: Cluster,
    names: tuple[NameAndPartitions, ...],
    everything: bool,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Elect a live replica even if it lacks acknowledged records. Those records are lost.

    Use this only for partitions without a leader whose complete replicas will not come back.
    `penstock topics describe --unavailable` shows them.
    """
    if bool(names) == everything:
        raise CommandError("No partitions were given.", "Give TOPIC or TOPIC:0,2, or --all.")
    if dry_run:
        _show_candidates(cluster, names, output_format, lambda part: part.leader is None)
        return
    confirm("Acknowledged records may be lost permanently. Elect?", yes=execute)
    _elect(cluster, "unclean", names, output_format)


def _show_candidates(
    cluster: Cluster,
    names: Iterable[NameAndPartitions],
    output_format: str,
    is_meant: Callable[[PartitionDescription], bool],
) -> None:
    """The partitions that an election would change."""
    from penstock.cli.topics.partitions import all_partitions, named_partitions

    with cluster.admin() as admin:
        described = named_partitions(admin, names) if names else all_partitions(admin)
    rows = [(*key, _leader(part), part.replicas, part.isr) for key, part in described.items() if is_meant(part)]
    output = Output()
    if output_format == JSON:
        titles = ("topic", "partition", "leader", "replicas", "isr")
        output.json({"dryRun": True, "partitions": [dict(zip(titles, row, strict=True)) for row in rows]}, indent=2)
        return
    show_table(output, ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR"), rows)
    output.line("Dry run: nothing was changed." if rows else "Nothing to elect.")
    output.flush()


def _elect(
    cluster: Cluster,
    kind: Literal["preferred", "unclean"],
    named: Iterable[NameAndPartitions],
    output_format: str,
) -> None:
    from penstock.cli.topics.partitions import all_partitions, named_partitions
    from penstock.wire.protocol import ErrorCode

    with cluster.admin() as admin:
        before = named_partitions(admin, named) if named else all_partitions(admin)
        outcomes = admin.elect_leaders(kind, before if named else None)
        elected = [key for key, error in sorted(outcomes.items()) if error is None]
        after = _leaders_after(admin, elected, before)
    failed = {
        key: error
        for key, error in sorted(outcomes.items())
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    }
    rows = [(key.topic, key.partition, _leader(before.get(key)), after.get(key)) for key in elected]
    _show(output_format, rows, failed, len(outcomes) - len(elected) - len(failed))
    if failed:
        raise _election_failed(failed)


def _leaders_after(
    admin: Admin, elected: list[TopicPartition], before: Mapping[TopicPartition, PartitionDescription]
) -> dict[TopicPartition, int | None]:
    """The current leaders. The broker that is asked may learn of the decision a moment later."""
    from penstock.client.admin import TopicDescription
    from penstock.client.cluster_metadata import TopicPartition

    deadline = time.monotonic() + _METADATA_TIMEOUT_S
    while elected:
        topics = admin.describe_topics({key.topic for key in elected}).values()
        now = {
            TopicPartition(topic.name, part.index): _leader(part)
            for topic in topics
            if isinstance(topic, TopicDescription)
            for part in topic.partitions
        }
        old = [key for key in elected if now.get(key) in (None, _leader(before.get(key)))]
        if not old or time.monotonic() > deadline:
            return {key: now.get(key) for key in elected}
        time.sleep(_METADATA_POLL_S)
    return {}


def _leader(part: PartitionDescription | None) -> int | None:
    return None if part is None or part.leader is None else part.leader.id


def _show(
    output_format: str,
    rows: list[tuple[str, int, int | None, int | None]],
    failed: Mapping[TopicPartition, PenstockError],
    not_needed: int,
) -> None:
    output = Output()
    if output_format == JSON:
        names = ("topic", "partition", "before", "leader")
        document = {
            "elected": [dict(zip(names, row, strict=True)) for row in rows],
            "notNeeded": not_needed,
            "failed": [
                {"topic": key.topic, "partition": key.partition, "error": error_document(error)}
                for key, error in failed.items()
            ],
        }
        output.json(document, indent=2)
    elif rows:
        shown = [(topic, index, "none" if old is None else old, new) for topic, index, old, new in rows]
        show_table(output, ("TOPIC", "PARTITION", "BEFORE", "LEADER"), shown)
    elif not failed:
        output.line("Nothing to elect: every partition has its leader.")
    output.flush()


def _election_failed(failed: Mapping[TopicPartition, PenstockError]) -> Rejected:
    from penstock.wire.protocol import ErrorCode

    codes = {error.code for error in failed.values()}
    some = "; ".join(error.message for error in list(failed.values())[:_SHOWN_MAX])
    more = f"; and {len(failed) - _SHOWN_MAX} more" if len(failed) > _SHOWN_MAX else ""
    if ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE in codes:
        advice = "Start the offline brokers and wait until they are in sync: `penstock topics describe --troubled`."
    elif ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE in codes:
        advice = "No replica is alive. Start one of their brokers; `penstock topics describe` shows which."
    else:
        advice = "`penstock topics describe` shows the partitions and their replicas."
    return Rejected(f"Election failed for {counted(len(failed), 'partition')}: {some}{more}.", advice)
