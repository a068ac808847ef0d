"""Several brokers on one machine: `penstock up --brokers N` and `penstock server start --workers N`.

    penstock-data/cluster.json       hosts, workers, ZooKeepers and their ports
    penstock-data/brokers/0          a broker's data
    penstock-data/zookeepers/1       a ZooKeeper's data

A broker is one process with one event loop, so more cores need more brokers. A "host" stands for a machine and runs as
many brokers as it has workers. They share a rack label, so that the replicas of a partition are on different hosts;
the default replication factor counts hosts too. Worker n of `server start` has broker.id + n, each port + n, and the
folder brokers/<id> of each data folder; it needs ZooKeeper.

An existing cluster is continued: ids stay, brokers may be added, none may be left out. The data folder of a single
broker is never used for a cluster, nor the other way round. What can be checked beforehand (Java, ports, the folder)
is reported before anything starts. Everything runs in the foreground and ends with this command; the data stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from penstock.cli.output import CommandError, Output, printable, sentence, show_table
from penstock.cli.server.foreground import Foreground, PrefixedLines, Program
from penstock.cli.server.up import CLUSTER_FILE
from penstock.runtime.network import CannotListen, PortReservation
from penstock.runtime.quantities import counted

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings, Listener
    from penstock.cluster.errors import ZooKeeperNotStarted


HOST: Final = "127.0.0.1"
STATE_FILE: Final = CLUSTER_FILE
_LOCK_FILE: Final = "cluster.lock"
_SINGLE_BROKER_FOLDER: Final = ".metadata"
_ZOOKEEPER_PORT: Final = 2181
_PORT_MAX: Final = 65_535
_VERSION: Final = 1
_REPLICAS_MAX: Final = 3


class FolderInUse(CommandError):
    """The folder is locked by another process."""

    exit_code = 1


class ZooKeeperPorts(msgspec.Struct, frozen=True):
    """Ports of one server: for clients, and two within the ensemble."""

    client: int
    peer: int
    election: int


class _State(msgspec.Struct):
    version: int
    hosts: int
    workers: int
    zookeepers: list[ZooKeeperPorts]


@dataclass(frozen=True, slots=True)
class BrokerLayout:
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
    brokers: tuple[BrokerLayout, ...]
    security: Path | None = None
    """Settings with TLS and users; None for plaintext."""
    registry: tuple[str, ...] = ()
    """Options of the first broker for a schema registry in its process."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{broker.port}" for broker in self.brokers[:_REPLICAS_MAX])

    @property
    def zookeeper_connect(self) -> str:
        return ",".join(f"{HOST}:{server.client}" for server in self.zookeepers)

    @property
    def replicas(self) -> int:
        """The default replication factor."""
        return min(_REPLICAS_MAX, self.hosts)

    @property
    def zookeeper_names(self) -> list[str]:
        count = len(self.zookeepers)
        return ["zookeeper"] if count == 1 else [f"zookeeper {number}" for number in range(1, count + 1)]

    def programs(self, log_level: str) -> tuple[list[Program], list[Program]]:
        """The ZooKeeper servers, then the brokers."""
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

    def _broker(self, broker: BrokerLayout, log_level: str) -> Program:
        options = ["--data-dir", str(broker.folder)]
        if self.security is None:
            options += ["--listen", f"{HOST}:{broker.port}"]
        else:
            # Passwords stay in the file: command lines can be read by everyone.
            listener = f"SASL_SSL://{HOST}:{broker.port}"
            options += ["--config", str(self.security), "--set", f"listeners={listener}"]
            options += ["--set", f"advertised.listeners={listener}"]
        options += ["--http-port", str(broker.http_port or 0), "--log-level", child_level(log_level)]
        if broker.id == 0:
            options += self.registry
        for name, value in self._settings(broker).items():
            options += ["--set", f"{name}={value}"]
        return Program(f"broker {broker.id}", (*penstock_command(), "server", "start", *options))

    def _settings(self, broker: BrokerLayout) -> Mapping[str, object]:
        in_sync = 2 if self.replicas == _REPLICAS_MAX else 1
        settings: dict[str, object] = {
            "zookeeper.connect": self.zookeeper_connect,
            "broker.id": broker.id,
            "default.replication.factor": self.replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": self.replicas,
            "transaction.state.log.replication.factor": self.replicas,
            "transaction.state.log.min.isr": in_sync,
            # The delay is for members that start together; here it would only puzzle a new user.
            "group.initial.rebalance.delay.ms": 0,
        }
        if self.workers > 1:
            settings["broker.rack"] = f"host-{broker.host}"
        return settings


def child_level(log_level: str) -> str:
    """The log level of a broker: at least info, so that its start can be seen. `foreground` filters what is shown."""
    return "debug" if log_level == "debug" else "info"


def penstock_command() -> tuple[str, ...]:
    """The command line of this installation's `penstock`.

    -P keeps the working directory off the module path, so that a file `http.py` there shadows nothing.
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
    """The existing cluster with the requested changes. Writes nothing. Raises CommandError."""
    home = Path(folder)
    if (home / _SINGLE_BROKER_FOLDER).exists():
        raise CommandError(
            f"{folder} holds the data of a single broker.",
            "Run it with `penstock up`, or choose another folder for the cluster with --data-dir.",
        )
    state = _read_state(home)
    hosts = _count_not_lowered("broker", hosts, None if state is None else state.hosts, folder, "--brokers")
    workers = _count_unchanged("worker", workers, None if state is None else state.workers, folder, "--workers")
    there = None if state is None else state.zookeepers
    count = _count_unchanged("ZooKeeper", zookeepers, None if there is None else len(there), folder, "--zookeepers")
    ports = _ports(port, hosts * workers)
    http_ports = [http_port + number if http_port else None for number in range(hosts * workers)]
    taken = {*ports, *(each for each in http_ports if each is not None)}
    if len(taken) < len(ports) + len(http_ports) - http_ports.count(None) or max(taken) > _PORT_MAX:
        raise CommandError(
            f"{counted(len(ports), 'broker')} from --port {port} and --http-port {http_port} on: the ports overlap, or "
            "go beyond the last one.",
            "Use ports that are further apart, or --http-port 0 for no HTTP.",
        )
    brokers = tuple(
        BrokerLayout(number, number // workers, ports[number], http_ports[number], home / "brokers" / str(number))
        for number in range(hosts * workers)
    )
    return LocalCluster(home, hosts, workers, _zookeeper_ports(count, there or [], taken), brokers)


def save_state(cluster: LocalCluster) -> None:
    """Save the cluster for the next `up`."""
    state = _State(_VERSION, cluster.hosts, cluster.workers, list(cluster.zookeepers))
    path = cluster.folder / STATE_FILE
    draft = path.with_suffix(".tmp")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
    os.replace(draft, path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder. Raises FolderInUse."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CommandError(
            f"{folder}: {error.strerror or error}.", "Choose a writable folder with --data-dir."
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"Data folder {folder} is in use by another `penstock up`.",
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
            f"Cannot read {path}: {error}.", "Restore it from a backup, or choose another folder with --data-dir."
        ) from None
    if state.version != _VERSION or state.hosts < 1 or state.workers < 1 or not state.zookeepers:
        raise CommandError(f"{path} has an unknown version.", "Use the version of Penstock that wrote it.")
    return state


def _count_not_lowered(noun: str, wanted: int | None, there: int | None, folder: str, option: str) -> int:
    if there is not None and wanted is not None and wanted < there:
        raise CommandError(
            f"The cluster in {folder} has {counted(there, noun)}, and cannot be started with fewer.",
            f"Use {option} {there}, omit {option}, or choose another folder with --data-dir.",
        )
    return wanted or there or 1


def _count_unchanged(noun: str, wanted: int | None, there: int | None, folder: str, option: str) -> int:
    if there is not None and wanted is not None and wanted != there:
        raise CommandError(
            f"The cluster in {folder} has {counted(there, noun)}, which cannot be changed.",
            f"Use {option} {there}, omit {option}, or choose another folder with --data-dir.",
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
    """The ports of the last run if they are free, else ZooKeeper's default ports, else any free ones."""
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
    """Different free ports of the loopback."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            reservation = PortReservation(HOST, 0)
            held.callback(reservation.release)
            if reservation.port not in taken:
                found.append(reservation.port)
        return found


_PORTS_TRIED: Final = 1_000


class CannotStart(CommandError):
    """Something on this machine prevents the start."""

    exit_code = 1


def run_cluster(
    folder: str,
    *,
    brokers: int | None,
    workers: int | None,
    zookeepers: int | None,
    port: int,
    http_port: int,
    log_level: str,
    snippets: Callable[[str], Sequence[str]],
    security: Path | None = None,
    registry: Sequence[str] = (),
) -> int:
    """Run a cluster until a signal. Returns the exit code."""
    cluster = open_cluster(
        folder, hosts=brokers, workers=workers, zookeepers=zookeepers, port=port, http_port=http_port
    )
    cluster = replace(cluster, security=security, registry=tuple(registry))
    _check_machine(os.path.join(folder, "zookeepers", "1"))
    with locked(cluster.folder):
        _check_ports(cluster)
        save_state(cluster)
        stages = cluster.programs(log_level)
        output = Output()
        output.line(f"Starting {_description(cluster)}. Data folder: {printable(folder)}")
        output.flush()
        code = supervise(
            stages,
            level=log_level,
            on_serving=lambda foreground: _welcome(output, cluster, foreground, snippets),
            on_stopping=lambda: click.echo("Stopping the brokers, then ZooKeeper. Ctrl-C again kills them.", err=True),
        )
    if code == 0:
        output.line(f"Stopped. The data is kept in {printable(folder)}")
        output.flush()
    return code


def supervise(
    stages: Sequence[Sequence[Program]],
    *,
    level: str,
    on_serving: Callable[[Foreground], None],
    on_stopping: Callable[[], None],
) -> int:
    """Run programs in the foreground. Returns the exit code."""
    names = [program.name for stage in stages for program in stage]
    foreground = Foreground(stages, level=level, print_line=PrefixedLines(names))
    return foreground.run(lambda: on_serving(foreground), on_stopping)


def _description(cluster: LocalCluster) -> str:
    brokers = counted(len(cluster.brokers), "broker")
    if cluster.workers > 1:
        brokers += f" ({counted(cluster.workers, 'worker')} on each of {counted(cluster.hosts, 'host')})"
    return f"{counted(len(cluster.zookeepers), 'ZooKeeper')} and {brokers}"


# --- checks before the start


def _check_machine(folder: str) -> None:
    """Raise CannotStart if ZooKeeper cannot run on this machine."""
    from penstock.cluster.errors import ZooKeeperNotStarted
    from penstock.cluster.tree.zookeeper.server import ServerSettings, ZooKeeperProcess

    try:
        ZooKeeperProcess(ServerSettings(folder, port=1))
    except ZooKeeperNotStarted as error:
        raise _without_zookeeper(error) from None


def _without_zookeeper(error: ZooKeeperNotStarted) -> CannotStart:
    return CannotStart(
        sentence(f"A cluster needs ZooKeeper, which cannot run here: {error.problem}"),
        f"{sentence(error.advice)} `penstock up` alone runs a single broker without ZooKeeper.",
    )


def _check_ports(cluster: LocalCluster) -> None:
    """Raise CannotStart if a port is in use."""
    clients = [broker.port for broker in cluster.brokers]
    http = [broker.http_port for broker in cluster.brokers if broker.http_port is not None]
    for option, ports in (("--port", clients), ("--http-port", http)):
        in_use = [port for port in ports if not is_free(port)]
        if in_use:
            free = _free_range(ports[-1] + 1, len(ports))
            where = f"Use {option} {free}, where enough ports are free." if free else f"Use another {option}."
            raise CannotStart(f"{HOST}:{in_use[0]} is in use by another process.", where)


def _free_range(first: int, count: int) -> int | None:
    for begin in range(first, min(first + _PORTS_TRIED, 65_536 - count)):
        if all(is_free(port) for port in range(begin, begin + count)):
            return begin
    return None


# --- output


def _welcome(
    output: Output, cluster: LocalCluster, foreground: Foreground, snippets: Callable[[str], Sequence[str]]
) -> None:
    from penstock import __version__

    running = output.style("running", "green", bold=True)
    output.line()
    output.line(f"{output.style('Penstock', 'cyan', bold=True)} {__version__} is {running}: {_description(cluster)}.")
    output.line()
    titles = ["PROCESS", "ADDRESS", "HTTP", "PID", "DATA"]
    rows: list[list[object]] = [
        [name, f"{HOST}:{ports.client}", None, foreground.pid(name), f"zookeepers/{number}"]
        for number, (name, ports) in enumerate(zip(cluster.zookeeper_names, cluster.zookeepers, strict=True), 1)
    ]
    rows += [
        [
            f"broker {broker.id}",
            f"{HOST}:{broker.port}",
            f"http://{HOST}:{broker.http_port}/health" if broker.http_port else None,
            foreground.pid(f"broker {broker.id}"),
            f"brokers/{broker.id}",
        ]
        for broker in cluster.brokers
    ]
    show_table(output, titles, rows, "  ")
    output.line()
    output.line(f"  Kafka clients   {cluster.bootstrap}")
    output.line(f"  ZooKeeper       {cluster.zookeeper_connect}")
    output.line(f"  Topics          {counted(cluster.replicas, 'replica')} by default")
    for line in snippets(cluster.bootstrap):
        output.line(line)
    output.line()
    output.line(f"{output.style('Ctrl-C', bold=True)} to stop. The data is kept.")
    output.flush()


# --- workers of one host


def worker_programs(
    settings: BrokerSettings,
    count: int,
    *,
    config: str | None,
    assignments: Sequence[str],
    http_host: str,
    http_port: int,
    log_level: str,
    registry: Sequence[str] = (),
) -> list[Program]:
    """The brokers of this host; `registry` are options of the first one. Raises CommandError."""
    if settings.zookeeper_connect is None:
        raise CommandError(
            "--workers needs a ZooKeeper.",
            "Use --set zookeeper.connect=HOST:PORT (`penstock zookeeper start` runs one), or `penstock up --workers "
            f"{count}` to run everything on this machine.",
        )
    options = ["--http-host", http_host, "--log-level", child_level(log_level)]
    if config is not None:
        options += ["--config", config]
    more = {number: ["--http-port", str(http_port + number if http_port else 0)] for number in range(count)}
    more[0] += registry
    return [_program(settings, number, [*options, *more[number]], assignments) for number in range(count)]


def _program(settings: BrokerSettings, number: int, options: Sequence[str], assignments: Sequence[str]) -> Program:
    own = worker_settings(settings, number)
    kept = [text for text in assignments if text.partition("=")[0].strip() not in own]
    words = [*options]
    for text in (*kept, *(f"{name}={value}" for name, value in own.items())):
        words += ["--set", text]
    return Program(f"broker {own['broker.id']}", (*penstock_command(), "server", "start", *words))


def worker_settings(settings: BrokerSettings, number: int) -> dict[str, str]:
    """The settings of worker `number`."""
    broker_id = max(settings.broker_id, 0) + number
    own = {
        "broker.id": str(broker_id),
        "broker.rack": settings.broker_rack or settings.host_name,
        "listeners": ",".join(str(_shifted(each, number)) for each in settings.listeners),
        "log.dirs": ",".join(f"{folder.rstrip('/')}/brokers/{broker_id}" for folder in settings.log_dirs),
    }
    if settings.where("node.id") != "default":
        own["node.id"] = own["broker.id"]
    if settings.where("advertised.listeners") != "default":
        own["advertised.listeners"] = ",".join(str(_shifted(each, number)) for each in settings.advertised_listeners)
    return own


def _shifted(listener: Listener, by: int) -> Listener:
    if listener.port == 0:
        return listener
    if listener.port + by > _PORT_MAX:
        raise CommandError(f"{listener} leaves no ports for {by} further workers.", "Use a lower port.")
    return replace(listener, port=listener.port + by)
