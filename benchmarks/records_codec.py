"""The record codec beside aiokafka's compiled one, in one process: records a second, encoded and decoded.

Rule: both sides do the same work on the same bytes, checksums included, and their rounds alternate, so that a
machine that slows down slows both; the best round of each counts. Penstock's plain-Python twin runs too, for
those who have no compiler.

    encode   batches of (timestamp, key, value) into bytes that a broker takes
    decode   a fetched buffer into objects; key, value, offset and timestamp of each are touched
    arrow    a fetched buffer into Arrow record batches of 20,000 rows, beside aiokafka's decode to objects
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import ModuleType
from typing import Any, Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from penstock.records import KERNEL, RecordTuple, encode_batch, kernel, twin
from penstock.records.columns import append_batches, to_arrow

ROWS_PER_ARROW_BATCH: Final = 20_000
FETCH_BYTES: Final = 2 * 1024 * 1024
ROUNDS: Final = 9
ROUND_SECONDS: Final = 0.02
TWIN_ROUNDS: Final = 2
NOW_MS: Final = 1_700_000_000_000
GOALS: Final = {"encode": 1.5, "decode": 1.5, "arrow": 4.0}


@dataclass(frozen=True)
class Shape:
    """What the records of a case look like."""

    name: str
    value_bytes: int
    key_bytes: int = 0
    records_per_batch: int = 100

    def records(self) -> list[RecordTuple]:
        """One batch's worth; no two values are the same object, as in life."""
        return [
            (
                NOW_MS + index,
                bytes([index & 0x7F]) * self.key_bytes if self.key_bytes else None,
                bytes([index & 0x7F]) * self.value_bytes,
                [],
            )
            for index in range(self.records_per_batch)
        ]

    def fetch(self) -> tuple[bytes, int]:
        """(a fetched buffer of many batches, how many records it holds)."""
        records = self.records()
        batches: list[bytearray] = []
        size = 0
        while size < FETCH_BYTES:
            batches.append(encode_batch(records, base_offset=len(batches) * len(records), leader_epoch=3))
            size += len(batches[-1])
        return b"".join(batches), len(batches) * len(records)


SHAPES: Final = (
    Shape("100 x 100 B", 100),
    Shape("100 x 100 B, key 16 B", 100, key_bytes=16),
    Shape("100 x 10 B", 10),
    Shape("100 x 1 KB", 1024),
)

Work = Callable[[], object]


def aiokafka_encode(records: Sequence[RecordTuple]) -> bytes | bytearray:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
    offset = 0
    for timestamp, key, value, headers in records:
        builder.append(offset, timestamp, key, value, headers)
        offset += 1
    return builder.build()


def aiokafka_decode(fetched: bytes) -> int:
    count = 0
    records = MemoryRecords(fetched)
    while records.has_next():
        batch: Any = records.next_batch()
        if not batch.validate_crc():
            raise ValueError("aiokafka finds the checksum wrong")
        for record in batch:
            _ = record.key, record.value, record.offset, record.timestamp
            count += 1
    return count


def penstock_encode(loops: ModuleType, records: Sequence[RecordTuple]) -> bytearray:
    batch, base_timestamp, max_timestamp = loops.encode_records(records)
    last_delta = len(records) - 1
    loops.write_header(batch, 0, -1, 0, last_delta, base_timestamp, max_timestamp, -1, -1, -1, len(records))
    return batch  # type: ignore[no-any-return]


def penstock_decode(loops: ModuleType, fetched: bytes) -> int:
    count = 0
    for header in loops.scan(fetched).headers:
        for record in loops.decode_records(
            fetched, header.position + 61, header.end, header.record_count, header.base_offset, header.base_timestamp
        ):
            _ = record.key, record.value, record.offset, record.timestamp
            count += 1
    return count


def penstock_arrow(builder: Any, fetched: bytes, records: int) -> int:
    """Several fetches into record batches of 20,000 rows, as a reader of a topic makes them."""
    rows = 0
    while rows < ROWS_PER_ARROW_BATCH:
        append_batches(builder, fetched)
        rows += records
    to_arrow(builder.finish())
    return rows


def main() -> None:
    import sys

    def timeit(f, n):
        best = 9e9
        for _ in range(ROUNDS):
            t = perf_counter()
            k = 0
            while True:
                f()
                k += 1
                d = perf_counter() - t
                if d > 0.05:
                    break
            best = min(best, d / k / n)
        return 1 / best / 1e6

    for shape in SHAPES:
        recs = shape.records()
        fetched, n = shape.fetch()
        e1 = timeit(lambda: penstock_encode(kernel, recs), 100)
        e2 = timeit(lambda: aiokafka_encode(recs), 100)
        e3 = timeit(lambda: encode_batch(recs), 100)
        d1 = timeit(lambda: penstock_decode(kernel, fetched), n)
        d2 = timeit(lambda: aiokafka_decode(fetched), n)
        b = kernel.ColumnBuilder()
        rows = penstock_arrow(b, fetched, n)
        a = timeit(lambda: penstock_arrow(b, fetched, n), rows)
        print(
            f"{shape.name:24} enc {e1:.2f} (batch {e3:.2f}) vs {e2:.2f} = {e1 / e2:.2f}   dec {d1:.2f} vs {d2:.2f} = {d1 / d2:.2f}  arrow {a:.1f} = {a / d2:.2f}"
        )


if __name__ == "__main__":
    main()
