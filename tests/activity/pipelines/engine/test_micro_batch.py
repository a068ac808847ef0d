"""What becomes of a micro-batch: crashes before each of its steps, and the same batch again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.activity.pipelines.definition import Derived, Pipeline, Rows
from penstock.activity.pipelines.engine import results
from penstock.activity.pipelines.engine.micro_batch import BatchWork, Outputs, keys_of, open_batch_work, values_of
from penstock.activity.pipelines.engine.results import Change, ResultTable, Transaction
from penstock.activity.pipelines.errors import PipelineError

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
SCHEMA = pa.schema([("start", pa.timestamp("us", "UTC")), ("who", pa.string()), ("n", pa.int64())])
ROWS = Rows(
    name="counts", key=("start", "who"), time="start", reads=(), watermark={}, mode="update",
    define=lambda frames: next(iter(frames.values())), topic="counts",
)  # fmt: skip


class Crash(Exception):
    """The process dies here."""


class Sent(Outputs):
    """What would be in the topics."""

    def __init__(self) -> None:
        super().__init__("nowhere:9092")
        self.records: dict[str, dict[bytes, bytes | None]] = {}
        self.crash_before = -1
        self.steps = 0

    def send(
        self, topic: str, change: Change, key: Sequence[str], batch: Transaction | None = None, *, again: bool = False
    ) -> None:
        self.step()
        held = self.records.setdefault(topic, {})
        held.update(zip(keys_of(change.changed, key), values_of(change.changed), strict=True))
        held.update(dict.fromkeys(keys_of(change.deleted, key)))

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.crash_before:
            raise Crash


def over_nine(rows: pa.Table) -> pa.Table:
    """Windows of more than nine, with the sum of the two minutes up to them."""
    starts, who, counts = (rows.column(name).to_pylist() for name in ("start", "who", "n"))
    every = list(zip(starts, who, counts, strict=True))
    found = [
        (start, one, sum(m for s, o, m in every if o == one and start - timedelta(minutes=2) < s <= start))
        for start, one, n in every
        if n > 9
    ]
    return pa.table([[row[number] for row in found] for number in range(3)], schema=SCHEMA)


def totals(rows: pa.Table) -> pa.Table:
    schema = pa.schema([("who", pa.string()), ("n", pa.int64()), ("newest", pa.timestamp("us", "UTC"))])
    summed = rows.group_by("who").aggregate([("n", "sum"), ("start", "max")])
    return summed.select(["who", "n_sum", "start_max"]).rename_columns(schema.names).cast(schema)


PIPELINE = Pipeline(
    name="counting", summary="", trigger=timedelta(seconds=1), rows=(ROWS,),
    derived=(
        Derived("busy", "counts", ("start", "who"), "start", timedelta(minutes=2), over_nine, topic="busy"),
        Derived("totals", "counts", ("who",), "newest", timedelta(hours=1), totals, topic="totals", replaces=True),
    ),
)  # fmt: skip


def work(folder: Path, outputs: Outputs) -> BatchWork:
    return open_batch_work(PIPELINE, ROWS, SCHEMA, str(folder), outputs, may_create=True)


def batch(*found: tuple[int, str, int]) -> pa.Table:
    times = [START + timedelta(minutes=minute) for minute, _, _ in found]
    return pa.table([times, [who for _, who, _ in found], [n for _, _, n in found]], schema=SCHEMA)


BATCHES = (
    batch((0, "a", 3), (0, "b", 12)),
    batch((0, "a", 11), (1, "a", 10)),
    batch((0, "b", 4), (2, "b", 20)),  # b was busy in minute 0, and is not any more
)


def everything(folder: Path) -> dict[str, list[dict[str, object]]]:
    orders = {"counts": ["start", "who"], "busy": ["start", "who"], "totals": ["who"]}
    return {
        name: results.read_result_table(str(folder), name).sort_by([(one, "ascending") for one in by]).to_pylist()
        for name, by in orders.items()
    }


def test_what_is_derived_batch_by_batch_is_what_follows_from_all_rows(tmp_path: Path) -> None:
    working = work(tmp_path, Sent())
    for number, rows in enumerate(BATCHES):
        working.take(rows, "query", number)
    found = everything(tmp_path)
    rows = working.table.rows()
    assert len(found["counts"]) == 4
    assert found["busy"] == over_nine(rows).sort_by([("start", "ascending"), ("who", "ascending")]).to_pylist()
    assert found["totals"] == totals(rows).sort_by("who").to_pylist()


@pytest.mark.parametrize("crash", range(1, 15))
def test_a_crash_before_any_step_changes_nothing_in_the_end(
    tmp_path: Path, crash: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = Sent()
    untroubled = work(tmp_path / "calm", calm)
    for number, rows in enumerate(BATCHES):
        untroubled.take(rows, "query", number)

    sent = Sent()
    sent.crash_before = crash
    real = ResultTable._commit

    def stepped(kept: ResultTable, change: Change, transaction: Transaction | None) -> None:
        sent.step()
        real(kept, change, transaction)

    monkeypatch.setattr(ResultTable, "_commit", stepped)
    working, number, crashes = work(tmp_path / "crashed", sent), 0, 0
    while number < len(BATCHES):
        try:
            working.take(BATCHES[number], "query", number)
            number += 1
        except Crash:
            crashes += 1
            working = work(tmp_path / "crashed", sent)  # as a new process has it
    assert crashes == 1
    assert everything(tmp_path / "crashed") == everything(tmp_path / "calm")
    assert sent.records == calm.records


def test_a_batch_that_comes_again_after_its_commit_is_passed_over(tmp_path: Path) -> None:
    working = work(tmp_path, Sent())
    for number, rows in enumerate(BATCHES):
        working.take(rows, "query", number)
    before = everything(tmp_path), working.table.store.version
    work(tmp_path, Sent()).take(BATCHES[2], "query", 2)
    assert (everything(tmp_path), working.table.store.version) == before


def test_rows_that_go_leave_tombstones_in_their_topic(tmp_path: Path) -> None:
    sent = Sent()
    working = work(tmp_path, sent)
    for number, rows in enumerate(BATCHES):
        working.take(rows, "query", number)
    start_ms = int(START.timestamp() * 1000)
    assert sent.records["busy"][f"{start_ms}:b".encode()] is None
    assert sent.records["counts"][f"{start_ms}:b".encode()] == b'{"start":%d,"who":"b","n":4}' % start_ms


def test_a_mistake_in_a_derivation_is_reported_in_one_line(tmp_path: Path) -> None:
    def wrong(rows: pa.Table) -> pa.Table:
        if rows.num_rows:
            pc.sum(rows.column("nothing"))
        return SCHEMA.empty_table()

    broken = Pipeline(
        "broken", "", timedelta(seconds=1), (ROWS,), (Derived("x", "counts", ("who",), "start", timedelta(0), wrong),)
    )
    working = open_batch_work(broken, ROWS, SCHEMA, str(tmp_path), Sent(), may_create=True)
    with pytest.raises(PipelineError, match="computing x from counts failed: KeyError"):
        working.take(BATCHES[0], "query", 0)
