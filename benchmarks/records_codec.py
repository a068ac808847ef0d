"""The record codec beside aiokafka's compiled one, in one process: records per second, encoded and decoded.

Both sides do the same work on the same bytes, checksums included. Rounds alternate and the best of each counts. The
plain-Python twin of the kernel runs too.

    encode   records into the bytes of a batch that a broker accepts
    decode   fetched bytes into objects; key, value, offset and timestamp of each are read
    arrow    fetched bytes into Arrow record batches of 20,000 rows, beside aiokafka's decode into objects
    send     a Python method that appends a record to an open batch of 256 KiB and returns a ticket; without a key into
             one partition, with keys into the 6 that they choose. aiokafka: its compiled builder, record by record
    columns  an Arrow batch of 20,000 rows into batches, beside aiokafka's encode from objects
    consume  fetched bytes into a consumer's records, every value read; aiokafka: its decode and its ConsumerRecord

    python -m benchmarks.records_codec
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import ModuleType
from typing import Any, Final

import aiokafka
import pyarrow
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import ConsumerRecord

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.records import HEADER_SIZE, KERNEL, RecordTuple, encode_batch, kernel, python_kernel
from penstock.records.arrow import append_batches, bytes_source, to_arrow

BATCH_BYTES: Final = 256 * 1024
PARTITIONS: Final = 6
ROWS: Final = 20_000
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
"""Goals of a client's work in records/s, whatever the peer does."""
OURS, PEER, TWIN = "penstock", "aiokafka", "twin"
NAMES: Final = {OURS: "penstock", PEER: "aiokafka, compiled", TWIN: "penstock, plain Python"}
TABLES: Final = {
    "encode": "Encode",
    "decode": "Decode to objects, all fields read",
    "arrow": "Decode to Arrow columns, beside aiokafka's decode to objects",
    "send": "A producer's send, record by record",
    "columns": "A producer's batches from Arrow columns, beside aiokafka's encode from objects",
    "consume": "A consumer's records, each value read",
}
"""Does its work once; how many records that were."""
Work = Callable[[], int]


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

# ---------------------------------------------------------------------------------------------- the benchmark


def main(arguments: Sequence[str] = ()) -> None:
    recording = results.begin_plain("records_codec", "The record codec beside aiokafka's.", arguments)
    if KERNEL == "python":
        recording.lacks("the kernel is not compiled, so penstock is its plain-Python twin")
    notes = [f"aiokafka {aiokafka.__version__}; the best of {ROUNDS} alternating rounds, checksums included"]
    recording.keep(run(), notes=notes, settings={"rounds": ROUNDS, "round_seconds": ROUND_SECONDS})


def run() -> list[Row]:
    """A table for each kind of work, a row for each shape, and the goals that are rates."""
    rows, least = [], []
    for shape in SHAPES:
        for work, works in contenders(shape).items():
            figures = race(works)
            table, unit = TABLES[work], "M records/s"
            rows.append(Row(shape.name, unit, Better.HIGHER, figures, NAMES[OURS], NAMES[PEER], GOALS.get(work), table))
            if (goal := LEAST.get((shape.name, work))) is not None:
                alone, what = {NAMES[OURS]: figures[NAMES[OURS]]}, f"{work}, {shape.name}"
                least.append(
                    Row(what, unit, Better.HIGHER, alone, NAMES[OURS], goal=goal / 1e6, table="Goals that are rates")
                )
    order = list(TABLES.values())
    return [*sorted(rows, key=lambda row: order.index(row.table)), *least]


def race(works: dict[str, Work]) -> dict[str, Figure]:
    """M records/s of each, rounds alternating, the best one counts; the twin, being far slower, has fewer."""
    rounds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(ROUNDS):
        for name, work in works.items():
            if name != TWIN or number < TWIN_ROUNDS:
                rounds[name].append(rate(work) / 1e6)
    return {NAMES[name]: Figure(max(each), tuple(each)) for name, each in rounds.items()}


def rate(work: Work) -> float:
    """Records per second in one round."""
    count = 0
    start = perf_counter()
    while True:
        count += work()
        elapsed = perf_counter() - start
        if elapsed >= ROUND_SECONDS:
            return count / elapsed


# ---------------------------------------------------------------------------------------------- batches


def contenders(shape: Shape) -> dict[str, dict[str, Work]]:
    """The contestants for each kind of work."""
    records, fetches, with_headers = shape.records(), shape.fetches(), shape.headers > 0
    fast, slow = kernel.ColumnBuilder(headers=with_headers), python_kernel.ColumnBuilder(headers=with_headers)
    works: dict[str, dict[str, Work]] = {
        "encode": {
            "penstock": lambda: penstock_encode(kernel, records),
            "aiokafka": lambda: aiokafka_encode(records),
            "twin": lambda: penstock_encode(python_kernel, records),
        },
        "decode": {
            "penstock": lambda: penstock_decode(kernel, fetches),
            "aiokafka": lambda: aiokafka_decode(fetches),
            "twin": lambda: penstock_decode(python_kernel, fetches),
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
        else works | client_contenders(kernel, python_kernel, records, fetches, lambda: aiokafka_encode(records))
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


# ---------------------------------------------------------------------------------------------- the work of clients


def client_contenders(
    kernel: ModuleType,
    twin: ModuleType,
    records: Sequence[RecordTuple],
    fetches: Sequence[bytes],
    aiokafka_encode: Work,
) -> dict[str, dict[str, Work]]:
    """The contestants for each kind of client work."""
    now_ms, batch = records[0][0], arrow_of(records)
    fast, slow, peer = Sender(kernel, now_ms), Sender(twin, now_ms), AiokafkaSender()
    return {
        "send": {
            "penstock": lambda: send_with(fast, records),
            "aiokafka": lambda: aiokafka_send(peer, records),
            "twin": lambda: send_with(slow, records),
        },
        "columns": {
            "penstock": lambda: columns_with(kernel, batch, now_ms),
            "aiokafka": aiokafka_encode,
            "twin": lambda: columns_with(twin, batch, now_ms),
        },
        "consume": {
            "penstock": lambda: consume_with(kernel, fetches),
            "aiokafka": lambda: aiokafka_consume(fetches),
            "twin": lambda: consume_with(twin, fetches),
        },
    }


class Sender:
    """The hot path of a producer, and the least that its slow path does."""

    def __init__(self, loops: ModuleType, now_ms: int) -> None:
        self._loops = loops

        class Delivery(loops.Ticket):  # type: ignore[misc, name-defined]
            __slots__ = ()

        self._topics = {"views": loops.TopicLanes(Delivery, PARTITIONS, loops.Moment(now_ms))}
        self._topics["views"].sticky = 0

    def send(self, topic: str, value: bytes | None, key: bytes | None = None) -> Any:
        lanes = self._topics[topic]
        ticket = lanes.append(value, key)
        return ticket if ticket is not None else self._roll(lanes, value, key)

    def _roll(self, lanes: Any, value: bytes | None, key: bytes | None) -> Any:
        lane = lanes.lanes[lanes.partition_of(key)]
        full = lane.close()
        if full is not None:
            full.build()
        builder = self._loops.BatchBuilder(BATCH_BYTES)
        lane.open(builder, builder)
        return lane.append(value, key)


def send_with(sender: Sender, records: Sequence[RecordTuple]) -> int:
    send = sender.send
    for _, key, value, _ in records:
        send("views", value, key)
    return len(records)


class AiokafkaSender:
    """aiokafka's builder behind a method like ours: one partition, whatever the key."""

    def __init__(self) -> None:
        self._builder: Any = None
        self._count = 0

    def send(self, timestamp: int, value: bytes | None, key: bytes | None = None) -> Any:
        if self._builder is not None:
            done = self._builder.append(self._count, timestamp, key, value, [])
            if done is not None:
                self._count += 1
                return done
            self._builder.build()
        self._builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, BATCH_BYTES)
        self._count = 1
        return self._builder.append(0, timestamp, key, value, [])


def aiokafka_send(sender: AiokafkaSender, records: Sequence[RecordTuple]) -> int:
    send = sender.send
    for timestamp, key, value, _ in records:
        send(timestamp, value, key)
    return len(records)


def arrow_of(records: Sequence[RecordTuple]) -> Any:
    many = (list(records) * -(-ROWS // len(records)))[:ROWS]
    columns = {"value": [record[2] for record in many], "key": [record[1] for record in many]}
    return pyarrow.record_batch({name: pyarrow.array(cells, pyarrow.binary()) for name, cells in columns.items()})


def columns_with(loops: ModuleType, batch: Any, now_ms: int) -> int:
    columns = [bytes_source(batch.column(name), name) for name in ("value", "key")]
    rows, at = loops.ColumnRows(batch.num_rows, *columns, now_ms), 0
    while at < rows.rows:
        builder, took = loops.encode_columns(rows, BATCH_BYTES, at)
        builder.build()
        at += took
    return at


def consume_with(loops: ModuleType, fetches: Sequence[bytes]) -> int:
    count = 0
    for fetched in fetches:
        for header in loops.scan(fetched).headers:
            start, end = header.position + HEADER_SIZE, header.end
            for record in loops.decode_consumer_records(fetched, header, None, start, end, "t", 0, 0, None, None):
                _ = record.value
                count += 1
    return count


def aiokafka_consume(fetches: Sequence[bytes]) -> int:
    count = 0
    for fetched in fetches:
        batches = MemoryRecords(fetched)
        while batches.has_next():
            batch: Any = batches.next_batch()
            if not batch.validate_crc():
                raise ValueError("aiokafka finds a checksum that does not match")
            for found in batch:
                key, value = found.key, found.value
                record = ConsumerRecord(
                    "t", 0, found.offset, found.timestamp, found.timestamp_type, key, value, found.checksum,
                    0 if key is None else len(key), 0 if value is None else len(value), tuple(found.headers),
                )  # fmt: skip
                _ = record.value
                count += 1
    return count


if __name__ == "__main__":
    main(sys.argv[1:])
