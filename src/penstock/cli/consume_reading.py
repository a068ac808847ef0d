"""Reading for `penstock consume`: where to begin, what to show, when it is enough.

Noun: a reading: a consumer, and for each partition the offset at which it is done, if it is ever to be.

Rule: ends are decided by offsets, looked up before the first record is read, so that records arriving meanwhile do not
move them; a partition whose last offsets hold no records (removed by compaction, or marks of transactions) is done when
its position is there. Output leaves before each wait, and whoever stopped reading it ends the command.
"""

from __future__ import annotations

import io
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import click

from penstock.cli.cluster import Cluster
from penstock.cli.coding import NotCodable, decoder
from penstock.cli.consume_formats import CodecDecoder, Formatter, Record
from penstock.cli.output import CommandError, counted, printable
from penstock.cli.partitions import no_such_partition, no_such_topic
from penstock.cli.values import NameAndPartitions, Place
from penstock.client.consumer import Consumer, TopicPartition
from penstock.client.errors import DeserializationError

_EXIT_NOT_SHOWN: Final = 1
_EXIT_INTERRUPTED: Final = 130
_EXIT_TERMINATED: Final = 143
_TICK_MS: Final = 250
_TOLD: Final = 5
_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read."""

    topics: tuple[NameAndPartitions, ...]
    include: str | None
    exclude: str | None

    @property
    def names_partitions(self) -> bool:
        return any(item.partitions is not None for item in self.topics)


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin."""

    place: Place | None
    time_ms: int | None
    from_beginning: bool

    @property
    def reset(self) -> str:
        """The policy for partitions of which nothing else is known."""
        return "earliest" if self.place is not None and self.place.kind == "earliest" else "latest"


class _Terminated(KeyboardInterrupt):
    """SIGTERM: end as by Ctrl-C, so that a group is told of it."""


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


class _Enough(Exception):
    """All that was asked for is shown."""


class Reading:
    """One run of `penstock consume`."""

    def __init__(self, wanted: Wanted, start: Start, show: Formatter, options: dict[str, Any]) -> None:
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
        """Show everything; the exit code."""
        options = self._client_options(cluster)
        if self._start.time_ms is not None or self._options["until_time"] is not None:
            cluster.check_times()
        try:
            with _terminable(), self._consumer(cluster, options) as consumer:
                self._begin(consumer)
                try:
                    self._read(consumer)
                except _Enough:
                    self._stream.flush()
                except BaseException:
                    self._stream.flush()
                    self._commit_what_was_shown(consumer)
                    raise
        except KeyboardInterrupt as ending:
            self._tell()
            return _EXIT_TERMINATED if isinstance(ending, _Terminated) else _EXIT_INTERRUPTED
        self._tell()
        return _EXIT_NOT_SHOWN if self._failed else 0

    # --- setting up

    def _client_options(self, cluster: Cluster) -> dict[str, Any]:
        from penstock.cli.properties import consumer_options

        options = self._options
        found = cluster.options_for("penstock-consume", consumer_options(), dict(options["consumer_property"]))
        self._group = self._group or found.get("group_id")
        self._commits = self._group is not None and not options["no_commit"]
        found |= {
            "group_id": self._group,
            # A group is told of exactly what was shown, when it ends and in between.
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
                "Partitions are given, and a group.", "A group shares the partitions among its members: leave one out."
            )
        if self._group is not None:
            consumer.subscribe([item.topic for item in wanted.topics])
            return
        consumer.assign(dict.fromkeys(_chosen(wanted.topics, there)))

    def _begin(self, consumer: Consumer[Any, Any]) -> None:
        """Go to where it begins, and find out where it ends."""
        start, options = self._start, self._options
        if self._group is not None and start.place is not None and not start.from_beginning:
            raise CommandError(
                "An offset is given, and a group.",
                "Move the group with `penstock groups seek`, or read without --group.",
            )
        self._seek(consumer)
        self._has_stops = options["exits"] or options["until_time"] is not None
        if self._has_stops:
            if self._group is not None:
                self._until_assigned(consumer)
            self._find_stops(consumer, sorted(consumer.assignment()))

    def _until_assigned(self, consumer: Consumer[Any, Any]) -> None:
        """In a group it takes a moment until partitions are ours; who gets none waits for the others to leave."""
        while not consumer.assignment():
            self._early += self._polled(consumer, 1)
            _check_reader_is_there()

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
            if self._has_stops:
                self._look_at_positions(consumer)
            records = self._next(consumer)
            if records:
                quiet_since = time.monotonic()
                self._write(self._before_stops(consumer, records) if self._has_stops else records)
                self._done.update(self._handed_out)
            elif timeout_ms is not None and (time.monotonic() - quiet_since) * 1000 >= timeout_ms:
                raise _Enough
            self._stream.flush()
            _check_reader_is_there()

    def _next(self, consumer: Consumer[Any, Any]) -> list[Record]:
        if self._early:
            early, self._early = self._early, []
            return early
        return self._polled(consumer, _BATCH if self._most is None else min(_BATCH, self._most - self._shown))

    def _before_stops(self, consumer: Consumer[Any, Any], records: Iterable[Record]) -> list[Record]:
        """Without what lies behind the ends, which goes back: a group must not commit what was not shown."""
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
            cause = error.__cause__ if isinstance(error.__cause__, NotCodable) else error.message
            raise NotShown(error, str(cause)) from None
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
                        f"{record.topic}-{record.partition}, offset {record.offset} cannot be shown: {error}.",
                        "--skip-message-on-error skips such records with a warning.",
                    ) from None
                self._tell_skipped(record.topic, record.partition, record.offset, error)
                continue
            self._shown += 1
        if self._most is not None and self._shown >= self._most:
            raise _Enough

    def _look_at_positions(self, consumer: Consumer[Any, Any]) -> None:
        # What went to another member of the group is its to read.
        self._left &= consumer.assignment()
        for partition in list(self._left):
            if consumer.position(partition) >= self._stops[partition]:
                self._left.discard(partition)
                consumer.pause(partition)
        if not self._left:
            raise _Enough

    def _commit_what_was_shown(self, consumer: Consumer[Any, Any]) -> None:
        """It ends in the middle of something: the consumer cannot know how far its records came, we can."""
        if self._commits and self._done:
            consumer.commit(self._done)
        consumer.close(autocommit=False)

    # --- telling

    def _skip(self, error: DeserializationError) -> None:
        self._failed += 1
        cause = error.__cause__ or error
        self._tell_skipped(error.topic, error.partition, error.offset, cause)

    def _tell_skipped(self, topic: object, partition: object, offset: object, error: BaseException) -> None:
        if self._failed <= _TOLD:
            click.echo(f"Skipped {topic}-{partition}, offset {offset}: {printable(str(error))}.", err=True)

    def _tell(self) -> None:
        if self._options["quiet"] and not self._failed:
            return
        skipped = f", {self._failed:,} skipped" if self._failed else ""
        click.echo(f"{counted(self._shown, 'record')}{skipped}.", err=True)


class NotShown(CommandError):
    """A record that no decoder could read."""

    exit_code = _EXIT_NOT_SHOWN

    def __init__(self, error: DeserializationError, cause: str) -> None:
        super().__init__(
            f"{error.topic}-{error.partition}, offset {error.offset} cannot be shown: {cause}.",
            "--skip-message-on-error skips such records with a warning; --value-decoder text shows the bytes.",
        )


def _chosen(topics: Iterable[NameAndPartitions], there: dict[str, frozenset[int]]) -> Iterable[TopicPartition]:
    for item in topics:
        for index in sorted(there[item.topic]) if item.partitions is None else item.partitions:
            if index not in there[item.topic]:
                raise no_such_partition(item.topic, index, len(there[item.topic]))
            yield TopicPartition(item.topic, index)


def _buffered(stream: BinaryIO) -> BinaryIO:
    """With PYTHONUNBUFFERED there is no buffer, and a system call a record would be what takes the time."""
    if not isinstance(stream, io.RawIOBase):
        return stream
    return open(stream.fileno(), "wb", closefd=False)


def _check_reader_is_there() -> None:
    """Who reads our output may be gone without our having anything to write: `| head` would hang until the next."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        if any(event & select.POLLERR for _, event in poller.poll(0)):
            raise BrokenPipeError
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
