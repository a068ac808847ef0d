"""The benchmark of proxied listeners: its rows, and a short run."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.clients.rounds import Outcomes

from benchmarks import proxy, results


def test_the_rows_compare_one_address_with_all() -> None:
    outcomes = Outcomes()
    for column, figure in ((proxy.DIRECT, 2.0), (proxy.PROXIED, 1.0)):
        fields = ("write", "write_cpu", "read", "read_cpu", "p50_ms", "p99_ms")
        outcomes.add(column, dict.fromkeys(fields, figure))
    found = proxy.rows(outcomes)
    assert len({row.work for row in found}) == 6
    assert {row.ratio() for row in found} == {0.5}


@pytest.mark.long
def test_a_short_run_measures_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PARTIAL", tmp_path)
    proxy.main(["--rounds", "1", "--seconds", "0.2"])
    (kept,) = results.read_all(tmp_path).values()
    assert all(row.figures.keys() == {proxy.DIRECT, proxy.PROXIED} for row in kept.rows)
    assert all(figure.value > 0 for row in kept.rows for figure in row.figures.values())
