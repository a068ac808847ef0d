"""Spark Connect: a server from the wheel, and clients of it in processes that have no Java."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.demands import lacking
from tests.spark.cluster import stories
from tests.spark.cluster.drivers import Driver, StoryFailed, remote
from tests.spark.cluster.standalone import QUICK_START, SETTINGS, Daemon
from tests.spark.cluster.test_standalone import log_of
from tests.spark.source_stories import fill
from tests.spark.tables.table_stories import VIEWS, dead, once, places, rows, world_of
from tests.timeouts import PATIENCE_S

from penstock import Admin, TopicPartition
from penstock.cli.main import cli
from penstock.client.errors import ConfigError, MissingDependency
from penstock.spark import session as sessions
from penstock.spark.session import arguments, check_connect, connect_address, prepare, spark_home
from penstock.testing import Broker

try:
    check_connect()
except MissingDependency as missing:
    LACKING = str(missing)
else:
    LACKING = ""
connected = pytest.mark.usefixtures("connect_packages")


@pytest.fixture(scope="session")
def connect_packages() -> None:
    if LACKING:
        lacking("connect", LACKING)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that has this environment, and does its work itself."""
    folder = tmp_path_factory.mktemp("connect")
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    environment.pop("SPARK_REMOTE", None)
    prepare(environment)
    settings = {
        **{name: value for name, value in SETTINGS.items() if "executor" not in name and "scheduler" not in name},
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    environment["SPARK_LAUNCHER_OPTS"] = QUICK_START
    command = [
        str(spark_home() / "bin" / "spark-submit"), *arguments(settings),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    running = Daemon(command, environment, cwd=folder)
    try:
        port = running.hears(r"Spark Connect server started at: .*:(\d+)")[1]
        yield f"sc://127.0.0.1:{port}"
    finally:
        running.end()


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[Driver]:
    made = Driver(remote, server)
    yield made
    made.stop()


@pytest.mark.long
@connected
def test_topics_are_read_and_written_over_connect(client: Driver, broker: Broker, topic: str, tmp_path: Path) -> None:
    client.tells(stories.write, broker.address, topic, 100)
    assert sorted(int(value) for _, _, value in log_of(broker, topic)) == list(range(100))
    assert client.tells(stories.read, broker.address, topic) == log_of(broker, topic)
    broker.create_topic(f"{topic}-copy", 2)
    client.tells(stories.to_topic, broker.address, topic, f"{topic}-copy", str(tmp_path))
    assert log_of(broker, f"{topic}-copy") == log_of(broker, topic)


@pytest.mark.long
@connected
def test_a_stream_over_connect_continues_where_it_was_and_shows_its_lag(
    client: Driver, broker: Broker, topic: str, tmp_path: Path
) -> None:
    assert client.tells(stories.publishes)
    fill(broker, topic, range(60))
    query, batches = client.tells(stories.to_parquet, broker.address, topic, str(tmp_path), maxOffsetsPerTrigger="40")
    assert batches == 2
    with Admin(broker.address) as admin:
        assert committed(admin, f"to-parquet-{query}", topic, 60)
        fill(broker, topic, range(60, 90))
        assert client.tells(stories.to_parquet, broker.address, topic, str(tmp_path)) == (query, 3)
        assert committed(admin, f"to-parquet-{query}", topic, 90)
    assert client.tells(stories.parquet, str(tmp_path)) == log_of(broker, topic)


def committed(admin: Admin, group: str, topic: str, wanted: int) -> bool:
    """Whether the group gets there; Spark reports progress a little late."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        found = admin.group_offsets(group).get(TopicPartition(topic, 0))
        if found is not None and found.offset == wanted:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.long
@connected
def test_a_table_is_loaded_over_connect(client: Driver, broker: Broker, topic: str, tmp_path: Path) -> None:
    with world_of(broker, topic, tmp_path) as world:
        world.views(300)
        world.send([b"bad"])
        opened = world.make(schema=VIEWS, event_time="at")
        commits, landed = client.tells(stories.load, broker.address, world.warehouse.storage.uri, 150)
        assert commits >= 2
        assert landed == 300
        assert places(rows(opened)) + places(dead(opened)) == once(world.log())


@pytest.mark.long
@connected
def test_the_load_command_takes_the_address_of_a_server(
    server: str, broker: Broker, topic: str, tmp_path: Path
) -> None:
    with world_of(broker, topic, tmp_path) as world:
        world.views(50)
        opened = world.make(schema=VIEWS)
        # Without any Java: that is the server's.
        environment = {**os.environ, "PATH": os.defpath, "JAVA_HOME": str(tmp_path / "none"), "PYTHONUNBUFFERED": "1"}
        command = [
            sys.executable, "-m", "penstock", "load", "views", "-b", broker.address, "-w", "warehouse",
            "--master", server,
        ]  # fmt: skip
        load = Daemon(command, environment, cwd=tmp_path)
        try:
            load.hears("^Version 1: 50 records read, 50 landed")
            assert load.process.wait(PATIENCE_S) == 0
        finally:
            load.end()
        assert places(rows(opened)) == once(world.log())


@pytest.mark.long
@connected
def test_a_program_finds_the_server_and_the_source(server: str, broker: Broker, topic: str, tmp_path: Path) -> None:
    fill(broker, topic, range(20))
    job = tmp_path / "job.py"
    job.write_text(
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "frame = spark.read.format('penstock').option('kafka.bootstrap.servers', sys.argv[1])\n"
        "rows = frame.option('subscribe', sys.argv[2]).load().count()\n"
        "print('FOUND', rows, spark.conf.get('spark.penstock.visibleLag'))\n"
        "sys.argv[3] and spark.stop()\n"
    )
    command = [sys.executable, "-m", "penstock", "spark", "python", "--master", server, str(job)]
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "none")}
    # Neither a program that stops its session nor one that leaves it is kept from ending, or sees an error.
    for last in ("", "stop"):
        ran = subprocess.run(
            [*command, broker.address, topic, last], env=environment, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "FOUND 20 published\n", "")


@pytest.mark.long
@connected
def test_a_mistake_over_connect_is_one_line_of_ours(client: Driver, broker: Broker) -> None:
    with pytest.raises(StoryFailed) as failure:
        client.tells(stories.read, broker.address, "no-such-topic")
    assert [line for line in str(failure.value).splitlines() if "it does not exist on" in line]


# ---------------------------------------------------------------------------------------------- without a server


def test_nothing_is_submitted_to_a_server() -> None:
    result = CliRunner().invoke(cli, ["spark", "submit", "--master", "sc://a:1", "job.py"])
    assert result.exit_code == 2
    assert "sc://a:1 is a Spark Connect server, which does not take submitted jobs." in result.output


def test_a_program_for_a_server_cannot_set_what_is_the_servers() -> None:
    result = CliRunner().invoke(cli, ["spark", "python", "--master", "sc://a:1", "--conf", "a=b", "job.py"])
    assert result.exit_code == 2
    assert "A Spark Connect server has its own settings and packages." in result.output


@pytest.mark.parametrize(
    ("master", "variables", "address"),
    [
        (None, {}, None),
        ("local[2]", {"SPARK_REMOTE": "sc://a:1"}, None),
        ("sc://a:1", {}, "sc://a:1"),
        (None, {"SPARK_REMOTE": "sc://a:1"}, "sc://a:1"),
        (None, {"PYSPARK_SUBMIT_ARGS": "--remote sc://b:2 pyspark-shell"}, "sc://b:2"),
    ],
)
def test_where_a_session_works_is_known_by_its_address(
    master: str | None, variables: dict[str, str], address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert connect_address(master) == address


def test_without_the_packages_of_connect_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grpc" else object())
    monkeypatch.setattr(sessions, "spark_home", Path)
    with pytest.raises(MissingDependency, match=r'Spark Connect needs grpcio.*pip install "penstock\[connect\]"'):
        sessions.session(master="sc://a:1")


def test_nothing_is_delivered_to_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "check_connect", lambda: None)
    with pytest.raises(ConfigError, match="does not accept packages from clients"):
        sessions.session(master="sc://a:1", deliver=True)
