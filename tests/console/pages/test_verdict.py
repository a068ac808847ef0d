"""The verdict: findings of the cluster and the warehouse, for those who may see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.diagnosis import NOTE, PROBLEM, Finding
from penstock.console.cluster.state import Snapshot, TopicRow
from penstock.console.pages.verdict import findings, may_see_all, problems, visible
from penstock.console.warehouse import Audit, Hour, PipelineRow, TableRow, View

BROKER = Finding(PROBLEM, "replicas", "broker 2", "is away")
TABLES = {
    "views": TableRow("views", "open", audit=Audit(None, False, [Hour(0, 9, 2, 0, 0, 0, 0, 7, 0, False)])),
    "secret": TableRow("secret", "hidden", error="cannot be read"),
    "sound": TableRow("sound", "open"),
}
VIEW = View(1, 0.0, TABLES, (PipelineRow("etl", "failed", False, "no memory"),), (("the folder is away", "Mount it"),))


def visit_of(*, login: bool, view: View | None = VIEW) -> Any:
    def look() -> None:
        raise AssertionError("a verdict makes nobody read the warehouse")

    warehouse = view and SimpleNamespace(view=view, look=look, options=SimpleNamespace(uri="/folder"))
    console = SimpleNamespace(options=SimpleNamespace(login=login))
    return SimpleNamespace(console=console, account=SimpleNamespace(warehouse=warehouse))


def snapshot_of(*, may_describe: bool = False) -> Snapshot:
    topics = {"open": TopicRow("open", 1, 1, 0, 0, is_internal=False)}
    return Snapshot(1, findings=(BROKER,), topics=topics, may_describe_cluster=may_describe)


@pytest.mark.parametrize(
    ("login", "may_describe", "subjects"),
    [
        (False, False, ["broker 2", "views", "secret", "etl", "the warehouse"]),
        (True, True, ["broker 2", "views", "etl", "the warehouse"]),
        (True, False, ["broker 2", "views"]),
    ],
)
def test_findings_are_of_what_the_visitor_may_see(login: bool, may_describe: bool, subjects: list[str]) -> None:
    visit, snapshot = visit_of(login=login), snapshot_of(may_describe=may_describe)
    found = findings(visit, snapshot)
    assert [each.subject for each in found] == subjects
    assert problems(visit, snapshot) == [each for each in found if each.level == PROBLEM]
    assert {each.level for each in found if each.subject in ("secret", "the warehouse")} <= {NOTE}
    assert may_see_all(visit, snapshot) == ("etl" in subjects)


def test_tables_are_visible_by_their_topics() -> None:
    assert set(visible(visit_of(login=True), VIEW, snapshot_of())) == {"views", "sound"}
    assert set(visible(visit_of(login=False), VIEW, snapshot_of())) == set(TABLES)


def test_an_advice_has_a_command_only_of_plain_names() -> None:
    audit = TABLES["views"].audit
    view = View(1, 0.0, {name: TableRow(name, "open", audit=audit) for name in ("views", "a; rm -rf")})
    advice = {each.subject: each.advice for each in findings(visit_of(login=False, view=view), snapshot_of())}
    assert advice["views"] == "See the hours: penstock table audit views -w /folder"
    assert advice["a; rm -rf"] == "See the hours."


def test_without_a_warehouse_the_verdict_is_that_of_the_cluster() -> None:
    assert findings(visit_of(login=False, view=None), snapshot_of()) == [BROKER]
