"""The comparison of clusters: its rows and goals, its pictures, and how a gap is measured."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from benchmarks.peers.figures import Figures
from benchmarks.replication import command
from benchmarks.replication.chart import depths, ratios
from benchmarks.replication.contenders import OURS, THEIRS
from benchmarks.replication.failover import longest_s
from benchmarks.replication.figures import DEEPEST, DEPTH, DEPTHS, GAP, PRODUCE, ROWS, TRIP_P50, rows
from benchmarks.replication.rounds import FULL, QUICK, turned


def _some() -> Figures:
    figures = Figures()
    for name, trip_us, deep, gap in ((OURS, 300.0, 9000.0, 2.0), (THEIRS, 420.0, 2500.0, 12.1)):
        figures.add(TRIP_P50, name, trip_us)
        figures.add(DEPTH[1], name, 2000.0)
        figures.add(DEPTH[DEEPEST], name, deep)
        figures.add(GAP, name, gap)
    figures.add(PRODUCE["1 KB"], OURS, 50.0)
    return figures


def test_a_row_has_the_ratio_of_ours_to_theirs_its_goal_and_whether_it_is_met() -> None:
    by_work = {line["acks=all, three replicas"].rpartition(",")[0]: line for line in rows(_some(), OURS, THEIRS)}
    deep = by_work[DEPTH[DEEPEST].name]
    assert (deep["ratio"], deep["goal"], deep["met"]) == ("3.60", "≥ 3", True)
    assert by_work[GAP.name]["met"] is True
    assert by_work[TRIP_P50.name]["ratio"] == "0.71"


def test_a_figure_that_only_one_cluster_has_is_shown_without_a_ratio_and_one_that_none_has_not_at_all() -> None:
    lines = rows(_some(), OURS, THEIRS)
    alone = next(line for line in lines if line["acks=all, three replicas"].startswith(PRODUCE["1 KB"].name))
    assert (alone[OURS], alone[THEIRS], alone["ratio"], alone["met"]) == ("50", None, None, None)
    assert len(lines) == 5 < len(ROWS)


def test_the_goals_are_those_that_were_set() -> None:
    goals = {work.name.strip(): (work.bound, work.goal) for work in ROWS if work.goal is not None}
    assert goals == {
        "produce 100 B": ("≥", 1.0),
        "produce 1 KB": ("≥", 1.0),
        "one record, round trip p50": ("≤", 1.0),
        "one record, round trip p99": ("≤", 1.0),
        "CPU of the cluster a request, one at a time": ("≤", 0.5),
        "requests/s, 64 in flight on one connection": ("≥", 3.0),
        "CPU of the cluster a request, 64 in flight": ("≤", 0.5),
        "nobody syncs: one record, round trip p50": ("≤", 0.6),
        "nobody syncs: one record, round trip p99": ("≤", 0.6),
        "leader killed: longest gap in acknowledgements": ("≤", 0.2),
    }


def test_the_pictures_have_a_bar_a_ratio_and_a_line_a_cluster() -> None:
    figures = _some()
    assert len(ElementTree.fromstring(ratios(figures, OURS, THEIRS)).findall("{*}rect")) == 1 + 4
    lines = ElementTree.fromstring(depths(figures, (OURS, THEIRS))).findall("{*}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]


def test_a_gap_ends_after_the_kill_wherever_it_began() -> None:
    assert longest_s([0.0, 5.0, 5.1, 7.1, 7.2], since_s=5.2) == pytest.approx(2.0)
    assert longest_s([], since_s=1.0) == 0.0


def test_a_round_begins_with_another_cluster_each_time() -> None:
    assert [turned(["ours", "theirs"], number)[0] for number in range(3)] == ["ours", "theirs", "ours"]


def test_loads_are_of_every_size_and_depth() -> None:
    for load in (FULL, QUICK):
        assert set(load.bulk_mb) == set(PRODUCE)
        assert load.pipelined > DEPTHS[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--only", "redpanda"], "penstock"), (["--rounds", "0"], "at least 1"), (["--parts", "none"], "failover")],
)
def test_a_run_that_cannot_be_is_refused_before_anything_starts(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert said in capsys.readouterr().err
