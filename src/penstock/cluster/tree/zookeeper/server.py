"""A ZooKeeper server as a process of this machine, from the jars of the pyspark package.

    ServerSettings("/data/zk", 2181)                                      standalone
    ServerSettings("/data/zk1", 2181, server_id=1, members=(...))         a member of an ensemble

Problems that can be known in advance (no Java, a missing jar, a port in use, a folder that is not writable) are
reported before the process is started, in one line with what to do. Jars are found by name without version: which
version is installed is pyspark's choice. On Linux the process does not outlive the one that started it. Everything here
blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final, NamedTuple

from penstock.cluster.errors import ZooKeeperNotStarted
from penstock.cluster.tree.zookeeper.ensemble import Condition, Health, ServerAddress, health_of
from penstock.runtime.java import JavaCommand, JavaMissing, find_java_command
from penstock.runtime.network import AddressInUse, CannotListen, PortReservation
from penstock.runtime.process import suspend

CONFIG_FILE: Final = "zookeeper.properties"
LOGGING_FILE: Final = "log4j2.properties"
ID_FILE: Final = "myid"
# The server and its logging.
JAR_NAMES: Final = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "metrics-core",
    "snappy-java",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
_ADVICE: Final = 'install them with pip install "penstock[spark]", or run your own ZooKeeper and set zookeeper.connect'
_MAX_ID: Final = 255
_MEMBERS_FORM: Final = "write id=host:peer-port:election-port for each server, as in 1=zk1:2888:3888,2=zk2:2888:3888"

_POLL_S: Final = 0.05
_STOP_TIMEOUT_S: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1
_SNAPSHOTS: Final = "version-2/snapshot.*"
_SNAPSHOT_TIMEOUT_S: Final = 5.0
_CLOCK_GRAIN_S: Final = 0.05  # file times may be behind by this much


# --- jars


class Jars(NamedTuple):
    paths: tuple[str, ...]
    version: str  # of ZooKeeper

    @property
    def class_path(self) -> str:
        return os.pathsep.join(self.paths)


def find_jars(folder: str | None = None) -> Jars:
    """The jars in `folder`, or in the pyspark package of this environment. ZooKeeperNotStarted."""
    where = _pyspark_folder() if folder is None else folder
    try:
        names = os.listdir(where)
    except OSError as error:
        raise ZooKeeperNotStarted(f"no jars in {where}: {error.strerror}", _ADVICE) from None
    found = {name: _newest(name, names) for name in JAR_NAMES}
    missing = [name for name, file in found.items() if file is None]
    if missing:
        raise ZooKeeperNotStarted(f"ZooKeeper's jars {', '.join(missing)} are not in {where}", _ADVICE)
    server = found["zookeeper"] or ""
    version = server.removeprefix("zookeeper-").removesuffix(".jar")
    return Jars(tuple(os.path.join(where, file) for file in found.values() if file is not None), version)


def _newest(name: str, files: Iterable[str]) -> str | None:
    pattern = re.compile(rf"{re.escape(name)}-(\d+(?:\.\d+)*)[\w.-]*\.jar")
    versions = [
        (tuple(map(int, match[1].split("."))), file) for file in files if (match := pattern.fullmatch(file)) is not None
    ]
    return max(versions)[1] if versions else None


def _pyspark_folder() -> str:
    try:
        spec = find_spec("pyspark")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ZooKeeperNotStarted("ZooKeeper's jars are in the pyspark package, which is not installed", _ADVICE)
    return os.path.join(spec.submodule_search_locations[0], "jars")


# --- settings


class Member(NamedTuple):
    """A server of an ensemble: its address for the other servers."""

    server_id: int
    host: str
    peer_port: int
    election_port: int


@dataclass(frozen=True, slots=True)
class ServerSettings:
    data_dir: str
    port: int
    host: str = "127.0.0.1"  # where clients connect; "" is every address
    server_id: int = 0
    members: tuple[Member, ...] = ()
    tick_ms: int = 2000  # a session timeout is 2 to 20 ticks
    heap_mb: int = 128
    log_level: str = "warning"


def parse_members(text: str) -> tuple[Member, ...]:
    """ "1=zk1:2888:3888,2=zk2:2888:3888,...". ZooKeeperNotStarted."""
    members = tuple(_member(part.strip()) for part in text.split(","))
    if len({member.server_id for member in members}) < len(members):
        raise ZooKeeperNotStarted(f"two servers of {text!r} have the same id", _MEMBERS_FORM)
    return members


def _member(part: str) -> Member:
    number, _, address = part.partition("=")
    host, _, ports = address.rpartition(":")
    host, _, peer = host.rpartition(":")
    ports_given = [text for text in (peer, ports) if text.isascii() and text.isdigit() and 0 < int(text) < 65_536]
    if not (number.isascii() and number.isdigit() and 0 < int(number) <= _MAX_ID) or len(ports_given) < 2 or not host:
        raise ZooKeeperNotStarted(f"{part!r} is not a server of an ensemble (ids are 1 to {_MAX_ID})", _MEMBERS_FORM)
    return Member(int(number), host, int(peer), int(ports))


def check_settings(settings: ServerSettings) -> None:
    """ZooKeeperNotStarted."""
    if not settings.members:
        return
    if settings.server_id not in [member.server_id for member in settings.members]:
        ids = ", ".join(str(member.server_id) for member in settings.members)
        raise ZooKeeperNotStarted(
            f"server id {settings.server_id} is not in the ensemble, which has {ids}", "set the id with --id"
        )


def main_class(settings: ServerSettings) -> str:
    if settings.members:
        return "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return "org.apache.zookeeper.server.ZooKeeperServerMain"


def config_text(settings: ServerSettings) -> str:
    lines = {
        "dataDir": settings.data_dir,
        "clientPort": str(settings.port),
        "tickTime": str(settings.tick_ms),
        "initLimit": "10",
        "syncLimit": "5",
        # All brokers of a local cluster have one address.
        "maxClientCnxns": "0",
        "autopurge.snapRetainCount": "3",
        "autopurge.purgeInterval": "24",
        # It needs Jetty, which pyspark does not have; four-letter commands return the same.
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok,srvr,stat,mntr,conf,isro,cons",
    }
    if settings.host:
        lines["clientPortAddress"] = settings.host
    for member in settings.members:
        lines[f"server.{member.server_id}"] = f"{member.host}:{member.peer_port}:{member.election_port}"
    return "".join(f"{name}={_escaped(value)}\n" for name, value in lines.items())


def logging_text(level: str) -> str:
    """One line per event, in the format of a broker's log."""
    pattern = (
        "%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %-7p{WARN=WARNING} zookeeper.%c{1}: %enc{%m}{CRLF}"
        "%notEmpty{ | %ex{8}{separator(, )}}%n"
    )
    lines = {
        "status": "error",
        "appender.lines.type": "Console",
        "appender.lines.name": "lines",
        "appender.lines.target": "SYSTEM_ERR",
        "appender.lines.layout.type": "PatternLayout",
        "appender.lines.layout.alwaysWriteExceptions": "false",
        "appender.lines.layout.pattern": pattern,
        "rootLogger.level": {"warning": "warn"}.get(level, level),
        "rootLogger.appenderRef.lines.ref": "lines",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def _escaped(value: str) -> str:
    """The text escaped for a Java properties file, which is Latin-1."""
    return "".join(
        "\\\\" if character == "\\" else character if character.isascii() else _java_escape(character)
        for character in value
    )


def _java_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


# --- the process


class ZooKeeperProcess:
    """A server process with these settings."""

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
        """The address as seen from this machine."""
        host = self.settings.host
        return ServerAddress("127.0.0.1" if host in ("", "0.0.0.0", "::") else host, self.settings.port)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, output: IO[bytes] | None = None) -> None:
        """Start the process; see `wait_until_serving`. Its log goes to `output`, or standard error.

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
            # Ctrl-C goes to the parent only, which then stops this process.
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
                raise ZooKeeperNotStarted(f"ZooKeeper exited with code {code}", "see its log")
            if self._can_be_probed():
                health = self.health()
                if health.condition is Condition.SERVING:
                    return health
            time.sleep(_POLL_S)
        if health.condition is Condition.NO_QUORUM:
            advice = "start more than half of its servers, with the same --servers"
            raise ZooKeeperNotStarted(f"the ensemble of {self.address} has no quorum yet", advice)
        raise ZooKeeperNotStarted(f"ZooKeeper at {self.address} is not serving after {timeout_s:.0f} s", "see its log")

    def _can_be_probed(self) -> bool:
        """Whether a starting server can be probed.

        A standalone server listens before it has loaded its data. A connection that ends before that, as each probe
        does, makes it log a NullPointerException. When its data is loaded, it writes a snapshot.
        """
        if self.settings.members or time.time() - self._started_s > _SNAPSHOT_TIMEOUT_S:
            return True
        snapshots = Path(self.settings.data_dir).glob(_SNAPSHOTS)
        return any(each.stat().st_mtime >= self._started_s - _CLOCK_GRAIN_S for each in snapshots)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code, None if it is still running."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def stop(self) -> None:
        """SIGTERM; what it answered is on its disk in any case."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as in a crash."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it neither answers nor closes its connections."""
        if self._process is not None:
            suspend(self._process)

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
        """Send a signal, if the process is running."""
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
            f"{error.address} is in use by another process",
            "stop that process (`ss -ltnp` lists it), or use another port",
        ) from None
    except CannotListen as error:
        raise ZooKeeperNotStarted(
            str(error), "use an address of this machine and a port that this user may open"
        ) from None


def _write_files(settings: ServerSettings) -> Path:
    folder = Path(settings.data_dir)
    try:
        # Snapshots hold what only some sessions may read.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(config_text(settings), encoding="latin-1")
        (folder / LOGGING_FILE).write_text(logging_text(settings.log_level), encoding="latin-1")
        if settings.members:
            (folder / ID_FILE).write_text(f"{settings.server_id}\n", encoding="ascii")
    except OSError as error:
        problem = f"data folder {folder} cannot be used: {error.strerror or error}"
        raise ZooKeeperNotStarted(problem, "make it writable for this user, or use another folder") from None
    return folder


def _dies_with_parent() -> Callable[[], None] | None:
    # For the kernel the parent is the thread, so only the main thread can request this.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    library = ctypes.CDLL(None)
    parent = os.getpid()

    def ask() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
