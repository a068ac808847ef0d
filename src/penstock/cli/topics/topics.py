"""`penstock topics`: create, list, describe, alter, trim and delete topics.

A command over several topics does what it can, reports each failure, and exits with the code of the first one.
Internal topics are shown on request.

`trim` deletes the oldest records. The plan is made and shown per partition before anything is deleted, and stays
within the partition: an offset before its start deletes nothing, one behind its end deletes everything. A timestamp
deletes all records before the first one with that timestamp or a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from penstock.cli.connection import Cluster, cluster_command, command_error_for, error_document, show_failures
from penstock.cli.options import (
    confirmation_options,
    confirmed_plan,
    dry_run_option,
    set_option,
    topic_arguments,
    unset_option,
    watch_option,
)
from penstock.cli.output import EXIT_PARTLY, JSON, CommandError, Output, confirm, format_option, printable, show_table
from penstock.cli.topics.partitions import offsets_at, selected_partitions, topic_errors
from penstock.cli.values import COUNT, FACTOR, Duration, NameAndPartitions, Timestamp, now_ms
from penstock.runtime.quantities import counted

if TYPE_CHECKING:
    import re

    from penstock.client.admin import Admin
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.client.errors import PenstockError


_EXIT_CODES = """\b
    Exit code: 0  done
               2  invalid options
               3  no broker could be reached
               4  rejected by a broker"""


@click.group(epilog=_EXIT_CODES)
def topics() -> None:
    """Create, list, describe, alter, trim and delete topics."""


@topics.command(short_help="Create topics.")
@topic_arguments(required=True)
@click.option(
    "-p", "--partitions", type=COUNT, metavar="N", help="Partition count.  [default: the broker's num.partitions]"
)
@click.option(
    "-r", "--replication-factor", type=FACTOR, metavar="N",
    help="Replicas of each partition.  [default: the broker's default.replication.factor]",
)  # fmt: skip
@set_option
@click.option("--if-not-exists", is_flag=True, help="Do not fail if the topic already exists.")
@dry_run_option
@format_option
@cluster_command
def create(
    cluster: Cluster,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    assignments: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Create topics.

    For example: penstock topics create views --partitions 6 --set retention.ms=86400000
    """
    from penstock.cli.topics.topics_report import show_created, unknown_settings
    from penstock.client.admin import TopicSpec
    from penstock.client.errors import InvalidSetting, PenstockError

    configs = dict(assignments)
    specs = [TopicSpec(name, partitions or -1, replication_factor or -1, configs) for name in names]
    with cluster.admin() as admin:
        answers = admin.create_topics(specs, exist_ok=if_not_exists, validate_only=dry_run)
        rejected = [error for error in answers.values() if isinstance(error, PenstockError)]
        # The broker does not say which setting it does not know.
        better = unknown_settings(admin, configs) if any(isinstance(e, InvalidSetting) for e in rejected) else None
    show_created(Output(), output_format, answers, dry_run=dry_run)
    if better is not None:
        raise better
    _raise_first([command_error_for(error) for error in rejected], output_format)


@topics.command("list", short_help="List topics.")
@click.option("--internal", "--all", is_flag=True, help="Include internal topics.")
@click.option("--match", metavar="REGEX", help="Show only topics whose whole name matches.")
@watch_option
@format_option
@cluster_command
def list_(cluster: Cluster, internal: bool, match: str | None, output_format: str) -> None:
    """List topics, one name per line. --format json adds partition counts and replication factors."""
    from penstock.cli.topics.topics_report import is_internal, topic_summary
    from penstock.client.admin import TopicDescription

    pattern = _pattern(match)
    with cluster.admin() as admin:
        described = admin.describe_topics()
    output = Output()
    found = [
        topic
        for name, topic in sorted(described.items())
        if isinstance(topic, TopicDescription)
        and (internal or not is_internal(topic))
        and (pattern is None or pattern.fullmatch(name))
    ]
    if output_format == JSON:
        output.json({"topics": [topic_summary(topic) for topic in found]}, indent=2)
        return
    for topic in found:
        output.line(printable(topic.name))
    if not found:
        hidden = "" if internal or not described else " (--internal shows internal topics)"
        output.nothing(f"No topic matches {match!r}." if match and described else f"No topics{hidden}.")


@topics.command(short_help="Show partitions, leaders, replicas, settings and sizes.")
@topic_arguments(required=False)
@click.option("--internal", "--all", is_flag=True, help="Include internal topics.")
@click.option("--troubled", is_flag=True, help="Show only partitions without a leader or with replicas out of sync.")
@click.option(
    "--under-replicated", "--under-replicated-partitions", is_flag=True,
    help="Show only partitions with a replica out of sync, not counting replicas that are being added.",
)  # fmt: skip
@click.option("--unavailable", "--unavailable-partitions", is_flag=True, help="Show only partitions without a leader.")
@click.option(
    "--under-min-isr", "--under-min-isr-partitions", is_flag=True,
    help="Show only partitions that reject acks=all: their ISR is below min.insync.replicas.",
)  # fmt: skip
@watch_option
@format_option
@cluster_command
def describe(cluster: Cluster, names: tuple[str, ...], internal: bool, output_format: str, **filters: bool) -> None:
    """Show topics: partitions, leaders, replicas, ISR, offsets, sizes, and settings that differ from the default.

    Without TOPIC, all topics. ISR are the in-sync replicas; ELR are replicas out of sync that may lead because they
    have everything that was acknowledged. Several filters are combined with "or", and include internal topics.
    """
    from penstock.cli.topics.topics_report import collect, filter_of, is_internal, show_described
    from penstock.client.admin import TopicDescription
    from penstock.client.errors import PenstockError

    with cluster.admin() as admin:
        answers = admin.describe_topics(names or None, include_eligible=True)
        internal = internal or bool(names) or any(filters.values())
        found = [
            topic
            for _, topic in sorted(answers.items())
            if isinstance(topic, TopicDescription) and (internal or not is_internal(topic))
        ]
        states = collect(admin, found)
        missing = topic_errors(
            admin, {name: error for name, error in answers.items() if isinstance(error, PenstockError)}
        )
    output = Output()
    show_described(output, output_format, states, filter_of(filters))
    if not states and not names and output_format != JSON:
        output.nothing("No topics.")
    _raise_first(list(missing.values()), output_format)


@topics.command(short_help="Add partitions or change settings.")
@topic_arguments(required=True)
@click.option("-p", "--partitions", type=COUNT, metavar="N", help="New partition count. It can only grow.")
@set_option
@unset_option
@dry_run_option
@format_option
@cluster_command
def alter(
    cluster: Cluster,
    names: tuple[str, ...],
    partitions: int | None,
    assignments: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    dry_run: bool,
    execute: bool,
    output_format: str,
) -> None:
    """Add partitions to topics, or change their settings.

    With more partitions, new records of a key may go to another partition. Stored records do not move.
    """
    changes: dict[str, str | None] = {**dict(assignments), **dict.fromkeys(unset)}
    if partitions is None and not changes:
        raise CommandError("Nothing to alter was given.", "Give --partitions, --set or --unset.")
    output = Output()
    altered: list[dict[str, object]] = []
    failed: dict[str, PenstockError] = {}
    with cluster.admin() as admin:
        for name in names:
            error = _alter(admin, name, partitions, changes, dry_run=dry_run)
            if error is not None:
                failed[name] = error
                continue
            altered.append({"topic": name, "dryRun": dry_run, "partitions": partitions, "config": changes})
        errors = topic_errors(admin, failed)
    if output_format == JSON:
        document = {"altered": altered, "failed": {name: error.document() for name, error in errors.items()}}
        output.json(document, indent=2)
    else:
        done = ([f"{partitions} partitions"] if partitions is not None else []) + [
            f"{key} {'reset to its default' if value is None else f'= {value}'}" for key, value in changes.items()
        ]
        for each in altered:
            text = f"{each['topic']}: {', '.join(done)}{' would be accepted (dry run)' if dry_run else ''}."
            output.line(printable(text))
    output.flush()
    _raise_first(list(errors.values()), output_format)


def _alter(
    admin: Admin, name: str, partitions: int | None, changes: Mapping[str, str | None], *, dry_run: bool
) -> PenstockError | None:
    """Change one topic. Raises Rejected for a setting that does not exist."""
    from penstock.cli.topics.configs import check_names
    from penstock.client.admin import ConfigResource
    from penstock.client.errors import PenstockError

    resource = ConfigResource.topic(name)
    try:
        if changes:
            check_names(admin.describe_config(resource), changes, resource)
        if partitions is not None:
            admin.create_partitions(name, partitions, validate_only=dry_run)
        if changes:
            admin.alter_config(resource, changes, validate_only=dry_run)
    except PenstockError as error:
        return error
    return None


@topics.command(short_help="Delete topics and their records.")
@topic_arguments(required=True)
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@confirmation_options
@format_option
@cluster_command
def delete(
    cluster: Cluster, names: tuple[str, ...], if_exists: bool, dry_run: bool, execute: bool, output_format: str
) -> None:
    """Delete topics with all their records. This cannot be undone.

    Asks for confirmation at a terminal.
    """
    from penstock.client.errors import PenstockError, UnknownTopic

    with cluster.admin() as admin:
        answers: dict[str, PenstockError | None]
        if dry_run:
            found = admin.describe_topics(names)
            answers = {name: topic if isinstance(topic, PenstockError) else None for name, topic in found.items()}
        else:
            confirm(f"Delete {', '.join(names)} with all records?", yes=execute)
            answers = dict(admin.delete_topics(names))
        failed = {name: error for name, error in answers.items() if error is not None}
        if if_exists:
            failed = {name: error for name, error in failed.items() if not isinstance(error, UnknownTopic)}
        errors = topic_errors(admin, failed)
    output = Output()
    deleted = [name for name, error in answers.items() if error is None]
    if output_format == JSON:
        documents = {name: error.document() for name, error in errors.items()}
        output.json({"dryRun": dry_run, "deleted": deleted, "failed": documents}, indent=2)
    else:
        for name in deleted:
            output.line(printable(f"{name} would be deleted (dry run)." if dry_run else f"Deleted {name}."))
    output.flush()
    _raise_first(list(errors.values()), output_format)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    import re

    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise CommandError(f"{text!r} is not a regular expression: {error}.", "Example: --match 'views.*'") from None


def _raise_first(errors: list[CommandError], output_format: str) -> None:
    if errors:
        show_failures(errors[1:], output_format)
        raise errors[0]


# --- trim


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition: its first and last offset, and its new first offset."""

    partition: TopicPartition
    begin: int
    end: int
    before: int

    @property
    def records(self) -> int:
        """Offsets that are deleted: at least as many as records."""
        return self.before - self.begin


@topics.command(short_help="Delete the oldest records of topics.")
@topic_arguments(required=True, partitions=True)
@click.option(
    "--before-offset", "--offset", type=click.IntRange(min=0), metavar="N", help="Delete records before this offset."
)
@click.option("--before-time", type=Timestamp(), help="Delete records before the first one at or after this time.")
@click.option("--older-than", type=Duration(), help="Delete records older than this: 7d, 1h30m.")
@click.option("--all-records", is_flag=True, help="Delete all records that exist now.")
@confirmation_options
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
    """Delete the oldest records of topics or of some of their partitions. This cannot be undone.

    Shows the plan and asks for confirmation at a terminal. Without a terminal, records are deleted only with --execute.

    \b
    penstock topics trim views --older-than 7d
    penstock topics trim views:0,2 --before-offset 120000 --execute
    penstock topics trim views --all-records --dry-run

    \b
    Exit code: 0  planned or done
               1  some partitions could not be trimmed, or you answered no
               4  rejected: the topic does not exist
    """
    limits = [before_offset is not None, before_time is not None, older_than is not None, all_records]
    if sum(limits) != 1:
        raise CommandError(
            "No limit was given.", "Use one of --before-offset, --before-time, --older-than and --all-records."
        )
    if older_than is not None:
        before_time = max(0, now_ms() - older_than)
    if before_time is not None:
        cluster.check_times()
    output = Output()
    with cluster.admin() as admin:
        cuts = _plan(admin, selected_partitions(admin, names), before_offset, before_time)
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
        output.line(output.style("Dry run: nothing was deleted. Add --execute to delete.", "yellow"))
    output.flush()
    show_failures(failures.values(), output_format)
    if failures:
        click.get_current_context().exit(EXIT_PARTLY)


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
    """Delete. Returns the failures."""
    from penstock.client.errors import PenstockError

    answers = admin.delete_records({cut.partition: cut.before for cut in cuts})
    return {partition: answer for partition, answer in answers.items() if isinstance(answer, PenstockError)}


def _show(output: Output, cuts: Sequence[Cut]) -> None:
    rows = [(*cut.partition, cut.begin, cut.end, cut.before, cut.records) for cut in cuts]
    show_table(output, ("TOPIC", "PARTITION", "BEGIN", "END", "NEW BEGIN", "DELETED"), rows)
    if not any(cut.records for cut in cuts):
        output.line("Nothing to delete.")
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
        "error": None if error is None else error_document(error),
    }
