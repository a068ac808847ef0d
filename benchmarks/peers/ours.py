"""Our broker, as its users start it: `penstock server start`, with HTTP on and everything else by default."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers.servers import NO_CONFIGS, NO_LISTENERS, Flushing, Server, addresses, free_ports

NAME = "penstock"
ON_ASYNCIO = "penstock, asyncio"

# Kafka's default, said aloud, is a flush policy of the topic's own: acks=all does not wait for the disk then.
_FLUSHING = Flushing(synced_topic={}, unsynced_topic={"flush.messages": str(2**63 - 1)})

# An entry of None in sys.modules is how Python says "not installed" to an import.
_WITHOUT_UVLOOP = "import sys; sys.modules['uvloop'] = None; from penstock.cli.main import main; main()"


def start(folder: Path, listeners: Mapping[str, int] = NO_LISTENERS, more: Mapping[str, str] = NO_CONFIGS) -> Server:
    """On uvloop if that is installed, as the command chooses by itself; with further listeners and settings."""
    return _start(NAME, folder, ["-m", "penstock"], listeners, more)


def start_on_asyncio(folder: Path) -> Server:
    return _start(ON_ASYNCIO, folder, ["-c", _WITHOUT_UVLOOP])


def start_unsynced(folder: Path) -> Server:
    """As Kafka by default: nothing is synced before it is acknowledged, neither records nor decisions."""
    return _start(NAME, folder, ["-m", "penstock"], more={"log.flush.interval.messages": str(2**63 - 1)})


def starters() -> list[Callable[[Path], Server]]:
    return [start, start_on_asyncio] if importlib.util.find_spec("uvloop") else [start]


def _start(
    name: str,
    folder: Path,
    penstock: list[str],
    listeners: Mapping[str, int] = NO_LISTENERS,
    more: Mapping[str, str] = NO_CONFIGS,
) -> Server:
    folder.mkdir(parents=True, exist_ok=True)
    port, http_port = free_ports(2)
    options = ["--data-dir", str(folder / "data"), "--http-port", str(http_port), "--log-level", "warning"]
    settings = {
        "listeners": addresses({"PLAINTEXT": port, **listeners}),
        "log.segment.delete.delay.ms": "1000",
        **more,
    }
    told = [part for each in settings.items() for part in ("--set", "=".join(each))]
    command = [sys.executable, *penstock, "server", "start", *options, *told]
    return Server(name, command, port, folder, _FLUSHING)
