"""Three Penstock brokers and an ensemble of three real ZooKeepers, each server in its own place.

Brokers are started as users start them, with `penstock server start`. All have their defaults, except for the settings
of the cluster and for addresses and folders. `settings()` reads all of them from where they are set.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.faults.cluster import BROKERS, Cluster, NoAnswer, Node, settings_without, until
from benchmarks.faults.namespaces import Network, Place
from benchmarks.peers.servers import ServerFailed, process_cpu_s
from penstock.cluster.tree.zookeeper.ensemble import Condition
from penstock.cluster.tree.zookeeper.server import Member, ServerSettings, ZooKeeperProcess

_KEEPERS: Final = 3
_HEALTH_S: Final = 0.5
_PATIENCE_S: Final = 60.0
AS_SHIPPED: Final[Mapping[str, str]] = MappingProxyType({})
PROMPT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "zookeeper.session.timeout.ms": "1500",
        "replica.lag.time.max.ms": "2000",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "3",
    }
)
_START: Final = (sys.executable, "-m", "penstock", "server", "start")
_SET: Final = "--set"
PROMPT_TICK_MS: Final = 500  # allows sessions of one second
# Settings that place a server, which differ by server.
_PLACE: Final = ("zookeeper.connect", "broker.id", "--data-dir", "--listen", "--http-port")
_ZOOKEEPER_PLACE: Final = ("data_dir", "port", "host", "server_id", "members")


class ZooKeeper:
    """One server of the ensemble, at its place."""

    def __init__(self, place: Place, settings: ServerSettings) -> None:
        self.place = place
        self.name = f"ZooKeeper {settings.server_id}"
        self.settings = settings
        self._server = ZooKeeperProcess(settings)
        self._folder = Path(settings.data_dir)

    @property
    def connect(self) -> str:
        return str(self._server.address)

    def launch(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.place.enter(), (self._folder / "zookeeper.log").open("ab") as output:
            self._server.start(output=output)

    def is_serving(self) -> bool:
        return self._server.is_running and self._server.health(_HEALTH_S).condition is Condition.SERVING

    def is_leading(self) -> bool:
        return self._server.is_running and self._server.health(_HEALTH_S).mode == "leader"

    def kill(self) -> None:
        self._server.kill()

    def pause(self) -> None:
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

    def cpu_s(self) -> float:
        if self._server.pid is None:
            raise ServerFailed(f"{self.name} does not run")
        return process_cpu_s(self._server.pid)


class PenstockCluster(Cluster):
    kind = "penstock"

    def __init__(
        self, network: Network, folder: Path, settings: Mapping[str, str] = PROMPT, tick_ms: int | None = PROMPT_TICK_MS
    ) -> None:
        """`tick_ms` is the ZooKeepers'; None leaves it as shipped."""
        super().__init__(network, folder)
        self._zookeepers = _ensemble(network, folder, tick_ms)
        connect = ",".join(server.connect for server in self._zookeepers)
        for number in range(1, BROKERS + 1):
            self.nodes[number] = _broker(number, network, folder, connect, settings)

    @property
    def keepers(self) -> Sequence[ZooKeeper]:
        return self._zookeepers

    def settings(self) -> dict[str, Mapping[str, str]]:
        return {
            "brokers": settings_without(_options(self.nodes[1].command), _PLACE),
            "ZooKeepers": _changed(self._zookeepers[0].settings),
        }

    def launch(self) -> None:
        for keeper in self._zookeepers:
            keeper.launch()
        until(lambda: all(each.is_serving() for each in self._zookeepers), "ZooKeeper serves", _PATIENCE_S)
        for node in self.nodes.values():
            node.launch()

    def controller(self) -> int:
        known = self.view([]).controller
        if known not in self.nodes:
            raise NoAnswer("nobody is the controller")
        return known

    def leading_keeper(self) -> ZooKeeper:
        for keeper in self._zookeepers:
            if keeper.is_leading():
                return keeper
        raise NoAnswer("no ZooKeeper leads")


def _ensemble(network: Network, folder: Path, tick_ms: int | None) -> list[ZooKeeper]:
    places = [network.place(f"zookeeper-{number + 1}") for number in range(_KEEPERS)]
    ports = [place.ports(3) for place in places]
    members = tuple(Member(at + 1, place.address, ports[at][1], ports[at][2]) for at, place in enumerate(places))
    servers = []
    for at, place in enumerate(places):
        settings = ServerSettings(
            str(folder / f"zookeeper-{at + 1}"), ports[at][0], host=place.address, server_id=at + 1, members=members
        )
        servers.append(ZooKeeper(place, settings if tick_ms is None else replace(settings, tick_ms=tick_ms)))
    return servers


def _broker(number: int, network: Network, folder: Path, connect: str, settings: Mapping[str, str]) -> Node:
    place = network.place(f"penstock-{number}")
    port, http_port = place.ports(2)
    own = folder / f"penstock-{number}"
    own.mkdir(parents=True)
    told = {"zookeeper.connect": connect, "broker.id": str(number), **settings}
    command = [
        *_START, "--data-dir", str(own / "data"),
        "--listen", f"{place.address}:{port}", "--http-port", str(http_port),
        *(part for name, value in told.items() for part in (_SET, f"{name}={value}")),
    ]  # fmt: skip
    return Node(number, command, place, port, own)


def _options(command: Sequence[str]) -> dict[str, str]:
    """Everything that a broker's command line sets, by name."""
    words = iter(command[len(_START) :])
    found: dict[str, str] = {}
    for option in words:
        value = next(words)
        name, _, value = value.partition("=") if option == _SET else (option, "", value)
        found[name] = value
    return found


def _changed(settings: ServerSettings) -> dict[str, str]:
    """What differs from the defaults, apart from what gives the server its place."""
    return {
        field.name: str(getattr(settings, field.name))
        for field in fields(settings)
        if field.name not in _ZOOKEEPER_PLACE and getattr(settings, field.name) != field.default
    }
