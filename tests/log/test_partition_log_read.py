from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest
from tests.log.log_stories import (
    NOW_MS,
    ROOMY,
    TINY,
    Served,
    base_offsets,
    bases,
    batch_of,
    content_of,
    contents,
    marker_of,
    open_new,
    overwrite,
    path_of,
    put,
    reopen,
    served,
    stopped,
)

from penstock.log.errors import DamagedLog, OffsetOutOfRange
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import enforce_retention
from penstock.records import scan
from penstock.runtime.files import PosixFiles
from penstock.testing.simulated_files import SimulatedFiles

BATCH = len(batch_of())


def read(log: PartitionLog, offset: int, max_bytes: int = 10**6, upper: int | None = None) -> list[int]:
    region = log.read(offset, max_bytes, upper_offset=upper)
    return [] if region is None else [batch.base_offset for batch in served(region.read())]


def test_a_read_stays_within_one_segment_and_the_next_continues_behind_it() -> None:
    log = open_new(SimulatedFiles())
    put(log, *range(7))
    assert bases(log) == [0, 4, 8, 12]
    assert read(log, 0) == [0, 2]
    assert read(log, 3) == [2]
    assert read(log, 4) == [4, 6]
    assert read(log, 13) == [12]
    assert base_offsets(log) == [0, 2, 4, 6, 8, 10, 12]


def test_offsets_outside_of_the_log_are_rejected_with_its_bounds() -> None:
    log = open_new(SimulatedFiles())
    put(log, *range(5))
    log.advance_high_watermark(10)
    log.advance_start(3)
    for offset in (-1, 0, 2, 11, 10**12):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(offset, 100)
        assert (caught.value.offset, caught.value.start, caught.value.end) == (offset, 3, 10)
    assert log.read(10, 100) is None
    assert read(log, 3) == [2], "a batch is served whole, even if the log starts in its middle"


@pytest.mark.parametrize(
    ("offset", "upper", "found"),
    [
        (0, 0, []),
        (0, 1, []),
        (0, 2, [0]),
        (0, 3, [0]),
        (0, 4, [0, 2]),
        (2, 4, [2]),
        (2, 5, [2]),
        (3, 3, []),
        (4, 4, []),
        (4, 6, [4]),
        (4, 100, [4, 6]),
        (9, 10, [8]),
        (10, 10, []),
    ],
)
def test_only_whole_batches_below_the_upper_offset_are_served(offset: int, upper: int, found: list[int]) -> None:
    log = open_new(SimulatedFiles())
    put(log, *range(5))
    for _ in range(2):  # the second time the place of the bound is remembered
        assert read(log, offset, upper=upper) == found


def test_a_limit_smaller_than_the_first_batch_still_makes_progress() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    put(log, *range(5))
    for limit in (-1, 0, 1, BATCH - 1, BATCH):
        assert read(log, 4, limit) == [4]


@pytest.mark.parametrize("sealed", [False, True])
def test_every_limit_and_bound_gives_whole_batches(sealed: bool) -> None:
    files = SimulatedFiles()
    log = open_new(files, replace(ROOMY, index_interval_bytes=700))
    put(log, *range(12))
    if sealed:
        log.roll(24, NOW_MS)
    for offset in range(0, 24, 5):
        for limit in range(1, 13 * BATCH, 97):
            for upper in (24, 23, 13, 12):
                region = log.read(offset, limit, upper_offset=upper)
                if region is None:
                    assert offset // 2 * 2 >= upper // 2 * 2
                    continue
                data = region.read()
                found = scan(data)
                assert found.problem is None
                assert found.headers[0].base_offset == offset // 2 * 2
                assert found.headers[-1].last_offset < upper
                assert len(data) <= max(limit, BATCH)


def test_readers_step_over_gaps_between_segments() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    put(log, 0)
    log.roll(10, NOW_MS)
    put(log, 1)
    log.roll(20, NOW_MS)
    assert log.log_end_offset == 20
    assert read(log, 2) == [10]
    assert read(log, 9) == [10]
    assert read(log, 12) == []
    assert read(log, 5, upper=10) == []
    put(log, 2)
    assert read(log, 12) == [20]


def test_a_region_is_a_part_of_a_real_file(tmp_path: Path) -> None:
    log = open_new(PosixFiles(), folder=str(tmp_path / "t-0"))
    put(log, *range(3))
    region = log.read(2, 10**6)
    assert region is not None
    assert region.file.fileno() > 0
    assert (region.position, region.size) == (BATCH, BATCH)
    data = (tmp_path / "t-0" / f"{0:020d}.log").read_bytes()
    assert region.read() == data[BATCH : 2 * BATCH]
    log.close()


def test_regions_stay_readable_through_retention_and_removal(tmp_path: Path) -> None:
    files = PosixFiles()
    log = open_new(files, replace(TINY, retention_ms=10), folder=str(tmp_path / "t-0"))
    put(log, *range(5))
    log.advance_high_watermark(10)
    regions = [log.read(offset, 10**6) for offset in (0, 4)]
    deleted = enforce_retention(log, NOW_MS + 10**6)
    for region, expected in zip(regions, ([0, 2], [4, 6]), strict=True):
        assert region is not None
        assert [batch.base_offset for batch in served(region.read())] == expected
    for path in deleted:
        files.remove(path)
    for region, expected in zip(regions, ([0, 2], [4, 6]), strict=True):
        assert region is not None
        assert [batch.base_offset for batch in served(region.read())] == expected
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 100)
    log.close()


def test_many_segments_are_read_with_few_open() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, *range(60))
    assert log.segment_count == 30
    for offset in (0, 100, 8, 56, 116, 2, 100):
        assert read(log, offset)[0] == offset
    assert base_offsets(log) == list(range(0, 120, 2))
    assert len(log._open) <= 8


# --- damage


def test_damage_in_a_cold_segment_is_never_served_nor_stepped_over() -> None:
    files = stopped(batches=6)
    files.corrupt(path_of(4), BATCH + 100)
    log = reopen(files, clean=True).log
    assert read(log, 0) == [0, 2]
    assert read(log, 4) == [4], "what is sound before the damage"
    for _ in range(2):
        for offset in (6, 7):
            with pytest.raises(DamagedLog) as caught:
                log.read(offset, 10**6)
            assert caught.value.path == path_of(4)
            assert caught.value.position == BATCH
    assert read(log, 8) == [8, 10]


@pytest.mark.parametrize("index", [True, False])
def test_a_damaged_header_in_a_cold_segment_does_not_lead_into_the_next_one(index: bool) -> None:
    files = stopped(replace(TINY, segment_bytes=4 * BATCH), batches=9)
    files.corrupt(path_of(8), BATCH + 16)
    if not index:
        files.remove(path_of(8, ".index"))
    settings = replace(TINY, segment_bytes=4 * BATCH)
    log = reopen(files, settings, clean=True).log
    assert bases(log) == [0, 8, 16]
    assert read(log, 8) == [8]
    for _ in range(2):
        for offset in (10, 11):
            with pytest.raises(DamagedLog):
                log.read(offset, 10**6)
    with pytest.raises(DamagedLog):
        log.read(12, 10**6)
    assert read(log, 16) == [16]


def test_a_cold_segment_that_was_cut_off_is_damaged() -> None:
    for length in (BATCH, BATCH + 10, 0, 2 * BATCH - 1):
        files = stopped(batches=6)
        overwrite(files, path_of(4), content_of(files, path_of(4))[:length])
        log = reopen(files, clean=True).log
        if length >= BATCH:
            assert read(log, 4) == [4]
        for offset in (6, 7):
            with pytest.raises(DamagedLog):
                log.read(offset, 10**6)
        assert read(log, 8) == [8, 10]


def test_damage_under_a_reader_does_not_move_the_logs_end() -> None:
    files = stopped(ROOMY, batches=12)
    log = reopen(files, ROOMY, clean=True).log
    files.corrupt(path_of(0), 2 * BATCH + 16)
    with pytest.raises(DamagedLog):
        log.read(5, 10**6)
    assert log.log_end_offset == 24
    put(log, 12)
    assert read(log, 24) == [24]
    with pytest.raises(DamagedLog):
        log.read(4, 10**6)


def test_an_index_that_cannot_be_rebuilt_on_a_full_disk_does_not_stop_readers() -> None:
    files = stopped(batches=6)
    overwrite(files, path_of(4, ".index"), b"torn")
    files.capacity_bytes = 0
    log = reopen(files, clean=True).log
    assert read(log, 6) == [6]
    assert read(log, 4) == [4, 6]


# --- transactions


def test_readers_of_committed_records_learn_what_was_aborted() -> None:
    log = open_new(SimulatedFiles())

    def append(batch: bytearray, *, from_client: bool = True) -> None:
        log.append(batch, leader_epoch=0, now_ms=NOW_MS, from_client=from_client)

    append(batch_of(0, producer=1, transactional=True))  # 0-1
    append(batch_of(0, producer=2, transactional=True))  # 2-3
    append(marker_of(1, commit=False), from_client=False)  # 4
    append(batch_of(1, producer=2, transactional=True))  # 5-6
    append(batch_of(1, producer=1, transactional=True))  # 7-8
    append(marker_of(2, commit=False), from_client=False)  # 9
    append(marker_of(1, commit=True), from_client=False)  # 10
    assert len(bases(log)) > 2
    pairs = {
        (low, high): [(each.producer_id, each.first_offset) for each in log.aborted_between(low, high)]
        for low, high in [(0, 2), (0, 11), (3, 4), (5, 7), (10, 11)]
    }
    assert pairs == {
        (0, 2): [(1, 0)],
        (0, 11): [(1, 0), (2, 2)],
        (3, 4): [(1, 0), (2, 2)],
        (5, 7): [(2, 2)],
        (10, 11): [],
    }


def test_aborted_transactions_are_listed_by_first_offset_though_their_markers_come_in_another_order() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    for producer in (1, 2, 3):
        log.append(batch_of(0, producer=producer, transactional=True), leader_epoch=0, now_ms=NOW_MS)
    for producer in (3, 1, 2):
        log.append(marker_of(producer, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    assert [each.first_offset for each in log.aborted_between(0, 9)] == [0, 2, 4]


@pytest.mark.parametrize("sealed", [False, True])
def test_aborted_transactions_beyond_the_records_that_are_read_are_left_out(sealed: bool) -> None:
    log = open_new(SimulatedFiles(), replace(ROOMY, index_interval_bytes=BATCH))
    for sequence in range(100):
        log.append(batch_of(sequence, producer=1, transactional=True), leader_epoch=0, now_ms=NOW_MS)
        log.append(marker_of(1, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    if sealed:
        log.roll(log.log_end_offset, NOW_MS)
        put(log, 1)
    offset = 0
    while offset < 300:
        region = log.read(offset, 5 * BATCH)
        assert region is not None
        headers = scan(region.read()).headers
        listed = [each.first_offset for each in log.aborted_between(offset, 300, region)]
        wanted = [header.base_offset for header in headers if not header.is_control]
        assert [first for first in listed if first >= headers[0].base_offset][: len(wanted)] == wanted
        assert len(listed) <= len(wanted) + 3
        offset = headers[-1].next_offset
    assert len(log.aborted_between(0, 300)) == 100


def test_a_damaged_index_hides_no_aborted_transaction() -> None:
    log = open_new(SimulatedFiles(), replace(ROOMY, index_interval_bytes=BATCH))
    for sequence in range(20):
        log.append(batch_of(sequence, producer=1, transactional=True), leader_epoch=0, now_ms=NOW_MS)
        log.append(marker_of(1, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    log.roll(log.log_end_offset, NOW_MS)
    region = log.read(0, 5 * BATCH)
    assert region is not None
    index = log.segment_at(0).index
    keys = [entry.key for entry in index.entries()]
    index.file.write_at(0, b"".join(pack(">ii", 1, entry.value) for entry in index.entries()))
    assert keys[-1] > 1
    wanted = [header.base_offset for header in scan(region.read()).headers if not header.is_control]
    listed = [each.first_offset for each in log.aborted_between(0, 60, region)]
    assert listed[: len(wanted)] == wanted


def test_markers_are_served_with_the_rest() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    log.append(batch_of(0, producer=1, transactional=True), leader_epoch=0, now_ms=NOW_MS)
    log.append(marker_of(1, commit=True), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    region = log.read(0, 10**6)
    assert region is not None
    assert [header.is_control for header in scan(region.read()).headers] == [False, True]
    assert contents(log)[0] == Served(0, (b"000-0", b"000-1"))
