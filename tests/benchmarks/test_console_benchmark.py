"""The benchmark of the console and the registry: its parts, its rows, and a short run."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.clients.rounds import Outcomes

from benchmarks import console, results

LOAD = console.Load(10_000, 10_000, 10.0, 1, 1.0, 9, 10)
SMALL = [
    *("--topics", "110", "--groups", "8", "--gigabytes", "0.002", "--rounds", "1", "--seconds", "0.05"),
    *("--visits", "9", "--schemas", "4"),
]


def figures(latency: float = 1.0, broker_mb: float = 2.0) -> console.Figures:
    """Of a run in which everything was measured once; `latency` is that with visitors, without it is 1."""
    found = console.Figures(Outcomes(), Outcomes(), Outcomes(), Outcomes())
    fields = (
        "answered_s", "shown_s", "again_p50", "again_p95", "pages_p50", "pages_p95", "slowest", "console_mb",
        "console_peak_mb",
    )  # fmt: skip
    for place in ("few", "many"):
        found.visits.add(place, {**dict.fromkeys(fields, 1.0), "broker_mb": broker_mb})
        for name in (console.NOBODY, console.VISITED):
            figure = 1.0 if name == console.NOBODY else latency
            found.latency.add(f"{place} {name}", {"p50": figure, "p99": figure})
    found.latency.add(f"few {console.SEARCHED}", {"p50": 3.0, "p99": 3.0})
    for codec, kind in itertools.product((console.PLAIN, console.ZSTD), (console.BY_TEXT, console.BY_PATH)):
        found.searches.add(f"{codec} {kind}", {"records": 300.0, "log": 100.0, "silence_ms": 250.0})
    found.registry.add(
        console.PENSTOCK,
        {
            f"{name}_{count}_{field}": 1.0
            for name in ("register", "fetch") for count in (1, 8) for field in ("rate", "p50", "p99")
        },
    )  # fmt: skip
    return found


def test_every_figure_is_a_row_and_stands_in_its_table() -> None:
    rows = console.rows(figures(), LOAD)
    assert {row.table: sum(each.table == row.table for each in rows) for row in rows} == {
        "First screen and pages": 7, "Memory": 3, "Search through 10 GB of records": 6,
        "Latency of produce, acks=1, one record at a time": 4, "Schema registry": 12,
    }  # fmt: skip
    assert all(row.subject in row.figures for row in rows)
    assert {name for row in rows if row.table == "Memory" for name in row.figures} == {"10,000 topics", "100 topics"}


@pytest.mark.parametrize(("latency", "broker_mb", "lost"), [(1.04, 15.0, 0), (1.06, 15.0, 4), (1.04, 15.1, 1)])
def test_goals_are_fifteen_megabytes_and_five_percent(latency: float, broker_mb: float, lost: int) -> None:
    assert sum(row.is_losing for row in console.rows(figures(latency, broker_mb), LOAD)) == lost


def test_the_many_topics_have_to_be_more_than_the_few(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        console.main(["--topics", "100"])
    assert "--topics is 100; it must be more than 100" in capsys.readouterr().err


def test_events_of_a_stream_are_read_whatever_is_between_them() -> None:
    lines = [b"event: step\n", b'data: {"end": ""}\n', b"\n", b": alive\n", b"\n", b'data: {"end": "complete"}\n']
    assert list(console.events(iter(lines))) == [{"end": ""}, {"end": "complete"}]


def test_pages_are_of_all_kinds_and_inside_the_lists() -> None:
    found = list(itertools.islice(console.paths(3, 2), 90))
    assert len({path.partition("?")[0].rstrip("012") for path in found}) >= 7
    assert {path for path in found if path.startswith("/topics/")} >= {f"/topics/topic-0000{each}" for each in range(3)}


def test_records_have_their_size_and_only_one_has_the_needle() -> None:
    chance = random.Random(0)
    records = [console._record(user, chance) for user in ("user-1", "user-4999", console.NEEDLE)]
    assert {len(record) for record in records} == {console.RECORD_BYTES}
    assert [console.NEEDLE.encode() in record for record in records] == [False, False, True]
    assert json.loads(records[2])["user"]["id"] == console.NEEDLE


def test_a_small_disk_makes_the_run_partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = results.parser("console", "")
    recording = results.begin("console", parser, parser.parse_args([]), [])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9 * console.GB))
    assert console.fitting(3.0, tmp_path, recording) == 3.0
    assert not recording.partial
    assert console.fitting(10.0, tmp_path, recording) == pytest.approx(4.0)
    assert recording.partial == ("only 4.0 of 10 GB fit on the disk",)


@pytest.mark.long
def test_a_short_run_measures_everything_and_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PARTIAL", tmp_path / "partial")
    monkeypatch.setattr(results, "KEPT", tmp_path / "kept")
    console.main([*SMALL, "--folder", str(tmp_path / "data")])
    assert not (tmp_path / "kept").exists()
    (found,) = results.read_all(tmp_path / "partial").values()
    assert len(found.rows) == len(console.rows(figures(), LOAD))
    growing = [row for row in found.rows if row.work != "the broker: what the console adds"]
    assert all(figure.value > 0 for row in growing for figure in row.figures.values())
    assert list((tmp_path / "data").iterdir()) == []
