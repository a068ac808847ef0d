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
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from penstock.activity.cluster import Cluster
from penstock.activity.pipelines.definition import Pipeline
from penstock.activity.pipelines.engine import status
from penstock.activity.pipelines.engine.micro_batch import Outputs, ensure_topics
from penstock.activity.pipelines.engine.queries import PARTITIONS, LagWatch, Member, RowsQuery
from penstock.activity.pipelines.engine.status import PipelineFolder, PipelineStatus
from penstock.activity.pipelines.errors import PipelineError, PipelineRuns, SparkTrouble, full_details, in_one_line
from penstock.client.errors import PenstockError
from penstock.spark.tables.delta import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOOK_S: Final = 0.25
_STATUS_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
_WELL_AFTER_S: Final = 60.0
_STOP_S: Final = 6.0
_STARTING_AT_ONCE: Final = 2
_FIRST_BATCH_S: Final = 5.0
_MOST_TROUBLES: Final = 5
"""After this many Spark failures in a row, the next one is treated as permanent."""
_TRACEBACK: Final = "PENSTOCK_TRACEBACK"
_FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
# Spark's usual one asks for symbolic links by running `readlink` eight times for every file of a checkpoint.
_LOCAL_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


class PipelinesRun:
    """A run of pipelines. Start it once; stop it from any thread.

    With `in_turn` a query is started when the first batches of those before it are done, or have taken five seconds. On
    one machine, where all first batches share its cores, the first results come sooner, and the last ones no later.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipelines: Sequence[Pipeline],
        cluster: Cluster,
        warehouse_uri: str,
        *,
        notify: Callable[[str], None] = lambda line: None,
        in_turn: bool = False,
    ) -> None:
        self._cluster = cluster
        self._warehouse_uri = warehouse_uri
        self._notify = notify
        self._outputs = Outputs(cluster)
        self._lag = LagWatch(cluster)
        self._members: dict[str, list[Member]] = {}
        self._pipelines = {pipeline.name: pipeline for pipeline in pipelines}
        self._folders = {name: PipelineFolder(warehouse_uri, name) for name in self._pipelines}
        self._statuses = {name: PipelineStatus(name=name) for name in self._pipelines}
        self._spark = spark
        self._in_turn = in_turn
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="penstock-pipelines", daemon=True)
        self.failure: PenstockError | None = None

    # ------------------------------------------------------------------------------------------ start and stop

    def start(self) -> None:
        """Returns when all queries are started. Raises PipelineRuns, or why a query cannot start."""
        self._claim_folders()
        try:
            self._wait_for_cluster()
            if Storage(self._warehouse_uri).is_local:
                self._spark.conf.set(_FILE_MANAGER, _LOCAL_FILES)
            for name, pipeline in self._pipelines.items():
                self._members[name] = self._members_of(pipeline)
            urgent_first = sorted(self._members, key=lambda name: self._pipelines[name].trigger)
            every = [(name, member) for name in urgent_first for member in self._members[name]]
            self._start_all(every)
        except BaseException as error:
            self.failure = in_one_line(error, "starting")
            self._notify_details(self.failure)
            self._finish()
            raise self.failure from error
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the run has ended. Returns whether it has."""
        return self._ended.wait(timeout_s)

    def request_stop(self) -> None:
        """Asks the run to stop. Does not block; safe in a signal handler."""
        self._stop.set()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Stops the run. Returns whether it ended in time."""
        self._stop.set()
        if self._thread.is_alive():
            return self._ended.wait(timeout_s)
        if not self._ended.is_set():
            self._finish()
        return True

    def status(self) -> list[PipelineStatus]:
        """The current status of each pipeline."""
        with self._lock:
            return [self._current(name) for name in self._pipelines]

    # ------------------------------------------------------------------------------------------ starting

    def _claim_folders(self) -> None:
        for name, folder in self._folders.items():
            other = folder.read()
            mine = os.getpid(), socket.gethostname()
            if other is not None and other.is_alive and (other.pid, other.host) != mine:
                raise PipelineRuns(
                    f"{name} is already running as process {other.pid} on {other.host}",
                    hint=f"Stop it with `penstock pipeline stop {name}`",
                )
        for name, folder in self._folders.items():
            folder.clear_stop_request()
            started = PipelineStatus(
                name=name, pid=os.getpid(), host=socket.gethostname(), started_ms=time.time_ns() // 1_000_000
            )
            self._statuses[name] = started
            folder.write(self._current(name))

    def _wait_for_cluster(self) -> None:
        """Creates missing topics; waits for an unreachable cluster."""
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
                self._notify(_retry_text(error, wait_s))
                self._stop.wait(wait_s)
        raise PipelineError("stopped before a broker was reachable")

    def _start_all(self, every: Sequence[tuple[str, Member]]) -> None:
        """Starts members until all are started, the run is to stop, or one raises."""
        pool = ThreadPoolExecutor(_STARTING_AT_ONCE)
        try:
            left = {pool.submit(self._start_one, *each) for each in every}
            while left:
                # With a time-out: a handler of a signal that another thread got runs only between two waits.
                done, left = wait(left, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
                for started in done:
                    started.result()
        except BaseException:
            self._stop.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _start_one(self, name: str, member: Member) -> None:
        """Starts one member. Few start at once: each source is a process, which takes a second to start unless it is a
        fork, and Spark waits ten seconds for it. Retriable failures are retried while the others run."""
        if self._stop.is_set():
            return
        try:
            member.start()
        except Exception as error:
            failure = in_one_line(error, member.name)
            if failure.retriable:
                member.failed(failure)
                return
            self._stop.set()  # those that wait need not start
            if failure is error:
                raise
            raise failure from error
        self._write_status(name)
        member.await_sources(time.monotonic() + _LONGEST_WAIT_S, self._stop)
        if self._in_turn:
            member.await_first_batch(time.monotonic() + _FIRST_BATCH_S, self._stop)

    def _members_of(self, pipeline: Pipeline) -> list[Member]:
        members: list[Member] = [
            RowsQuery(self._spark, pipeline, rows, self._cluster, self._warehouse_uri, self._outputs, self._lag)
            for rows in pipeline.rows
        ]
        if pipeline.loads or pipeline.reports:
            from penstock.activity.pipelines.engine.loads import LoadsAndReports

            members.append(
                LoadsAndReports(
                    self._spark, pipeline, self._cluster, self._warehouse_uri, self._outputs, self._notify, self._lag
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
        except Exception as error:  # noqa: BLE001 - any error ends the run
            self.failure = in_one_line(error, "watching")
            self._notify_details(self.failure)
        self._finish()

    def _look_at(self, name: str) -> None:
        if self._folders[name].is_stop_requested():
            self._notify(f"{name}: stopping on request")
            self._end(name)
            return
        for member in self._members[name]:
            error = member.failure()
            if error is None:
                if member.failures and member.well_for_s() > _WELL_AFTER_S:
                    member.failures = member.troubles = 0
                continue
            if not error.retriable or _fails_too_often(member, error):
                self._notify_details(error)
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
            self._notify_details(error)
            self._notify(_retry_text(error, wait_s))
        elif now_s >= member.retry_at_s and self._starting() < _STARTING_AT_ONCE:
            member.retry_at_s = None
            try:
                member.start()
            except Exception as failed:  # noqa: BLE001 - handled like any other failure of the member
                member.failed(in_one_line(failed, member.name))

    def _starting(self) -> int:
        return sum(member.is_starting() for each in self._members.values() for member in each)

    def _notify_details(self, error: PenstockError) -> None:
        if os.environ.get(_TRACEBACK):
            for text in full_details(error):
                self._notify(text)

    def _end(self, name: str) -> None:
        """Ends one pipeline while others continue."""
        self._stop_members(self._members.pop(name))
        self._folders[name].clear_stop_request()
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
            folder.clear_stop_request()
            folder.write(self._current(name))
        self._ended.set()

    # ------------------------------------------------------------------------------------------ status

    def _write(self) -> None:
        members = [member for each in self._members.values() for member in each]
        self._lag.look([member.positions() for member in members])
        for name in list(self._members):
            self._write_status(name)

    def _write_status(self, name: str) -> None:
        with self._lock:
            self._folders[name].write(self._current(name))

    def _current(self, name: str) -> PipelineStatus:
        one = self._statuses[name]
        one.updated_ms = time.time_ns() // 1_000_000
        members = self._members.get(name, [])
        if members:
            one.queries = [member.status() for member in members if member.has_started]
        if not one.has_ended:
            states = {query.state for query in one.queries}
            one.state = next((each for each in (status.WAITING, status.STARTING) if each in states), status.RUNNING)
            if not states:
                one.state = status.STARTING
        return one


def _fails_too_often(member: Member, error: PenstockError) -> bool:
    """Whether Spark itself has failed too often in a row."""
    is_new = member.retry_at_s is None
    return is_new and isinstance(error, SparkTrouble) and member.troubles >= _MOST_TROUBLES


def _retry_text(error: PenstockError, wait_s: float) -> str:
    reason = error.message.rstrip(".")
    return f"{reason}{'' if reason.endswith(('?', '!')) else '.'} Trying again in {wait_s:.0f} s"
