"""Tables of results: what is in them after merges, crashes and other writers, and what a merge costs."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.activity.pipelines.engine import results
from penstock.activity.pipelines.engine.results import Change, ResultTable, TimeSpan
from penstock.activity.pipelines.errors import OtherColumns, PipelineError, TableGone
from penstock.spark.errors import TableError

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
SCHEMA = pa.schema([("start", pa.timestamp("us", "UTC")), ("who", pa.int64()), ("n", pa.int64())])


def opened(folder: Path, schema: pa.Schema = SCHEMA, *, may_create: bool = True) -> ResultTable:
    return results.open_result_table(str(folder), "counts", ("start", "who"), "start", schema, may_create=may_create)


def rows(*found: tuple[int, int, int | None]) -> pa.Table:
    times = [START + timedelta(minutes=minute) for minute, _, _ in found]
    return pa.table([times, [who for _, who, _ in found], [n for _, _, n in found]], schema=SCHEMA)


def content(folder: Path) -> dict[tuple[int, int], int]:
    """As any reader of Delta sees it."""
    found = results.read_result_table(str(folder), "counts").to_pylist()
    by_key = {(int((row["start"] - START) / timedelta(minutes=1)), row["who"]): row["n"] for row in found}
    assert len(by_key) == len(found)
    return by_key


def test_rows_replace_those_of_their_key(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.merge(rows((0, 1, 5), (0, 2, 6)))
    change = table.merge(rows((0, 1, 7), (1, 1, 1), (0, 2, 6)))
    assert change.changed.num_rows == 2
    assert content(tmp_path) == {(0, 1): 7, (0, 2): 6, (1, 1): 1}


def test_a_batch_is_known_by_its_transaction_after_a_restart(tmp_path: Path) -> None:
    opened(tmp_path).merge(rows((0, 1, 5)), transaction=("query", 3))
    again = opened(tmp_path)
    assert again.transaction("query") == 3
    assert again.transaction("another") == -1


def test_a_span_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.merge(rows(*((minute, 1, minute) for minute in range(10))))
    span = TimeSpan(START + timedelta(minutes=3), START + timedelta(minutes=6))
    change = table.replace(rows((3, 1, 33), (5, 2, 5)), span)
    assert change.deleted.num_rows == 2
    assert content(tmp_path) == {**{(m, 1): m for m in (0, 1, 2, 6, 7, 8, 9)}, (3, 1): 33, (5, 2): 5}


def test_a_row_whose_time_moves_is_found_where_the_key_does_not_say_its_time(tmp_path: Path) -> None:
    table = results.open_result_table(str(tmp_path), "counts", ("who",), "start", SCHEMA)
    table.merge(rows((0, 1, 1)))
    table.merge(rows((2000, 1, 2)))  # another day
    assert content(tmp_path) == {(2000, 1): 2}


def test_another_writer_in_between_is_noticed(tmp_path: Path) -> None:
    mine, other = opened(tmp_path), opened(tmp_path)
    mine.merge(rows((0, 1, 1)))

    def meanwhile(change: Change) -> None:
        if other.rows().num_rows < 2:
            other.merge(rows((0, 2, 2)))

    mine.merge(rows((0, 1, 3)), notify=meanwhile)
    assert content(tmp_path) == {(0, 1): 3, (0, 2): 2}


def test_change_that_cannot_be_committed_is_announced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path)
    seen: list[int] = []

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.write_table", full)
        with pytest.raises(TableError, match="No space left") as caught:
            table.merge(rows((0, 1, 1)), notify=lambda change: seen.append(change.changed.num_rows))
    assert "\n" not in str(caught.value)
    table.merge(rows((0, 1, 1)), notify=lambda change: seen.append(change.changed.num_rows))
    assert seen == [1, 1]
    assert content(tmp_path) == {(0, 1): 1}


def test_table_removed_by_hand_is_reported_in_one_line(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.merge(rows((0, 1, 1)))
    shutil.rmtree(tmp_path / "counts")
    with pytest.raises(TableGone, match="counts is missing"):
        table.merge(rows((0, 1, 2)))
    with pytest.raises(TableGone, match="but its stream has a checkpoint"):
        opened(tmp_path, may_create=False)


def test_a_table_of_an_older_version_is_rejected_with_what_differs(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(OtherColumns, match=r"the columns of table .* differ .*: share"):
        opened(tmp_path, SCHEMA.append(pa.field("share", pa.float64())))


def test_definitions_that_make_no_table_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="key or time column when is not in its definition"):
        results.open_result_table(str(tmp_path), "t", ("when",), "start", SCHEMA)
    with pytest.raises(PipelineError, match="not a timestamp"):
        results.open_result_table(str(tmp_path), "t", ("who",), "n", SCHEMA)
    table = opened(tmp_path)
    null_key = pa.table([[None], [1], [1]], schema=SCHEMA)
    with pytest.raises(PipelineError, match="start is null"):
        table.merge(null_key)


@pytest.mark.long
def test_the_hundreds_of_batches_of_a_long_run_leave_few_files_and_cost_the_same(tmp_path: Path) -> None:
    """200 batches of 400 rows: windows that are updated twice, then done."""
    table = opened(tmp_path)
    for number in range(200):
        minute = number // 2
        batch = rows(*((minute, who, number) for who in range(400)))
        table.merge(batch, transaction=("query", number))
    written = [
        sum(action["add"]["size"] for action in map(json.loads, version.read_text().splitlines()) if "add" in action)
        for version in sorted((tmp_path / "counts" / "_delta_log").glob("*.json"))
    ]
    assert len(written) >= 150
    assert max(written[-50:]) < 3 * max(written[:50])
    assert content(tmp_path) == {(minute, who): 2 * minute + 1 for minute in range(100) for who in range(400)}
    live = table.store.delta.file_uris()
    assert len(live) < 12


def test_many_files_of_a_day_are_joined_and_old_ones_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_SPARED_S", -60.0)
    monkeypatch.setattr(results, "_JOIN_FROM_FILES", 8)
    monkeypatch.setattr(results, "FILE_ROWS", 4)
    table = opened(tmp_path)
    for minute in range(60):
        table.merge(rows((minute, 1, minute), (minute, 2, minute)))
    before = len(table.store.delta.file_uris())
    in_memory = {path: one.num_rows for path, one in table._cache.items()}
    table.maintain()
    assert {path: one.num_rows for path, one in table._cache.items()} == in_memory  # joining brings nothing into memory
    after = {Path(uri).name for uri in table.store.delta.file_uris()}
    assert len(after) < before
    assert {path.name for path in (tmp_path / "counts").rglob("*.parquet") if "_delta_log" not in str(path)} == after
    table.merge(rows((3, 1, 33)))
    assert content(tmp_path)[3, 1] == 33
    assert len(content(tmp_path)) == 120


@pytest.mark.long
def test_what_is_kept_in_memory_does_not_grow_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stream does: each batch brings a minute, and what follows looks back at three."""
    monkeypatch.setattr(results, "FILE_ROWS", 4)
    table = opened(tmp_path)
    cached: list[int] = []
    for minute in range(80):
        table.merge(rows(*((minute, who, 1) for who in range(10))))
        assert table.rows(TimeSpan(START + timedelta(minutes=minute - 2))).num_rows == 10 * min(minute + 1, 3)
        cached.append(sum(one.num_rows for one in table._cache.values()))
    assert max(cached[40:]) <= max(cached[:40])
    assert cached[-1] < 400
    assert len(content(tmp_path)) == table.rows().num_rows == 800
