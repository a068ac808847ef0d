"""Three Penstock brokers and an ensemble of three real ZooKeepers, each server in its own place.

Brokers are started as users start them, with `penstock server start`. All have their defaults, except for the settings
of the cluster and for addresses and folders. `settings()` reads all of them from where they are set.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.faults.access import MECHANISM, OURS, PROTOCOL, Access
from benchmarks.faults.cluster import BROKERS, Cluster, NoAnswer, Node, settings_without, until
from benchmarks.faults.namespaces import Network, Place
from benchmarks.peers.servers import ServerFailed, process_cpu_s
from penstock import Admin
from penstock.cli.security.security import SecurityFolder
from penstock.cluster.tree.zookeeper.ensemble import Condition
from penstock.cluster.tree.zookeeper.server import Member, ServerSettings, ZooKeeperProcess
from penstock.security.acls import AclBinding, AclEntry, Operation, Permission, ResourcePattern, ResourceType

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
# A failed disk is found by the next checkpoint: the file in its place fails no write to a file that is open.
WITH_DISKS: Final[Mapping[str, str]] = MappingProxyType(
    {**PROMPT, "replica.high.watermark.checkpoint.interval.ms": "200"}
)
PROMPT_TICK_MS: Final = 500  # allows sessions of one second
# Settings that place a server, which differ by server.
_DATA: Final = "--data-dir"
_PLACE: Final = ("zookeeper.connect", "broker.id", _DATA, "--listen", "--http-port")
_SECURE_PLACE: Final = (
    *("listeners" if name == "--listen" else name for name in _PLACE), "advertised.listeners", "--config",
)  # fmt: skip
_ANY_PORT: Final = 9093  # each broker has its own
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
        self,
        network: Network,
        folder: Path,
        settings: Mapping[str, str] = PROMPT,
        tick_ms: int | None = PROMPT_TICK_MS,
        *,
        is_secure: bool = False,
        disks: int = 1,
    ) -> None:
        """`tick_ms` is the ZooKeepers'; None leaves it as shipped. A broker has as many data folders as `disks`.

        With `is_secure` the brokers have what `penstock security init` makes: TLS and logins for clients and between
        brokers, and ACLs. The harness is the admin.
        """
        super().__init__(network, folder)
        self._zookeepers = _ensemble(network, folder, tick_ms)
        connect = ",".join(server.connect for server in self._zookeepers)
        places = {number: network.place(f"penstock-{number}") for number in range(1, BROKERS + 1)}
        config: Path | None = None
        if is_secure:
            made = SecurityFolder(folder / "security")
            made.create(tuple(dict.fromkeys(place.address for place in places.values())), _ANY_PORT)
            config = made.server_properties
            self.access = Access(made.user, made.password.read_text().strip(), str(made.authority))
        for number, place in places.items():
            told = {"zookeeper.connect": connect, "broker.id": str(number), **settings}
            self.nodes[number] = _broker(number, place, folder, told, config, self.access, disks)

    @property
    def keepers(self) -> Sequence[ZooKeeper]:
        return self._zookeepers

    def admit(self, client: str, topic: str, group: str) -> Access:
        """In a secure cluster, a new user with ACLs for the topic and the group; all brokers know both."""
        if not self.access.authority:
            return super().admit(client, topic, group)
        access = replace(self.access, username=f"user-{client}", password=secrets.token_urlsafe())
        with Admin(self.bootstrap, **self.access.options(OURS)) as admin:
            admin.set_password(access.username, access.password, mechanism=MECHANISM)
            failed = [error for error in admin.create_acls(_acls(access.username, topic, group)).values() if error]
        if failed:
            raise ServerFailed(f"the ACLs of {access.username} are rejected: {failed[0]}")
        until(lambda: self._is_known(access, topic), f"all brokers know {access.username}", _PATIENCE_S)
        return access

    def _is_known(self, access: Access, topic: str) -> bool:
        try:
            for node in self.nodes.values():
                node.view([topic], access)
        except NoAnswer:
            return False
        return True

    def settings(self) -> dict[str, Mapping[str, str]]:
        place = _SECURE_PLACE if self.access.authority else _PLACE
        security = {"--config": "what `penstock security init` writes"} if self.access.authority else {}
        return {
            "brokers": {**security, **settings_without(_options(self.nodes[1].command), place)},
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
            raise NoAnswer("there is no controller")
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


def _broker(
    number: int,
    place: Place,
    folder: Path,
    settings: Mapping[str, str],
    config: Path | None,
    access: Access,
    disks: int,
) -> Node:
    port, http_port = place.ports(2)
    own = folder / f"penstock-{number}"
    own.mkdir(parents=True)
    listen = ["--listen", f"{place.address}:{port}"]
    if config is not None:
        # Passwords stay in the file: command lines can be read by everyone.
        listener = f"{PROTOCOL}://{place.address}:{port}"
        listen = ["--config", str(config), _SET, f"listeners={listener}", _SET, f"advertised.listeners={listener}"]
    data = [own / ("data" if disk == 0 else f"data-{disk + 1}") for disk in range(disks)]
    command = [
        *_START, *(part for each in data for part in (_DATA, str(each))), *listen, "--http-port", str(http_port),
        *(part for name, value in settings.items() for part in (_SET, f"{name}={value}")),
    ]  # fmt: skip
    return Node(number, command, place, port, own, access, data)


def _acls(user: str, topic: str, group: str) -> list[AclBinding]:
    """Writing to and reading from the topic, in the group."""
    needed = (
        (ResourceType.TOPIC, topic, Operation.WRITE),
        (ResourceType.TOPIC, topic, Operation.READ),
        (ResourceType.GROUP, group, Operation.READ),
    )
    return [
        AclBinding(ResourcePattern(kind, name), AclEntry(f"User:{user}", "*", operation, Permission.ALLOW))
        for kind, name, operation in needed
    ]


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
