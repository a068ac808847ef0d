"""What a run is to be: where, how much, for how long; and the command of each of its processes. Pure.

Noun: `Plan`.

Rule: the children are commands that anybody can run by hand, with options that say everything: what a run does can be
read off its logs' first lines.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.activity.clusters import Cluster, ValueFormat

# -P: a file of the working directory is not taken for a module of the standard library.
CHILD: Final = (sys.executable, "-P", "-m", "penstock.cli.activity_child")
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True)
class Plan:
    """All that was asked for. Without `bootstrap` the run has a broker of its own on `port`."""

    folder: Path
    pipelines: tuple[str, ...]
    seed: int = 1
    rate: float = 2_000.0
    malformed: float = 0.0
    rhythm: str = "daily"
    minutes: float | None = None
    has_report: bool = False
    bootstrap: str | None = None
    port: int = 9092
    broker_http_port: int = 0
    http_port: int = 8092
    master: str | None = None
    warehouse: str | None = None
    value_format: ValueFormat = "json"
    command_config: str | None = None
    command_properties: tuple[str, ...] = ()
    """How to connect to others' cluster, as commands are told."""
    connecting: Mapping[str, str] = field(default_factory=dict)
    """The same, as readers have it."""

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.servers, self.value_format, self.connecting)

    @property
    def has_broker(self) -> bool:
        return self.bootstrap is None

    @property
    def servers(self) -> str:
        return f"{_HOST}:{self.port}" if self.bootstrap is None else self.bootstrap

    @property
    def warehouse_uri(self) -> str:
        return str(self.folder / "warehouse") if self.warehouse is None else self.warehouse

    @property
    def broker_url(self) -> str | None:
        """Where the broker's HTTP answers."""
        return f"http://{_HOST}:{self.broker_http_port}" if self.has_broker else None

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def generated(self) -> Path:
        """Where the generator writes what came of it."""
        return self.folder / "generated.json"

    @property
    def report_folder(self) -> Path:
        return self.folder / "report"

    def broker_command(self) -> list[str]:
        return [
            *CHILD, "server", "start", "--data-dir", str(self.folder / "broker"), "--listen", self.servers,
            "--http-port", str(self.broker_http_port), "--set", "group.initial.rebalance.delay.ms=0",
        ]  # fmt: skip

    def pipelines_command(self) -> list[str]:
        master = [] if self.master is None else ["--master", self.master]
        return [
            *CHILD, "pipeline", "run", *self.pipelines, *master, "--value-format", self.value_format,
            "--warehouse", self.warehouse_uri, *self._reaching,
        ]  # fmt: skip

    def generator_command(self, origin_ms: int, minutes: float | None) -> list[str]:
        """`origin_ms` is when the site opened; after a crash it goes on with the same site."""
        bounded = [] if minutes is None else ["--minutes", f"{minutes:.4f}"]
        return [
            *CHILD, "activity", "generate", "--seed", str(self.seed), "--rate", f"{self.rate:g}",
            "--malformed", f"{self.malformed:g}", "--rhythm", self.rhythm, "--origin", str(origin_ms), *bounded,
            "--value-format", self.value_format, "--format", "json", *self._reaching,
        ]  # fmt: skip

    @property
    def _reaching(self) -> list[str]:
        """The cluster, as every command takes it."""
        config = [] if self.command_config is None else ["--command-config", self.command_config]
        properties = [word for each in self.command_properties for word in ("--command-property", each)]
        return ["--bootstrap-server", self.servers, *config, *properties]
