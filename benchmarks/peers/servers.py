"""A broker in a process of its own, and what the kernel says of it.

Rule: it has started when it answers an ApiVersions request; that, and not an open port, is what a client waits for.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.wire.api_keys import ApiKey
from penstock.wire.headers import encode_request
from penstock.wire.schemas.api_versions import ApiVersionsRequest

HOST = "127.0.0.1"
_START_S = 120.0
_STOP_S = 60.0
_ANSWER_S = 5.0
_TRY_AGAIN_S = 0.002
_TAIL_CHARACTERS = 2000


class ServerFailed(Exception):
    """A broker ended or did not answer."""


class Server:
    """A running broker. `name` is its column in the table; `start_s` the time from its launch to its first answer."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, folder: Path, synced_topic: Mapping[str, str]
    ) -> None:
        self.name = name
        self.port = port
        self.address = f"{HOST}:{port}"
        self.synced_topic = synced_topic
        self._output = folder / "output.txt"
        began = time.perf_counter()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            self._wait_for_an_answer(began + _START_S)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self.start_s = time.perf_counter() - began

    def _wait_for_an_answer(self, deadline: float) -> None:
        chunks: list[Any] = list(encode_request(ApiKey.API_VERSIONS, 3, 1, "bench", ApiVersionsRequest("bench", "1")))
        request = b"".join(chunks)
        while True:
            try:
                with socket.create_connection((HOST, self.port), _ANSWER_S) as client:
                    client.sendall(request)
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
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def rss_mb(self) -> float:
        return self._status_mb("VmRSS")

    def peak_rss_mb(self) -> float:
        return self._status_mb("VmHWM")

    def _status_mb(self, field: str) -> float:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text(), re.MULTILINE)
        if found is None:
            raise ServerFailed(f"{self.name} has ended: {self._said()}")
        return int(found[1]) * 1024 / 1e6

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

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
