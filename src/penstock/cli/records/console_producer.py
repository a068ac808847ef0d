"""What `penstock produce` does: read records from standard input and files, send them, report failures.

Whatever has arrived is sent at once: a typed line when Enter is pressed, a file by the megabyte. Lines end with LF or
CRLF; the last one needs no end. A line above 128 MiB is rejected before it fills the memory. Properties are those of
Kafka's LineMessageReader.

Deliveries are checked as they finish, oldest first, so that memory does not grow with the input and the first failures
are reported early. While the client retries, the reason is printed after 2 s and then every 15 s. Ctrl-C sends what
was read and prints the count.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import click

from penstock.cli.connection import command_error_for
from penstock.cli.output import CommandError, printable, sentence
from penstock.cli.records.codecs import CodecError, Encode, Header, MalformedRecord, record_of
from penstock.client.errors import PenstockError, TimedOut
from penstock.client.producer import BulkDelivery, Producer, ProducerRecord
from penstock.runtime.quantities import counted, human_bytes

PIECE_BYTES: Final = 1024 * 1024
_MOST_LINE_BYTES: Final = 128 * 1024 * 1024
_PROPERTIES: Final = {
    "parse.key": "false", "key.separator": "\t", "parse.headers": "false", "headers.delimiter": "\t",
    "headers.separator": ",", "headers.key.separator": ":", "ignore.error": "false", "null.marker": "",
}  # fmt: skip
_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\0": "\0", "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class LineRules:
    """How to parse a line into a record."""

    key_separator: bytes | None = None
    headers_delimiter: bytes | None = None
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    fixed_key: bytes | None = None
    fixed_headers: tuple[Header, ...] = ()
    encode_key: Encode | None = None
    encode_value: Encode | None = None
    is_json: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether a line is the value."""
        return self == LineRules()


def rules_from(properties: Mapping[str, str], **options: Any) -> LineRules:
    """The rules of properties, by the names of Kafka's tool, and of options."""
    unknown = sorted(properties.keys() - _PROPERTIES.keys())
    if unknown:
        raise CommandError(
            f"Unknown property of the reader: {unknown[0]!r}.", f"The properties are {', '.join(_PROPERTIES)}."
        )
    given = _PROPERTIES | {name: unescaped(value) for name, value in properties.items()}
    return LineRules(
        key_separator=given["key.separator"].encode() if given["parse.key"] == "true" else None,
        headers_delimiter=given["headers.delimiter"].encode() if given["parse.headers"] == "true" else None,
        headers_separator=given["headers.separator"].encode(),
        headers_key_separator=given["headers.key.separator"].encode(),
        null_marker=given["null.marker"].encode() or None,
        **options,
    )


def unescaped(text: str) -> str:
    r"""A separator as typed: \t is a tab."""
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    return text


OnInvalidLine = Callable[[int, BaseException], None]
Piece = list[bytes] | list[ProducerRecord]


def line_records(stream: BinaryIO, rules: LineRules, on_bad: OnInvalidLine) -> Iterator[Piece]:
    """Lists of values or records, one per chunk read; `on_bad` gets lines that are not records."""
    number = 0
    for lines in pieces_of_lines(stream):
        if rules.is_plain:
            yield lines
            continue
        records: list[ProducerRecord] = []
        for line in lines:
            number += 1
            try:
                records.append(_record(line, rules))
            except (MalformedRecord, CodecError) as error:
                # What came before it goes out before anything is printed about it.
                if records:
                    yield records
                    records = []
                on_bad(number, error)
        if records:
            yield records


def pieces_of_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a stream, as they arrive."""
    read = getattr(stream, "read1", stream.read)
    pieces: list[bytes] = []
    size = 0
    while data := read(PIECE_BYTES):
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            pieces.append(data)
            size += len(data)
            if size > _MOST_LINE_BYTES:
                raise CommandError(
                    f"A line is longer than {_MOST_LINE_BYTES} bytes.", "Send the file as one record with --format raw."
                )
            continue
        lines = (b"".join(pieces) + head).split(b"\n")
        pieces, size = [tail] if tail else [], len(tail)
        yield [line[:-1] if line.endswith(b"\r") else line for line in lines]
    if pieces:
        yield [b"".join(pieces)]


def _record(line: bytes, rules: LineRules) -> ProducerRecord:
    if rules.is_json:
        found = record_of(line)
        key, value, headers = found["key"], found["value"], found["headers"]
        partition, timestamp_ms = found["partition"], found["timestamp"]
    else:
        partition = timestamp_ms = None
        headers, rest = _headers(line, rules)
        key, value = _key(rest, rules)
    if rules.null_marker is not None:
        key = None if key == rules.null_marker else key
        value = None if value == rules.null_marker else value
    if rules.encode_key is not None and key is not None:
        key = rules.encode_key(key)
    if rules.encode_value is not None and value is not None:
        value = rules.encode_value(value)
    if key is None:
        key = rules.fixed_key
    return ProducerRecord(value, key, [*rules.fixed_headers, *headers] or None, partition, timestamp_ms)


def _headers(line: bytes, rules: LineRules) -> tuple[list[Header], bytes]:
    if rules.headers_delimiter is None:
        return [], line
    text, found, rest = line.partition(rules.headers_delimiter)
    if not found:
        raise MalformedRecord(f"no {rules.headers_delimiter.decode()!r} after its headers")
    if rules.null_marker is not None and text == rules.null_marker:
        return [], rest
    headers: list[Header] = []
    for part in text.split(rules.headers_separator) if text else []:
        name, found, value = part.partition(rules.headers_key_separator)
        if not found:
            raise MalformedRecord(f"header {part!r} has no {rules.headers_key_separator.decode()!r}")
        is_null = rules.null_marker is not None and value == rules.null_marker
        headers.append((name.decode("utf-8", "replace"), None if is_null else value))
    return headers, rest


def _key(line: bytes, rules: LineRules) -> tuple[bytes | None, bytes | None]:
    if rules.key_separator is None:
        return None, line
    key, found, value = line.partition(rules.key_separator)
    if not found:
        raise MalformedRecord(f"no {rules.key_separator.decode()!r} between key and value")
    return key, value


def whole_records(stream: BinaryIO, rules: LineRules, on_bad: OnInvalidLine) -> Iterator[Piece]:
    """A whole stream as the value of one record."""
    data = stream.read(_MOST_LINE_BYTES + 1)
    if len(data) > _MOST_LINE_BYTES:
        raise CommandError(f"The input is longer than {_MOST_LINE_BYTES} bytes.", "Split it into smaller records.")
    try:
        value = rules.encode_value(data) if rules.encode_value is not None else data
    except CodecError as error:
        on_bad(1, error)
        return
    yield [ProducerRecord(value, rules.fixed_key, list(rules.fixed_headers) or None)]


def own_reader(name: str, properties: Mapping[str, str]) -> Callable[[BinaryIO], Iterable[Any]]:
    """A function of the user, called with stream and properties, that yields values or records."""
    function = load_named(name, "--reader")
    return lambda stream: function(stream, dict(properties))


def load_named(name: str, option: str) -> Callable[..., Any]:
    """The object of `module:name`. The working directory is searched last, so it shadows nothing."""
    import os
    import sys

    module, colon, attribute = name.partition(":")
    advice = f"{option} takes MODULE:NAME, a Python function or class that can be imported from here."
    if not colon or not attribute:
        raise CommandError(f"{option} cannot be {name!r}.", advice)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise CommandError(f"Cannot load {name}: {error}.", advice) from None
    if not callable(found):
        raise CommandError(f"{name} is not a function or class.", advice)
    return found  # type: ignore[no-any-return]


_WARNINGS_MAX: Final = 5
_CLOSE_S: Final = 10.0
# A leader that has moved is found again within this; what takes longer is worth a line.
_RETRY_PATIENCE_S: Final = 2.0
_RETRY_AGAIN_S: Final = 15.0
_RETRY_LOGGERS: Final = ("penstock.producer", "penstock.client.metadata_updater")

Read = Callable[[BinaryIO, Callable[[int, BaseException], None]], Iterable[Sequence[Any]]]


class InvalidLine(CommandError):
    """A line that is not a record."""

    exit_code = 1

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "Lines before it were sent. Use --skip-bad to skip such lines with a warning.")


class RetryNotice(logging.Handler):
    """Reports on standard error why the client keeps retrying.

    Reads the client's log, which has each failed attempt with its error at debug level.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.DEBUG)
        self._now_s = now_s
        self._since_s: float | None = None
        self._next_s = 0.0
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        args = record.args if isinstance(record.args, tuple) else ()
        error = next((each for each in args if isinstance(each, PenstockError)), None)
        if error is None or not error.retriable:
            return
        now_s = self._now_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < _RETRY_PATIENCE_S or now_s < self._next_s:
            return
        self._next_s = now_s + _RETRY_AGAIN_S
        shown = command_error_for(error)
        text = f"Still retrying after {now_s - self._since_s:.0f} s: {shown.problem}"
        click.echo(text if shown.problem == self._last or not shown.hint else f"{text} {shown.hint}", err=True)
        self._last = shown.problem

    def progressed(self) -> None:
        """A record was acknowledged: later failures are reported as new ones."""
        self._since_s = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Attach to the client's log at debug level."""
        loggers = [logging.getLogger(name) for name in _RETRY_LOGGERS]
        levels = [each.level for each in loggers]
        for each in loggers:
            each.addHandler(self)
            each.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.removeHandler(self)
                each.setLevel(level)


class ConsoleProducer:
    """One run of `penstock produce`."""

    def __init__(
        self, topic: str, *, partition: int | None, one_by_one: bool, most: int | None, skips_bad: bool, quiet: bool
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._one_by_one = one_by_one
        self._most = most
        self._skips_bad = skips_bad
        self._quiet = quiet
        self._open: deque[Any] = deque()
        self._sent = 0
        self._failed = 0
        self._bad = 0
        self._where = ""
        self._notice = RetryNotice()
        self._on_progress: Callable[[int], None] = lambda _: None

    def run(self, servers: str, options: dict[str, Any], read: Read, files: Sequence[str], stdin: BinaryIO) -> int:
        """Send the records. Returns the exit code."""
        begun = time.monotonic()
        if not files and stdin.isatty() and not self._quiet:
            click.echo("Each line is sent as a record. Ctrl-D to finish.", err=True)
        with ExitStack() as stack:
            stack.enter_context(self._notice.listening())
            streams = [(name, stdin if name == "-" else _opened(stack, name)) for name in files or ["-"]]
            producer = Producer[Any, Any](servers, **options)
            try:
                self._on_progress = stack.enter_context(_progress(streams))
                self._send_all(producer, read, streams)
            except BaseException:
                self._finish(producer)
                self._tell(begun)
                raise
            self._finish(producer)
        self._tell(begun)
        return 1 if self._failed or self._bad else 0

    def _send_all(self, producer: Producer[Any, Any], read: Read, streams: Iterable[tuple[str, BinaryIO]]) -> None:
        for name, stream in streams:
            self._where = "" if name == "-" else f"{name}, "
            for records in read(stream, self._on_bad):
                self._send(producer, records)
                self._settle(wait=False)

    def _send(self, producer: Producer[Any, Any], records: Sequence[Any]) -> None:
        step = 1 if self._one_by_one else self._most or len(records)
        for start in range(0, len(records), step):
            part = records[start : start + step]
            if self._partition is not None:
                part = [_with_partition(record, self._partition) for record in part]
            self._open.append(self._handed_over(producer, part))
            self._sent += len(part)
            if self._one_by_one:
                self._settle(wait=True)
            self._on_progress(len(part))

    def _handed_over(self, producer: Producer[Any, Any], records: Sequence[Any]) -> BulkDelivery:
        try:
            return producer.send_many(self._topic, records)
        except PenstockError:
            raise
        except (ValueError, TypeError) as error:
            # A partition that the topic does not have, or what a reader of the user's own gave.
            raise CommandError(
                sentence(str(error)), "`penstock topics describe` shows the partitions. Keys and values must be bytes."
            ) from None

    def _on_bad(self, number: int, error: BaseException) -> None:
        self._bad += 1
        if not self._skips_bad:
            raise InvalidLine(f"{self._where}line {number} is not a record: {error}.")
        if self._bad <= _WARNINGS_MAX:
            click.echo(f"Skipped {printable(self._where)}line {number}: {printable(str(error))}.", err=True)

    def _settle(self, *, wait: bool) -> None:
        while self._open and (wait or self._open[0].done()):
            delivery = self._open.popleft()
            error = delivery.exception()
            if error is None:
                self._notice.progressed()
                continue
            failures = delivery.failures()
            self._failed += len(failures)
            if not self._skips_bad and self._one_by_one:
                raise error
            if self._failed - len(failures) == 0:
                shown = (
                    command_error_for(error) if isinstance(error, PenstockError) else CommandError(sentence(str(error)))
                )
                click.echo(f"Not delivered: {shown.problem} {shown.hint}".rstrip(), err=True)

    def _finish(self, producer: Producer[Any, Any]) -> None:
        # An interrupt gives what was read some time to arrive, a second one none.
        interrupted = sys.exc_info()[0] is not None
        with suppress(TimedOut):
            producer.close(_CLOSE_S if interrupted else None)
        self._settle_remaining()

    def _settle_remaining(self) -> None:
        """Settle all deliveries; after close() every one is done."""
        skips, self._skips_bad = self._skips_bad, True
        try:
            self._settle(wait=True)
        finally:
            self._skips_bad = skips

    @property
    def stored(self) -> int:
        """Acknowledged records."""
        return self._sent - self._failed

    def _tell(self, begun: float) -> None:
        stored = self.stored
        if self._failed or self._bad:
            total = self._sent + self._bad
            click.echo(f"{counted(stored, 'record')} of {total:,} sent to {printable(self._topic)}.", err=True)
        elif not self._quiet:
            seconds = max(time.monotonic() - begun, 0.001)
            rate = f", {stored / seconds:,.0f}/s" if stored >= 1_000 else ""
            click.echo(f"{counted(stored, 'record')} sent to {printable(self._topic)}{rate}.", err=True)


def _with_partition(record: Any, partition: int) -> ProducerRecord:
    if isinstance(record, ProducerRecord):
        return record._replace(partition=partition)
    return ProducerRecord(record, partition=partition)


def _opened(stack: ExitStack, name: str) -> BinaryIO:
    try:
        return stack.enter_context(open(name, "rb"))
    except OSError as error:
        raise CommandError(
            f"{name}: {(error.strerror or str(error)).lower()}.",
            "Give readable files, or - for standard input.",
        ) from None


@contextmanager
def _progress(streams: Sequence[tuple[str, BinaryIO]]) -> Iterator[Callable[[int], None]]:
    """A counter on standard error, if that is a terminal and standard input is not."""
    if not sys.stderr.isatty() or any(stream.isatty() for _, stream in streams):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} records"), TextColumn("{task.description}"),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task("", total=None)

        def advance(count: int) -> None:
            progress.advance(task, count)
            read = sum(stream.tell() for _, stream in streams if stream.seekable())
            if read:
                progress.update(task, description=human_bytes(read))

        yield advance
