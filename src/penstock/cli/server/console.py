"""`penstock console`: the web console, for any cluster that speaks the Kafka protocol.

Brokers start the same command, with a Unix-domain socket instead of a port, for what their HTTP port is asked for
besides /metrics and /health.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.log_format import LEVELS, log_to_stderr
from penstock.cli.output import CommandError

if TYPE_CHECKING:
    from penstock.client.addresses import ZooKeeperAddress
    from penstock.console.server import ConsoleServer
    from penstock.console.warehouse import WarehouseOptions

_LOGIN_PROPERTIES: Final = (
    "sasl.username", "sasl.plain.username", "sasl.jaas.config", "sasl.oauthbearer.token.endpoint.url",
)  # fmt: skip
_HTTP_PORT: Final = 8092
_NICENESS: Final = 10
_DISPENSABLE: Final = "800"


@click.command(short_help="Run the web console of a cluster.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True,
              help="Port of the console; 0 is any free port.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the console.")
@click.option("--allow-host", multiple=True, metavar="NAME",
              help="A name by which browsers call this machine, besides addresses and localhost; * allows all. Can be "
              "repeated.")  # fmt: skip
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option("--http-port", type=click.IntRange(0, 65_535), default=_HTTP_PORT, show_default=True,
              help="HTTP port of Penstock brokers, for rates and latencies; 0 asks none.")  # fmt: skip
@click.option("--http-url", multiple=True, metavar="URL",
              help="HTTP address of a Penstock broker. Can be repeated.")  # fmt: skip
@click.option("--http-token", metavar="TOKEN", envvar="PENSTOCK_HTTP_TOKEN", help="Token for /metrics of brokers on "
              "other machines (penstock.http.token).  [env: PENSTOCK_HTTP_TOKEN]")  # fmt: skip
@click.option("--registry", metavar="URL", default="", help="Address of a schema registry, to decode values.")
@click.option("-w", "--warehouse", "warehouse_uri", metavar="FOLDER", default="", envvar="PENSTOCK_WAREHOUSE",
              show_envvar=True, help="Folder or URI of the tables that are loaded from this cluster.")  # fmt: skip
@click.option("--zookeeper-groups", metavar="HOST:PORT/CHROOT", default="",
              help="ZooKeeper in which consumers of Kafka 0.8 and 0.9 keep their groups.  "
              "[default: --zookeeper]")  # fmt: skip
@click.option("--audit-topic", metavar="TOPIC", default="",
              help="Topic of the audit log.  [default: the brokers' penstock.audit.topic]")  # fmt: skip
@click.option("--socket", "path", hidden=True, help="Listen on a Unix-domain socket instead.")
@click.option("--idle", "idle_s", type=click.FloatRange(0), default=0, hidden=True,
              help="Stop after as many seconds without a request.")  # fmt: skip
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True,
              help="Level of the log on standard error.")  # fmt: skip
@cluster_command
def console(
    cluster: Cluster,
    port: int,
    host: str,
    allow_host: tuple[str, ...],
    read_only: bool,
    http_port: int,
    http_url: tuple[str, ...],
    http_token: str | None,
    registry: str,
    warehouse_uri: str,
    zookeeper_groups: str,
    audit_topic: str,
    path: str | None,
    idle_s: float,
    log_level: str,
) -> None:
    """Run the web console of a cluster: topics, records, groups, tables, brokers, users and ACLs in a browser.

    The console acts with the login of --command-config. If the cluster has logins and none is given, visitors log in
    with their own Kafka users, and their ACLs decide.

    \b
    penstock console -b kafka-1:9092
    penstock console -b kafka-1:9093 --command-config client.properties --read-only
    """
    from penstock.console.accounts import ConsoleOptions
    from penstock.console.server import ConsoleServer, listen, listen_at

    log_to_stderr(log_level)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
    client_options, login = _client_options(cluster)
    hosts = None if path is not None or "*" in allow_host else _hosts(host, allow_host)
    try:
        options = ConsoleOptions(
            cluster.servers, client_options, mechanism=cluster.properties.get("sasl.mechanism", "SCRAM-SHA-512"),
            login=login, read_only=read_only, hosts=hosts, http_urls=http_url, http_port=http_port,
            http_token=http_token, registry_url=registry, words=_words(), audit_topic=audit_topic,
            zookeeper=_zookeeper(cluster, zookeeper_groups),
            warehouse=_warehouse(cluster, warehouse_uri),
        )  # fmt: skip
        server = ConsoleServer(options, idle_s=idle_s)
    except ValueError as error:
        raise CommandError(f"{error}.", "Use http://HOST:PORT.") from None
    try:
        listening = listen(host, port) if path is None else listen_at(path)
    except OSError as error:
        where = path if path is not None else f"{host}:{port}"
        raise CommandError(f"Cannot listen on {where}: {error.strerror}.", "Choose another port with --port.") from None

    def started() -> None:
        if path is None:
            address = host if ":" not in host else f"[{host}]"
            shown = "localhost" if host in ("0.0.0.0", "::") else address
            click.echo(f"The console of {cluster.servers}: http://{shown}:{listening.getsockname()[1]}/")

    _run(server, listening, started, is_child=path is not None)


def _warehouse(cluster: Cluster, uri: str) -> WarehouseOptions | None:
    """The tables, which other processes of this command read."""
    from penstock.console.warehouse import WarehouseOptions

    if not uri:
        return None
    whole = uri if "://" in uri else os.path.abspath(uri)
    return WarehouseOptions(whole, (sys.executable, "-P", "-m", "penstock"), cluster.properties)


def _zookeeper(cluster: Cluster, given: str) -> ZooKeeperAddress | None:
    """The ZooKeeper of old consumers: the given one, or the one that names the brokers."""
    from penstock.client.addresses import ZooKeeperAddress, parse_bootstrap

    if not given:
        servers = parse_bootstrap(cluster.servers)
        return servers if isinstance(servers, ZooKeeperAddress) else None
    found = parse_bootstrap(given if "://" in given else f"zookeeper://{given}")
    if not isinstance(found, ZooKeeperAddress):
        raise CommandError(f"{given} is not the address of a ZooKeeper.", "Use --zookeeper-groups HOST:PORT/CHROOT.")
    return found


def _give_way() -> None:
    """Leave CPU and memory to the broker that started this process."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_DISPENSABLE)


def _client_options(cluster: Cluster) -> tuple[dict[str, Any], bool]:
    """The options of the console's clients, and whether visitors have to log in."""
    protocol = cluster.properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if not protocol.startswith("SASL_") or any(name in cluster.properties for name in _LOGIN_PROPERTIES):
        return cluster.connecting("penstock-console"), False
    from penstock.cli.connection import ssl_context

    return {"ssl": ssl_context(cluster.properties), "security_protocol": protocol}, True


def _hosts(host: str, allowed: tuple[str, ...]) -> frozenset[str]:
    """The names of this machine; a name of another site must not work, or its pages could use the console."""
    own = socket.gethostname().lower()
    return frozenset({own, own.partition(".")[0], host.lower(), *(each.lower() for each in allowed)})


def _words() -> tuple[str, ...]:
    """Options of this command line that the shown commands need too."""
    params = click.get_current_context().params
    if not params.get("command_config"):
        return ()
    # The file of a broker's console is the broker's; its visitors have one with their own login.
    return ("--command-config", "client.properties" if params.get("path") else params["command_config"])


def _run(server: ConsoleServer, listening: socket.socket, started: Callable[[], None], *, is_child: bool) -> None:
    import asyncio

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, server.stop)
        if is_child:
            _give_way()
            # The broker holds the other end of the pipe: when it is gone, so is the reason for this process.
            loop.add_reader(sys.stdin.fileno(), server.stop)
        await server.serve(listening, started)

    new_loop: Any = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        new_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner, contextlib.suppress(KeyboardInterrupt):
        runner.run(serve())
