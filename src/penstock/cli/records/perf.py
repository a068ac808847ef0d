"""`penstock perf`: throughput and latency of a cluster, measured from here.

`produce` counts acknowledged records, `consume` counts decoded ones. Percentiles are taken from the sorted measured
values, not from averages.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import click

from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.options import topic_arguments
from penstock.cli.output import format_option, printable
from penstock.cli.values import Assignment

_MOST_BYTES: Final = 1 << 30
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@click.group()
def perf() -> None:
    """Measure the throughput and latency of a cluster."""


def _common(command: Any) -> Any:
    """TOPIC or --topic, and --json for --format json."""

    @functools.wraps(command)
    def run(*args: Any, names: tuple[str, ...], **params: Any) -> Any:
        if len(names) > 1:
            raise click.UsageError(f"One topic is measured at a time, not {len(names)}: {', '.join(names)}.")
        return command(*args, topic=names[0], **params)

    as_json = click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
    return topic_arguments(required=True, only_one=True)(as_json(format_option(run)))


_record_size: Final = click.option(
    "-s", "--record-size", type=click.IntRange(0, _MOST_BYTES), default=100, show_default=True, metavar="BYTES"
)
_create: Final = click.option("--create", is_flag=True, help="Create the topic if it does not exist.")


@perf.command(short_help="Send records as fast as possible, or at a rate.")
@_common
@click.option(
    "-n", "--records", "--num-records", type=click.IntRange(min=1), default=1_000_000, show_default=True, metavar="N"
)
@_record_size
@click.option(
    "--throughput", type=click.FloatRange(min=0), default=0, metavar="N", help="Records per second; 0 is no limit."
)
@click.option("-z", "--compression", type=click.Choice(_CODECS), default="none", show_default=True)
@click.option("-a", "--acks", type=click.Choice(["all", "0", "1"]), default="all", show_default=True)
@click.option("--batch-bytes", type=click.IntRange(min=1), metavar="N", help="Size of a batch.  [default: 1 MB]")
@click.option("--linger-ms", type=click.IntRange(min=0), default=5, show_default=True, metavar="MS")
@_create
@click.option("--random", "is_random", is_flag=True, help="Send incompressible bytes instead of text.")
@click.option("--producer-property", type=Assignment(), multiple=True, help="Property of the producer.")
@cluster_command
def produce(cluster: Cluster, topic: str, as_json: bool, create: bool, output_format: str, **options: Any) -> None:
    """Send records and measure acknowledged records per second, and latency.

    Latency is measured from `send` to the acknowledgement, for every hundredth record or more.

    \b
    Exit code: 1  some records were not acknowledged
    """
    from penstock.cli.records.measurement import measure_producing

    _check_topic(cluster, topic, create)
    click.get_current_context().exit(measure_producing(cluster, topic, options, _format(as_json, output_format)))


@perf.command(short_help="Read records as fast as possible.")
@_common
@click.option(
    "-n",
    "--records",
    "--messages",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of records.  [default: all that exist]",
)
@click.option("-g", "--group", metavar="GROUP", help="Read as a member of a group.")
@click.option(
    "--as", "kind", type=click.Choice(["records", "arrow"]), default="records", show_default=True,
    help="Decode to Python objects or Arrow columns.",
)  # fmt: skip
@click.option("--timeout-ms", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="MS",
              help="Stop if no record arrives for this long.")  # fmt: skip
@click.option("--consumer-property", type=Assignment(), multiple=True, help="Property of the consumer.")
@cluster_command
def consume(cluster: Cluster, topic: str, as_json: bool, output_format: str, **options: Any) -> None:
    """Read a topic from its beginning and measure records and bytes per second.

    Includes the first fetch and, with --group, the time to join.

    \b
    Exit code: 1  fewer records arrived than requested
    """
    from penstock.cli.records.measurement import measure_consuming

    click.get_current_context().exit(measure_consuming(cluster, topic, options, _format(as_json, output_format)))


@perf.command(short_help="Send records one at a time and wait for each.")
@_common
@click.option("-n", "--records", type=click.IntRange(min=1), default=1_000, show_default=True, metavar="N")
@_record_size
@click.option(
    "--throughput", type=click.FloatRange(min=0), default=0, metavar="N", help="Records per second; 0 is no limit."
)
@click.option("-a", "--acks", type=click.Choice(["all", "0", "1"]), default="all", show_default=True)
@_create
@click.option("--end-to-end", is_flag=True, help="Measure until a consumer has the record.")
@cluster_command
def latency(cluster: Cluster, topic: str, as_json: bool, create: bool, output_format: str, **options: Any) -> None:
    """Send records one at a time and measure the time until each is acknowledged, or read by a consumer."""
    from penstock.cli.records.measurement import measure_latency

    _check_topic(cluster, topic, create)
    click.get_current_context().exit(measure_latency(cluster, topic, options, _format(as_json, output_format)))


def _check_topic(cluster: Cluster, topic: str, create: bool) -> None:
    """Report a topic that is created; at a terminal that needs --create."""
    from penstock.cli.topics.partitions import is_new_topic

    if is_new_topic(cluster, topic, create=create):
        click.echo(f"Topic {printable(topic)!r} does not exist; creating it.", err=True)


def _format(as_json: bool, output_format: str) -> str:
    return "json" if as_json else output_format
