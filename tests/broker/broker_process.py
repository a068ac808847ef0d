"""A broker in a process of its own that tests kill with SIGKILL and start again on the same port and folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.ports import free_port

_PROGRAM: Final = """
import json, signal, sys
from penstock.testing.embedded_broker import EmbeddedBroker
folder, port, settings = sys.argv[1:]
broker = EmbeddedBroker(folder, port=int(port), settings=json.loads(settings))
broker.start()
print("serving", flush=True)
signal.pause()
"""


class BrokerProcess:
    """It ends in no other way than by SIGKILL."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = json.dumps(dict(settings or {}))
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it serves."""
        command = [sys.executable, "-c", _PROGRAM, str(self._folder), str(self.port), self._settings]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if self._process.stdout is None:
            raise ValueError("the process has no output")
        with self._process.stdout as output:
            if output.readline() != b"serving\n":
                raise RuntimeError(f"the broker in {self._folder} did not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
