"""Safeguards switched off: each is missed by a drawn run, and by the violation that it names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.testing.simulation.campaign import (
    RAREST,
    Verdict,
    is_sound,
    read_results,
    try_seed,
    with_table,
)
from penstock.testing.simulation.mutations import (
    MUTATIONS,
    DriftedMutation,
    Mutation,
    UnknownMutation,
    mutated,
    require_same_shape,
)

RESULTS = Path(__file__).with_name("mutations.json")
DOCUMENT = Path(__file__).parents[3] / "docs/testing.md"
_MEASURED = 8
"""At least this many mutations have figures."""
_QUICK = ("acknowledge-without-sync", "watermark-over-unsynced", "retries-are-appended")
"""A few seconds each; the others are among the long tests."""
_SEEDS_TO_LOOK_AT = 40
"""Where the simulator has changed since the figures were taken, and with it what happens in each seed."""


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return read_results(RESULTS)


@pytest.fixture(scope="module")
def sound_seeds() -> dict[tuple[int, int], bool]:
    """Seeds that were run with everything in place: several mutations share them."""
    return {}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.long])
        for name in MUTATIONS
        if name in read_results(RESULTS)
    ],
)
def test_a_seed_that_passes_fails_without_a_safeguard_and_as_the_mutation_says(
    name: str, results: dict[str, Any], sound_seeds: dict[tuple[int, int], bool]
) -> None:
    brokers = MUTATIONS[name].brokers
    known = results.get(name, {}).get("first", [])
    for seed in [*known, *(seed for seed in range(_SEEDS_TO_LOOK_AT) if seed not in known)]:
        trial = try_seed(seed, name)
        assert trial.verdict is not Verdict.BROKEN, trial
        if trial.verdict is Verdict.CAUGHT:
            if (seed, brokers) not in sound_seeds:
                sound_seeds[seed, brokers] = is_sound(seed, brokers)
            if sound_seeds[seed, brokers]:
                return
    pytest.fail(f"no seed misses it: {MUTATIONS[name].what}")


def test_the_figures_say_that_each_mutation_is_caught_by_one_seed_in_two_hundred(results: dict[str, Any]) -> None:
    assert list(results) == [name for name in MUTATIONS if name in results]
    assert len(results) >= _MEASURED
    for name, figures in results.items():
        assert figures["caught"] * RAREST >= figures["seeds"], name
        assert MUTATIONS[name].is_caught_by(figures["violation"]), name


def test_the_table_in_the_documentation_is_made_from_the_code_and_the_figures(results: dict[str, Any]) -> None:
    document = DOCUMENT.read_text()
    assert with_table(document, results) == document, "run the command with --results and --table"


def test_an_unknown_mutation_is_rejected() -> None:
    with pytest.raises(UnknownMutation, match="acknowledge-without-sync"), mutated("no-such-thing"):
        pass


class Original:
    def method(self, first: int, *, second: int = 2) -> int:
        return first + second

    @property
    def prop(self) -> int:
        return 1

    async def awaited(self) -> None:
        """Nothing."""

    constant = 3


def _with_one_less(self: Original, first: int) -> int:
    return first


def _with_another_name(self: Original, other: int, *, second: int = 2) -> int:
    return other


def _with_another_default(self: Original, first: int, *, second: int = 3) -> int:
    return first


def _with_another_kind(self: Original, first: int, second: int = 2) -> int:
    return first


def _with_whatever(*given: Any, **named: Any) -> int:
    return 0


def _same(self: Original, first: int, *, second: int = 2) -> int:
    return -first


@pytest.mark.parametrize(
    "replacement", [_with_one_less, _with_another_name, _with_another_default, _with_another_kind, _with_whatever]
)
def test_a_replacement_whose_parameters_have_drifted_is_rejected(replacement: Any) -> None:
    require_same_shape(Original, "method", _same)
    with pytest.raises(DriftedMutation, match=r"Original.method takes \(self, first, \*, second=2\)"):
        require_same_shape(Original, "method", replacement)


@pytest.mark.parametrize(
    ("attribute", "replacement"),
    [
        ("gone", _same),
        ("prop", _same),
        ("method", property(lambda self: 1)),
        ("prop", property(cast(Any, _same))),
        ("awaited", lambda self: None),
        ("constant", lambda: 3),
    ],
)
def test_a_replacement_of_another_kind_is_rejected(attribute: str, replacement: Any) -> None:
    require_same_shape(Original, "prop", property(lambda self: 2))
    with pytest.raises(DriftedMutation, match=f"Original.{attribute}"):
        require_same_shape(Original, attribute, replacement)


def test_a_drifted_mutation_is_an_error_at_once_and_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    drifted = Mutation("", ((Original, "method", _same), (Original, "method", _with_one_less)), ())
    monkeypatch.setitem(MUTATIONS, "drifted", drifted)
    before = inspect.getattr_static(Original, "method")
    with pytest.raises(DriftedMutation), mutated("drifted"):
        pass
    assert inspect.getattr_static(Original, "method") is before
    with pytest.raises(DriftedMutation):
        try_seed(0, "drifted")
