from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.producer_state import (
    AppendedBatch,
    ProducerEntry,
    ProducerSnapshot,
    ProducerStates,
    SnapshotError,
    UnreplicatedTransaction,
    decode_snapshot,
    encode_snapshot,
    snapshot_name,
    snapshot_offset,
)

KAFKAS_ENTRY = struct.Struct(">qhiqiqiq")
EXAMPLE = ProducerSnapshot(
    (
        ProducerEntry(7, 2, (AppendedBatch(4, 104, 4, 900), AppendedBatch(6, 130, 1, 950)), 3, 130, 960, 5000),
        ProducerEntry(8, 0, (), 1, -1, 970, 6000),
    ),
    (UnreplicatedTransaction(105, 120),),
)


def with_checksum(body: bytes, version: int = 1) -> bytes:
    return struct.pack(">hI", version, crc32c(body)) + body


def kafkas_file(*entries: tuple[int, int, int, int, int, int, int, int]) -> bytes:
    return with_checksum(struct.pack(">i", len(entries)) + b"".join(KAFKAS_ENTRY.pack(*entry) for entry in entries))


def read_as_kafka_does(data: bytes) -> list[tuple[int, ...]]:
    """Version, checksum to the end of the file, as many entries as announced; the rest is not looked at."""
    version, crc, count = struct.unpack_from(">hIi", data)
    assert version == 1
    assert crc == crc32c(data[6:])
    return [KAFKAS_ENTRY.unpack_from(data, 10 + 46 * number) for number in range(count)]


def test_kafka_finds_its_own_fields_in_our_file() -> None:
    assert read_as_kafka_does(encode_snapshot(EXAMPLE)) == [
        (7, 2, 6, 130, 1, 960, 3, 130),
        (8, 0, -1, -1, 0, 970, 1, -1),
    ]


def test_kafkas_own_file_is_read_with_the_last_batch_of_each_producer() -> None:
    data = kafkas_file((7, 2, 6, 130, 1, 960, 3, 130), (8, 0, -1, -1, 0, 970, 1, -1))
    assert decode_snapshot(data) == ProducerSnapshot(
        (
            ProducerEntry(7, 2, (AppendedBatch(6, 130, 1, 960),), 3, 130, 960, 960),
            ProducerEntry(8, 0, (), 1, -1, 970, 970),
        )
    )


def test_an_extension_of_someone_else_is_ignored() -> None:
    body = kafkas_file((7, 2, 6, 130, 1, 960, 3, 130))[6:]
    for extension in (b"x", b"ELSE" + b"\0\1" + b"anything", b"PNSK" + b"\0\2" + b"a later version"):
        assert len(decode_snapshot(with_checksum(body + extension)).entries) == 1


def test_a_snapshot_forgets_no_producer() -> None:
    assert decode_snapshot(encode_snapshot(EXAMPLE)) == EXAMPLE
    assert decode_snapshot(encode_snapshot(ProducerSnapshot())) == ProducerSnapshot()
    assert decode_snapshot(memoryview(bytearray(encode_snapshot(EXAMPLE)))) == EXAMPLE


def test_a_wrapped_batch_knows_its_first_sequence() -> None:
    assert AppendedBatch(1, 12, 2, 0).base_sequence == 2**31 - 1
    assert AppendedBatch(1, 12, 2, 0).base_offset == 10
    assert AppendedBatch(-1, 12, 2, 0).base_sequence == -1


@st.composite
def entries(draw: st.DrawFn, producer_id: int) -> ProducerEntry:
    batches: list[AppendedBatch] = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 5))):
        delta = draw(st.integers(0, 1000))
        offset += delta + draw(st.integers(0, 50))
        batches.append(AppendedBatch(draw(st.integers(-1, 2**31 - 1)), offset, delta, draw(st.integers(-1, 2**45))))
        offset += 1
    return ProducerEntry(
        producer_id,
        draw(st.integers(0, 2**15 - 1)),
        tuple(batches),
        draw(st.integers(-1, 2**31 - 1)),
        draw(st.integers(-1, 2**63 - 1)),
        draw(st.integers(-1, 2**63 - 1)),
        draw(st.integers(-1, 2**63 - 1)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> ProducerSnapshot:
    producer_ids = draw(st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=6))
    unreplicated = draw(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=4))
    return ProducerSnapshot(
        tuple(draw(entries(producer_id)) for producer_id in producer_ids),
        tuple(UnreplicatedTransaction(*pair) for pair in unreplicated),
    )


@given(snapshots())
@settings(max_examples=100, deadline=None)
def test_any_snapshot_survives_the_round_trip(snapshot: ProducerSnapshot) -> None:
    data = encode_snapshot(snapshot)
    assert decode_snapshot(data) == snapshot
    assert [fields[0] for fields in read_as_kafka_does(data)] == [entry.producer_id for entry in snapshot.entries]


# --- damage


def test_a_file_cut_anywhere_is_damaged() -> None:
    data = encode_snapshot(EXAMPLE)
    for length in range(len(data)):
        with pytest.raises(SnapshotError):
            decode_snapshot(data[:length])


def test_every_flipped_bit_is_noticed() -> None:
    data = encode_snapshot(EXAMPLE)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SnapshotError):
            decode_snapshot(damaged)


@pytest.mark.parametrize("data", [b"", b"\0" * 10, b"\0" * 500, b"\xff" * 500, encode_snapshot(EXAMPLE) + b"\0"])
def test_zeros_ones_and_too_much_are_damage(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode_snapshot(data)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -1),
        struct.pack(">i", 1) + b"\0" * 45,
        struct.pack(">i", 2) + KAFKAS_ENTRY.pack(7, 0, 0, 0, 0, 0, 0, 0) * 2,
        struct.pack(">i", 1) + KAFKAS_ENTRY.pack(-7, 0, 0, 0, 0, 0, 0, 0),
        struct.pack(">i", 1) + KAFKAS_ENTRY.pack(7, 0, -2, 0, 0, 0, 0, 0),
        struct.pack(">i", 1) + KAFKAS_ENTRY.pack(7, 0, 0, 5, -1, 0, 0, 0),
        struct.pack(">i", 1) + KAFKAS_ENTRY.pack(7, 0, 0, 5, 6, 0, 0, 0),
        struct.pack(">i4sh", 0, b"PNSK", 1),
        struct.pack(">i4shi", 0, b"PNSK", 1, -1),
        struct.pack(">i4shi", 0, b"PNSK", 1, 2**31 - 1),
        struct.pack(">i4shi", 0, b"PNSK", 1, 0) + b"\0",
    ],
)
def test_lies_under_a_right_checksum_are_a_typed_error(body: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode_snapshot(with_checksum(body))


@pytest.mark.parametrize(
    "batches",
    [
        struct.pack(">b", 6),
        struct.pack(">b", -1),
        struct.pack(">b", 0),
        struct.pack(">biqiq", 1, 6, 131, 1, 960),
        struct.pack(">biqiqiqiq", 2, 4, 129, 0, 0, 6, 130, 1, 960),
        struct.pack(">biqiqiqiq", 2, 4, 104, -4, 0, 6, 130, 1, 960),
    ],
)
def test_batches_that_contradict_each_other_are_a_typed_error(batches: bytes) -> None:
    body = kafkas_file((7, 2, 6, 130, 1, 960, 3, 130))[6:]
    extension = struct.pack(">4shq", b"PNSK", 1, 5000) + batches + struct.pack(">i", 0)
    with pytest.raises(SnapshotError):
        decode_snapshot(with_checksum(body + extension))


def test_an_unknown_version_is_rejected() -> None:
    with pytest.raises(SnapshotError, match="version 2"):
        decode_snapshot(with_checksum(encode_snapshot(EXAMPLE)[6:], version=2))


def test_a_damaged_snapshot_leaves_the_state_as_it_was() -> None:
    states = ProducerStates()
    states.load_snapshot(encode_snapshot(EXAMPLE))
    before = states.snapshot()
    with pytest.raises(SnapshotError):
        states.load_snapshot(b"\0" * 100)
    assert states.snapshot() == before


def test_a_snapshot_above_the_limit_keeps_the_most_recent_and_the_open_ones() -> None:
    idle = tuple(ProducerEntry(number, 0, last_active_ms=1000 - number) for number in range(20))
    opened = ProducerEntry(99, 0, transaction_first_offset=5, last_active_ms=0)
    states = ProducerStates(max_producers=4)
    states.load_snapshot(encode_snapshot(ProducerSnapshot((opened, *idle))))
    assert {entry.producer_id for entry in states.entries()} == {99, 0, 1, 2}
    assert states.first_undecided_offset == 5


# --- names


def test_names_carry_the_offset_in_twenty_digits() -> None:
    assert snapshot_name(42) == "00000000000000000042.snapshot"
    assert snapshot_offset(snapshot_name(2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize(
    "name",
    [
        "42.snapshot",
        "00000000000000000042",
        "00000000000000000042.log",
        "0000000000000000004x.snapshot",
        ".snapshot",
    ],
)
def test_other_names_are_not_snapshots(name: str) -> None:
    assert snapshot_offset(name) is None


def test_a_recovery_mark_is_stored_and_does_not_affect_producers() -> None:
    marked = EXAMPLE._replace(mark=b"where a recovery may begin")
    assert decode_snapshot(encode_snapshot(marked)) == marked
    assert encode_snapshot(marked).find(encode_snapshot(EXAMPLE)[6:]) == 6, "Kafka's part is the same"


@pytest.mark.parametrize("behind", [b"\0", b"\0\0\0\0", b"\0\0\0\5mark", b"\0\0\0\3mark", b"\xff\xff\xff\xffmark"])
def test_what_is_behind_the_transactions_must_be_a_mark(behind: bytes) -> None:
    with pytest.raises(SnapshotError):
        decode_snapshot(with_checksum(encode_snapshot(EXAMPLE)[6:] + behind))
