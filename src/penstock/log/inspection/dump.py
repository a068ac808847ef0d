"""The contents of log files, entry by entry: batches, records, damaged ranges, index entries, producer snapshots.

Nothing is changed or locked, only the current batch is in memory, and damage is an entry like any other: what follows
it is shown too. `verification` judges what is only shown here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from penstock.log.index import (
    ENTRY_BYTES,
    OFFSET_ENTRY,
    TIME_ENTRY,
    AbortedTransaction,
    TransactionIndex,
    TransactionIndexError,
)
from penstock.log.inspection.log_files import (
    Damaged,
    Message,
    PathKind,
    ReadOnlyFiles,
    Run,
    base_offset_of,
    first_offset,
    log_paths,
    read_batch,
    scan_past_damage,
)
from penstock.log.inspection.segment_check import index_entries, reason_of
from penstock.log.inspection.verification import read_snapshot
from penstock.log.producer_state import MAX_SEQUENCE, ProducerEntry, SnapshotError
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT, BatchHeader, RecordError, records_of
from penstock.records.batch import EndMarker, decode_marker
from penstock.records.legacy import DecompressionBudget, LegacyMessage, decode_groups
from penstock.runtime.files import File, Files

NO_LIMIT: Final = 2**63


class BatchEntry(NamedTuple):
    """A batch, or a message of magic 0 or 1, by its header. `problem` is None if its checksum is valid."""

    position: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    record_count: int | None
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    timestamp_type: int
    timestamp_ms: int
    codec: int
    crc: int
    problem: str | None


class RecordEntry(NamedTuple):
    """A record of the preceding batch. `marker` is set for a control record."""

    offset: int
    timestamp_type: int
    timestamp_ms: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    marker: EndMarker | None


class DamageEntry(NamedTuple):
    """Bytes that are not a batch; or, after a sound batch, records that do not decode."""

    position: int
    size: int
    offset: int
    problem: str


class OffsetEntry(NamedTuple):
    offset: int
    position: int


class TimeEntry(NamedTuple):
    timestamp_ms: int
    offset: int


LogEntry: TypeAlias = BatchEntry | RecordEntry | DamageEntry


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a log to show: batches with offsets in [from_offset, to_offset), with `records` if wanted.

    `pause` waits a moment for a write in progress.
    """

    from_offset: int = 0
    to_offset: int = NO_LIMIT
    records: bool = False
    limit_bytes: int = DEFAULT_DECOMPRESSED_LIMIT
    pause: Callable[[], None] | None = None


def logs_within(files: Files, folder: str, window: Window) -> list[str]:
    """The `.log` files of a partition that may have offsets in the window, oldest first."""
    paths = log_paths(files, folder)
    ends = [*list(paths)[1:], NO_LIMIT]
    return [
        path
        for (base, path), end in zip(paths.items(), ends, strict=False)
        if end > window.from_offset and base < window.to_offset
    ]


def dump_log(files: Files, path: str, window: Window) -> Iterator[LogEntry]:
    """The batches of a `.log` file, each followed by its records."""
    with closing(ReadOnlyFiles(files).open(path)) as file:
        named = base_offset_of(path)
        next_offset = first_offset(file) if named is None else named
        for item in scan_past_damage(file, next_offset, window.pause):
            if isinstance(item, Run):
                for header in item.headers:
                    if header.base_offset >= window.to_offset:
                        return
                    next_offset = header.next_offset
                    if next_offset > window.from_offset:
                        yield _batch(item.position + header.position, header, None)
                        if window.records:
                            yield from _records(file, item, header, window)
            elif isinstance(item, Message):
                if item.offset >= window.from_offset:
                    yield from _message(file, item, window)
                next_offset = item.offset + 1
                if next_offset >= window.to_offset:
                    return
            elif item.header is None or item.header.next_offset > window.from_offset:
                yield _damaged(item, next_offset)


def _batch(position: int, header: BatchHeader, problem: str | None) -> BatchEntry:
    return BatchEntry(
        position, header.size, 2, header.base_offset, header.last_offset, header.record_count,
        header.base_sequence, header.last_sequence, header.producer_id, header.producer_epoch, header.leader_epoch,
        header.is_transactional, header.is_control,
        header.base_timestamp if header.has_delete_horizon else None,
        header.timestamp_type, header.max_timestamp, header.codec, header.crc, problem,
    )  # fmt: skip


def _damaged(item: Damaged, next_offset: int) -> LogEntry:
    if item.header is not None:
        return _batch(item.position, item.header, item.reason)
    return DamageEntry(item.position, item.size, next_offset, item.reason)


def _records(file: File, run: Run, header: BatchHeader, window: Window) -> Iterator[LogEntry]:
    position = run.position + header.position
    try:
        if header.size > window.limit_bytes:
            raise RecordError(f"batch of {header.size} bytes exceeds the limit of {window.limit_bytes}")
        data, placed = read_batch(file, run, header)
        records = records_of(data, placed, window.limit_bytes)
        marker = decode_marker(data, placed) if header.is_control else None
    except RecordError as error:
        yield DamageEntry(position, header.size, header.base_offset, reason_of(error))
        return
    for record in records:
        if window.from_offset <= record.offset < window.to_offset:
            sequence = header.base_sequence
            if sequence >= 0:
                sequence = (sequence + record.offset - header.base_offset) & MAX_SEQUENCE
            yield RecordEntry(
                record.offset, header.timestamp_type, record.timestamp, sequence, record.key, record.value,
                record.headers, marker,
            )  # fmt: skip


def _message(file: File, item: Message, window: Window) -> Iterator[LogEntry]:
    """A message. The first offset and the count of a wrapper are known only after unwrapping it."""
    base, count, messages = item.offset, None, list[LegacyMessage]()
    problem: str | None = None
    try:
        if item.size > window.limit_bytes:
            raise RecordError(f"message of {item.size} bytes exceeds the limit of {window.limit_bytes}")
        data = file.read_at(item.position, item.size)
        for group in decode_groups(data, DecompressionBudget(window.limit_bytes)):
            messages += group.messages
        base, count = messages[0].offset, len(messages)
    except RecordError as error:
        problem = reason_of(error)
    yield BatchEntry(
        item.position, item.size, item.magic, base, item.offset, count, -1, -1, -1, -1, -1, False, False, None,
        item.timestamp_type, item.timestamp_ms, item.codec, item.crc, None,
    )  # fmt: skip
    if problem is not None:
        yield DamageEntry(item.position, item.size, base, problem)
    for message in messages if window.records else ():
        if window.from_offset <= message.offset < window.to_offset:
            yield RecordEntry(
                message.offset, message.timestamp_type, message.timestamp, -1, message.key, message.value, (), None
            )


def dump_offset_index(files: Files, path: str) -> Iterator[OffsetEntry | DamageEntry]:
    """The entries of an `.index`. Offsets are relative if the file's name has no base offset."""
    base = base_offset_of(path) or 0
    with closing(ReadOnlyFiles(files).open(path)) as file:
        for offset, position in index_entries(file, OFFSET_ENTRY, file.size()):
            yield OffsetEntry(base + offset, position)
        yield from _torn(file.size(), OFFSET_ENTRY.size, base)


def dump_time_index(files: Files, path: str) -> Iterator[TimeEntry | DamageEntry]:
    """The entries of a `.timeindex`. Offsets are relative if the file's name has no base offset."""
    base = base_offset_of(path) or 0
    with closing(ReadOnlyFiles(files).open(path)) as file:
        for timestamp_ms, offset in index_entries(file, TIME_ENTRY, file.size()):
            yield TimeEntry(timestamp_ms, base + offset)
        yield from _torn(file.size(), TIME_ENTRY.size, base)


def _torn(size: int, entry_bytes: int, offset: int) -> Iterator[DamageEntry]:
    torn = size % entry_bytes
    if torn:
        yield DamageEntry(size - torn, torn, offset, f"{torn} bytes follow the last complete entry")


def dump_transaction_index(files: Files, path: str) -> Iterator[AbortedTransaction | DamageEntry]:
    """The entries of a `.txnindex`, up to the first invalid one."""
    base, count = base_offset_of(path) or 0, 0
    size = files.size_of(path)
    try:
        index = TransactionIndex(ReadOnlyFiles(files), path, base)
        with closing(index):
            for entry in index.entries():
                count += 1
                yield entry
    except TransactionIndexError as error:
        yield DamageEntry(count * ENTRY_BYTES, size - count * ENTRY_BYTES, base, error.reason)
        return
    yield from _torn(size, ENTRY_BYTES, base)


def dump_snapshot(files: Files, path: str) -> Iterator[ProducerEntry | DamageEntry]:
    """The producers in a `.snapshot`."""
    try:
        yield from read_snapshot(ReadOnlyFiles(files), path).entries
    except SnapshotError as error:
        yield DamageEntry(0, files.size_of(path), base_offset_of(path) or 0, str(error))


Entry: TypeAlias = LogEntry | OffsetEntry | TimeEntry | AbortedTransaction | ProducerEntry

_INDEXES: Final[Mapping[PathKind, Callable[[Files, str], Iterator[Entry]]]] = {
    PathKind.OFFSET_INDEX: dump_offset_index,
    PathKind.TIME_INDEX: dump_time_index,
    PathKind.TRANSACTION_INDEX: dump_transaction_index,
    PathKind.SNAPSHOT: dump_snapshot,
}


def dump(files: Files, path: str, kind: PathKind, window: Window) -> Iterator[Entry]:
    """The entries of one file. `window` applies only to a log."""
    return dump_log(files, path, window) if kind is PathKind.LOG else _INDEXES[kind](files, path)
