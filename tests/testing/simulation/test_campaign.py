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
    as_result,
    described,
    is_measured,
    is_rare,
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
    assert (tally.drawn, tally.until_caught) == (4, 2)


def test_drawn_and_eligible_seeds_are_counted_apart_and_a_first_catch_is_not_a_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every third seed is eligible, and those from 24 on catch."""
    name = "too-few-in-sync"
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", _InThisProcess)

    def try_seed(seed: int, name: str) -> Trial:
        return Trial(seed, Verdict.CAUGHT if seed >= 24 else Verdict.PASSED, "it")

    monkeypatch.setattr(campaign, "try_seed", try_seed)
    monkeypatch.setattr(campaign, "is_sound", lambda seed, brokers: True)
    monkeypatch.setitem(MUTATIONS, name, MUTATIONS[name]._replace(may_catch=lambda seed: seed % 3 == 0))
    (tally,) = Campaign(range(10, 40), jobs=1).run([name])
    assert described(as_result(tally)) == "6 of 30 drawn seeds, 10 of which are eligible"
    (first,) = Campaign(range(10, 40), jobs=1, until_caught=1).run([name])
    result = as_result(first)
    assert described(result) == "first caught at drawn seed no. 15, eligible seed no. 5"
    assert (result["first_seed"], result["drawn"], result["eligible"], result["first"]) == (10, 18, 6, [24, 27])
    (none,) = Campaign(range(10, 20), jobs=1, until_caught=1).run([name])
    assert described(as_result(none)) == "0 of 10 drawn seeds, 3 of which are eligible"
    assert none.is_rare
    monkeypatch.setattr(campaign, "CATCHES_FOR_A_RATE", 2)
    (two,) = Campaign(range(10, 40), jobs=1, until_caught=2).run([name])
    assert described(as_result(two)) == "2 of 18 drawn seeds, 6 of which are eligible"


@pytest.mark.parametrize(
    ("drawn", "caught", "nth", "until_caught", "rare"),
    [
        (1000, 5, 90, None, False),
        (1000, 4, 90, None, True),
        (1000, 0, None, None, True),
        (200, 1, 200, 1, False),
        (202, 1, 201, 1, True),
        (40, 0, None, 1, True),
        (2000, 10, 1, 10, False),
        (2001, 10, 1, 10, True),
    ],
)
def test_a_mutation_is_rare_by_its_rate_or_by_its_first_catch(
    drawn: int, caught: int, nth: int | None, until_caught: int | None, rare: bool
) -> None:
    result = {"drawn": drawn, "caught": caught, "nth_drawn": nth, "until_caught": until_caught}
    assert is_rare(result) is rare


def test_a_campaign_continues_after_what_it_has_of_the_same_code_and_as_many_seeds() -> None:
    whole = {"code": "ab", "first_seed": 0, "drawn": 100, "caught": 3, "until_caught": None}
    assert is_measured(whole, range(100), None, "ab")
    assert is_measured(whole, range(100), 5, "ab")
    assert not is_measured(None, range(100), None, "ab")
    assert not is_measured(whole, range(100), None, "cd")
    assert not is_measured(whole, range(101), None, "ab")
    assert not is_measured(whole, range(1, 100), None, "ab")
    short = {**whole, "drawn": 8, "until_caught": 2}
    assert is_measured(short, range(100), 3, "ab")
    assert not is_measured(short, range(100), 4, "ab")
    assert not is_measured(short, range(100), None, "ab")


class _InThisProcess:
    def __init__(self, jobs: int, **given: Any) -> None:
        self.map = map

    def shutdown(self, *, cancel_futures: bool) -> None:
        """Nothing to end."""


def test_a_mutation_that_one_seed_in_more_than_two_hundred_catches_is_too_rare() -> None:
    passed = [Trial(seed, Verdict.PASSED) for seed in range(RAREST - 1)]
    tally = Tally("some", [*passed, Trial(RAREST - 1, Verdict.CAUGHT, "Violation: this")], drawn=RAREST)
    assert str(tally) == "some: 1 of 200 drawn seeds; seed 199: Violation: this"
    tally.trials.append(Trial(RAREST, Verdict.PASSED))
    tally.drawn += 1
    assert "TOO RARE" in str(tally)


def test_figures_replace_older_ones_and_those_of_mutations_that_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({"gone": {}, "too-few-in-sync": {"drawn": 1, "caught": 0}, "join-too-early": {}}))
    tally = Tally("too-few-in-sync", [Trial(4, Verdict.CAUGHT, "Violation: this")], 4, 1)
    save_results(path, [tally], commit="abc")
    assert read_results(path) == {
        "too-few-in-sync": {
            "first_seed": 4,
            "drawn": 1,
            "eligible": 1,
            "caught": 1,
            "until_caught": None,
            "nth_drawn": 1,
            "nth_eligible": 1,
            "first": [4],
            "violation": "Violation: this",
            "commit": "abc",
        },
        "join-too-early": {},
    }
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_results_are_written_after_each_mutation_and_a_stopped_campaign_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    names, figures = ["acknowledge-without-sync", "too-few-in-sync", "join-too-early"], tmp_path / "figures.json"
    ran: list[str] = []
    was_stopped: list[bool] = []

    def try_seed(seed: int, name: str) -> Trial:
        ran.append(name)
        if len(ran) == 4 and not was_stopped:
            was_stopped.append(True)
            raise KeyboardInterrupt
        return Trial(seed, Verdict.CAUGHT, "it")

    monkeypatch.setattr(campaign, "ProcessPoolExecutor", _InThisProcess)
    monkeypatch.setattr(campaign, "try_seed", try_seed)
    monkeypatch.setattr(campaign, "is_sound", lambda seed, brokers: True)
    arguments = ["--mutations", *names, "--seeds", "2", "--results", str(figures), "--resume"]
    assert main(arguments) == 130
    assert list(read_results(figures)) == names[:1]
    ran.clear()
    assert main(arguments) == 0
    assert ran == [name for name in names[1:] for _ in range(2)]
    assert "1 mutations are measured already, 2 are left" in capsys.readouterr().out
    assert list(read_results(figures)) == names
    assert main(["--mutations", "--resume"]) == 2


def test_a_campaign_may_leave_out_what_was_measured_on_other_code() -> None:
    tally = Tally("too-few-in-sync", [Trial(seed, Verdict.CAUGHT) for seed in range(4)], 0, 4)
    result = {**as_result(tally), "code": "older"}
    for seeds, code, expected in [(4, "newer", False), (4, "older", True), (4, None, True), (5, None, False)]:
        assert campaign.is_measured(result, range(seeds), None, code) is expected


def test_the_table_names_the_code_that_was_measured_and_what_is_not_measured() -> None:
    names = list(MUTATIONS)[:4]
    result = as_result(Tally(names[0], [Trial(0, Verdict.CAUGHT)], 0, 1))
    origin = {"commit": "0123456789abcdef", "date": "2026-11-19"}
    results = {
        names[0]: {**result, **origin, "is_dirty": False},
        names[1]: {**result, **origin, "is_dirty": True},
        names[2]: result,
    }
    rows = [line.split(" | ")[3:] for line in campaign.table(results).splitlines()[2:6]]
    assert rows == [
        ["1 of 1 drawn seeds", "`0123456789`, 2026-11-19 |"],
        ["1 of 1 drawn seeds", "`0123456789` with changes, 2026-11-19 |"],
        ["1 of 1 drawn seeds", "commit not kept |"],
        ["not yet", " |"],
    ]


def test_the_command_measures_mutations_and_writes_figures_and_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    begins, ends = campaign._TABLE_BEGINS, campaign._TABLE_ENDS
    document, figures = tmp_path / "page.md", tmp_path / "figures.json"
    document.write_text(f"before\n{begins}\n{ends}\nafter\n")
    arguments = ["--mutations", "acknowledge-without-sync", "--until-caught", "1", "--seeds", "4", "--jobs", "1"]
    assert main([*arguments, "--results", str(figures), "--table", str(document)]) == 0
    reported = capsys.readouterr().out
    assert "acknowledge-without-sync: first caught at drawn seed no. " in reported
    assert "1 of 1 mutations caught; not caught: none" in reported
    written = document.read_text()
    assert written.startswith(f"before\n{begins}\n| mutation |")
    assert written.endswith(f"{ends}\nafter\n")
    assert "InvariantBroken: the high watermark of … is …, where … are required" in written
    assert main(["--mutations", "no-such-thing"]) == 2
    assert "unknown mutation 'no-such-thing'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no place for this"):
        with_table("nothing", {})
