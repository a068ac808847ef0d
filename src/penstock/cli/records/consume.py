"""`penstock consume`: write records to standard output.

Without a group nothing is committed and no other consumer is affected. The options of Kafka's console consumer, back
to its first version, are accepted too.
"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.completion import group_names, topic_names
from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.output import CommandError
from penstock.cli.values import (
    COUNT,
    EARLIEST,
    Assignment,
    NameAndPartitions,
    StartOffset,
    StartOffsetType,
    Timestamp,
    TopicPartitions,
)


@click.command(short_help="Read records from topics to standard output.")
@click.argument("names", nargs=-1, type=TopicPartitions(), metavar="[TOPIC[:P,...]]...", shell_complete=topic_names)
@click.option(
    "-t", "--topic", "more", type=TopicPartitions(), multiple=True, shell_complete=topic_names,
    help="Same as the argument TOPIC.",
)  # fmt: skip
@click.option(
    "--include", "--whitelist", metavar="REGEX", help="Read topics whose whole name matches, including new ones."
)
@click.option("--exclude", "--blacklist", metavar="REGEX", help="Leave out topics whose whole name matches.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Read only these partitions.",
)
@click.option(
    "-o",
    "--offset",
    type=StartOffsetType(),
    help="Start at earliest, latest, N, or -N for the last N records.  [default: latest; with --exit, earliest]",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Same as --offset earliest; for a group, only if it has no committed offsets.",
)
@click.option(
    "--from-time", type=Timestamp(), help="Start at a time: 2026-11-15T10:30, '1h ago', -1h, milliseconds since 1970."
)
@click.option("--until-time", type=Timestamp(), help="Stop before the first record at or after this time.")
@click.option("-e", "--exit", "exits", is_flag=True, help="Stop at the end of the log.")
@click.option("-n", "-c", "--max-messages", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
@click.option(
    "--timeout-ms", "--consumer-timeout-ms", type=click.IntRange(min=0), metavar="MS",
    help="Stop if no record arrives for this long.",
)  # fmt: skip
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    shell_complete=group_names,
    help="Read as a member of this group and commit offsets.",
)
@click.option("--no-commit", is_flag=True, help="Do not commit offsets of the group.")
@click.option(
    "--commit-interval-ms", "--autocommit.interval.ms", "commit_interval_ms", type=COUNT, metavar="MS",
    help="Interval between commits of a group.  [default: 5000]",
)  # fmt: skip
@click.option(
    "-f", "--format", "record_format", default="text", show_default=True, metavar="FORMAT",
    help="Output format: text, json, value, or a kcat template such as '%t %p %o %k %s'.",
)  # fmt: skip
@click.option("--formatter", metavar="NAME", help="Formatter: MODULE:NAME in Python, or a class of Kafka's tools.")
@click.option(
    "--property", "--formatter-property", "properties", type=Assignment(), multiple=True,
    help="Property of the text format: print.key, print.timestamp, print.headers, key.separator, null.literal.",
)  # fmt: skip
@click.option(
    "--value-decoder", "--value-deserializer", default="text", show_default=True,
    help="Codec of values: text, json, hex, base64, int, long, double, avro:SCHEMA.avsc.",
)  # fmt: skip
@click.option("--key-decoder", "--key-deserializer", default="text", show_default=True, help="Codec of keys.")
@click.option(
    "--skip-message-on-error",
    "--skip-bad",
    is_flag=True,
    help="Skip records that cannot be decoded and print a warning.",
)
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]),
    help="Whether to show records of open and aborted transactions.  [default: read_uncommitted]",
)  # fmt: skip
@click.option("--fetch-size", type=COUNT, metavar="BYTES", help="Bytes to fetch from a partition at a time.")
@click.option(
    "--consumer-property", type=Assignment(), multiple=True, help="Property of the consumer, such as fetch.min.bytes."
)
@click.option("--socket-buffer-size", hidden=True, type=int, help="Accepted for compatibility; has no effect.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the count.")
@cluster_command
def consume(
    cluster: Cluster,
    names: tuple[NameAndPartitions, ...],
    more: tuple[NameAndPartitions, ...],
    partitions: tuple[int, ...],
    include: str | None,
    exclude: str | None,
    **options: Any,
) -> None:
    """Read records and write them to standard output, until Ctrl-C or the limit given by an option.

    \b
    penstock consume views --from-beginning
    penstock consume views --offset -10 --exit --property print.key=true
    penstock consume views --from-time '1h ago' --exit --format json | jq .value
    penstock consume --include 'web-.*' --group audit --format '%t %p %o %k %s'

    \b
    Exit code: 0  everything requested is shown
               1  a record could not be decoded
               3  no broker could be reached
               4  rejected by a broker
             130  ended by Ctrl-C; the count is on standard error
    """
    from penstock.cli.records.console_consumer import (
        ConsoleConsumer,
        StartPoint,
        TopicSelection,
        formatter_for,
        named_formatter,
    )

    wanted = TopicSelection(
        _topics(names + more, partitions), _filter(include, "--include"), _filter(exclude, "--exclude")
    )
    if not wanted.topics and wanted.include is None and wanted.exclude is None:
        raise CommandError("No topic was given.", "Give a TOPIC, or choose topics with --include or --exclude.")
    if wanted.topics and (wanted.include or wanted.exclude):
        raise CommandError("TOPIC excludes --include and --exclude.", "Use one of them.")
    properties = dict(options["properties"])
    show = (
        named_formatter(options["formatter"], properties)
        if options["formatter"]
        else formatter_for(options["record_format"], properties)
    )
    start = StartPoint(_place(options), options["from_time"], bool(options["from_beginning"]))
    reading = ConsoleConsumer(wanted, start, show, options)
    click.get_current_context().exit(reading.run(cluster))


def _topics(names: tuple[NameAndPartitions, ...], partitions: tuple[int, ...]) -> tuple[NameAndPartitions, ...]:
    if not partitions:
        return names
    if not names:
        raise CommandError("--partition needs a topic.", "Give one TOPIC.")
    return tuple(item if item.partitions else item._replace(partitions=partitions) for item in names)


def _place(options: dict[str, Any]) -> StartOffset | None:
    starts = [options["offset"] is not None, options["from_beginning"], options["from_time"] is not None]
    if sum(starts) > 1 and not (options["from_beginning"] and options["offset"] == EARLIEST):
        raise CommandError(
            "Several starting points were given.", "Use one of --offset, --from-beginning and --from-time."
        )
    place: StartOffset | None = options["offset"]
    # With an end, start at the beginning: from now until now would be nothing.
    has_end = options["exits"] or options["until_time"] is not None
    from_begin = options["from_beginning"] or (has_end and not any(starts) and options["group"] is None)
    return EARLIEST if from_begin else place


def _filter(text: str | None, option: str) -> str | None:
    """A regular expression; a comma is an "or", as in Kafka's lists."""
    import re

    if text is None:
        return None
    pattern = re.sub(r",(?![^{]*\})", "|", text.strip())
    try:
        re.compile(pattern)
    except re.error as error:
        raise CommandError(f"{text!r} is not a regular expression: {error}.", f"Example: {option} 'web-.*'") from None
    return pattern
