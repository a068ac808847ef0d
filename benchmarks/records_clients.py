"""What a client does with each record, beside aiokafka's: the parts of `benchmarks.records_codec` that concern it.

send     a method in Python that appends a record to an open batch of 256 KiB and returns a ticket; without key
         into one partition, with keys into the 6 that they choose; batches built when full. aiokafka: its
         compiled builder, a record at a time, with what it returns for each
columns  an Arrow batch of 20,000 rows into batches, beside aiokafka's encode from objects
consume  fetched bytes into a consumer's records, the value of each read; aiokafka: its decode, and its
         ConsumerRecord made of each, as its consumer does
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import pyarrow
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import ConsumerRecord

from penstock.records import HEADER_SIZE, RecordTuple
from penstock.records.arrow_encoding import bytes_source

BATCH_BYTES: Final = 256 * 1024
PARTITIONS: Final = 6
ROWS: Final = 20_000

Work = Callable[[], int]


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


def client_contenders(
    kernel: ModuleType,
    twin: ModuleType,
    records: Sequence[RecordTuple],
    fetches: Sequence[bytes],
    aiokafka_encode: Work,
) -> dict[str, dict[str, Work]]:
    """For each kind of a client's work: who does it, and how."""
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
