from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.log.log_stories import (
    FOLDER,
    NOW_MS,
    ROOMY,
    TINY,
    base_offsets,
    bases,
    batch_of,
    content_of,
    marker_of,
    open_new,
    path_of,
    put,
    reopen,
)

from penstock.log.checkpoints import LEADER_EPOCH_FILE
from penstock.log.errors import DiskFull, LogError, LogFailed, RecordsTruncated, TooManyOpenFiles
from penstock.log.group_commit import ALONE_IN_A_ROW, FAST_IN_A_ROW, FAST_MS, FEW_BYTES, GroupCommit, InlineSync
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import enforce_retention
from penstock.log.truncation import truncate_to
from penstock.runtime.threads import InlineWorkers, ManualWorkers
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulated_files import SimulatedFiles


class Waiter:
    """A waiter for an offset to be durable."""

    def __init__(self) -> None:
        self.answers: list[LogError | None] = []

    def __call__(self, error: LogError | None) -> None:
        self.answers.append(error)


def durable_folder() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    return files


def waiting(commit: GroupCommit, log: PartitionLog, *offsets: int) -> list[Waiter]:
    waiters = [Waiter() for _ in offsets]
    for waiter, offset in zip(waiters, offsets, strict=True):
        commit.when_durable(log, offset, waiter)
    return waiters


def syncs(files: SimulatedFiles, ending: str = ".log") -> int:
    return sum(each.kind == "sync" and each.path.endswith(ending) for each in files.operations.recent)


# --- a flush


def test_what_was_flushed_survives_a_power_loss_and_the_rest_does_not_matter() -> None:
    files = durable_folder()
    log = open_new(files)
    put(log, *range(5))
    log.flush()
    assert log.flushed_offset == 10
    put(log, 5, 6)
    assert log.unflushed == 4
    files.crash(LOSE_UNSYNCED)
    again = reopen(files, clean=False, recovery_point=10).log
    assert base_offsets(again) == [0, 2, 4, 6, 8]


def test_a_flush_syncs_what_changed_and_nothing_twice() -> None:
    files = durable_folder()
    log = open_new(files)
    put(log, *range(5))
    assert bases(log) == [0, 4, 8]
    log.flush()
    synced = [each.path.rpartition("/")[2] for each in files.operations.recent if each.kind == "sync"]
    assert sorted(synced) == sorted(
        [f"{base:020d}{suffix}" for base in (0, 4) for suffix in (".log", ".index", ".timeindex")]
        + [f"{8:020d}.log", f"{LEADER_EPOCH_FILE}.tmp"]
    )
    before = files.operations.counts.copy()
    log.flush()
    assert files.operations.counts == before
    put(log, 5)
    log.flush()
    assert files.operations.counts["sync"] == before["sync"] + 1
    assert files.operations.counts["sync_folder"] == before["sync_folder"]


def test_the_epochs_are_saved_before_their_records_count_as_durable() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    put(log, 0, leader_epoch=1)
    put(log, 1, leader_epoch=5)
    log.flush()
    files.crash(LOSE_UNSYNCED)
    assert content_of(files, f"{FOLDER}/{LEADER_EPOCH_FILE}") == b"0\n2\n1 0\n5 2\n"


@pytest.mark.parametrize(
    ("messages", "interval_ms", "due"), [(3, 10**9, False), (2, 10**9, True), (10**9, 501, False), (10**9, 500, True)]
)
def test_the_topics_own_flush_policy(messages: int, interval_ms: int, due: bool) -> None:
    log = open_new(SimulatedFiles(), replace(ROOMY, flush_messages=messages, flush_ms=interval_ms))
    assert not log.flush_due(NOW_MS + 10**9)
    put(log, 0)
    assert log.flush_due(NOW_MS + 500) == due
    log.flush()
    assert not log.flush_due(NOW_MS + 10**9)
    log.append(batch_of(1), leader_epoch=0, now_ms=NOW_MS + 500)
    assert log.flush_due(NOW_MS + 1000) == due


def test_after_a_group_commit_the_age_of_what_is_not_durable_counts_again() -> None:
    log = open_new(SimulatedFiles(), replace(ROOMY, flush_ms=500))
    log.append(batch_of(0), leader_epoch=0, now_ms=NOW_MS)
    GroupCommit(InlineWorkers()).when_durable(log, log.log_end_offset, lambda error: None)
    log.append(batch_of(1), leader_epoch=0, now_ms=NOW_MS + 5000)
    assert not log.flush_due(NOW_MS + 5499)
    assert log.flush_due(NOW_MS + 5500)


def test_waiters_for_truncated_and_replaced_records_get_an_error() -> None:
    log, workers = open_new(SimulatedFiles(), ROOMY), ManualWorkers()
    commit = GroupCommit(workers)
    answers: list[LogError | None] = []
    put(log, 0, 1)
    commit.when_durable(log, log.log_end_offset, answers.append)
    truncate_to(log, 2, NOW_MS)
    put(log, 5)
    commit.when_durable(log, log.log_end_offset, answers.append)
    workers.run_all()
    assert [type(answer) for answer in answers] == [RecordsTruncated, type(None)]


def test_by_default_no_flush_is_ever_due() -> None:
    log = open_new(SimulatedFiles())
    put(log, 0, 1)
    assert not log.flush_due(NOW_MS + 10**12)


@pytest.mark.parametrize("ending", [".log", ".index", ".timeindex", f"{LEADER_EPOCH_FILE}.tmp"])
def test_a_sync_that_fails_takes_the_log_offline_permanently(ending: str) -> None:
    files = durable_folder()
    log = open_new(files)
    put(log, *range(3))
    files.operations.fail("sync", errno.EIO, path_ending=ending)
    with pytest.raises(LogFailed):
        log.flush()
    before = syncs(files, "")
    with pytest.raises(LogFailed):
        log.flush()
    assert syncs(files, "") == before, "a second sync would succeed and say nothing"
    assert log.flushed_offset == 0


def test_a_folder_that_cannot_be_synced_takes_the_log_offline() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    put(log, 0, leader_epoch=-1)
    files.operations.fail("sync_folder", errno.EIO)
    with pytest.raises(LogFailed):
        log.flush()


def test_a_disk_too_full_for_the_epochs_rejects_only_the_flush() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    put(log, 0)
    files.operations.fail("write", errno.ENOSPC, path_ending=f"{LEADER_EPOCH_FILE}.tmp")
    with pytest.raises(DiskFull):
        log.flush()
    assert (log.failure, log.flushed_offset) == (None, 0)
    log.flush()
    assert log.flushed_offset == 2


def test_aborted_transactions_are_durable_with_their_markers() -> None:
    files = durable_folder()
    log = open_new(files)
    for number in range(3):
        log.append(batch_of(number, producer=1, transactional=True), leader_epoch=0, now_ms=NOW_MS)
        log.append(marker_of(1, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    log.flush()
    files.crash(LOSE_UNSYNCED)
    again = reopen(files, clean=False, recovery_point=log.flushed_offset).log
    assert [each.first_offset for each in again.aborted_between(0, 9)] == [0, 3, 6]


# --- many waiters


def test_many_waiters_share_one_sync() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    workers = ManualWorkers()
    commit = GroupCommit(workers)
    put(log, 0)
    first = waiting(commit, log, 2)
    put(log, *range(1, 20))
    rest = waiting(commit, log, *range(4, 42, 2))
    assert (workers.waiting, commit.pending(log)) == (1, 20)
    workers.run_next()
    assert first[0].answers == [None]
    assert all(waiter.answers == [] for waiter in rest)
    workers.run_next()
    assert all(waiter.answers == [None] for waiter in rest)
    assert (workers.waiting, commit.pending(log)) == (0, 0)
    assert syncs(files) == 2


def test_what_is_durable_already_is_answered_at_once() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    put(log, 0)
    log.flush()
    commit = GroupCommit(ManualWorkers())
    before = files.operations.count
    assert [waiter.answers for waiter in waiting(commit, log, 0, 1, 2)] == [[None]] * 3
    assert files.operations.count == before


def test_a_flush_done_where_it_is_given_works_too() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    commit = GroupCommit(InlineWorkers())
    for number in range(3):
        put(log, number)
        assert waiting(commit, log, number * 2 + 2)[0].answers == [None]
    assert syncs(files) == 3


def test_logs_do_not_wait_for_each_other() -> None:
    files = durable_folder()
    logs = [open_new(files, ROOMY, folder=f"/data/t-{number}") for number in range(3)]
    workers = ManualWorkers()
    commit = GroupCommit(workers)
    waiters = []
    for log in logs:
        put(log, 0)
        waiters += waiting(commit, log, 2)
    assert workers.waiting == 3
    workers.run_next()
    assert [waiter.answers for waiter in waiters] == [[None], [], []]


def test_flushes_beyond_a_bound_wait_for_their_turn_and_hold_no_files() -> None:
    files, workers = SimulatedFiles(), ManualWorkers()
    commit = GroupCommit(workers)
    logs = [open_new(files, ROOMY, folder=f"/data/t-{number}") for number in range(100)]
    waiters: list[Waiter] = []
    for log in logs:
        put(log, 0)
        waiters += waiting(commit, log, 2)
    assert workers.waiting <= 32
    while workers.waiting:
        workers.run_next()
        assert workers.waiting <= 32
    assert [waiter.answers for waiter in waiters] == [[None]] * 100
    assert all(log.flushed_offset == 2 for log in logs)


def test_a_folder_that_cannot_be_opened_without_descriptors_does_not_take_the_log_offline() -> None:
    files, workers = durable_folder(), ManualWorkers()
    log, commit = open_new(files, ROOMY), GroupCommit(workers)
    put(log, 0)
    files.operations.fail("sync_folder", errno.EMFILE)
    (waiter,) = waiting(commit, log, 2)
    workers.run_all()
    assert [type(answer) for answer in waiter.answers] == [TooManyOpenFiles]
    assert log.failure is None
    (waiter,) = waiting(commit, log, 2)
    workers.run_all()
    assert waiter.answers == [None]
    assert log.flushed_offset == 2


def test_a_failed_sync_is_reported_to_all_waiters() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    workers = ManualWorkers()
    commit = GroupCommit(workers)
    put(log, 0)
    waiters = waiting(commit, log, 2)
    put(log, 1, 2)
    waiters += waiting(commit, log, 4, 6)
    files.operations.fail("sync", errno.EIO, path_ending=".log")
    workers.run_all()
    assert [[type(answer) for answer in waiter.answers] for waiter in waiters] == [[LogFailed]] * 3
    assert log.failure is not None
    late = waiting(commit, log, 6)
    assert [type(answer) for answer in late[0].answers] == [LogFailed]
    assert commit.pending(log) == 0


def test_a_disk_too_full_to_prepare_a_flush_is_reported_and_the_log_stays_online() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    commit = GroupCommit(InlineWorkers())
    put(log, 0)
    files.operations.fail("write", errno.ENOSPC, path_ending=f"{LEADER_EPOCH_FILE}.tmp")
    assert [type(answer) for answer in waiting(commit, log, 2)[0].answers] == [DiskFull]
    assert log.failure is None
    assert waiting(commit, log, 2)[0].answers == [None]


def test_workers_that_accept_no_further_work_lose_nothing() -> None:
    files = durable_folder()
    log = open_new(files)
    put(log, 0)
    log.flush()
    put(log, *range(1, 5))
    closed = InlineWorkers()
    closed.close()
    answers = waiting(GroupCommit(closed), log, 10)[0].answers
    assert len(answers) == 1
    assert isinstance(answers[0], LogError)
    assert log.failure is None
    assert waiting(GroupCommit(InlineWorkers()), log, 10)[0].answers == [None]
    files.crash(LOSE_UNSYNCED)
    again = reopen(files, clean=False, recovery_point=10).log
    assert base_offsets(again) == [0, 2, 4, 6, 8], "the names of the files too"


def test_a_waiter_may_ask_again_when_it_is_answered() -> None:
    log = open_new(durable_folder(), ROOMY)
    workers = ManualWorkers()
    commit = GroupCommit(workers)
    second = Waiter()

    def ask_again(error: LogError | None) -> None:
        assert error is None
        put(log, 1)
        commit.when_durable(log, 4, second)

    put(log, 0)
    commit.when_durable(log, 2, ask_again)
    workers.run_all()
    assert second.answers == [None]


# --- what happens meanwhile


def test_a_roll_while_a_flush_runs_is_covered_by_the_next() -> None:
    files = durable_folder()
    log = open_new(files)
    workers = ManualWorkers()
    commit = GroupCommit(workers)
    put(log, 0)
    waiting(commit, log, 2)
    put(log, *range(1, 7))
    rest = waiting(commit, log, 14)
    workers.run_next()
    assert log.flushed_offset == 2
    workers.run_all()
    assert rest[0].answers == [None]
    files.crash(LOSE_UNSYNCED)
    assert len(base_offsets(reopen(files, clean=False, recovery_point=14).log)) == 7


def test_a_truncation_while_a_flush_runs_makes_it_worthless() -> None:
    files = durable_folder()
    log = open_new(files)
    workers = ManualWorkers()
    commit = GroupCommit(workers)
    put(log, *range(5))
    low, high = waiting(commit, log, 4, 10)
    truncate_to(log, 6, NOW_MS)
    put(log, 9)
    workers.run_next()
    assert low.answers == []
    assert log.flushed_offset < 8
    workers.run_all()
    assert low.answers == [None]
    assert [type(answer) for answer in high.answers] == [RecordsTruncated]
    assert log.failure is None, "nothing is wrong with the disk"
    files.crash(LOSE_UNSYNCED)
    assert base_offsets(reopen(files, clean=False, recovery_point=8).log) == [0, 2, 4, 6]


def test_a_flush_that_runs_is_not_disturbed_by_reads_that_need_other_segments() -> None:
    files = durable_folder()
    log = open_new(files)
    put(log, *range(40))
    workers = ManualWorkers()
    waiter = waiting(GroupCommit(workers), log, 80)[0]
    for offset in range(0, 80, 4):
        assert log.read(offset, 100) is not None
    workers.run_all()
    assert waiter.answers == [None]
    assert log.failure is None


def test_a_retention_run_while_a_flush_runs_leaves_later_segments_to_be_synced() -> None:
    files = durable_folder()
    log = open_new(files, replace(TINY, retention_bytes=1))
    put(log, *range(5))
    workers = ManualWorkers()
    commit = GroupCommit(workers)
    waiting(commit, log, 10)
    log.advance_high_watermark(4)
    enforce_retention(log, NOW_MS)
    put(log, *range(5, 8))
    rest = waiting(commit, log, 16)
    workers.run_all()
    assert rest[0].answers == [None]
    assert log.flushed_offset == 16
    files.crash(LOSE_UNSYNCED)
    again = reopen(files, clean=False, recovery_point=16).log
    assert base_offsets(again)[-4:] == [8, 10, 12, 14]
    assert files.durable_content(path_of(8, ".index"))


def test_a_stop_flushes_what_is_left() -> None:
    files = durable_folder()
    log = open_new(files)
    put(log, *range(5))
    log.close()
    assert log.flushed_offset == 10
    files.crash(LOSE_UNSYNCED)
    assert len(base_offsets(reopen(files, clean=False, recovery_point=10).log)) == 5


# --- here and now


class Turn:
    """The end of a turn of the loop, on request."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []

    def end(self) -> None:
        waiting, self.later = self.later, []
        for each in waiting:
            each()


def prompt_commit(turn: Turn, workers: ManualWorkers) -> tuple[GroupCommit, InlineSync]:
    prompt = InlineSync(InlineWorkers(), lambda call: turn.later.append(call))
    for _ in range(FAST_IN_A_ROW):
        prompt.took(FAST_MS / 2)
        prompt.served(1, FEW_BYTES)
    return GroupCommit(workers, prompt), prompt


def test_a_lone_waiter_on_a_fast_disk_is_served_at_the_end_of_the_turn_without_a_thread() -> None:
    files, turn, workers = durable_folder(), Turn(), ManualWorkers()
    log = open_new(files, ROOMY)
    commit, _ = prompt_commit(turn, workers)
    put(log, 0)
    waiter = waiting(commit, log, 2)[0]
    assert waiter.answers == []
    turn.end()
    assert (waiter.answers, workers.waiting, syncs(files)) == ([None], 0, 1)


def test_two_waiters_in_one_turn_share_a_sync_on_a_thread() -> None:
    files, turn, workers = durable_folder(), Turn(), ManualWorkers()
    log = open_new(files, ROOMY)
    commit, _ = prompt_commit(turn, workers)
    put(log, 0, 1)
    waiters = waiting(commit, log, 2, 4)
    turn.end()
    assert workers.waiting == 1
    workers.run_all()
    assert ([waiter.answers for waiter in waiters], syncs(files)) == ([[None], [None]], 1)


def test_a_slow_sync_sends_the_next_ones_to_the_threads() -> None:
    turn, workers = Turn(), ManualWorkers()
    log = open_new(durable_folder(), ROOMY)
    commit, prompt = prompt_commit(turn, workers)
    prompt.took(FAST_MS)
    prompt.served(1, FEW_BYTES)
    put(log, 0)
    waiting(commit, log, 2)
    assert (workers.waiting, turn.later) == (1, [])


def test_a_long_sync_of_many_bytes_says_nothing_about_one_of_few() -> None:
    turn, workers = Turn(), ManualWorkers()
    log = open_new(durable_folder(), ROOMY)
    commit, prompt = prompt_commit(turn, workers)
    while log.unflushed_bytes <= FEW_BYTES:
        put(log, *range(100))
    waiting(commit, log, log.log_end_offset)
    prompt.took(10 * FAST_MS)
    workers.run_all()
    put(log, 0)
    waiting(commit, log, log.log_end_offset)
    assert (workers.waiting, len(turn.later)) == (0, 1)


def test_after_a_sync_for_several_the_next_ones_go_to_the_threads_until_some_were_for_one() -> None:
    turn, workers = Turn(), ManualWorkers()
    log = open_new(durable_folder(), ROOMY)
    commit, _ = prompt_commit(turn, workers)
    put(log, 0, 1)
    waiting(commit, log, 2, 4)
    turn.end()
    workers.run_all()
    for number in range(2, 2 + ALONE_IN_A_ROW):
        put(log, number)
        waiting(commit, log, 2 * number + 2)
        assert (workers.waiting, turn.later) == (1, [])
        workers.run_all()
    put(log, 99)
    waiting(commit, log, log.log_end_offset)
    assert (workers.waiting, len(turn.later)) == (0, 1)


def test_much_is_synced_on_a_thread() -> None:
    turn, workers = Turn(), ManualWorkers()
    log = open_new(durable_folder(), ROOMY)
    commit, _ = prompt_commit(turn, workers)
    while log.unflushed_bytes <= FEW_BYTES:
        put(log, *range(100))
    waiting(commit, log, log.log_end_offset)
    assert (workers.waiting, turn.later) == (1, [])


def test_a_log_truncated_before_the_turn_ends_fails_its_waiter() -> None:
    turn = Turn()
    log = open_new(durable_folder(), ROOMY)
    commit, _ = prompt_commit(turn, ManualWorkers())
    put(log, 0)
    log.flush()
    put(log, 1)
    waiter = waiting(commit, log, 4)[0]
    truncate_to(log, 2, NOW_MS)
    turn.end()
    assert [type(answer) for answer in waiter.answers] == [RecordsTruncated]
