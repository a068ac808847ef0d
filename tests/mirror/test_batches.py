"""Fetched bytes as steps: gaps by compaction, transactions and aborts; damage; headers that are the mirror's own."""

from __future__ import annotations

import pytest

from penstock.mirror.batches import (
    ORIGIN_HEADER,
    PADDING_RECORDS,
    Data,
    Gap,
    Step,
    as_batches,
    padding,
    same_records,
    stamped,
    steps_of,
    with_origin,
)
from penstock.records import HEADER_SIZE, CorruptBatch, RecordError, decode_batch, encode_batch, scan, stamp_append_time
from penstock.records.batch import EndMarker, encode_marker
from penstock.records.legacy import LegacyMessage, encode_message_set

FIRST_MAGIC_1 = bytes(16) + b"\x01" + bytes(60)


def batch(base: int, count: int, *, codec: int = 0, producer_id: int = -1, transactional: bool = False) -> bytes:
    records = [(1000 + base + index, b"k", f"{base + index}".encode(), [("h", b"x")]) for index in range(count)]
    return bytes(
        encode_batch(
            records, codec=codec, base_offset=base, leader_epoch=3, producer_id=producer_id, producer_epoch=0,
            base_sequence=0, transactional=transactional,
        )
    )  # fmt: skip


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    found = encode_marker(EndMarker(commit, 0), timestamp_ms=1, producer_id=producer_id, producer_epoch=0)
    found[0:8] = offset.to_bytes(8, "big")
    return bytes(found)


def shape(steps: list[Step]) -> list[tuple[str, int, int]]:
    return [(type(step).__name__, step.offset, step.count) for step in steps]


def values(step: Data) -> list[bytes | None]:
    return [record.value for record in decode_batch(step.batch)]


def test_dense_batches_are_passed_on_as_they_are() -> None:
    data = batch(5, 3, codec=4) + batch(8, 2)
    steps = steps_of(data, 5, []).steps
    assert shape(steps) == [("Data", 5, 3), ("Data", 8, 2)]
    assert b"".join(bytes(step.batch) for step in steps if isinstance(step, Data)) == data
    assert {step.leader_epoch for step in steps} == {3}


def test_a_position_within_a_batch_takes_the_rest_of_it() -> None:
    [step] = steps_of(batch(5, 4), 7, []).steps
    assert isinstance(step, Data)
    assert (step.offset, values(step)) == (7, [b"7", b"8"])
    assert steps_of(batch(5, 4), 9, []).steps == []


def test_offsets_between_and_within_batches_are_gaps() -> None:
    records = [(1, b"k", f"{offset}".encode(), ()) for offset in (10, 11, 14, 17)]
    holes = bytes(encode_batch(records, offsets=[10, 11, 14, 17], codec=1))
    steps = steps_of(batch(0, 2) + holes + batch(20, 1), 0, []).steps
    assert shape(steps) == [
        ("Data", 0, 2), ("Gap", 2, 8), ("Data", 10, 2), ("Gap", 12, 2), ("Data", 14, 1), ("Gap", 15, 2),
        ("Data", 17, 1), ("Gap", 18, 2), ("Data", 20, 1),
    ]  # fmt: skip
    assert [values(step) for step in steps if isinstance(step, Data)][1:4] == [[b"10", b"11"], [b"14"], [b"17"]]


def test_markers_and_aborted_records_are_gaps_and_committed_ones_are_not() -> None:
    data = (
        batch(0, 2, producer_id=7, transactional=True)
        + batch(2, 2, producer_id=8, transactional=True)
        + marker(4, 7, commit=False)
        + batch(5, 1, producer_id=7, transactional=True)
        + marker(6, 8, commit=True)
        + marker(7, 7, commit=True)
    )
    assert shape(steps_of(data, 0, [(7, 0)]).steps) == [
        ("Gap", 0, 2), ("Data", 2, 2), ("Gap", 4, 1), ("Data", 5, 1), ("Gap", 6, 2),
    ]  # fmt: skip


def test_append_time_becomes_the_records_own_time() -> None:
    data = bytearray(batch(0, 2))
    stamp_append_time(data, scan(data).headers[0], 77)
    [step] = steps_of(data, 0, []).steps
    assert isinstance(step, Data)
    assert [record.timestamp for record in decode_batch(step.batch)] == [77, 77]
    assert scan(step.batch).headers[0].timestamp_type == 0


@pytest.mark.parametrize("at", [20, 30, HEADER_SIZE + 2])
def test_damage_is_found(at: int) -> None:
    data = bytearray(batch(0, 3))
    data[at] ^= 0x40
    with pytest.raises(CorruptBatch):
        steps_of(data, 0, [])


def test_nonsense_in_an_old_format_is_found() -> None:
    with pytest.raises(CorruptBatch):
        as_batches(FIRST_MAGIC_1)


def test_an_incomplete_last_batch_is_left_for_the_next_fetch() -> None:
    whole, cut = batch(0, 2), batch(2, 2)[:-3]
    assert shape(steps_of(whole + cut, 0, []).steps) == [("Data", 0, 2)]
    assert steps_of(cut, 2, []).steps == []


def test_a_stamped_batch_has_a_new_header_and_the_old_records() -> None:
    before = batch(5, 3, codec=4, producer_id=9, transactional=True)
    after = b"".join(bytes(part) for part in stamped(before, 44, 2, 2**31 + 5, transactional=False))
    header = scan(after).headers[0]
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (44, 2, 5)
    assert not header.is_transactional
    assert after[HEADER_SIZE:] == before[HEADER_SIZE:]
    assert scan(b"".join(bytes(p) for p in stamped(before, 1, 0, 0, transactional=True))).headers[0].is_transactional


def test_origins_are_added_and_records_of_the_target_dropped() -> None:
    records = [
        (1, b"a", b"1", [("h", b"x")]),
        (2, b"b", b"2", [(ORIGIN_HEADER, b"T/all/0/9")]),
        (3, b"c", b"3", [(ORIGIN_HEADER, b"Other/all/0/9")]),
    ]
    data = Data(40, 3, encode_batch(records), 0)
    step = with_origin(data, "S/views/2", "T")
    assert step is not None
    found = decode_batch(step.batch)
    assert [record.value for record in found] == [b"1", b"3"]
    assert list(found[0].headers) == [("h", b"x"), (ORIGIN_HEADER, b"S/views/2/40")]
    assert list(found[1].headers) == [(ORIGIN_HEADER, b"Other/all/0/9"), (ORIGIN_HEADER, b"S/views/2/42")]
    assert with_origin(Data(41, 1, encode_batch(records[1:2]), 0), "S/views/2", "T") is None


def test_padding_has_at_most_so_many_records_and_a_key() -> None:
    step = padding(5, 5 + 3 * PADDING_RECORDS)
    assert (step.offset, step.count) == (5, PADDING_RECORDS)
    [record] = decode_batch(padding(9, 10).batch)
    assert (record.key, record.value) == (b"", None)


def test_the_last_record_tells_a_foreign_log() -> None:
    ours, theirs = batch(0, 3), batch(0, 3)
    assert same_records(ours, theirs, 2)
    assert not same_records(ours, bytes(encode_batch([(1, b"k", b"other", ())] * 3)), 2)
    assert same_records(ours, marker(2, 1, commit=True), 2)
    assert same_records(ours, b"", 2)
    gap = steps_of(batch(3, 1), 2, []).steps[0]
    assert isinstance(gap, Gap)


# --- formats of Kafka before 0.11


def message_set(offsets: list[int], magic: int, codec: int = 0) -> bytes:
    messages = [LegacyMessage(each, 1000 + each if magic else -1, 0, b"k", f"{each}".encode()) for each in offsets]
    return encode_message_set(messages, magic, codec=codec)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_messages_of_old_formats_keep_offsets_and_gaps(magic: int, codec: int) -> None:
    data = message_set([7, 8, 9, 12], magic, codec)
    steps = steps_of(as_batches(data), 7, []).steps
    assert shape(steps) == [("Data", 7, 3), ("Gap", 10, 2), ("Data", 12, 1)]
    first = steps[0]
    assert isinstance(first, Data)
    assert values(first) == [b"7", b"8", b"9"]
    assert [each.timestamp for each in decode_batch(first.batch)] == ([1007, 1008, 1009] if magic else [-1] * 3)
    assert shape(steps_of(as_batches(data), 9, []).steps)[0] == ("Data", 9, 1)


def test_an_incomplete_message_and_batches_behind_messages_are_left_for_the_next_fetch() -> None:
    whole = message_set([0, 1], 1)
    for rest in (message_set([2], 1)[:-1], message_set([2], 1)[:9], batch(2, 3)):
        assert shape(steps_of(as_batches(whole + rest), 0, []).steps) == [("Data", 0, 2)]
    assert steps_of(as_batches(message_set([0], 0)[:-1]), 0, []).steps == []
    assert bytes(as_batches(batch(2, 3))) == batch(2, 3)


@pytest.mark.parametrize("place", [12, 13, 16, 30])
def test_damaged_messages_of_old_formats_are_not_passed_on(place: int) -> None:
    data = bytearray(message_set([0, 1], 1))
    data[place] ^= 0x40
    with pytest.raises(RecordError):
        as_batches(bytes(data))


def test_a_message_of_a_negative_size_is_reported() -> None:
    data = bytearray(message_set([0, 1], 1))
    data[8:12] = (-5).to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatch, match="-5 bytes"):
        as_batches(bytes(data))
