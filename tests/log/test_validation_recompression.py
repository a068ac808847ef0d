"""Batches that are stored with another codec than they were sent with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.log.log_stories import NOW_MS, ROOMY, base_offsets, batch_of, marker_of, open_new, reopen

from penstock.log.errors import BatchTooLarge, InvalidBatch
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.log.validation import recompressed
from penstock.records import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    Codec,
    CorruptBatch,
    TooLarge,
    decode_batch,
    encode_batch,
    scan,
)
from penstock.records.compression import compress
from penstock.records.kernel import write_header
from penstock.testing.simulated_files import SimulatedFiles

KEPT = (
    "base_offset", "leader_epoch", "last_offset_delta", "base_timestamp", "max_timestamp", "producer_id",
    "producer_epoch", "base_sequence", "record_count", "timestamp_type", "is_transactional",
)  # fmt: skip


def storing(codec: Codec, level: int | None = None, max_message_bytes: int = 1 << 20) -> LogSettings:
    return replace(ROOMY, compression_codec=codec, compression_level=level, max_message_bytes=max_message_bytes)


def kept(header: BatchHeader) -> dict[str, object]:
    return {name: getattr(header, name) for name in KEPT}


def stored(log: PartitionLog) -> bytes:
    region = log.read(log.log_start_offset, 1 << 20)
    assert region is not None
    return region.read()


def put(log: PartitionLog, batch: bytes | bytearray, *, from_client: bool = True) -> tuple[int, int]:
    done = log.append(batch, leader_epoch=0, now_ms=NOW_MS, from_client=from_client)
    return done.base_offset, done.last_offset


def with_payload(payload: bytes, codec: Codec, records: int) -> bytearray:
    """A batch whose header and checksum are right, whatever the payload is."""
    batch = bytearray(HEADER_SIZE) + payload
    write_header(batch, 0, -1, codec, records - 1, NOW_MS, NOW_MS, -1, -1, -1, records)
    return batch


@pytest.mark.parametrize("target", list(Codec))
@pytest.mark.parametrize("source", list(Codec))
def test_only_codec_length_and_checksum_change(source: Codec, target: Codec) -> None:
    batch = batch_of(3, records=40, codec=source, producer=7, producer_epoch=2, sequence=120, transactional=True)
    before = scan(batch)
    after, found = recompressed(storing(target), batch, before)
    (header,) = found.headers
    assert scan(after).problem is None, "the checksum holds"
    assert header.codec == target
    assert kept(header) == kept(before.headers[0])
    assert decode_batch(after) == decode_batch(batch)
    assert (after is batch) == (source == target), "what has the codec already is not touched"


def test_without_a_codec_of_the_topic_everything_stays() -> None:
    batch = batch_of(codec=Codec.GZIP)
    found = scan(batch)
    assert recompressed(ROOMY, batch, found) == (batch, found)


def test_of_several_batches_those_with_the_codec_stay_byte_for_byte() -> None:
    zstd = batch_of(1, codec=Codec.ZSTD)
    batches = batch_of(0, codec=Codec.GZIP) + zstd + batch_of(2)
    after, found = recompressed(storing(Codec.ZSTD), batches, scan(batches))
    assert [header.codec for header in found.headers] == [Codec.ZSTD] * 3
    middle = found.headers[1]
    assert bytes(memoryview(after)[middle.position : middle.end]) == zstd
    assert [record.key for header in found.headers for record in decode_batch(after, header.position)] == [
        record.key for number in range(3) for record in decode_batch(batch_of(number))
    ]


@pytest.mark.parametrize("target", list(Codec))
def test_control_batches_are_left_alone(target: Codec) -> None:
    marker = marker_of(5, commit=True)
    after, _ = recompressed(storing(target), marker, scan(marker))
    assert after is marker


@pytest.mark.parametrize(("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 12), (Codec.ZSTD, 1, 19)])
def test_a_compression_level_is_applied(codec: Codec, low: int, high: int) -> None:
    words = b" ".join(b"%d %d" % (number, number * number % 977) for number in range(4000))
    batch = encode_batch([(NOW_MS, b"k", words, ())])
    sizes = [len(recompressed(storing(codec, level), batch, scan(batch))[0]) for level in (low, high)]
    assert sizes[1] < sizes[0] < len(batch)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_what_does_not_decompress_is_corrupt(codec: Codec) -> None:
    whole = batch_of(records=30, codec=codec)
    payload = bytes(whole[HEADER_SIZE:])
    target = storing(Codec.NONE if codec is Codec.GZIP else Codec.GZIP)
    for damaged in (payload[:-5], b"\xff" * 40, b""):
        batch = with_payload(damaged, codec, 30)
        with pytest.raises(CorruptBatch):
            recompressed(target, batch, scan(batch))


def test_a_batch_that_holds_less_than_it_says_is_not_stored_for_recovery_to_cut_at() -> None:
    files = SimulatedFiles()
    log = open_new(files, storing(Codec.NONE))
    put(log, batch_of())
    with pytest.raises(InvalidBatch, match="records do not fit"):
        put(log, with_payload(compress(Codec.GZIP, b""), Codec.GZIP, 100))
    put(log, batch_of(1))
    log.close()
    assert base_offsets(reopen(files, storing(Codec.NONE), clean=False).log) == [0, 2]


def test_an_error_names_the_place_in_what_was_sent() -> None:
    first = batch_of(records=30, codec=Codec.GZIP)
    batches = first + with_payload(compress(Codec.GZIP, b""), Codec.GZIP, 100)
    with pytest.raises(CorruptBatch) as raised:
        recompressed(storing(Codec.NONE), batches, scan(batches))
    assert raised.value.position == len(first)


def test_stored_uncompressed_a_batch_may_not_grow_beyond_what_the_topic_takes() -> None:
    packed = encode_batch([(NOW_MS, b"k", bytes(5000), ())], codec=Codec.GZIP)
    with pytest.raises(TooLarge):
        recompressed(storing(Codec.NONE, max_message_bytes=4000), packed, scan(packed))
    after, _ = recompressed(storing(Codec.NONE, max_message_bytes=6000), packed, scan(packed))
    assert len(after) > 5000


def test_a_weaker_codec_may_make_a_batch_too_large() -> None:
    words = b" ".join(b"%d" % (number * number) for number in range(3000))
    packed = encode_batch([(NOW_MS, b"k", words, ())], codec=Codec.ZSTD, level=19)
    with pytest.raises(BatchTooLarge):
        recompressed(storing(Codec.LZ4, max_message_bytes=len(packed)), packed, scan(packed))


def test_a_bomb_is_stopped_while_it_grows() -> None:
    bomb = with_payload(compress(Codec.ZSTD, bytes(17 * 1024 * 1024)), Codec.ZSTD, 1)
    assert len(bomb) < 10_000
    with pytest.raises(TooLarge):
        recompressed(storing(Codec.LZ4), bomb, scan(bomb))


def test_a_log_stores_what_its_topic_wants_and_numbers_it() -> None:
    files = SimulatedFiles()
    log = open_new(files, storing(Codec.ZSTD))
    batch = batch_of(0, records=3, codec=Codec.GZIP)
    assert put(log, bytes(batch)) == (0, 2)
    assert put(log, batch_of(1, records=2)) == (3, 4)
    log.settings = ROOMY
    assert put(log, batch_of(2, codec=Codec.SNAPPY)) == (5, 6)
    headers = scan(stored(log)).headers
    assert [header.codec for header in headers] == [Codec.ZSTD, Codec.ZSTD, Codec.SNAPPY]
    assert [header.base_offset for header in headers] == [0, 3, 5]
    log.close()
    assert base_offsets(reopen(files, clean=False).log) == [0, 3, 5]


def test_append_time_and_another_codec_go_together() -> None:
    log = open_new(SimulatedFiles(), replace(storing(Codec.LZ4), message_timestamp_append_time=True))
    put(log, batch_of(0, stamps=[1, 2], codec=Codec.GZIP))
    (header,) = scan(stored(log)).headers
    assert (header.codec, header.timestamp_type, header.max_timestamp) == (Codec.LZ4, LOG_APPEND_TIME, NOW_MS)


def test_a_retry_is_known_whatever_codec_the_first_was_stored_with() -> None:
    log = open_new(SimulatedFiles(), storing(Codec.ZSTD))
    batch = batch_of(0, codec=Codec.GZIP, producer=4, sequence=0)
    first = log.append(bytes(batch), leader_epoch=0, now_ms=NOW_MS)
    again = log.append(bytes(batch), leader_epoch=0, now_ms=NOW_MS)
    assert (again.is_duplicate, again.base_offset, again.last_offset) == (True, first.base_offset, first.last_offset)


def test_markers_in_a_log_with_a_codec_still_end_transactions() -> None:
    log = open_new(SimulatedFiles(), storing(Codec.GZIP))
    put(log, batch_of(0, producer=4, sequence=0, transactional=True))
    log.advance_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 0
    put(log, marker_of(4, commit=True), from_client=False)
    log.advance_high_watermark(log.log_end_offset)
    assert [header.codec for header in scan(stored(log)).headers] == [Codec.GZIP, Codec.NONE]
    assert log.last_stable_offset == log.log_end_offset == 3
