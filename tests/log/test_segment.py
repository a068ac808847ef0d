from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from tests.log.log_stories import NOW_MS, Served, batch_of, content_of, overwrite, path_of, served

from penstock.log.errors import DamagedLog, DiskFull, LogFailed
from penstock.log.recovery import recover
from penstock.log.segment import Region, Segment
from penstock.records import NO_TIMESTAMP, scan
from penstock.testing.simulated_files import SimulatedFiles

FOLDER = "/data"
BATCH = len(batch_of())


def path(base_offset: int = 0, suffix: str = ".log") -> str:
    return path_of(base_offset, suffix, folder=FOLDER)


def disk() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    return files


def put(segment: Segment, *numbers: int, stamps: Sequence[int] | None = None, leader_epoch: int = 0) -> None:
    for number in numbers:
        batch = batch_of(number, base_offset=segment.next_offset, leader_epoch=leader_epoch, stamps=stamps)
        segment.append(batch, scan(batch).headers)


def segment_of(files: SimulatedFiles, batches: int, *, base_offset: int = 0, interval: int = 500) -> Segment:
    """Two records a batch, and an index entry every third batch."""
    segment = Segment.create(files, FOLDER, base_offset, interval)
    put(segment, *range(batches))
    return segment


def loaded(files: SimulatedFiles, *, interval: int = 500, size: int | None = None) -> Segment:
    segment = Segment(files, FOLDER, 0, index_interval_bytes=interval)
    assert segment.load(size=size) is None
    return segment


def bytes_of(region: Region | None) -> bytes:
    assert region is not None
    return region.read()


def offsets_of(region: Region | None) -> list[int]:
    return [batch.base_offset for batch in served(bytes_of(region))]


# --- append and find


def test_a_segment_is_three_files_named_by_its_first_offset() -> None:
    files = disk()
    segment_of(files, 1, base_offset=42)
    names = sorted(files.list_folder(FOLDER))
    assert names == [f"{42:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]


def test_an_append_is_one_write() -> None:
    files = disk()
    segment = segment_of(files, 0)
    before = files.operations.count
    put(segment, 0, 1, 2)
    assert files.operations.count == before + 3
    assert segment.size == 3 * BATCH
    assert segment.next_offset == 6


def test_several_batches_may_come_in_one_append() -> None:
    files = disk()
    segment = segment_of(files, 0, interval=1)
    both = batch_of(0, base_offset=0) + batch_of(1, base_offset=2)
    segment.append(both, scan(both).headers)
    for offset, position in ((0, 0), (1, 0), (2, BATCH), (3, BATCH)):
        place = segment.locate(offset)
        assert place is not None
        assert place.position == position


def test_an_index_entry_is_made_every_few_bytes_and_names_the_batch_after_them() -> None:
    segment = segment_of(disk(), 10, interval=500)
    entries = segment.index.entries()
    assert [entry.value // BATCH for entry in entries] == [2, 4, 6, 8]
    assert [entry.key for entry in entries] == [5, 9, 13, 17]


@pytest.mark.parametrize("interval", [1, 500, 10**6])
def test_every_offset_is_found_with_any_density_of_the_index(interval: int) -> None:
    files = disk()
    segment = segment_of(files, 20, interval=interval)
    for offset in range(40):
        place = segment.locate(offset)
        assert place is not None
        assert place.header.base_offset == offset // 2 * 2
    assert segment.locate(40) is None
    segment.close()
    again = loaded(files, interval=interval)
    for offset in range(40):
        place = again.locate(offset)
        assert place is not None
        assert place.position == offset // 2 * BATCH


def test_an_offset_that_was_compacted_away_gives_the_next_batch() -> None:
    segment = segment_of(disk(), 3)
    batch = batch_of(9, base_offset=20, leader_epoch=0)
    segment.append(batch, scan(batch).headers)
    put(segment, 10)
    for offset in (6, 19, 20, 21):
        place = segment.locate(offset)
        assert place is not None
        assert place.header.base_offset == 20


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_in_the_middle_of_an_append_leaves_the_segment_as_it_was(error_number: int) -> None:
    files = disk()
    segment = segment_of(files, 3)
    files.operations.fail("write", error_number, applied_bytes=100)
    with pytest.raises(DiskFull, match="no space"):
        put(segment, 3)
    assert (segment.size, segment.next_offset) == (3 * BATCH, 6)
    assert files.size_of(path()) == 3 * BATCH
    put(segment, 3)
    assert offsets_of(segment.read(0, 10**6)) == [0, 2, 4, 6]


def test_what_a_failed_append_left_is_cut_by_the_next_one_if_not_before() -> None:
    files = disk()
    segment = segment_of(files, 1)
    files.operations.fail("write", errno.ENOSPC, applied_bytes=150)
    files.operations.fail("truncate", errno.EIO)
    with pytest.raises(DiskFull):
        put(segment, 1)
    assert files.size_of(path()) == BATCH + 150
    segment.append(small := batch_of(1, records=1, size=1, base_offset=2, leader_epoch=0), scan(small).headers)
    assert files.size_of(path()) == BATCH + len(small)


def test_what_a_failed_append_left_is_cut_when_the_segment_is_sealed() -> None:
    files = disk()
    segment = segment_of(files, 1)
    files.operations.fail("write", errno.ENOSPC, applied_bytes=150)
    files.operations.fail("truncate", errno.EIO)
    with pytest.raises(DiskFull):
        put(segment, 1)
    segment.seal()
    assert files.size_of(path()) == BATCH


def test_a_disk_error_in_an_append_is_not_a_full_disk() -> None:
    files = disk()
    segment = segment_of(files, 1)
    files.operations.fail("write", errno.EIO, applied_bytes=10)
    with pytest.raises(LogFailed, match="write failed"):
        put(segment, 1)


def test_an_index_that_cannot_be_written_does_not_fail_the_append() -> None:
    files = disk()
    segment = segment_of(files, 0, interval=1)
    files.operations.fail("write", errno.EIO, path_ending=".timeindex", applied_bytes=7)
    put(segment, *range(80))
    assert segment.next_offset == 160
    segment.close()
    again = loaded(files, interval=1)
    assert len(again.index) == 79
    assert offsets_of(again.read(150, 1)) == [150]


# --- read


def test_a_read_gives_whole_batches_and_at_least_one() -> None:
    segment = segment_of(disk(), 10)
    assert offsets_of(segment.read(0, 0)) == [0]
    assert offsets_of(segment.read(1, 1)) == [0]
    assert offsets_of(segment.read(3, BATCH)) == [2]
    assert offsets_of(segment.read(3, 2 * BATCH)) == [2, 4]
    assert offsets_of(segment.read(3, 2 * BATCH - 1)) == [2]
    assert offsets_of(segment.read(18, 10**9)) == [18]
    assert segment.read(20, 10**9) is None


@pytest.mark.parametrize("interval", [1, 500, 10**6])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_read_is_cut_between_batches_wherever_the_limit_falls(interval: int, sealed: bool) -> None:
    segment = segment_of(disk(), 12, interval=interval)
    if sealed:
        segment.seal()
    for limit in range(1, 13 * BATCH, 61):
        data = bytes_of(segment.read(4, limit))
        assert len(data) % BATCH == 0
        assert len(data) <= max(limit, BATCH)
        # The index may make it stop a little early, never by more than its own coarseness.
        assert len(data) >= min(limit - interval - 2 * BATCH, 10 * BATCH)


@pytest.mark.parametrize("interval", [0, 500, 10**6])
def test_readers_that_continue_where_they_stopped_are_not_searched_for(
    interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = disk()
    segment_of(files, 40, interval=interval).close()
    segment = loaded(files, interval=interval)
    searched: list[int] = []
    find = Segment._find

    def counted(self: Segment, offset: int) -> Any:
        searched.append(offset)
        return find(self, offset)

    monkeypatch.setattr(Segment, "_find", counted)
    first, second = 0, 20
    for limit in (5 * BATCH, 4 * BATCH, BATCH + 1, 6 * BATCH):
        for number in range(2):
            offset = (first, second)[number]
            found = offsets_of(segment.read(offset, limit))
            assert found == [*range(offset, found[-1] + 1, 2)]
            first, second = (found[-1] + 2, second) if number == 0 else (first, found[-1] + 2)
    assert searched == [0, 20]


def test_where_a_reader_would_have_continued_is_forgotten_with_what_is_cut() -> None:
    segment = segment_of(disk(), 20)
    region = segment.read(0, 10 * BATCH)
    assert region is not None
    following = offsets_of(region)[-1] + 2
    segment.truncate(2 * BATCH)
    other = batch_of(7, records=4, base_offset=segment.next_offset)
    segment.append(other, scan(other).headers)
    put(segment, *range(following))
    place = segment.locate(following)
    assert place is not None
    assert place.header.base_offset <= following <= place.header.last_offset
    assert offsets_of(segment.read(following, BATCH)) == [place.header.base_offset]


def test_places_where_readers_continue_are_few() -> None:
    segment = segment_of(disk(), 100)
    for offset in range(0, 180, 2):
        segment.read(offset, 2 * BATCH)
        assert len(segment._continued) <= 8


def test_a_read_stops_at_the_position_of_the_high_watermark() -> None:
    segment = segment_of(disk(), 10)
    assert offsets_of(segment.read(0, 10**6, 3 * BATCH)) == [0, 2, 4]
    assert offsets_of(segment.read(4, 10**6, 3 * BATCH)) == [4]
    assert segment.read(6, 10**6, 3 * BATCH) is None


def test_a_region_stays_readable_after_the_segment_was_removed() -> None:
    files = disk()
    segment = segment_of(files, 3)
    region = segment.read(0, 10**6)
    segment.remove()
    assert files.list_folder(FOLDER) == []
    assert offsets_of(region) == [0, 2, 4]


def test_an_index_entry_that_points_into_a_batch_does_not_cut_one() -> None:
    files = disk()
    segment_of(files, 10, interval=500).close()
    entries = bytearray(content_of(files, path(0, ".index")))
    struct.pack_into(">I", entries, 12, 4 * BATCH + 13)
    overwrite(files, path(0, ".index"), bytes(entries))
    segment = loaded(files)
    assert offsets_of(segment.read(0, 5 * BATCH)) == [0, 2, 4, 6, 8]
    place = segment.locate(11)
    assert place is not None
    assert place.header.base_offset == 10
    assert segment.index.entries()[1].value == 4 * BATCH, "the index was rebuilt"


def test_an_index_that_vanished_does_not_stop_readers() -> None:
    files = disk()
    segment_of(files, 10, interval=500).close()
    segment = loaded(files)
    overwrite(files, path(0, ".index"), b"")
    overwrite(files, path(0, ".timeindex"), b"")
    assert offsets_of(segment.read(0, 5 * BATCH)) == [0, 2, 4, 6], "up to where the rebuilt index has an entry"
    place = segment.find_time(NOW_MS + 7)
    assert place is not None
    assert place.header.base_offset == 14
    assert offsets_of(segment.read(11, BATCH)) == [10]


# --- damage


def cold(batches: int = 5, *, interval: int = 10**6) -> SimulatedFiles:
    files = disk()
    segment_of(files, batches, interval=interval).close()
    return files


def test_no_damaged_byte_of_a_cold_segment_is_served_and_what_is_before_it_is() -> None:
    sound = [Served(number * 2, (b"%03d-0" % number, b"%03d-1" % number)) for number in range(5)]
    for position in range(2 * BATCH, 3 * BATCH):
        files = cold()
        segment = loaded(files)
        files.corrupt(path(), position)
        found: list[Served] = []
        damage: DamagedLog | None = None
        while damage is None:
            try:
                found += served(bytes_of(segment.read(len(found) * 2, 10**6)))
            except DamagedLog as error:
                damage = error
        assert found == sound[: len(found)]
        # A wrong offset or epoch may be either of two neighbours': then the one before is withheld too.
        assert len(found) == 2 or (len(found) == 1 and position % BATCH in (*range(8), *range(12, 16))), position


def test_damage_behind_what_is_asked_for_does_not_matter() -> None:
    files = cold()
    segment = loaded(files)
    files.corrupt(path(), 3 * BATCH + 8)
    assert offsets_of(segment.read(0, 2 * BATCH)) == [0, 2]
    assert offsets_of(segment.read(0, 10**6)) == [0, 2, 4]


def test_damage_within_the_limit_does_not_withhold_what_is_before_it() -> None:
    files = cold(8)
    segment = loaded(files)
    files.corrupt(path(), 2 * BATCH + 16)
    for _ in range(2):
        assert offsets_of(segment.read(0, 4 * BATCH)) == [0, 2]


def test_what_was_read_once_is_not_checked_again() -> None:
    files = cold()
    segment = loaded(files)
    assert offsets_of(segment.read(0, 2 * BATCH)) == [0, 2]
    files.corrupt(path(), 100)
    region = segment.read(0, BATCH)
    assert region is not None, "the page cache holds what was checked; only a new start looks again"
    with pytest.raises(DamagedLog):
        loaded(files).read(0, BATCH)


def test_damage_in_the_middle_hides_nothing_that_follows_it_from_the_index() -> None:
    files = cold(12, interval=500)
    segment = loaded(files)
    files.corrupt(path(), 3 * BATCH + 16)
    for _ in range(2):
        with pytest.raises(DamagedLog) as caught:
            segment.read(7, 10**6)
        assert caught.value.position == 3 * BATCH
        assert offsets_of(segment.read(9, 2 * BATCH)) == [8, 10]
        assert segment.next_offset == 24


def test_a_reader_that_finds_damage_does_not_move_the_end_of_the_log() -> None:
    files = cold(12, interval=500)
    segment = loaded(files)
    files.corrupt(path(), 3 * BATCH + 16)
    overwrite(files, path(0, ".index"), struct.pack(">II", 5, 2 * BATCH + 1) + content_of(files, path(0, ".index"))[8:])
    with pytest.raises(DamagedLog):
        segment.read(7, 10**6)
    assert segment.next_offset == 24
    assert segment.max_timestamp == NOW_MS + 11
    put(segment, 12)
    assert offsets_of(segment.read(24, 10**6)) == [24]


def test_damage_that_hides_the_end_of_the_segment_is_reported() -> None:
    files = cold(12, interval=500)
    files.corrupt(path(), 3 * BATCH + 16)
    files.remove(path(0, ".index"))
    segment = Segment(files, FOLDER, 0, index_interval_bytes=500)
    assert segment.load() == "is missing"
    segment.rebuild_indexes()
    assert offsets_of(segment.read(0, 10**6)) == [0, 2, 4]
    for _ in range(2):
        for offset in (6, 7, 20, 23):
            with pytest.raises(DamagedLog, match="magic"):
                segment.read(offset, 10**6)


def test_a_file_that_became_shorter_is_damaged() -> None:
    files = cold(5)
    overwrite(files, path(), content_of(files, path())[: 3 * BATCH])
    segment = Segment(files, FOLDER, 0, index_interval_bytes=10**6)
    assert segment.load(size=5 * BATCH) is not None
    segment.rebuild_indexes()
    assert offsets_of(segment.read(0, 10**6)) == [0, 2, 4]
    with pytest.raises(DamagedLog):
        segment.read(6, 10**6)


def test_batches_out_of_order_are_damage() -> None:
    files = cold(4)
    data = content_of(files, path())
    overwrite(files, path(), data[:BATCH] + data[2 * BATCH : 3 * BATCH] + data[BATCH : 2 * BATCH] + data[3 * BATCH :])
    segment = Segment(files, FOLDER, 0)
    segment.load()
    assert offsets_of(segment.read(0, 10**6)) == [0]
    with pytest.raises(DamagedLog, match="cannot follow"):
        segment.read(2, 10**6)


# --- open


def test_a_segment_comes_back_as_it_was_closed() -> None:
    files = disk()
    segment = segment_of(files, 9, interval=500)
    segment.close()
    again = loaded(files)
    for name in ("size", "next_offset", "max_timestamp", "max_timestamp_offset", "first_timestamp"):
        assert getattr(again, name) == getattr(segment, name), name
    put(again, 9, 10, 11)
    put(segment := segment_of(disk(), 9, interval=500), 9, 10, 11)
    assert again.index.entries() == segment.index.entries()


def test_an_empty_segment_comes_back_empty() -> None:
    files = disk()
    segment_of(files, 0).close()
    again = loaded(files)
    assert (again.size, again.next_offset, again.max_timestamp) == (0, 0, NO_TIMESTAMP)
    assert again.locate(0) is None


def whole_entries(entry: bytes, count: int = 5) -> bytes:
    return entry * count


@pytest.mark.parametrize(
    ("suffix", "damaged"),
    [
        (".index", None),
        (".timeindex", None),
        (".index", lambda data: data[:-3]),
        (".timeindex", lambda data: data[:-3]),
        (".index", lambda data: bytes(len(data))),
        (".timeindex", lambda data: bytes(len(data))),
        (".index", lambda data: data + bytes(8)),
        (".timeindex", lambda data: data + bytes(12)),
        (".index", lambda data: data + struct.pack(">II", 10**6, 10**6)),
        (".index", lambda data: data + struct.pack(">II", 10**6, 9 * BATCH)),
        (".index", lambda data: data[:-8] + struct.pack(">II", 17, 8 * BATCH + 5)),
        (".timeindex", lambda data: data + struct.pack(">qI", NOW_MS + 10**6, 10**6)),
        (".timeindex", lambda data: data + struct.pack(">qI", NOW_MS + 10**6, 19)),
        (".timeindex", lambda data: data[:-12] + struct.pack(">qI", NOW_MS + 4, 19)),
    ],
)
def test_an_index_that_is_short_long_zeroed_missing_or_wrong_is_noticed_and_rebuilt(
    suffix: str, damaged: object
) -> None:
    files = disk()
    segment = segment_of(files, 10)
    segment.close()
    sound = {each: content_of(files, path(0, each)) for each in (".index", ".timeindex")}
    if callable(damaged):
        overwrite(files, path(0, suffix), damaged(sound[suffix]))
    else:
        files.remove(path(0, suffix))
    again = Segment(files, FOLDER, 0, index_interval_bytes=500)
    assert again.load() is not None
    again.rebuild_indexes()
    again.close()
    assert {each: content_of(files, path(0, each)) for each in sound} == sound
    assert (again.next_offset, again.max_timestamp) == (20, NOW_MS + 9)


def test_indexes_that_lost_whole_entries_still_lead_to_the_right_place() -> None:
    files = disk()
    segment_of(files, 10).close()
    overwrite(files, path(0, ".index"), content_of(files, path(0, ".index"))[:8])
    again = loaded(files)
    assert again.next_offset == 20
    for offset in range(20):
        assert offsets_of(again.read(offset, 1)) == [offset // 2 * 2]


def test_an_index_without_its_log_is_ignored() -> None:
    files = disk()
    segment_of(files, 10).close()
    overwrite(files, path(), b"")
    assert Segment(files, FOLDER, 0).load() is not None
    overwrite(files, path(0, ".index"), b"")
    assert Segment(files, FOLDER, 0).load() is not None, "the time index names offsets that are not there"


# --- recover


def crashed(files: SimulatedFiles, *, synced_offset: int = 0, base_offset: int = 0) -> tuple[Segment, str | None]:
    segment = Segment(files, FOLDER, base_offset, index_interval_bytes=500)
    damage = recover(segment, synced_offset, base_offset)
    return segment, None if damage is None else damage.reason


@pytest.mark.parametrize("synced_offset", [0, 6, 20])
def test_recovery_of_a_sound_segment_finds_nothing_wrong_and_builds_its_indexes(synced_offset: int) -> None:
    files = disk()
    segment = segment_of(files, 10)
    segment.close()
    sound = {each: content_of(files, path(0, each)) for each in (".index", ".timeindex")}
    for suffix in sound:
        overwrite(files, path(0, suffix), b"nonsense")
    again, reason = crashed(files, synced_offset=synced_offset)
    assert reason is None
    assert (again.next_offset, again.size, again.max_timestamp) == (20, 10 * BATCH, NOW_MS + 9)
    again.close()
    assert {each: content_of(files, path(0, each)) for each in sound} == sound


@pytest.mark.parametrize(
    ("name", "tail"),
    [
        ("torn batch", bytes(batch_of(4, base_offset=8, leader_epoch=0))[:-2]),
        ("torn header", bytes(batch_of(4, base_offset=8, leader_epoch=0))[:40]),
        ("a few bytes", b"\1\2\3"),
        ("zeros", bytes(10_000)),
        ("nonsense", bytes(range(256)) * 20),
        ("an old format", bytes(16) + b"\1" + bytes(100)),
        ("an offset that was before", bytes(batch_of(4, base_offset=6, leader_epoch=0))),
        ("an epoch that was before", bytes(batch_of(4, base_offset=8, leader_epoch=-1))),
        ("a wrong checksum", bytes(batch_of(4, base_offset=8, leader_epoch=0))[:-2] + b"\1\0"),
    ],
)
@pytest.mark.parametrize("follows", [b"", bytes(batch_of(5, base_offset=10, leader_epoch=0))])
def test_recovery_cuts_the_log_at_the_first_bad_byte(name: str, tail: bytes, follows: bytes) -> None:
    files = disk()
    segment_of(files, 4).close()
    sound = content_of(files, path())
    overwrite(files, path(), sound + tail + follows)
    segment = Segment(files, FOLDER, 0, index_interval_bytes=500)
    damage = recover(segment, 0, 0)
    assert damage is not None, name
    assert (damage.path, damage.position, damage.size) == (path(), len(sound), len(tail + follows))
    assert not damage.was_synced
    assert segment.next_offset == 8
    assert content_of(files, path()) == sound
    assert files.durable_content(path()) == sound, "the cut is durable before anything is written behind it"
    put(segment, 4)
    assert offsets_of(segment.read(0, 10**6)) == [0, 2, 4, 6, 8]


def test_recovery_says_when_what_it_cut_had_been_durable() -> None:
    files = disk()
    segment_of(files, 4).close()
    files.corrupt(path(), 2 * BATCH + 16)
    segment = Segment(files, FOLDER, 0)
    damage = recover(segment, 8, 0)
    assert damage is not None
    assert damage.was_synced
    assert segment.next_offset == 4


def test_recovery_of_a_segment_whose_first_batch_is_of_another_one_keeps_nothing() -> None:
    files = disk()
    overwrite(files, path(100), bytes(batch_of(0, base_offset=50)))
    segment, reason = crashed(files, base_offset=100)
    assert reason is not None
    assert "offset 50" in reason
    assert (segment.size, segment.next_offset) == (0, 100)


# --- truncate and time


@pytest.mark.parametrize("keep", range(11))
@pytest.mark.parametrize("reopened", [False, True])
def test_a_truncated_segment_is_as_if_the_rest_had_never_been(keep: int, reopened: bool) -> None:
    files = disk()
    segment = segment_of(files, 10)
    if reopened:
        segment.close()
        segment = loaded(files)
    segment.truncate(keep * BATCH)
    expected = segment_of(disk(), keep)
    for name in ("size", "next_offset", "max_timestamp", "max_timestamp_offset", "first_timestamp"):
        assert getattr(segment, name) == getattr(expected, name), name
    assert files.durable_content(path())[: keep * BATCH] == content_of(files, path())
    put(segment, *range(20, 30))
    put(expected, *range(20, 30))
    assert segment.index.entries() == expected.index.entries()
    segment.close()
    again = loaded(files)
    assert again.next_offset == keep * 2 + 20
    assert again.max_timestamp == NOW_MS + 29


def stamped(*stamps: int, interval: int = 300) -> tuple[SimulatedFiles, Segment]:
    files = disk()
    segment = Segment.create(files, FOLDER, 0, interval)
    for stamp in stamps:
        put(segment, 0, stamps=[stamp, stamp])
    return files, segment


@pytest.mark.parametrize("interval", [1, 300, 10**6])
@pytest.mark.parametrize("stamps", [[10, 20, 30, 40, 50], [50, 10, 20, 60, 5], [7, 7, 7, 7], [30, 20, 10], [-1, 5, -1]])
def test_the_first_batch_stamped_late_enough_is_found_whatever_the_order(interval: int, stamps: list[int]) -> None:
    files, segment = stamped(*stamps, interval=interval)
    segment.close()
    for candidate in (segment, loaded(files, interval=interval)):
        for timestamp in range(max(0, min(stamps)), max(stamps) + 2):
            place = candidate.find_time(timestamp)
            naive = next((number * 2 for number, stamp in enumerate(stamps) if stamp >= timestamp), None)
            assert (None if place is None else place.header.base_offset) == naive
        assert candidate.max_timestamp == max(stamps)
        assert candidate.first_timestamp == stamps[0]
