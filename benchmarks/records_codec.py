"""The record codec beside aiokafka's compiled one, in one process: records a second, encoded and decoded.

Rule: both sides do the same work on the same bytes, checksums included, and their rounds alternate, so that a
machine that slows down slows both; the best round of each counts. Penstock's plain-Python twin runs too, for
those who have no compiler.

    encode   records into the bytes of a batch that a broker takes
    decode   fetched bytes into objects; key, value, offset and timestamp of each are read
    arrow    fetched bytes into Arrow record batches of 20,000 rows, beside aiokafka's decode into objects

and what a client does with each record: send, columns, consume (`benchmarks.records_clients`).

    python -m benchmarks.records_codec
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import ModuleType
from typing import Any, Final

import aiokafka
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from benchmarks.records_clients import client_contenders
from penstock.records import HEADER_SIZE, KERNEL, RecordTuple, encode_batch, kernel, twin
from penstock.records.columns import append_batches, to_arrow

ROWS_PER_RECORD_BATCH: Final = 20_000
FETCH_BYTES: Final = 2 * 1024 * 1024  # what a consumer asks for: 1 to 8 MiB
ROUNDS: Final = 9
ROUND_SECONDS: Final = 0.03
TWIN_ROUNDS: Final = 2
FIRST_MS: Final = 1_700_000_000_000
GOALS: Final = {"encode": 1.5, "decode": 1.5, "arrow": 4.0}
LEAST: Final = {
    ("100 x 100 B", "send"): 2.5e6,
    ("100 x 100 B, key 10 B", "send"): 2.0e6,
    ("100 x 100 B", "consume"): 4.0e6,
}
"""Goals of a client's work, which are rates: records a second, whatever the peer does."""

Work = Callable[[], int]
"""Does its work once; how many records that were."""


@dataclass(frozen=True)
class Shape:
    """What the records of a case look like."""

    name: str
    value_bytes: int
    key_bytes: int = 0
    headers: int = 0
    records_per_batch: int = 100

    def records(self) -> list[RecordTuple]:
        """One batch's worth of records, each with bytes of its own."""
        return [
            (
                FIRST_MS + index,
                bytes([index & 0x7F]) * self.key_bytes if self.key_bytes else None,
                bytes([index & 0x7F]) * self.value_bytes,
                [(f"header-{number}", b"content-%02d" % index) for number in range(self.headers)],
            )
            for index in range(self.records_per_batch)
        ]

    def fetches(self) -> list[bytes]:
        """One fetched buffer of many batches, as often as it takes to fill a record batch.

        The same one again, since what was just received is still in the processor's cache.
        """
        records, fetched, rows = self.records(), bytearray(), 0
        while len(fetched) < FETCH_BYTES and rows < ROWS_PER_RECORD_BATCH:
            fetched += encode_batch(records, base_offset=rows, leader_epoch=3)
            rows += len(records)
        return [bytes(fetched)] * -(-ROWS_PER_RECORD_BATCH // rows)


SHAPES: Final = (
    Shape("100 x 100 B", 100),
    Shape("100 x 100 B, key 10 B", 100, key_bytes=10),
    Shape("100 x 100 B, key 16 B", 100, key_bytes=16),
    Shape("100 x 100 B, key, 2 headers", 100, key_bytes=16, headers=2),
    Shape("100 x 10 B", 10),
    Shape("100 x 1 KB", 1024),
)


def aiokafka_encode(records: Sequence[RecordTuple]) -> int:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
    for offset, (timestamp, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp, key, value, headers)
    builder.build()
    return len(records)


def aiokafka_decode(fetches: Sequence[bytes]) -> int:
    count = 0
    for fetched in fetches:
        batches = MemoryRecords(fetched)
        while batches.has_next():
            batch: Any = batches.next_batch()
            if not batch.validate_crc():
                raise ValueError("aiokafka finds a checksum that does not match")
            for record in batch:
                _ = record.key, record.value, record.offset, record.timestamp
                count += 1
    return count


def penstock_encode(loops: ModuleType, records: Sequence[RecordTuple]) -> int:
    batch, base_ms, max_ms = loops.encode_records(records)
    loops.write_header(batch, 0, -1, 0, len(records) - 1, base_ms, max_ms, -1, -1, -1, len(records))
    return len(records)


def penstock_decode(loops: ModuleType, fetches: Sequence[bytes]) -> int:
    count = 0
    for fetched in fetches:
        found = loops.scan(fetched)
        if found.problem is not None:
            raise ValueError(found.problem)
        for header in found.headers:
            start, end = header.position + HEADER_SIZE, header.end
            for record in loops.decode_records(
                fetched, start, end, header.record_count, header.base_offset, header.base_timestamp
            ):
                _ = record.key, record.value, record.offset, record.timestamp
                count += 1
    return count


def penstock_arrow(builder: Any, fetches: Sequence[bytes]) -> int:
    for fetched in fetches:
        append_batches(builder, fetched)
    rows: int = to_arrow(builder.finish()).num_rows
    return rows


def contenders(shape: Shape) -> dict[str, dict[str, Work]]:
    """For each kind of work: who does it, and how."""
    records, fetches, with_headers = shape.records(), shape.fetches(), shape.headers > 0
    fast, slow = kernel.ColumnBuilder(headers=with_headers), twin.ColumnBuilder(headers=with_headers)
    works: dict[str, dict[str, Work]] = {
        "encode": {
            "penstock": lambda: penstock_encode(kernel, records),
            "aiokafka": lambda: aiokafka_encode(records),
            "twin": lambda: penstock_encode(twin, records),
        },
        "decode": {
            "penstock": lambda: penstock_decode(kernel, fetches),
            "aiokafka": lambda: aiokafka_decode(fetches),
            "twin": lambda: penstock_decode(twin, fetches),
        },
        "arrow": {
            "penstock": lambda: penstock_arrow(fast, fetches),
            "aiokafka": lambda: aiokafka_decode(fetches),
            "twin": lambda: penstock_arrow(slow, fetches),
        },
    }
    return (
        works
        if with_headers
        else works | client_contenders(kernel, twin, records, fetches, lambda: aiokafka_encode(records))
    )


def rate(work: Work) -> float:
    """Records a second over one round."""
    count = 0
    start = perf_counter()
    while True:
        count += work()
        elapsed = perf_counter() - start
        if elapsed >= ROUND_SECONDS:
            return count / elapsed


def race(works: dict[str, Work]) -> dict[str, float]:
    """The best round of each, rounds alternating; the twin, being far slower, has fewer."""
    best = dict.fromkeys(works, 0.0)
    for number in range(ROUNDS):
        for name, work in works.items():
            if name != "twin" or number < TWIN_ROUNDS:
                best[name] = max(best[name], rate(work))
    return best


def run() -> list[dict[str, Any]]:
    """One row for each shape and kind of work: records a second of all three, and our ratio to aiokafka's."""
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        for work, works in contenders(shape).items():
            best = race(works)
            ratio = best["penstock"] / best["aiokafka"]
            goals = {"goal": GOALS.get(work), "least": LEAST.get((shape.name, work))}
            rows.append({"records": shape.name, "work": work, **best, "ratio": ratio, **goals})
    return rows


def main() -> None:
    if KERNEL == "python":
        print("The kernel is not compiled here: the figures of penstock are its plain-Python twin's.\n")
    print(f"Python {platform.python_version()}, aiokafka {aiokafka.__version__}, million records a second,")
    print(f"best of {ROUNDS} alternating rounds, checksums included. Arrow is held against aiokafka's decode.\n")
    print(f"{'batches of':28} {'work':8} {'penstock':>9} {'aiokafka':>9} {'ratio':>7} {'goal':>7} {'twin':>7}")
    for row in run():
        goal, least = row["goal"], row["least"]
        wanted = f"{goal:.1f}x" if goal is not None else f"{least / 1e6:.1f} M" if least is not None else "-"
        below = row["ratio"] < (goal or 0.0) or row["penstock"] < (least or 0.0)
        print(
            f"{row['records']:28} {row['work']:8} {row['penstock'] / 1e6:9.2f} {row['aiokafka'] / 1e6:9.2f}"
            f" {row['ratio']:6.2f}x {wanted:>7} {row['twin'] / 1e6:7.3f}{'  below the goal' if below else ''}"
        )


if __name__ == "__main__":
    main()
