"""Comparison of graphs: chains, circles, and the end of all patience."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from penstock.registry.formats import comparison
from penstock.registry.formats.comparison import (
    DIFFERENCES_MAX,
    PATH_CHARACTERS_MAX,
    Comparison,
    Pair,
    Verdict,
    below,
)
from penstock.registry.formats.schema import Incompatibility, InvalidSchema

Steps = Generator[Pair[int], Verdict, Verdict]
BROKEN = (Incompatibility("BROKEN", "", "it is broken"),)


def pair(number: int) -> Pair[int]:
    return Pair(number, number, number)


def test_a_chain_longer_than_the_stack_of_the_interpreter_is_followed_to_its_end() -> None:
    def rule(reader: int, writer: int) -> Steps:
        if reader == 20_000:
            return BROKEN
        verdict = yield pair(reader + 1)
        return below(f"/{reader}", verdict)

    [difference] = Comparison(rule).verdict(pair(0))
    assert difference.path.startswith("/0/1/2/3/")
    assert len(difference.path) == PATH_CHARACTERS_MAX


def test_a_circle_without_differences_is_compatible_and_one_with_a_difference_shows_it_once() -> None:
    def rule(reader: int, writer: int) -> Steps:
        verdict = yield pair((reader + 1) % 3)
        return (*below("/next", verdict), *(BROKEN if reader == broken else ()))

    broken = -1
    assert Comparison(rule).verdict(pair(0)) == ()
    broken = 2
    [difference] = Comparison(rule).verdict(pair(0))
    assert difference.path == "/next/next"


def test_a_choice_does_not_rely_on_a_pair_that_turns_out_to_be_incompatible() -> None:
    """0 needs 1 and is broken itself; 1 may take 0 or a broken 2; 3 needs 1. So all of them are incompatible."""
    asked: list[int] = []

    def rule(reader: int, writer: int) -> Steps:
        asked.append(reader)
        if reader == 0:
            verdict = yield pair(1)
            return (*verdict, *BROKEN)
        if reader == 1:
            first = yield pair(0)
            second = yield pair(2)
            return () if not first or not second else second
        if reader == 2:
            return BROKEN
        first = yield pair(0)
        return (yield pair(1))

    assert Comparison(rule).verdict(pair(3)) != ()
    assert asked.count(1) > 1, "the verdict on 1 relied on 0, which was under way, and has to be made again"


def test_endless_work_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert comparison.STEPS_MAX <= 150_000
    monkeypatch.setattr(comparison, "STEPS_MAX", 1_000)

    def rule(reader: int, writer: int) -> Steps:
        return (yield pair(reader + 1))

    with pytest.raises(InvalidSchema, match="more than 1,000 comparisons"):
        Comparison(rule).verdict(pair(0))
    with pytest.raises(InvalidSchema, match="comparisons"):
        Comparison(rule).spend(1_001)


def test_a_pair_keeps_a_limited_number_of_differences() -> None:
    def rule(reader: int, writer: int) -> Steps:
        yield from ()
        return tuple(Incompatibility("BROKEN", f"/{index}", str(index)) for index in range(1_000))

    assert len(Comparison(rule).verdict(pair(0))) == DIFFERENCES_MAX
