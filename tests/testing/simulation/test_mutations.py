"""Safeguards switched off: each is missed by a drawn run, and by the violation that it names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.testing.simulation.campaign import (
    Verdict,
    is_rare,
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
_QUICK = ("acknowledge-without-sync", "watermark-over-unsynced", "retries-are-appended")
"""A few seconds each; the others are among the long tests."""
_SEEDS_TO_LOOK_AT = 40
"""Where the code has changed since the figures were taken, and with it what happens in each seed."""
_OFTEN = 6
_ENOUGH_CATCHES = 3


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return read_results(RESULTS)


@pytest.fixture(scope="module")
def sound_seeds() -> dict[tuple[int, int], bool]:
    """Seeds that were run with everything in place: several mutations share them."""
    return {}


@pytest.fixture(scope="module")
def simulator() -> Iterator[ProcessPoolExecutor]:
    """A process of its own: what happens in a seed depends on the order of sets, which is fixed when one starts."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONHASHSEED", "0")
            pool.submit(int).result()
        yield pool


def is_often_caught(figures: dict[str, Any]) -> bool:
    """Whether all of `_SEEDS_TO_LOOK_AT` miss it in less than one of a thousand states of the code."""
    return bool(figures["caught"] >= _ENOUGH_CATCHES and figures["caught"] * _OFTEN >= figures["eligible"])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.long]) for name in MUTATIONS]
)
def test_a_seed_that_passes_fails_without_a_safeguard_and_as_the_mutation_says(
    name: str, results: dict[str, Any], sound_seeds: dict[tuple[int, int], bool], simulator: ProcessPoolExecutor
) -> None:
    """A change of the code makes other runs of the kept seeds. If none of a rare mutation's catches then, only a new
    campaign tells whether a check has gone blind.
    """
    assert name in results, f"measure {name}"
    brokers, figures = MUTATIONS[name].brokers, results[name]
    seeds = list(figures["first"])
    if is_often_caught(figures):
        seeds += [seed for seed in range(_SEEDS_TO_LOOK_AT) if seed not in seeds and MUTATIONS[name].may_catch(seed)]
    for seed in seeds:
        trial = simulator.submit(try_seed, seed, name).result()
        assert trial.verdict is not Verdict.BROKEN, trial
        if trial.verdict is Verdict.CAUGHT:
            if (seed, brokers) not in sound_seeds:
                sound_seeds[seed, brokers] = simulator.submit(is_sound, seed, brokers).result()
            if sound_seeds[seed, brokers]:
                return
    again = (
        f'measure again with make simulate ARGS="--mutations {name} --seeds 1000 --until-caught 3 '
        f'--results tests/testing/simulation/mutations.json --table docs/testing.md"'
    )
    if not is_often_caught(figures):
        pytest.skip(f"few seeds catch it, and seeds {', '.join(map(str, seeds))} do not today: {again}")
    pytest.fail(f"no run notices that {MUTATIONS[name].what}: not seeds {', '.join(map(str, seeds))}; {again}")


def test_every_mutation_is_measured_and_caught_by_one_drawn_seed_in_two_hundred(results: dict[str, Any]) -> None:
    assert list(results) == list(MUTATIONS), "measure those that are missing"
    for name, figures in results.items():
        assert not is_rare(figures), name
        assert MUTATIONS[name].is_caught_by(figures["violation"]), name


def test_the_figures_of_a_mutation_agree_with_each_other_and_with_what_is_drawn(results: dict[str, Any]) -> None:
    for name, figures in results.items():
        first, drawn = figures["first_seed"], figures["drawn"]
        eligible = [seed for seed in range(first, first + drawn) if MUTATIONS[name].may_catch(seed)]
        assert len(eligible) == figures["eligible"], name
        assert set(figures["first"]) <= set(eligible), name
        assert eligible.index(figures["first"][0]) + 1 == figures["nth_eligible"], name
        assert figures["first"][0] - first + 1 == figures["nth_drawn"], name


def test_the_table_in_the_documentation_is_made_from_the_code_and_the_figures(results: dict[str, Any]) -> None:
    document = DOCUMENT.read_text()
    assert with_table(document, results) == document, "run the command with --results and --table"


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_has_the_shape_of_what_it_replaces(name: str) -> None:
    """What they replace changes; the runs that would notice are among the long tests."""
    with mutated(name):
        pass


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
