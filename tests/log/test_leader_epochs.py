from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.checkpoints import CheckpointError
from penstock.log.leader_epochs import LeaderEpochs
from penstock.runtime.files import PosixFiles

FILES = PosixFiles()
Pairs = list[tuple[int, int]]


def pairs(epochs: LeaderEpochs) -> Pairs:
    return [(entry.epoch, entry.start_offset) for entry in epochs.entries]


@pytest.mark.parametrize(
    ("before", "assigned", "after"),
    [
        ([], (0, 0), [(0, 0)]),
        ([], (7, 30), [(7, 30)]),
        ([(1, 0), (2, 10)], (3, 20), [(1, 0), (2, 10), (3, 20)]),
        ([(1, 0), (2, 10)], (2, 15), [(1, 0), (2, 10)]),
        ([(1, 0), (2, 10)], (2, 10), [(1, 0), (2, 10)]),
        ([(1, 0), (2, 10)], (2, 7), [(1, 0), (2, 7)]),
        ([(1, 0), (2, 10)], (3, 10), [(1, 0), (3, 10)]),
        ([(1, 0), (2, 10)], (3, 0), [(3, 0)]),
        ([(1, 0), (3, 10)], (2, 12), [(1, 0), (2, 12)]),
        ([(1, 0), (3, 10)], (1, 12), [(1, 12)]),
        ([(5, 4), (6, 8), (9, 9)], (7, 6), [(5, 4), (7, 6)]),
    ],
)
def test_the_later_assignment_wins(before: Pairs, assigned: tuple[int, int], after: Pairs) -> None:
    epochs = LeaderEpochs(before)
    assert epochs.assign(*assigned) == (after != before)
    assert pairs(epochs) == after


@pytest.mark.parametrize("assigned", [(-1, 0), (0, -1)])
def test_undefined_epochs_and_offsets_are_not_assigned(assigned: tuple[int, int]) -> None:
    epochs = LeaderEpochs([(0, 0)])
    with pytest.raises(ValueError, match="negative"):
        epochs.assign(*assigned)
    assert pairs(epochs) == [(0, 0)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(-1, (-1, -1)), (0, (0, 10)), (1, (1, 10)), (2, (2, 25)), (3, (2, 25)), (4, (4, 40)), (5, (-1, -1))],
)
def test_end_of_an_epoch(asked: int, answer: tuple[int, int]) -> None:
    assert LeaderEpochs([(2, 10), (4, 25)]).end_offset_for(asked, 40) == answer


def test_an_empty_list_knows_no_ends() -> None:
    epochs = LeaderEpochs()
    assert [epochs.end_offset_for(epoch, 40) for epoch in (-1, 0, 5)] == [(-1, -1)] * 3
    assert (epochs.latest_epoch, epochs.latest_start_offset, epochs.entries) == (-1, -1, [])


@pytest.mark.parametrize(("offset", "epoch"), [(0, -1), (9, -1), (10, 2), (24, 2), (25, 4), (1000, 4)])
def test_epoch_of_an_offset(offset: int, epoch: int) -> None:
    assert LeaderEpochs([(2, 10), (4, 25)]).epoch_for_offset(offset) == epoch


@pytest.mark.parametrize(
    ("offset", "after"),
    [
        (21, [(1, 0), (2, 10), (3, 20)]),
        (20, [(1, 0), (2, 10)]),
        (11, [(1, 0), (2, 10)]),
        (10, [(1, 0)]),
        (1, [(1, 0)]),
        (0, []),
    ],
)
def test_truncating_the_end(offset: int, after: Pairs) -> None:
    epochs = LeaderEpochs([(1, 0), (2, 10), (3, 20)])
    epochs.truncate_from_end(offset)
    assert pairs(epochs) == after


@pytest.mark.parametrize(
    ("offset", "after"),
    [
        (3, [(1, 5), (2, 10), (3, 20)]),
        (5, [(1, 5), (2, 10), (3, 20)]),
        (6, [(1, 6), (2, 10), (3, 20)]),
        (10, [(2, 10), (3, 20)]),
        (15, [(2, 15), (3, 20)]),
        (20, [(3, 20)]),
        (99, [(3, 99)]),
    ],
)
def test_truncating_the_start_rebases_the_epoch_that_covers_it(offset: int, after: Pairs) -> None:
    epochs = LeaderEpochs([(1, 5), (2, 10), (3, 20)])
    epochs.truncate_from_start(offset)
    assert pairs(epochs) == after


def test_two_fast_failovers_still_find_where_the_histories_part() -> None:
    # A wrote in epoch 0 up to 10 and alone in 1 up to 12; B led in 2 from 10 on; A returns and asks B.
    returning = LeaderEpochs([(0, 0), (1, 10)])
    leader = LeaderEpochs([(0, 0), (2, 10)])
    epoch, end_offset = leader.end_offset_for(returning.latest_epoch, 15)
    assert (epoch, end_offset) == (0, 10)
    returning.truncate_from_end(min(end_offset, returning.end_offset_for(epoch, 12).end_offset))
    returning.assign(2, 10)
    assert pairs(returning) == pairs(leader)


def test_an_epoch_that_wrote_nothing_leaves_no_trace() -> None:
    epochs = LeaderEpochs([(0, 0)])
    for empty in range(1, 5):
        epochs.assign(empty, 10)
    assert pairs(epochs) == [(0, 0), (4, 10)]


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = str(tmp_path / "leader-epoch-checkpoint")
    epochs = LeaderEpochs([(0, 0), (3, 17)])
    assert epochs.save(FILES, path)
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 0\n3 17\n"
    loaded = LeaderEpochs.load(FILES, path)
    assert pairs(loaded) == [(0, 0), (3, 17)]
    assert not loaded.dirty


def test_no_file_is_an_empty_list(tmp_path: Path) -> None:
    assert pairs(LeaderEpochs.load(FILES, str(tmp_path / "none"))) == []


@pytest.mark.parametrize("content", [b"0\n1\n", b"\0" * 12, b"0\n2\n3 9\n2 10\n", b"0\n1\n3 9\nx", b"0\n1\n3 9 9\n"])
def test_a_damaged_file_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        LeaderEpochs.load(FILES, str(path))


def test_only_changes_make_it_dirty_and_only_then_is_it_written(tmp_path: Path) -> None:
    path = str(tmp_path / "epochs")
    epochs = LeaderEpochs([(1, 5), (2, 10)])
    assert epochs.save(FILES, path)
    epochs.assign(2, 30)
    epochs.truncate_from_end(11)
    epochs.truncate_from_start(5)
    epochs.truncate_from_start(2)
    assert not epochs.dirty
    assert not epochs.save(FILES, path)
    changes: list[Callable[[], object]] = [
        lambda: epochs.assign(3, 30),
        lambda: epochs.truncate_from_end(30),
        lambda: epochs.truncate_from_start(6),
        epochs.clear,
    ]
    for change in changes:
        change()
        assert epochs.save(FILES, path)
    epochs.clear()
    assert not epochs.dirty
    assert pairs(LeaderEpochs.load(FILES, path)) == []


class NaiveEpochs:
    """The same rules, said once more over a plain dict and without a thought for speed."""

    def __init__(self) -> None:
        self.start_of: dict[int, int] = {}

    def assign(self, epoch: int, start: int) -> None:
        latest = max(self.start_of, default=-1)
        if epoch == latest and start >= self.start_of[latest]:
            return
        self.start_of = {e: s for e, s in self.start_of.items() if e < epoch and s < start} | {epoch: start}

    def truncate_from_end(self, offset: int) -> None:
        self.start_of = {e: s for e, s in self.start_of.items() if s < offset}

    def truncate_from_start(self, offset: int) -> None:
        covered = [e for e, s in self.start_of.items() if s <= offset]
        if covered:
            self.start_of = {e: s for e, s in self.start_of.items() if s > offset} | {max(covered): offset}

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        if epoch < 0 or epoch > max(self.start_of, default=-1):
            return (-1, -1)
        floor = max((e for e in self.start_of if e <= epoch), default=epoch)
        return floor, min((s for e, s in self.start_of.items() if e > epoch), default=log_end)

    def epoch_for_offset(self, offset: int) -> int:
        return max((e for e, s in self.start_of.items() if s <= offset), default=-1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.integers(0, 12), st.integers(0, 40)),
        st.tuples(st.just("truncate_from_end"), st.integers(0, 45)),
        st.tuples(st.just("truncate_from_start"), st.integers(0, 45)),
    ),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_any_history_agrees_with_the_naive_model(steps: list[tuple[str, int] | tuple[str, int, int]]) -> None:
    epochs, naive = LeaderEpochs(), NaiveEpochs()
    for name, *arguments in steps:
        getattr(epochs, str(name))(*arguments)
        getattr(naive, str(name))(*arguments)
        found = pairs(epochs)
        assert found == sorted(naive.start_of.items())
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(found))
    for epoch in range(-1, 14):
        assert epochs.end_offset_for(epoch, 50) == naive.end_offset_for(epoch, 50)
    for offset in range(47):
        assert epochs.epoch_for_offset(offset) == naive.epoch_for_offset(offset)


# --- batches that name another epoch


class Batch(NamedTuple):
    base_offset: int
    leader_epoch: int


@pytest.mark.parametrize(
    ("batches", "foreign"),
    [
        ([], 0),
        ([(10, 2), (12, 2), (25, 4), (40, 4)], 4),
        ([(3, 0), (9, 9), (10, 2)], 3),  # below the first entry: any
        ([(12, 2), (30, 5)], 1),
        ([(12, 4)], 0),
        ([(24, 2), (25, 2)], 1),
        ([(25, 4), (24, 2), (26, 2)], 2),  # in whatever order
    ],
)
def test_a_batch_of_another_epoch_than_wrote_there_is_found(batches: list[tuple[int, int]], foreign: int) -> None:
    epochs = LeaderEpochs([(2, 10), (4, 25)])
    assert epochs.first_foreign([Batch(*each) for each in batches]) == foreign


def test_where_no_epoch_is_known_none_is_foreign() -> None:
    assert LeaderEpochs().first_foreign([Batch(0, 7), Batch(5, 1)]) == 2
