"""The benchmark of hostile requests: its rows, and a short run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import hostile, results


def test_the_rows_have_the_worst_turn_and_the_latencies_of_the_client() -> None:
    rounds = [
        hostile.Outcome(1.0, 20.0, [1.0] * 99 + [30.0], 5.0, Counter()),
        hostile.Outcome(3.0, 60.0, [2.0] * 99 + [40.0], 7.0, Counter()),
    ]
    found = {(row.table, row.work): row for row in hostile.rows({"an attack": rounds})}
    turn, *times, memory, duration = found.values()
    assert (turn.figures[hostile.SUBJECT].value, turn.goal, turn.is_met) == (60.0, hostile.GOAL_MS, False)
    assert [row.figures[hostile.SUBJECT].value for row in times] == [1.5, 35.0, 40.0]
    assert [row.work for row in times] == ["an attack: p50", "an attack: p99", "an attack: longest"]
    assert memory.figures[hostile.SUBJECT].value == 7.0
    assert (duration.unit, duration.figures[hostile.SUBJECT].value) == ("s", 2.0)


@pytest.mark.long
def test_a_short_run_measures_every_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PARTIAL", tmp_path)
    hostile.main(["--rounds", "1", "--scale", "0.01"])
    (kept,) = results.read_all(tmp_path).values()
    assert {row.work for row in kept.rows if row.goal is not None} == set(hostile.ATTACKS)
    answered = kept.details["answered"]
    assert answered["Fetch of 500,000 partitions"].keys() <= {"NONE", "UNKNOWN_TOPIC_OR_PARTITION"}
    assert set(answered["CreateTopics of 10,000 topics"]) == {"NONE"}
