"""`penstock produce`: lines and files as records.

A record that was not acknowledged is reported, and the exit code is 1 then. Options have today's names; those of
Kafka's console producer, back to the first, are understood as well.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from penstock.cli.cluster import Cluster, cluster_command
from penstock.cli.completing import topic_names
from penstock.cli.output import CommandError, printable
from penstock.cli.values import Assignment

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_KAFKA_READERS: Final = ("lines", "LineMessageReader")


@click.command(short_help="Send lines or files as records to a topic.")
@click.argument("names", nargs=-1, metavar="TOPIC [FILE]...", shell_complete=topic_names)
@click.option(
    "-t", "--topic", metavar="TOPIC", shell_complete=topic_names, help="The topic, if not the first argument."
)
@click.option(
    "--format", "input_format", type=click.Choice(["text", "json", "raw"]), default="text", show_default=True,
    help="text: a line is a record. json: a line is a record as `consume --format json` shows it. raw: a file is one.",
)  # fmt: skip
@click.option("-K", "--key-separator", metavar="TEXT", help="Lines are KEY TEXT VALUE.")
@click.option("--headers-separator", metavar="TEXT", help="Lines begin with NAME:VALUE,NAME:VALUE TEXT.")
@click.option("-k", "--key", metavar="TEXT", help="The key of all records that have none of their own.")
@click.option("-H", "--header", "headers", type=Assignment(), multiple=True, help="A header of all records.")
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="N", help="Send all records there.")
@click.option(
    "-z", "--compression", "--compression-codec", type=click.Choice(_CODECS), help="How batches are compressed.",
)  # fmt: skip
@click.option("--compress", is_flag=True, help="The same as --compression gzip.")
@click.option("--sync", is_flag=True, help="Send one record at a time, and wait for each.")
@click.option(
    "-a", "--acks", "--request-required-acks", type=click.Choice(["all", "-1", "0", "1"]), default="all",
    show_default=True, help="Whose acknowledgement is waited for.",
)  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Hand over at most N records at a time.")
@click.option(
    "--batch-bytes", "--max-partition-memory-bytes", type=click.IntRange(min=1), metavar="N",
    help="The size of a batch.  [default: 256 KiB]",
)  # fmt: skip
@click.option(
    "--linger-ms", "--timeout", type=click.IntRange(min=0), default=5, show_default=True, metavar="MS",
    help="How long a batch waits for more records.",
)  # fmt: skip
@click.option(
    "--retries", "--message-send-max-retries", type=click.IntRange(min=0), metavar="N", help="[default: no limit]"
)
@click.option("--retry-backoff-ms", type=click.IntRange(min=0), metavar="MS", help="The first wait between two tries.")
@click.option(
    "--buffer-memory", "--max-memory-bytes", type=click.IntRange(min=1), metavar="N", help="Memory for batches."
)
@click.option(
    "--value-encoder", "--message-encoder", "--value-serializer", default="text", show_default=True,
    help="text, json (checked), hex, base64, int, long, double ..., avro:SCHEMA.avsc (from JSON).",
)  # fmt: skip
@click.option("--key-encoder", "--key-serializer", default="text", show_default=True, help="The same for keys.")
@click.option("--reader", "--line-reader", metavar="MODULE:NAME", help="Read records with your own Python function.")
@click.option(
    "--property", "--reader-property", "properties", type=Assignment(), multiple=True,
    help="For the reader: parse.key, key.separator, parse.headers, null.marker, ignore.error ...",
)  # fmt: skip
@click.option("--producer-property", type=Assignment(), multiple=True, help="For the producer: linger.ms ...")
@click.option("--socket-buffer-size", hidden=True, type=int, help="Has no effect.")
@click.option(
    "--skip-bad", "--skip-message-on-error", is_flag=True, help="Skip lines that are not records and print a warning."
)
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when all is well.")
@cluster_command
def produce(
    cluster: Cluster, names: tuple[str, ...], topic: str | None, create: bool, quiet: bool, **options: Any
) -> None:
    """Send the lines of standard input, or of files, as records to a topic.

    A topic that does not exist is created by most brokers, which is reported; at a terminal that needs --create.

    \b
    echo hello | penstock produce views
    penstock produce views --key-separator : --compression zstd users.txt
    penstock consume views --exit --format json | penstock produce copy --format json
    penstock produce pictures --format raw --key cat cat.jpg

    \b
    Exit code: 0  every record is acknowledged
               1  some are not, or lines were not records; they are reported
               3  no broker could be reached
               4  the broker refused
    """
    from penstock.cli.partitions import is_new_topic
    from penstock.cli.produce_sending import Sending

    if topic is None:
        if not names:
            raise CommandError("No topic is given.", "For example: echo hello | penstock produce views")
        topic, *files = names
    else:
        files = list(names)
    read, ignores = _reader(options)
    client_options = _client_options(cluster, options)
    sending = Sending(
        topic,
        partition=options["partition"],
        one_by_one=options["sync"],
        most=options["batch_size"],
        skips_bad=options["skip_bad"] or ignores,
        quiet=quiet,
    )
    is_new = is_new_topic(cluster, topic, create=create)
    code = sending.run(cluster.servers, client_options, read, files, sys.stdin.buffer)
    if is_new and sending.stored and not quiet:
        click.echo(f"Topic {printable(topic)!r} did not exist; it was created.", err=True)
    click.get_current_context().exit(code)


def _reader(options: dict[str, Any]) -> tuple[Any, bool]:
    """How a stream becomes records, and whether lines that are none are to be passed over."""
    from penstock.cli.coding import encoder
    from penstock.cli.produce_reading import line_records, own_reader, rules_from, whole_records

    properties = dict(options["properties"])
    name = options["reader"]
    if name is not None and name.rpartition("$")[2].rpartition(".")[2] not in _KAFKA_READERS:
        own = own_reader(name, properties)
        return (lambda stream, _: ([record] for record in own(stream))), False
    if options["key_separator"] is not None:
        properties |= {"parse.key": "true", "key.separator": options["key_separator"]}
    if options["headers_separator"] is not None:
        properties |= {"parse.headers": "true", "headers.delimiter": options["headers_separator"]}
    rules = rules_from(
        properties,
        fixed_key=options["key"].encode() if options["key"] is not None else None,
        fixed_headers=tuple((header, value.encode()) for header, value in options["headers"]),
        encode_key=encoder(options["key_encoder"]),
        encode_value=encoder(options["value_encoder"]),
        is_json=options["input_format"] == "json",
    )
    read = whole_records if options["input_format"] == "raw" else line_records
    return (lambda stream, on_bad: read(stream, rules, on_bad)), properties.get("ignore.error") == "true"


def _client_options(cluster: Cluster, options: dict[str, Any]) -> dict[str, Any]:
    from penstock.cli.properties import producer_options

    found = cluster.options_for("penstock-produce", producer_options(), dict(options["producer_property"]))
    given = {
        "acks": options["acks"],
        "compression_type": options["compression"] or ("gzip" if options["compress"] else None),
        "batch_size": options["batch_bytes"],
        "linger_ms": 0 if options["sync"] else options["linger_ms"],
        "retries": options["retries"],
        "retry_backoff_ms": options["retry_backoff_ms"],
        "buffer_memory": options["buffer_memory"],
    }
    source = click.get_current_context().get_parameter_source
    said = {name for name, origin in _ORIGINS.items() if (of := source(origin)) is not None and of.name != "DEFAULT"}
    for name, value in given.items():
        if value is not None and (name in said or name not in found):
            found[name] = value
    # Whoever waits at a terminal should not wait for minutes.
    found.setdefault("max_block_ms", cluster.request_timeout_ms)
    found.setdefault("delivery_timeout_ms", max(120_000, found["request_timeout_ms"] + found["linger_ms"]))
    return found


_ORIGINS: Final = {
    "acks": "acks", "compression_type": "compression", "batch_size": "batch_bytes", "linger_ms": "linger_ms",
    "retries": "retries", "retry_backoff_ms": "retry_backoff_ms", "buffer_memory": "buffer_memory",
}  # fmt: skip
