"""Does it cost more because more is stored? Lookup and open with 1, 100 and 10,000 segments.

Every segment is a real one that a verifier would pass, with small batches at both ends and batches of 8 MiB in
between, whose one record is zeros. Zeros are left as holes in the file, so that 10,000 segments are 560 GB to the log
and little to the disk. What is measured is what a broker does: open after a clean stop, find a batch by offset, find an
offset by time; the small batches are looked for, so that no large one is read.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY
from penstock.log.log_loader import open_log
from penstock.log.partition_log import offset_for_time
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from penstock.log.settings import LogSettings
from penstock.records import encode_batch, scan
from penstock.runtime.files import PosixFiles

SEGMENT_COUNTS = (1, 100, 10_000)
SMALL_BATCHES, SMALL_RECORDS = 4, 50
LARGE_BATCHES, LARGE_BYTES = 7, 8 * 1024 * 1024
OFFSETS_PER_SEGMENT = 2 * SMALL_BATCHES * SMALL_RECORDS + LARGE_BATCHES
LOOKUPS, ROUNDS = 400, 9
NOW_MS = 1_700_000_000_000
SETTINGS = LogSettings(segment_ms=2**62, max_message_bytes=2**31 - 1)


def small_batch(offset: int) -> bytes:
    rows = [(NOW_MS + offset + i, b"%d" % i, b"x" * 20, ()) for i in range(SMALL_RECORDS)]
    return bytes(encode_batch(rows, base_offset=offset, leader_epoch=0))


def write_segment(folder: str, base: int, zeros: bytes) -> None:
    """A sealed segment with its indexes, holes where the zeros are."""
    large = encode_batch([(NOW_MS + base, None, zeros, ())], leader_epoch=0)
    offset, position, index = base, 0, []
    log = os.open(f"{folder}/{segment_name(base)}{LOG_SUFFIX}", os.O_CREAT | os.O_WRONLY)
    for kind in ["small"] * SMALL_BATCHES + ["large"] * LARGE_BATCHES + ["small"] * SMALL_BATCHES:
        if position:
            index.append(position)
        if kind == "small":
            data = small_batch(offset)
            os.pwrite(log, data, position)
            offset, position = offset + SMALL_RECORDS, position + len(data)
        else:
            large[0:8] = offset.to_bytes(8, "big")
            os.pwrite(log, large[:100], position)
            offset, position = offset + 1, position + len(large)
    os.ftruncate(log, position)
    os.close(log)
    write_indexes(folder, base, index)


def write_indexes(folder: str, base: int, positions: list[int]) -> None:
    stem = f"{folder}/{segment_name(base)}"
    offset = base + SMALL_RECORDS
    entries = []
    for number, position in enumerate(positions, start=1):
        records = 1 if SMALL_BATCHES <= number < SMALL_BATCHES + LARGE_BATCHES else SMALL_RECORDS
        entries.append(OFFSET_ENTRY.pack(offset + records - 1 - base, position))
        offset += records
    with open(stem + INDEX_SUFFIX, "wb") as file:
        file.write(b"".join(entries))
    early = SMALL_BATCHES * SMALL_RECORDS - 1
    last = OFFSETS_PER_SEGMENT - 1
    with open(stem + TIME_INDEX_SUFFIX, "wb") as file:
        file.write(TIME_ENTRY.pack(NOW_MS + base + early, early) + TIME_ENTRY.pack(NOW_MS + base + last, last))


def build(folder: str, segments: int) -> int:
    """A log of that many segments, stopped cleanly; its bytes."""
    os.makedirs(folder)
    zeros = bytes(LARGE_BYTES)
    for number in range(segments):
        write_segment(folder, number * OFFSETS_PER_SEGMENT, zeros)
    log = open_log(PosixFiles(), folder, SETTINGS, clean=True, now_ms=NOW_MS).log
    size = log.size
    region = log.read(0, 2**30)
    if region is None or scan(region.read()).problem is not None:
        raise AssertionError("the segment that was made is not a sound one")
    log.close()
    return size


class Measured(NamedTuple):
    """Of a log of one size."""

    gigabytes: Figure
    open_ms: Figure
    newest_us: Figure
    anywhere_us: Figure
    by_time_us: Figure


WORKS = {
    "gigabytes": ("size of the log", "GB", None),
    "open_ms": ("open", "ms", Better.LOWER),
    "newest_us": ("read by offset, newest segment", "µs", Better.LOWER),
    "anywhere_us": ("read by offset, anywhere", "µs", Better.LOWER),
    "by_time_us": ("find an offset by time, anywhere", "µs", Better.LOWER),
}


def timed(work: Callable[[int], object], arguments: Sequence[int]) -> Figure:
    """The mean time of a call."""
    started = perf_counter()
    for argument in arguments:
        work(argument)
    return Figure((perf_counter() - started) / len(arguments) * 1e6)


def measure(segments: int) -> Measured:
    files = PosixFiles()
    with tempfile.TemporaryDirectory() as root:
        folder = f"{root}/topic-0"
        size = build(folder, segments)
        opens = []
        for _ in range(ROUNDS):
            started = perf_counter()
            log = open_log(files, folder, SETTINGS, clean=True, now_ms=NOW_MS).log
            opens.append((perf_counter() - started) * 1000)
            log.release()
        log = open_log(files, folder, SETTINGS, clean=True, now_ms=NOW_MS).log
        chosen = random.Random(7)
        # A segment's first batch would be found without a search: take those at its end.
        picks = [
            (chosen.randrange(segments) + 1) * OFFSETS_PER_SEGMENT - 1 - chosen.randrange(SMALL_RECORDS)
            for _ in range(LOOKUPS)
        ]
        newest = [log.log_end_offset - 60] * LOOKUPS
        for offset in picks:  # once, so that every round finds its bytes verified and in memory
            log.read(offset, 4096)
            offset_for_time(log, NOW_MS + offset)
        measured = Measured(
            Figure(size / 1e9),
            Figure(min(opens), tuple(opens)),
            timed(lambda offset: log.read(offset, 4096), newest),
            timed(lambda offset: log.read(offset, 4096), picks),
            timed(lambda offset: offset_for_time(log, NOW_MS + offset), picks),
        )
        log.release()
        return measured


def run() -> list[Row]:
    measured = {
        f"{segments:,} segment{'' if segments == 1 else 's'}": measure(segments)._asdict()
        for segments in SEGMENT_COUNTS
    }
    largest = list(measured)[-1]
    return [
        Row(work, unit, better, {size: each[field] for size, each in measured.items()}, largest)
        for field, (work, unit, better) in WORKS.items()
    ]


def main(arguments: Sequence[str] = ()) -> None:
    recording = results.begin_plain("log_lookup", "Opening a log and finding records in it, by its size.", arguments)
    notes = ["after a clean stop; the best of 9 rounds of opening, the mean of 400 lookups"]
    recording.keep(run(), notes=notes, settings={"lookups": LOOKUPS, "rounds": ROUNDS})


if __name__ == "__main__":
    main(sys.argv[1:])
