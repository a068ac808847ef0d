"""A cluster on this machine: which processes it has, where they keep their data, which ports they use.

    penstock-data/cluster.json       what there is: hosts, workers, ZooKeepers and their ports
    penstock-data/brokers/0          a broker's data
    penstock-data/zookeepers/1       a ZooKeeper's

Theory: a "host" stands for a machine, with as many brokers as it has workers. They share a rack label, so that
replicas of a partition land on different hosts; how many replicas a topic has by default goes by the hosts, too.

Rule: what is there is continued: ids stay, brokers may be added and none be left out. The folder of a broker that stood
alone is not taken for that of a cluster, nor the other way round.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.cli.output import CommandError, counted
from penstock.cli.supervising import Program
from penstock.cli.up import CLUSTER_FILE
from penstock.runtime.network import CannotListen
from penstock.runtime.port_reservation import PortReservation

HOST: Final = "127.0.0.1"
STATE_FILE: Final = CLUSTER_FILE
_LOCK_FILE: Final = "cluster.lock"
_ALONE: Final = ".metadata"
_ZOOKEEPER_PORT: Final = 2181
_PORT_MAX: Final = 65_535
_VERSION: Final = 1
_REPLICAS_MAX: Final = 3


class FolderInUse(CommandError):
    """Somebody else has it."""

    exit_code = 1


class ZooKeeperPorts(msgspec.Struct, frozen=True):
    """Of one server: for clients, and the two by which an ensemble talks."""

    client: int
    peer: int
    election: int


class _State(msgspec.Struct):
    version: int
    hosts: int
    workers: int
    zookeepers: list[ZooKeeperPorts]


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    id: int
    host: int
    port: int
    http_port: int | None
    folder: Path


@dataclass(frozen=True, slots=True)
class LocalCluster:
    folder: Path
    hosts: int
    workers: int
    zookeepers: tuple[ZooKeeperPorts, ...]
    brokers: tuple[BrokerPlace, ...]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{broker.port}" for broker in self.brokers[:_REPLICAS_MAX])

    @property
    def zookeeper_connect(self) -> str:
        return ",".join(f"{HOST}:{server.client}" for server in self.zookeepers)

    @property
    def replicas(self) -> int:
        """Of a topic that is made without saying how many."""
        return min(_REPLICAS_MAX, self.hosts)

    @property
    def zookeeper_names(self) -> list[str]:
        count = len(self.zookeepers)
        return ["zookeeper"] if count == 1 else [f"zookeeper {number}" for number in range(1, count + 1)]

    def programs(self, log_level: str) -> tuple[list[Program], list[Program]]:
        """The ZooKeepers, and then the brokers."""
        return (
            [self._zookeeper(number, name, log_level) for number, name in enumerate(self.zookeeper_names, 1)],
            [self._broker(broker, log_level) for broker in self.brokers],
        )

    def _zookeeper(self, number: int, name: str, log_level: str) -> Program:
        ports = self.zookeepers[number - 1]
        options = ["--data-dir", str(self.folder / "zookeepers" / str(number)), "--port", str(ports.client)]
        # It warns of what is as it should be, at every start.
        options += ["--host", HOST, "--log-level", "error" if log_level == "warning" else log_level]
        if len(self.zookeepers) > 1:
            servers = (f"{at}={HOST}:{each.peer}:{each.election}" for at, each in enumerate(self.zookeepers, 1))
            options += ["--servers", ",".join(servers), "--id", str(number)]
        return Program(name, (*penstock_command(), "zookeeper", "start", *options))

    def _broker(self, broker: BrokerPlace, log_level: str) -> Program:
        options = ["--data-dir", str(broker.folder), "--listen", f"{HOST}:{broker.port}"]
        options += ["--http-port", str(broker.http_port or 0), "--log-level", child_level(log_level)]
        for name, value in self._settings(broker).items():
            options += ["--set", f"{name}={value}"]
        return Program(f"broker {broker.id}", (*penstock_command(), "server", "start", *options))

    def _settings(self, broker: BrokerPlace) -> Mapping[str, object]:
        in_sync = 2 if self.replicas == _REPLICAS_MAX else 1
        settings: dict[str, object] = {
            "zookeeper.connect": self.zookeeper_connect,
            "broker.id": broker.id,
            "default.replication.factor": self.replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": self.replicas,
            "transaction.state.log.replication.factor": self.replicas,
            "transaction.state.log.min.isr": in_sync,
            # The wait is for members that start together; somebody who tries a consumer would only wonder.
            "group.initial.rebalance.delay.ms": 0,
        }
        if self.workers > 1:
            settings["broker.rack"] = f"host-{broker.host}"
        return settings


def child_level(log_level: str) -> str:
    """What a broker logs so that it can be seen when it serves; what is shown of that is the supervisor's choice."""
    return "debug" if log_level == "debug" else "info"


def penstock_command() -> tuple[str, ...]:
    """This same command, of this same installation.

    -P keeps the working directory off the module path: a file `http.py` there is not taken for the standard library's.
    """
    return (sys.executable, "-P", "-m", "penstock")


# --- making it


def open_cluster(
    folder: str,
    *,
    hosts: int | None,
    workers: int | None,
    zookeepers: int | None,
    port: int,
    http_port: int,
) -> LocalCluster:
    """What is asked for, on top of what is there. CommandError. Nothing is written yet."""
    home = Path(folder)
    if (home / _ALONE).exists():
        raise CommandError(
            f"{folder} holds the data of a broker that stands alone.",
            "Run it with `penstock up`, or give the cluster a folder of its own with --data-dir.",
        )
    state = _read_state(home)
    hosts = _no_fewer("broker", hosts, None if state is None else state.hosts, folder, "--brokers")
    workers = _the_same("worker", workers, None if state is None else state.workers, folder, "--workers")
    there = None if state is None else state.zookeepers
    count = _the_same("ZooKeeper", zookeepers, None if there is None else len(there), folder, "--zookeepers")
    ports = _ports(port, hosts * workers)
    http_ports = [http_port + number if http_port else None for number in range(hosts * workers)]
    taken = {*ports, *(each for each in http_ports if each is not None)}
    if len(taken) < len(ports) + len(http_ports) - http_ports.count(None) or max(taken) > _PORT_MAX:
        raise CommandError(
            f"{counted(len(ports), 'broker')} from --port {port} and --http-port {http_port} on: the ports overlap, or "
            "go beyond the last one.",
            "Give ports that are further apart; --http-port 0 does without HTTP.",
        )
    brokers = tuple(
        BrokerPlace(number, number // workers, ports[number], http_ports[number], home / "brokers" / str(number))
        for number in range(hosts * workers)
    )
    return LocalCluster(home, hosts, workers, _zookeeper_ports(count, there or [], taken), brokers)


def save_state(cluster: LocalCluster) -> None:
    """Let the next `up` continue with this."""
    state = _State(_VERSION, cluster.hosts, cluster.workers, list(cluster.zookeepers))
    path = cluster.folder / STATE_FILE
    draft = path.with_suffix(".tmp")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
    os.replace(draft, path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder for this process alone. FolderInUse."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CommandError(
            f"{folder}: {error.strerror or error}.", "Choose a folder that can be written with --data-dir."
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"Data folder {folder} is in use: another `penstock up` runs there.",
                "Stop that one, or choose another folder with --data-dir.",
            ) from None
        yield
    finally:
        os.close(descriptor)


def _read_state(home: Path) -> _State | None:
    path = home / STATE_FILE
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{path} cannot be read: {error}.", "Put it back from a backup, or choose another folder with --data-dir."
        ) from None
    if state.version != _VERSION or state.hosts < 1 or state.workers < 1 or not state.zookeepers:
        raise CommandError(
            f"{path} is of a version that is not known here.", "Use the version of Penstock that wrote it."
        )
    return state


def _no_fewer(noun: str, wanted: int | None, there: int | None, folder: str, option: str) -> int:
    if there is not None and wanted is not None and wanted < there:
        raise CommandError(
            f"The cluster in {folder} has {counted(there, noun)}, and what is on them would be missing.",
            f"Start it with {option} {there} or without {option}, or another one with --data-dir.",
        )
    return wanted or there or 1


def _the_same(noun: str, wanted: int | None, there: int | None, folder: str, option: str) -> int:
    if there is not None and wanted is not None and wanted != there:
        raise CommandError(
            f"The cluster in {folder} has {counted(there, noun)}, which cannot be changed.",
            f"Start it with {option} {there} or without {option}, or another one with --data-dir.",
        )
    return wanted or there or 1


# --- ports


def is_free(port: int) -> bool:
    try:
        PortReservation(HOST, port).release()
    except CannotListen:
        return False
    return True


def _ports(first: int, count: int) -> list[int]:
    if first == 0:
        return _free_ports(count, set())
    return list(range(first, first + count))


def _zookeeper_ports(count: int, remembered: list[ZooKeeperPorts], taken: set[int]) -> tuple[ZooKeeperPorts, ...]:
    """Those of the last time if they are free; else ZooKeeper's usual ones, if those are; else any."""
    known = [port for each in remembered for port in (each.client, each.peer, each.election)]
    if remembered and not taken & set(known) and all(map(is_free, known)):
        return tuple(remembered)
    usual = list(range(_ZOOKEEPER_PORT, _ZOOKEEPER_PORT + count))
    if taken & set(usual) or not all(map(is_free, usual)):
        usual = []
    clients = usual or _free_ports(count, taken)
    others = _free_ports(2 * count, {*taken, *clients})
    return tuple(ZooKeeperPorts(client, others[2 * at], others[2 * at + 1]) for at, client in enumerate(clients))


def _free_ports(count: int, taken: set[int]) -> list[int]:
    """Ports of the loopback that nobody has now, all different."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            reservation = PortReservation(HOST, 0)
            held.callback(reservation.release)
            if reservation.port not in taken:
                found.append(reservation.port)
        return found
