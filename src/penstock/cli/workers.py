"""`penstock server start --workers N`: a host with several cores, as several brokers.

Theory: a broker is one process with one event loop, so more cores are more brokers. Each has its own id, port and data
folders, and the cluster sees ordinary brokers: clients go to the leader of a partition as they always do. All of a host
share one rack label, so that the replicas of a partition land on different hosts.

Rule: worker n has what its host was given, n further: broker.id + n, each port + n, HTTP port + n, and the folder
brokers/<id> of each data folder. They are a cluster, and what they share is in ZooKeeper; without one there is nothing
to share, and that is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.cli.local_cluster import child_level, penstock_command
from penstock.cli.output import CommandError
from penstock.cli.supervising import Program

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings, Listener

_PORT_MAX = 65_535


def worker_programs(
    settings: BrokerSettings,
    count: int,
    *,
    config: str | None,
    assignments: Sequence[str],
    http_host: str,
    http_port: int,
    log_level: str,
) -> list[Program]:
    """The brokers of this host. CommandError if that cannot be."""
    if settings.zookeeper_connect is None:
        raise CommandError(
            "Several workers are a cluster, and there is no ZooKeeper for it.",
            "Give --set zookeeper.connect=HOST:PORT (`penstock zookeeper start` runs one); or `penstock up --workers "
            f"{count}` runs everything on this machine.",
        )
    options = ["--http-host", http_host, "--log-level", child_level(log_level)]
    if config is not None:
        options += ["--config", config]
    return [
        _program(settings, number, [*options, "--http-port", str(http_port + number if http_port else 0)], assignments)
        for number in range(count)
    ]


def _program(settings: BrokerSettings, number: int, options: Sequence[str], assignments: Sequence[str]) -> Program:
    own = worker_settings(settings, number)
    kept = [text for text in assignments if text.partition("=")[0].strip() not in own]
    words = [*options]
    for text in (*kept, *(f"{name}={value}" for name, value in own.items())):
        words += ["--set", text]
    return Program(f"broker {own['broker.id']}", (*penstock_command(), "server", "start", *words))


def worker_settings(settings: BrokerSettings, number: int) -> dict[str, str]:
    """What worker `number` has of its own."""
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
        raise CommandError(f"{listener} leaves no ports for {by} further workers.", "Give a lower one.")
    return replace(listener, port=listener.port + by)
