"""The Spark session of pipelines: settings for streams of small batches, scheduler pools, and a fast start.

Two pools: queries with a short trigger get one slot whenever they want it, so that an alert does not wait for the batch
of a ranking.

`FastSession` starts everything that takes time at once: the process that Spark's workers are forks of, and the JVM in a
thread, while the caller imports what it needs. Nothing here imports Arrow, Delta or a pipeline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.activity.pipelines.engine import memory
from penstock.client.serializers.base import load_optional

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.class_archive import ClassArchive
    from penstock.spark.fork_server import ForkServer
    from penstock.spark.session import ConsoleOutput

_log = logging.getLogger(__name__)

POOL_PROPERTY: Final = "spark.scheduler.pool"
URGENT_POOL: Final = "urgent"
USUAL_POOL: Final = "usual"
_URGENT_UP_TO: Final = timedelta(seconds=2)
_ALLOCATIONS: Final = f"""\
<?xml version="1.0"?>
<allocations>
  <pool name="{URGENT_POOL}"><schedulingMode>FAIR</schedulingMode><weight>4</weight><minShare>1</minShare></pool>
  <pool name="{USUAL_POOL}"><schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Groups are few and batches small: another task costs more than it saves.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.stopTimeout": "5s",
    # How long Java and Python wait for each other's connection: a busy machine needs more than the default of 15 s.
    "spark.python.authenticate.socketTimeout": "60s",
    # The run reports why a query ended, once and in one line.
    "spark.log.level": "FATAL",
}
_LOCAL: Final = {
    # TieredStopAtLevel: half of the CPU time of the first minutes went into JIT compilation for long runs.
    # Xss: Spark matches the message of an interrupted batch with a regular expression that recurses per character.
    # HeapFreeRatio: the heap has its full size from the start; one that grows slowly looks like a leak.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xss16m"
    " -XX:MinHeapFreeRatio=95 -XX:MaxHeapFreeRatio=99",
    "spark.driver.memory": "768m",
    # Spark keeps the data of its web UI in the heap even if the UI is off: by default a thousand executions with their
    # plans, which six pipelines fill within ten minutes.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.python.daemon.module": "penstock.spark.worker_daemon",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_ARCHIVE_AFTER_S: Final = 30.0
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def settings_for(master: str | None) -> dict[str, str]:
    """Settings for such a session. Memory settings apply only to local masters."""
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
    # The run publishes its lag itself: a listener costs a fifth of such a batch.
    chosen = {**settings_for(master), **pool_settings(), **(config or {})}
    spark = session("penstock pipelines", master=master, config=chosen, visible_lag=False, console=console)
    memory.limit_allocators()
    return spark


class FastSession:
    """A session that is being started. `start` returns at once; `session` waits for it; `close` ends everything."""

    def __init__(self, master: str | None = None) -> None:
        self._master = master
        self._console: ConsoleOutput | None = None
        self._server: ForkServer | None = None
        self._archive: ClassArchive | None = None
        self._has_tried = self._has_failed = False
        self._made: Future[SparkSession] = Future()
        self._lock = threading.Lock()
        self._is_closed = False
        self._environment: dict[str, str | None] = {}
        """What `start` has replaced."""

    @property
    def has_forked_workers(self) -> bool:
        """Whether Python workers are forks of one process, and start in milliseconds."""
        return self._server is not None

    def start(self) -> None:
        """Raises MissingDependency."""
        # Not in the thread: `close` must know of it.
        self._start_server()
        try:
            _import_pyspark()
        except BaseException:
            self.close()
            raise
        # A daemon: an error elsewhere ends the command without waiting for the JVM.
        threading.Thread(target=self._make, name="penstock-session", daemon=True).start()

    def session(self) -> SparkSession:
        """Raises NoJava, MissingDependency."""
        return self._made.result()

    def keep_archive(self, running_s: float) -> None:
        """Makes the archive of Java's classes for later starts, if there is none, once the run has settled."""
        archive = self._archive
        if archive is None or self._has_failed or archive.exists or running_s < _ARCHIVE_AFTER_S:
            return
        try:
            if self._has_tried:
                archive.finish()
                return
            self._has_tried = True
            system = self.session()._jvm.java.lang.System  # type: ignore[union-attr]
            archive.start_making(str(system.getProperty("java.class.path")))
        except Exception as error:  # noqa: BLE001 - a run does not end for what only later starts need
            self._has_failed = True
            _log.warning("no archive of Java's classes is made: error=%s", error)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        if self._console is not None:
            self._console.end()
        # One that is still being made is stopped by its thread, which nobody waits for.
        self._made.add_done_callback(_stop)
        if self._archive is not None:
            self._archive.close()
        if self._server is not None:
            self._server.close()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _start_server(self) -> None:
        """Workers are forks of one process, unless the user has chosen others."""
        from penstock.spark.environment import DRIVER_VARIABLE, VARIABLE, runs_own_workers

        if not runs_own_workers(self._master, os.environ):
            return
        from penstock.spark.fork_server import ForkServer

        try:
            server = ForkServer()
            try:
                server.start()
            except BaseException:
                server.close()
                raise
        except OSError as error:
            _log.warning("Spark starts a Python for each worker, and not forks: error=%s", error)
            return
        self._server = server
        for name in (VARIABLE, DRIVER_VARIABLE):
            self._environment[name] = os.environ.get(name)
            os.environ[name] = server.python

    def _make(self) -> None:
        try:
            from penstock.spark.session import ConsoleOutput

            options = {} if self._server is None else self._archive_options()
            with self._lock:
                if self._is_closed:
                    raise CancelledError
                self._console = ConsoleOutput()
            self._made.set_result(pipeline_session(self._master, options, self._console))
        except BaseException as error:  # noqa: BLE001 - raised by `session`
            self._made.set_exception(error)

    def _archive_options(self) -> dict[str, str]:
        from penstock.spark.class_archive import ClassArchive, archive_folder, can_be_in_options, java_command
        from penstock.spark.session import prepare, spark_home

        prepare(os.environ)  # sets JAVA_HOME where it is needed
        java = java_command(os.environ)
        folder = archive_folder(os.environ)
        if java is None or not can_be_in_options(folder):
            return {}
        archive = ClassArchive(folder, java, spark_home() / "jars")
        try:
            options = archive.java_options()
        except OSError:
            return {}  # a service without a writable home
        self._archive = archive
        return {_JAVA_OPTIONS: f"{_LOCAL[_JAVA_OPTIONS]} {options}"}


def _import_pyspark() -> None:
    """Import it before another thread does.

    Its modules import each other in circles. Of two threads that import it at the same time, each may get a module that
    the other has not finished ("cannot import name ... from partially initialized module").
    """
    load_optional("pyspark.sql.functions", "pyspark", "spark", "a pipeline")


def _stop(made: Future[SparkSession]) -> None:
    if made.exception() is None:
        # A signal to the process group has ended Spark too.
        with contextlib.suppress(Exception):
            made.result().stop()


# ---------------------------------------------------------------------------------------------- scheduler pools


def pool_of(trigger: timedelta) -> str:
    return URGENT_POOL if trigger <= _URGENT_UP_TO else USUAL_POOL


def pool_settings() -> dict[str, str]:
    """Settings for a session. The driver reads the pools from a file, which is written if needed."""
    return {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": Path(_pools_file()).as_uri()}


def _pools_file() -> Path:
    place = Path(tempfile.gettempdir(), f"penstock-pools-{os.getuid()}.xml")
    try:
        if place.read_text() == _ALLOCATIONS and place.stat().st_uid == os.getuid():
            return place
    except OSError:
        pass
    number, temporary = tempfile.mkstemp(suffix=".xml")
    with os.fdopen(number, "w") as file:
        file.write(_ALLOCATIONS)
    try:
        os.replace(temporary, place)
    except OSError:
        return Path(temporary)  # Another user owns a file of that name.
    return place
