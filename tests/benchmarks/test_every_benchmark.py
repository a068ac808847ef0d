"""`make bench` names benchmarks; each can be run, and keeps every column that it measured as a result."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest
from benchmarks.__main__ import BENCHMARKS
from benchmarks.__main__ import main as bench
from benchmarks.results import Better, Figure, Row

from benchmarks import (
    activity_generate,
    activity_start,
    activity_verdicts,
    controller_scale,
    log_append,
    log_lookup,
    log_recovery,
    network_echo,
    records_codec,
    restart,
    results,
    wire_codec,
)

KIB = 1024


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Where results are kept, and where those of partial runs go."""
    kept, partial = tmp_path / "kept", tmp_path / "partial"
    monkeypatch.setattr(results, "KEPT", kept)
    monkeypatch.setattr(results, "PARTIAL", partial)
    monkeypatch.setattr(results, "QUIET_LOAD", 10_000.0)  # nobody compares these figures
    return kept, partial


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_named_benchmark_can_be_called_and_says_when_its_result_is_kept(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert ended.value.code == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "--keep-result" in help_text
    assert "kept in benchmarks/results/ if the run is complete" in help_text


def test_one_that_fails_does_not_keep_the_next_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    def fails(_: object) -> None:
        happened.append("log_append")
        raise SystemExit("a goal is missed")

    monkeypatch.setattr(log_append, "main", fails)
    monkeypatch.setattr(log_lookup, "main", lambda _: happened.append("log_lookup"))
    with pytest.raises(SystemExit, match="failed: log_append"):
        bench(["log_append", "log_lookup"])
    assert happened == ["log_append", "log_lookup"]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The loads that the machine is going to report; the last one stays. Waiting takes a minute, but no time."""
    coming, now_s = [1.9, 0.9, 0.4], [0.0]
    monkeypatch.setattr(results, "QUIET_LOAD", 0.5)
    monkeypatch.setattr(os, "getloadavg", lambda: (coming.pop(0) if len(coming) > 1 else coming[0], 0.0, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", lambda _: now_s.__setitem__(0, now_s[0] + 60))
    return coming


def test_a_run_to_be_kept_waits_for_a_quiet_machine_also_if_it_is_the_first(
    loads: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    recording = results.begin_plain("log_append", "", [])
    assert recording.load_before == 0.4
    assert "load 1.9: waiting up to 300 s for 0.5" in capsys.readouterr().out


def test_a_machine_that_stays_busy_is_named_in_the_result(folders: tuple[Path, Path], loads: list[float]) -> None:
    loads[:] = [1.9]
    path = results.begin_plain("log_append", "", []).keep([row()])
    assert results.read(path).cautions[0] == "the machine was busy before the run (load 1.9)"


def test_a_partial_run_does_not_wait(loads: list[float]) -> None:
    parser = results.parser("peers", "")
    parser.add_argument("--quick", action="store_true")
    for arguments, left in ((["--quick"], [0.9, 0.4]), (["--quick", "--keep-result"], [0.4])):
        results.begin("peers", parser, parser.parse_args(arguments), arguments)
        assert loads == left


def test_one_that_is_terminated_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(_: object) -> None:
        raise SystemExit(128 + 15)

    monkeypatch.setattr(log_append, "main", terminated)
    monkeypatch.setattr(log_lookup, "main", lambda _: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as ended:
        bench(["log_append", "log_lookup"])
    assert ended.value.code == 143


# ---------------------------------------------------------------------------------------------- small runs


class Setting(Protocol):
    def __call__(self, name: str, value: Any) -> None: ...


def _small_appends(put: Setting) -> None:
    put("CASES", [("1 MiB batches", lambda: log_append.many_records(64 * KIB), 256 * KIB)])


def _small_lookups(put: Setting) -> None:
    put("SEGMENT_COUNTS", (1, 3))
    put("LOOKUPS", 5)


def _small_recoveries(put: Setting) -> None:
    put("CASES", (("1 MiB batches", 64 * KIB, 1024 * KIB, 512 * KIB),))
    put("ROUNDS", 2)


def _small_echoes(put: Setting) -> None:
    put("ROUNDS", 1)
    put("ROUND_TRIPS", 20)
    put("PIPELINED", 200)
    put("REGIONS", 4)


def _small_records(put: Setting) -> None:
    put("SHAPES", records_codec.SHAPES[:1])
    put("ROUNDS", 2)
    put("ROUND_SECONDS", 0.001)


def _small_messages(put: Setting) -> None:
    put("ROUNDS", 1)
    put("ROUND_SECONDS", 0.0005)


def _small_clusters(put: Setting) -> None:
    put("SHAPES", tuple(controller_scale.Shape(6, topics, 60) for topics in (6, 10, 12, 60)))
    put("ROUNDS", 1)


def _small_generator(put: Setting) -> None:
    put("CASES", [("as fast as possible, at --rate 200000", ("--as-fast-as-possible", "--events", "500"), 1)])


SMALL: dict[str, tuple[ModuleType, Callable[[Setting], None], set[str]]] = {
    "log_append": (log_append, _small_appends, {"penstock", "os.write"}),
    "log_lookup": (log_lookup, _small_lookups, {"1 segment", "3 segments"}),
    "log_recovery": (log_recovery, _small_recoveries, {"penstock", "read and crc32c"}),
    "network_echo": (network_echo, _small_echoes, {"penstock", "asyncio streams", "bare loop"}),
    "records_codec": (records_codec, _small_records, {"penstock", "aiokafka, compiled", "penstock, plain Python"}),
    "wire_codec": (wire_codec, _small_messages, {"penstock", "kio", "kafka-python"}),
    "controller_scale": (
        controller_scale,
        _small_clusters,
        {f"60 partitions, 6 brokers, {topics} topics" for topics in (6, 10, 12, 60)},
    ),
    "activity_generate": (activity_generate, _small_generator, {"penstock"}),
}
"""What can be run within a second or few; the others have their rows tested by themselves."""
SLOW = {"controller_scale", "wire_codec"}
ELSEWHERE = {
    "peers": "test_peers_benchmark",
    "growth": "test_growth_benchmark",
    "activity_sustained": "test_activity_sustained_benchmark",
    "replication": "test_replication_benchmark",
    "faults": "test_faults_benchmark",
    "spark": "test_spark_benchmark",
    "clients": "test_clients_benchmark",
    "transactions": "test_transactions_benchmark",
    "security": "test_security_benchmark",
    "mirror": "test_mirror_benchmark",
    "proxy": "test_proxy_benchmark",
    "console": "test_console_benchmark",
    "hostile": "test_hostile_benchmark",
    "restart": "here, its rows",
    "activity_start": "here, its rows",
    "activity_verdicts": "here, with a short site",
}


def test_every_benchmark_is_run_or_has_its_rows_tested() -> None:
    assert {*SMALL, *ELSEWHERE} == set(BENCHMARKS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in SMALL]
)
def test_a_small_run_keeps_all_that_it_measured(
    name: str, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, shrink, contenders = SMALL[name]
    shrink(lambda setting, value: monkeypatch.setattr(module, setting, value))
    bench([name])
    result = results.read(folders[0] / f"{name}.json")
    assert result.command == f"make bench ARGS={name}"
    assert {contender for row in result.rows for contender in row.figures} == contenders
    assert all(row.subject in row.figures for row in result.rows)
    printed = capsys.readouterr().out
    for row in result.rows:
        assert row.work.strip() in printed
        assert all(results.shown(figure.value) in printed for figure in row.figures.values())


def test_the_verdicts_of_a_short_site_are_kept_as_a_partial_run(folders: tuple[Path, Path]) -> None:
    with pytest.raises(SystemExit):  # too short for every verdict to be right
        bench(["activity_verdicts", "--seeds", "201", "--rates", "300", "--minutes", "0.3"])
    result = results.read(folders[1] / "activity_verdicts.json")
    assert result.partial == ("not the default of --seeds, --rates, --minutes",)
    for verdict in activity_verdicts.VERDICTS:
        mine = {row.work: row for row in result.rows if row.work.startswith(verdict)}
        assert len(mine) == 6
        assert mine[f"{verdict}: precision"].goal == activity_verdicts.LEAST
    assert not folders[0].exists()


def test_a_restart_is_judged_by_the_size_of_its_log() -> None:
    case = restart.Case("1 MB batches", 1_000_000, 10, 10 * restart.GB)
    rounds = [restart.Restart(produce_s, produce_s + 0.1, "") for produce_s in (1.4, 1.6, 3.0)]
    produce, fetch, size = restart.rows_of(case, "killed", 15 * restart.GB, rounds)
    assert produce.figures["penstock"] == Figure(1.6, (1.4, 1.6, 3.0))
    assert (produce.goal, produce.is_met) == (1.5, False)
    assert fetch.figures["penstock"].value == pytest.approx(1.7)
    assert (size.figures["penstock"].value, size.unit) == (15, "GB")


# ---------------------------------------------------------------------------------------------- what is kept


def row(goal: float | None = None, better: Better | None = Better.HIGHER) -> Row:
    return Row(
        "append", "MB/s", better, {"ours": Figure.of([3.0, 1 / 3, 7.0]), "peer": Figure(4.0)}, "ours", "peer", goal
    )


def test_a_result_says_where_it_comes_from_and_loses_no_digit(folders: tuple[Path, Path]) -> None:
    path = results.begin_plain("log_append", "", []).keep([row()], notes=["a note"], details={"line": [[1, 0.1]]})
    content = json.loads(path.read_text())
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=results.ROOT, capture_output=True, text=True, check=True)
    assert content["commit"] == head.stdout.strip()
    assert content["machine"]["cores"] == os.cpu_count()
    assert content["load_before"] >= 0
    assert content["date"].endswith("+00:00")
    assert content["rows"][0]["figures"][0] == {
        "contender": "ours",
        "value": 3.0,
        "ratio": 0.75,
        "rounds": [3.0, 1 / 3, 7.0],
    }
    assert (content["rows"][0]["ratio"], content["rows"][0]["better"]) == (0.75, "higher")
    assert content["details"] == {"line": [[1, 0.1]]}
    assert results.read(path).rows == (row(),)


def test_a_partial_run_does_not_replace_a_kept_result(folders: tuple[Path, Path]) -> None:
    parser = results.parser("peers", "")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("here"))

    def begin(*arguments: str) -> results.Recording:
        return results.begin("peers", parser, parser.parse_args(arguments), arguments, irrelevant=("folder",))

    kept, partial = (folder / "peers.json" for folder in folders)
    assert begin("--folder", "there").keep([row()]) == kept
    before = kept.read_text()
    assert begin("--quick").keep([row()]) == partial
    missing = begin()
    missing.lacks("Apache Kafka 4.3 is not available")
    assert missing.keep([row()]) == partial
    assert kept.read_text() == before
    assert results.read(partial).partial == ("Apache Kafka 4.3 is not available",)

    assert begin("--quick", "--keep-result").keep([row()]) == kept
    assert results.read(kept).partial == ("not the default of --quick",)
    assert results.read(kept).command == 'make bench ARGS="peers --quick --keep-result"'
    assert results.read(kept).settings == {"quick": True}


def test_a_variant_has_a_file_of_its_own(folders: tuple[Path, Path]) -> None:
    recording = results.Recording("faults", "kafka", "make bench ARGS=faults", {})
    assert recording.keep([row()]).name == "faults-kafka.json"
    assert list(results.read_all(folders[0])) == ["faults-kafka"]


def test_a_run_that_measured_nothing_keeps_nothing(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        results.begin_plain("log_append", "", []).keep([])
    assert not folders[0].exists()


@pytest.mark.parametrize(
    ("better", "goal", "is_met", "is_losing"),
    [
        (Better.HIGHER, None, None, True),
        (Better.LOWER, None, None, False),
        (Better.HIGHER, 0.7, True, False),
        (Better.HIGHER, 0.8, False, True),
        (Better.LOWER, 0.8, True, False),
        (Better.LOWER, 0.7, False, True),
        (None, None, None, False),
    ],
)
def test_a_row_of_three_quarters_of_its_peer_wins_or_loses_by_its_direction_and_goal(
    better: Better | None, goal: float | None, is_met: bool | None, is_losing: bool
) -> None:
    one = row(goal, better)
    assert (one.ratio(), one.is_met, one.is_losing) == (0.75, is_met, is_losing)


def test_a_missing_peer_gives_no_ratio_and_no_verdict() -> None:
    alone = Row("append", "MB/s", Better.HIGHER, {"ours": Figure(3.0)}, "ours", "peer", 1.0)
    assert (alone.ratio(), alone.is_met, alone.is_losing, alone.times_better) == (None, None, False, None)


def test_the_start_is_judged_by_the_first_result_of_a_first_start() -> None:
    def start(result_s: float) -> dict[str, float]:
        return dict.fromkeys(activity_start.WORKS, 1.0) | {activity_start.RESULT: result_s}

    found = {activity_start.FIRST: [start(14.0), start(16.0), start(15.5)], activity_start.LATER: [start(9.0)]}
    rows = {row.work: row for row in activity_start.rows_of(found)}
    assert list(rows) == list(activity_start.WORKS)
    judged = rows[activity_start.RESULT]
    assert (judged.figures[activity_start.FIRST].value, judged.is_met) == (15.5, False)
    assert judged.figures[activity_start.LATER].value == 9.0
    assert [work for work, row in rows.items() if row.is_met is not None] == [activity_start.RESULT]
