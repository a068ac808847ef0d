"""A query's progress as a consumer group."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.timeouts import NEVER_MS, PATIENCE_S, until

from penstock import Admin, Producer, TopicPartition
from penstock.cli.main import cli
from penstock.client.admin import GroupDescription
from penstock.client.errors import NotConnected
from penstock.spark.lag import LagCommitter, LagListener, QueryProgress, publish, query_progress, withdraw
from penstock.spark.offsets import LagTarget, StreamOffset
from penstock.testing import Broker

ONE = TopicPartition("views", 0)


def offset_text(offset: int, target: LagTarget | None, topic: str = "views") -> str:
    return json.dumps(StreamOffset({TopicPartition(topic, 0): offset}, lag=target).to_json())


# ----------------------------------------------------------------------------------------------- what a query says


def test_the_group_is_named_by_query_and_id_or_by_the_prefix() -> None:
    text = offset_text(5, LagTarget("prefix", "a:1"))
    assert query_progress("views-job", "id", [text]) == [QueryProgress("a:1", "views-job-id", {ONE: 5})]
    assert query_progress(None, "id", [text]) == [QueryProgress("a:1", "prefix-id", {ONE: 5})]


@pytest.mark.parametrize(("name", "prefix", "group"), [(None, "", "spark-id"), ("", "-x", "spark-x-id")])
def test_no_group_begins_like_an_option(name: str | None, prefix: str, group: str) -> None:
    text = offset_text(5, LagTarget(prefix, "a:1"))
    assert query_progress(name, "id", [text]) == [QueryProgress("a:1", group, {ONE: 5})]


def test_sources_of_one_cluster_share_the_group_and_others_have_their_own() -> None:
    here, there = LagTarget("p", "a:1"), LagTarget("p", "b:1")
    found = query_progress("q", "id", [offset_text(5, here), offset_text(6, here, "clicks"), offset_text(7, there)])
    assert found == [
        QueryProgress("a:1", "q-id", {ONE: 5, TopicPartition("clicks", 0): 6}),
        QueryProgress("b:1", "q-id", {ONE: 7}),
    ]


def test_a_query_without_visible_lag_has_no_group() -> None:
    assert query_progress("q", "id", [offset_text(5, None)]) == []


@pytest.mark.parametrize("text", [None, "", "7", "null", '"text"', "[1]", '{"logOffset": 3}', '{"a": {"b": 1}}', "{"])
def test_other_sources_say_nothing(text: str | None) -> None:
    assert query_progress("q", "id", [text]) == []


def test_a_listener_travels_to_a_spark_connect_server() -> None:
    listener = LagListener({"kafka.security.protocol": "PLAINTEXT"})
    assert listener.committer is not None
    there: LagListener = pickle.loads(pickle.dumps(listener))
    assert there.flush(0)


# ----------------------------------------------------------------------------------------------- committing


class SlowAdmin:
    """An admin that waits until it may continue, and notes what it is asked."""

    def __init__(self) -> None:
        self.committed: list[tuple[str, int]] = []
        self.begun = threading.Event()
        self.may_continue = threading.Event()
        self.fails = False
        self.closed = 0

    def set_group_offsets(self, group: str, offsets: dict[Any, int], *, timeout_ms: int) -> dict[Any, Any]:
        self.begun.set()
        assert self.may_continue.wait(PATIENCE_S)
        if self.fails:
            raise NotConnected("a:1", "gone")
        self.committed.append((group, offsets[ONE]))
        return {}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def admin() -> SlowAdmin:
    return SlowAdmin()


@pytest.fixture
def committer(admin: SlowAdmin) -> Iterator[LagCommitter]:
    made = LagCommitter(lambda _: admin, join_after_s=NEVER_MS / 1000)  # type: ignore[arg-type, return-value]
    yield made
    admin.may_continue.set()
    made.close()


def test_a_slow_broker_slows_no_query_and_only_the_newest_is_committed(
    admin: SlowAdmin, committer: LagCommitter
) -> None:
    committer.note(QueryProgress("a:1", "g", {ONE: 1}))
    assert admin.begun.wait(PATIENCE_S)
    for offset in range(2, 1000):
        committer.note(QueryProgress("a:1", "g", {ONE: offset}))
    admin.may_continue.set()
    assert committer.flush(PATIENCE_S)
    assert admin.committed == [("g", 1), ("g", 999)]


def test_the_same_place_is_not_committed_twice(admin: SlowAdmin, committer: LagCommitter) -> None:
    admin.may_continue.set()
    for _ in range(3):
        committer.note(QueryProgress("a:1", "g", {ONE: 5}))
        assert committer.flush(PATIENCE_S)
    assert admin.committed == [("g", 5)]


def test_a_failure_is_reported_once_and_the_next_place_is_tried(
    admin: SlowAdmin, committer: LagCommitter, caplog: pytest.LogCaptureFixture
) -> None:
    admin.may_continue.set()
    admin.fails = True
    for offset in range(5):
        committer.note(QueryProgress("a:1", "g", {ONE: offset}))
        assert committer.flush(PATIENCE_S)
    assert caplog.messages == ["cannot publish lag: group=g error=a:1: gone"]
    admin.fails = False
    committer.note(QueryProgress("a:1", "g", {ONE: 9}))
    assert committer.flush(PATIENCE_S)
    assert admin.committed == [("g", 9)]


def test_closing_releases_thread_and_connections(admin: SlowAdmin, committer: LagCommitter) -> None:
    admin.may_continue.set()
    committer.note(QueryProgress("a:1", "g", {ONE: 5}))
    committer.close()
    assert admin.closed == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-spark-lag"]
    committer.note(QueryProgress("a:1", "g", {ONE: 6}))
    assert admin.committed == [("g", 5)]


# ----------------------------------------------------------------------------------------------- as a member


def state(admin: Admin, group: str) -> tuple[str, int]:
    """Of the group, if there is one, and how many members it has."""
    described = admin.describe_groups([group])[group]
    return (described.state, len(described.members)) if isinstance(described, GroupDescription) else ("", 0)


def test_a_query_that_runs_is_the_member_of_its_group_until_it_ends(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.lag._IDLE_S", 0.05)
    monkeypatch.setattr("penstock.spark.lag._HEARTBEAT_MS", 100)
    one = TopicPartition(topic, 0)
    produce(broker, topic, 9)
    sessions = ["one"]
    committer = LagCommitter(lambda _: Admin(broker.address), is_alive=lambda: bool(sessions), join_after_s=0)
    with Admin(broker.address) as admin:
        committer.note(QueryProgress(broker.address, "views-1", {one: 1}))
        until(lambda: state(admin, "views-1") == ("Stable", 1), "the query has joined")
        assert committed(admin, "views-1", topic, 1)
        shown = CliRunner().invoke(cli, ["groups", "describe", "views-1", "-b", broker.address]).stdout
        assert "views-1: Stable, 1 member" in shown
        assert "lag 8" in shown
        moving = ["groups", "seek", "views-1", "--all-topics", "--to-earliest", "--execute", "-b", broker.address]
        assert CliRunner().invoke(cli, moving).exit_code != 0
        committer.note(QueryProgress(broker.address, "views-1", {one: 5}))
        assert committed(admin, "views-1", topic, 5)
        # What was noted before the end is committed before the member leaves.
        committer.note(QueryProgress(broker.address, "views-1", {one: 9}))
        committer.end("1")
        until(lambda: state(admin, "views-1") == ("Empty", 0), "the query has left")
        assert committed(admin, "views-1", topic, 9)
        # A new driver of a query whose last one died commits although the group still has a member.
        committer.note(QueryProgress(broker.address, "views-1", {one: 2}))
        until(lambda: state(admin, "views-1") == ("Stable", 1), "it is back")
        other = LagCommitter(lambda _: Admin(broker.address), join_after_s=NEVER_MS / 1000)
        other.note(QueryProgress(broker.address, "views-1", {one: 3}))
        until(lambda: state(admin, "views-1") == ("Stable", 2), "the new driver has joined")
        assert committed(admin, "views-1", topic, 3)
        other.close()
        until(lambda: state(admin, "views-1") == ("Stable", 1), "the new driver has left")
        # A session that ends may not report the end of its queries.
        sessions.clear()
        until(lambda: state(admin, "views-1") == ("Empty", 0), "the session has ended")
        committer.close()


# ----------------------------------------------------------------------------------------------- with Spark


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[LagListener]:
    made = publish(spark)
    assert made is not None
    yield made
    withdraw(spark, made)


def started(
    spark: SparkSession, broker: Broker, topic: str, folder: Path, name: str | None = None, **options: str
) -> StreamingQuery:
    named = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest", **options}
    writer = spark.readStream.format("penstock").options(**named).load().writeStream.format("noop")
    if name is not None:
        writer = writer.queryName(name)
    return writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()


def produce(broker: Broker, topic: str, count: int) -> None:
    with Producer(broker.address) as producer:
        producer.send_many(topic, [b"x"] * count, partition=0)


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
def test_trap_5_the_last_batch_of_a_query_is_in_its_group_and_the_command_shows_it(
    spark: SparkSession, broker: Broker, listener: LagListener, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, 10)
    query = started(spark, broker, topic, tmp_path, "lag-story", maxOffsetsPerTrigger="4")
    assert query.awaitTermination(PATIENCE_S)
    group = f"lag-story-{query.id}"
    with Admin(broker.address) as admin:
        assert committed(admin, group, topic, 10)
        until(lambda: state(admin, group) == ("Empty", 0), "a query that has ended is not a member")
        produce(broker, topic, 3)
        shown = CliRunner().invoke(cli, ["groups", "describe", group, "-b", broker.address])
        assert shown.exit_code == 0, shown.output
        assert f"{group}: Empty, 0 members" in shown.stdout
        assert "lag 3" in shown.stdout
        # The same query again continues, and so does its group.
        again = started(spark, broker, topic, tmp_path, "lag-story")
        assert again.awaitTermination(PATIENCE_S)
        assert again.id == query.id
        assert committed(admin, group, topic, 13)


@pytest.mark.long
def test_a_query_without_a_name_has_the_prefix_and_one_without_visible_lag_has_no_group(
    spark: SparkSession, broker: Broker, listener: LagListener, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, 2)
    hidden = started(spark, broker, topic, tmp_path / "1", visibleLag="false", groupIdPrefix="hidden")
    assert hidden.awaitTermination(PATIENCE_S)
    shown = started(spark, broker, topic, tmp_path / "2", groupIdPrefix="shown")
    assert shown.awaitTermination(PATIENCE_S)
    with Admin(broker.address) as admin:
        assert committed(admin, f"shown-{shown.id}", topic, 2)
        assert not [each for each in admin.list_groups() if each.group_id.startswith("hidden")]


@pytest.mark.long
def test_a_stream_without_a_name_can_be_named_and_is_shown_as_running_until_it_stops(
    spark: SparkSession, broker: Broker, listener: LagListener, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, 2)
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("penstock").options(**options).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    group = f"spark-{query.id}"
    with Admin(broker.address) as admin:
        until(lambda: state(admin, group) == ("Stable", 1), "the stream is shown as running")
        produce(broker, topic, 3)
        assert committed(admin, group, topic, 5)
        query.stop()
        until(lambda: state(admin, group) == ("Empty", 0), "the stream is shown as stopped")
    assert f"{group}: Empty" in CliRunner().invoke(cli, ["groups", "describe", group, "-b", broker.address]).stdout


@pytest.mark.long
def test_publishing_twice_is_publishing_once(spark: SparkSession, listener: LagListener) -> None:
    assert publish(spark) is None
