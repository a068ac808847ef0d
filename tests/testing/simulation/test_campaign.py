"""Campaigns: which seeds count as catching a mutation, and the results that are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    read_results,
    save_results,
    try_seed,
    with_table,
)
from penstock.testing.simulation.cluster_checks import Unhealed
from penstock.testing.simulation.mutations import (
    MUTATIONS,
    Expected,
    Mutation,
)
from penstock.testing.simulation.observer import InvariantBroken
from penstock.testing.simulation.run import Violation

_SEEDS_TO_LOOK_AT = 40
"""Where the simulator has changed since the figures were taken, and with it what happens in each seed."""


def test_only_the_violation_that_a_mutation_names_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "acknowledge-without-sync"
    seed = next(seed for seed in range(_SEEDS_TO_LOOK_AT) if try_seed(seed, name).verdict is Verdict.CAUGHT)
    for other in (Expected(Violation, "…"), Expected(InvariantBroken, "the sky falls")):
        monkeypatch.setitem(MUTATIONS, name, MUTATIONS[name]._replace(expected=(other,)))
        assert try_seed(seed, name).verdict is Verdict.OTHER


def _stumble(self: Any) -> None:
    raise TypeError("one argument too few")


def test_a_mutation_that_makes_the_code_stumble_is_broken_and_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (Expected(InvariantBroken, "…"), Expected(Unhealed, "…"))
    stumbling = Mutation("", ((Partition, "advance", _stumble),), expected, brokers=1)
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
    save_results(path, [Tally("too-few-in-sync", [Trial(4, Verdict.CAUGHT, "Violation: this")])])
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
    assert "1 of 1 mutations caught; not caught: none" in told
    written = document.read_text()
    assert written.startswith(f"before\n{begins}\n| mutation |")
    assert written.endswith(f"{ends}\nafter\n")
    assert "InvariantBroken: the high watermark of … is …, where … are required" in written
    assert main(["--mutations", "no-such-thing"]) == 2
    assert "unknown mutation 'no-such-thing'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no table of mutations"):
        with_table("nothing", {})
