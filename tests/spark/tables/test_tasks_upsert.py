"""The newest record of each key."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.tables.table_stories import FIRST_MS, World, dead, reasons, rows

from penstock.spark.errors import RangeError
from penstock.spark.tables import loader as loader_module
from penstock.spark.tables.declaration import TIMESTAMP
from penstock.spark.tables.load_plan import Span
from penstock.spark.tables.tasks import newest_rows

SCHEMA = "user string not null, n long"


def state(user: str, n: int) -> bytes:
    return json.dumps({"user": user, "n": n}).encode()


def found(opened: object) -> dict[str, int]:
    table = rows(opened)  # type: ignore[arg-type]
    users = table.column("user").to_pylist()
    assert len(users) == len(set(users))
    return dict(zip(users, table.column("n").to_pylist(), strict=True))


def test_a_row_is_the_newest_record_of_its_key(world: World) -> None:
    world.send([state("a", 1), state("b", 1), state("a", 2)], key=lambda n: [b"a", b"b", b"a"][n])
    opened = world.make(schema=SCHEMA, mode="upsert")
    loader = world.loader(opened)
    loader.load_new()
    assert found(opened) == {"a": 2, "b": 1}
    world.send([state("b", 5), state("c", 1)], key=lambda n: [b"b", b"c"][n])
    loader.load_new()
    assert found(opened) == {"a": 2, "b": 5, "c": 1}
    assert not list(Path(opened.store.storage.uri).glob("_staging/*"))


def test_a_record_without_a_value_removes_the_row_of_its_key(world: World) -> None:
    world.send([state("a", 1), state("b", 1)], key=lambda n: [b"a", b"b"][n])
    opened = world.make(schema=SCHEMA, mode="upsert")
    loader = world.loader(opened)
    loader.load_new()
    world.send([None, None], key=lambda n: [b"a", b"nobody"][n])
    report = loader.load_new()
    assert found(opened) == {"b": 1}
    assert report.counts.deleted == 2


def test_keys_may_be_columns_and_records_without_one_are_dead_letters(world: World) -> None:
    values = [state("a", 1), state("a", 2), b'{"n": 1}', None]
    world.send(values, key=lambda n: None, partition=0)
    opened = world.make(schema="user string, n long", mode="upsert", key=["user"])
    world.loader(opened).load_new()
    assert found(opened) == {"a": 2}
    assert sorted(reasons(opened)) == [
        "has no value, which contains the table's key", "the key (user) is null",
    ]  # fmt: skip


def test_merging_again_changes_nothing(world: World) -> None:
    users = "abcdefg"
    world.send((state(users[n % 7], n) for n in range(70)), key=lambda n: users[n % 7].encode())
    world.send([None], key=lambda n: b"c")
    opened = world.make(schema=SCHEMA, mode="upsert")
    loader = world.loader(opened, commit_records=20)
    loader.load_new()
    before = found(opened)
    assert before == {users[n % 7]: n for n in range(63, 70) if n % 7 != 2}
    loader.load_range([Span(span.partition, 3, span.end) for span in opened.coverage([0, 1]).spans], bounded=False)
    assert found(opened) == before


def test_a_range_that_ends_before_the_table_does_is_rejected(world: World) -> None:
    world.send([state("a", n) for n in range(10)], partition=0)
    opened = world.make(schema=SCHEMA, mode="upsert")
    loader = world.loader(opened)
    loader.load_new()
    with pytest.raises(RangeError, match="must be reloaded up to its end"):
        loader.load_range([Span(0, 2, 5)], bounded=True)


def test_more_than_a_driver_holds_takes_several_commits_and_cannot_be_loaded_again_in_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "_MOST_UPSERTS", 30)
    world.send((state(f"u{n % 40}", n) for n in range(100)), partition=0)
    opened = world.make(schema=SCHEMA, mode="upsert", key=["user"])
    loader = world.loader(opened)
    assert loader.load_new().commits == 4
    wanted = {f"u{n % 40}": n for n in range(100)}
    assert found(opened) == wanted
    version = opened.store.version
    with pytest.raises(RangeError, match=r"reloading 100 offsets .* the limit is 30") as caught:
        loader.load_range([Span(0, 0, 100)], bounded=False)
    assert "drop the table" in str(caught.value)
    assert opened.store.version == version
    loader.load_range([Span(0, 70, 100)], bounded=False)
    assert found(opened) == wanted


def test_a_key_that_moved_to_another_partition_has_its_newest_record_by_time() -> None:
    table = pa.table(
        {
            "k": ["a", "a", "a", "b"],
            "_partition": pa.array([0, 0, 1, 1], pa.int32()),
            "_offset": pa.array([5, 4, 900, 901], pa.int64()),
            "_timestamp": pa.array([FIRST_MS + 9, FIRST_MS + 50, FIRST_MS + 3, FIRST_MS], pa.int64()).cast(TIMESTAMP),
        }
    )
    kept = newest_rows(table, ["k"]).to_pylist()
    assert sorted((row["k"], row["_partition"], row["_offset"]) for row in kept) == [("a", 0, 5), ("b", 1, 901)]


def test_a_row_moves_to_the_day_of_its_newest_event(world: World) -> None:
    day = 86_400_000
    values = [json.dumps({"user": "a", "at": FIRST_MS + day * n}).encode() for n in range(3)]
    opened = world.make(schema="user string, at timestamp_ms", event_time="at", mode="upsert")
    loader = world.loader(opened)
    for value in values:
        world.send([value], key=lambda n: b"a")
        loader.load_new()
    (row,) = rows(opened).to_pylist()
    assert str(row["event_day"]) == "2026-01-03"
    assert dead(opened).num_rows == 0
