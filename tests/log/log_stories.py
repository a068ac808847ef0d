"""Shared by the tests of a partition's log: batches to append, logs to append them to, and a reader's view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.log.log_loader import Opened, open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.records import Codec, decode_batch, encode_batch, scan
from penstock.records.batch import EndMarker, encode_marker
from penstock.runtime.files import Files
from penstock.testing.simulated_files import SimulatedFiles

FOLDER = "/data/t-0"
NOW_MS = 1_700_000_000_000
# Two batches of two records fit a segment, a third does not; each batch but the first of a segment is indexed.
TINY = LogSettings(segment_bytes=700, index_interval_bytes=100)
# One segment for all that a story writes, with an index entry a few batches.
ROOMY = LogSettings(index_interval_bytes=1000)


def batch_of(
    number: int = 0,
    *,
    records: int = 2,
    size: int = 100,
    stamps: Sequence[int] | None = None,
    codec: int = Codec.NONE,
    producer: int = -1,
    sequence: int | None = None,
    producer_epoch: int = 0,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Batch number so-and-so: its records, keys and times tell it from others."""
    times = [NOW_MS + number] * records if stamps is None else list(stamps)
    rows = [
        (time, b"%03d-%d" % (number, i), bytes((number + i) % 251 for _ in range(size)), ())
        for i, time in enumerate(times)
    ]
    if producer < 0:
        producer_epoch, sequence = -1, -1
    return encode_batch(
        rows,
        codec=codec,
        producer_id=producer,
        producer_epoch=producer_epoch,
        base_sequence=number * records if sequence is None else sequence,
        transactional=transactional,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def marker_of(producer: int, *, commit: bool, epoch: int = 0, coordinator: int = 0) -> bytearray:
    return encode_marker(
        EndMarker(commit, coordinator), timestamp_ms=NOW_MS, producer_id=producer, producer_epoch=epoch
    )


class Served(NamedTuple):
    """A batch as a reader gets it."""

    base_offset: int
    keys: tuple[bytes | None, ...]


def served(data: bytes) -> list[Served]:
    """The batches of what was read: whole, undamaged."""
    found = scan(data)
    assert found.problem is None, found.problem
    return [
        Served(header.base_offset, tuple(record.key for record in decode_batch(data, header.position)))
        for header in found.headers
    ]


def contents(log: PartitionLog, *, max_bytes: int = 500) -> list[Served]:
    """Everything in the log, read as a consumer reads."""
    found: list[Served] = []
    offset = log.log_start_offset
    while (region := log.read(offset, max_bytes)) is not None:
        data = region.read()
        found += served(data)
        offset = scan(data).headers[-1].next_offset
    return found


def base_offsets(log: PartitionLog) -> list[int]:
    return [batch.base_offset for batch in contents(log)]


def bases(log: PartitionLog) -> list[int]:
    """The segments' first offsets, the active one's last."""
    return [*log.table.bases, log.active.base_offset]


def open_new(files: Files, settings: LogSettings = TINY, *, folder: str = FOLDER, now_ms: int = NOW_MS) -> PartitionLog:
    return open_log(files, folder, settings, clean=False, now_ms=now_ms).log


def reopen(
    files: Files,
    settings: LogSettings = TINY,
    *,
    clean: bool,
    recovery_point: int | None = 0,
    log_start_offset: int = 0,
    folder: str = FOLDER,
) -> Opened:
    return open_log(
        files,
        folder,
        settings,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        now_ms=NOW_MS,
    )


def put(log: PartitionLog, *numbers: int, leader_epoch: int = 0, size: int = 100) -> None:
    """Append these batches, two records each."""
    for number in numbers:
        log.append(batch_of(number, size=size), leader_epoch=leader_epoch, now_ms=NOW_MS)


def path_of(base_offset: int, suffix: str = ".log", *, folder: str = FOLDER) -> str:
    return f"{folder}/{base_offset:020d}{suffix}"


def content_of(files: Files, path: str) -> bytes:
    file = files.open(path, writable=False)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def overwrite(files: Files, path: str, data: bytes) -> None:
    """Replace the content of a file, as another program would."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.write_at(0, data)
    finally:
        file.close()


def stopped(settings: LogSettings = TINY, *, batches: int = 7, leader_epoch: int = 0) -> SimulatedFiles:
    """A folder with a log of this many batches that was closed cleanly."""
    files = SimulatedFiles()
    log = open_new(files, settings)
    put(log, *range(batches), leader_epoch=leader_epoch)
    log.close()
    return files


def seven(files: SimulatedFiles, settings: LogSettings = TINY) -> PartitionLog:
    """Segments 0, 4, 8, 12 (active) of two batches each, but the last, which has one."""
    log = open_new(files, settings)
    put(log, *range(7))
    return log


def files_of(files: SimulatedFiles, base_offset: int) -> list[str]:
    return sorted(name for name in files.list_folder(FOLDER) if name.startswith(f"{base_offset:020d}"))
