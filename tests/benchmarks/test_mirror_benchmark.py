"""The benchmark of mirrors: its rows, and a short run between two of our brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.clients.rounds import Outcomes

from benchmarks import mirror, results


def outcome(factor: float) -> dict[str, float]:
    return {"mb_s": 100 * factor, "cpu_s_gb": 2 / factor, "rss_mb": 50, "p50_ms": 5 / factor, "p99_ms": 9 / factor}


def test_the_rows_compare_the_mirrors_with_their_goals() -> None:
    run = mirror.Run({}, 1, 1, 1.0)
    outcomes = run.outcomes["Between brokers"] = Outcomes()
    outcomes.add(mirror.MIRROR, outcome(3.0))
    outcomes.add(mirror.MIRROR_MAKER, outcome(1.0))
    rows = {row.work: row for row in run.rows()}
    assert (rows["throughput"].ratio(), rows["throughput"].goal, rows["throughput"].is_met) == (3.0, 2.0, True)
    cpu = rows["CPU of the mirror"]
    assert (round(cpu.ratio() or 0, 3), cpu.goal, cpu.is_met) == (0.333, 0.5, True)


@pytest.mark.long
def test_a_short_run_measures_our_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PARTIAL", tmp_path)
    mirror.main(["--ours-only", "--rounds", "1", "--megabytes", "20", "--seconds", "1.5"])
    result = results.read(tmp_path / "mirror.json")
    assert {name for row in result.rows for name in row.figures} == {mirror.MIRROR}
    assert all(figure.value > 0 for row in result.rows for figure in row.figures.values())
