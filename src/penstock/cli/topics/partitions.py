"""Partitions named on a command line, and `penstock offsets`: where they begin and end.

`TOPIC` selects all partitions of a topic, `TOPIC:0,2` these. A name that does not exist is rejected before anything is
done, with the nearest one that does. `penstock offsets` shows the first and the last offset of partitions, and the
first offset at or after a timestamp.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.connection import Cluster, Rejected, cluster_command, command_error_for, error_document, show_failures
from penstock.cli.options import topic_arguments, watch_option
from penstock.cli.output import EXIT_PARTLY, JSON, Output, format_option, show_table
from penstock.cli.values import NameAndPartitions, Timestamp
from penstock.runtime.quantities import time_text

if TYPE_CHECKING:
    from penstock.cli.output import CommandError
    from penstock.client.admin import Admin, PartitionDescription
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.client.errors import PenstockError


DETAILS_TIMEOUT_MS: Final = 5_000
"""Time-out of requests for optional details, so that a hanging broker does not delay a report."""


def all_partitions(admin: Admin) -> dict[TopicPartition, PartitionDescription]:
    """The partitions of all topics, including internal ones."""
    from penstock.client.admin import TopicDescription
    from penstock.client.cluster_metadata import TopicPartition

    return {
        TopicPartition(name, part.index): part
        for name, topic in sorted(admin.describe_topics().items())
        if isinstance(topic, TopicDescription)
        for part in topic.partitions
    }


def named_partitions(admin: Admin, wanted: Iterable[NameAndPartitions]) -> dict[TopicPartition, PartitionDescription]:
    """The named partitions. Rejected if one of them does not exist."""
    from penstock.client.cluster_metadata import TopicPartition

    described = all_partitions(admin)
    found: dict[TopicPartition, PartitionDescription] = {}
    for topic, indexes in wanted:
        of_topic = {key: part for key, part in described.items() if key.topic == topic}
        if not of_topic:
            raise no_such_topic(topic, {key.topic for key in described})
        chosen = of_topic if indexes is None else [TopicPartition(topic, index) for index in indexes]
        for key in chosen:
            if key not in of_topic:
                raise no_such_partition(topic, key.partition, len(of_topic))
            found[key] = of_topic[key]
    return found


def no_such_topic(topic: str, there: Iterable[str]) -> Rejected:
    """An error with the nearest existing topic."""
    return no_such("topic", topic, there, "UNKNOWN_TOPIC_OR_PARTITION")


def no_such_group(group: str, there: Iterable[str]) -> Rejected:
    return no_such("group", group, there, "GROUP_ID_NOT_FOUND")


def no_such(noun: str, name: str, there: Iterable[str], code: str) -> Rejected:
    from difflib import get_close_matches

    near = get_close_matches(name, list(there), n=1)
    hint = f"Did you mean {near[0]}?" if near else f"`penstock {noun}s list` shows the {noun}s."
    return Rejected(f"{noun.capitalize()} {name!r} does not exist.", hint, code=code)


def no_such_partition(topic: str, index: int, count: int) -> Rejected:
    has = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
    return Rejected(f"Topic {topic!r} has no partition {index}.", f"It has {has}.", code="UNKNOWN_TOPIC_OR_PARTITION")


def is_new_topic(cluster: Cluster, topic: str, *, create: bool) -> bool:
    """Whether a topic to write to does not exist yet.

    With `create` it is created. Without `create`, at a terminal, Rejected: it may be a typing mistake.
    """
    from penstock.client.admin import TopicSpec
    from penstock.client.errors import PenstockError, UnknownTopic

    with cluster.admin() as admin:
        try:
            found = admin.describe_topics([topic]).get(topic)
        except PenstockError:
            return False  # a client that may not describe a topic may still write to it
        if not isinstance(found, UnknownTopic):
            return False
        if create:
            admin.create_topic(TopicSpec(topic), exist_ok=True)
        elif sys.stdin.isatty():
            missing = no_such_topic(topic, admin.list_topics())
            raise Rejected(missing.problem, f"{missing.hint} Use --create to create it.", code=missing.code)
    return True


def topic_errors(admin: Admin, errors: Mapping[str, PenstockError]) -> dict[str, CommandError]:
    """The errors of topics by name; for a missing topic, with the nearest existing one."""
    from penstock.client.errors import UnknownTopic

    is_unknown = any(isinstance(error, UnknownTopic) for error in errors.values())
    there = admin.list_topics(include_internal=True) if is_unknown else []
    return {
        name: no_such_topic(name, there)
        if isinstance(error, UnknownTopic) and name not in there
        else command_error_for(error)
        for name, error in errors.items()
    }


@click.command(short_help="Show the first and last offsets of partitions, or offsets by time.")
@topic_arguments(required=False, partitions=True)
@click.option("--time", "--at", "time_ms", type=Timestamp(), help="Also show the first record at or after this time.")
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default="read_uncommitted",
    show_default=True, help="Show the end of all records, or of committed ones.",
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
    """Show the first and last offsets of partitions, and the number of records between them.

    Without TOPIC, all topics except internal ones. TIME is 2026-11-15T10:30 (local), 2026-11-15T10:30:00Z, "1h ago",
    or milliseconds since 1970.

    \b
    Exit code: 1  some partitions could not be read
               4  the topic does not exist
    """
    if time_ms is not None:
        cluster.check_times()
    with cluster.admin() as admin:
        wanted = selected_partitions(admin, names)
        columns = [
            _asked(admin, wanted, end, isolation_level)
            for end in ("earliest", "latest", *([time_ms] if time_ms is not None else []))
        ]
    _show(Output(), output_format, wanted, columns, time_ms)


def selected_partitions(admin: Admin, topics: Sequence[NameAndPartitions]) -> list[TopicPartition]:
    """The named partitions; all of a topic given alone. Rejected if one does not exist."""
    from penstock.cli.topics.topics_report import is_internal
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.client.errors import PenstockError

    described = admin.describe_topics([item.topic for item in topics] or None)
    found: dict[TopicPartition, None] = {}
    for name, answer in sorted(described.items()):
        if isinstance(answer, PenstockError):
            raise topic_errors(admin, {name: answer})[name]
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
    """The offset of each partition at "earliest", "latest" or a time; -1 if no record is that recent."""
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
        document: dict[str, object] = {"partitions": rows, "failed": [error_document(error) for error in failures]}
        output.json(document | ({} if time_ms is None else {"time": time_ms}), indent=2)
    else:
        titles = ["TOPIC", "PARTITION", "BEGIN", "END", "RECORDS"]
        if time_ms is not None:
            titles += ["AT", "TIME OF RECORD"]
            for row in rows:
                row["atTime"] = time_text(row["atTime"] if isinstance(row["atTime"], int) else None)
        show_table(output, titles, [list(row.values()) for row in rows])
        if not rows:
            output.nothing("No topics.")
    output.flush()
    show_failures(failures, output_format)
    if failures:
        click.get_current_context().exit(EXIT_PARTLY)
