"""Sending what a reader reads, and reporting what became of it.

Deliveries are looked at as they end, oldest first, so that memory does not grow with the input, and the first failures
are reported while the rest goes on. What is tried again is reported with its reason, soon and then from time to time.
Ctrl-C sends what was read, and says how much that was.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, BinaryIO, Final

import click

from penstock.cli.cluster import told
from penstock.cli.output import CommandError, counted, human_bytes, printable, sentence
from penstock.client.errors import PenstockError, TimedOut
from penstock.client.producer import BulkDelivery, Producer, ProducerRecord

_TOLD: Final = 5
_CLOSE_S: Final = 10.0
# A leader that has moved is found again within this; what takes longer is worth a line.
_RETRY_PATIENCE_S: Final = 2.0
_RETRY_AGAIN_S: Final = 15.0
_RETRY_LOGGERS: Final = ("penstock.producer", "penstock.client.metadata")

Read = Callable[[BinaryIO, Callable[[int, BaseException], None]], Iterable[Sequence[Any]]]


class NoRecord(CommandError):
    """A line that is none; what came before it was sent."""

    exit_code = 1

    def __init__(self, problem: str) -> None:
        super().__init__(problem, "What came before it was sent. --skip-bad skips such lines with a warning.")


class RetryNotice(logging.Handler):
    """Says on standard error why the client is still trying.

    The client logs each failed attempt with its error, at debug level; nothing else is taken from its log.
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
        shown = told(error)
        text = f"Still trying after {now_s - self._since_s:.0f} s: {shown.problem}"
        click.echo(text if shown.problem == self._last or not shown.hint else f"{text} {shown.hint}", err=True)
        self._last = shown.problem

    def progressed(self) -> None:
        """Something was acknowledged: trouble from now on is new trouble."""
        self._since_s = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what the client logs, at debug level and above."""
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


class Sending:
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
        """Send everything; the exit code."""
        begun = time.monotonic()
        if not files and stdin.isatty() and not self._quiet:
            click.echo("Every line is a record; Ctrl-D ends.", err=True)
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
                part = [_placed(record, self._partition) for record in part]
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
                sentence(str(error)), "`penstock topics describe` shows the partitions; keys and values are bytes."
            ) from None

    def _on_bad(self, number: int, error: BaseException) -> None:
        self._bad += 1
        if not self._skips_bad:
            raise NoRecord(f"{self._where}line {number} is not a record: {error}.")
        if self._bad <= _TOLD:
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
                shown = told(error) if isinstance(error, PenstockError) else CommandError(sentence(str(error)))
                click.echo(f"Not stored: {shown.problem} {shown.hint}".rstrip(), err=True)

    def _finish(self, producer: Producer[Any, Any]) -> None:
        # An interrupt gives what was read some time to arrive, a second one none.
        interrupted = sys.exc_info()[0] is not None
        with suppress(TimedOut):
            producer.close(_CLOSE_S if interrupted else None)
        self._settle_all_at_end()

    def _settle_all_at_end(self) -> None:
        """After close() every delivery has ended."""
        skips, self._skips_bad = self._skips_bad, True
        try:
            self._settle(wait=True)
        finally:
            self._skips_bad = skips

    @property
    def stored(self) -> int:
        """Records that were acknowledged."""
        return self._sent - self._failed

    def _tell(self, begun: float) -> None:
        stored = self.stored
        if self._failed or self._bad:
            total = self._sent + self._bad
            click.echo(f"{counted(stored, 'record')} of {total:,} sent to {printable(self._topic)}.", err=True)
        elif not self._quiet:
            seconds = max(time.monotonic() - begun, 0.001)
            rate = f", {stored / seconds:,.0f} a second" if stored >= 1_000 else ""
            click.echo(f"{counted(stored, 'record')} sent to {printable(self._topic)}{rate}.", err=True)


def _placed(record: Any, partition: int) -> ProducerRecord:
    if isinstance(record, ProducerRecord):
        return record._replace(partition=partition)
    return ProducerRecord(record, partition=partition)


def _opened(stack: ExitStack, name: str) -> BinaryIO:
    try:
        return stack.enter_context(open(name, "rb"))
    except OSError as error:
        raise CommandError(
            f"{name}: {(error.strerror or str(error)).lower()}.",
            "Name files that can be read, or - for standard input.",
        ) from None


@contextmanager
def _progress(streams: Sequence[tuple[str, BinaryIO]]) -> Iterator[Callable[[int], None]]:
    """A line on standard error that grows, if somebody sees it and nobody types."""
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
