"""Record batches and message sets, to and from Apache Kafka's MemoryRecords."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypedDict
from zlib import crc32

import pytest
from tests.peers.conversation import ProgramFailed
from tests.peers.java_process import JavaProcess

from penstock.records import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    Codec,
    CorruptBatch,
    Record,
    RecordTuple,
    assign_offsets,
    decode_batch,
    encode_batch,
    scan,
    stamp_append_time,
)
from penstock.records.batch import EndMarker, decode_marker, encode_marker
from penstock.records.compression import compress
from penstock.records.legacy import LegacyMessage, decode_message_set, downconvert, encode_message_set, upconvert

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-3.9")]

LIMIT = 1 << 22
NOW = 1_700_000_000_000
SEEDS = range(4)
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


class Producer(TypedDict):
    producer_id: int
    producer_epoch: int
    base_sequence: int


PRODUCER: Producer = {"producer_id": 4_000_000_001, "producer_epoch": 7, "base_sequence": 2**31 - 3}
NO_PRODUCER: Producer = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}


def codec_name(codec: Codec) -> str:
    return codec.name.lower()


@pytest.fixture(scope="module")
def kafka(start_java: Callable[..., JavaProcess]) -> JavaProcess:
    return start_java("kafka-3.9", "RecordsOracle")


def some_bytes(random: Random) -> bytes | None:
    kind = random.randrange(6)
    if kind == 0:
        return None
    if kind == 1:
        return b""
    if kind == 2:
        return random.randbytes(random.choice((1, 63, 64, 8191, 20_000)))
    return b"the same again " * random.randrange(1, 40)


def some_records(seed: int, *, with_headers: bool = True) -> list[RecordTuple]:
    random = Random(seed)
    names = ("", "trace", "Grüße", "k" * 200)
    return [
        (
            NOW + random.choice((0, 5, -70_000, 2**33, -NOW)),
            some_bytes(random),
            some_bytes(random),
            tuple(
                (random.choice(names), some_bytes(random)) for _ in range(random.randrange(4 if with_headers else 1))
            ),
        )
        for _ in range(random.choice((1, 2, 40)))
    ]


def gaps(seed: int, count: int, start: int) -> list[int]:
    random = Random(seed)
    return [start := start + random.choice((1, 1, 2, 700)) for _ in range(count)]


def as_kafka_says(records: Sequence[Record | LegacyMessage]) -> list[dict[str, Any]]:
    said = []
    for record in records:
        headers = record.headers if isinstance(record, Record) else ()
        said.append(
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": None if record.key is None else record.key.hex(),
                "value": None if record.value is None else record.value.hex(),
                "headers": [[name, None if value is None else value.hex()] for name, value in headers],
            }
        )
    return said


def assert_read_alike(kafka: JavaProcess, data: bytes | bytearray) -> list[dict[str, Any]]:
    """Kafka and we see the same batches, to the last field, and the same records in them."""
    found = scan(data)
    assert found.problem is None
    theirs: list[dict[str, Any]] = kafka.ask("read", hex=data.hex())
    assert len(theirs) == len(found.headers)
    for header, said in zip(found.headers, theirs, strict=True):
        assert said | {"records": []} == {
            "magic": 2,
            "size": header.size,
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "codec": header.codec,
            "timestamp_type": header.timestamp_type,
            "max_timestamp": header.max_timestamp,
            "leader_epoch": header.leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "last_sequence": header.last_sequence,
            "transactional": header.is_transactional,
            "control": header.is_control,
            "crc": header.crc,
            "count": header.record_count,
            "records": [],
        }
        if not header.is_control:
            assert said["records"] == as_kafka_says(decode_batch(data, header.position))
    return theirs


# --- batches


@pytest.mark.parametrize("codec", Codec, ids=codec_name)
@pytest.mark.parametrize("producer", [NO_PRODUCER, PRODUCER], ids=["plain", "transactional"])
def test_kafka_reads_the_batches_that_we_write(kafka: JavaProcess, codec: Codec, producer: Producer) -> None:
    for seed in SEEDS:
        records = some_records(seed)
        batch = encode_batch(
            records, codec=codec, base_offset=2**40 + seed, leader_epoch=seed, transactional=producer is PRODUCER,
            **producer,
        )  # fmt: skip
        (said,) = assert_read_alike(kafka, batch)
        assert [record["value"] for record in said["records"]] == [value and value.hex() for _, _, value, _ in records]


@pytest.mark.parametrize("codec", Codec, ids=codec_name)
def test_kafka_reads_batches_with_gaps_between_their_offsets(kafka: JavaProcess, codec: Codec) -> None:
    for seed in SEEDS:
        records = some_records(seed)
        offsets = gaps(seed, len(records), 2**33)
        (said,) = assert_read_alike(kafka, encode_batch(records, codec=codec, offsets=offsets))
        assert [record["offset"] for record in said["records"]] == offsets


@pytest.mark.parametrize("codec", Codec, ids=codec_name)
def test_kafka_reads_batches_that_a_log_has_patched(kafka: JavaProcess, codec: Codec) -> None:
    data = b"".join(bytes(encode_batch(some_records(seed), codec=codec)) for seed in SEEDS)
    patched = bytearray(data)
    headers = scan(patched).headers
    for header in headers[::2]:
        stamp_append_time(patched, header, NOW + 99)
    assign_offsets(patched, headers, 2**35, 12)
    said = assert_read_alike(kafka, patched)
    assert [batch["timestamp_type"] for batch in said] == [LOG_APPEND_TIME, CREATE_TIME] * 2
    assert {record["timestamp"] for record in said[0]["records"]} == {NOW + 99}
    assert said[0]["base_offset"] == 2**35
    assert {batch["leader_epoch"] for batch in said} == {12}


@pytest.mark.parametrize("is_commit", [True, False])
def test_kafka_reads_our_markers_of_transactions(kafka: JavaProcess, is_commit: bool) -> None:
    batch = encode_marker(EndMarker(is_commit, 31), timestamp_ms=NOW, producer_id=9, producer_epoch=2, leader_epoch=4)
    (said,) = assert_read_alike(kafka, batch)
    (record,) = said["records"]
    assert (record["marker"], record["coordinator_epoch"]) == ("COMMIT" if is_commit else "ABORT", 31)


def written_by_kafka(
    kafka: JavaProcess,
    records: Sequence[RecordTuple],
    offsets: Sequence[int],
    *,
    magic: int = 2,
    codec: int = Codec.NONE,
    log_append_time: int | None = None,
    leader_epoch: int = -1,
    transactional: bool = False,
    producer: Producer = NO_PRODUCER,
) -> bytes:
    batch = {
        "magic": magic, "codec": int(codec), "base_offset": offsets[0], "log_append_time": log_append_time,
        "leader_epoch": leader_epoch, "transactional": transactional, "control": False, **producer,
    }  # fmt: skip
    listed = as_kafka_says(
        [
            Record(at, timestamp, key, value, tuple(headers))
            for at, (timestamp, key, value, headers) in zip(offsets, records, strict=True)
        ]
    )
    return bytes.fromhex(kafka.ask("write", batch=batch, records=listed))


@pytest.mark.parametrize("codec", Codec, ids=codec_name)
@pytest.mark.parametrize("append_time", [None, NOW + 5])
def test_we_read_the_batches_that_kafka_writes(kafka: JavaProcess, codec: Codec, append_time: int | None) -> None:
    for seed in SEEDS:
        records = some_records(seed)
        offsets = gaps(seed, len(records), seed * 2**33)
        data = written_by_kafka(
            kafka, records, offsets, codec=codec, log_append_time=append_time, leader_epoch=3, transactional=True,
            producer=PRODUCER,
        )  # fmt: skip
        assert_read_alike(kafka, data)
        assert decode_batch(data) == [
            Record(at, stamp if append_time is None else append_time, key, value, tuple(headers))
            for at, (stamp, key, value, headers) in zip(offsets, records, strict=True)
        ]


@pytest.mark.parametrize("producer", [NO_PRODUCER, PRODUCER], ids=["plain", "transactional"])
def test_without_a_codec_kafka_writes_the_very_bytes_that_we_write(kafka: JavaProcess, producer: Producer) -> None:
    for seed in SEEDS:
        records = some_records(seed)
        offsets = gaps(seed, len(records), 2**33)
        transactional = producer is PRODUCER
        theirs = written_by_kafka(
            kafka, records, offsets, leader_epoch=6, transactional=transactional, producer=producer
        )
        ours = encode_batch(records, offsets=offsets, leader_epoch=6, transactional=transactional, **producer)
        assert bytes(ours) == theirs


@pytest.mark.parametrize("is_commit", [True, False])
def test_we_read_kafkas_markers_and_write_the_same(kafka: JavaProcess, is_commit: bool) -> None:
    batch = {
        "magic": 2, "codec": 0, "base_offset": 0, "log_append_time": None, "leader_epoch": 4, "transactional": True,
        "control": True, "producer_id": 9, "producer_epoch": 2, "base_sequence": -1,
    }  # fmt: skip
    marker = {"timestamp": NOW, "marker": "COMMIT" if is_commit else "ABORT", "coordinator_epoch": 31}
    data = bytes.fromhex(kafka.ask("write", batch=batch, records=[marker]))
    assert decode_marker(data, scan(data).headers[0]) == EndMarker(is_commit, 31)
    ours = encode_marker(EndMarker(is_commit, 31), timestamp_ms=NOW, producer_id=9, producer_epoch=2, leader_epoch=4)
    assert bytes(ours) == data


@pytest.mark.parametrize("codec", Codec, ids=codec_name)
def test_what_is_damage_to_kafka_is_damage_to_us(kafka: JavaProcess, codec: Codec) -> None:
    whole = encode_batch(some_records(2), codec=codec)
    random = Random(codec)
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[random.randrange(17, len(whole))] ^= 1 << random.randrange(8)
        with pytest.raises(ProgramFailed):
            kafka.ask("read", hex=damaged.hex())
        with pytest.raises(CorruptBatch):
            decode_batch(damaged)


# --- message sets


def some_messages(seed: int, magic: int, kind: int = CREATE_TIME) -> list[LegacyMessage]:
    records = some_records(seed, with_headers=False)
    offsets = gaps(seed, len(records), 2**33)
    stamp = NOW if kind == LOG_APPEND_TIME else None
    return [
        LegacyMessage(at, -1 if magic == 0 else stamp or max(-1, timestamp), kind, key, value)
        for at, (timestamp, key, value, _) in zip(offsets, records, strict=True)
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS, ids=codec_name)
def test_kafka_reads_the_message_sets_that_we_write(kafka: JavaProcess, magic: int, codec: Codec) -> None:
    for seed in SEEDS:
        for kind in (CREATE_TIME, LOG_APPEND_TIME)[: magic + 1]:
            messages = some_messages(seed, magic, kind)
            data = encode_message_set(messages, magic, codec=codec)
            batches = kafka.ask("read", hex=data.hex())
            assert [record for batch in batches for record in batch["records"]] == as_kafka_says(messages)
            # Of magic 0 Kafka says that it has no timestamp type, which is -1.
            assert {(b["magic"], b["codec"], b["timestamp_type"]) for b in batches} == {
                (magic, codec, kind if magic else -1)
            }


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS, ids=codec_name)
def test_we_read_the_message_sets_that_kafka_writes(kafka: JavaProcess, magic: int, codec: Codec) -> None:
    for seed in SEEDS:
        for kind in (CREATE_TIME, LOG_APPEND_TIME)[: magic + 1]:
            messages = some_messages(seed, magic, kind)
            records: list[RecordTuple] = [(m.timestamp, m.key, m.value, ()) for m in messages]
            data = written_by_kafka(
                kafka, records, [m.offset for m in messages], magic=magic, codec=codec,
                log_append_time=NOW if kind == LOG_APPEND_TIME else None,
            )  # fmt: skip
            assert decode_message_set(data, limit=LIMIT) == messages
            if codec is Codec.NONE:
                assert data == encode_message_set(messages, magic)


def wrapped(content: bytes, magic: int) -> bytes:
    """A gzip wrapper at offset 0, made by hand: `encode_message_set` nests none."""
    message = LegacyMessage(0, NOW if magic else -1, CREATE_TIME, None, compress(Codec.GZIP, content, magic=magic))
    data = bytearray(encode_message_set([message], magic))
    data[17] |= Codec.GZIP
    data[12:16] = crc32(data[16:]).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_in_a_wrapper_is_rejected_by_kafka_and_read_by_us(kafka: JavaProcess, magic: int) -> None:
    message = LegacyMessage(0, NOW if magic else -1, CREATE_TIME, None, b"deep")
    once = wrapped(encode_message_set([message], magic), magic)
    assert kafka.ask("read", hex=once.hex())[0]["records"] == as_kafka_says([message])
    twice = wrapped(once, magic)
    assert decode_message_set(twice, limit=LIMIT) == [message]
    with pytest.raises(ProgramFailed, match="InvalidRecord"):
        kafka.ask("read", hex=twice.hex())


# --- from one format to the other


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS, ids=codec_name)
def test_kafka_reads_what_an_old_producer_sent_after_we_converted_it(
    kafka: JavaProcess, magic: int, codec: Codec
) -> None:
    for seed in SEEDS:
        messages = some_messages(seed, magic)
        records: list[RecordTuple] = [(m.timestamp, m.key, m.value, ()) for m in messages]
        sent = written_by_kafka(kafka, records, [m.offset for m in messages], magic=magic, codec=codec)
        batches = assert_read_alike(kafka, upconvert(sent, limit=LIMIT, keep_offsets=True))
        assert [record for batch in batches for record in batch["records"]] == as_kafka_says(messages)
        assert {batch["codec"] for batch in batches} == {codec}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS, ids=codec_name)
def test_kafka_reads_what_an_old_consumer_gets_from_new_batches(kafka: JavaProcess, magic: int, codec: Codec) -> None:
    for seed in SEEDS:
        messages = some_messages(seed, 1)
        records: list[RecordTuple] = [(m.timestamp, m.key, m.value, (("dropped", b"x"),)) for m in messages]
        stored = written_by_kafka(kafka, records, [m.offset for m in messages], codec=codec)
        batches = kafka.ask("read", hex=downconvert(stored, magic, limit=LIMIT).hex())
        expected = [message._replace(timestamp=message.timestamp if magic else -1) for message in messages]
        assert [record for batch in batches for record in batch["records"]] == as_kafka_says(expected)
