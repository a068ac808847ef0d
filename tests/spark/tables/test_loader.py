"""Loads, without Spark: what is read, where it lands, and what moves."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from tests.ports import free_port
from tests.spark.tables.table_stories import FIRST_MS, VIEWS, World, dead, once, places, reasons, rows, view
from tests.timeouts import PATIENCE_S

import penstock
from penstock.client.errors import PenstockError, UnknownTopic
from penstock.spark.errors import (
    ConcurrentLoad,
    DataLost,
    DeclarationError,
    TableError,
    TableExists,
    TopicRecreated,
    UnfitRecord,
)
from penstock.spark.tables.delta import LOAD, one_line_os_errors
from penstock.spark.tables.load_plan import Span, covered_twice, union
from penstock.spark.tables.loader import LoadReport, follow, group_of
from penstock.spark.tables.runner import LocalRunner
from penstock.spark.tables.tasks import Work
from penstock.testing import Broker


def test_everything_lands_once_with_where_it_came_from(world: World) -> None:
    world.views(300)
    opened = world.make(schema=VIEWS, event_time="at")
    report = world.loader(opened, commit_records=90).load_new()
    found = rows(opened)
    assert places(found) == once(world.log())
    assert report.counts.records == report.counts.landed == 300
    assert report.commits > 3
    log = world.log()
    for row in found.to_pylist():
        sent = json.loads(log[row["_partition"], row["_offset"]] or b"")
        assert (row["user"], row["ms"]) == (sent["user"], sent["ms"])
        assert round(row["at"].timestamp() * 1000) == sent["at"]
        assert row["event_day"] == row["at"].date()
        assert row["_topic"] == world.topic
        assert row["_key"] == f"u{sent['ms'] % 7}".encode()
        assert row["_headers"] == [{"key": "n", "value": str(sent["ms"]).encode()}]


def test_the_next_load_takes_only_what_is_new(world: World) -> None:
    world.views(50)
    opened = world.make(schema=VIEWS)
    assert world.loader(opened).load_new().counts.records == 50
    assert world.loader(opened).load_new().commits == 0
    world.views(7, first=50)
    assert world.loader(opened).load_new().counts.records == 7
    assert places(rows(opened)) == once(world.log())


def test_each_commit_says_which_offsets_it_holds(world: World) -> None:
    world.views(100)
    opened = world.make(schema=VIEWS)
    world.loader(opened, commit_records=30).load_new()
    notes = [opened.store.note(version) for version in range(opened.store.version + 1)]
    spans = [span for note in notes if note is not None and note.kind == LOAD for span in note.spans]
    assert covered_twice(spans) == []
    assert union(spans) == opened.coverage([0, 1]).spans
    assert sum(note.counts.landed for note in notes if note is not None) == 100
    for note in notes:
        assert note is None or note.gaps == 0


def test_progress_is_shown_as_the_offsets_of_a_group(world: World) -> None:
    world.views(20)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    offsets = world.admin.group_offsets(group_of("views"))
    shown = {where.partition: found.offset for where, found in offsets.items() if where.topic == world.topic}
    assert shown == {span.partition: span.end for span in opened.coverage([0, 1]).spans}


def test_columns_that_are_not_declared_are_inferred(world: World) -> None:
    world.views(10)
    opened = world.make()
    assert [str(one) for one in opened.table.columns] == ["user string", "ms long", "at long"]
    world.loader(opened).load_new()
    assert sorted(rows(opened).column("ms").to_pylist()) == list(range(10))


def test_a_table_of_an_empty_topic_gets_its_columns_with_the_first_records(world: World) -> None:
    opened = world.make()
    assert opened.table.columns == ()
    assert world.loader(opened).load_new().commits == 0
    world.views(5)
    report = world.loader(opened).load_new()
    assert set(report.added_columns) == {"user", "ms", "at"}
    assert sorted(rows(opened).column("ms").to_pylist()) == list(range(5))


def test_a_table_grows_with_its_records_and_keeps_what_it_had(world: World) -> None:
    world.views(20)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    more = [
        {"user": "x", "ms": 3_000_000_000},
        {"user": "y", "page": "/", "place": {"x": 1}},
        {"place": {"y": "z"}, "user": "z"},
    ]
    world.send(json.dumps(one).encode() for one in more)
    report = world.loader(opened).load_new()
    assert set(report.added_columns) == {"ms", "page", "place"}
    found = rows(opened)
    assert places(found) == once(world.log())
    assert sorted(value for value in found.column("ms").to_pylist() if value is not None) == [*range(20), 3_000_000_000]
    assert {"x": 1, "y": None} in found.column("place").to_pylist()
    assert {"x": None, "y": "z"} in found.column("place").to_pylist()
    assert [str(one) for one in opened.table.columns] == [
        "user string not null", "ms long", "at timestamp_ms", "page string", "place struct<x:long,y:string>",
    ]  # fmt: skip


def test_partitions_that_ask_for_one_name_as_two_types_are_settled_by_the_first(world: World) -> None:
    world.send([b'{"user": "a", "x": 1}'] * 3, partition=0)
    world.send([b'{"user": "a", "x": "text"}'] * 2, partition=1)
    opened = world.make(schema="user string")
    world.loader(opened).load_new()
    assert rows(opened).column("x").to_pylist() == [1, 1, 1]
    assert reasons(opened) == ["x is 'text', expected long"] * 2


def test_a_table_that_may_not_grow_passes_new_fields_over(world: World) -> None:
    world.send([b'{"user": "a", "new": 1}', b'{"user": "b", "ms": 3000000000}'])
    opened = world.make(schema=VIEWS, evolution="none")
    world.loader(opened).load_new()
    assert rows(opened).column("user").to_pylist() == ["a"]
    assert reasons(opened) == ["ms is 3000000000, which is too large for int"]


def test_days_are_folders_that_any_reader_finds(world: World) -> None:
    world.send([view(0), view(60 * 24), view(60 * 24 + 90)])
    opened = world.make(schema=VIEWS, event_time="at", partition_by="hour")
    world.loader(opened).load_new()
    root = Path(opened.store.storage.uri)
    folders = {str(path.parent.relative_to(root)) for path in root.rglob("*.parquet") if "_delta_log" not in str(path)}
    assert folders == {
        "event_day=2026-01-01/event_hour=0", "event_day=2026-01-02/event_hour=0", "event_day=2026-01-02/event_hour=1",
    }  # fmt: skip
    found = pads.dataset(opened.store.delta.file_uris(), format="parquet").to_table()
    assert found.num_rows == 3


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_readers_of_delta_that_filter_by_any_column_find_the_rows(world: World, mode: str) -> None:
    world.views(20)
    world.send([b'{"user": "u9", "page": "/"}', b"bad"], key=lambda number: b"u9")
    opened = world.make(schema=VIEWS, mode=mode)
    world.loader(opened).load_new()
    opened.store.refresh()
    dataset = opened.store.delta.to_pyarrow_dataset()
    assert dataset.to_table(filter=pads.field("ms") == 19).num_rows == 1
    assert dataset.to_table(filter=pads.field("page").is_valid()).column("user").to_pylist() == ["u9"]
    assert dataset.to_table(filter=pads.field("at") > datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)).num_rows > 0
    buried = opened.dead.delta.to_pyarrow_dataset()
    assert buried.to_table(filter=pads.field("_topic") == world.topic).num_rows == 1


def test_tables_are_read_without_python_on_the_threads_of_arrow(world: World) -> None:
    """Such a thread aborts a process that ends while it reads ahead."""
    world.views(20)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    opened.store.refresh()
    filesystem = opened.store.dataset().filesystem
    assert isinstance(filesystem, pafs.SubTreeFileSystem)
    assert isinstance(filesystem.base_fs, pafs.LocalFileSystem)
    assert opened.store.read(["ms"], [("ms", "==", 19)]).to_pydict() == {"ms": [19]}
    sources = (path.read_text() for path in Path(penstock.__file__).parent.rglob("*.py") if path.name != "delta.py")
    assert not any("to_pyarrow_" in source or ".to_pandas(" in source for source in sources)


@pytest.mark.parametrize(("policy", "kept"), [("accept", 3), ("dead", 2), ("drop", 2)])
def test_late_records_follow_the_policy(world: World, policy: str, kept: int) -> None:
    day_ms = 86_400_000
    events = [FIRST_MS, FIRST_MS - day_ms // 2, FIRST_MS - 3 * day_ms]
    world.send((json.dumps({"user": "a", "at": at}).encode() for at in events), timestamp_ms=FIRST_MS)
    opened = world.make(schema=VIEWS, event_time="at", late=policy, allowed_lateness="1d")
    report = world.loader(opened).load_new()
    assert rows(opened).num_rows == kept
    buried = dead(opened)
    assert buried.num_rows == 3 - kept
    assert buried.column("dropped").to_pylist() == [policy == "drop"] * (3 - kept)
    assert all((value is None) == (policy == "drop") for value in buried.column("value").to_pylist())
    assert report.counts.is_balanced


def test_records_without_a_value_are_rows_of_nulls(world: World) -> None:
    world.send([None, b'{"page": "/"}'])
    opened = world.make(schema="page string")
    world.loader(opened).load_new()
    assert sorted(rows(opened).column("page").to_pylist(), key=str) == ["/", None]


@pytest.mark.parametrize(("kind", "values"), [("text", ["a", "ü"]), ("binary", [b"a", "ü".encode(), b"\xff"])])
def test_plain_values_are_one_column(world: World, kind: str, values: list[str | bytes]) -> None:
    world.send([b"a", "ü".encode(), b"\xff"], partition=0)
    opened = world.make(format=kind)
    world.loader(opened).load_new()
    assert rows(opened).column("value").to_pylist() == values
    assert reasons(opened) == ["is not UTF-8"] * (3 - len(values))


def test_avro_values_become_the_columns_of_their_schema(world: World) -> None:
    from penstock.client.serializers import Avro

    schema = {
        "type": "record", "name": "View",
        "fields": [
            {"name": "user", "type": "string"},
            {"name": "ms", "type": ["null", "long"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }  # fmt: skip
    moment = datetime.datetime(2026, 11, 15, 10, tzinfo=datetime.UTC)
    codec = Avro(schema)
    world.send([codec.encode("t", {"user": "a", "ms": 5, "at": moment}), b"\xff" * 3], partition=0)
    opened = world.make(format="avro", avro_schema=schema, event_time="at")
    world.loader(opened).load_new()
    (row,) = rows(opened).to_pylist()
    assert (row["user"], row["ms"], row["at"], row["event_day"]) == ("a", 5, moment, moment.date())
    assert dead(opened).num_rows == 1


def test_a_table_that_starts_at_the_end_keeps_where_that_was(world: World) -> None:
    world.views(10)
    opened = world.make(schema=VIEWS, start="latest")
    assert world.loader(opened).load_new().counts.records == 0
    world.views(4, first=10)
    assert world.loader(opened).load_new().counts.records == 4
    assert sorted(rows(opened).column("ms").to_pylist()) == [10, 11, 12, 13]


def test_new_partitions_are_loaded_from_their_beginning(world: World) -> None:
    world.views(10)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    world.admin.create_partitions(world.topic, 4)
    world.send([view(99)], partition=3)
    world.loader(opened).load_new()
    assert places(rows(opened)) == once(world.log())


def test_a_load_that_ends_at_a_time_leaves_later_records(world: World) -> None:
    world.send([view(1)], timestamp_ms=FIRST_MS)
    world.send([view(2)], timestamp_ms=FIRST_MS + 10_000)
    opened = world.make(schema=VIEWS)
    loader = world.loader(opened)
    loader.load_new(until={span.partition: span.start for span in loader.since(FIRST_MS + 5_000)})
    assert rows(opened).column("ms").to_pylist() == [1]
    loader.load_new()
    assert sorted(rows(opened).column("ms").to_pylist()) == [1, 2]


# ---------------------------------------------------------------------------------------------- two at once


class Meddler(LocalRunner):
    """Runs something else between the tasks and the commit."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(2)
        self._act: Callable[[], None] | None = act

    def run(self, work: Work, payloads: Sequence[bytes]) -> list[bytes]:
        answers = super().run(work, payloads)
        act, self._act = self._act, None
        if act is not None:
            act()
        return answers


def test_of_two_loads_at_once_one_counts_and_the_other_leaves_nothing(world: World) -> None:
    world.views(60)
    opened = world.make(schema=VIEWS)

    def overtake() -> None:
        world.loader(world.warehouse.open("views")).load_new()

    with pytest.raises(ConcurrentLoad, match="another load of views"):
        world.loader(opened, runner=Meddler(overtake)).load_new()
    assert places(rows(opened)) == once(world.log())
    files = {path.name for path in Path(opened.store.storage.uri).rglob("part-*.parquet")}
    assert files == {uri.rsplit("/", 1)[1] for uri in opened.store.delta.file_uris()}


def test_a_commit_of_another_kind_in_between_does_not_matter(world: World) -> None:
    world.views(60)
    opened = world.make(schema=VIEWS)

    def touch() -> None:
        world.warehouse.open("views").store.delta.alter.set_table_description("touched")

    world.loader(opened, runner=Meddler(touch)).load_new()
    assert places(rows(opened)) == once(world.log())


# ---------------------------------------------------------------------------------------------- for ever


def test_following_loads_what_comes_until_it_is_stopped(world: World) -> None:
    world.views(5)
    opened = world.make(schema=VIEWS)
    stop, seen = threading.Event(), threading.Event()
    counts: list[int] = []

    def after(report: LoadReport) -> None:
        counts.append(report.counts.records)
        seen.set()
        if sum(counts) == 8:
            stop.set()

    running = threading.Thread(
        target=follow, args=(world.loader(opened), stop), kwargs={"interval_s": 0.05, "after_round": after}
    )
    running.start()
    assert seen.wait(PATIENCE_S)
    world.views(3, first=5)
    running.join(PATIENCE_S)
    assert not running.is_alive()
    assert sum(counts) == 8
    assert places(rows(opened)) == once(world.log())


def test_following_waits_for_what_may_pass_and_ends_at_what_will_not(world: World) -> None:
    opened = world.make(schema=VIEWS)
    seen: list[PenstockError] = []

    class Failing:
        def __init__(self) -> None:
            self.errors: list[PenstockError] = [ConcurrentLoad("busy"), TableError("broken")]

        def load_new(self, *, stop: threading.Event) -> LoadReport:
            raise self.errors.pop(0)

    with pytest.raises(TableError, match="broken"):
        follow(Failing(), threading.Event(), notify=lambda error, wait: seen.append(error))  # type: ignore[arg-type]
    assert [str(error) for error in seen] == ["busy"]
    assert opened.name == "views"


# ---------------------------------------------------------------------------------------------- what goes wrong


def test_missing_topic_is_an_error_and_no_table_is_created(world: World) -> None:
    world.topic = "nowhere"
    with pytest.raises(UnknownTopic, match="nowhere"):
        world.make(schema=VIEWS)
    assert world.warehouse.names() == []


def test_invalid_avro_schema_is_rejected_and_no_table_is_created(world: World) -> None:
    with pytest.raises(DeclarationError, match="not a schema"):
        world.make(format="avro", avro_schema='{"type": "recrd"}')
    assert world.warehouse.names() == []


def test_a_topic_that_is_gone_is_reported_and_the_table_stays(world: World) -> None:
    world.views(5)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    world.admin.delete_topic(world.topic)
    with pytest.raises(UnknownTopic, match=world.topic):
        world.loader(opened).load_new()
    assert rows(opened).num_rows == 5


def test_existing_table_is_not_created_again(world: World) -> None:
    world.make(schema=VIEWS)
    with pytest.raises(TableExists):
        world.make(schema=VIEWS)


def test_a_topic_that_was_recreated_is_rejected_and_the_table_stays(world: World) -> None:
    world.views(5)
    opened = world.make(schema=VIEWS)
    world.loader(opened).load_new()
    world.admin.delete_topic(world.topic)
    world.broker.create_topic(world.topic, 2)
    world.views(3)
    version = opened.store.version
    with pytest.raises(TopicRecreated, match="was deleted and recreated"):
        world.loader(opened).load_new()
    assert opened.store.version == version
    assert rows(opened).num_rows == 5


def test_records_that_expired_before_they_were_loaded_end_the_load_unless_that_is_accepted(world: World) -> None:
    world.send([view(number) for number in range(10)], partition=0)
    opened = world.make(schema=VIEWS)
    loader = world.loader(opened)
    loader.load_new()
    world.send([view(number) for number in range(10, 20)], partition=0)
    world.admin.delete_records({(world.topic, 0): 15})
    with pytest.raises(DataLost, match="records 10 to 15 were removed"):
        loader.load_new()
    opened.declare(world.declare(schema=VIEWS, on_data_loss="skip"))
    report = loader.load_new()
    assert report.lost == [Span(0, 10, 15)]
    assert sorted(rows(opened).column("ms").to_pylist()) == [*range(10), *range(15, 20)]


def test_a_poisoned_record_ends_the_load_where_the_table_says_so(world: World) -> None:
    world.send([view(0), b"poison", view(1)], partition=1)
    opened = world.make(schema=VIEWS, on_error="fail")
    with pytest.raises(UnfitRecord, match=f"{world.topic}-1 at offset 1 does not match table views: is not valid JSON"):
        world.loader(opened).load_new()
    assert rows(opened).num_rows == 0
    assert opened.store.version == 0
    assert not list(Path(opened.store.storage.uri).rglob("part-*.parquet"))


def test_a_full_disk_is_one_line_and_commits_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    no_space = "No space left on device; nothing was committed"
    with pytest.raises(TableError, match=no_space) as caught, one_line_os_errors("the folder cannot be written"):
        raise OSError(errno.ENOSPC, "x")
    assert "Free some space" in str(caught.value)
    world.views(5)
    opened = world.make(schema=VIEWS)

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", _no_space)
        with pytest.raises(TableError, match="No space left on device"):
            world.loader(opened).load_new()
    assert opened.store.version == 0
    assert not list(Path(opened.store.storage.uri).rglob("part-*.parquet"))
    world.loader(opened).load_new()
    assert places(rows(opened)) == once(world.log())


def _no_space(*args: object, **kwargs: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_broker_that_is_lost_in_the_middle_is_one_line_and_the_load_continues_later(tmp_path: Path) -> None:
    from tests.spark.tables.table_stories import world_of

    data = tmp_path / "data"
    port = free_port()
    with Broker(str(data), port=port) as broker:
        broker.create_topic("views", 1)
        with world_of(broker, "views", tmp_path) as world:
            world.views(50)
            opened = world.make(schema=VIEWS, options={"kafkaConsumer.pollTimeoutMs": "1500"})

            class Unplugged(LocalRunner):
                def run(self, work: Work, payloads: Sequence[bytes]) -> list[bytes]:
                    broker.stop()
                    return super().run(work, payloads)

            with pytest.raises(PenstockError) as caught:
                world.loader(opened, runner=Unplugged(1)).load_new()
            assert "\n" not in str(caught.value)
            assert opened.store.version == 0
    with Broker(str(data), port=port) as broker, world_of(broker, "views", tmp_path) as world:
        world.loader(opened).load_new()
        assert places(rows(opened)) == once(world.log())


@pytest.mark.parametrize("kind", ["delta", "disk"])
def test_commit_that_fails_after_it_happened_is_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    world.views(10)
    opened = world.make(schema=VIEWS)
    real = DeltaTable.create_write_transaction

    def fails_late(self: DeltaTable, *args: object, **kwargs: object) -> None:
        real(self, *args, **kwargs)  # type: ignore[arg-type]
        raise DeltaError("the checkpoint could not be written") if kind == "delta" else OSError(28, "full")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails_late)
    assert world.loader(opened).load_new().commits == 1
    assert places(rows(opened)) == once(world.log())


def test_a_commit_that_the_disk_rejects_leaves_the_table_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    world.views(10)
    opened = world.make(schema=VIEWS)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", _no_space)
        with pytest.raises(TableError, match="nothing was committed") as caught:
            world.loader(opened).load_new()
    assert "Free some space" in str(caught.value)
    assert opened.store.version == 0
    assert not list(Path(opened.store.storage.uri).rglob("part-*.parquet"))


def test_a_creation_that_was_interrupted_leaves_no_table_and_can_be_repeated(world: World) -> None:
    root = Path(world.warehouse.storage.uri)
    for folder in ("views/_delta_log", "views__dead/_delta_log"):
        (root / folder).mkdir(parents=True)
    assert world.warehouse.names() == []
    world.views(3)
    world.loader(world.make(schema=VIEWS)).load_new()
    assert world.warehouse.names() == ["views"]
