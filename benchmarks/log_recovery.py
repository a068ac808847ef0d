"""Opening a log after an unclean stop, beside reading the same bytes and computing one checksum over them.

The log is written as a leader writes it, over several segments, and left without a close: no manifest, no last
snapshot, no clean marker. It is then opened again and again, each time as if nothing of it were known to be durable
(every batch is checked), and as if everything up to the last roll were (only the last segment is walked). The files
are in the page cache throughout, so this is the processor's share: a disk that is slower than it is the limit. The
floor is what no recovery that checks every byte can beat. Rounds alternate with it, and the median round counts.

    python -m benchmarks.log_recovery
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Final

from crc32c import crc32c

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.log.log_loader import open_log
from penstock.log.settings import LogSettings
from penstock.records import encode_batch
from penstock.runtime.files import PosixFiles

KIB: Final = 1024
MIB: Final = 1024 * 1024
NOW_MS: Final = 1_700_000_000_000
ROUNDS: Final = 5
PIECE: Final = MIB
GOAL_GB_S: Final = {"1 MiB batches": 3.0}
OURS, FLOOR = "penstock", "read and crc32c"

CASES: Final = (
    ("1 MiB batches", MIB, 2048 * MIB, 600 * MIB),
    ("16 KiB batches", 16 * KIB, 2048 * MIB, 600 * MIB),
    ("200 B batches", 200, 256 * MIB, 75 * MIB),
)


def batch_of(size: int) -> bytes:
    """About `size` bytes: records of 1 KB, or a single small one."""
    if size < KIB:
        return bytes(encode_batch([(NOW_MS, None, os.urandom(size - 72), ())]))
    value = os.urandom(1000)
    return bytes(encode_batch([(NOW_MS + i, None, value, ()) for i in range(size // 1012)]))


def write_log(folder: str, size: int, total: int, settings: LogSettings) -> tuple[int, int]:
    """Writes a log of `total` bytes that is not closed. Returns the bytes written and the start of the last segment."""
    log = open_log(PosixFiles(), folder, settings, clean=False, now_ms=NOW_MS).log
    batch = batch_of(size)
    for _ in range(total // len(batch)):
        log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    written, last_roll = log.size, log.active.base_offset
    log.flush()  # only the recovery point knows how much is durable
    log.release()
    return written, last_roll


def recover(folder: str, settings: LogSettings, recovery_point: int) -> tuple[float, int]:
    """(seconds, bytes walked) of one opening."""
    started = perf_counter()
    opened = open_log(PosixFiles(), folder, settings, clean=False, recovery_point=recovery_point, now_ms=NOW_MS)
    seconds = perf_counter() - started
    if opened.damages or opened.removed_segments:
        raise RuntimeError(f"an undamaged log was found damaged: {opened.damages}")
    opened.log.release()
    return seconds, opened.walked_bytes


def floor(folder: str) -> float:
    """Seconds to read all of the log and to compute one checksum over it."""
    started = perf_counter()
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".log")):
        file = os.open(f"{folder}/{name}", os.O_RDONLY)
        try:
            position, checksum = 0, 0
            while data := os.pread(file, PIECE, position):
                checksum = crc32c(data, checksum)
                position += len(data)
        finally:
            os.close(file)
    return perf_counter() - started


def measure(name: str, size: int, total: int, segment_bytes: int) -> list[Row]:
    settings = LogSettings(segment_bytes=segment_bytes, max_message_bytes=2 * MIB)
    floor_s: list[float] = []
    all_s: list[float] = []
    last_s: list[float] = []
    walked_last = 0
    with tempfile.TemporaryDirectory() as parent:
        folder = f"{parent}/topic-0"
        written, last_roll = write_log(folder, size, total, settings)
        for _ in range(ROUNDS):
            floor_s.append(floor(folder))
            seconds, walked_last = recover(folder, settings, last_roll)
            last_s.append(seconds)
        for _ in range(ROUNDS):  # after the others: it removes the snapshots, which it does not believe
            floor_s.append(floor(folder))
            seconds, walked = recover(folder, settings, 0)
            all_s.append(seconds)
            if walked != written:
                raise RuntimeError(f"{walked} bytes were walked of {written}")
    batches = written / len(batch_of(size))
    rates = {
        OURS: Figure.of([written / took / 1e9 for took in all_s]),
        FLOOR: Figure.of([written / took / 1e9 for took in floor_s]),
    }
    alone, goal = {OURS: rates[OURS]}, GOAL_GB_S.get(name)
    table = f"{name}, {written // MIB:,} MiB"
    return [
        Row("every batch checked", "GB/s", Better.HIGHER, rates, OURS, FLOOR, table=table),
        Row("every batch checked, by itself", "GB/s", Better.HIGHER, alone, OURS, goal=goal, table=table),
        Row("every batch checked", "batches/s", Better.HIGHER, _each(batches / took for took in all_s), OURS,
            table=table),
        Row("since the last roll: walked", "MiB", None, {OURS: Figure(walked_last / MIB)}, OURS, table=table),
        Row("since the last roll: time", "ms", Better.LOWER, _each(took * 1000 for took in last_s), OURS, table=table),
    ]  # fmt: skip


def _each(rounds: Iterable[float]) -> dict[str, Figure]:
    return {OURS: Figure.of(list(rounds))}


def run() -> list[Row]:
    return [row for case in CASES for row in measure(*case)]


def main(arguments: Sequence[str] = ()) -> None:
    recording = results.begin_plain("log_recovery", "Opening a log after an unclean stop.", arguments)
    recording.keep(run(), notes=["the page cache is warm"], settings={"rounds": ROUNDS})


if __name__ == "__main__":
    main(sys.argv[1:])
