"""The page of benchmarks, its pictures and the README's figures say what the kept results say, and nothing else."""

from __future__ import annotations

import re
import shutil
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from benchmarks.__main__ import BENCHMARKS
from benchmarks.clients import command as clients
from benchmarks.clients import consume, produce
from benchmarks.clients.rounds import Outcomes
from benchmarks.measured_code import MeasuredCode
from benchmarks.page import BEGIN, END, IMAGES, MOST_FIGURES, PAGE, README, README_FIGURES, Chosen, RowNotFound
from benchmarks.peers import kafka, ours
from benchmarks.peers import rounds as peers_figures
from benchmarks.peers.rounds import Figures, Work
from benchmarks.peers.servers import Server
from benchmarks.replication import rounds as replication_figures
from benchmarks.results import Better, Figure, Machine, Result, Row
from benchmarks.spark import command as spark
from benchmarks.spark.workloads import OURS as OURS_SOURCE
from benchmarks.spark.workloads import STOCK, Content, Outcome, Topic

from benchmarks import page, results

OURS, THEIRS, OTHER = "penstock", "Kafka 4.3", "penstock, asyncio"
SAYS = "our broker beside Kafka"


def row(work: str, mine: float, theirs: float, goal: float | None = None, unit: str = "MB/s") -> Row:
    better = Better.HIGHER if unit == "MB/s" else Better.LOWER
    figures = {OURS: Figure.of([mine]), OTHER: Figure(mine / 2), THEIRS: Figure(theirs)}
    return Row(work, unit, better, figures, OURS, THEIRS, goal, "Bulk")


def result(*rows: Row, load: float = 0.2) -> Result:
    return Result(
        "log_append",
        None,
        "make bench ARGS=log_append",
        "0123456789abcdef",
        False,
        "2026-11-16T23:00:00+00:00",
        Machine(2, 2**33, "Linux 6.1", "3.11.7"),
        load,
        {},
        rows,
    )


def generated(one: Result) -> str:
    return page.page({"log_append": SAYS, "peers": "another one"}, {one.name: one}, {})


def test_the_page_its_pictures_and_the_readme_are_what_the_kept_results_give() -> None:
    wanted = page.files(BENCHMARKS, results.read_all())
    stale = [str(path) for path in page.stale(wanted)]
    assert not stale, f"not what `make bench ARGS=page` writes: {', '.join(stale)}"


def test_every_kept_result_belongs_to_a_benchmark_and_is_read_and_written_without_loss() -> None:
    for name, one in results.read_all().items():
        assert one.benchmark in BENCHMARKS
        assert results.as_json(one) == (results.KEPT / f"{name}.json").read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the generator writes to, with a README."""
    (tmp_path / "docs").mkdir()
    shutil.copy(results.ROOT / README, tmp_path / README)
    return tmp_path


def test_a_hand_edit_a_new_result_and_an_orphaned_picture_are_stale(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "KEPT", checkout / "results")
    page.write(BENCHMARKS, checkout)
    assert page.stale(page.files(BENCHMARKS, results.read_all(), checkout), checkout) == []

    (checkout / PAGE).write_text((checkout / PAGE).read_text() + "It is ten times faster.\n")
    assert page.stale(page.files(BENCHMARKS, results.read_all(), checkout), checkout) == [PAGE]
    page.write(BENCHMARKS, checkout)

    (checkout / "results").mkdir()
    (checkout / "results" / "log_append.json").write_text(results.as_json(result(row("append", 3, 4))))
    picture = IMAGES / "log_append.svg"
    assert page.stale(page.files(BENCHMARKS, results.read_all(), checkout), checkout) == [PAGE, picture]
    page.write(BENCHMARKS, checkout)
    assert (checkout / picture).exists()

    (checkout / "results" / "log_append.json").unlink()
    assert page.stale(page.files(BENCHMARKS, results.read_all(), checkout), checkout) == [PAGE, picture]
    page.write(BENCHMARKS, checkout)
    assert not (checkout / picture).exists()


def test_a_figure_typed_into_the_readme_is_stale(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "KEPT", checkout / "results")
    page.write(BENCHMARKS, checkout)
    text = (checkout / README).read_text()
    (checkout / README).write_text(text.replace(END, f"| append | 3.7 GB/s |\n{END}"))
    assert page.stale(page.files(BENCHMARKS, results.read_all(), checkout), checkout) == [README]


def test_every_column_is_shown_losing_ones_in_bold_with_their_goal() -> None:
    text = generated(result(row("produce", 10, 20, goal=1.0), row("consume", 10, 8), row("CPU", 3, 2, 0.5, "s")))
    assert "| work | unit | penstock | penstock, asyncio | Kafka 4.3 | penstock / Kafka 4.3 | goal |" in text
    assert "| produce | MB/s | 10 | 5 (0.25) | 20 | **0.50** | ≥ 1 |" in text
    assert "| consume | MB/s | 10 | 5 (0.62) | 8 | 1.25 |  |" in text
    assert "| CPU | s | 3 | 1.5 (0.75) | 2 | **1.50** | ≤ 0.5 |" in text
    assert "| [log_append](#log_append) | 2026-11-16 | `0123456789` | 3 | 3 | 2 |" in page.without_code(text)


def test_without_a_peer_the_goal_bounds_the_figure_itself() -> None:
    alone = Row("start", "s", Better.LOWER, {OURS: Figure(1.5)}, OURS, goal=1.0)
    assert "| start | s | **1.5** | ≤ 1 |" in generated(result(alone))


def test_a_goal_is_not_shown_where_the_peer_is_missing() -> None:
    alone = Row("produce", "MB/s", Better.HIGHER, {OURS: Figure(1.5)}, OURS, THEIRS, goal=2.0)
    assert "| produce | MB/s | 1.5 |  |  |" in generated(result(alone))


def test_a_busy_machine_and_a_partial_run_are_warned_of() -> None:
    quiet = generated(result(row("append", 1, 1)))
    assert "Warning" not in quiet
    busy = replace(result(row("append", 1, 1), load=0.8), partial=("not the default of --quick",), is_dirty=True)
    text = generated(busy)
    assert "> **Warning:** the machine was busy before the run (load 0.8)." in text
    assert "> **Warning:** partial run: not the default of --quick." in text
    assert "> **Warning:** measured with uncommitted changes" in text
    assert "Commit `0123456789` with changes, 2026-11-16 23:00 UTC, 2 cores, 8 GiB, Linux 6.1" in text


def test_a_benchmark_without_a_result_is_named_as_not_measured_and_has_no_figure() -> None:
    text = generated(result(row("append", 1, 1)))
    _, _, rest = text.partition("## Not measured yet\n")
    assert rest.strip() == "- `peers`: another one (`make bench ARGS=peers`)"
    overview, _, _ = text.partition("## log_append")
    assert "| peers | [not measured yet](#not-measured-yet) | | | | | |" in overview


def test_a_result_of_other_code_is_named_in_the_overview_its_section_and_the_readme() -> None:
    one = result(row("append", 1, 1))
    says = "measured on other code than this: files that differ: 2"
    compared = page.Compared({"log_append": says}, "`abcdef`, 2026-11-19")
    text = page.page({"log_append": SAYS}, {"log_append": one}, {}, compared)
    [in_overview] = [line for line in text.splitlines() if line.startswith("| [log_append]")]
    assert f"**{says}**" in in_overview
    [in_section] = [line for line in text.splitlines() if line.startswith("Commit `0123456789`")]
    assert "**Measured on other code than this: files that differ: 2.**" in in_section
    assert "`abcdef`, 2026-11-19" in text
    readme = page.readme_figures({"log_append": one}, [Chosen("log_append", "append", "append")], compared)
    assert "Measured on other code than this: log_append." in readme

    same = page.page({"log_append": SAYS}, {"log_append": one}, {}, page.Compared({}, "`abcdef`, 2026-11-19"))
    assert "as measured" in same
    assert "other code" not in same
    assert page.without_code(text) == page.without_code(same)


def test_a_change_of_the_code_makes_no_page_stale_until_it_is_generated_again(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "KEPT", checkout / "results")
    (checkout / "results").mkdir()
    kept = replace(result(row("append", 3, 4)), code=MeasuredCode.here("log_append", checkout))
    (checkout / "results" / "log_append.json").write_text(results.as_json(kept))
    page.write(BENCHMARKS, checkout)
    before = (checkout / PAGE).read_text()
    assert "other code" not in before

    (checkout / "benchmarks").mkdir()
    (checkout / "benchmarks" / "log_append.py").write_text("measured = True\n")
    assert page.stale(page.files(BENCHMARKS, results.read_all(), checkout), checkout) == []
    page.write(BENCHMARKS, checkout)
    assert (checkout / PAGE).read_text() != before
    assert "measured on other code than this" in (checkout / PAGE).read_text()
    assert page.stale(page.files(BENCHMARKS, results.read_all(), checkout), checkout) == []


def test_the_picture_draws_what_loses_too() -> None:
    drawn = page.pictures(result(row("produce", 10, 20, goal=1.0), row("CPU", 1, 2, 0.5, "s")))
    assert list(drawn) == ["log_append.svg"]
    assert ">0.50</text>" in drawn["log_append.svg"]
    assert ">2.00</text>" in drawn["log_append.svg"], "half the CPU is twice as good"


def test_a_result_of_an_unknown_benchmark_is_an_error() -> None:
    with pytest.raises(ValueError, match="do not exist: log_append"):
        page.files({"peers": SAYS}, {"log_append": result(row("append", 1, 1))})


def test_the_readme_has_at_most_eight_figures() -> None:
    assert len(README_FIGURES) <= MOST_FIGURES
    assert all(each.result.partition("-")[0] in BENCHMARKS for each in README_FIGURES)
    block = re.search(f"{re.escape(BEGIN)}(.*){re.escape(END)}", (results.ROOT / README).read_text(), re.DOTALL)
    assert block is not None
    assert sum(line.startswith("| ") for line in block[1].splitlines()) <= 1 + MOST_FIGURES


def test_every_chosen_figure_is_a_row_that_its_benchmark_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "peers": _rows_of_works(peers_figures.ROWS, ours.NAME, kafka.NAME),
        "replication": _rows_of_works(replication_figures.ROWS, "penstock", "Kafka 4.3"),
        "clients": _rows_of_clients(monkeypatch),
        "spark": _rows_of_spark(tmp_path, monkeypatch),
    }
    every = {name: replace(result(*rows), benchmark=name) for name, rows in made.items()}
    text = page.readme_figures(every)
    assert [line.split(" | ")[0] for line in text.splitlines()[2:-2]] == [f"| {each.says}" for each in README_FIGURES]


def _rows_of_works(works: Sequence[Work], ours_name: str, theirs: str) -> list[Row]:
    figures = Figures()
    for work in works:
        figures.add(work, ours_name, 1.0)
        figures.add(work, theirs, 2.0)
    return figures.rows(works, [ours_name, theirs], ours_name, theirs)


def _rows_of_clients(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    outcomes = Outcomes()
    for name in ("penstock send", "confluent produce"):
        outcomes.add(name, dict.fromkeys(("rate", "cpu_us", "memory_mb", "p50_us", "p99_us"), 1.0))
    monkeypatch.setattr(produce, "PAIRS", produce.PAIRS[:1])
    for module in (produce, consume):
        monkeypatch.setattr(module, "measure", lambda *_: outcomes)
    monkeypatch.setattr(clients, "_say", lambda _: None)
    for name in ("penstock one", "confluent one"):
        outcomes.add(name, dict.fromkeys(("p50_us", "p99_us"), 1.0))
    run = clients.Run(Namespace(bytes=[100, 1000], acks=["all"], rounds=1, seconds=1.0))
    server = cast(Server, SimpleNamespace(name=ours.NAME))
    run.measure_producing(server)
    run.measure_consuming(server)
    return run.rows


def _rows_of_spark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    topic = Topic("views", Content(1000), 1_000)
    monkeypatch.setattr(spark, "fill", lambda *_: topic)
    monkeypatch.setattr(spark, "rounds", lambda *_: {one: [Outcome(1.0, 1.0)] for one in (OURS_SOURCE, STOCK)})
    session = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=SimpleNamespace(pid=1))))
    server = cast(Server, SimpleNamespace(name=ours.NAME, address=""))
    measurement = spark.Measurement(server, session, [OURS_SOURCE, STOCK], spark.parsed([]), folder)
    return measurement.contents([Content(1000)])


def test_the_readme_shows_chosen_figures_of_the_results_that_there_are() -> None:
    chosen = [Chosen("log_append", "produce", "produce 1 KB"), Chosen("peers", "anything", "not measured")]
    text = page.readme_figures({"log_append": result(row("produce", 10, 20, goal=1.0))}, chosen)
    assert (
        "| produce 1 KB | 10 MB/s | Kafka 4.3: 20 MB/s | **0.50** "
        "| [log_append, 2026-11-16](docs/benchmarks.md#log_append) |"
    ) in text
    assert "not measured" not in text
    assert "No result is kept" in page.readme_figures({}, chosen)


def test_cases_of_a_figure_are_shown_in_one_line_each_with_its_ratio() -> None:
    chosen = Chosen("log_append", "killed", "a pause when killed / frozen / cut off", beside=("frozen", "cut off"))
    rows = (row("killed", 20, 10), row("frozen", 8, 10), row("cut off", 10, 10, goal=2.0))
    text = page.readme_figures({"log_append": result(*rows)}, [chosen])
    assert (
        "| a pause when killed / frozen / cut off | 20 / 8 / 10 MB/s | Kafka 4.3: 10 / 10 / 10 MB/s "
        "| 2.00 / **0.80** / **1.00** | "
    ) in text
    with pytest.raises(RowNotFound, match="0 rows for 'frozen'"):
        page.readme_figures({"log_append": result(*rows[:1])}, [chosen])


def test_a_chosen_figure_that_its_result_does_not_have_is_an_error() -> None:
    with pytest.raises(RowNotFound, match=r"0 rows for .*consume"):
        page.readme_figures(
            {"log_append": result(row("produce", 10, 20))}, [Chosen("log_append", "consume", "consume 1 KB")]
        )
