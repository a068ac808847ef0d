"""A report of a small world: real events on a broker, loaded tables, and results as pipelines would have left them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.activity.pipelines.engine_stories import records
from tests.activity.plain import minutes
from tests.cli.commands import Shell

from penstock import Producer
from penstock.activity.cluster import Cluster
from penstock.activity.events import KINDS, Kind
from penstock.activity.pipelines.engine import results
from penstock.activity.pipelines.engine.loads import ensure_table
from penstock.activity.pipelines.engine.status import PipelineFolder, PipelineStatus
from penstock.activity.report.measurements import ReportError
from penstock.activity.report.writer import ReportOutcome, write_report
from penstock.client.admin import Admin
from penstock.spark.tables import Loader, Warehouse
from penstock.spark.tables.runner import LocalRunner
from penstock.testing.embedded_broker import EmbeddedBroker

INSTANT = pa.timestamp("us", "UTC")
TYPES = {"BIGINT": int, "INT": int, "DOUBLE": int | float, "STRING": str}
START = "2026-11-15T10:00:00Z"


@dataclass
class World:
    """A broker with half a minute of the site, all of it in the warehouse."""

    address: str
    warehouse: str
    summary: dict[str, Any]
    truths: list[dict[str, Any]]
    events: dict[str, Any] = field(default_factory=dict)

    def load(self) -> None:
        with Admin(self.address) as admin:
            for kind in KINDS:
                opened = ensure_table(Warehouse(self.warehouse), kind, Cluster(self.address))
                Loader(opened, admin, self.address, LocalRunner(1)).load_new()

    def put(self, name: str, key: tuple[str, ...], time: str, rows: list[dict[str, Any]], empty: pa.Schema) -> None:
        table = pa.Table.from_pylist(rows, empty)
        results.open_result_table(self.warehouse, name, key, time, empty).merge(table)

    def send(self, topic: str, key: str, value: dict[str, Any], time_ms: int) -> None:
        with Producer(self.address) as producer:
            producer.send(topic, json.dumps(value).encode(), key=key.encode(), timestamp_ms=time_ms)

    def report(self, folder: Path, **options: Any) -> ReportOutcome:
        return write_report(self.address, self.warehouse, folder, **{"summary": self.summary, **options})

    def planted(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.truths if one["kind"] == kind]


def whole(address: str, kind: Kind) -> list[dict[str, Any]]:
    """The events of a topic that are what it says, read back from the log."""
    found = []
    for _, value, _ in records(address, kind.topic):
        try:
            event = json.loads(value or b"")
        except ValueError:
            continue
        if isinstance(event, dict) and all(isinstance(event.get(name), TYPES[spark]) for name, spark in kind.columns):
            found.append(event)
    return found


@contextmanager
def half_a_minute(folder: Path) -> Iterator[World]:
    with EmbeddedBroker() as broker:
        shell = Shell(broker.address)
        site = ("--seed", 3, "--rate", 200, "--incident-after", "10s")
        summary = shell.json(
            "activity", "generate", *site, "--minutes", "0.5", "--malformed", "0.01", "--as-fast-as-possible",
            "--start", START,
        )  # fmt: skip
        truths = shell.json("activity", "truth", *site, "--origin", START, "--minutes", "0.5")
        made = World(broker.address, str(folder / "warehouse"), summary, truths)
        made.events = {kind.topic: whole(broker.address, kind) for kind in KINDS}
        made.load()
        as_found_by_pipelines(made)
        yield made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One that is only looked at."""
    with half_a_minute(tmp_path_factory.mktemp("world")) as made:
        yield made


def as_found_by_pipelines(world: World) -> None:
    """What security and operations would have left, in full."""
    minute = datetime.fromtimestamp(world.summary["start_ms"] / 1000, UTC).replace(second=0, microsecond=0)
    named = [
        {"kind": "client" if kind == "abuser" else "member", "actor": str(one["id"]), "verdict": kind, "seen": minute}
        for kind in ("crawler", "spammer", "abuser")
        for one in world.planted(kind)
    ]
    texts = ("kind", pa.string()), ("actor", pa.string())
    world.put("suspects", ("kind", "actor"), "seen", named,
              pa.schema([*texts, ("verdict", pa.string()), ("seen", INSTANT)]))  # fmt: skip
    counts = [(name, pa.int64()) for name in ("views", "posts", "calls")]
    rows = [
        {"minute": key[0], "kind": key[1], "actor": key[2], **one}
        for key, one in minutes.behaviour(world.events).items()
    ]
    world.put("behaviour", ("minute", "kind", "actor"), "minute", rows,
              pa.schema([("minute", INSTANT), *texts, *counts]))  # fmt: skip
    world.put("over_limit", ("minute",), "minute", [], pa.schema([("minute", INSTANT)]))
    both = {"requests": len(world.events["requests"]), "measures": len(world.events["servers"])}
    world.put(
        "server_windows", ("start",), "start", [{"start": minute, "server": "server-1", "p95_ms": 20.0, **both}],
        pa.schema([("start", INSTANT), ("server", pa.string()), ("p95_ms", pa.float64()),
                   ("requests", pa.int64()), ("measures", pa.int64())]),
    )  # fmt: skip
    world.put("alerts", ("start",), "start", [], pa.schema([("start", INSTANT)]))
    (incident,) = world.planted("incident")
    window_ms = incident["start_ms"] // 5000 * 5000
    value = {"start": window_ms, "server": incident["server"], "kind": "latency", "state": "opened", "message": "slow"}
    world.send("alerts", "1", value, incident["start_ms"] + 9_500)
    for name in ("security", "operations"):
        PipelineFolder(world.warehouse, name).write(PipelineStatus(name=name, state="stopped"))


def test_a_run_in_which_all_was_found_and_nothing_lost(world: World, tmp_path: Path) -> None:
    said: list[str] = []
    outcome = world.report(tmp_path / "out", notify=said.append)
    assert outcome.failures == ()
    assert outcome.exit_code == 0
    assert len(said) == 2
    document = json.loads(outcome.json_path.read_text())
    assert document["is_good"]
    assert [one["right"] for one in document["scores"]] == [12, 10, 10]
    assert [one["after_ms"] for one in document["incidents"]] == [9_500]
    by_table = {one["table"]: one for one in document["tables"]}
    for kind in KINDS:
        counts = by_table[kind.topic]
        assert counts["landed"] == world.summary["good"][kind.topic] == len(world.events[kind.topic])
        assert counts["run_dead"] == counts["malformed"] == world.summary["malformed"][kind.topic]
    assert [one["table"] for one in document["counts"]] == ["server_windows", "behaviour"]
    page = outcome.html_path.read_text()
    assert "All goals are met" in page
    assert "All goals are met" in outcome.text

    # The same by the command, without the summary: the site that opened last is looked at.
    reported = Shell(world.address)(
        "activity", "report", "--warehouse", world.warehouse, "--output", tmp_path / "again.html"
    )
    assert reported.exit_code == 0, reported.output
    assert (tmp_path / "again.json").exists()


@pytest.fixture
def own_world(tmp_path: Path) -> Iterator[World]:
    with half_a_minute(tmp_path) as made:
        yield made


@pytest.mark.long
def test_what_is_lost_late_or_wrong_is_reported_and_is_exit_code_1(own_world: World, tmp_path: Path) -> None:
    world = own_world
    lost = world.events["votes"][0]["id"]
    Warehouse(world.warehouse).open("votes").store.delta.delete(f"id = {lost}")
    suspects = results.open_result_table(world.warehouse, "suspects", ("kind", "actor"), "seen",
                             results.read_result_table(world.warehouse, "suspects").schema)  # fmt: skip
    honest = [{"kind": "member", "actor": str(10**6 + each), "verdict": "spammer", "seen": datetime.now(UTC)}
              for each in range(2)]  # fmt: skip
    suspects.merge(pa.Table.from_pylist(honest, suspects.schema))
    world.send("posts", "1", {**world.events["posts"][0], "id": 1}, world.summary["end_ms"])
    outcome = world.report(tmp_path / "out")
    assert outcome.exit_code == 1
    reported = "\n".join(outcome.failures)
    assert "votes: 1 missing" in reported
    assert "posts: 1 waiting" in reported
    assert "spammers are found: precision 0.83, recall 1.00 (10 of 10); wrong 1000000, 1000001" in reported
    assert len(outcome.failures) == 2
    assert "Missed: " in outcome.text


def test_empty_warehouse_or_topic_is_an_error(world: World, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"no tables in .*nowhere"):
        write_report(world.address, str(tmp_path / "nowhere"), tmp_path / "out")
    with pytest.raises(ReportError, match="summary has no start_ms"):
        world.report(tmp_path / "out", summary={})
    with EmbeddedBroker() as silent, pytest.raises(ReportError, match="no planted events found"):
        write_report(silent.address, world.warehouse, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot write the report"):
        world.report(tmp_path / "file" / "out")
    bad = Shell(world.address)("activity", "report", "--warehouse", world.warehouse, "--summary", tmp_path / "file")
    assert bad.exit_code != 0
    assert "is not a generator summary" in bad.output
