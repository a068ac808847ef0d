"""Safeguards switched off: each is missed by a drawn run, and by the violation that it names."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.replication.partition import Partition
from penstock.testing.simulation import campaign
from penstock.testing.simulation.__main__ import main
from penstock.testing.simulation.campaign import (
    RAREST,
    Campaign,
    Tally,
    Trial,
    Verdict,
    is_sound,
    keep_results,
    read_results,
    try_seed,
    with_table,
)
from penstock.testing.simulation.healing import Unhealed
from penstock.testing.simulation.mutations import (
    MUTATIONS,
    DriftedMutation,
    Expected,
    Mutation,
    UnknownMutation,
    mutated,
    require_same_shape,
)
from penstock.testing.simulation.observing import InvariantBroken
from penstock.testing.simulation.run import Violation

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


def test_a_mutation_that_is_not_there_is_refused() -> None:
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
def test_a_replacement_whose_parameters_have_drifted_is_refused(replacement: Any) -> None:
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
def test_a_replacement_of_another_kind_is_refused(attribute: str, replacement: Any) -> None:
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


def test_only_the_violation_that_a_mutation_names_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "acknowledge-without-sync"
    seed = next(seed for seed in range(_SEEDS_TO_LOOK_AT) if try_seed(seed, name).verdict is Verdict.CAUGHT)
    for other in (Expected(Violation, "…"), Expected(InvariantBroken, "the sky falls")):
        monkeypatch.setitem(MUTATIONS, name, MUTATIONS[name]._replace(expected=(other,)))
        assert try_seed(seed, name).verdict is Verdict.OTHERWISE


def _stumble(self: Any) -> None:
    raise TypeError("one argument too few")


def test_a_mutation_that_makes_the_code_stumble_is_broken_and_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (Expected(InvariantBroken, "…"), Expected(Unhealed, "…"))
    stumbling = Mutation("", ((Partition, "_advance", _stumble),), expected, brokers=1)
    monkeypatch.setitem(MUTATIONS, "stumbling", stumbling)
    trial = try_seed(0, "stumbling")
    assert trial.verdict is Verdict.BROKEN
    assert "one argument too few" in trial.problem


def test_a_seed_that_fails_anyway_catches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", _InThisProcess)
    monkeypatch.setattr(campaign, "try_seed", lambda seed, name: Trial(seed, Verdict.CAUGHT, "it"))
    monkeypatch.setattr(campaign, "is_sound", lambda seed, brokers: seed % 2 == 1)
    (tally,) = Campaign(range(10), jobs=1, until_caught=2).run(["too-few-in-sync"])
    assert [trial.seed for trial in tally.of(Verdict.CAUGHT)] == [1, 3]
    assert [trial.seed for trial in tally.of(Verdict.UNSOUND)] == [0, 2]


class _InThisProcess:
    def __init__(self, jobs: int, **given: Any) -> None:
        self.map = map

    def shutdown(self, *, cancel_futures: bool) -> None:
        """Nothing to end."""


def test_a_mutation_that_one_seed_in_more_than_two_hundred_catches_is_too_rare() -> None:
    passed = [Trial(seed, Verdict.PASSED) for seed in range(RAREST - 1)]
    tally = Tally("some", [*passed, Trial(RAREST - 1, Verdict.CAUGHT, "Violation: this")])
    assert "caught by 1 of 200 seeds (0.5%), first 199: Violation: this" in str(tally)
    assert "TOO RARE" not in str(tally)
    tally.trials.append(Trial(RAREST, Verdict.PASSED))
    assert "TOO RARE" in str(tally)


def test_figures_replace_older_ones_and_those_of_mutations_that_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({"gone": {}, "too-few-in-sync": {"seeds": 1, "caught": 0}, "join-too-early": {}}))
    keep_results(path, [Tally("too-few-in-sync", [Trial(4, Verdict.CAUGHT, "Violation: this")])])
    assert read_results(path) == {
        "too-few-in-sync": {"seeds": 1, "caught": 1, "first": [4], "violation": "Violation: this"},
        "join-too-early": {},
    }


def test_the_command_measures_mutations_and_writes_figures_and_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    begins, ends = campaign._TABLE_BEGINS, campaign._TABLE_ENDS
    document, figures = tmp_path / "page.md", tmp_path / "figures.json"
    document.write_text(f"before\n{begins}\n{ends}\nafter\n")
    arguments = ["--mutations", "acknowledge-without-sync", "--until-caught", "1", "--seeds", "4", "--jobs", "1"]
    assert main([*arguments, "--results", str(figures), "--table", str(document)]) == 0
    told = capsys.readouterr().out
    assert "acknowledge-without-sync: caught by " in told
    assert "1 of 1 mutations are caught; not: none" in told
    written = document.read_text()
    assert written.startswith(f"before\n{begins}\n| mutation |")
    assert written.endswith(f"{ends}\nafter\n")
    assert "InvariantBroken: the watermark of … is …, where … are demanded" in written
    assert main(["--mutations", "no-such-thing"]) == 2
    assert "there is no mutation 'no-such-thing'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no table of mutations"):
        with_table("nothing", {})
