"""What `penstock consume` does: where to begin, how to format records, when to stop.

`text` and templates write bytes as they are; `json` is one object per line. A template is kcat's: %t topic, %p
partition, %o offset, %k key, %K its length, %s value, %S its length, %T timestamp, %h headers, %%, and backslash
escapes. A newline is added unless the template ends with an escape of its own.

Stop offsets are looked up before the first record is read, so that new records do not move them. A partition whose
last offsets hold no records (compacted away, or transaction markers) is done when the position reaches the stop
offset. Output is flushed before each wait, and a closed pipe ends the command.
"""

from __future__ import annotations

import io
import json
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import click

from penstock.cli.connection import Cluster
from penstock.cli.output import CommandError, printable
from penstock.cli.records.codecs import CodecError, Decode, as_json, decoder, headers_as_json
from penstock.cli.records.console_producer import load_named, unescaped
from penstock.cli.topics.partitions import no_such_partition, no_such_topic
from penstock.cli.values import NameAndPartitions, StartOffset
from penstock.client.consumer import Consumer, ConsumerRecord, TopicPartition
from penstock.client.errors import DeserializationError
from penstock.runtime.quantities import counted, time_text

Record = ConsumerRecord[Any, Any]
Formatter = Callable[[Record], bytes]

_PROPERTIES: Final = {
    "print.timestamp": "false", "print.key": "false", "print.offset": "false", "print.epoch": "false",
    "print.partition": "false", "print.topic": "false", "print.headers": "false", "print.value": "true",
    "key.separator": "\t", "line.separator": "\n", "headers.separator": ",", "null.literal": "null",
}  # fmt: skip
_TEMPLATE = re.compile(rb"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|(%)$", re.DOTALL)
_CHARACTERS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\\": b"\\", b"0": b"\0", b"c": b""}
_ENDS_ITS_LINE = re.compile(r"\\(n|r|0|c|x[0-9a-fA-F]{2})$")
_CREATE, _APPEND = 0, 1


def as_bytes(value: object, null: bytes = b"null") -> bytes:
    """A key or value in a line of text."""
    if value is None:
        return null
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")


def formatter_for(name: str, properties: Mapping[str, str]) -> Formatter:
    """The formatter of --format: text, json, value, or a template."""
    if "%" in name:
        return template(name)
    given = dict(properties)
    if name == "json":
        _check(given)
        return json_line
    if name == "value":
        _check(given)
        return lambda record: as_bytes(record.value, b"") + b"\n"
    if name == "text":
        return default_lines(given)
    raise CommandError(f"Unknown format {name!r}.", "Use text, json, value, or a template like '%o %k %s'.")


def named_formatter(name: str, properties: Mapping[str, str]) -> Formatter:
    """The formatter of --formatter: a class of Kafka's tools, or the user's MODULE:NAME."""
    last = name.rpartition("$")[2].rpartition(".")[2]
    if last in ("DefaultMessageFormatter", "NewlineMessageFormatter"):
        return default_lines(dict(properties))
    if last == "NoOpMessageFormatter":
        return lambda _: b""
    if last == "ChecksumMessageFormatter":
        raise CommandError(
            f"{name} prints checksums of single records.", "Records have no checksum of their own since Kafka 0.11."
        )
    own = load_named(name, "--formatter")
    made = own(dict(properties)) if isinstance(own, type) else own

    def show(record: Record) -> bytes:
        shown = made(record)
        return shown if isinstance(shown, bytes) else str(shown).encode("utf-8", "backslashreplace")

    return show


def _check(given: Mapping[str, str]) -> None:
    unknown = sorted(given.keys() - _PROPERTIES.keys())
    if unknown:
        raise CommandError(
            f"Unknown property of the formatter: {unknown[0]!r}.", f"The properties are {', '.join(_PROPERTIES)}."
        )


def default_lines(given: Mapping[str, str]) -> Formatter:
    """Kafka's DefaultMessageFormatter."""
    _check(given)
    rules = _PROPERTIES | {name: unescaped(value) for name, value in given.items()}
    null, end = rules["null.literal"].encode(), rules["line.separator"].encode()
    between, within = rules["key.separator"].encode(), rules["headers.separator"].encode()
    parts: list[Formatter] = []
    if rules["print.timestamp"] == "true":
        parts.append(lambda record: b"%s:%d" % (_TIME_NAMES.get(record.timestamp_type, b"Time"), record.timestamp))
    if rules["print.topic"] == "true":
        parts.append(lambda record: record.topic.encode())
    if rules["print.partition"] == "true":
        parts.append(lambda record: b"Partition:%d" % record.partition)
    if rules["print.offset"] == "true":
        parts.append(lambda record: b"Offset:%d" % record.offset)
    if rules["print.epoch"] == "true":
        parts.append(lambda record: b"Epoch:%d" % record.leader_epoch)
    if rules["print.headers"] == "true":
        parts.append(lambda record: headers_text(record, within, b":", null) or b"NO_HEADERS")
    if rules["print.key"] == "true":
        parts.append(lambda record: as_bytes(record.key, null))
    if rules["print.value"] == "true":
        parts.append(lambda record: as_bytes(record.value, null))
    if len(parts) == 1:
        (part,) = parts
        return lambda record: part(record) + end
    return lambda record: between.join([part(record) for part in parts]) + end


_TIME_NAMES: Final = {_CREATE: b"CreateTime", _APPEND: b"LogAppendTime"}


def headers_text(record: Record, between: bytes, after_name: bytes, null: bytes) -> bytes:
    return between.join(name.encode() + after_name + as_bytes(value, null) for name, value in record.headers)


def json_line(record: Record) -> bytes:
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **as_json("key", record.key),
        **as_json("value", record.value),
        "headers": headers_as_json(record.headers),
    }
    return json.dumps(document, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n"


_FIELDS: Final[dict[bytes, Formatter]] = {
    b"t": lambda record: record.topic.encode(),
    b"p": lambda record: b"%d" % record.partition,
    b"o": lambda record: b"%d" % record.offset,
    b"k": lambda record: as_bytes(record.key, b""),
    b"K": lambda record: b"%d" % _length(record.key),
    b"s": lambda record: as_bytes(record.value, b""),
    b"S": lambda record: b"%d" % _length(record.value),
    b"T": lambda record: b"%d" % record.timestamp,
    b"d": lambda record: time_text(record.timestamp).encode(),
    b"h": lambda record: headers_text(record, b",", b"=", b"NULL"),
}


def _length(value: object) -> int:
    return -1 if value is None else len(as_bytes(value))


def template(text: str) -> Formatter:
    """A kcat template; %d is the timestamp as a date."""
    raw = text.encode()
    parts: list[bytes | Formatter] = []
    last = 0
    for found in _TEMPLATE.finditer(raw):
        parts.append(raw[last : found.start()])
        last = found.end()
        field, number, character, lonely = found.groups()
        if field == b"%":
            parts.append(b"%")
        elif field is not None and field in _FIELDS:
            parts.append(_FIELDS[field])
        elif field is not None or lonely is not None:
            shown = (field or b"").decode("utf-8", "replace")
            raise CommandError(
                f"Unknown field %{shown} in the template.",
                f"The fields are {', '.join(f'%{name.decode()}' for name in _FIELDS)} and %%.",
            )
        elif number is not None:
            parts.append(bytes.fromhex(number.decode()))
        else:
            parts.append(_CHARACTERS.get(character, b"\\" + character))
    parts.append(raw[last:] + (b"" if _ENDS_ITS_LINE.search(text) else b"\n"))
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in parts])


class CodecDecoder:
    """A codec as a deserializer. Raises CodecError."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def decode(self, topic: str, data: bytes) -> Any:
        return self._decode(bytes(data))


_EXIT_UNDECODABLE: Final = 1
_EXIT_INTERRUPTED: Final = 130
_EXIT_TERMINATED: Final = 143
_TICK_MS: Final = 250
_WARNINGS_MAX: Final = 5
_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics and partitions to read."""

    topics: tuple[NameAndPartitions, ...]
    include: str | None
    exclude: str | None

    @property
    def names_partitions(self) -> bool:
        return any(item.partitions is not None for item in self.topics)


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where to start reading."""

    place: StartOffset | None
    time_ms: int | None
    from_beginning: bool

    @property
    def reset(self) -> str:
        """The policy for partitions without a committed offset."""
        return "earliest" if self.place is not None and self.place.kind == "earliest" else "latest"


class _Terminated(KeyboardInterrupt):
    """Handle SIGTERM like Ctrl-C, so that the consumer leaves its group."""


@contextmanager
def _terminable() -> Iterator[None]:
    def terminate(*_: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Finished(Exception):
    """Everything requested is shown."""


class ConsoleConsumer:
    """One run of `penstock consume`."""

    def __init__(self, wanted: TopicSelection, start: StartPoint, show: Formatter, options: dict[str, Any]) -> None:
        self._wanted = wanted
        self._start = start
        self._show = show
        self._options = options
        self._group: str | None = options["group"]
        self._most: int | None = options["max_messages"]
        self._stream = _buffered(sys.stdout.buffer)
        self._stops: dict[TopicPartition, int] = {}
        self._has_stops = False
        self._left: set[TopicPartition] = set()
        self._early: list[Record] = []
        self._handed_out: dict[TopicPartition, int] = {}
        self._done: dict[TopicPartition, int] = {}
        self._commits = False
        self._shown = 0
        self._failed = 0

    def run(self, cluster: Cluster) -> int:
        """Show the records. Returns the exit code."""
        options = self._client_options(cluster)
        if self._start.time_ms is not None or self._options["until_time"] is not None:
            cluster.check_times()
        try:
            with _terminable(), self._consumer(cluster, options) as consumer:
                self._begin(consumer)
                try:
                    self._read(consumer)
                except _Finished:
                    self._stream.flush()
                except BaseException:
                    self._stream.flush()
                    self._commit_shown(consumer)
                    raise
        except KeyboardInterrupt as ending:
            self._tell()
            return _EXIT_TERMINATED if isinstance(ending, _Terminated) else _EXIT_INTERRUPTED
        self._tell()
        return _EXIT_UNDECODABLE if self._failed else 0

    # --- setting up

    def _client_options(self, cluster: Cluster) -> dict[str, Any]:
        from penstock.cli.connection import consumer_options

        options = self._options
        found = cluster.options_for("penstock-consume", consumer_options(), dict(options["consumer_property"]))
        self._group = self._group or found.get("group_id")
        self._commits = self._group is not None and not options["no_commit"]
        found |= {
            "group_id": self._group,
            # Commit exactly what was shown, at the end and in between.
            "enable_auto_commit": self._commits,
            "allow_auto_create_topics": False,
        }
        if self._start.place is not None or "auto_offset_reset" not in found:
            found["auto_offset_reset"] = self._start.reset
        if options["isolation_level"] is not None:
            found["isolation_level"] = options["isolation_level"]
        if options["commit_interval_ms"] is not None:
            found["auto_commit_interval_ms"] = options["commit_interval_ms"]
        if options["fetch_size"] is not None:
            found["max_partition_fetch_bytes"] = options["fetch_size"]
        for field in ("key", "value"):
            decode = decoder(options[f"{field}_decoder"])
            if decode is not None:
                found[field] = CodecDecoder(decode)
        if options["skip_message_on_error"]:
            found["on_decode_error"] = self._skip
        return found

    def _consumer(self, cluster: Cluster, options: dict[str, Any]) -> Consumer[Any, Any]:
        consumer: Consumer[Any, Any] = Consumer(bootstrap_servers=cluster.servers, **options)
        try:
            self._subscribe(cluster, consumer)
        except BaseException:
            consumer.close()
            raise
        return consumer

    def _subscribe(self, cluster: Cluster, consumer: Consumer[Any, Any]) -> None:
        wanted = self._wanted
        if not wanted.topics:
            consumer.subscribe(pattern=wanted.include, exclude=wanted.exclude)
            return
        there = {item.topic: frozenset(consumer.partitions_for_topic(item.topic)) for item in wanted.topics}
        for name, partitions in there.items():
            if not partitions:
                with cluster.admin() as admin:
                    raise no_such_topic(name, admin.list_topics(include_internal=True))
        if self._group is not None and wanted.names_partitions:
            raise CommandError(
                "--partition and --group exclude each other.", "A group assigns partitions itself. Use one of them."
            )
        if self._group is not None:
            consumer.subscribe([item.topic for item in wanted.topics])
            return
        consumer.assign(dict.fromkeys(_chosen(wanted.topics, there)))

    def _begin(self, consumer: Consumer[Any, Any]) -> None:
        """Seek to the start, and look up the stop offsets."""
        start, options = self._start, self._options
        if self._group is not None and start.place is not None and not start.from_beginning:
            raise CommandError(
                "--offset and --group exclude each other.",
                "Move the group with `penstock groups seek`, or read without --group.",
            )
        self._seek(consumer)
        self._has_stops = options["exits"] or options["until_time"] is not None
        if self._has_stops:
            if self._group is not None:
                self._until_assigned(consumer)
            self._find_stops(consumer, sorted(consumer.assignment()))

    def _until_assigned(self, consumer: Consumer[Any, Any]) -> None:
        """Wait for an assignment. A member without partitions waits for others to leave."""
        while not consumer.assignment():
            self._early += self._polled(consumer, 1)
            _check_stdout_open()

    def _seek(self, consumer: Consumer[Any, Any]) -> None:
        place, time_ms = self._start.place, self._start.time_ms
        if time_ms is not None:
            # Of all that is assigned; in a group it waits until something is.
            consumer.seek_to_time((), time_ms)
            return
        partitions = sorted(consumer.assignment())
        if place is None or not partitions:
            return
        if place.kind == "offset":
            for partition in partitions:
                consumer.seek(partition, place.number)
        elif place.kind == "from end":
            begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            for partition in partitions:
                consumer.seek(partition, max(begins[partition], ends[partition] - place.number))

    def _find_stops(self, consumer: Consumer[Any, Any], partitions: Sequence[TopicPartition]) -> None:
        until_ms = self._options["until_time"]
        self._stops = consumer.end_offsets(partitions)
        if until_ms is not None:
            young = consumer.offsets_for_times(dict.fromkeys(partitions, until_ms))
            for partition in partitions:
                found = young[partition]
                if found is not None:
                    self._stops[partition] = min(found.offset, self._stops[partition])
        self._left = set(partitions)

    # --- reading

    def _read(self, consumer: Consumer[Any, Any]) -> None:
        if self._most == 0:
            return
        timeout_ms = self._options["timeout_ms"]
        quiet_since = time.monotonic()
        while True:
            # What came with the assignment is shown first: the position is behind it already.
            if self._has_stops and not self._early:
                self._check_positions(consumer)
            records = self._next(consumer)
            if records:
                quiet_since = time.monotonic()
                self._write(self._before_stops(consumer, records) if self._has_stops else records)
                self._done.update(self._handed_out)
            elif timeout_ms is not None and (time.monotonic() - quiet_since) * 1000 >= timeout_ms:
                raise _Finished
            self._stream.flush()
            _check_stdout_open()

    def _next(self, consumer: Consumer[Any, Any]) -> list[Record]:
        if self._early:
            early, self._early = self._early, []
            return early
        return self._polled(consumer, _BATCH if self._most is None else min(_BATCH, self._most - self._shown))

    def _before_stops(self, consumer: Consumer[Any, Any], records: Iterable[Record]) -> list[Record]:
        """The records before the stop offsets. The rest is given back: a group commits only what was shown."""
        kept: list[Record] = []
        beyond: set[TopicPartition] = set()
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if record.offset < self._stops.get(partition, 0):
                kept.append(record)
            else:
                beyond.add(partition)
        for partition in beyond:
            if partition in self._stops:
                consumer.seek(partition, self._stops[partition])
        return kept

    def _polled(self, consumer: Consumer[Any, Any], most: int) -> list[Record]:
        tick_ms = _TICK_MS
        if self._options["timeout_ms"] is not None:
            tick_ms = max(1, min(_TICK_MS, self._options["timeout_ms"]))
        try:
            polled = consumer.poll(timeout_ms=tick_ms, max_records=most)
        except DeserializationError as error:
            self._failed += 1
            cause = error.__cause__ if isinstance(error.__cause__, CodecError) else error.message
            raise UndecodableRecord(error, str(cause)) from None
        ends = ((partition, records[-1].offset + 1) for partition, records in polled.items())
        self._handed_out.update((key, min(end, self._stops.get(key, end))) for key, end in ends)
        return [record for records in polled.values() for record in records]

    def _write(self, records: Iterable[Record]) -> None:
        show, write = self._show, self._stream.write
        for record in records:
            try:
                write(show(record))
            except BrokenPipeError:
                raise
            except Exception as error:  # noqa: BLE001 - a formatter of the user's own may raise anything
                self._failed += 1
                if not self._options["skip_message_on_error"]:
                    self._stream.flush()
                    raise CommandError(
                        f"{record.topic}-{record.partition}, offset {record.offset} cannot be decoded: {error}.",
                        "Use --skip-message-on-error to skip such records with a warning.",
                    ) from None
                self._warn_skipped(record.topic, record.partition, record.offset, error)
                continue
            self._shown += 1
        if self._most is not None and self._shown >= self._most:
            raise _Finished

    def _check_positions(self, consumer: Consumer[Any, Any]) -> None:
        # What went to another member of the group is its to read.
        self._left &= consumer.assignment()
        for partition in list(self._left):
            if consumer.position(partition) >= self._stops[partition]:
                self._left.discard(partition)
                consumer.pause(partition)
        if not self._left:
            raise _Finished

    def _commit_shown(self, consumer: Consumer[Any, Any]) -> None:
        """Commit exactly what was shown; the consumer does not know how far that is."""
        if self._commits and self._done:
            consumer.commit(self._done)
        consumer.close(autocommit=False)

    # --- telling

    def _skip(self, error: DeserializationError) -> None:
        self._failed += 1
        cause = error.__cause__ or error
        self._warn_skipped(error.topic, error.partition, error.offset, cause)

    def _warn_skipped(self, topic: object, partition: object, offset: object, error: BaseException) -> None:
        if self._failed <= _WARNINGS_MAX:
            click.echo(f"Skipped {topic}-{partition}, offset {offset}: {printable(str(error))}.", err=True)

    def _tell(self) -> None:
        if self._options["quiet"] and not self._failed:
            return
        skipped = f", {self._failed:,} skipped" if self._failed else ""
        click.echo(f"{counted(self._shown, 'record')}{skipped}.", err=True)


class UndecodableRecord(CommandError):
    """A record that no decoder could read."""

    exit_code = _EXIT_UNDECODABLE

    def __init__(self, error: DeserializationError, cause: str) -> None:
        super().__init__(
            f"{error.topic}-{error.partition}, offset {error.offset} cannot be decoded: {cause}.",
            "Use --skip-message-on-error to skip such records, or --value-decoder text to show the bytes.",
        )


def _chosen(topics: Iterable[NameAndPartitions], there: dict[str, frozenset[int]]) -> Iterable[TopicPartition]:
    for item in topics:
        for index in sorted(there[item.topic]) if item.partitions is None else item.partitions:
            if index not in there[item.topic]:
                raise no_such_partition(item.topic, index, len(there[item.topic]))
            yield TopicPartition(item.topic, index)


def _buffered(stream: BinaryIO) -> BinaryIO:
    """A buffered stream even with PYTHONUNBUFFERED: a system call per record would be slow."""
    if not isinstance(stream, io.RawIOBase):
        return stream
    return open(stream.fileno(), "wb", closefd=False)


def _check_stdout_open() -> None:
    """Notice a closed pipe while there is nothing to write: `| head` would hang until the next record."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        if any(event & select.POLLERR for _, event in poller.poll(0)):
            raise BrokenPipeError
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
