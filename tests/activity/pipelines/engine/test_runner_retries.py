"""What happens to a run and may pass is waited for, while it starts and later; what will not pass ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from tests.activity.pipelines.engine_stories import KEPT, kept_windows, plain_windows, send, traffic

from penstock.activity.cluster import Cluster
from penstock.activity.events import REQUESTS, SERVERS
from penstock.activity.pipelines import operations
from penstock.activity.pipelines.definition import Pipeline
from penstock.activity.pipelines.engine import results, runner
from penstock.activity.pipelines.engine.loads import LoadsAndReports
from penstock.activity.pipelines.engine.micro_batch import Outputs
from penstock.activity.pipelines.engine.queries import Member
from penstock.activity.pipelines.engine.runner import PipelinesRun
from penstock.activity.pipelines.engine.status import QueryStatus
from penstock.activity.pipelines.errors import PipelineError, SparkTrouble, in_one_line
from penstock.client.errors import DeliveryTimeout, NotConnected
from penstock.spark.errors import DataLost, TableError
from penstock.spark.tables import Loader
from penstock.testing import Broker

PATIENCE_S = 180.0
LOADS = Pipeline(name="loads", summary="requests as they are", trigger=timedelta(seconds=1), loads=(REQUESTS,))
LOST = "Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited): Command exited with code 137"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(str(tmp_path / "data"), settings=KEPT) as started:
        for kind in (REQUESTS, SERVERS):
            started.create_topic(kind.topic, 2)
        yield started


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long before the next try."""
    monkeypatch.setattr(runner, "_LONGEST_WAIT_S", 0.01)


def until_loaded(run: PipelinesRun, records: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while run.status()[0].queries[0].input_rows_total < records:
        assert not run.wait(0.05), run.failure
        assert time.monotonic() < deadline_s, run.status()


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_what_keeps_a_member_from_starting_and_may_pass_is_tried_again_while_the_run_continues(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, said = traffic(5), list[str]()
    send(broker.address, events)
    tries, original = [0], LoadsAndReports.start

    def start(member: LoadsAndReports) -> None:
        tries[0] += 1
        if tries[0] < 3:
            raise NotConnected("127.0.0.1:9092", "the connection ended")
        original(member)

    monkeypatch.setattr(LoadsAndReports, "start", start)
    run = PipelinesRun(spark, [LOADS], Cluster(broker.address), str(tmp_path / "warehouse"), notify=said.append)
    run.start()
    assert run.status()[0].state == "waiting"
    until_loaded(run, sum(kind is REQUESTS for kind, _ in events))
    assert run.stop(30)
    assert tries == [3]
    assert len(said) == 2
    assert all("Trying again" in line for line in said)


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_an_executor_that_is_lost_while_it_loads_costs_a_try_and_one_that_is_always_lost_ends_the_run(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, said = traffic(5), list[str]()
    send(broker.address, events)
    losses, original = [3], Loader.load_new

    def load_new(*given: object, **named: object) -> object:
        if losses[0] > 0:
            losses[0] -= 1
            raise TableError("Spark failed to run the load") from PySparkRuntimeError(LOST)
        return original(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Loader, "load_new", load_new)
    run = PipelinesRun(spark, [LOADS], Cluster(broker.address), str(tmp_path / "warehouse"), notify=said.append)
    run.start()
    until_loaded(run, sum(kind is REQUESTS for kind, _ in events))
    assert [line.partition(".")[0] for line in said] == ["loads/loads: an executor was lost"] * 3
    losses[0] = 1000
    assert run.wait(PATIENCE_S)
    assert isinstance(run.failure, SparkTrouble)
    assert len(said) == runner._MOST_TROUBLES


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_rows_that_no_broker_acknowledged_in_time_are_sent_again_with_their_batch(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse, events, said = str(tmp_path / "warehouse"), traffic(30, slow=("server-1", 15, 25)), list[str]()
    send(broker.address, events)
    sent, original = list[str](), Outputs.send

    def send_late(outputs: Outputs, topic: str, *given: Any, **named: Any) -> None:
        sent.append(topic)
        if len(sent) == 1:
            raise DeliveryTimeout("3 records for alerts-0 were not acknowledged within delivery_timeout_ms (30000)")
        original(outputs, topic, *given, **named)

    monkeypatch.setattr(Outputs, "send", send_late)
    run = PipelinesRun(spark, [operations.PIPELINE], Cluster(broker.address), warehouse, notify=said.append)
    run.start()
    deadline_s = time.monotonic() + PATIENCE_S
    expected = plain_windows(broker.address)
    while kept_windows(results.read_result_table(warehouse, "server_windows")) != expected or len(sent) < 2:
        assert not run.wait(0.1), run.failure
        assert time.monotonic() < deadline_s, run.status()
    assert run.stop(30)
    assert "not acknowledged" in said[0]
    assert "Trying again" in said[0]


class Slow(Member):
    """Fails at its first start; is a burden while it is looked at three times after the second."""

    everybody: ClassVar[list[Slow]] = []

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tries = 0
        self.looks = 0
        self.beside = 0
        self.everybody.append(self)

    def start(self) -> None:
        self.tries += 1
        if self.tries == 1:
            raise NotConnected("127.0.0.1:9092", "the connection ended")
        self.beside = sum(one.looks > 0 for one in self.everybody)
        self.looks = 3
        self._error = None

    def is_starting(self) -> bool:
        self.looks -= self.looks > 0
        return self.looks > 0

    def stop(self, deadline_s: float) -> None: ...

    def status(self) -> QueryStatus:
        return QueryStatus(name=self.name, batch_id=self.tries)


@pytest.mark.long
@pytest.mark.usefixtures("impatient")
def test_no_more_than_two_are_started_again_at_once(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [Slow(f"member-{number}") for number in range(5)]
    monkeypatch.setattr(PipelinesRun, "_members_of", lambda *_: members)
    run = PipelinesRun(spark, [LOADS], Cluster(broker.address), str(tmp_path / "warehouse"))
    run.start()
    deadline_s = time.monotonic() + PATIENCE_S
    while {one.tries for one in members} != {2}:
        assert not run.wait(0.05), run.failure
        assert time.monotonic() < deadline_s
    assert run.stop(30)
    assert max(one.beside for one in members) == 1


def test_a_caught_error_says_whether_it_is_retriable() -> None:
    lost = TableError("Spark failed to run the load")
    lost.__cause__ = PySparkRuntimeError("...\npenstock.spark.errors.DataLost: views-0 cannot be read\n")
    assert in_one_line(lost, "loads") is lost
    gone = DataLost("views-0 cannot be read")
    assert in_one_line(gone, "loads") is gone
    late = in_one_line(DeliveryTimeout("they were not acknowledged"), "search")
    assert late.retriable
    assert late.message == "search: they were not acknowledged"
    mistake = in_one_line(KeyError("member"), "search")
    assert isinstance(mistake, PipelineError)
    assert not mistake.retriable


@pytest.mark.long
def test_traceback_variable_shows_the_full_text_of_spark(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TRACEBACK", "1")
    said: list[str] = []

    def start(member: LoadsAndReports) -> None:
        raise PySparkRuntimeError("[STREAM_FAILED] ended\n  at org.apache.spark.Somewhere\nValueError: no such thing")

    monkeypatch.setattr(LoadsAndReports, "start", start)
    run = PipelinesRun(spark, [LOADS], Cluster(broker.address), str(tmp_path / "warehouse"), notify=said.append)
    with pytest.raises(PipelineError, match="no such thing"):
        run.start()
    assert "org.apache.spark.Somewhere" in "\n".join(said)
