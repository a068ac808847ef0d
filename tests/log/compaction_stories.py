"""Shared by the tests of compaction: small logs of small segments, records to append, and a reader's view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.log.compaction.job import CompactionResult, compact
from penstock.log.log_loader import open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import COMPACT, LogSettings
from penstock.records import BatchHeader, Codec, Record, RecordTuple, decode_batch, encode_batch, scan
from penstock.records.batch import EndMarker, encode_marker
from penstock.runtime.files import Files

FOLDER = "/data/t-0"
NOW = 1_700_000_000_000
RETENTION_MS = 1000
SMALL = LogSettings(
    segment_bytes=600,
    index_interval_bytes=64,
    cleanup_policy=frozenset({COMPACT}),
    delete_retention_ms=RETENTION_MS,
    min_cleanable_dirty_ratio=0.0,
)
WIDE = replace(SMALL, segment_bytes=1_000_000)

Pair = tuple[bytes | None, bytes | None]


def new_log(files: Files, settings: LogSettings = SMALL, folder: str = FOLDER) -> PartitionLog:
    return open_log(files, folder, settings, clean=False, now_ms=NOW).log


def reopened(log: PartitionLog, *, clean: bool, now_ms: int = NOW) -> PartitionLog:
    """The log after a stop: a clean one, or one at which nothing was written any more."""
    checkpointed, high_watermark = log.checkpointed_offset, log.high_watermark
    if clean:
        log.close()
    else:
        log.release()
    again = open_log(
        log.files,
        log.folder,
        log.settings,
        clean=clean,
        recovery_point=checkpointed,
        log_start_offset=log.log_start_offset,
        now_ms=now_ms,
    ).log
    again.checkpointed_offset = checkpointed
    again.set_high_watermark(high_watermark)
    return again


def put(
    log: PartitionLog,
    *pairs: Pair,
    at_ms: int = NOW,
    codec: int = Codec.NONE,
    producer: int = -1,
    sequence: int = -1,
    epoch: int = 0,
    transactional: bool = False,
    from_client: bool = True,
) -> int:
    """Append one batch, its records stamped a millisecond apart; its base offset."""
    rows: Sequence[RecordTuple] = [
        (at_ms + number, key, value, [("n", b"%d" % number)]) for number, (key, value) in enumerate(pairs)
    ]
    batch = encode_batch(
        rows,
        codec=codec,
        producer_id=producer,
        producer_epoch=epoch if producer >= 0 else -1,
        base_sequence=sequence,
        transactional=transactional,
    )
    return log.append(batch, leader_epoch=1, now_ms=at_ms, from_client=from_client).base_offset


def end_transaction(log: PartitionLog, producer: int, *, commit: bool, epoch: int = 0, at_ms: int = NOW) -> int:
    marker = encode_marker(EndMarker(commit, 1), timestamp_ms=at_ms, producer_id=producer, producer_epoch=epoch)
    return log.append(marker, leader_epoch=1, now_ms=at_ms, from_client=False).base_offset


def seal(log: PartitionLog, now_ms: int = NOW) -> None:
    """Roll, and let everything be replicated, durable and checkpointed."""
    if log.active.size:
        log.roll(log.log_end_offset, now_ms)
    settle(log)


def settle(log: PartitionLog) -> None:
    log.flush()
    log.advance_high_watermark(log.log_end_offset)
    log.checkpointed_offset = log.flushed_offset


def clean(log: PartitionLog, first_dirty: int | None = None, now_ms: int = NOW) -> CompactionResult:
    """A round that has to happen."""
    result = compact(log, first_dirty, now_ms, only_if_due=False)
    assert result is not None
    return result


def batches_in(log: PartitionLog, max_bytes: int = 500) -> list[tuple[BatchHeader, bytes]]:
    """Every batch, read as a reader would: by regions, from offset to offset, each checked."""
    found: list[tuple[BatchHeader, bytes]] = []
    offset = log.log_start_offset
    while (region := log.read(offset, max_bytes)) is not None:
        data = region.read()
        walk = scan(data)
        assert walk.problem is None, f"damaged bytes served at offset {offset}: {walk.problem}"
        assert walk.headers[0].last_offset >= offset, f"offset {offset} was asked for, {walk.headers[0]} served"
        for header in walk.headers:
            assert not found or header.base_offset > found[-1][0].last_offset, "offsets do not rise"
            found.append((header, data[header.position : header.end]))
            offset = header.next_offset
    assert offset == log.log_end_offset, f"a reader gets to {offset} and never to the end {log.log_end_offset}"
    return found


def records_in(log: PartitionLog) -> list[Record]:
    """Every data record, aborted ones too."""
    return [record for header, data in batches_in(log) if not header.is_control for record in decode_batch(data)]


def pairs_in(log: PartitionLog) -> list[Pair]:
    return [(record.key, record.value) for record in records_in(log)]


def view_of(log: PartitionLog) -> dict[bytes, bytes]:
    """What a reader that takes the newest of every key ends up with."""
    view: dict[bytes, bytes] = {}
    for record in records_in(log):
        if record.key is None:
            continue
        if record.value is None:
            view.pop(record.key, None)
        else:
            view[record.key] = record.value
    return view


def leftovers(log: PartitionLog) -> list[str]:
    return [name for name in log.files.list_folder(log.folder) if name.endswith((".cleaned", ".swap", ".deleted"))]


def committed_in(log: PartitionLog) -> list[Record]:
    """What a reader of committed records gets, which skips what the log tells it was aborted."""
    stable = log.last_stable_offset
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < stable and (region := log.read(offset, 500, upper_offset=stable)) is not None:
        data = region.read()
        headers = scan(data).headers
        upper = headers[-1].next_offset
        waiting = sorted(log.aborted_between(offset, upper), key=lambda entry: entry.first_offset, reverse=True)
        aborted: set[int] = set()
        for header in headers:
            while waiting and waiting[-1].first_offset <= header.last_offset:
                aborted.add(waiting.pop().producer_id)
            if header.is_control:
                aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += [record for record in decode_batch(data, header.position) if record.offset >= offset]
        offset = upper
    return found


def without_snapshots(log: PartitionLog) -> PartitionLog:
    """The log after a stop that left nothing but the batches to know the producers from."""
    log.flush()
    for name in log.files.list_folder(log.folder):
        if name.endswith(".snapshot"):
            log.files.remove(f"{log.folder}/{name}")
    return reopened(log, clean=False)
