"""A broker in its own processes, what the kernel says of them, and its topics.

A broker has started when it answers a request, not when its port is open. Its CPU and memory are those of everything
that has to run for it, ZooKeeper included.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.wire.framing import encode_request
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.api_versions import ApiVersionsRequest

NO_CONFIGS: Mapping[str, str] = MappingProxyType({})
_PATIENCE_S = 60.0


class Topics(Protocol):
    def make(self, name: str, configs: Mapping[str, str] = NO_CONFIGS, partitions: int = 1) -> None: ...

    def delete(self, name: str) -> None: ...


class AdminTopics:
    """By requests for it, which every broker of the last years answers."""

    def __init__(self, address: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": address, "log_level": 0})

    def make(self, name: str, configs: Mapping[str, str] = NO_CONFIGS, partitions: int = 1) -> None:
        topic = NewTopic(name, partitions, 1, config=dict(configs))
        self._admin.create_topics([topic])[name].result(_PATIENCE_S)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(_PATIENCE_S)


HOST = "127.0.0.1"
_START_S = 120.0
_STOP_S = 60.0
_ANSWER_S = 5.0
_TRY_AGAIN_S = 0.002
_TAIL_CHARACTERS = 2000


class ServerFailed(Exception):
    """A broker ended or did not answer."""


def request_frame(api: ApiKey, version: int, message: Any) -> bytes:
    """A request as it is sent."""
    chunks: list[Any] = list(encode_request(api, version, 1, "bench", message))
    return b"".join(chunks)


def _ask_for_versions() -> bytes:
    return request_frame(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("bench", "1"))


@dataclass(frozen=True)
class Dialect:
    """How a broker is spoken to: a question that it can answer, its versions, and what confluent-kafka must be told."""

    question: bytes = field(default_factory=_ask_for_versions)
    produce_version: int = 9
    client: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Flushing:
    """Which settings of a topic make acks=all wait for a sync, and which not; both may be those as shipped."""

    synced_topic: Mapping[str, str]
    unsynced_topic: Mapping[str, str]


class Loaded(Protocol):
    """What the loads need of a broker, or of a cluster of which one broker leads the partition that they write to."""

    @property
    def name(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def address(self) -> str: ...

    @property
    def dialect(self) -> Dialect: ...

    def cpu_s(self) -> float: ...


class Server:
    """A running broker. `name` is its column in the table; `start_s` the time from its launch to its first answer.

    `companions` run already and end with it; the clock began with `began` if that is given.
    """

    # A figure of an optional one that cannot be had is missing from the table; of any other one it ends the run.
    is_optional = False
    # Whether its memory is taken at the start, so that what comes later does not show.
    has_reserved_heap = False

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        folder: Path,
        flushing: Flushing,
        *,
        dialect: Dialect | None = None,
        companions: Sequence[subprocess.Popen[bytes]] = (),
        began: float | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.address = f"{HOST}:{port}"
        self.flushing = flushing
        self.dialect = dialect or Dialect()
        self._output = folder / "output.txt"
        if began is None:
            began = time.perf_counter()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._processes = [self._process, *companions]
        try:
            self._wait_for_an_answer(began + _START_S)
        except BaseException:
            for process in self._processes:
                process.kill()
                process.wait()
            raise
        self.start_s = time.perf_counter() - began
        self.stop_s = 0.0

    @property
    def topics(self) -> Topics:
        """Its topics, made and deleted."""
        return AdminTopics(self.address)

    def _wait_for_an_answer(self, deadline: float) -> None:
        while True:
            try:
                with socket.create_connection((HOST, self.port), _ANSWER_S) as client:
                    client.sendall(self.dialect.question)
                    if client.recv(4):
                        return
            except OSError:
                pass
            if self._process.poll() is not None or time.perf_counter() > deadline:
                raise ServerFailed(f"{self.name} does not answer: {self._said()}")
            time.sleep(_TRY_AGAIN_S)

    def _said(self) -> str:
        return self._output.read_text(errors="replace")[-_TAIL_CHARACTERS:]

    def cpu_s(self) -> float:
        """CPU time of all its threads, user and system: as in /proc/PID/stat, but not rounded to ticks of 10 ms."""
        return sum(time.clock_gettime((~process.pid << 3) | 2) for process in self._processes)

    def rss_mb(self) -> float:
        return self._status_mb("VmRSS")

    def peak_rss_mb(self) -> float:
        return self._status_mb("VmHWM")

    def _status_mb(self, name: str) -> float:
        return sum(self._status_of(process, name) for process in self._processes)

    def _status_of(self, process: subprocess.Popen[bytes], name: str) -> float:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        if found is None:
            raise ServerFailed(f"{self.name} has ended: {self._said()}")
        return int(found[1]) * 1024 / 1e6

    def stop(self) -> None:
        """End it, and what runs for it after it; `stop_s` is how long the broker itself took."""
        began = time.perf_counter()
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process is self._process:
                self.stop_s = time.perf_counter() - began

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
