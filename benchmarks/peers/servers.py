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

HOST = "127.0.0.1"
NO_CONFIGS: Mapping[str, str] = MappingProxyType({})
NO_LISTENERS: Mapping[str, int] = MappingProxyType({})
_TIMEOUT_S = 60.0
_START_S = 120.0
_STOP_S = 60.0
_ANSWER_S = 5.0
_RETRY_S = 0.002
_TAIL_CHARACTERS = 2000

# ---------------------------------------------------------------------------------------------- a broker


class ServerFailed(Exception):
    """A broker ended or did not answer in time."""


@dataclass(frozen=True)
class Flushing:
    """Topic settings with which acks=all waits for a sync, and without; either may be the defaults."""

    synced_topic: Mapping[str, str]
    unsynced_topic: Mapping[str, str]


def request_frame(api: ApiKey, version: int, message: Any) -> bytes:
    """An encoded request."""
    chunks: list[Any] = list(encode_request(api, version, 1, "bench", message))
    return b"".join(chunks)


def _versions_request() -> bytes:
    return request_frame(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("bench", "1"))


@dataclass(frozen=True)
class Dialect:
    """How to talk to a broker: a request it can answer, its versions, and settings for confluent-kafka."""

    question: bytes = field(default_factory=_versions_request)
    produce_version: int = 9
    client: Mapping[str, Any] = field(default_factory=dict)


class Loaded(Protocol):
    """What workloads need of a broker, or of a cluster in which one broker leads their partition."""

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

    `companions` already run and end with it; with `began`, the clock started earlier.
    """

    # A missing figure of an optional server is left out of the table; of any other one it ends the run.
    is_optional = False
    # Whether its memory is allocated at the start, so that later growth does not show.
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
        """Creates and deletes its topics."""
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
                raise ServerFailed(f"{self.name} does not answer: {self._output_tail()}")
            time.sleep(_RETRY_S)

    def _output_tail(self) -> str:
        return self._output.read_text(errors="replace")[-_TAIL_CHARACTERS:]

    def cpu_s(self) -> float:
        """CPU time of all its processes."""
        return sum(process_cpu_s(process.pid) for process in self._processes)

    def rss_mb(self) -> float:
        return self._status_mb("VmRSS")

    def peak_rss_mb(self) -> float:
        return self._status_mb("VmHWM")

    def _status_mb(self, name: str) -> float:
        return sum(self._status_of(process, name) for process in self._processes)

    def _status_of(self, process: subprocess.Popen[bytes], name: str) -> float:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        if found is None:
            raise ServerFailed(f"{self.name} has ended: {self._output_tail()}")
        return int(found[1]) * 1024 / 1e6

    def stop(self) -> None:
        """Stops the broker, then its companions; `stop_s` is the time of the broker itself."""
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


def process_cpu_s(pid: int) -> float:
    """CPU time of all threads, user and system; as in /proc/PID/stat, but not rounded to ticks of 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)


def free_ports(count: int) -> list[int]:
    """Different ports that are free now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def addresses(listeners: Mapping[str, int]) -> str:
    """Listeners on this machine, by name and port, as the settings of a broker have them."""
    return ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())


# ---------------------------------------------------------------------------------------------- topics


class Topics(Protocol):
    def make(self, name: str, configs: Mapping[str, str] = NO_CONFIGS, partitions: int = 1) -> None: ...

    def delete(self, name: str) -> None: ...


class AdminTopics:
    """Creates and deletes topics by requests, which every recent broker supports."""

    def __init__(self, address: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": address, "log_level": 0})

    def make(self, name: str, configs: Mapping[str, str] = NO_CONFIGS, partitions: int = 1) -> None:
        topic = NewTopic(name, partitions, 1, config=dict(configs))
        self._admin.create_topics([topic])[name].result(_TIMEOUT_S)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(_TIMEOUT_S)
