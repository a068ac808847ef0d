"""A real ZooKeeper server or ensemble for the duration of a block.

    with ZooKeeperServer() as server:
        settings = {"zookeeper.connect": server.connect}

    with ZooKeeperEnsemble(3) as ensemble:
        ensemble.leader().kill()

Servers run as processes, from the jars of the pyspark package, on free loopback ports. Their data is in a temporary
folder unless one is given. Leaving the block stops the processes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from penstock.cluster.tree.zookeeper.server import Member, ServerSettings, ZooKeeperProcess
from penstock.runtime.network import PortReservation

_HOST: Final = "127.0.0.1"
_LOG_FILE: Final = "zookeeper.log"
_TICK_MS: Final = 500  # allows session timeouts from 1 s, for tests that wait for an expiry
_POLL_S: Final = 0.05
_START_TIMEOUT_S: Final = 120.0  # test machines are busy


class _Folder:
    """The given folder, or a temporary one that is removed."""

    def __init__(self, given: str | None) -> None:
        self.path = Path(given or tempfile.mkdtemp(prefix="penstock-zookeeper-"))
        self._is_temporary = given is None

    def remove(self) -> None:
        if self._is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)


class _Ports:
    """Loopback ports, reserved for the lifetime of this object.

    The reserving sockets are bound but do not listen, so a server can listen on the same ports, stop, and listen again.
    """

    def __init__(self, count: int) -> None:
        reserved = [PortReservation(_HOST, 0) for _ in range(count)]
        self.numbers = [each.port for each in reserved]
        self.release = weakref.finalize(self, _release, reserved)


def _release(reserved: Sequence[PortReservation]) -> None:
    for each in reserved:
        each.release()


class ZooKeeperServer:
    """One server. Its log is in its data folder."""

    def __init__(self, data_dir: str | None = None, *, port: int = 0, tick_ms: int = _TICK_MS) -> None:
        self._folder = _Folder(data_dir)
        self.data_dir = str(self._folder.path)
        self._ports = _Ports(0 if port else 1)
        settings = ServerSettings(self.data_dir, port or self._ports.numbers[0], tick_ms=tick_ms)
        self._process = _LoggedProcess(settings)

    @property
    def connect(self) -> str:
        """The value for zookeeper.connect."""
        return str(self._process.server.address)

    @property
    def port(self) -> int:
        return self._process.server.settings.port

    @property
    def is_running(self) -> bool:
        return self._process.server.is_running

    def start(self) -> ZooKeeperServer:
        """Start the server; after `stop` or `kill`, with the same data. Raises ZooKeeperNotStarted."""
        self._process.start()
        try:
            self._process.server.wait_until_serving(_START_TIMEOUT_S)
        except BaseException:
            self._process.server.kill()
            raise
        return self

    def stop(self) -> None:
        self._process.server.stop()

    def kill(self) -> None:
        self._process.server.kill()

    def pause(self) -> None:
        self._process.server.pause()

    def resume(self) -> None:
        self._process.server.resume()

    def __enter__(self) -> ZooKeeperServer:
        try:
            return self.start()
        except BaseException:
            self._folder.remove()
            self._ports.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.remove()
        self._ports.release()


class ZooKeeperEnsemble:
    """An ensemble; `servers` are numbered from 0."""

    def __init__(self, size: int = 3, data_dir: str | None = None, *, tick_ms: int = _TICK_MS) -> None:
        self._folder = _Folder(data_dir)
        self._ports = _Ports(3 * size)
        ports = self._ports.numbers
        members = tuple(Member(at + 1, _HOST, ports[size + at], ports[2 * size + at]) for at in range(size))
        self._processes = [
            _LoggedProcess(
                ServerSettings(
                    str(self._folder.path / str(member.server_id)),
                    ports[at],
                    server_id=member.server_id,
                    members=members,
                    tick_ms=tick_ms,
                )
            )
            for at, member in enumerate(members)
        ]

    @property
    def servers(self) -> Sequence[ZooKeeperProcess]:
        return [process.server for process in self._processes]

    @property
    def connect(self) -> str:
        return ",".join(str(server.address) for server in self.servers)

    def start(self) -> ZooKeeperEnsemble:
        """Start the servers that are not running. Raises ZooKeeperNotStarted."""
        try:
            for process in self._processes:
                process.start()
            for server in self.servers:
                server.wait_until_serving(_START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        return self

    def leader(self, timeout_s: float = _START_TIMEOUT_S) -> ZooKeeperProcess:
        """Wait for a leader. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.is_running and server.health().mode == "leader":
                    return server
            time.sleep(_POLL_S)
        raise TimeoutError("the ensemble has no leader")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def __enter__(self) -> ZooKeeperEnsemble:
        try:
            return self.start()
        except BaseException:
            self._folder.remove()
            self._ports.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.remove()
        self._ports.release()


class _LoggedProcess:
    """A server whose log goes to a file in its folder."""

    def __init__(self, settings: ServerSettings) -> None:
        self.server = ZooKeeperProcess(settings)

    def start(self) -> None:
        folder = Path(self.server.settings.data_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / _LOG_FILE, "ab") as log:
            self.server.start(output=log)
