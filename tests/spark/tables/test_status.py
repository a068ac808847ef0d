"""`penstock table status`: until when tables are complete, and why records are dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell
from tests.spark.tables.table_stories import VIEWS, World, view

from penstock.cli.spark.table import _values_of


@pytest.fixture
def shell(world: World) -> Shell:
    found = Shell(world.address)
    found.environment["PENSTOCK_WAREHOUSE"] = world.warehouse.storage.uri
    return found


def status(shell: Shell, *args: str, code: int = 0) -> list[dict[str, Any]]:
    import json

    result = shell("table", "status", *args, "--format", "json")
    assert result.exit_code == code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["tables"]
    return found


def test_a_loaded_table_is_complete_and_one_that_waits_is_not(world: World, shell: Shell) -> None:
    world.views(30)
    loader = world.loader(world.make(schema=VIEWS))
    loader.load_new()
    (one,) = status(shell)
    assert (one["rows"], one["dead"], one["lastLoad"]["records"]) == (30, 0, 30)
    assert one["audit"]["completeUntil"] > one["lastLoad"]["time"]
    world.views(5, first=30)
    (one,) = status(shell, "views")
    assert sum(hour["waiting"] for hour in one["audit"]["hours"]) == 5
    assert one["audit"]["completeUntil"] is None or one["audit"]["completeUntil"] < one["lastLoad"]["time"]
    assert "views" in shell.done("table", "status")


def test_the_last_load_is_not_the_last_commit(world: World, shell: Shell) -> None:
    opened = world.make(schema=VIEWS)
    (one,) = status(shell)
    assert one["lastLoad"] is None
    world.views(3)
    world.loader(opened).load_new()
    (loaded,) = status(shell)
    opened.declare(opened.table)
    (one,) = status(shell)
    assert one["version"] == loaded["version"] + 1
    assert one["lastLoad"] == loaded["lastLoad"]


def test_dead_letters_are_counted_by_their_reason(world: World, shell: Shell) -> None:
    world.send([view(0), b"bad", b"bad", b'{"user": 1, "ms": 2}'], partition=0)
    world.loader(world.make(schema=VIEWS)).load_new()
    (one,) = status(shell)
    assert one["dead"] == 3
    assert sum(each["count"] for each in one["reasons"]) == 3
    reason = one["reasons"][0]["reason"]
    found = shell.json("table", "dead", "views", "--reason", reason, "--value-bytes", "2")
    assert found["count"] == one["reasons"][0]["count"]
    assert {each["value"] for each in found["dead"]} == {"ba"}
    assert {each["bytes"] for each in found["dead"]} == {3}
    assert f"dead letters: {reason}" in shell.done("table", "status")


def test_values_are_read_only_of_the_dead_letters_that_are_shown(world: World, shell: Shell) -> None:
    world.send([b"first", b"second", None, b"last"], partition=0)
    opened = world.make(schema=VIEWS, mode="append")
    world.loader(opened).load_new()
    found = shell.json("table", "dead", "views", "--max", "2")
    assert found["count"] == 4
    assert [(each["offset"], each["value"], each["bytes"]) for each in found["dead"]] == [
        (3, "last", 4),
        (2, None, None),
    ]
    opened.dead.refresh()
    assert _values_of(opened.dead, [{"_partition": 0, "_offset": 1}]) == {(0, 1): b"second"}


def test_a_damaged_table_does_not_hide_the_others(world: World, shell: Shell) -> None:
    world.views(3)
    world.loader(world.make(schema=VIEWS)).load_new()
    (whole,) = status(shell)
    uri = Path(world.warehouse.storage.uri)
    for name in ("broken", "broken__dead"):
        (uri / name / "_delta_log").mkdir(parents=True)
        (uri / name / "_delta_log" / f"{0:020d}.json").write_text("{not json\n")
    broken, views = status(shell, code=1)
    assert broken["name"] == "broken"
    assert "broken cannot be read" in broken["error"]
    assert views["rows"] == whole["rows"]
    assert "broken cannot be read" in shell("table", "status").output


def test_a_table_whose_topic_is_gone_still_shows_its_rows(world: World, shell: Shell) -> None:
    world.views(3)
    world.loader(world.make(schema=VIEWS)).load_new()
    world.admin.delete_topic(world.topic)
    (one,) = status(shell, code=1)
    assert one["rows"] == 3
    assert one["audit"] is None
    assert world.topic in one["error"]


def test_an_empty_warehouse_has_no_tables(shell: Shell) -> None:
    assert status(shell) == []
    assert "No tables" in shell("table", "status").output
