from __future__ import annotations

import errno
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.log_stories import (
    NOW_MS,
    ROOMY,
    TINY,
    bases,
    batch_of,
    content_of,
    marker_of,
    open_new,
    overwrite,
    path_of,
    reopen,
)

from penstock.log.errors import DamagedLog, LogFailed
from penstock.log.partition_log import PartitionLog, TimedOffset, latest_timestamp, offset_for_time
from penstock.records import Codec
from penstock.testing.simulated_files import SimulatedFiles

BATCH = len(batch_of())


def log_of(*stamps: list[int], codec: int = Codec.NONE, files: SimulatedFiles | None = None) -> PartitionLog:
    """A batch for each list of timestamps."""
    log = open_new(files or SimulatedFiles(), replace(TINY, message_timestamp_after_max_ms=2**62))
    if any(len(times) > 5 for times in stamps):
        log.settings = replace(log.settings, segment_bytes=10_000)
    for number, times in enumerate(stamps):
        batch = batch_of(number, records=len(times), stamps=times, codec=codec)
        log.append(batch, leader_epoch=3, now_ms=NOW_MS)
    return log


def offset_at(log: PartitionLog, timestamp: int) -> int | None:
    found = offset_for_time(log, timestamp)
    return None if found is None else found.offset


def test_the_first_record_at_or_after_a_time_is_found() -> None:
    log = log_of([10, 20], [30, 40], [50, 60], [70, 80], [90, 100])
    assert bases(log) == [0, 4, 8]
    assert [offset_at(log, time) for time in (0, 10, 11, 20, 21, 55, 60, 61, 100, 101)] == [
        0, 0, 1, 1, 2, 5, 5, 6, 9, None,
    ]  # fmt: skip
    assert offset_for_time(log, 55) == TimedOffset(60, 5, 3)


def test_an_empty_log_has_no_times() -> None:
    log = open_new(SimulatedFiles())
    assert offset_for_time(log, 0) is None
    assert latest_timestamp(log) is None


def test_records_without_timestamps_are_not_found_by_time() -> None:
    log = log_of([-1, -1], [-1, -1], [-1])
    assert offset_for_time(log, 0) is None
    assert latest_timestamp(log) is None


@pytest.mark.parametrize("codec", list(Codec))
def test_records_inside_of_compressed_batches_are_found(codec: Codec) -> None:
    log = log_of(list(range(100, 150)), list(range(300, 250, -1)), codec=codec)
    assert offset_at(log, 120) == 20
    assert offset_at(log, 260) == 50
    assert latest_timestamp(log) == TimedOffset(300, 50, 3)


def test_the_largest_timestamp_is_the_first_of_those_that_share_it() -> None:
    log = log_of([10, 50], [5, 5], [7, 50], [50, 1], [3])
    assert latest_timestamp(log) == TimedOffset(50, 1, 3)


def test_append_time_is_every_records_time() -> None:
    log = open_new(SimulatedFiles(), replace(ROOMY, message_timestamp_append_time=True))
    for number in range(5):
        log.append(batch_of(number, stamps=[1, 2]), leader_epoch=0, now_ms=NOW_MS + number * 10)
    assert offset_at(log, NOW_MS + 11) == 4
    assert latest_timestamp(log) == TimedOffset(NOW_MS + 40, 8, 0)


def test_records_before_the_logs_start_are_not_found() -> None:
    log = log_of([10, 90], [20, 30], [40, 95], [50, 60])
    log.advance_high_watermark(8)
    log.advance_start(1)
    assert (offset_at(log, 5), offset_at(log, 91)) == (1, 5)
    log.advance_start(2)
    assert offset_at(log, 5) == 2
    assert offset_at(log, 80) == 5


def test_the_largest_timestamp_before_the_logs_start_does_not_count() -> None:
    log = log_of([10, 90], [20, 30], [40, 35], [50, 31])
    log.advance_high_watermark(8)
    assert latest_timestamp(log) == TimedOffset(90, 1, 3)
    for start, expected in ((2, (50, 6)), (5, (50, 6)), (7, (31, 7))):
        log.advance_start(start)
        assert latest_timestamp(log) == TimedOffset(*expected, 3)
    log.advance_start(8)
    assert latest_timestamp(log) is None


def test_within_the_first_segment_only_what_is_left_counts() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    log.append(batch_of(0, records=3, stamps=[NOW_MS + 9, NOW_MS + 5, NOW_MS + 1]), leader_epoch=0, now_ms=NOW_MS)
    log.append(batch_of(1, records=1, stamps=[NOW_MS + 3]), leader_epoch=0, now_ms=NOW_MS)
    log.advance_high_watermark(4)
    for start, expected in ((1, (NOW_MS + 5, 1)), (2, (NOW_MS + 3, 3))):
        log.advance_start(start)
        assert latest_timestamp(log) == TimedOffset(*expected, 0)


def test_the_marker_of_a_transaction_is_a_record_too() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    log.append(batch_of(0, producer=1, transactional=True, stamps=[5, 6]), leader_epoch=0, now_ms=NOW_MS)
    log.append(marker_of(1, commit=True), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    assert offset_at(log, 5) == 0
    assert offset_at(log, 7) == 2
    assert latest_timestamp(log) == TimedOffset(NOW_MS, 2, 0)


TIMES = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=3), max_size=14)


@settings(max_examples=60, deadline=None)
@given(
    TIMES, st.sampled_from([Codec.NONE, Codec.LZ4]), st.sampled_from(["open", "clean", "unclean"]), st.integers(0, 20)
)
def test_lookups_agree_with_a_walk_over_all_records(stamps: list[list[int]], codec: int, stop: str, start: int) -> None:
    files = SimulatedFiles()
    log = log_of(*stamps, codec=codec, files=files)
    flat = [time for times in stamps for time in times]
    start = min(start, len(flat))
    if stop == "clean":
        log.close()
    if stop != "open":
        log = reopen(files, clean=stop == "clean", log_start_offset=start).log
    else:
        log.advance_high_watermark(len(flat))
        log.advance_start(start)
    for timestamp in (0, 1, 7, 20, 33, 59, 60, 61):
        naive = next((at for at, time in enumerate(flat) if at >= start and time >= timestamp), None)
        assert offset_at(log, timestamp) == naive
    newest = max(flat[start:], default=None)
    latest = latest_timestamp(log)
    if newest is None:
        assert latest is None
    else:
        assert latest == TimedOffset(newest, flat.index(newest, start), 3)


def test_a_time_index_that_lost_its_end_does_not_hide_records() -> None:
    files = SimulatedFiles()
    log = log_of([10, 90], [20, 30], [40, 35], [50, 31], [60, 61], files=files)
    log.close()
    for base in (0, 4, 8):
        overwrite(files, path_of(base, ".timeindex"), b"")
    log = reopen(files, clean=True).log
    assert offset_at(log, 62) == 1
    assert offset_at(log, 41) == 1
    log.advance_high_watermark(10)
    log.advance_start(2)
    assert offset_at(log, 41) == 6
    assert offset_at(log, 55) == 8


def test_a_time_index_cut_by_whole_entries_is_found_out_by_the_manifest() -> None:
    files = SimulatedFiles()
    big = replace(ROOMY, index_interval_bytes=1)
    log = open_new(files, big)
    for number, time in enumerate([10, 20, 90, 30, 40, 50]):
        log.append(batch_of(number, stamps=[time, time]), leader_epoch=0, now_ms=NOW_MS)
    log.roll(12, NOW_MS)
    log.append(batch_of(9, stamps=[5, 5]), leader_epoch=0, now_ms=NOW_MS)
    log.close()
    overwrite(files, path_of(0, ".timeindex"), content_of(files, path_of(0, ".timeindex"))[:24])
    log = reopen(files, big, clean=True).log
    assert offset_at(log, 60) == 4
    assert latest_timestamp(log) == TimedOffset(90, 4, 0)


def test_the_newest_segments_time_index_is_held_against_the_manifest_too() -> None:
    files = SimulatedFiles()
    big = replace(ROOMY, index_interval_bytes=1)
    log = open_new(files, big)
    for number, time in enumerate([10, 20, 90, 30, 40, 50]):
        log.append(batch_of(number, stamps=[time, time]), leader_epoch=0, now_ms=NOW_MS)
    log.close()
    overwrite(files, path_of(0, ".timeindex"), content_of(files, path_of(0, ".timeindex"))[:24])
    log = reopen(files, big, clean=True).log
    assert offset_at(log, 60) == 4
    assert latest_timestamp(log) == TimedOffset(90, 4, 0)


def test_a_time_index_with_empty_entries_is_ignored() -> None:
    files = SimulatedFiles()
    log_of([10, 20], [30, 40], files=files).close()
    path = path_of(0, ".timeindex")
    overwrite(files, path, content_of(files, path) + struct.pack(">qI", 10**15, 10**6))
    log = reopen(files, clean=True).log
    assert offset_at(log, 41) is None
    assert latest_timestamp(log) == TimedOffset(40, 3, 3)


def test_a_damaged_batch_is_an_error_not_an_answer() -> None:
    files = SimulatedFiles()
    log_of([10, 20], [30, 40], [50, 60], files=files).close()
    log = reopen(files, clean=True).log
    files.corrupt(path_of(0), BATCH + 100)
    with pytest.raises(DamagedLog):
        offset_for_time(log, 25)
    assert offset_at(log, 45) == 4


def test_an_offline_log_answers_no_lookup() -> None:
    files = SimulatedFiles()
    log = log_of([10, 20], files=files)
    files.operations.fail("sync", errno.EIO)
    with pytest.raises(LogFailed):
        log.flush()
    with pytest.raises(LogFailed):
        offset_for_time(log, 10)
    with pytest.raises(LogFailed):
        latest_timestamp(log)
