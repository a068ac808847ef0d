"""Runs pipelines as streams in one Spark session: starts them together, watches, restarts and stops them.

A query that ends is reported in one line. If the cause is retriable, such as a broker that is unreachable, it is
restarted from its checkpoint with backoff; otherwise the run ends with the reason. Stopping waits for commits in
progress, so that the next start repeats nothing; correctness does not depend on it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from penstock.activity.cluster import Cluster
from penstock.activity.pipelines.definition import Pipeline
from penstock.activity.pipelines.engine import memory, queries, status
from penstock.activity.pipelines.engine.micro_batch import Outputs, ensure_topics
from penstock.activity.pipelines.engine.queries import PARTITIONS, LagWatch, Member, RowsQuery
from penstock.activity.pipelines.engine.status import PipelineFolder, PipelineStatus
from penstock.activity.pipelines.errors import PipelineError, PipelineRuns, SparkTrouble, full_details, in_one_line
from penstock.client.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.session import ConsoleOutput

_LOOK_S: Final = 0.25
_STATUS_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
_WELL_AFTER_S: Final = 60.0
_STOP_S: Final = 6.0
_STARTING_AT_ONCE: Final = 2
_MOST_TROUBLES: Final = 5
"""After so many in a row, one more thing that happens to Spark itself is taken for something that will not pass."""
_TRACEBACK: Final = "PENSTOCK_TRACEBACK"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Groups are few and batches small: a task more costs more than it saves.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.stopTimeout": "5s",
    # How long Java and Python wait for each other to open a connection: a busy machine needs more than the usual 15 s.
    "spark.python.authenticate.socketTimeout": "60s",
    # What ends a query is told by whoever runs it, once and in one line.
    "spark.log.level": "FATAL",
}
_LOCAL: Final = {
    # Half of the processor time of the first minutes went into compiling code for hours that never came.
    # A batch that is interrupted is recognised by a regular expression that goes as deep as the message is long.
    # The heap is as large as it may be from the start: one that grows when a full collection finds much, by and by
    # takes that too, and looks as one that leaks.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xss16m"
    " -XX:MinHeapFreeRatio=95 -XX:MaxHeapFreeRatio=99",
    "spark.driver.memory": "768m",
    # What a user interface would show is kept in the heap also where there is none: a thousand executions with their
    # plans, which six pipelines fill within ten minutes, and then go on replacing in the old generation.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.python.daemon.module": "penstock.spark.worker_daemon",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def settings_for(master: str | None) -> dict[str, str]:
    """What such a session is set to. Of Spark elsewhere, those who run it decide how much it keeps and uses."""
    return {**_SETTINGS, **(_LOCAL if _is_local(master) else {})}


def _is_local(master: str | None) -> bool:
    return master is None or master.startswith("local")


def pipeline_session(
    master: str | None = None, config: Mapping[str, str] | None = None, console: ConsoleOutput | None = None
) -> SparkSession:
    """A session for streams of small batches. Raises NoJava, MissingDependency."""
    from penstock.spark.session import session

    if _is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The run shows its lag itself: a listener costs a fifth of such a batch.
    chosen = {**settings_for(master), **queries.pool_settings(), **(config or {})}
    spark = session("penstock pipelines", master=master, config=chosen, visible_lag=False, console=console)
    memory.give_back()
    return spark


class PipelinesRun:
    """Start it once; stop it from any thread."""

    def __init__(
        self,
        spark: SparkSession,
        pipelines: Sequence[Pipeline],
        cluster: Cluster,
        warehouse_uri: str,
        *,
        told: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._cluster = cluster
        self._warehouse_uri = warehouse_uri
        self._told = told
        self._outputs = Outputs(cluster)
        self._lag = LagWatch(cluster)
        self._members: dict[str, list[Member]] = {}
        self._pipelines = {pipeline.name: pipeline for pipeline in pipelines}
        self._folders = {name: PipelineFolder(warehouse_uri, name) for name in self._pipelines}
        self._statuses = {name: PipelineStatus(name=name) for name in self._pipelines}
        self._spark = spark
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="penstock-pipelines", daemon=True)
        self.failure: PenstockError | None = None

    # ------------------------------------------------------------------------------------------ from outside

    def start(self) -> None:
        """Returns when all queries are started. Raises PipelineRuns, and what keeps one from starting."""
        self._claim()
        try:
            self._await_cluster()
            for name, pipeline in self._pipelines.items():
                self._members[name] = self._members_of(pipeline)
            urgent_first = sorted(self._members, key=lambda name: self._pipelines[name].trigger)
            every = [member for name in urgent_first for member in self._members[name]]
            with ThreadPoolExecutor(_STARTING_AT_ONCE) as pool:
                for started in [pool.submit(self._start_one, member) for member in every]:
                    started.result()
        except BaseException as error:
            self.failure = in_one_line(error, "starting")
            self._tell_all(self.failure)
            self._finish()
            raise self.failure from error
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it has ended; whether it has."""
        return self._ended.wait(timeout_s)

    def ask_to_stop(self) -> None:
        """Returns at once; from a signal's handler too."""
        self._stop.set()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ask for the end and wait for it; whether it came in time."""
        self._stop.set()
        if self._thread.is_alive():
            return self._ended.wait(timeout_s)
        if not self._ended.is_set():
            self._finish()
        return True

    def status(self) -> list[PipelineStatus]:
        """How each pipeline is, as of now."""
        with self._lock:
            return [self._current(name) for name in self._pipelines]

    # ------------------------------------------------------------------------------------------ starting

    def _claim(self) -> None:
        for name, folder in self._folders.items():
            other = folder.read()
            mine = os.getpid(), socket.gethostname()
            if other is not None and other.is_alive and (other.pid, other.host) != mine:
                raise PipelineRuns(
                    f"{name} runs already, as process {other.pid} of {other.host}",
                    hint=f"`penstock pipeline stop {name}` stops it",
                )
        for name, folder in self._folders.items():
            folder.forget_stop()
            started = PipelineStatus(
                name=name, pid=os.getpid(), host=socket.gethostname(), started_ms=time.time_ns() // 1_000_000
            )
            self._statuses[name] = started
            folder.write(self._current(name))

    def _await_cluster(self) -> None:
        """Topics are there when this returns; a cluster that is away is waited for."""
        failures = 0
        while not self._stop.is_set():
            try:
                with self._cluster.admin("penstock-pipelines") as admin:
                    events = [kind.topic for one in self._pipelines.values() for kind in one.reads]
                    outputs = [topic for one in self._pipelines.values() for topic in one.output_topics]
                    ensure_topics(admin, events, outputs, PARTITIONS)
                return
            except PenstockError as error:
                if not error.retriable:
                    raise
                wait_s = min(_LONGEST_WAIT_S, 2.0**failures)
                failures += 1
                self._told(_retrying(error, wait_s))
                self._stop.wait(wait_s)
        raise PipelineError("it was stopped before a broker was found")

    def _start_one(self, member: Member) -> None:
        """Each source is a process that takes a second to start, and Spark waits ten for it: few start at once. What
        may pass is tried again as later on, while the others run."""
        if self._stop.is_set():
            return
        try:
            member.start()
        except Exception as error:
            failure = in_one_line(error, member.name)
            if failure.retriable:
                member.failed(failure)
                return
            if failure is error:
                raise
            raise failure from error
        member.await_sources(time.monotonic() + _LONGEST_WAIT_S)

    def _members_of(self, pipeline: Pipeline) -> list[Member]:
        members: list[Member] = [
            RowsQuery(self._spark, pipeline, rows, self._cluster, self._warehouse_uri, self._outputs, self._lag)
            for rows in pipeline.rows
        ]
        if pipeline.loads or pipeline.reports:
            from penstock.activity.pipelines.engine.loads import LoadsAndReports

            members.append(
                LoadsAndReports(
                    self._spark, pipeline, self._cluster, self._warehouse_uri, self._outputs, self._told, self._lag
                )
            )
        return members

    # ------------------------------------------------------------------------------------------ watching

    def _watch(self) -> None:
        written_s = 0.0
        try:
            while not self._stop.wait(_LOOK_S) and self.failure is None and any(self._members.values()):
                for name in list(self._members):
                    self._look_at(name)
                if time.monotonic() - written_s >= _STATUS_S:
                    written_s = time.monotonic()
                    self._write()
        except Exception as error:  # noqa: BLE001 - the run ends with whatever it is
            self.failure = in_one_line(error, "watching")
            self._tell_all(self.failure)
        self._finish()

    def _look_at(self, name: str) -> None:
        if self._folders[name].is_asked_to_stop():
            self._told(f"{name}: stopping, as was asked for")
            self._end(name)
            return
        for member in self._members[name]:
            error = member.failure()
            if error is None:
                if member.failures and member.well_for_s() > _WELL_AFTER_S:
                    member.failures = member.troubles = 0
                continue
            if not error.retriable or _is_too_much(member, error):
                self._tell_all(error)
                self.failure = error
                return
            self._retry(member, error)

    def _retry(self, member: Member, error: PenstockError) -> None:
        now_s = time.monotonic()
        if member.retry_at_s is None:
            wait_s = min(_LONGEST_WAIT_S, 2.0**member.failures)
            member.failures += 1
            member.troubles += isinstance(error, SparkTrouble)
            member.retry_at_s = now_s + wait_s
            self._tell_all(error)
            self._told(_retrying(error, wait_s))
        elif now_s >= member.retry_at_s and self._starting() < _STARTING_AT_ONCE:
            member.retry_at_s = None
            try:
                member.start()
            except Exception as failed:  # noqa: BLE001 - looked at as any other failure of the member
                member.failed(in_one_line(failed, member.name))

    def _starting(self) -> int:
        return sum(member.is_starting() for each in self._members.values() for member in each)

    def _tell_all(self, error: PenstockError) -> None:
        if os.environ.get(_TRACEBACK):
            for text in full_details(error):
                self._told(text)

    def _end(self, name: str) -> None:
        """One pipeline ends while others go on."""
        self._stop_members(self._members.pop(name))
        self._folders[name].forget_stop()
        self._statuses[name].state = status.STOPPED
        self._folders[name].write(self._current(name))

    # ------------------------------------------------------------------------------------------ ending

    def _stop_members(self, members: Sequence[Member]) -> None:
        if not members:
            return
        deadline_s = time.monotonic() + _STOP_S
        with ThreadPoolExecutor(len(members)) as pool:
            for done in [pool.submit(member.stop, deadline_s) for member in members]:
                done.result()

    def _finish(self) -> None:
        every = [member for members in self._members.values() for member in members]
        self._stop_members(every)
        self._outputs.close()
        self._lag.close()
        for name, folder in self._folders.items():
            if self._statuses[name].pid != os.getpid() or self._statuses[name].has_ended:
                continue
            self._statuses[name].state = status.STOPPED if self.failure is None else status.FAILED
            self._statuses[name].message = "" if self.failure is None else str(self.failure)
            folder.forget_stop()
            folder.write(self._current(name))
        self._ended.set()

    # ------------------------------------------------------------------------------------------ telling

    def _write(self) -> None:
        members = [member for each in self._members.values() for member in each]
        self._lag.look([member.positions() for member in members])
        for name in list(self._members):
            with self._lock:
                self._folders[name].write(self._current(name))

    def _current(self, name: str) -> PipelineStatus:
        one = self._statuses[name]
        one.updated_ms = time.time_ns() // 1_000_000
        members = self._members.get(name, [])
        if members:
            one.queries = [member.status() for member in members]
        if not one.has_ended:
            states = {query.state for query in one.queries}
            one.state = next((each for each in (status.WAITING, status.STARTING) if each in states), status.RUNNING)
            if not states:
                one.state = status.STARTING
        return one


def _is_too_much(member: Member, error: PenstockError) -> bool:
    """Whether what has just happened to Spark happened too often before."""
    is_new = member.retry_at_s is None
    return is_new and isinstance(error, SparkTrouble) and member.troubles >= _MOST_TROUBLES


def _retrying(error: PenstockError, wait_s: float) -> str:
    said = error.message.rstrip(".")
    return f"{said}{'' if said.endswith(('?', '!')) else '.'} Trying again in {wait_s:.0f} s"
