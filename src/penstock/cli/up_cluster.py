"""`penstock up --brokers N`: a cluster to try things with, on this machine, with a real ZooKeeper.

Rule: what can be known to be wrong beforehand (no Java, a port in use, a folder of something else) is told before
anything is started. Everything runs in the foreground and ends with this command; the data stays.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.local_cluster import HOST, LocalCluster, is_free, locked, open_cluster, save_state
from penstock.cli.output import CommandError, Output, counted, printable, sentence
from penstock.cli.supervising import PrefixedLines, Program, Supervisor
from penstock.cli.tables import show_table

if TYPE_CHECKING:
    from penstock.cluster.zookeeper_errors import ZooKeeperNotStarted

_PORTS_TRIED: Final = 1_000


class CannotStart(CommandError):
    """Something of this machine is missing, or in the way."""

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
) -> int:
    """Be a cluster until a signal asks for the end. The exit code."""
    cluster = open_cluster(
        folder, hosts=brokers, workers=workers, zookeepers=zookeepers, port=port, http_port=http_port
    )
    _check_machine(os.path.join(folder, "zookeepers", "1"))
    with locked(cluster.folder):
        _check_ports(cluster)
        save_state(cluster)
        stages = cluster.programs(log_level)
        output = Output()
        output.line(f"Starting {_what(cluster)}; the data is in {printable(folder)}")
        output.flush()
        code = supervise(
            stages,
            level=log_level,
            on_serving=lambda supervisor: _welcome(output, cluster, supervisor, snippets),
            on_stopping=lambda: click.echo(
                "Stopping: brokers first, ZooKeeper last; Ctrl-C again kills them.", err=True
            ),
        )
    if code == 0:
        output.line(f"Stopped; the data stays in {printable(folder)}")
        output.flush()
    return code


def supervise(
    stages: Sequence[Sequence[Program]],
    *,
    level: str,
    on_serving: Callable[[Supervisor], None],
    on_stopping: Callable[[], None],
) -> int:
    """Run these programs in the foreground. The exit code."""
    tell = PrefixedLines([program.name for stage in stages for program in stage])

    async def live() -> int:
        supervisor = Supervisor(stages, level=level, tell=tell)
        return await supervisor.run(lambda: on_serving(supervisor), on_stopping)

    return asyncio.run(live())


def _what(cluster: LocalCluster) -> str:
    brokers = counted(len(cluster.brokers), "broker")
    if cluster.workers > 1:
        brokers += f" ({counted(cluster.workers, 'worker')} on each of {counted(cluster.hosts, 'host')})"
    return f"{counted(len(cluster.zookeepers), 'ZooKeeper')} and {brokers}"


# --- before


def _check_machine(folder: str) -> None:
    """CannotStart if there is no ZooKeeper to be started here."""
    from penstock.cluster.zookeeper_errors import ZooKeeperNotStarted
    from penstock.cluster.zookeeper_server import ZooKeeperProcess
    from penstock.cluster.zookeeper_settings import ServerSettings

    try:
        ZooKeeperProcess(ServerSettings(folder, port=1))
    except ZooKeeperNotStarted as error:
        raise _without_zookeeper(error) from None


def _without_zookeeper(error: ZooKeeperNotStarted) -> CannotStart:
    return CannotStart(
        sentence(f"A cluster needs ZooKeeper, which cannot run here: {error.problem}"),
        f"{sentence(error.advice)} Without it, `penstock up` runs one broker that needs none.",
    )


def _check_ports(cluster: LocalCluster) -> None:
    """CannotStart if somebody listens where brokers shall."""
    clients = [broker.port for broker in cluster.brokers]
    http = [broker.http_port for broker in cluster.brokers if broker.http_port is not None]
    for option, ports in (("--port", clients), ("--http-port", http)):
        in_use = [port for port in ports if not is_free(port)]
        if in_use:
            free = _free_range(ports[-1] + 1, len(ports))
            where = f"{option} {free} has as many that are free." if free else f"Give another {option}."
            raise CannotStart(f"{HOST}:{in_use[0]} is in use: another process listens there.", where)


def _free_range(first: int, count: int) -> int | None:
    for begin in range(first, min(first + _PORTS_TRIED, 65_536 - count)):
        if all(is_free(port) for port in range(begin, begin + count)):
            return begin
    return None


# --- when it runs


def _welcome(
    output: Output, cluster: LocalCluster, supervisor: Supervisor, snippets: Callable[[str], Sequence[str]]
) -> None:
    from penstock import __version__

    running = output.style("running", "green", bold=True)
    output.line()
    output.line(f"{output.style('Penstock', 'cyan', bold=True)} {__version__} is {running}: {_what(cluster)}.")
    output.line()
    titles = ["PROCESS", "ADDRESS", "HTTP", "PID", "DATA"]
    rows: list[list[object]] = [
        [name, f"{HOST}:{ports.client}", None, supervisor.pid(name), f"zookeepers/{number}"]
        for number, (name, ports) in enumerate(zip(cluster.zookeeper_names, cluster.zookeepers, strict=True), 1)
    ]
    rows += [
        [
            f"broker {broker.id}",
            f"{HOST}:{broker.port}",
            f"http://{HOST}:{broker.http_port}/health" if broker.http_port else None,
            supervisor.pid(f"broker {broker.id}"),
            f"brokers/{broker.id}",
        ]
        for broker in cluster.brokers
    ]
    show_table(output, titles, rows, "  ")
    output.line()
    output.line(f"  Kafka clients   {cluster.bootstrap}")
    output.line(f"  ZooKeeper       {cluster.zookeeper_connect}")
    output.line(f"  Topics          {counted(cluster.replicas, 'replica')} unless they say otherwise")
    for line in snippets(cluster.bootstrap):
        output.line(line)
    output.line()
    output.line(f"{output.style('Ctrl-C', bold=True)} stops it; the data stays.")
    output.flush()
