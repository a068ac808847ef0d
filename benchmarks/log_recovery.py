"""Opening a log after an unclean stop, beside reading the same bytes and computing one checksum over them.

Rule: the log is written as a leader writes it, over several segments, and left without a close: no manifest, no last
snapshot, no clean marker. It is then opened again and again, each time as if nothing of it were known to be durable
(every batch is checked), and as if everything up to the last roll were (only the last segment is walked). The files
are in the page cache throughout, so this is the processor's share: a disk that is slower than it is the limit. The
floor is what no recovery that checks every byte can beat. Rounds alternate with it, and the median round counts.

    python -m benchmarks.log_recovery
"""

from __future__ import annotations

import os
import statistics
import tempfile
from time import perf_counter
from typing import Any, Final

from crc32c import crc32c

from penstock.log.opening import open_log
from penstock.log.settings import LogSettings
from penstock.records import encode_batch
from penstock.runtime.posix_files import PosixFiles

KIB: Final = 1024
MIB: Final = 1024 * 1024
NOW_MS: Final = 1_700_000_000_000
ROUNDS: Final = 5
PIECE: Final = MIB
GOAL_GB_S: Final = 3.0

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
    """A log of `total` bytes that nobody closed; the bytes written, and where its last segment begins."""
    log = open_log(PosixFiles(), folder, settings, clean=False, now_ms=NOW_MS).log
    batch = batch_of(size)
    for _ in range(total // len(batch)):
        log.append(batch, leader_epoch=0, now_ms=NOW_MS)
    written, last_roll = log.size, log.active.base_offset
    log.flush()  # that much of it was durable is known to nobody but the recovery point
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


def measure(name: str, size: int, total: int, segment_bytes: int) -> dict[str, Any]:
    settings = LogSettings(segment_bytes=segment_bytes, max_message_bytes=2 * MIB)
    times: dict[str, list[float]] = {"floor": [], "all": [], "last": []}
    walked_last = 0
    with tempfile.TemporaryDirectory() as parent:
        folder = f"{parent}/topic-0"
        written, last_roll = write_log(folder, size, total, settings)
        for _ in range(ROUNDS):
            times["floor"].append(floor(folder))
            seconds, walked_last = recover(folder, settings, last_roll)
            times["last"].append(seconds)
        for _ in range(ROUNDS):  # after the others: it removes the snapshots, which it does not believe
            times["floor"].append(floor(folder))
            seconds, walked = recover(folder, settings, 0)
            times["all"].append(seconds)
            if walked != written:
                raise RuntimeError(f"{walked} bytes were walked of {written}")
    floor_s, all_s, last_s = (statistics.median(times[key]) for key in ("floor", "all", "last"))
    return {
        "case": name,
        "MiB": written // MIB,
        "recovery GB/s": round(written / all_s / 1e9, 2),
        "read and crc32c GB/s": round(written / floor_s / 1e9, 2),
        "ratio": round(floor_s / all_s, 2),
        "batches/s": round(written / len(batch_of(size)) / all_s),
        "since last roll: MiB": walked_last // MIB,
        "since last roll: ms": round(last_s * 1000, 1),
    }


def run() -> list[dict[str, Any]]:
    return [measure(*case) for case in CASES]


def main() -> None:
    from benchmarks.report import table

    table("Recovery after an unclean stop, page cache warm", run())
    print(f"goal: at least {GOAL_GB_S} GB/s with 1 MiB batches")


if __name__ == "__main__":
    main()
