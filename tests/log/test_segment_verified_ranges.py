from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.segment import VerifiedRanges

POSITIONS = st.integers(0, 40)


def ranges(*pairs: tuple[int, int]) -> VerifiedRanges:
    verified = VerifiedRanges()
    for start, end in pairs:
        verified.add(start, end)
    return verified


def test_nothing_is_covered_at_first_but_nothing_itself() -> None:
    verified = VerifiedRanges()
    assert verified.end_of(0) == 0
    assert not verified.covers(0, 1)
    assert verified.covers(5, 5)


def test_ranges_that_touch_are_joined() -> None:
    verified = ranges((10, 20), (30, 40), (20, 35))
    assert verified.end_of(10) == 40
    assert verified.covers(12, 40)
    assert not verified.covers(9, 12)


def test_a_gap_is_not_covered() -> None:
    verified = ranges((10, 20), (30, 40))
    assert verified.end_of(12) == 20
    assert verified.end_of(20) == 20
    assert verified.end_of(25) == 25
    assert not verified.covers(12, 31)


def test_a_cut_forgets_what_is_behind_it() -> None:
    verified = ranges((0, 10), (20, 30))
    verified.cut(25)
    assert verified.end_of(20) == 25
    verified.cut(10)
    assert verified.end_of(0) == 10
    assert verified.end_of(20) == 20
    verified.cut(0)
    assert verified.end_of(0) == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "cut"]), POSITIONS, POSITIONS), max_size=25))
def test_it_behaves_as_a_set_of_positions_does(operations: list[tuple[str, int, int]]) -> None:
    verified = VerifiedRanges()
    model: set[int] = set()
    for name, first, second in operations:
        if name == "add":
            verified.add(first, second)
            model |= set(range(first, second))
        else:
            verified.cut(first)
            model = {position for position in model if position < first}
        for start in range(42):
            end = start
            while end in model:
                end += 1
            assert verified.end_of(start) == end
            assert verified.covers(start, start + 3) == ({start, start + 1, start + 2} <= model)
