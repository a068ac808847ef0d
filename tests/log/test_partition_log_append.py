from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.log.log_stories import (
    FOLDER,
    NOW_MS,
    ROOMY,
    TINY,
    base_offsets,
    bases,
    batch_of,
    contents,
    marker_of,
    open_new,
    path_of,
    put,
    reopen,
)

from penstock.log.errors import (
    AppendTooLarge,
    BatchTooLarge,
    CoordinatorFenced,
    DiskFull,
    InvalidBatch,
    InvalidProducerEpoch,
    InvalidTimestamp,
    LogFailed,
    MissingSequence,
    NonMonotonicOffsets,
    NotInTransaction,
    OutOfOrderSequence,
    StaleEpoch,
    TooManyOpenFiles,
)
from penstock.log.partition_log import NO_APPEND_TIME, PartitionLog
from penstock.log.segment import MAX_RELATIVE_OFFSET
from penstock.log.settings import COMPACT, LogSettings
from penstock.records import LOG_APPEND_TIME, Codec, CorruptBatch, decode_batch, encode_batch, scan
from penstock.runtime.files import PosixFiles
from penstock.testing.simulated_files import SimulatedFiles

BATCH = len(batch_of())


def append(log: PartitionLog, batch: bytes | bytearray | memoryview, *, leader_epoch: int = 0) -> tuple[int, int]:
    done = log.append(batch, leader_epoch=leader_epoch, now_ms=NOW_MS)
    return done.base_offset, done.last_offset


def a_log(settings: LogSettings = ROOMY) -> PartitionLog:
    return open_new(SimulatedFiles(), settings)


# --- what a leader does with a batch


def test_records_get_the_next_offsets_and_the_leaders_epoch(tmp_path: Path) -> None:
    log = open_new(PosixFiles(), ROOMY, folder=str(tmp_path / "t-0"))
    assert append(log, batch_of(0, records=3, base_offset=77), leader_epoch=4) == (0, 2)
    assert append(log, batch_of(1, records=1), leader_epoch=4) == (3, 3)
    assert append(log, batch_of(2, records=2), leader_epoch=5) == (4, 5)
    assert log.log_end_offset == 6
    region = log.read(0, 10**6)
    assert region is not None
    headers = scan(region.read()).headers
    assert [(h.base_offset, h.last_offset, h.leader_epoch) for h in headers] == [(0, 2, 4), (3, 3, 4), (4, 5, 5)]
    assert [tuple(entry) for entry in log.epochs.entries] == [(4, 0), (5, 4)]
    log.close()


def test_several_batches_in_one_append_follow_each_other() -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    before = files.operations.count
    assert append(log, batch_of(0) + batch_of(1, records=3) + batch_of(2)) == (0, 6)
    assert files.operations.count == before + 1
    assert base_offsets(log) == [0, 2, 5]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(bytes(data))])
def test_any_buffer_is_taken_and_a_read_only_one_is_left_as_it_is(wrap: type) -> None:
    log = a_log()
    put(log, 0)
    original = bytes(batch_of(1))
    buffer = wrap(bytearray(original))
    assert append(log, buffer) == (2, 3)
    assert append(log, buffer) == (4, 5)
    if isinstance(buffer, bytes) or (isinstance(buffer, memoryview) and buffer.readonly):
        assert bytes(buffer) == original
    assert [batch.keys for batch in contents(log)][1:] == [(b"001-0", b"001-1")] * 2


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_stay_compressed(codec: Codec) -> None:
    log = a_log()
    batch = batch_of(3, records=20, codec=codec)
    append(log, batch)
    assert log.size == len(batch)
    region = log.read(0, 10**6)
    assert region is not None
    assert decode_batch(region.read())[19].key == b"003-19"


# --- bad input


def flipped(position: int, mask: int = 0xFF) -> bytearray:
    batch = batch_of()
    batch[position] ^= mask
    return batch


def with_length(length: int) -> bytearray:
    batch = batch_of()
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    return batch


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("nothing", bytearray()),
        ("a few bytes", bytearray(b"abc")),
        ("zeros", bytearray(200)),
        ("cut off in the header", batch_of()[:30]),
        ("cut off in the records", batch_of()[:-1]),
        ("a whole one, then a part", batch_of() + batch_of()[:-5]),
        ("a whole one, then nonsense", batch_of() + bytearray(b"\xff" * 100)),
        ("a flipped bit in the records", flipped(100, 1)),
        ("a flipped bit in the checksum", flipped(17, 1)),
        ("magic 0", flipped(16, 2)),
        ("magic 1", flipped(16, 3)),
        ("magic 3", flipped(16, 1)),
        ("a negative magic", flipped(16)),
        ("a negative length", with_length(-1)),
        ("no length", with_length(0)),
        ("a length of 48", with_length(48)),
        ("a huge length", with_length(2**31 - 1)),
        ("a negative last offset delta", flipped(23)),
        ("a negative record count", flipped(57)),
        ("more records than offsets", flipped(60, 0x40)),
        ("an unknown codec", flipped(22, 7)),
    ],
)
def test_damaged_batches_are_rejected_and_change_nothing(name: str, bad: bytearray) -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    put(log, 0)
    before = files.operations.count
    with pytest.raises(CorruptBatch):
        append(log, bad)
    assert log.log_end_offset == 2, name
    assert files.operations.count == before
    if "whole one" not in name and "cut off" not in name and len(bad) > 12 and name != "a huge length":
        with pytest.raises(CorruptBatch):
            log.append_as_follower(bad, now_ms=NOW_MS)
    assert append(log, batch_of(1)) == (2, 3)


def recount(batch: bytearray, *, last_delta: int | None = None, count: int | None = None) -> bytearray:
    """A batch whose header lies, with a checksum that fits."""
    from penstock.records.kernel import write_header

    header = scan(batch).headers[0]
    write_header(
        batch, 0, -1, header.attributes, header.last_offset_delta if last_delta is None else last_delta,
        header.base_timestamp, header.max_timestamp, -1, -1, -1, header.record_count if count is None else count,
    )  # fmt: skip
    return batch


@pytest.mark.parametrize("batch", [recount(batch_of(), count=0), recount(batch_of(), last_delta=5)])
def test_a_clients_batch_must_fill_its_offsets(batch: bytearray) -> None:
    log = a_log()
    with pytest.raises(InvalidBatch, match="may not span"):
        append(log, batch)
    # Compaction leaves such batches, so a follower takes them.
    assert log.append_as_follower(batch, now_ms=NOW_MS) is not None


def test_a_client_may_not_write_markers() -> None:
    log = a_log()
    with pytest.raises(InvalidBatch, match="control"):
        append(log, marker_of(1, commit=True))


def test_a_control_batch_that_ends_no_transaction_is_rejected() -> None:
    log = a_log()
    other = encode_batch([(NOW_MS, b"\0\0\0\7", b"\0\0\0\0\0\0", ())], control=True, producer_id=1, producer_epoch=0)
    with pytest.raises(InvalidBatch, match="does not end"):
        log.append(other, leader_epoch=0, now_ms=NOW_MS, from_client=False)


def test_a_marker_without_a_type_is_rejected_before_it_is_written() -> None:
    log = a_log()
    bad = encode_batch(
        [(NOW_MS, b"\0", b"", ())], control=True, transactional=True, producer_id=1, producer_epoch=0, leader_epoch=0
    )
    with pytest.raises(CorruptBatch, match="type"):
        log.append(bytearray(bad), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    with pytest.raises(CorruptBatch, match="type"):
        log.append_as_follower(bad, now_ms=NOW_MS)
    assert log.log_end_offset == 0


def test_a_batch_beyond_max_message_bytes_is_rejected_with_both_numbers() -> None:
    log = a_log(replace(ROOMY, max_message_bytes=BATCH))
    append(log, batch_of(0) + batch_of(1))
    with pytest.raises(BatchTooLarge, match=r"max\.message\.bytes") as caught:
        append(log, batch_of(2, size=101))
    assert (caught.value.size, caught.value.limit) == (BATCH + 2, BATCH)
    # The limit may have been lowered on the leader since: what it holds, the follower must take.
    assert log.append_as_follower(batch_of(2, size=500, base_offset=4, leader_epoch=0), now_ms=NOW_MS) is not None


def test_an_append_that_no_segment_could_hold_is_rejected() -> None:
    log = a_log(TINY)
    with pytest.raises(AppendTooLarge):
        append(log, batch_of(0) + batch_of(1) + batch_of(2))
    assert log.log_end_offset == 0


def test_an_idempotent_producer_sends_one_batch_at_a_time() -> None:
    log = a_log()
    with pytest.raises(InvalidBatch, match="one batch"):
        append(log, batch_of(0, producer=1) + batch_of(1, producer=1))


def test_a_compacted_topic_rejects_records_without_a_key() -> None:
    log = a_log(replace(ROOMY, cleanup_policy=frozenset({COMPACT})))
    for codec in (Codec.NONE, Codec.LZ4):
        with pytest.raises(InvalidBatch, match="key"):
            append(log, encode_batch([(NOW_MS, b"k", b"v", ()), (NOW_MS, None, b"v", ())], codec=codec))
        append(log, encode_batch([(NOW_MS, b"k", None, ()), (NOW_MS, b"", b"v", ())], codec=codec))


def test_a_leader_whose_successor_wrote_already_may_not_write() -> None:
    log = a_log()
    put(log, 0, leader_epoch=5)
    with pytest.raises(StaleEpoch) as caught:
        put(log, 1, leader_epoch=4)
    assert (caught.value.latest, caught.value.found) == (5, 4)
    assert log.log_end_offset == 2


# --- timestamps


def test_append_time_replaces_the_producers_own() -> None:
    log = a_log(replace(ROOMY, message_timestamp_append_time=True))
    done = log.append(batch_of(0, records=2, stamps=[5, NOW_MS + 10**12]), leader_epoch=0, now_ms=NOW_MS + 9)
    assert done.append_time_ms == NOW_MS + 9
    region = log.read(0, 10**6)
    assert region is not None
    data = region.read()
    assert scan(data).headers[0].timestamp_type == LOG_APPEND_TIME
    assert [record.timestamp for record in decode_batch(data)] == [NOW_MS + 9] * 2
    assert log.active.max_timestamp == NOW_MS + 9


def test_a_retry_is_answered_with_the_time_of_the_first() -> None:
    log = a_log(replace(ROOMY, message_timestamp_append_time=True))
    log.append(batch_of(0, producer=1), leader_epoch=0, now_ms=NOW_MS + 3)
    retry = log.append(batch_of(0, producer=1), leader_epoch=0, now_ms=NOW_MS + 50)
    assert (retry.is_duplicate, retry.base_offset, retry.append_time_ms) == (True, 0, NOW_MS + 3)
    plain = a_log()
    append(plain, batch_of(0, producer=1))
    assert plain.append(batch_of(0, producer=1), leader_epoch=0, now_ms=NOW_MS).append_time_ms == NO_APPEND_TIME


@pytest.mark.parametrize(
    ("stamps", "accepted"),
    [
        ([NOW_MS], True),
        ([NOW_MS + 1000], True),
        ([NOW_MS + 1001], False),
        ([NOW_MS - 500], True),
        ([NOW_MS - 501], False),
        ([NOW_MS - 501, NOW_MS], False),
        ([NOW_MS, NOW_MS + 1001], False),
        ([-1], True),
    ],
)
def test_timestamps_too_far_from_the_brokers_clock_are_rejected(stamps: list[int], accepted: bool) -> None:
    limits = replace(ROOMY, message_timestamp_before_max_ms=500, message_timestamp_after_max_ms=1000)
    log = a_log(limits)
    batch = batch_of(0, records=len(stamps), stamps=stamps)
    if accepted:
        append(log, batch)
    else:
        with pytest.raises(InvalidTimestamp, match="clock"):
            append(log, batch)
        assert log.append_as_follower(batch_of(0, stamps=stamps, records=len(stamps), leader_epoch=0), now_ms=NOW_MS)
    assert log.log_end_offset == len(stamps)
    stamping = a_log(replace(limits, message_timestamp_append_time=True))
    append(stamping, batch_of(0, records=len(stamps), stamps=stamps))


# --- followers


def test_a_follower_takes_offsets_and_epochs_as_they_are() -> None:
    log = a_log()
    pair = batch_of(0, base_offset=7, leader_epoch=3) + batch_of(1, base_offset=20, leader_epoch=4)
    done = log.append_as_follower(bytes(pair), now_ms=NOW_MS)
    assert done is not None
    assert (done.base_offset, done.last_offset) == (7, 21)
    assert log.log_end_offset == 22
    assert base_offsets(log) == [7, 20]
    assert [tuple(entry) for entry in log.epochs.entries] == [(3, 7), (4, 20)]


@pytest.mark.parametrize("cut", [0, 1, 30, 61, 200, BATCH - 1])
def test_a_batch_that_a_fetch_cut_off_is_left_out(cut: int) -> None:
    log = a_log()
    data = batch_of(0, base_offset=0, leader_epoch=0) + batch_of(1, base_offset=2, leader_epoch=0)[:cut]
    done = log.append_as_follower(data, now_ms=NOW_MS)
    assert done is not None
    assert done.last_offset == 1
    assert log.size == BATCH
    assert log.append_as_follower(batch_of(1, base_offset=2, leader_epoch=0)[:cut], now_ms=NOW_MS) is None


@pytest.mark.parametrize(
    "bad",
    [
        batch_of(1, base_offset=1, leader_epoch=0),
        batch_of(1, base_offset=0, leader_epoch=0),
        batch_of(1, base_offset=4, leader_epoch=0) + batch_of(2, base_offset=3, leader_epoch=0),
        batch_of(1, base_offset=4, leader_epoch=0) + batch_of(2, base_offset=4, leader_epoch=0),
    ],
)
def test_offsets_that_do_not_continue_the_log_are_rejected_as_a_whole(bad: bytearray) -> None:
    log = a_log()
    put(log, 0)
    with pytest.raises(NonMonotonicOffsets):
        log.append_as_follower(bad, now_ms=NOW_MS)
    assert base_offsets(log) == [0]


def test_epochs_that_fall_are_rejected_because_recovery_would_cut_there() -> None:
    log = a_log()
    put(log, 0, leader_epoch=3)
    with pytest.raises(StaleEpoch):
        log.append_as_follower(batch_of(1, base_offset=2, leader_epoch=2), now_ms=NOW_MS)
    pair = batch_of(1, base_offset=2, leader_epoch=5) + batch_of(2, base_offset=4, leader_epoch=4)
    with pytest.raises(StaleEpoch):
        log.append_as_follower(pair, now_ms=NOW_MS)
    assert base_offsets(log) == [0]


def test_a_gap_too_wide_for_a_segment_begins_another() -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    far = MAX_RELATIVE_OFFSET + 500
    # Even as the very first: an empty segment cannot hold it either.
    log.append_as_follower(batch_of(0, base_offset=far, leader_epoch=0), now_ms=NOW_MS)
    log.append_as_follower(batch_of(1, base_offset=2 * far, leader_epoch=0), now_ms=NOW_MS)
    assert bases(log) == [0, far + 1 - MAX_RELATIVE_OFFSET, 2 * far + 1 - MAX_RELATIVE_OFFSET]
    assert base_offsets(log) == [far, 2 * far]
    log.close()
    assert base_offsets(reopen(files, ROOMY, clean=True).log) == [far, 2 * far]


@pytest.mark.parametrize("clean", [True, False])
def test_batches_too_far_apart_for_one_segment_are_split_among_several(clean: bool) -> None:
    files = SimulatedFiles()
    log = open_new(files, replace(ROOMY, index_interval_bytes=0))
    far = MAX_RELATIVE_OFFSET
    offsets = [0, 2, far, far + 2, 3 * far]
    together = bytearray().join(batch_of(i, base_offset=at, leader_epoch=0) for i, at in enumerate(offsets))
    appended = log.append_as_follower(together, now_ms=NOW_MS)
    assert appended is not None
    assert (appended.base_offset, appended.last_offset) == (0, 3 * far + 1)
    assert base_offsets(log) == offsets
    assert all(
        0 <= entry.key < 2**31 for index in range(log.segment_count) for entry in log.segment_at(index).index.entries()
    )
    assert append(log, batch_of(9)) == (3 * far + 2, 3 * far + 3), "and the log continues"
    if clean:
        log.close()
    else:
        log.flush()
    again = reopen(files, ROOMY, clean=clean, recovery_point=log.log_end_offset).log
    assert base_offsets(again) == [*offsets, 3 * far + 2]


def test_an_index_leaves_out_what_its_entries_cannot_hold() -> None:
    """As logs of earlier versions have it: a segment whose batches are not within 2^32 of its own offset."""
    files = SimulatedFiles()
    log = open_new(files, replace(ROOMY, index_interval_bytes=0))
    segment = log.active
    for number, at in enumerate((1, 2**32 - 1, 2**32, 2**40)):
        batch = batch_of(number, records=1, base_offset=at)
        segment.append(batch, scan(batch).headers)
    segment.seal()
    assert [entry.key for entry in segment.index.entries()] == [2**32 - 1]
    assert segment.next_offset == 2**40 + 1


def test_a_file_that_cannot_be_opened_without_descriptors_does_not_take_the_log_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(path: str, **_: bool) -> None:
        raise OSError(errno.EMFILE, "too many open files", path)

    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    put(log, 0)
    log.active.drop_file()
    with monkeypatch.context() as patch:
        patch.setattr(files, "open", exhausted)
        with pytest.raises(TooManyOpenFiles):
            put(log, 1)
    assert log.failure is None
    put(log, 1)
    assert base_offsets(log) == [0, 2]


# --- idempotence and transactions


def test_a_retry_is_answered_with_the_first_ones_offsets() -> None:
    log = a_log()
    for number in range(7):
        append(log, batch_of(number, producer=9))
    for number in range(2, 7):
        retry = log.append(batch_of(number, producer=9), leader_epoch=0, now_ms=NOW_MS)
        assert retry.is_duplicate
        assert (retry.base_offset, retry.last_offset) == (number * 2, number * 2 + 1)
    with pytest.raises(OutOfOrderSequence):
        append(log, batch_of(1, producer=9))
    assert log.log_end_offset == 14


def test_what_contradicts_a_producers_history_is_rejected() -> None:
    log = a_log()
    append(log, batch_of(0, producer=9, producer_epoch=2))
    with pytest.raises(OutOfOrderSequence):
        append(log, batch_of(2, producer=9, producer_epoch=2))
    with pytest.raises(InvalidProducerEpoch):
        append(log, batch_of(1, producer=9, producer_epoch=1))
    with pytest.raises(MissingSequence):
        append(log, batch_of(1, producer=9, producer_epoch=2, sequence=-1))
    append(log, batch_of(1, producer=9, producer_epoch=2, transactional=True))
    with pytest.raises(NotInTransaction):
        append(log, batch_of(2, producer=9, producer_epoch=2))
    assert log.log_end_offset == 4


def test_a_transaction_ends_with_a_marker_of_its_coordinator() -> None:
    log = a_log()
    append(log, batch_of(0, producer=9, transactional=True))
    with pytest.raises(InvalidProducerEpoch):
        log.append(marker_of(9, commit=True, epoch=-1), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    log.append(marker_of(9, commit=False, coordinator=3), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    with pytest.raises(CoordinatorFenced):
        log.append(marker_of(9, commit=True, coordinator=2), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    assert log.log_end_offset == 3
    assert [entry.first_offset for entry in log.aborted_between(0, 3)] == [0]


def test_a_follower_learns_of_producers_and_aborts_too() -> None:
    leader, follower = a_log(), a_log()
    append(leader, batch_of(0, producer=9, transactional=True))
    leader.append(marker_of(9, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    append(leader, batch_of(1, producer=9))
    region = leader.read(0, 10**6)
    assert region is not None
    follower.append_as_follower(region.read(), now_ms=NOW_MS)
    assert follower.aborted_between(0, 10) == leader.aborted_between(0, 10) != []
    assert follower.append(batch_of(1, producer=9), leader_epoch=0, now_ms=NOW_MS).is_duplicate


# --- a disk that fails


def test_a_full_disk_rejects_the_append_and_nothing_else() -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    append(log, batch_of(0, producer=9))
    files.operations.fail("write", errno.ENOSPC, path_ending=".log", applied_bytes=70)
    with pytest.raises(DiskFull):
        append(log, batch_of(1, producer=9))
    assert log.failure is None
    assert base_offsets(log) == [0]
    done = log.append(batch_of(1, producer=9), leader_epoch=0, now_ms=NOW_MS)
    assert (done.is_duplicate, done.base_offset) == (False, 2)


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("create", ".log"),
        ("create", ".index"),
        ("create", ".timeindex"),
        ("write", ".index"),
        ("write", ".timeindex"),
        ("create", ".snapshot.tmp"),
        ("write", ".snapshot.tmp"),
        ("rename", ".snapshot.tmp"),
    ],
)
def test_a_full_disk_in_the_middle_of_a_roll_leaves_the_log_as_it_was(kind: str, ending: str) -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, 0, 1)
    before = sorted(files.list_folder(FOLDER))
    files.operations.fail(kind, errno.ENOSPC, path_ending=ending, applied_bytes=3)
    with pytest.raises(DiskFull):
        put(log, 2)
    assert log.failure is None
    assert (bases(log), log.log_end_offset) == ([0], 4)
    assert sorted(files.list_folder(FOLDER)) == before
    put(log, 2, 3, 4)
    assert bases(log) == [0, 4, 8]
    assert base_offsets(log) == [0, 2, 4, 6, 8]
    log.close()
    assert base_offsets(reopen(files, clean=True).log) == [0, 2, 4, 6, 8]


def test_appends_succeed_while_the_disk_has_no_room_for_indexes() -> None:
    files = SimulatedFiles()
    log = open_new(files, replace(ROOMY, index_interval_bytes=1))
    for _ in range(30):
        files.operations.fail("write", errno.ENOSPC, path_ending="index", applied_bytes=5)
    put(log, *range(90))
    assert log.log_end_offset == 180
    log.release()
    assert reopen(files, ROOMY, clean=False).log.log_end_offset == 180


@pytest.mark.parametrize("kind", ["write", "create", "rename"])
def test_a_disk_error_takes_the_log_offline_and_it_says_so(kind: str) -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, 0, 1)
    files.operations.fail(kind, errno.EIO)
    with pytest.raises(LogFailed, match="offline"):
        put(log, 2)
    for attempt in (
        lambda: put(log, 2),
        lambda: log.append_as_follower(batch_of(2, base_offset=4), now_ms=NOW_MS),
        lambda: log.read(0, 100),
        lambda: log.flush(),
        lambda: log.prepare_flush(),
    ):
        with pytest.raises(LogFailed, match="Input/output error"):
            attempt()
    log.close()
    assert base_offsets(reopen(files, clean=False).log)[:2] == [0, 2]


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
def test_an_abort_that_cannot_be_indexed_takes_the_log_offline_and_recovery_indexes_it(error_number: int) -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    append(log, batch_of(0, producer=9, transactional=True))
    files.operations.fail("write", error_number, path_ending=".txnindex", applied_bytes=11)
    with pytest.raises(LogFailed):
        log.append(marker_of(9, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    assert log.failure is not None
    log.close()
    again = reopen(files, ROOMY, clean=False).log
    assert again.log_end_offset == 3
    assert [tuple(entry) for entry in again.aborted_between(0, 3)] == [(9, 0, 2, 3)]


def test_the_log_is_what_was_appended_byte_for_byte() -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    batch = batch_of(1, codec=Codec.ZSTD, records=5)
    put(log, 0)
    append(log, batch, leader_epoch=6)
    stored = files.open(path_of(0)).read_at(BATCH, len(batch))
    assert stored[16:] == batch[16:]
    assert stored[:16] == (2).to_bytes(8, "big") + batch[8:12] + (6).to_bytes(4, "big")
