"""A Spark standalone cluster from the pyspark wheel: a master and two workers as processes of this machine, on its
loopback or in places of their own.

A process is ready when its output says so; nothing waits for a fixed time. Ports are free ones, folders belong to the
test, and everything that is started here is stopped here. Executors are children of their worker, so that they can be
found and killed without asking Spark.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from benchmarks.faults.namespaces import LoopbackPlace, Place
from tests.timeouts import PATIENCE_S

from penstock.spark.session import prepare, spark_home

HOST = "127.0.0.1"
LOOPBACK = LoopbackPlace(set())
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Executors small and of one core, two for an application, one on each worker.
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
}
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Daemon:
    """A process of Spark and its output; the unread part is kept for failure messages."""

    def __init__(self, command: list[str], environment: dict[str, str], cwd: Path | None = None) -> None:
        self._said: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._changed:
                self._said.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def said(self) -> str:
        """The last of what it said."""
        with self._changed:
            return "".join(self._said[-60:])

    def hears(self, pattern: str) -> re.Match[str]:
        """What it says, as soon as it says it."""
        wanted, found = re.compile(pattern), None
        looked_at = 0

        def looked() -> bool:
            nonlocal looked_at, found
            while found is None and looked_at < len(self._said):
                found = wanted.search(self._said[looked_at])
                looked_at += 1
            return found is not None or self._ended

        with self._changed:
            self._changed.wait_for(looked, PATIENCE_S)
            assert found is not None, f"{pattern!r} was never said:\n{''.join(self._said[-30:])}"
            return found

    def end(self) -> None:
        """With everything that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if self.process.stderr is not None:
            self.process.stderr.close()


class Standalone:
    """Master and workers; `url` is what --master takes. The master is at `host`, each worker in a place."""

    def __init__(self, folder: Path, places: Sequence[Place] = (LOOPBACK, LOOPBACK), host: str = HOST) -> None:
        self.work = folder / "work"
        self._daemons: list[Daemon] = []
        try:
            master = self._started(host, _MASTER, "--host", host, "--port", "0", "--webui-port", "0")
            port = master.hears(r"'sparkMaster' on port (\d+)")[1]
            self.url = f"spark://{host}:{port}"
            self.workers = []
            for number, place in enumerate(places):
                with place.enter():
                    worker = self._started(
                        place.address, _WORKER, "--host", place.address, "--cores", "4", "--memory", "4g",
                        "--webui-port", "0", "--work-dir", str(self.work / f"worker-{number}"), self.url,
                    )  # fmt: skip
                self.workers.append(worker)
            for worker in self.workers:
                worker.hears("Successfully registered with master")
        except BaseException:
            self.stop()
            raise

    def _started(self, host: str, name: str, *arguments: str) -> Daemon:
        environment = {**os.environ}
        environment.pop("PYTHONPATH", None)
        prepare(environment)
        environment |= {
            "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_START} -Dspark.master.rest.enabled=false",
            "SPARK_LAUNCHER_OPTS": QUICK_START, "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        command = [str(spark_home() / "bin" / "spark-class"), name, *arguments]
        daemon = Daemon(command, environment)
        self._daemons.append(daemon)
        return daemon

    def executors(self, application: str) -> list[int]:
        """The processes of an application's executors, by its name in the folders of the workers or its id."""
        parents = {worker.process.pid for worker in self.workers}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
                    if parent in parents and _EXECUTOR in command and application in command:
                        found.append(int(entry.name))
        return sorted(found)

    def stop(self) -> None:
        # The workers first: they would wait for another master.
        for daemon in reversed(self._daemons):
            daemon.end()
        self._daemons.clear()
