"""`penstock produce`: send lines or files as records.

A record that was not acknowledged is reported, and the exit code is 1. The options of Kafka's console producer, back
to its first version, are accepted too.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from penstock.cli.completion import topic_names
from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.output import CommandError, printable
from penstock.cli.values import Assignment

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_KAFKA_READERS: Final = ("lines", "LineMessageReader")


@click.command(short_help="Send lines or files as records to a topic.")
@click.argument("names", nargs=-1, metavar="TOPIC [FILE]...", shell_complete=topic_names)
@click.option("-t", "--topic", metavar="TOPIC", shell_complete=topic_names, help="Same as the first argument.")
@click.option(
    "--format", "input_format", type=click.Choice(["text", "json", "raw"]), default="text", show_default=True,
    help="text: a line is a value. json: a line is a record as from `consume --format json`. raw: a file is a value.",
)  # fmt: skip
@click.option("-K", "--key-separator", metavar="TEXT", help="Split lines into key and value at TEXT.")
@click.option("--headers-separator", metavar="TEXT", help="Lines begin with headers NAME:VALUE,NAME:VALUE and TEXT.")
@click.option("-k", "--key", metavar="TEXT", help="Key of records without one.")
@click.option(
    "-H", "--header", "headers", type=Assignment(), multiple=True, help="Header of all records. Can be repeated."
)
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="N", help="Send all records to this partition.")
@click.option(
    "-z", "--compression", "--compression-codec", type=click.Choice(_CODECS), help="Compression of batches.",
)  # fmt: skip
@click.option("--compress", is_flag=True, help="Same as --compression gzip.")
@click.option("--sync", is_flag=True, help="Send one record at a time and wait for each.")
@click.option(
    "-a", "--acks", "--request-required-acks", type=click.Choice(["all", "-1", "0", "1"]), default="all",
    show_default=True, help="Acknowledgements to wait for.",
)  # fmt: skip
@click.option(
    "--batch-size", type=click.IntRange(min=1), metavar="N", help="Pass at most N records to the producer at a time."
)
@click.option(
    "--batch-bytes", "--max-partition-memory-bytes", type=click.IntRange(min=1), metavar="N",
    help="Size of a batch.  [default: 1 MB]",
)  # fmt: skip
@click.option(
    "--linger-ms", "--timeout", type=click.IntRange(min=0), default=5, show_default=True, metavar="MS",
    help="Time that a batch waits for more records.",
)  # fmt: skip
@click.option(
    "--retries",
    "--message-send-max-retries",
    type=click.IntRange(min=0),
    metavar="N",
    help="Attempts to send a batch again.  [default: no limit]",
)
@click.option("--retry-backoff-ms", type=click.IntRange(min=0), metavar="MS", help="First delay between attempts.")
@click.option(
    "--buffer-memory", "--max-memory-bytes", type=click.IntRange(min=1), metavar="N", help="Memory for batches."
)
@click.option(
    "--value-encoder", "--message-encoder", "--value-serializer", default="text", show_default=True,
    help="Codec of values: text, json (checked), hex, base64, int, long, double, avro:SCHEMA.avsc (from JSON).",
)  # fmt: skip
@click.option("--key-encoder", "--key-serializer", default="text", show_default=True, help="Codec of keys.")
@click.option("--reader", "--line-reader", metavar="MODULE:NAME", help="Parse input with your own Python function.")
@click.option(
    "--property", "--reader-property", "properties", type=Assignment(), multiple=True,
    help="Property of the reader: parse.key, key.separator, parse.headers, null.marker, ignore.error.",
)  # fmt: skip
@click.option(
    "--producer-property", type=Assignment(), multiple=True, help="Property of the producer, such as linger.ms."
)
@click.option("--socket-buffer-size", hidden=True, type=int, help="Accepted for compatibility; has no effect.")
@click.option(
    "--skip-bad", "--skip-message-on-error", is_flag=True, help="Skip lines that are not records and print a warning."
)
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the count.")
@cluster_command
def produce(
    cluster: Cluster, names: tuple[str, ...], topic: str | None, create: bool, quiet: bool, **options: Any
) -> None:
    """Send the lines of standard input, or of files, as records to a topic.

    A topic that does not exist is created if the broker does so; at a terminal that needs --create.

    \b
    echo hello | penstock produce views
    penstock produce views --key-separator : --compression zstd users.txt
    penstock consume views --exit --format json | penstock produce copy --format json
    penstock produce pictures --format raw --key cat cat.jpg

    \b
    Exit code: 0  all records were acknowledged
               1  some were not, or some lines were not records
               3  no broker could be reached
               4  rejected by a broker
    """
    from penstock.cli.records.console_producer import ConsoleProducer
    from penstock.cli.topics.partitions import is_new_topic

    if topic is None:
        if not names:
            raise CommandError("No topic was given.", "Example: echo hello | penstock produce views")
        topic, *files = names
    else:
        files = list(names)
    if cluster.producer_property("producer.type", dict(options["producer_property"])) == "sync":
        options["sync"] = True
    read, ignores = _reader(options)
    client_options = _client_options(cluster, options)
    sending = ConsoleProducer(
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
        click.echo(f"Created topic {printable(topic)!r}.", err=True)
    click.get_current_context().exit(code)


def _reader(options: dict[str, Any]) -> tuple[Any, bool]:
    """The function that parses a stream, and whether to skip lines that are not records."""
    from penstock.cli.records.codecs import encoder
    from penstock.cli.records.console_producer import line_records, own_reader, rules_from, whole_records

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
    from penstock.cli.connection import producer_options

    properties = dict(options["producer_property"])
    found = cluster.options_for("penstock-produce", producer_options(), properties) | cluster.objects_for(properties)
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
    chosen = {name for name, origin in _ORIGINS.items() if (of := source(origin)) is not None and of.name != "DEFAULT"}
    for name, value in given.items():
        if value is not None and (name in chosen or name not in found):
            found[name] = value
    # A user at a terminal should not wait for minutes.
    found.setdefault("max_block_ms", cluster.request_timeout_ms)
    found.setdefault("delivery_timeout_ms", max(120_000, found["request_timeout_ms"] + found["linger_ms"]))
    return found


_ORIGINS: Final = {
    "acks": "acks", "compression_type": "compression", "batch_size": "batch_bytes", "linger_ms": "linger_ms",
    "retries": "retries", "retry_backoff_ms": "retry_backoff_ms", "buffer_memory": "buffer_memory",
}  # fmt: skip
