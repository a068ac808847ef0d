"""A real ZooKeeper server as a process of this machine, from the jars of the pyspark package.

Noun: a `ZooKeeperProcess`: started, serving, stopped or killed; it can be started again on the same data.

Rule: what can be known to be wrong beforehand (no Java, a jar missing, a port in use, a folder that cannot be written
to) is said before a process is started, in one line with what to do. The process does not outlive the one that started
it, where the system can promise that (Linux). Everything here blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from penstock.cluster.zookeeper_address import ServerAddress
from penstock.cluster.zookeeper_diagnosis import Condition, Health, health_of
from penstock.cluster.zookeeper_errors import ZooKeeperNotStarted
from penstock.cluster.zookeeper_jars import Jars, find_jars
from penstock.cluster.zookeeper_settings import (
    CONFIG_FILE,
    ID_FILE,
    LOGGING_FILE,
    ServerSettings,
    check_settings,
    config_text,
    logging_text,
    main_class,
)
from penstock.runtime.held_process import hold
from penstock.runtime.java import JavaCommand, JavaMissing, find_java_command
from penstock.runtime.network import AddressInUse, CannotListen
from penstock.runtime.port_reservation import PortReservation

_POLL_S: Final = 0.05
_STOP_TIMEOUT_S: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1
_SNAPSHOTS: Final = "version-2/snapshot.*"
_SNAPSHOT_PATIENCE_S: Final = 5.0
_CLOCK_GRAIN_S: Final = 0.05  # file times may be that much behind


class ZooKeeperProcess:
    """A server with these settings."""

    def __init__(self, settings: ServerSettings) -> None:
        """ZooKeeperNotStarted."""
        check_settings(settings)
        self.settings = settings
        self.jars: Jars = find_jars()
        self.java: JavaCommand = _find_java()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0

    @property
    def address(self) -> ServerAddress:
        """As seen from this machine."""
        host = self.settings.host
        return ServerAddress("127.0.0.1" if host in ("", "0.0.0.0", "::") else host, self.settings.port)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, output: IO[bytes] | None = None) -> None:
        """Begin; `wait_until_serving` tells when it is done. Its log goes to `output`, or standard error.

        ZooKeeperNotStarted.
        """
        if self.is_running:
            return
        _check_port(self.settings)
        folder = _write_files(self.settings)
        self._started_s = time.time()
        self._process = subprocess.Popen(
            self._command(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            # Ctrl-C is for whoever started this, who then stops it.
            start_new_session=True,
            preexec_fn=_dies_with_parent(),
        )

    def _command(self, folder: Path) -> list[str]:
        return [
            self.java.path,
            f"-Xmx{self.settings.heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            f"-Dlog4j2.configurationFile={folder / LOGGING_FILE}",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-cp",
            self.jars.class_path,
            main_class(self.settings),
            str(folder / CONFIG_FILE),
        ]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def health(self, timeout_s: float = 2.0) -> Health:
        return health_of(self.address, timeout_s)

    def wait_until_serving(self, timeout_s: float = 30.0, *, give_up: Callable[[], bool] = lambda: False) -> Health:
        """ZooKeeperNotStarted if it ends, does not serve in time, or `give_up` says so."""
        deadline = time.monotonic() + timeout_s
        health = Health(Condition.REFUSED)
        while time.monotonic() < deadline and not give_up():
            if not self.is_running:
                code = None if self._process is None else self._process.returncode
                raise ZooKeeperNotStarted(f"ZooKeeper ended with exit code {code}", "its log says why")
            if self._may_be_asked():
                health = self.health()
                if health.condition is Condition.SERVING:
                    return health
            time.sleep(_POLL_S)
        if health.condition is Condition.NO_QUORUM:
            advice = "start more than half of its servers, with the same --servers"
            raise ZooKeeperNotStarted(f"the ensemble of {self.address} has no quorum yet", advice)
        raise ZooKeeperNotStarted(
            f"ZooKeeper does not serve {self.address} after {timeout_s:.0f} s", "its log says why"
        )

    def _may_be_asked(self) -> bool:
        """Whether a server that starts has come so far that a question does not upset it.

        One by itself listens before it has its data. A connection that ends until then, as each does that asked
        something, has it log a NullPointerException. With its data loaded it writes a snapshot, and that can be seen.
        """
        if self.settings.members or time.time() - self._started_s > _SNAPSHOT_PATIENCE_S:
            return True
        snapshots = Path(self.settings.data_dir).glob(_SNAPSHOTS)
        return any(each.stat().st_mtime >= self._started_s - _CLOCK_GRAIN_S for each in snapshots)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code, None if it runs still."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def stop(self) -> None:
        """Let it end by itself; what it answered is on its disk in any case."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a crash ends it."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Hold it as it is: it neither answers nor closes its connections."""
        if self._process is not None:
            hold(self._process)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self.send(number)
        self.send(signal.SIGCONT)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """A signal, if there is somebody to take it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def _find_java() -> JavaCommand:
    try:
        return find_java_command(wanted_by="ZooKeeper")
    except JavaMissing as missing:
        raise ZooKeeperNotStarted(missing.problem, missing.advice) from None


def _check_port(settings: ServerSettings) -> None:
    try:
        PortReservation(settings.host, settings.port).release()
    except AddressInUse as error:
        raise ZooKeeperNotStarted(
            f"{error.address} is in use: another process listens there",
            "stop that process (`ss -ltnp` names it), or choose another port",
        ) from None
    except CannotListen as error:
        raise ZooKeeperNotStarted(str(error), "give an address of this machine and a port that is allowed") from None


def _write_files(settings: ServerSettings) -> Path:
    folder = Path(settings.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(config_text(settings), encoding="latin-1")
        (folder / LOGGING_FILE).write_text(logging_text(settings.log_level), encoding="latin-1")
        if settings.members:
            (folder / ID_FILE).write_text(f"{settings.server_id}\n", encoding="ascii")
    except OSError as error:
        problem = f"data folder {folder} cannot be used: {error.strerror or error}"
        raise ZooKeeperNotStarted(problem, "make it one that this user can write to, or choose another") from None
    return folder


def _dies_with_parent() -> Callable[[], None] | None:
    # The system means the thread by "parent", so only the one that lasts as long as the process can ask for it.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    library = ctypes.CDLL(None)
    parent = os.getpid()

    def ask() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
