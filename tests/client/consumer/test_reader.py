"""From fetched bytes to records: what is visible, what is old, what is damaged, and how far the reader got."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.reader import Cursor, Decoders, RecordBatch
from penstock.client.errors import DeserializationError
from penstock.client.fetch_state import Chunk, PartitionState, chunk_of
from penstock.client.serializers import Text
from penstock.records import Codec, CorruptBatch, encode_batch
from penstock.records.batch import EndMarker, encode_marker
from penstock.records.legacy import LegacyMessage, encode_message_set

P = TopicPartition("t", 3)


def state_at(offset: int) -> PartitionState:
    state = PartitionState(P, 1000)
    state.seek(offset)
    return state


def batch(base: int, *values: bytes | None, **more: Any) -> bytes:
    return bytes(
        encode_batch([(1000 + n, None, value, ()) for n, value in enumerate(values)], base_offset=base, **more)
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    made = encode_marker(EndMarker(commit, 0), timestamp_ms=0, producer_id=producer_id, producer_epoch=0)
    made[0:8] = offset.to_bytes(8, "big")
    return bytes(made)


def chunk(data: bytes, from_offset: int = 0, aborted: Any = ()) -> Chunk:
    state = state_at(from_offset)
    found = chunk_of(state, data, aborted)
    assert found is not None
    state.fetched(found.next_offset, found.epoch, found.size)
    return found


def read(found: Chunk, decoders: Decoders[Any, Any] | None = None) -> list[Any]:
    cursor: Cursor[Any, Any] = Cursor(decoders or Decoders(None, None))
    cursor.begin(found)
    values = []
    while cursor.advance():
        for record in cursor.records:
            cursor.last = record
            values.append(record.value)
    return values


def test_records_before_the_position_are_passed_over() -> None:
    found = chunk(batch(0, b"a", b"b", b"c") + batch(3, b"d"), from_offset=1)
    assert read(found) == [b"b", b"c", b"d"]
    assert found.state.position == found.next_offset == 4


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    data = batch(0, b"a") + batch(1, b"b")
    assert read(chunk(data[:-1])) == [b"a"]
    assert chunk_of(state_at(0), data[:40]) is None


def test_damage_ends_the_chunk_and_is_an_error_where_nothing_precedes_it() -> None:
    good, bad = batch(0, b"a"), bytearray(batch(1, b"b"))
    bad[-1] ^= 1
    assert read(chunk(good + bytes(bad))) == [b"a"]
    with pytest.raises(CorruptBatch, match="checksum"):
        chunk_of(state_at(1), bytes(bad))


def test_markers_are_never_seen_but_move_the_position() -> None:
    found = chunk(batch(0, b"a") + marker(1, 9, commit=True))
    assert read(found) == [b"a"]
    assert found.state.position == 2


def test_aborted_transactions_are_hidden_and_the_producers_next_ones_are_not() -> None:
    data = b"".join(
        [
            batch(0, b"plain"),
            batch(1, b"gone", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
            batch(2, b"other", producer_id=8, producer_epoch=0, base_sequence=0, transactional=True),
            marker(3, 7, commit=False),
            batch(4, b"kept", producer_id=7, producer_epoch=0, base_sequence=1, transactional=True),
            marker(5, 7, commit=True),
            marker(6, 8, commit=True),
        ]
    )
    assert read(chunk(data, aborted=[(7, 1)])) == [b"plain", b"other", b"kept"]
    assert read(chunk(data)) == [b"plain", b"gone", b"other", b"kept"]


def test_a_chunk_of_nothing_visible_still_moves_on() -> None:
    data = batch(0, b"x", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True) + marker(
        1, 7, commit=False
    )
    found = chunk(data, aborted=[(7, 0)])
    assert read(found) == []
    assert found.state.position == 2


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY])
def test_message_sets_of_old_brokers_are_read_wrappers_from_their_middle_too(magic: int, codec: Codec) -> None:
    messages = [LegacyMessage(n, 5 if magic else -1, 0, None, b"v%d" % n) for n in range(10, 14)]
    data = encode_message_set(messages, magic, codec=codec) + encode_message_set(
        [LegacyMessage(14, -1, 0, None, b"last")], magic
    )
    assert read(chunk(data, from_offset=12)) == [b"v12", b"v13", b"last"]
    assert read(chunk(data[:-3], from_offset=12)) == [b"v12", b"v13"]


def test_a_log_that_was_upgraded_holds_both_formats() -> None:
    old = encode_message_set([LegacyMessage(n, 7, 0, None, b"old%d" % n) for n in range(2)], 1)
    assert read(chunk(old + batch(2, b"new") + batch(3, b"newer"))) == [b"old0", b"old1", b"new", b"newer"]


@given(st.binary(max_size=200))
def test_whatever_bytes_a_broker_sends_the_answer_is_a_chunk_or_a_record_error(data: bytes) -> None:
    from penstock.records import RecordError

    try:
        chunk_of(state_at(0), data)
    except RecordError:
        return


# How far the reader got


def test_the_position_follows_the_record_handed_out_last() -> None:
    found = chunk(batch(0, b"a", b"b", b"c"))
    cursor: Cursor[bytes, bytes] = Cursor(Decoders(None, None))
    cursor.begin(found)
    assert cursor.advance()
    cursor.last = next(cursor.records)
    assert found.state.position == 0
    cursor.settle()
    assert found.state.position == 1


def test_a_seek_while_a_chunk_is_read_leaves_the_position_where_the_user_put_it() -> None:
    found = chunk(batch(0, b"a", b"b", b"c"))
    cursor: Cursor[bytes, bytes] = Cursor(Decoders(None, None))
    cursor.begin(found)
    cursor.advance()
    cursor.last = next(cursor.records)
    found.state.seek(40)
    assert cursor.is_stale
    cursor.drop()
    assert found.state.position == 40


def test_a_paused_chunk_is_dropped_and_read_later_from_its_position() -> None:
    found = chunk(batch(0, b"a", b"b") + batch(2, b"c", b"d"))
    cursor: Cursor[bytes, bytes] = Cursor(Decoders(None, None))
    cursor.begin(found)
    cursor.advance()
    assert [r.value for r in cursor.take(1)] == [b"a"]
    found.state.paused = True
    rest = cursor.release()
    assert rest is not None
    assert cursor.chunk is None
    assert read(rest) == [b"b", b"c", b"d"]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.lists(st.integers(1, 4), min_size=1), st.integers(0, 3))
def test_records_and_slices_may_be_taken_in_turns_and_nothing_is_lost_or_doubled(
    sizes: list[int], bites: list[int], start: int
) -> None:
    data, base = b"", 0
    for size in sizes:
        data += batch(base, *(b"%d" % (base + n) for n in range(size)))
        base += size
    start = min(start, base - 1)
    found = chunk(data, from_offset=start)
    cursor: Cursor[bytes, bytes] = Cursor(Decoders(None, None))
    cursor.begin(found)
    seen: list[int] = []
    turn = 0
    while cursor.chunk is not None:
        bite = bites[turn % len(bites)]
        if turn % 2:
            taken: RecordBatch[bytes, bytes] = RecordBatch(cursor.cut(bite), Decoders(None, None))
            assert len(taken) <= bite
            seen += [record.offset for record in taken]
        else:
            some = cursor.take(bite) or (cursor.take(bite) if cursor.advance() else [])
            seen += [record.offset for record in some]
        turn += 1
    assert seen == list(range(start, base))
    assert found.state.position == base


def test_slices_become_arrow_columns_with_topic_and_partition() -> None:
    found = chunk(batch(0, b"a", None, b"c", codec=Codec.LZ4), from_offset=1)
    cursor: Cursor[bytes, bytes] = Cursor(Decoders(None, None))
    cursor.begin(found)
    table = RecordBatch(cursor.cut(10), Decoders(None, None)).to_arrow(headers=True)
    assert table.to_pydict()["value"] == [None, b"c"]
    assert table.to_pydict()["topic"] == ["t", "t"]
    assert table.to_pydict()["partition"] == [3, 3]
    assert table.to_pydict()["offset"] == [1, 2]
    assert table.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


# Records that cannot be decoded


def undecodable() -> Chunk:
    return chunk(batch(0, b"fine", b"\xff", b"also fine", b"\xfe"))


def test_a_record_that_cannot_be_decoded_is_raised_where_it_stands_again_and_again() -> None:
    found = undecodable()
    cursor: Cursor[Any, str] = Cursor(Decoders(None, Text()))
    cursor.begin(found)
    assert cursor.advance()
    assert [record.value for record in cursor.take(10)] == ["fine"]
    for _ in range(2):
        with pytest.raises(DeserializationError) as caught:
            cursor.advance()
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 3, 1)
        assert caught.value.data == b"\xff"
        assert "skip" in caught.value.hint
    assert found.state.position == 1


def test_records_that_cannot_be_decoded_are_passed_over_where_that_is_wanted() -> None:
    skipped: list[int | None] = []
    decoders: Decoders[Any, str] = Decoders(None, Text(), lambda error: skipped.append(error.offset))
    assert read(undecodable(), decoders) == ["fine", "also fine"]
    assert skipped == [1, 3]


def test_a_batch_decodes_under_the_same_policy() -> None:
    cursor: Cursor[Any, str] = Cursor(Decoders(None, Text()))
    cursor.begin(undecodable())
    slices = cursor.cut(100)
    with pytest.raises(DeserializationError):
        len(RecordBatch(slices, Decoders(None, Text())))
    kept: RecordBatch[Any, str] = RecordBatch(slices, Decoders(None, Text(), lambda error: None))
    assert [record.value for record in kept] == ["fine", "also fine"]
