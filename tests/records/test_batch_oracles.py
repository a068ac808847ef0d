"""Two independent codecs, aiokafka's and kafka-python's, read what we write and write what we read."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple

import aiokafka.record.default_records as aiokafka_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import Codec, RecordTuple
from penstock.records.batch import LOG_APPEND_TIME, decode_batch, encode_batch

with warnings.catch_warnings():  # it reads its schemas by a call that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.default_records as kafka_python_records

pytestmark = pytest.mark.usefixtures("loops")


class Peer(NamedTuple):
    batch: Any
    builder: Any
    leader_epoch: int  # what its builder writes
    codecs: tuple[Codec, ...]


ALL = tuple(Codec)
PEERS = {
    "aiokafka": Peer(aiokafka_records.DefaultRecordBatch, aiokafka_records.DefaultRecordBatchBuilder, -1, ALL),
    "aiokafka-python": Peer(
        aiokafka_records._DefaultRecordBatchPy, aiokafka_records._DefaultRecordBatchBuilderPy, -1, ALL
    ),
    "kafka-python": Peer(
        kafka_python_records.DefaultRecordBatch, kafka_python_records.DefaultRecordBatchBuilder, 0, ALL
    ),
}
PAIRS = [
    pytest.param(
        peer,
        codec,
        id=f"{name}-{codec.name.lower()}",
        marks=pytest.mark.skipif(
            name == "kafka-python" and codec is Codec.SNAPPY and not kafka.codec.has_snappy(),
            reason="kafka-python has no snappy without python-snappy",
        ),
    )
    for name, peer in PEERS.items()
    for codec in peer.codecs
]

blobs = st.one_of(st.none(), st.binary(max_size=20), st.integers(60, 17_000).map(bytes))
record_lists = st.lists(
    st.tuples(
        st.integers(0, 2**45),
        blobs,
        blobs,
        st.lists(st.tuples(st.text(max_size=6), st.one_of(st.none(), st.binary(max_size=6))), max_size=3),
    ),
    min_size=1,
    max_size=12,
)
producers = st.one_of(
    st.just((-1, -1, -1)),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)),
)
modest = settings(max_examples=25, deadline=None)


def theirs(peer: Peer, items: Iterable[RecordTuple], codec: Codec, producer: tuple[int, int, int], txn: bool) -> bytes:
    builder = peer.builder(2, codec, int(txn), *producer, 1 << 24)
    for offset, (timestamp, key, value, headers) in enumerate(items):
        assert builder.append(offset, timestamp, key, value, list(headers)) is not None
    return bytes(builder.build())


def as_tuples(records: Any) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, [tuple(pair) for pair in r.headers]) for r in records]


@pytest.mark.parametrize(("peer", "codec"), PAIRS)
@modest
@given(
    items=record_lists,
    base=st.integers(0, 2**60),
    producer=producers,
    transactional=st.booleans(),
    control=st.booleans(),
)
def test_they_read_what_we_write(
    peer: Peer,
    codec: Codec,
    items: list[RecordTuple],
    base: int,
    producer: tuple[int, int, int],
    transactional: bool,
    control: bool,
) -> None:
    producer_id, producer_epoch, base_sequence = producer
    written = encode_batch(
        items, codec=codec, base_offset=base, leader_epoch=3, producer_id=producer_id,
        producer_epoch=producer_epoch, base_sequence=base_sequence, transactional=transactional, control=control,
    )  # fmt: skip
    batch = peer.batch(bytes(written))
    assert batch.validate_crc()
    assert (batch.magic, batch.base_offset, batch.next_offset) == (2, base, base + len(items))
    assert (batch.compression_type, batch.last_offset_delta) == (codec, len(items) - 1)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == producer
    assert (bool(batch.is_transactional), bool(batch.is_control_batch)) == (transactional, control)
    stamps = [item[0] for item in items]
    assert (batch.first_timestamp, batch.max_timestamp) == (stamps[0], max(stamps))
    if not control:  # kafka-python reads a control batch's records as markers
        assert as_tuples(batch) == [(base + i, *item[:3], list(item[3])) for i, item in enumerate(items)]


@pytest.mark.parametrize(("peer", "codec"), PAIRS)
@modest
@given(items=record_lists, producer=producers, transactional=st.booleans())
def test_we_read_what_they_write(
    loops: ModuleType,
    peer: Peer,
    codec: Codec,
    items: list[RecordTuple],
    producer: tuple[int, int, int],
    transactional: bool,
) -> None:
    written = theirs(peer, items, codec, producer, transactional)
    found = loops.scan(written)
    assert (found.problem, found.end) == (None, len(written))
    [header] = found.headers
    assert header.codec in (codec, Codec.NONE)  # they do without a codec that gains nothing
    assert (header.base_offset, header.last_offset, header.record_count) == (0, len(items) - 1, len(items))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert (header.is_transactional, header.leader_epoch) == (transactional, peer.leader_epoch)
    stamps = [item[0] for item in items]
    assert (header.base_timestamp, header.max_timestamp) == (stamps[0], max(stamps))
    assert as_tuples(decode_batch(written)) == [(i, *item[:3], list(item[3])) for i, item in enumerate(items)]


@pytest.mark.parametrize("name", list(PEERS))
@modest
@given(items=record_lists, producer=producers, transactional=st.booleans())
def test_without_compression_the_bytes_are_the_same(
    name: str, items: list[RecordTuple], producer: tuple[int, int, int], transactional: bool
) -> None:
    peer = PEERS[name]
    producer_id, producer_epoch, base_sequence = producer
    ours = encode_batch(
        items, leader_epoch=peer.leader_epoch, producer_id=producer_id, producer_epoch=producer_epoch,
        base_sequence=base_sequence, transactional=transactional,
    )  # fmt: skip
    assert ours == theirs(peer, items, Codec.NONE, producer, transactional)


@pytest.mark.parametrize(("peer", "codec"), PAIRS)
def test_they_see_append_time_and_offsets_as_we_do(loops: ModuleType, peer: Peer, codec: Codec) -> None:
    items: list[RecordTuple] = [(100 + i, b"k", b"v" * 50, []) for i in range(5)]
    written = encode_batch(items, codec=codec)
    [header] = loops.scan(written).headers
    loops.stamp_append_time(written, header, 123_456)
    assert loops.assign_offsets(written, [header], 1_000, 8) == 1_005
    batch = peer.batch(bytes(written))
    assert batch.validate_crc()
    assert batch.timestamp_type == LOG_APPEND_TIME
    read = as_tuples(batch)
    assert [record[:2] for record in read] == [(1_000 + i, 123_456) for i in range(5)]
    assert read == as_tuples(decode_batch(written))


@pytest.mark.parametrize(("peer", "codec"), PAIRS)
def test_they_read_offsets_with_gaps(peer: Peer, codec: Codec) -> None:
    items: list[RecordTuple] = [(100, b"k", b"v" * 50, []) for _ in range(4)]
    offsets = [7, 8, 900, 70_000]
    batch = peer.batch(bytes(encode_batch(items, codec=codec, offsets=offsets)))
    assert batch.validate_crc()
    assert (batch.next_offset, [record.offset for record in batch]) == (70_001, offsets)


@pytest.mark.parametrize(("peer", "codec"), PAIRS)
def test_thousands_of_records_cross_over(peer: Peer, codec: Codec) -> None:
    items: list[RecordTuple] = [
        (1_700_000_000_000 + i, b"key-%d" % (i % 50), b"value %d " % i * (i % 9), []) for i in range(5_000)
    ]
    assert as_tuples(peer.batch(bytes(encode_batch(items, codec=codec)))) == [
        (i, *item) for i, item in enumerate(items)
    ]
    assert as_tuples(decode_batch(theirs(peer, items, codec, (-1, -1, -1), False))) == [
        (i, *item) for i, item in enumerate(items)
    ]
