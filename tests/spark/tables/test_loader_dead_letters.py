"""Records that do not fit: put aside once, and tried again."""

from __future__ import annotations

import pytest
from tests.spark.tables.table_stories import VIEWS, World, dead, once, places, reasons, rows, view

from penstock.spark.errors import DeclarationError
from penstock.spark.tables import loader
from penstock.spark.tables.load_plan import Span
from penstock.spark.tables.loader import replay_dead
from penstock.spark.tables.warehouse import redeclare


def test_a_record_that_does_not_fit_is_kept_with_the_reason(world: World) -> None:
    world.send([view(0), b"{oops", view(1)], partition=1)
    opened = world.make(schema=VIEWS)
    report = world.loader(opened).load_new()
    (row,) = dead(opened).to_pylist()
    assert (row["_partition"], row["_offset"], row["value"]) == (1, 1, b"{oops")
    assert row["reason"].startswith("is not valid JSON")
    assert row["_headers"] == [{"key": "n", "value": b"1"}]
    assert (report.counts.landed, report.counts.dead) == (2, 1)


def test_a_table_that_drops_keeps_the_place_and_not_the_content(world: World) -> None:
    world.send([b"secret", view(1)], partition=0)
    opened = world.make(schema=VIEWS, on_error="drop")
    world.loader(opened).load_new()
    (row,) = dead(opened).to_pylist()
    assert (row["_offset"], row["value"], row["_key"], row["dropped"]) == (0, None, None, True)


def test_a_driver_that_died_between_the_two_commits_is_made_up_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send([view(0), b"bad", view(1), b"worse"], partition=0)
    opened = world.make(schema=VIEWS)

    class Died(Exception):
        pass

    def die(*args: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(loader, "_apply", die)
        with pytest.raises(Died):
            world.loader(opened).load_new()
    assert (rows(opened).num_rows, dead(opened).num_rows) == (2, 0)
    again = world.warehouse.open("views")
    report = world.loader(again).load_new()
    assert report.commits == 0
    assert places(dead(again)) == once([(0, 1), (0, 3)])
    world.loader(again).load_new()
    assert places(dead(again)) == once([(0, 1), (0, 3)])


def test_dead_letters_are_tried_again_after_the_table_has_changed(world: World) -> None:
    world.send([b'{"user": "a", "ms": 3000000000}', b"hopeless", b'{"user": "b", "page": "/"}'], partition=0)
    opened = world.make(schema="user string, ms int", evolution="none")
    loader = world.loader(opened)
    loader.load_new()
    assert places(dead(opened)) == once([(0, 0), (0, 1)])
    assert redeclare(opened, world.declare(schema="user string, ms long, page string", evolution="none")) == [
        "page",
        "ms",
    ]
    result = replay_dead(world.loader(opened))
    assert (result.tried, result.landed) == (2, 1)
    assert places(dead(opened)) == once([(0, 1)])
    assert places(rows(opened)) == once([(0, 0), (0, 2)])
    assert 3_000_000_000 in rows(opened).column("ms").to_pylist()
    again = replay_dead(world.loader(opened))
    assert (again.tried, again.landed) == (1, 0)
    assert reasons(opened)[0].startswith("is not valid JSON")


def test_trying_again_grows_the_table_and_never_doubles(world: World) -> None:
    world.send([b'{"user": 5}', b'{"user": "x", "_bad name ": 1}'], partition=0)
    world.send([b'{"user": "y", "ms": 3000000000}'], partition=1)
    opened = world.make(schema="user string, ms int")
    loader = world.loader(opened)
    loader.load_new()
    assert places(dead(opened)) == once([(0, 0), (0, 1)])
    opened.declare(world.declare(schema="user string, ms long", evolution="none"))
    result = replay_dead(loader)
    assert result.landed == 1
    assert places(rows(opened)) == once([(0, 1), (1, 0)])
    assert places(dead(opened)) == once([(0, 0)])
    loader.load_range([Span(0, 0, 2)], bounded=True)
    assert places(rows(opened)) == once([(0, 1), (1, 0)])
    assert places(dead(opened)) == once([(0, 0)])


def test_a_driver_that_died_in_the_middle_of_a_replay_is_made_up_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send([b'{"user": "a", "ms": 3000000000}'], partition=0)
    opened = world.make(schema="user string, ms int", evolution="none")
    world.loader(opened).load_new()
    redeclare(opened, world.declare(schema="user string, ms long", evolution="none"))

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loader, "_apply", die)
        with pytest.raises(KeyboardInterrupt):
            replay_dead(world.loader(opened))
    assert (rows(opened).num_rows, dead(opened).num_rows) == (1, 1)
    assert replay_dead(world.loader(world.warehouse.open("views"))).tried == 0
    assert (rows(opened).num_rows, dead(opened).num_rows) == (1, 0)


def test_what_decides_where_rows_are_cannot_be_declared_again(world: World) -> None:
    opened = world.make(schema=VIEWS)
    for settings in (
        {"partition_by": "hour"},
        {"event_time": "at"},
        {"mode": "upsert"},
        {"format": "text", "schema": None},
    ):
        wanted = {"schema": VIEWS, **settings}
        with pytest.raises(DeclarationError, match="cannot change from"):
            redeclare(opened, world.declare(**{name: value for name, value in wanted.items() if value is not None}))
    with pytest.raises(DeclarationError, match="ms is int, but the record has string"):
        redeclare(opened, world.declare(schema="user string, ms string"))
