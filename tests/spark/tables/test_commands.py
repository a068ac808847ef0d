"""`penstock table` and `penstock load`, without Spark."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.commands import Shell
from tests.spark.tables.table_stories import FIRST_MS, World, dead, once, places, rows, view
from tests.timeouts import PATIENCE_S

DECLARED = """
name = "views"
topic = "{topic}"
event_time = "at"
schema = "user string not null, ms int, at timestamp_ms"
"""


class Tables:
    """The two commands, with warehouse and broker said."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.shell = Shell(world.address)
        self.file = folder / "views.toml"
        self.file.write_text(DECLARED.format(topic=world.topic))
        self.shell.environment["PENSTOCK_WAREHOUSE"] = world.warehouse.storage.uri

    def create(self) -> None:
        self.shell.done("table", "create", self.file)


@pytest.fixture
def tables(world: World, tmp_path: Path) -> Tables:
    return Tables(world, tmp_path)


def test_a_table_is_made_loaded_shown_and_dropped(tables: Tables) -> None:
    tables.world.views(30)
    assert "views: made, 3 columns" in tables.shell.done("table", "create", tables.file)
    said = tables.shell.done("load", "views", "--local")
    assert "30 records read, 30 landed" in said
    assert tables.shell.done("load", "views", "--local") == "views: nothing new\n"
    (listed,) = tables.shell.json("table", "list")["tables"]
    assert (listed["name"], listed["rows"], listed["dead"]) == ("views", 30, 0)
    assert "views" in tables.shell.done("table", "list")
    described = tables.shell.json("table", "describe", "views")
    assert sum(one["next"] for one in described["offsets"].values()) == 30
    text = tables.shell.done("table", "describe", "views")
    assert "user    string not null" in text
    assert "Partitioned by:" in text
    rejected = tables.shell("table", "drop", "views")
    assert rejected.exit_code == 2
    assert "--yes" in rejected.output
    assert "would be dropped" in tables.shell.done("table", "drop", "views", "--dry-run")
    assert tables.shell.json("table", "list")["tables"]
    assert tables.shell.done("table", "drop", "views", "--yes") == "views: dropped\n"
    assert tables.shell.json("table", "list") == {"tables": []}


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that starts Spark fails."""

    def reject(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("penstock.spark.session.session", reject)


@pytest.mark.usefixtures("without_spark")
def test_nothing_new_and_little_that_is_new_start_no_spark(tables: Tables) -> None:
    tables.world.views(10)
    tables.create()
    assert "10 records read, 10 landed" in tables.shell.done("load", "views")
    assert tables.shell.done("load", "views") == "views: nothing new\n"
    assert tables.shell.done("load", "views", "--spark") == "views: nothing new\n"
    assert tables.shell.done("load", "views", "--master", "spark://nowhere:7077") == "views: nothing new\n"
    assert tables.shell.json("table", "maintain", "views")["joined"] == 0
    assert tables.shell.json("table", "replay-dead", "views")["tried"] == 0


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(
    ("args", "most"), [(("--spark",), {}), (("--master", "local[1]"), {}), ((), {"MOST_LOCAL_RECORDS": 9}),
                       ((), {"MOST_LOCAL_BYTES": 99})]
)  # fmt: skip
def test_what_is_asked_for_or_large_is_done_by_spark(
    tables: Tables, args: tuple[str, ...], most: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in most.items():
        monkeypatch.setattr(f"penstock.spark.tables.runner.{name}", value)
    tables.world.views(10)
    tables.create()
    with pytest.raises(AssertionError, match="Spark was started"):
        tables.shell("load", "views", *args)
    assert "10 records read" in tables.shell.done("load", "views", "--local")


def test_local_and_spark_exclude_each_other(tables: Tables) -> None:
    tables.create()
    rejected = tables.shell("load", "views", "--local", "--spark")
    assert rejected.exit_code == 2
    assert "--local excludes --spark and --master" in rejected.output


@pytest.mark.long
def test_a_load_by_spark_prints_its_result_and_nothing_else(tables: Tables) -> None:
    tables.world.views(10)
    tables.create()
    with tables.shell.process("load", "views", "--master", "local[1]") as process:
        said, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    assert b"10 records read, 10 landed" in said
    assert [line for line in errors.splitlines() if not line.startswith(b"Version 1: ")] == []


def test_a_table_can_be_made_without_a_file(tables: Tables) -> None:
    tables.world.views(5)
    name = tables.world.topic
    tables.shell.done("table", "create", name, "--set", "partition_by=none", "--set", "target_file_mb=16")
    tables.shell.done("load", name, "--local")
    assert tables.shell.json("table", "describe", name)["rows"] == 5
    assert "exists, 3 columns" in tables.shell.done("table", "create", name, "--if-not-exists")


def test_load_reports_its_counts_as_json(tables: Tables) -> None:
    tables.world.send([view(0), b"bad"], partition=0)
    tables.create()
    report = tables.shell.json("load", "views", "--local")
    assert report["counts"]["landed"] == 1
    assert report["counts"]["dead"] == 1
    assert report["loaded"] == {"0": [[0, 2]]}
    report = tables.shell.json("load", "views", "--local", "--offsets", "0:0-1")
    assert report["replaced"] == {"0": [[0, 1]]}
    report = tables.shell.json("load", "views", "--local", "--since", "1h ago")
    assert report["replaced"] == {"0": [[0, 2]]}
    assert tables.shell.json("load", "views", "--local", "--until", "1h ago")["commits"] == 0


def test_dead_letters_are_shown_and_tried_again(tables: Tables) -> None:
    tables.world.send([b'{"user": 5}', view(1)], partition=0)
    tables.create()
    tables.shell.done("load", "views", "--local")
    assert "user is 5, expected string" in tables.shell.done("table", "dead", "views")
    (one,) = tables.shell.json("table", "dead", "views")["dead"]
    assert (one["offset"], one["value"]) == (0, '{"user": 5}')
    assert tables.shell.json("table", "replay-dead", "views", "--local") == {"table": "views", "tried": 1, "landed": 0}


def test_a_declaration_is_updated(tables: Tables) -> None:
    tables.create()
    tables.file.write_text(tables.file.read_text().replace("ms int", "ms long, page string"))
    assert "New or wider columns: page, ms" in tables.shell.done("table", "create", tables.file, "--update")
    tables.file.write_text(tables.file.read_text().replace("ms long", "ms string"))
    rejected = tables.shell("table", "create", tables.file, "--update")
    assert rejected.exit_code == 2
    assert "ms is long, but the record has string" in rejected.output


def test_an_audit_in_text_json_and_as_a_plot(tables: Tables, tmp_path: Path) -> None:
    tables.world.views(10)
    tables.create()
    tables.shell.done("load", "views", "--local")
    picture = tmp_path / "audit.svg"
    text = tables.shell.done("table", "audit", "views", "--since", "2h ago", "--plot", str(picture))
    assert "Complete until" in text
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    document = tables.shell.json("table", "audit", "views")
    assert sum(hour["landed"] for hour in document["hours"]) == 10
    assert document["sound"]
    tables.world.warehouse.open("views").store.delta.delete("ms = 3")
    unsound = tables.shell("table", "audit", "views")
    assert unsound.exit_code == 1
    assert "missing" in unsound.output


def test_maintenance_is_reported(tables: Tables) -> None:
    tables.create()
    for number in range(3):
        tables.world.send([view(number)], partition=0)
        tables.shell.done("load", "views", "--local", "--no-maintenance")
    assert tables.shell.json("table", "maintain", "views", "--local", "--all")["joined"] == 3


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("load", "vews"), 4, "Did you mean views?"),
        (("load", "views", "--local", "--since", "1h ago", "--offsets", "0:1"), 2, "exclude each other"),
        (("load", "views", "--local", "--follow", "--until", "now"), 2, "--follow excludes --offsets and --until"),
        (("load", "views", "--local", "--offsets", "0:5-1"), 4, "ends before it begins"),
        (("load", "views", "--local", "--offsets", "0:0-99"), 4, "ends at offset"),
        (("table", "create", "nowhere.toml"), 2, "No such file"),
        (("table", "create", "x", "--set", "mod=append"), 2, "Did you mean mode?"),
        (("table", "create", "nowhere"), 4, "nowhere"),
        (("table", "create", "x", "--set", "schema=user strin"), 2, "at 'strin': expected a type"),
        (("table", "audit", "nothing"), 4, "able 'nothing' does not exist"),
    ],
)
def test_what_cannot_be_done_is_reported_in_a_line_or_two(
    tables: Tables, args: tuple[str, ...], code: int, said: str
) -> None:
    tables.create()
    result = tables.shell(*args)
    assert result.exit_code == code, result.output
    assert said.lower() in result.output.lower()
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) <= 2


def test_no_broker_is_reported_before_anything_starts(tables: Tables) -> None:
    tables.create()
    tables.shell.environment["PENSTOCK_BOOTSTRAP_SERVER"] = "127.0.0.1:1"
    result = tables.shell("load", "views")
    assert result.exit_code == 3
    assert "Cannot reach a broker" in result.output


def test_following_ends_after_a_commit_when_it_is_asked_to(tables: Tables) -> None:
    tables.world.views(5)
    tables.create()
    opened = tables.world.warehouse.open("views")
    with tables.shell.process("load", "views", "--local", "--follow", "--interval", "100ms") as process:
        deadline = time.monotonic() + PATIENCE_S
        while rows(opened).num_rows < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        tables.world.views(5, first=5)
        while rows(opened).num_rows < 10 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert places(rows(opened)) == once(tables.world.log())
    assert dead(opened).num_rows == 0
    assert json.loads(view(0))["at"] == FIRST_MS
