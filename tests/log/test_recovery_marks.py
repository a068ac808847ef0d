"""Recovery starts at the mark of a background flush, but only if everything about it is right."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.log.log_stories import (
    FOLDER,
    NOW_MS,
    base_offsets,
    batch_of,
    content_of,
    marker_of,
    open_new,
    overwrite,
    path_of,
    put,
    reopen,
)

from penstock.log import group_commit
from penstock.log.errors import DamagedLog
from penstock.log.group_commit import decode_mark
from penstock.log.log_loader import Opened, open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import decode_snapshot, encode_snapshot, snapshot_name, snapshot_offset
from penstock.log.settings import LogSettings
from penstock.log.truncation import truncate_to
from penstock.testing.simulated_files import SimulatedFiles

SETTINGS = LogSettings(index_interval_bytes=300)
BATCH = len(batch_of(0))
MARKED_BATCHES = 10
MARKED = 2 * MARKED_BATCHES
BATCHES = 14
END = 2 * BATCHES
WHOLE = BATCHES * BATCH
REST = (BATCHES - MARKED_BATCHES) * BATCH


@pytest.fixture(autouse=True)
def _small_logs_have_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "LEAST_MARKED_BYTES", 1)


def flush_with_mark(log: PartitionLog) -> None:
    """What the background flush does."""
    flush = log.prepare_flush(mark=True)
    assert flush is not None
    flush.run()
    log.complete_flush(flush)


def snapshots(files: SimulatedFiles) -> list[int]:
    return sorted(o for o in map(snapshot_offset, files.list_folder(FOLDER)) if o is not None)


def snapshot_path(offset: int) -> str:
    return f"{FOLDER}/{snapshot_name(offset)}"


def produce(log: PartitionLog, *numbers: int) -> None:
    for number in numbers:
        log.append(batch_of(number, producer=9), leader_epoch=0, now_ms=NOW_MS)


def story() -> tuple[SimulatedFiles, PartitionLog]:
    """A log of one segment with a mark, and more behind it, all of it durable but for the last batch."""
    files = SimulatedFiles()
    log = open_new(files, SETTINGS)
    produce(log, *range(MARKED_BATCHES))
    flush_with_mark(log)
    produce(log, *range(MARKED_BATCHES, BATCHES - 1))
    log.flush()
    produce(log, BATCHES - 1)
    return files, log


def killed() -> SimulatedFiles:
    files, _ = story()
    files.kill()
    return files


def recovered(files: SimulatedFiles, recovery_point: int | None = END - 2) -> Opened:
    return reopen(files, SETTINGS, clean=False, recovery_point=recovery_point)


def require_whole(opened: Opened) -> None:
    """All records, all indexes and the producer are as if nothing had happened."""
    log = opened.log
    assert base_offsets(log) == list(range(0, END, 2))
    assert log.active.max_timestamp == NOW_MS + BATCHES - 1
    assert log.active.first_timestamp == NOW_MS
    for number in range(BATCHES):
        place = log.active.find_time(NOW_MS + number)
        assert place is not None
        assert place.header.base_offset == 2 * number
    for number in range(BATCHES - 5, BATCHES):
        assert log.append(batch_of(number, producer=9), leader_epoch=0, now_ms=NOW_MS).base_offset == 2 * number
    assert log.append(batch_of(BATCHES, producer=9), leader_epoch=0, now_ms=NOW_MS).base_offset == END


# --- what a mark saves


def test_only_what_is_behind_the_mark_is_walked() -> None:
    opened = recovered(killed())
    assert opened.walked_bytes == REST
    assert opened.damages == []
    assert opened.log.flushed_offset == END - 2
    require_whole(opened)


def test_the_indexes_are_those_of_a_walk_from_the_start() -> None:
    files = killed()
    opened = recovered(files)
    entries = opened.log.active.index.entries(), opened.log.active.time_index.entries()
    opened.log.release()
    files.remove(snapshot_path(MARKED))
    again = recovered(files)
    assert again.walked_bytes == WHOLE
    assert (again.log.active.index.entries(), again.log.active.time_index.entries()) == entries


def test_a_mark_serves_several_starts_in_a_row() -> None:
    files = killed()
    for _ in range(3):
        opened = recovered(files)
        assert opened.walked_bytes == REST
        assert snapshots(files) == [MARKED]
        files.kill()
    require_whole(recovered(files))


def test_a_mark_beyond_the_recovery_point_is_not_used() -> None:
    for recovery_point in (0, 2, MARKED - 2):
        opened = recovered(killed(), recovery_point)
        assert opened.walked_bytes == WHOLE
        require_whole(opened)


def test_without_a_recovery_point_everything_is_walked() -> None:
    opened = recovered(killed(), None)
    assert opened.walked_bytes == WHOLE
    require_whole(opened)


def test_a_clean_stop_leaves_a_mark_for_the_crash_after_the_next_start() -> None:
    files, log = story()
    log.close()
    assert snapshots(files) == [END]
    log = reopen(files, SETTINGS, clean=True).log
    assert not log.flush_wanted(NOW_MS, 10**9, 0), "there is a mark already"
    put(log, BATCHES)
    files.kill()
    opened = recovered(files, END)
    assert opened.walked_bytes == len(batch_of(0))
    assert opened.log.log_end_offset == END + 2


def test_after_a_clean_stop_without_marks_a_mark_is_wanted() -> None:
    files, log = story()
    log.close()
    snapshot = decode_snapshot(content_of(files, snapshot_path(END)))
    overwrite(files, snapshot_path(END), encode_snapshot(snapshot._replace(mark=b"")))
    log = reopen(files, SETTINGS, clean=True).log
    assert log.flush_wanted(NOW_MS, 10**9, 30_000)
    flush_with_mark(log)
    files.kill()
    assert recovered(files, END).walked_bytes == 0


def test_a_mark_inside_a_segment_that_was_sealed_later_serves_too() -> None:
    files, log = story()
    log.roll(END, NOW_MS)
    put(log, BATCHES)
    files.kill()
    opened = recovered(files)
    assert opened.walked_bytes == REST + BATCH
    assert base_offsets(opened.log) == list(range(0, END + 2, 2))


# --- marks that are ignored


def flip(position: int) -> Callable[[SimulatedFiles, str], None]:
    return lambda files, path: files.corrupt(path, position)


def shorten(files: SimulatedFiles, path: str) -> None:
    overwrite(files, path, content_of(files, path)[:-1] if path.endswith(".snapshot") else content_of(files, path)[:13])


def zero(files: SimulatedFiles, path: str) -> None:
    overwrite(files, path, bytes(len(content_of(files, path))))


def empty(files: SimulatedFiles, path: str) -> None:
    overwrite(files, path, b"")


def remove(files: SimulatedFiles, path: str) -> None:
    files.remove(path)


@pytest.mark.parametrize("harm", [flip(0), flip(9), shorten, zero, empty, remove])
@pytest.mark.parametrize("path", [path_of(0, ".index"), path_of(0, ".timeindex"), snapshot_path(MARKED)])
def test_a_segment_is_walked_whole_if_index_or_snapshot_are_not_as_they_were(
    path: str, harm: Callable[[SimulatedFiles, str], None]
) -> None:
    files = killed()
    harm(files, path)
    opened = recovered(files)
    assert opened.walked_bytes == WHOLE
    require_whole(opened)


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_index_entries_behind_the_mark_are_rebuilt_whatever_they_say(kind: str) -> None:
    files = killed()
    sound = decode_mark(decode_snapshot(content_of(files, snapshot_path(MARKED))).mark)
    assert sound is not None
    size = (sound.offset_index if kind == ".index" else sound.time_index).size
    for tail in (b"", b"\xff" * 7, b"\xff" * 240, bytes(4096)):
        fork = killed()
        overwrite(fork, path_of(0, kind), content_of(files, path_of(0, kind))[:size] + tail)
        opened = recovered(fork)
        assert opened.walked_bytes == REST
        require_whole(opened)


@pytest.mark.parametrize("kept", [0, 1, BATCH, (MARKED_BATCHES - 1) * BATCH, MARKED_BATCHES * BATCH - 1])
def test_an_index_longer_than_the_log_is_ignored(kept: int, caplog: pytest.LogCaptureFixture) -> None:
    files = killed()
    overwrite(files, path_of(0), content_of(files, path_of(0))[:kept])
    with caplog.at_level(logging.WARNING):
        log = recovered(files).log
    assert "walking from the start" in caplog.text
    assert log.log_end_offset == kept // BATCH * 2
    assert log.damage is not None
    assert log.is_cut_short == bool(kept % BATCH), "what is left of a torn batch stays in the file"
    assert log.log_end_offset == log.flushed_offset == kept // BATCH * 2
    assert all(entry.value < log.active.size for entry in log.active.index.entries())
    assert snapshots(files) == []


def test_a_recovery_point_ahead_of_the_data_makes_the_mark_doubtful(caplog: pytest.LogCaptureFixture) -> None:
    for recovery_point in (END + 1, END + 500):
        files = killed()
        with caplog.at_level(logging.WARNING):
            opened = recovered(files, recovery_point)
        assert "recovery mark ignored" in caplog.text
        assert opened.walked_bytes == WHOLE
        assert opened.log.flushed_offset == END
        require_whole(opened)


def test_a_mark_that_contradicts_the_batches_is_ignored() -> None:
    files = killed()
    snapshot = decode_snapshot(content_of(files, snapshot_path(MARKED)))
    mark = decode_mark(snapshot.mark)
    assert mark is not None
    for lie in (
        mark._replace(position=mark.position - 1),
        mark._replace(position=mark.position + BATCH),
        mark._replace(position=0),
        mark._replace(position=-5),
        mark._replace(base_offset=2),
        mark._replace(max_timestamp=0),
        mark._replace(offset_index=mark.offset_index._replace(size=mark.offset_index.size - 1)),
    ):
        fork = killed()
        overwrite(fork, snapshot_path(MARKED), encode_snapshot(snapshot._replace(mark=lie.encode())))
        opened = recovered(fork)
        assert opened.walked_bytes == WHOLE, lie
        require_whole(opened)


def test_a_mark_of_a_later_version_is_ignored() -> None:
    files = killed()
    snapshot = decode_snapshot(content_of(files, snapshot_path(MARKED)))
    overwrite(files, snapshot_path(MARKED), encode_snapshot(snapshot._replace(mark=snapshot.mark + b"more")))
    assert recovered(files).walked_bytes == WHOLE


def test_a_mark_after_a_lost_batch_header_is_ignored() -> None:
    files = killed()
    data = bytearray(content_of(files, path_of(0)))
    data[(MARKED_BATCHES - 1) * BATCH : (MARKED_BATCHES - 1) * BATCH + 61] = bytes(61)
    overwrite(files, path_of(0), bytes(data))
    opened = recovered(files)
    assert opened.walked_bytes == (MARKED_BATCHES - 1) * BATCH
    assert [damage.was_synced for damage in opened.damages] == [True]
    assert opened.log.log_end_offset == MARKED - 2


@pytest.mark.parametrize("content", [b"", b"0\n1\n", None])
def test_without_the_leader_epochs_the_batches_are_asked(content: bytes | None) -> None:
    files = killed()
    path = f"{FOLDER}/leader-epoch-checkpoint"
    if content is None:
        files.remove(path)
    else:
        overwrite(files, path, content)
    opened = recovered(files)
    assert opened.walked_bytes == WHOLE
    assert opened.log.epochs.entries == [(0, 0)]


def test_a_flipped_bit_below_the_recovery_point_is_found_by_its_reader() -> None:
    files = killed()
    files.corrupt(path_of(0), 3 * BATCH + 80)
    opened = recovered(files)
    assert opened.damages == []
    assert opened.walked_bytes == REST
    log = opened.log
    assert log.read(0, BATCH) is not None
    with pytest.raises(DamagedLog):
        log.read(6, BATCH)
    assert log.read(8, BATCH) is not None


# --- aborted transactions


def aborting(files: SimulatedFiles) -> PartitionLog:
    """Aborts before the mark and behind it."""
    log = open_new(files, SETTINGS)
    for number in range(6):
        log.append(batch_of(number, producer=4, sequence=2 * number, transactional=True), leader_epoch=0, now_ms=NOW_MS)
        log.append(marker_of(4, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)
        if number == 3:
            flush_with_mark(log)
    log.flush()
    return log


ABORTS = [(3 * number, 3 * number + 2) for number in range(6)]


def aborted(log: PartitionLog) -> list[tuple[int, int]]:
    return [(each.first_offset, each.last_offset) for each in log.aborted_between(0, log.log_end_offset)]


@pytest.mark.parametrize(
    ("harm", "is_whole"),
    [(None, False), (flip(40), True), (flip(5 * 34 + 1), False), (empty, True), (remove, True), (zero, True)],
)
def test_aborts_are_known_whatever_became_of_their_index(
    harm: Callable[[SimulatedFiles, str], None] | None, is_whole: bool
) -> None:
    files = SimulatedFiles()
    aborting(files)
    files.kill()
    if harm is not None:
        harm(files, path_of(0, ".txnindex"))
    opened = recovered(files, 18)
    assert (opened.walked_bytes == opened.log.size) is is_whole
    assert aborted(opened.log) == ABORTS


# --- making them


def test_old_marks_go_when_a_newer_one_is_durable_and_at_most_two_stay() -> None:
    files = SimulatedFiles()
    log = open_new(files, SETTINGS)
    seen = []
    for number in range(6):
        put(log, number)
        flush_with_mark(log)
        log.checkpointed_offset = log.flushed_offset
        seen.append(snapshots(files))
    # The newest name is made durable by the flush after it, so the one before stays until then.
    assert seen == [[2], [2, 4], [4, 6], [6, 8], [8, 10], [10, 12]]


def test_the_mark_that_the_recovery_point_covers_stays_as_long_as_it_is_the_newest_such() -> None:
    files = SimulatedFiles()
    log = open_new(files, SETTINGS)
    for number in range(6):
        put(log, number)
        flush_with_mark(log)
        if number == 1:
            log.checkpointed_offset = 4
    assert snapshots(files) == [4, 12]
    files.kill()
    assert recovered(files, 4).walked_bytes == 4 * BATCH


def test_a_flush_for_a_producer_leaves_no_mark() -> None:
    files = SimulatedFiles()
    log = open_new(files, SETTINGS)
    put(log, *range(4))
    log.flush()
    assert snapshots(files) == []


def test_little_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "LEAST_MARKED_BYTES", 3 * BATCH)
    files = SimulatedFiles()
    log = open_new(files, SETTINGS)
    put(log, 0, 1)
    assert not log.marks.wanted(log.active, NOW_MS + 10**6, 0, 0)
    flush_with_mark(log)
    assert snapshots(files) == []
    put(log, 2)
    flush_with_mark(log)
    assert snapshots(files) == [6]
    put(log, 3, 4)
    assert log.prepare_flush(mark=True) is not None
    log.flush()
    assert log.prepare_flush(mark=True) is None
    log.close()
    assert snapshots(files) == [10]


def test_a_log_that_every_producer_syncs_gets_marks_too() -> None:
    log = open_new(SimulatedFiles(), SETTINGS)
    put(log, 0, 1)
    log.flush()
    assert log.unflushed == 0
    assert not log.flush_wanted(NOW_MS, 3 * BATCH, 30_000)
    assert log.flush_wanted(NOW_MS, 2 * BATCH, 30_000)
    assert log.flush_wanted(NOW_MS + 30_000, 3 * BATCH, 30_000)
    flush_with_mark(log)
    assert not log.flush_wanted(NOW_MS, 2 * BATCH, 30_000)


def test_a_truncation_while_a_mark_is_written_drops_it() -> None:
    files = SimulatedFiles()
    log = open_new(files, SETTINGS)
    produce(log, *range(6))
    flush = log.prepare_flush(mark=True)
    assert flush is not None
    flush.run()
    truncate_to(log, 4, NOW_MS)
    put(log, *range(10, 16))
    log.complete_flush(flush)
    assert snapshots(files) == []
    assert not [name for name in files.list_folder(FOLDER) if name.endswith(".tmp")]
    log.flush()
    files.kill()
    log = recovered(files, 16).log
    assert base_offsets(log) == list(range(0, 16, 2))
    entry = log.producers.get(9)
    assert entry is not None
    assert entry.last_offset == 3


@pytest.mark.parametrize("cut", [2, MARKED - 1, MARKED, MARKED + 3])
def test_a_truncation_takes_the_marks_of_what_it_cuts(cut: int) -> None:
    files, log = story()
    truncate_to(log, cut, NOW_MS)
    assert snapshots(files) == ([MARKED] if cut >= MARKED else [])
    put(log, *range(50, 60))
    log.flush()
    end = log.log_end_offset
    assert log.marks.worth_it(log.active)
    flush_with_mark(log)
    files.kill()
    opened = recovered(files, end)
    assert opened.walked_bytes == 0
    assert opened.log.log_end_offset == end
    assert opened.log.active.max_timestamp == NOW_MS + 59


def test_a_roll_at_a_mark_makes_its_snapshot_the_segments() -> None:
    files = SimulatedFiles()
    log = open_new(files, SETTINGS)
    put(log, 0, 1)
    flush_with_mark(log)
    log.roll(4, NOW_MS)
    for number in range(2, 7):
        put(log, number)
        flush_with_mark(log)
        log.checkpointed_offset = log.flushed_offset
    assert snapshots(files) == [4, 12, 14]


def test_a_roll_while_a_mark_is_written_at_its_offset_leaves_the_segments_snapshot() -> None:
    files = SimulatedFiles()
    log = open_new(files, SETTINGS)
    put(log, 0, 1)
    flush = log.prepare_flush(mark=True)
    assert flush is not None
    log.roll(4, NOW_MS)
    flush.run()
    log.complete_flush(flush)
    assert decode_snapshot(content_of(files, snapshot_path(4))).mark == b""
    assert log.marks.offsets == []


def test_a_stop_while_a_mark_is_written_leaves_only_the_one_of_the_stop() -> None:
    files, log = story()
    flush = log.prepare_flush(mark=True)
    assert flush is not None
    log.close()
    flush.run()
    log.complete_flush(flush)
    assert snapshots(files) == [END]
    assert reopen(files, SETTINGS, clean=True).log.found_closed_at == END, "the folder is as the stop left it"


def test_a_full_disk_loses_only_the_mark() -> None:
    files, log = story()
    files.operations.fail("write", errno.ENOSPC, path_ending=".tmp")
    flush_with_mark(log)
    assert log.failure is None
    assert log.flushed_offset == END
    assert snapshots(files) == [MARKED]
    assert not [name for name in files.list_folder(FOLDER) if name.endswith(".tmp")]
    assert not log.flush_wanted(NOW_MS, 10**9, 30_000), "not again at once"
    put(log, BATCHES)
    flush_with_mark(log)
    assert snapshots(files) == [MARKED, END + 2]


def test_what_a_crash_left_of_a_mark_is_removed() -> None:
    files = killed()
    overwrite(files, snapshot_path(END) + ".tmp", b"half a")
    recovered(files)
    assert not [name for name in files.list_folder(FOLDER) if name.endswith(".tmp")]


def test_many_segments_with_marks_and_retries_of_all_kinds() -> None:
    """Marks, rolls, flushes and crashes in a row: the log never loses or repeats anything."""
    files = SimulatedFiles()
    settings = replace(SETTINGS, segment_bytes=5 * BATCH)
    log = open_new(files, settings)
    for step in range(40):
        put(log, step)
        if step % 3 == 0:
            flush_with_mark(log)
        if step % 7 == 6:
            log.checkpointed_offset = log.flushed_offset
        if step % 10 == 9:
            point = log.checkpointed_offset
            files.kill()
            log = open_log(files, FOLDER, settings, clean=False, recovery_point=point, now_ms=NOW_MS).log
            log.checkpointed_offset = min(point, log.log_end_offset)
        assert base_offsets(log) == list(range(0, 2 * step + 2, 2))
    inside = [o for o in snapshots(files) if o not in (*log.table.bases, log.active.base_offset)]
    assert len(inside) <= 2
