"""Our broker, as its users start it: `penstock server start`, with HTTP on and everything else by default."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.servers import HOST, Flushing, Server, free_ports

NAME = "penstock"
ON_ASYNCIO = "penstock, asyncio"

# Kafka's default, said aloud, is a flush policy of the topic's own: acks=all does not wait for the disk then.
_FLUSHING = Flushing(synced_topic={}, unsynced_topic={"flush.messages": str(2**63 - 1)})

# An entry of None in sys.modules is how Python says "not installed" to an import.
_WITHOUT_UVLOOP = "import sys; sys.modules['uvloop'] = None; from penstock.cli.main import main; main()"


def start(folder: Path) -> Server:
    """On uvloop if that is installed, as the command chooses by itself."""
    return _start(NAME, folder, ["-m", "penstock"])


def start_on_asyncio(folder: Path) -> Server:
    return _start(ON_ASYNCIO, folder, ["-c", _WITHOUT_UVLOOP])


def starters() -> list[Callable[[Path], Server]]:
    return [start, start_on_asyncio] if importlib.util.find_spec("uvloop") else [start]


def _start(name: str, folder: Path, penstock: list[str]) -> Server:
    folder.mkdir(parents=True, exist_ok=True)
    port, http_port = free_ports(2)
    options = ["--data-dir", str(folder / "data"), "--listen", f"{HOST}:{port}", "--http-port", str(http_port)]
    settings = ["--log-level", "warning", "--set", "log.segment.delete.delay.ms=1000"]
    command = [sys.executable, *penstock, "server", "start", *options, *settings]
    return Server(name, command, port, folder, _FLUSHING)
