"""How the parts of a run start: two at once, in turn or not, until one fails or the run is stopped."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.timeouts import PATIENCE_S, until

from penstock.activity.cluster import Cluster
from penstock.activity.pipelines.definition import Pipeline
from penstock.activity.pipelines.engine import runner
from penstock.activity.pipelines.engine.micro_batch import Outputs
from penstock.activity.pipelines.engine.queries import LagWatch, Member, RowsQuery
from penstock.activity.pipelines.engine.runner import PipelinesRun
from penstock.activity.pipelines.engine.status import QueryStatus
from penstock.activity.pipelines.errors import PipelineError
from penstock.activity.pipelines.operations import PIPELINE

NAMES = ("first", "second", "third", "fourth")


def is_main_thread_waiting() -> bool:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return frame.f_code.co_name == "wait" and frame.f_code.co_filename == threading.__file__


class HandMade(Member):
    """Starts at once, and has its first batch when the test says so."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.is_asked = threading.Event()
        self.looks = 0
        self.has_batch = False
        self.starts: Callable[[], object] = lambda: None

    def start(self) -> None:
        self.is_asked.set()
        self.starts()
        self.has_started = True

    def has_first_batch(self) -> bool:
        self.looks += 1
        return self.has_batch

    def stop(self, deadline_s: float) -> None: ...

    def status(self) -> QueryStatus:
        return QueryStatus(name=self.name, state="running")


class Started:
    """A run of such members, the most urgent one first, and the thread that starts it."""

    def __init__(self, warehouse: Path, *, in_turn: bool) -> None:
        self.members = {name: HandMade(name) for name in NAMES}
        pipelines = [
            Pipeline(name=name, summary=name, trigger=timedelta(seconds=number))
            for number, name in enumerate(NAMES, start=1)
        ]
        spark = SimpleNamespace(conf=SimpleNamespace(set=lambda name, value: None))
        self.run = PipelinesRun(
            cast("Any", spark), pipelines[::-1], Cluster("127.0.0.1:1"), str(warehouse), in_turn=in_turn
        )
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.start, daemon=True)

    def start(self) -> None:
        try:
            self.run.start()
        except PipelineError as error:
            self.error = error

    @property
    def asked(self) -> set[str]:
        return {name for name, member in self.members.items() if member.is_asked.is_set()}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Started]]:
    monkeypatch.setattr(runner, "_FIRST_BATCH_S", float("inf"))
    monkeypatch.setattr(PipelinesRun, "_wait_for_cluster", lambda self: None)
    made: list[Started] = []

    def new(*, in_turn: bool) -> Started:
        one = Started(tmp_path / "warehouse", in_turn=in_turn)
        monkeypatch.setattr(PipelinesRun, "_members_of", lambda self, pipeline: [one.members[pipeline.name]])
        made.append(one)
        return one

    yield new
    for one in made:
        one.run.request_stop()
        if one.thread.ident is not None:
            one.thread.join(PATIENCE_S)
        assert one.run.stop(PATIENCE_S)


def test_queries_start_in_turn_the_most_urgent_first(runs: Callable[..., Started]) -> None:
    started = runs(in_turn=True)
    first, second, third, _ = started.members.values()
    started.thread.start()
    until(lambda: first.looks > 3 and second.looks > 3, "the run waits for two first batches")
    assert started.asked == {"first", "second"}
    second.has_batch = True
    until(lambda: third.looks > 3, "the next one has started")
    assert started.asked == {"first", "second", "third"}
    first.has_batch = third.has_batch = True
    started.members["fourth"].has_batch = True
    started.thread.join(PATIENCE_S)
    assert started.asked == {*NAMES}


def test_a_first_batch_that_takes_long_is_not_waited_for(
    runs: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_FIRST_BATCH_S", 0.1)
    started = runs(in_turn=True)
    started.run.start()
    assert started.asked == {*NAMES}


def test_not_in_turn_no_query_waits_for_the_first_batch_of_another(runs: Callable[..., Started]) -> None:
    started = runs(in_turn=False)
    started.run.start()
    assert started.asked == {*NAMES}
    assert not any(member.looks for member in started.members.values())


def test_a_run_that_is_stopped_starts_no_further_query(runs: Callable[..., Started]) -> None:
    started = runs(in_turn=True)
    first, second, *_ = started.members.values()
    started.thread.start()
    until(lambda: first.looks > 0 and second.looks > 0, "the run waits for two first batches")
    started.run.request_stop()
    started.thread.join(PATIENCE_S)
    assert not started.thread.is_alive()
    assert started.asked == {"first", "second"}


def test_an_error_ends_the_start_of_the_others(runs: Callable[..., Started]) -> None:
    started = runs(in_turn=True)
    first, second, *_ = started.members.values()
    may_fail = threading.Event()

    def fail() -> None:
        assert may_fail.wait(PATIENCE_S)
        raise PipelineError("the table is gone")

    second.starts = fail
    started.thread.start()
    until(lambda: first.looks > 0 and second.is_asked.is_set(), "two are starting")
    may_fail.set()
    started.thread.join(PATIENCE_S)
    assert not started.thread.is_alive(), "the first batch of the first one never comes"
    assert "the table is gone" in str(started.error)
    assert started.asked == {"first", "second"}
    assert {one.state for one in started.run.status()} == {"failed"}


def test_a_signal_that_another_thread_gets_stops_a_run_whose_query_is_starting(runs: Callable[..., Started]) -> None:
    """As in a part of `penstock activity run`: its handler runs when the main thread next looks."""
    started = runs(in_turn=False)
    first = started.members["first"]
    is_handled = threading.Event()
    was_handled: list[bool] = []
    first.starts = lambda: was_handled.append(is_handled.wait(PATIENCE_S))

    def handle(*_: object) -> None:
        started.run.request_stop()
        is_handled.set()

    def raise_signal() -> None:
        until(lambda: started.asked == {*NAMES} and is_main_thread_waiting(), "only the first one is still starting")
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        raising = threading.Thread(target=raise_signal, daemon=True)
        raising.start()
        started.run.start()
        raising.join(PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert was_handled == [True]


@pytest.mark.parametrize(
    ("query", "has_first_batch"),
    [
        (None, True),
        (SimpleNamespace(isActive=True, lastProgress=None), False),
        (SimpleNamespace(isActive=True, lastProgress={"batchId": 0}), True),
        (SimpleNamespace(isActive=False, lastProgress=None), True),
    ],
)
def test_a_query_has_its_first_batch_when_it_reports_progress_or_has_ended(
    tmp_path: Path, query: Any, has_first_batch: bool
) -> None:
    cluster = Cluster("127.0.0.1:1")
    member = RowsQuery(
        cast("Any", None), PIPELINE, PIPELINE.rows[0], cluster, str(tmp_path), Outputs(cluster), LagWatch(cluster)
    )
    member._query = query
    assert member.has_first_batch() is has_first_batch
