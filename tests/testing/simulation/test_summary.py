"""The sums over a campaign, what is kept of them, and the section of the documentation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import penstock
from penstock.testing.simulation import summary
from penstock.testing.simulation.__main__ import main
from penstock.testing.simulation.run import Report
from penstock.testing.simulation.summary import (
    Summary,
    code_digest,
    keep,
    origin,
    read_kept,
    section,
    with_section,
)

CAMPAIGN = Path(__file__).with_name("campaign.json")
DOCUMENT = Path(__file__).parents[3] / "docs/testing.md"
MARKED = f"before\n{summary._BEGINS}\n{summary._ENDS}\nafter\n"


def report(seed: int, problem: str = "") -> Report:
    return Report(
        seed, problem, virtual_s=1800.0, faults=Counter(power=2, crash=1), acknowledged=1000, excused=10, commits=100,
        excused_commits=4, read=990, excused_reads=3, starts=6, excused_starts=1, final_commits=5,
        excused_final_commits=2, checks=7,
    )  # fmt: skip


def of(*reports: Report) -> Summary:
    made = Summary()
    for each in reports:
        made.take(each)
    return made


def test_judged_and_excused_are_counted_apart_for_everything_that_can_be_excused() -> None:
    lines = "\n".join(of(report(0), report(1)).lines(took_s=60.0))
    assert "2 seeds, 0 failed: 1.00 simulated hours in 60.0 s (60 times as fast)" in lines
    assert "1980 acknowledged records" in lines
    assert "1974 reads" in lines
    assert (
        "excused: 20 acknowledged records (1 %), 8 committed offsets (4 %), 6 reads (0.3 %), "
        "2 starts of members (17 %), 4 last committed offsets (40 %)"
    ) in lines
    assert "faults, 6: 2 crash, 4 power" in lines


def test_a_kept_campaign_names_its_commit_its_seeds_and_those_that_failed(tmp_path: Path) -> None:
    content = of(report(5), report(6, "Violation: it")).as_json(5, 3, took_s=120.0)
    keep(tmp_path / "campaign.json", content)
    kept = read_kept(tmp_path / "campaign.json")
    assert kept == content
    assert kept is not None
    assert (kept["seeds"], kept["failures"], kept["commit"]) == (2, [6], origin()["commit"])
    text = section({**kept, "commit": "0123456789abcdef", "is_dirty": False, "date": "2026-11-19"})
    assert (
        "ran 2 seeds (5 to 6) with 3 brokers on 2026-11-19 at commit `0123456789`: 1.0 simulated hours in 2 minutes. "
        "1 seeds failed: 6."
    ) in text
    assert "| acknowledged records | 1,980 | 20 (1 %) |" in text
    assert "| checks of invariants | 14 |  |" in text
    assert "| `power` | 4 | | `crash` | 2 |" in text
    assert "6 faults:" in text


def test_the_section_stands_between_its_markers_and_says_if_there_is_no_campaign() -> None:
    assert with_section(MARKED, None) == MARKED.replace(summary._ENDS, f"No campaign is kept.\n{summary._ENDS}")
    with pytest.raises(ValueError, match="no place for this"):
        with_section("nothing", None)


def test_the_documentation_says_what_the_kept_campaign_found() -> None:
    document = DOCUMENT.read_text()
    assert with_section(document, read_kept(CAMPAIGN)) == document, "run the command with --keep and --table"


def test_the_digest_is_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "__init__.py").write_text("")
    before = code_digest()
    (tmp_path / "kernel.so").write_text("compiled")
    assert code_digest() == before
    (tmp_path / "kernel.pyx").write_text("source")
    with_kernel = code_digest()
    assert with_kernel != before
    (tmp_path / "console").mkdir()
    (tmp_path / "console" / "pages.py").write_text("not simulated")
    assert code_digest() == with_kernel


def test_a_run_loads_nothing_that_the_digest_leaves_out() -> None:
    code = (
        "import sys; from penstock.testing.simulation.run import Plan, simulate; simulate(4, Plan(brokers=3));"
        "print(*{name.split('.')[1] for name in sys.modules if name.startswith('penstock.')})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"broker", "client", "testing"} <= loaded
    assert not loaded & summary._NOT_SIMULATED


def test_the_command_keeps_a_campaign_and_writes_its_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    kept, document = tmp_path / "campaign.json", tmp_path / "page.md"
    document.write_text(MARKED)
    arguments = ["--keep", str(kept), "--table", str(document), "--brokers", "1", "--jobs", "1"]
    for partial in (["--seed", "1"], ["--schedule", "1 power broker-0 for 0.1"], ["--mutation", "too-few-in-sync"]):
        assert main([*arguments, *partial]) == 2
    assert "--keep is for a campaign" in capsys.readouterr().err
    assert not kept.exists()
    assert main([*arguments, "--seeds", "1", "--first", "4"]) == 0
    content = json.loads(kept.read_text())
    assert (content["first_seed"], content["seeds"], content["brokers"]) == (4, 1, 1)
    assert with_section(document.read_text(), content) == document.read_text()
    assert "ran 1 seeds (4 to 4)" in document.read_text()


def test_a_campaign_that_was_stopped_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")

    def stopped(*_: object, **__: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.testing.simulation.__main__.run_one", stopped)
    kept = tmp_path / "campaign.json"
    assert main(["--keep", str(kept), "--seeds", "2", "--jobs", "1"]) == 130
    assert "not kept" in capsys.readouterr().out
    assert not kept.exists()
