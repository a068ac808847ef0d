"""Appending to a partition's log beside a bare os.write of the same bytes to a file on the same disk.

An append does all that a leader's does: header scan, checksum, offsets and epoch patched, one write, indexes, producer
state. Nothing is synced on either side; the files go to the folder that TMPDIR names. Rounds alternate, each on new
files, and the median round counts: page-cache writes vary too much for the best one to be fair.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from time import perf_counter

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.log.log_loader import open_log
from penstock.log.settings import LogSettings
from penstock.records import encode_batch
from penstock.runtime.files import PosixFiles

KIB, MIB = 1024, 1024 * 1024
NOW_MS = 1_700_000_000_000
ROUNDS = 9
GOALS = {"1 MiB batches": 0.6}
OURS, BARE = "penstock", "os.write"


def one_record(size: int) -> bytearray:
    """A batch of one record, `size` bytes in all."""
    spare = size - len(encode_batch([(NOW_MS, None, b"", ())]))
    for trim in range(12):
        batch = encode_batch([(NOW_MS, None, os.urandom(spare - trim), ())])
        if len(batch) == size:
            return batch
    raise ValueError(f"no single-record batch has {size} bytes")


def many_records(size: int) -> bytearray:
    value = os.urandom(1000)
    return encode_batch([(NOW_MS + i, None, value, ()) for i in range(max(1, size // 1012))])


CASES: list[tuple[str, Callable[[], bytearray], int]] = [
    ("200 B batches of one record", lambda: one_record(200), 24 * MIB),
    ("16 KiB batches", lambda: many_records(16 * KIB), 256 * MIB),
    ("1 MiB batches", lambda: many_records(MIB), 512 * MIB),
]


def bare(batch: bytearray, count: int, folder: str) -> float:
    path = f"{folder}/bare"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    write = os.write
    try:
        started = perf_counter()
        for _ in range(count):
            write(descriptor, batch)
        return perf_counter() - started
    finally:
        os.close(descriptor)
        os.unlink(path)


def appended(batch: bytearray, count: int, folder: str) -> float:
    files = PosixFiles()
    path = f"{folder}/topic-0"
    settings = LogSettings(max_message_bytes=4 * MIB)
    log = open_log(files, path, settings, clean=False, now_ms=NOW_MS).log
    append = log.append
    try:
        started = perf_counter()
        for _ in range(count):
            append(batch, leader_epoch=0, now_ms=NOW_MS)
        return perf_counter() - started
    finally:
        log.release()
        files.remove_folder(path)


def run() -> list[Row]:
    rows = []
    for name, make, total in CASES:
        batch = make()
        count = total // len(batch)
        times: dict[str, list[float]] = {OURS: [], BARE: []}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(ROUNDS):
                times[BARE].append(bare(batch, count, folder))
                times[OURS].append(appended(batch, count, folder))
        megabytes = len(batch) * count / 1e6
        rates = {who: Figure.of([megabytes / took for took in each]) for who, each in times.items()}
        each_us = {who: Figure.of([took / count * 1e6 for took in each]) for who, each in times.items()}
        rows.append(Row(name, "MB/s", Better.HIGHER, rates, OURS, BARE, GOALS.get(name)))
        rows.append(Row(f"{name}, time of each", "µs", Better.LOWER, each_us, OURS, BARE))
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    recording = results.begin_plain("log_append", "Appends to a log beside a bare os.write.", arguments)
    recording.keep(run(), settings={"rounds": ROUNDS})


if __name__ == "__main__":
    main(sys.argv[1:])
