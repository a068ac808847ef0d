"""One compaction of a log: what stays, what goes, and changes of the log meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.log.compaction_stories import (
    FOLDER,
    NOW,
    RETENTION_MS,
    SMALL,
    WIDE,
    batches_in,
    clean,
    leftovers,
    new_log,
    pairs_in,
    put,
    records_in,
    reopened,
    seal,
    settle,
    view_of,
    without_snapshots,
)

from penstock.log.compaction.job import Compaction, compact, plan_for
from penstock.log.compaction.record_filter import KEY_OVERHEAD_BYTES
from penstock.log.errors import (
    CompactionCancelled,
    CompactionError,
    CompactionFailed,
    CompactionOvertaken,
    DamagedLog,
    DiskFull,
    LogFailed,
)
from penstock.log.partition_log import PartitionLog, latest_timestamp, offset_for_time
from penstock.log.retention import enforce_retention
from penstock.log.settings import COMPACT, DELETE
from penstock.log.truncation import truncate_to
from penstock.records import LOG_APPEND_TIME, Codec, decode_batch, encode_batch
from penstock.records.kernel import count_null_keys, write_header
from penstock.runtime.files import Files, PosixFiles
from penstock.testing.simulated_faults import Fault, Operation
from penstock.testing.simulated_files import SimulatedFiles


@pytest.fixture
def log() -> PartitionLog:
    return new_log(SimulatedFiles())


def fill(log: PartitionLog, rounds: int = 6, keys: int = 4) -> dict[bytes, bytes]:
    """Every key in each round, a batch each; then all of it ready to be cleaned."""
    latest: dict[bytes, bytes] = {}
    for number in range(rounds):
        for key in range(keys):
            value = b"%d of key %d" % (number, key) + b"." * 30
            put(log, (b"key-%d" % key, value), at_ms=NOW + number)
            latest[b"key-%d" % key] = value
    seal(log)
    return latest


# --- what stays


@pytest.mark.parametrize("codec", list(Codec))
def test_of_every_key_the_newest_record_is_left_as_it_was(log: PartitionLog, codec: Codec) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"), codec=codec)
    put(log, (b"a", b"2"), (b"a", b"3"), (b"d", b"1"), codec=codec, at_ms=NOW + 10)
    put(log, (b"b", b"2"), codec=codec, at_ms=NOW + 20)
    seal(log)
    before = {record.offset: record for record in records_in(log)}
    size = log.size
    result = clean(log)
    assert [(record.offset, record.key, record.value) for record in records_in(log)] == [
        (2, b"c", b"1"),
        (4, b"a", b"3"),
        (5, b"d", b"1"),
        (6, b"b", b"2"),
    ]
    for record in records_in(log):
        assert record == before[record.offset]
        assert record.headers
    assert {header.codec for header, _ in batches_in(log)} == {codec}
    assert result.first_dirty_offset == 7
    assert (result.stats.records_before, result.stats.records_after) == (7, 4)
    assert (result.stats.bytes_before, result.stats.bytes_after) == (size, log.size)
    assert leftovers(log) == []


def test_a_batch_of_which_nothing_goes_keeps_its_bytes(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), codec=Codec.GZIP)
    put(log, (b"c", b"1"))
    put(log, (b"d", b"1"), (b"d", b"2"))
    seal(log)
    before = [data for _, data in batches_in(log)]
    clean(log)
    after = [data for _, data in batches_in(log)]
    assert after[:2] == before[:2]
    assert after[2] != before[2]


def test_offsets_epochs_sequences_and_flags_of_a_rewritten_batch_are_its_own(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), producer=7, sequence=0, epoch=3)
    put(log, (b"x", b"1"))
    seal(log)
    before = batches_in(log)[0][0]
    clean(log)
    after = batches_in(log)[0][0]
    for name in (
        "base_offset", "last_offset", "leader_epoch", "attributes", "base_timestamp", "max_timestamp", "producer_id",
        "producer_epoch", "base_sequence", "last_sequence",
    ):  # fmt: skip
        assert getattr(after, name) == getattr(before, name), name
    assert (before.record_count, after.record_count) == (3, 2)


def test_small_segments_become_one_and_offsets_in_the_holes_are_still_readable(log: PartitionLog) -> None:
    latest = fill(log)
    count = len(log.table)
    assert count > 3
    log.settings = WIDE
    result = clean(log)
    assert (result.segments_before, result.segments_after) == (count, 1)
    assert log.segment_count == 2
    assert view_of(log) == latest
    for offset in range(log.log_end_offset):
        region = log.read(offset, 10_000)
        assert region is not None
        assert decode_batch(region.read())[0].offset >= offset
    assert log.files.size_of(f"{FOLDER}/{0:020d}.log") == log.table.sizes[0]
    assert sorted(name for name in log.files.list_folder(FOLDER) if name.endswith(".log")) == [
        f"{0:020d}.log",
        f"{log.log_end_offset:020d}.log",
    ]


def test_a_log_that_is_not_due_is_left_alone(log: PartitionLog) -> None:
    fill(log)
    end = clean(log).first_dirty_offset
    assert compact(log, end, NOW) is None
    picky = replace(SMALL, min_cleanable_dirty_ratio=0.9)
    log.settings = picky
    put(log, (b"key-0", b"x"))
    seal(log)
    assert compact(log, end, NOW) is None
    assert plan_for(log, end, NOW).dirty_bytes > 0


def test_what_is_not_replicated_durable_or_sealed_is_not_touched(log: PartitionLog) -> None:
    for number in range(4):
        put(log, (b"a", b"%d" % number))
        log.roll(log.log_end_offset, NOW)
    put(log, (b"a", b"4"))
    log.flush()
    log.advance_high_watermark(3)
    log.checkpointed_offset = 2
    clean(log)
    assert pairs_in(log) == [(b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4")]
    log.checkpointed_offset = 5
    clean(log)
    assert pairs_in(log) == [(b"a", b"2"), (b"a", b"3"), (b"a", b"4")]


def test_records_without_a_key_go(log: PartitionLog) -> None:
    put(log, (None, b"1"), (b"a", b"1"), (None, None), from_client=False)
    put(log, (None, b"2"), from_client=False)
    put(log, (b"b", b"1"))
    seal(log)
    clean(log)
    assert pairs_in(log) == [(b"a", b"1"), (b"b", b"1")]
    assert all(count_null_keys(data, 61, len(data), header.record_count) == 0 for header, data in batches_in(log))


def test_an_empty_key_is_a_key(log: PartitionLog) -> None:
    put(log, (b"", b"1"), (b"a", b"1"))
    put(log, (b"", b"2"))
    seal(log)
    clean(log)
    assert pairs_in(log) == [(b"a", b"1"), (b"", b"2")]


def test_a_second_round_reads_only_the_dirty_keys_and_cleans_the_whole_log(log: PartitionLog) -> None:
    fill(log, rounds=3)
    end = clean(log).first_dirty_offset
    put(log, (b"key-1", b"new"))
    put(log, (b"other", b"new"))
    seal(log)
    result = clean(log, end)
    assert result.map_bytes < 3 * (KEY_OVERHEAD_BYTES + 10)
    assert [key for key, _ in pairs_in(log)] == [b"key-0", b"key-2", b"key-3", b"key-1", b"other"]


def test_time_lookups_find_what_is_left(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), at_ms=NOW)
    put(log, (b"b", b"1"), (b"a", b"late"), at_ms=NOW + 100)
    put(log, (b"a", b"2"), at_ms=NOW + 50)
    seal(log)
    clean(log)
    latest = latest_timestamp(log)
    assert latest is not None
    assert (latest.offset, latest.timestamp) == (1, NOW + 100)
    found = offset_for_time(log, NOW)
    assert found is not None
    assert found.offset == 1
    assert offset_for_time(log, NOW + 101) is None


def test_a_segment_of_which_nothing_is_left_keeps_its_end(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll(log.log_end_offset, NOW)
    put(log, (b"a", b"3"))
    seal(log)
    log.settings = replace(SMALL, segment_bytes=100)
    clean(log)
    assert [(header.base_offset, header.last_offset, header.record_count) for header, _ in batches_in(log)] == [
        (0, 1, 0),
        (2, 2, 1),
    ]
    # A reader moves on to the end, and truncation at the boundary does not take more than was asked for.
    truncate_to(log, 2, NOW)
    assert log.log_end_offset == 2
    clean_again = new_log(SimulatedFiles(), WIDE)
    put(clean_again, (b"a", b"1"))
    seal(clean_again)
    put(clean_again, (b"a", b"2"))
    seal(clean_again)
    clean(clean_again)
    assert [header.base_offset for header, _ in batches_in(clean_again)] == [1]


def test_the_last_empty_batch_goes_when_its_segment_joins_another(log: PartitionLog) -> None:
    for number in range(3):
        put(log, (b"a", b"%d" % number + b"." * 200))
        log.roll(log.log_end_offset, NOW)
    settle(log)
    log.settings = replace(SMALL, segment_bytes=300)
    end = clean(log).first_dirty_offset
    assert [header.record_count for header, _ in batches_in(log)] == [0, 0, 1]
    log.settings = WIDE
    clean(log, end)
    assert [header.record_count for header, _ in batches_in(log)] == [1]


# --- tombstones


def test_a_tombstone_outlives_its_value_by_the_retention_and_then_goes_too(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"), at_ms=NOW)
    put(log, (b"a", None), (b"d", b"1"), at_ms=NOW + 5)
    put(log, (b"e", b"1"), at_ms=NOW + 7)
    seal(log)
    stamps = {record.offset: record.timestamp for record in records_in(log)}
    end = clean(log, now_ms=NOW + 50).first_dirty_offset
    horizon = NOW + 50 + RETENTION_MS
    assert pairs_in(log) == [(b"b", b"1"), (b"c", b"1"), (b"a", None), (b"d", b"1"), (b"e", b"1")]
    first, second, third = (header for header, _ in batches_in(log))
    assert not first.has_delete_horizon
    assert not third.has_delete_horizon
    assert (second.has_delete_horizon, second.base_timestamp) == (True, horizon)
    assert {record.offset: record.timestamp for record in records_in(log)} == {o: stamps[o] for o in (1, 2, 3, 4, 5)}
    assert second.max_timestamp == NOW + 6
    # The horizon is set once: neither a later round moves it, nor one at the very moment ends it.
    for now_ms in (NOW + 500, horizon):
        clean(log, end, now_ms=now_ms)
        assert (b"a", None) in pairs_in(log)
        assert batches_in(log)[1][0].base_timestamp == horizon
    clean(log, end, now_ms=horizon + 1)
    assert pairs_in(log) == [(b"b", b"1"), (b"c", b"1"), (b"d", b"1"), (b"e", b"1")]
    assert {record.offset: record.timestamp for record in records_in(log)} == {o: stamps[o] for o in (1, 2, 4, 5)}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_a_batch_of_tombstones_alone_gets_a_horizon_too(log: PartitionLog, codec: Codec) -> None:
    put(log, (b"a", None), (b"b", None), codec=codec)
    put(log, (b"c", b"1"))
    seal(log)
    result = clean(log)
    assert result.stats.tombstones_after == 2
    header = batches_in(log)[0][0]
    assert (header.record_count, header.has_delete_horizon, header.codec) == (2, True, codec)
    clean(log, 3, now_ms=NOW + RETENTION_MS + 1)
    assert pairs_in(log) == [(b"c", b"1")]


def test_a_tombstone_that_is_replaced_goes_at_once(log: PartitionLog) -> None:
    put(log, (b"a", None))
    put(log, (b"a", b"2"))
    seal(log)
    clean(log)
    assert pairs_in(log) == [(b"a", b"2")]


def test_tombstones_that_are_kept_forever_do_not_overflow(log: PartitionLog) -> None:
    log.settings = replace(SMALL, delete_retention_ms=2**63 - 1)
    put(log, (b"a", None), at_ms=NOW)
    put(log, (b"b", b"1"))
    seal(log)
    clean(log)
    assert batches_in(log)[0][0].base_timestamp == 2**63 - 1
    assert records_in(log)[0].timestamp == NOW


def test_append_time_is_not_lost_when_a_horizon_is_set(log: PartitionLog) -> None:
    log.settings = replace(SMALL, message_timestamp_append_time=True)
    put(log, (b"a", None), (b"b", b"1"), (b"b", b"2"), at_ms=NOW + 5)
    put(log, (b"c", b"1"), at_ms=NOW + 6)
    seal(log)
    clean(log)
    header = batches_in(log)[0][0]
    assert (header.timestamp_type, header.max_timestamp, header.record_count) == (LOG_APPEND_TIME, NOW + 5, 2)
    assert [record.timestamp for record in records_in(log)] == [NOW + 5, NOW + 5, NOW + 6]


# --- a map that is too small


def test_a_map_that_is_too_small_still_makes_progress(log: PartitionLog) -> None:
    latest = fill(log, rounds=5, keys=6)
    size, first_dirty, rounds = log.size, 0, 0
    while first_dirty < log.log_end_offset:
        result = compact(log, first_dirty, NOW, map_bytes=2 * KEY_OVERHEAD_BYTES + 20, only_if_due=False)
        assert result is not None
        assert result.first_dirty_offset > first_dirty
        assert result.map_bytes <= 3 * (KEY_OVERHEAD_BYTES + 5)
        assert view_of(log) == latest
        first_dirty, rounds = result.first_dirty_offset, rounds + 1
    assert rounds > 5
    assert log.size < size
    assert len(records_in(log)) == 6
    assert log.segment_count < 10


def test_where_the_map_ends_in_the_midst_of_a_segment_the_rest_of_it_stays(log: PartitionLog) -> None:
    log.settings = WIDE
    put(log, (b"a", b"1"), (b"a", b"2"))
    put(log, (b"a", b"3"))
    put(log, (b"b", b"1"), (b"b", b"2"))
    put(log, (b"a", None))
    seal(log)
    result = compact(log, 0, NOW, map_bytes=KEY_OVERHEAD_BYTES * 2 + 20, only_if_due=False)
    assert result is not None
    assert result.first_dirty_offset == 3
    assert pairs_in(log) == [(b"a", b"3"), (b"b", b"1"), (b"b", b"2"), (b"a", None)]
    assert not any(header.has_delete_horizon for header, _ in batches_in(log))
    clean(log, 3)
    assert pairs_in(log) == [(b"b", b"2"), (b"a", None)]
    assert batches_in(log)[-1][0].has_delete_horizon


# --- producers


def test_duplicates_are_still_recognised_when_all_records_of_a_producer_are_gone(log: PartitionLog) -> None:
    for number in range(3):
        put(log, (b"a", b"%d" % number), producer=9, sequence=number)
    put(log, (b"a", b"last"))
    seal(log)
    clean(log)
    assert pairs_in(log) == [(b"a", b"last")]
    assert [(header.producer_id, header.record_count) for header, _ in batches_in(log)] == [(9, 0), (-1, 1)]
    again = without_snapshots(log)
    entry = again.producers.get(9)
    assert entry is not None
    assert (entry.epoch, entry.batches[-1].last_sequence, entry.batches[-1].last_offset) == (0, 2, 2)
    retried = encode_batch([(NOW, b"a", b"2", ())], producer_id=9, producer_epoch=0, base_sequence=2)
    appended = again.append(retried, leader_epoch=1, now_ms=NOW)
    assert (appended.is_duplicate, appended.base_offset) == (True, 2)
    assert put(again, (b"a", b"next"), producer=9, sequence=3) == 4


def test_an_empty_batch_is_without_codec_and_readable(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", None), producer=9, sequence=0, codec=Codec.LZ4)
    put(log, (b"a", b"2"), (b"b", b"2"))
    seal(log)
    clean(log)
    header, data = batches_in(log)[0]
    assert (header.size, header.record_count, header.codec, header.max_timestamp) == (61, 0, 0, -1)
    assert decode_batch(data) == []
    assert (header.base_offset, header.last_offset, header.last_sequence) == (0, 1, 1)


def test_the_empty_batch_of_a_producer_that_wrote_on_or_was_forgotten_goes(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), producer=9, sequence=0)
    put(log, (b"a", b"1"), producer=8, sequence=0)
    put(log, (b"a", b"2"))
    seal(log)
    end = clean(log).first_dirty_offset
    assert len(batches_in(log)) == 3
    put(log, (b"b", b"1"), producer=9, sequence=1)
    log.producers.remove_expired(NOW, 0)
    put(log, (b"c", b"1"), producer=9, sequence=2)
    clean(log, end)
    assert [header.producer_id for header, _ in batches_in(log)] == [-1, 9, 9]


# --- damage, full disks, cancelling


def segments_of(log: PartitionLog) -> dict[str, bytes]:
    files = log.files
    names = [name for name in files.list_folder(log.folder) if name.endswith((".log", ".index", ".timeindex"))]
    content = {}
    for name in names:
        file = files.open(f"{log.folder}/{name}", writable=False)
        content[name] = file.read_at(0, file.size())
    return content


@pytest.mark.parametrize("segment", [0, 2])
def test_damage_is_reported_and_nothing_is_changed(segment: int) -> None:
    files = SimulatedFiles()
    log = new_log(files)
    fill(log)
    path = f"{FOLDER}/{log.table.bases[segment]:020d}.log"
    files.corrupt(path, 100)
    before = segments_of(log)
    with pytest.raises(DamagedLog) as caught:
        clean(log)
    assert caught.value.path == path
    assert caught.value.position <= 100
    assert segments_of(log) == before
    assert leftovers(log) == []


def test_damage_behind_a_right_checksum_is_found_too(log: PartitionLog) -> None:
    """A batch that lies about its records: sound to every reader of headers."""
    batch = encode_batch([(NOW, b"a", b"1", ()), (NOW, b"b", b"1", ())])
    batch[61] = 0xFE
    write_header(batch, 0, 1, 0, 1, NOW, NOW, -1, -1, -1, 2)
    log.append_as_follower(batch, now_ms=NOW)
    seal(log)
    with pytest.raises(DamagedLog):
        clean(log)
    assert leftovers(log) == []


def test_a_segment_that_lost_its_end_is_damaged_and_not_walked_forever(log: PartitionLog) -> None:
    fill(log)
    path = f"{FOLDER}/{log.table.bases[1]:020d}.log"
    file = log.files.open(path)
    file.truncate(0)
    with pytest.raises(DamagedLog) as caught:
        clean(log)
    assert caught.value.path == path


def test_a_batch_that_decompresses_beyond_the_limit_is_rejected(log: PartitionLog) -> None:
    log.settings = WIDE
    put(log, (b"a", bytes(200_000)), codec=Codec.GZIP)
    seal(log)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW, decompressed_limit=100_000)
    with pytest.raises(CompactionFailed, match="limit of 100000 bytes"):
        round_.prepare()
    assert leftovers(log) == []
    assert round_.result is None


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", ["create", "write", "sync"])
def test_a_disk_that_is_full_or_fails_while_cleaning_leaves_the_log_as_it_was(kind: str, error_number: int) -> None:
    expected = DiskFull if error_number == errno.ENOSPC else CompactionFailed
    for ending in (".log.cleaned", ".index.cleaned", ".timeindex.cleaned"):
        for settings, skip in ((WIDE, 0), (SMALL, 1)):
            files = SimulatedFiles()
            log = new_log(files)
            latest = fill(log, rounds=2, keys=20)
            log.settings = settings
            before = segments_of(log)
            files.operations.fail(kind, error_number, path_ending=ending, skip=skip)
            with pytest.raises(expected):
                clean(log)
            assert leftovers(log) == []
            assert log.failure is None
            assert (segments_of(log) == before) == (settings is WIDE), "what was installed before stays"
            assert view_of(log) == latest
            put(log, (b"goes", b"on"))
            settle(log)
            clean(log)
            assert view_of(log) == latest | {b"goes": b"on"}


def test_a_full_disk_keeps_nothing_of_a_compaction() -> None:
    files = SimulatedFiles()
    log = new_log(files, WIDE)
    for number in range(40):
        put(log, (b"%d" % number, bytes(1000)))
    put(log, (b"0", b"new"))
    seal(log)
    free = files.space("/").free
    files.capacity_bytes = files.space("/").total - free + 20_000
    with pytest.raises(DiskFull):
        clean(log)
    assert leftovers(log) == []
    assert len(records_in(log)) == 41
    files.capacity_bytes = None
    clean(log)
    assert len(records_in(log)) == 40


def test_a_disk_that_fails_in_the_midst_of_a_swap_takes_the_log_offline_until_it_is_opened_again() -> None:
    for kind in ("rename", "sync_folder", "remove"):
        files = SimulatedFiles()
        log = new_log(files)
        latest = fill(log)
        log.settings = WIDE
        files.operations.fail(kind, errno.EIO)
        with pytest.raises(LogFailed):
            clean(log)
        assert log.failure is not None
        again = reopened(log, clean=False)
        assert view_of(again) == latest
        assert leftovers(again) == []


def test_a_compaction_can_be_cancelled_at_any_piece(log: PartitionLog) -> None:
    latest = fill(log)
    log.settings = WIDE
    before = segments_of(log)
    pieces = 2 * len(log.table)  # each segment is read twice
    for asked in range(pieces):
        answers = iter([False] * asked + [True])
        with pytest.raises(CompactionCancelled):
            compact(log, 0, NOW, cancelled=lambda answers=answers: next(answers))  # type: ignore[misc]
        assert leftovers(log) == []
        assert segments_of(log) == before
    answers = iter([False] * pieces)
    assert compact(log, 0, NOW, cancelled=lambda: next(answers)) is not None
    assert view_of(log) == latest


def test_a_round_that_has_ended_cannot_be_taken_up_again(log: PartitionLog) -> None:
    fill(log)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    with pytest.raises(CompactionCancelled):
        round_.prepare(lambda: True)
    with pytest.raises(CompactionError):
        round_.prepare()
    other = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    group = other.prepare()
    assert group is not None
    with pytest.raises(CompactionError):
        other.prepare()
    other.discard()
    assert leftovers(log) == []
    with pytest.raises(CompactionError):
        other.install(log, group)


# --- a log that continues meanwhile


def test_the_log_continues_while_a_compaction_is_prepared(log: PartitionLog) -> None:
    latest = fill(log)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    number = 0
    while True:
        group = round_.prepare()
        for _ in range(3):
            put(log, (b"key-%d" % (number % 5), b"while at it %d" % number), producer=4, sequence=number)
            latest[b"key-%d" % (number % 5)] = b"while at it %d" % number
            number += 1
        if group is None:
            break
        log.roll(log.log_end_offset, NOW)
        round_.install(log, group)
        assert view_of(log) == latest
    assert round_.result is not None
    assert view_of(log) == latest
    settle(log)
    assert view_of(reopened(log, clean=False)) == latest


def test_preparing_in_another_thread_does_not_disturb_the_log(tmp_path: Path) -> None:
    log = new_log(PosixFiles(), replace(WIDE, segment_bytes=20_000), folder=str(tmp_path / "t-0"))
    latest = fill(log, rounds=40, keys=30)
    log.settings = replace(WIDE, segment_bytes=50_000)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    number = 0
    with ThreadPoolExecutor(1) as pool:
        while True:
            preparing = pool.submit(round_.prepare)
            while True:
                key = b"key-%d" % (number % 7)
                latest[key] = b"meanwhile %d" % number
                put(log, (key, latest[key]))
                log.read(number % log.log_end_offset, 1000)
                number += 1
                if preparing.done():
                    break
            group = preparing.result()
            if group is None:
                break
            round_.install(log, group)
    assert round_.result is not None
    assert round_.result.segments_before > round_.result.segments_after
    assert view_of(log) == latest
    log.close()


def test_readers_under_way_keep_the_bytes_they_were_promised(tmp_path: Path) -> None:
    log = new_log(PosixFiles(), folder=str(tmp_path / "t-0"))
    latest = fill(log)
    region = log.read(0, 10_000)
    assert region is not None
    promised = region.read()
    clean(log)
    assert region.read() == promised
    assert view_of(log) == latest
    now = log.read(0, 10_000)
    assert now is not None
    assert now.read() != promised


Change = Callable[[PartitionLog], object]


def cut(log: PartitionLog) -> None:
    truncate_to(log, 5, NOW)


def cut_and_write_the_same_again(log: PartitionLog) -> None:
    end = log.log_end_offset
    truncate_to(log, 1, NOW)
    while log.log_end_offset < end:
        put(log, (b"key-%d" % (log.log_end_offset % 4), b"rewritten" + b"." * 30))
    seal(log)


def trim(log: PartitionLog) -> None:
    log.advance_start(log.table.bases[2])
    enforce_retention(log, NOW)


def compact_beside(log: PartitionLog) -> None:
    """What no caller should do: a second compaction while the first is running."""
    file = log.files.open(f"{FOLDER}/{0:020d}.log.cleaned")
    data = file.read_at(0, file.size())
    clean(log)
    log.files.open(f"{FOLDER}/{0:020d}.log.cleaned", create=True).write_at(0, data)


@pytest.mark.parametrize("change", [cut, cut_and_write_the_same_again, trim, compact_beside])
def test_a_log_that_is_cut_or_trimmed_between_prepare_and_install_discards_what_was_prepared(
    log: PartitionLog, change: Change
) -> None:
    fill(log)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    group = round_.prepare()
    assert group is not None
    assert round_.is_current(log)
    change(log)
    before, contents = segments_of(log), pairs_in(log)
    assert not round_.is_current(log)
    with pytest.raises(CompactionOvertaken):
        round_.install(log, group)
    assert [name for name in leftovers(log) if not name.endswith(".deleted")] == []
    assert segments_of(log) == before
    assert pairs_in(log) == contents
    assert round_.result is None


@pytest.mark.parametrize("change", [cut, trim])
def test_a_log_that_is_cut_or_trimmed_while_it_is_read_is_not_called_damaged(log: PartitionLog, change: Change) -> None:
    """Code that changes the log cancels first."""
    fill(log)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    is_cancelled = False

    def cut_while_reading() -> bool:
        nonlocal is_cancelled
        if not is_cancelled:
            change(log)
            is_cancelled = True
            return False  # the reader asked just before
        return True

    with pytest.raises(CompactionCancelled):
        round_.prepare(cut_while_reading)
    assert not round_.is_current(log)
    assert [name for name in leftovers(log) if not name.endswith(".deleted")] == []


@pytest.mark.parametrize("change", [cut, trim])
def test_without_cancelling_a_change_of_the_log_is_still_detected(log: PartitionLog, change: Change) -> None:
    fill(log)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    change(log)
    with pytest.raises((DamagedLog, CompactionOvertaken)):
        round_.prepare()
    assert not round_.is_current(log)


def test_an_offline_log_takes_no_compaction(log: PartitionLog) -> None:
    fill(log)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    group = round_.prepare()
    assert group is not None
    log.fail(OSError(errno.EIO, "gone"))
    with pytest.raises(LogFailed):
        round_.install(log, group)
    assert leftovers(log) == []


# --- with retention


def test_old_segments_of_a_compacted_log_that_is_also_trimmed_go(log: PartitionLog) -> None:
    log.settings = replace(SMALL, cleanup_policy=frozenset({COMPACT, DELETE}), retention_ms=10_000)
    put(log, (b"old", b"1"), at_ms=NOW)
    put(log, (b"older", b"1"), at_ms=NOW)
    seal(log)
    put(log, (b"young", b"1"), at_ms=NOW + 9_000)
    seal(log)
    log.settings = replace(log.settings, segment_bytes=200)
    first_dirty = clean(log).first_dirty_offset
    assert pairs_in(log) == [(b"old", b"1"), (b"older", b"1"), (b"young", b"1")]
    assert enforce_retention(log, NOW + 10_001)
    assert log.log_start_offset == 2
    assert pairs_in(log) == [(b"young", b"1")]
    put(log, (b"young", b"2"), at_ms=NOW + 10_000)
    seal(log)
    clean(log, first_dirty, NOW + 10_001)
    assert pairs_in(log) == [(b"young", b"2")]
    assert pairs_in(reopened(log, clean=True)) == [(b"young", b"2")]


def test_a_log_that_is_only_compacted_keeps_old_records(log: PartitionLog) -> None:
    latest = fill(log)
    clean(log)
    assert enforce_retention(log, NOW + 10**12) == []
    assert view_of(log) == latest


# --- stops and starts


@pytest.mark.parametrize("clean_stop", [True, False])
def test_a_cleaned_log_is_found_again_as_it_was(log: PartitionLog, clean_stop: bool) -> None:
    fill(log)
    put(log, (b"key-0", None))
    seal(log)
    clean(log)
    before = [data for _, data in batches_in(log)]
    end = log.log_end_offset
    again = reopened(log, clean=clean_stop)
    assert [data for _, data in batches_in(again)] == before
    assert again.log_end_offset == end
    assert put(again, (b"x", b"y")) == end


def test_only_snapshots_behind_what_was_rewritten_are_kept(log: PartitionLog) -> None:
    fill(log)
    put(log, (b"a", b"b"))
    log = reopened(log, clean=True)
    put(log, (b"a", b"c"))
    log.roll(log.log_end_offset, NOW)
    names = [name for name in log.files.list_folder(FOLDER) if name.endswith(".snapshot")]
    assert len(names) > 3
    clean(log)
    left = sorted(int(name.split(".")[0]) for name in log.files.list_folder(FOLDER) if name.endswith(".snapshot"))
    assert left
    assert left[0] >= log.table.bases[-1]


def hook(files: Files) -> list[Operation]:
    assert isinstance(files, SimulatedFiles)
    seen: list[Operation] = []

    def note(operation: Operation) -> Fault | None:
        seen.append(operation)
        return None

    files.operations.hook = note
    return seen


def test_preparing_writes_nothing_but_cleaned_files_and_all_of_them_are_durable(log: PartitionLog) -> None:
    fill(log)
    round_ = Compaction.begin(log, plan_for(log, 0, NOW), NOW)
    seen = hook(log.files)
    group = round_.prepare()
    assert group is not None
    assert {operation.path.rpartition(".")[2] for operation in seen} == {"cleaned"}
    files = log.files
    assert isinstance(files, SimulatedFiles)
    for suffix in ("log", "index", "timeindex"):
        path = f"{FOLDER}/{0:020d}.{suffix}.cleaned"
        file = files.open(path, writable=False)
        assert files.durable_content(path) == file.read_at(0, file.size())
    assert len(files.durable_content(f"{FOLDER}/{0:020d}.log.cleaned")) == group.row.size
