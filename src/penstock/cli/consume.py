"""`penstock consume`: records to standard output.

Rule: without a group nothing is committed and nobody else is disturbed. Options here are today's names; those of
Kafka's console consumer, back to the first, are understood as well.
"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.cluster import Cluster, cluster_command
from penstock.cli.completing import group_names, topic_names
from penstock.cli.output import CommandError
from penstock.cli.values import (
    COUNT,
    EARLIEST,
    Assignment,
    Moment,
    NameAndPartitions,
    OffsetPlace,
    Place,
    TopicPartitions,
)


@click.command(short_help="Read records from topics to standard output.")
@click.argument("names", nargs=-1, type=TopicPartitions(), metavar="[TOPIC[:P,...]]...", shell_complete=topic_names)
@click.option(
    "-t", "--topic", "more", type=TopicPartitions(), multiple=True, shell_complete=topic_names,
    help="The same as TOPIC.",
)  # fmt: skip
@click.option("--include", "--whitelist", metavar="REGEX", help="Topics whose whole name matches, also later ones.")
@click.option("--exclude", "--blacklist", metavar="REGEX", help="All topics but those, or not those of --include.")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, metavar="N", help="Only these."
)
@click.option(
    "-o",
    "--offset",
    type=OffsetPlace(),
    help="Begin at: earliest, latest, N, or -N for the last N.  [default: latest, or with --exit earliest]",
)
@click.option("--from-beginning", is_flag=True, help="The same as --offset earliest; in a group, if it is a new one.")
@click.option("--from-time", type=Moment(), help="Begin at a time: 2026-11-15T10:30, '1h ago', -1h, milliseconds.")
@click.option("--until-time", type=Moment(), help="End with the records before this time.")
@click.option("-e", "--exit", "exits", is_flag=True, help="End with the records that are there now.")
@click.option("-n", "-c", "--max-messages", type=click.IntRange(min=0), metavar="N", help="End after N records.")
@click.option(
    "--timeout-ms", "--consumer-timeout-ms", type=click.IntRange(min=0), metavar="MS",
    help="End when no record came for this long.",
)  # fmt: skip
@click.option(
    "-g", "--group", metavar="GROUP", shell_complete=group_names, help="Read as a member of this group, and commit."
)
@click.option("--no-commit", is_flag=True, help="As a member of a group, commit nothing.")
@click.option(
    "--commit-interval-ms", "--autocommit.interval.ms", "commit_interval_ms", type=COUNT, metavar="MS",
    help="How often a group's offsets are committed.  [default: 5000]",
)  # fmt: skip
@click.option(
    "-f", "--format", "record_format", default="text", show_default=True, metavar="FORMAT",
    help="text, json, value, or a template like kcat's: '%t %p %o %k %s'.",
)  # fmt: skip
@click.option("--formatter", metavar="NAME", help="MODULE:NAME in Python, or a class of Kafka's tools.")
@click.option(
    "--property", "--formatter-property", "properties", type=Assignment(), multiple=True,
    help="For the format text: print.key, print.timestamp, print.headers, key.separator, null.literal ...",
)  # fmt: skip
@click.option(
    "--value-decoder", "--value-deserializer", default="text", show_default=True,
    help="text, json, hex, base64, int, long, double ..., avro:SCHEMA.avsc.",
)  # fmt: skip
@click.option("--key-decoder", "--key-deserializer", default="text", show_default=True, help="The same for keys.")
@click.option(
    "--skip-message-on-error",
    "--skip-bad",
    is_flag=True,
    help="Skip records that cannot be decoded and print a warning.",
)
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]),
    help="Whether records of open and aborted transactions are shown.  [default: read_uncommitted]",
)  # fmt: skip
@click.option("--fetch-size", type=COUNT, metavar="BYTES", help="How much of a partition is fetched at a time.")
@click.option("--consumer-property", type=Assignment(), multiple=True, help="For the consumer: fetch.min.bytes ...")
@click.option("--socket-buffer-size", hidden=True, type=int, help="Has no effect.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when all is well.")
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
    """Read records, and write them to standard output until Ctrl-C, or until an option says that it is enough.

    \b
    penstock consume views --from-beginning
    penstock consume views --offset -10 --exit --property print.key=true
    penstock consume views --from-time '1h ago' --exit --format json | jq .value
    penstock consume --include 'web-.*' --group audit --format '%t %p %o %k %s'

    \b
    Exit code: 0  all that was asked for is shown
               1  a record could not be shown
               3  no broker could be reached
               4  the broker refused
             130  ended by Ctrl-C; what was shown is counted on standard error
    """
    from penstock.cli.consume_formats import formatter_for, named_formatter
    from penstock.cli.consume_reading import Reading, Start, Wanted

    wanted = Wanted(_topics(names + more, partitions), _filter(include, "--include"), _filter(exclude, "--exclude"))
    if not wanted.topics and wanted.include is None and wanted.exclude is None:
        raise CommandError("No topic is given.", "Name one, or choose some with --include or --exclude.")
    if wanted.topics and (wanted.include or wanted.exclude):
        raise CommandError("Topics are given by name and by --include or --exclude.", "Leave one of them out.")
    properties = dict(options["properties"])
    show = (
        named_formatter(options["formatter"], properties)
        if options["formatter"]
        else formatter_for(options["record_format"], properties)
    )
    start = Start(_place(options), options["from_time"], bool(options["from_beginning"]))
    reading = Reading(wanted, start, show, options)
    click.get_current_context().exit(reading.run(cluster))


def _topics(names: tuple[NameAndPartitions, ...], partitions: tuple[int, ...]) -> tuple[NameAndPartitions, ...]:
    if not partitions:
        return names
    if not names:
        raise CommandError("--partition is given without a topic.", "Name the topic that has it.")
    return tuple(item if item.partitions else item._replace(partitions=partitions) for item in names)


def _place(options: dict[str, Any]) -> Place | None:
    said = [options["offset"] is not None, options["from_beginning"], options["from_time"] is not None]
    if sum(said) > 1 and not (options["from_beginning"] and options["offset"] == EARLIEST):
        raise CommandError(
            "Where to begin is said more than once.", "Give one of --offset, --from-beginning and --from-time."
        )
    place: Place | None = options["offset"]
    # Whoever asks for an end asks for what is there: from now until now would be nothing.
    has_end = options["exits"] or options["until_time"] is not None
    from_begin = options["from_beginning"] or (has_end and not any(said) and options["group"] is None)
    return EARLIEST if from_begin else place


def _filter(text: str | None, option: str) -> str | None:
    """A regular expression; as Kafka's lists have it, a comma is an "or"."""
    import re

    if text is None:
        return None
    pattern = re.sub(r",(?![^{]*\})", "|", text.strip())
    try:
        re.compile(pattern)
    except re.error as error:
        raise CommandError(
            f"{text!r} is not a regular expression: {error}.", f"For example: {option} 'web-.*'"
        ) from None
    return pattern
