"""The sustained benchmark: it tells what grows from what does not, and processes by what they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from benchmarks.activity_sustained import command, sampler, trends
from benchmarks.activity_sustained.command import lines_of, pictures, svg
from benchmarks.activity_sustained.sampler import GENERATOR, Family, Query, Sample, Usage, queries_of

from benchmarks import results
from penstock.activity.pipelines.engine.status import PipelineFolder, PipelineStatus, QueryStatus

RATE = 1_000.0
KEPT = {"events_per_second": RATE}


def samples(*, lag_per_min: float = 0.0, mb_per_min: float = 0.0, minutes: int = 50, restarts: int = 0) -> list[Sample]:
    """A query that reads 1,000 a second with a lag like a saw, up to two seconds of events."""
    found = []
    for number in range(minutes * 12):
        at_s = 5.0 * number
        lag = round(500 + 500 * (number % 4) + lag_per_min * at_s / 60)
        query = Query(lag, round(RATE * at_s) + 2_000 - lag, number, 900 + number % 7, restarts)
        memory_mb = 400 + mb_per_min * at_s / 60 + number % 3
        found.append(Sample(at_s, {"search/rows": query}, {"broker": Usage(memory_mb, 0.1, {7: memory_mb})}))
    return found


def complaints(run: list[Sample], failures: list[str] | None = None, reached: float = RATE) -> list[str]:
    found = trends.verdicts(run, RATE, {"events_per_second": reached}, failures)
    return [one.said for one in found if not one.is_good]


def test_a_lag_like_a_saw_is_flat() -> None:
    run = samples()
    assert complaints(run) == []
    assert 0.5 <= trends.lags(run)["search/rows"].p50 <= 2.0


def test_a_lag_that_grows_is_reported() -> None:
    complaint = complaints(samples(lag_per_min=300))
    assert len(complaint) == 1
    assert complaint[0].startswith("lag of search/rows is flat: +4.5 s")


def test_memory_that_grows_is_reported_and_what_grew_before_the_warm_up_is_not() -> None:
    complaint = complaints(samples(mb_per_min=5))
    assert len(complaint) == 1
    assert complaint[0].startswith("memory of broker is flat: +74.6 MB")
    early = [
        one._replace(usages={"broker": Usage(min(400.0, 100 + one.at_s / 7), 0.1, {})}) if one.at_s <= 2_100 else one
        for one in samples()
    ]
    assert complaints(early) == []


def test_a_single_spike_is_not_growth() -> None:
    run = samples()
    spike = run[-2]
    run[-2] = spike._replace(queries={"search/rows": spike.queries["search/rows"]._replace(lag=60_000)})
    assert complaints(run) == []


def test_a_rate_that_was_not_reached_a_restart_and_a_bad_report_are_reported() -> None:
    assert "kept to 1,000 events/s: 900" in complaints(samples(), reached=900)[0]
    assert "started again: search/rows" in complaints(samples(restarts=1))[0]
    assert "meets all goals: views: 3 missing" in complaints(samples(), ["views: 3 missing"])[0]


def test_a_run_of_which_nothing_was_seen_is_not_sustained() -> None:
    assert complaints([]) == ["no lag was seen", "no memory was seen"]


def test_rows_hold_every_column_and_are_judged_as_the_verdicts_are() -> None:
    run = samples(lag_per_min=300, restarts=1)
    rows = {(row.table, row.work): row for row in trends.rows(run, RATE, {"events_per_second": 900}, ["a", "b"])}
    lag = rows["Lag after the warm-up", "search/rows"]
    assert list(lag.figures) == ["p50", "p95", "highest", "per minute", "growth"]
    assert lag.figures["growth"].value == trends.lags(run)["search/rows"].growth
    assert rows["The run", "events that the generator sent"].goal == 990
    assert [row.work for row in rows.values() if row.is_met is False] == [
        "events that the generator sent", "restarts of queries", "failures in its report", "search/rows"
    ]  # fmt: skip
    assert not [row for row in trends.rows(samples(), RATE, KEPT, []) if row.is_met is False]


def test_unknown_lag_is_left_out() -> None:
    run = [one._replace(queries={"search/rows": one.queries["search/rows"]._replace(lag=-1)}) for one in samples()]
    assert trends.lags(run) == {}
    assert "no lag was seen" in complaints(run)


def test_what_collections_leave_is_read_from_javas_log(tmp_path: Path) -> None:
    asked = sampler.environment(tmp_path / "gc", {"JDK_JAVA_OPTIONS": "-Xint", "HOME": "/"})
    assert asked["HOME"] == "/"
    assert asked["JDK_JAVA_OPTIONS"] == f"-Xint -Xlog:gc:file={tmp_path}/gc/gc-%p.log:time"
    assert sampler.held_mb(tmp_path / "gc", 0) == []
    (tmp_path / "gc" / "gc-7.log").write_text(
        "[2026-11-15T23:30:01.500+0000] Using Serial\n"
        "[2026-11-15T23:30:02.500+0000] GC(0) Pause Young (Allocation Failure) 100M->20M(378M) 21.2ms\n"
        "[2026-11-15T23:30:11.250+0000] GC(1) Pause Full (Metadata GC Threshold) 301M->188M(506M) 230.1ms\n"
    )
    began_ms = 1_794_785_400_000  # 2026-11-15T23:30:00Z
    assert sampler.held_mb(tmp_path / "gc", began_ms) == [(11.25, 188.0)]


def test_a_heap_that_holds_more_after_each_collection_is_reported_and_one_like_a_saw_is_not() -> None:
    run = samples()
    saw = [(60.0 * minute, 200.0 + 8 * (minute % 2)) for minute in range(50)]
    more = [(60.0 * minute, 200.0 + 4 * minute) for minute in range(50)]
    assert [one.said for one in trends.verdicts(run, RATE, KEPT, None, saw) if not one.is_good] == []
    complaint = [one.said for one in trends.verdicts(run, RATE, KEPT, None, more) if not one.is_good]
    assert len(complaint) == 1
    assert complaint[0].startswith("memory of Spark's Java after collections, without state is flat: +144.0 MB")
    seldom = more[::2]  # as a large heap is collected
    assert len([one for one in trends.verdicts(run, RATE, KEPT, None, seldom) if not one.is_good]) == 1
    stateful = [
        one._replace(queries={"search/rows": one.queries["search/rows"]._replace(state_mb=4 * one.at_s / 60)})
        for one in run
    ]
    assert [one.said for one in trends.verdicts(stateful, RATE, KEPT, None, more) if not one.is_good] == []
    assert round(trends.state(stateful)[trends.STATE].growth) == 60
    assert svg(lines_of(run, more), run[-1].at_s, "").count("<polyline") == 5


def test_a_picture_has_all_lines_and_is_well_formed() -> None:
    run = samples()
    drawn = svg(lines_of(run), run[-1].at_s, "All & everything")
    ElementTree.fromstring(drawn)
    assert "All &amp; everything" in drawn
    assert drawn.count("<polyline") == 4
    assert drawn.count("judged from here on") == 4


def test_a_whole_run_is_kept_and_its_picture_is_drawn_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"generated.json": {"events_per_second": 2_000.0}, "report.json": {"failures": [], "goals": {"lag": 1}}}
    monkeypatch.setattr(results, "KEPT", tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "_run", lambda *_: (samples(), 0))
    monkeypatch.setattr(command, "_json", lambda path: said[path.name])
    command.main()
    kept = results.read(tmp_path / "activity_sustained.json")
    assert kept.partial == ()
    assert kept.notes[0].startswith("sustained: ")
    assert kept.details["report"]["goals"] == {"lag": 1}
    assert [row.is_met for row in kept.rows if row.goal is not None] == [True] * 5
    drawn = pictures(kept)["activity_sustained.svg"]
    ElementTree.fromstring(drawn)
    assert "All six pipelines, 50 min at 2,000 events/s: flat" in drawn
    assert drawn.count("<polyline") == 4


def test_a_run_that_is_not_sustained_is_kept_too_and_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PARTIAL", tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "_run", lambda *_: (samples(lag_per_min=300), 0))
    monkeypatch.setattr(command, "_json", lambda _: {"events_per_second": 2_000.0})
    with pytest.raises(SystemExit):
        command.main(["--without-report"])
    kept = results.read(tmp_path / "activity_sustained.json")
    assert kept.partial == ("not the default of --without-report",)
    assert kept.notes[1].startswith("not met: lag of search/rows is flat")
    assert "not flat" in pictures(kept)["activity_sustained.svg"]


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="processes are looked at by /proc")
def test_processes_are_classified_with_their_usage() -> None:
    spins = "import sys\nprint('up', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spins, "activity", "generate"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            family = Family(os.getpid())
            family.sample(time.monotonic())
            deadline_s = time.monotonic() + 20
            while (usage := family.sample(time.monotonic())[GENERATOR]).cores <= 0:
                assert time.monotonic() < deadline_s
            assert list(usage.rss_mb) == [process.pid]
            assert 1 < usage.memory_mb <= usage.rss_mb[process.pid] + 1
            assert os.getpid() in family.sample(time.monotonic())["run"].rss_mb
        finally:
            process.kill()
    assert GENERATOR not in family.sample(time.monotonic())


def test_queries_are_read_from_status_files(tmp_path: Path) -> None:
    assert queries_of(tmp_path / "none") == {}
    query = QueryStatus(name="rows", lag=5, input_rows_total=70, batch_id=3, batch_ms=80, restarts=1)
    PipelineFolder(str(tmp_path), "search").write(PipelineStatus(name="search", queries=[query]))
    assert queries_of(tmp_path) == {"search/rows": Query(5, 70, 3, 80, 1)}
