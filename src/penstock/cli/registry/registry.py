"""`penstock registry start`: run a schema registry; and the registry in the process of a broker (--registry-port).

The broker does not know the registry: this module composes them. The registry connects to the broker as any client
does, with the login of --registry-config where listeners need one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.connection import Cluster, cluster_command, security_options
from penstock.cli.log_format import LEVELS, log_to_stderr
from penstock.cli.output import CommandError, sentence

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.registry import Registry

logger = logging.getLogger(__name__)
_ALL_ADDRESSES: Final = ("", "0.0.0.0", "::")


class RegistryError(CommandError):
    """A registry that cannot start, or ended by itself."""

    exit_code = 1
    code = "REGISTRY"


@click.group()
def registry() -> None:
    """Run a schema registry."""


@registry.command(short_help="Run a schema registry in the foreground until SIGTERM or Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8081, show_default=True, help="0 is any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all.")
@click.option(
    "--advertise", metavar="URL", help="Where other instances find this one.  [default: by --host and --port]"
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME",
    help="Name by which clients may call this machine; * is any. Can be repeated.",
)  # fmt: skip
@click.option("--schemas-topic", "topic", default="_schemas", show_default=True, help="Topic that keeps the schemas.")
@click.option(
    "--election-group", "group_id", default="schema-registry", show_default=True,
    help="Group by which the instances elect a leader.",
)  # fmt: skip
@click.option(
    "--replication-factor", type=click.IntRange(1), default=3, show_default=True,
    help="Replicas of a new topic, at most one per broker.",
)  # fmt: skip
@click.option("--auth-token", metavar="SOURCE", help="Token that requests have to show: file:PATH or env:NAME.")
@click.option("--auth-user", metavar="USER", help="User whose password requests may show instead.")
@click.option("--auth-password", metavar="SOURCE", help="Password of that user: file:PATH or env:NAME.")
@click.option("--tls-certificate", metavar="FILE", help="Certificate chain (PEM) for HTTPS.")
@click.option("--tls-key", metavar="FILE", help="Private key (PEM) for HTTPS.")
@click.option(
    "--leader-ca", metavar="FILE",
    help="Certificates (PEM) of the authority of other instances.  [default: the system's, and roots in "
    "--tls-certificate]",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True,
    help="Level of the log on standard error.",
)  # fmt: skip
@cluster_command
def start(
    cluster: Cluster,
    port: int,
    host: str,
    advertise: str | None,
    hosts: tuple[str, ...],
    topic: str,
    group_id: str,
    replication_factor: int,
    auth_token: str | None,
    auth_user: str | None,
    auth_password: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    leader_ca: str | None,
    log_level: str,
) -> None:
    """Run a schema registry with Confluent's REST API, on the topic _schemas of any Kafka cluster.

    Start it on several machines: they elect a leader, which writes; all of them answer reads. --advertise is then the
    address by which the others reach each one.

    \b
    penstock registry start -b kafka:9092
    penstock registry start -b kafka:9092 --host 0.0.0.0 --advertise http://$(hostname -f):8081

    \b
    Exit code: 1  could not start, for example because the port is in use
               3  the cluster could not be reached
    """
    from penstock.registry import RegistrySettings

    log_to_stderr(log_level)
    if (auth_user is None) != (auth_password is None):
        raise CommandError("--auth-user and --auth-password belong together.", "Give both, or none.")
    if (tls_certificate is None) != (tls_key is None):
        raise CommandError("--tls-certificate and --tls-key belong together.", "Give both, or none.")
    settings = RegistrySettings(
        bootstrap_servers=cluster.servers,
        options=cluster.connecting("penstock-registry"),
        topic=topic,
        group_id=group_id,
        replication_factor=replication_factor,
        host=host,
        port=port,
        advertised_url=advertise,
        hosts=hosts,
        token=secret_of("--auth-token", auth_token),
        user=auth_user,
        password=secret_of("--auth-password", auth_password),
        start_timeout_ms=cluster.request_timeout_ms,
        ssl_certfile=tls_certificate,
        ssl_keyfile=tls_key,
        ssl_cafile=leader_ca,
    )
    _run(settings)


def secret_of(option: str, source: str | None) -> str | None:
    """The secret of file:PATH or env:NAME."""
    if source is None:
        return None
    from penstock.security.credentials import CredentialsError, resolve

    if not source.startswith(("file:", "env:")):
        raise CommandError(
            f"{option} must be file:PATH or env:NAME.", "A secret on the command line is visible to others."
        )
    try:
        found = resolve(source)
    except CredentialsError as error:
        raise CommandError(f"{option} cannot be read: {error}.") from None
    if not found:
        raise CommandError(f"{option} is empty.")
    return found


def _run(settings: Any) -> None:
    """Run until a signal."""
    import signal
    import threading

    from penstock.registry import Registry

    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    running = started(Registry(settings=settings))
    click.echo(f"Schema registry: {running.url}")
    try:
        while not stopping.wait(0.2):
            if running.wait(0):
                raise RegistryError("The registry ended by itself.", "The log has the reason.")
    finally:
        running.stop()


def started(instance: Registry) -> Registry:
    """Start an instance. RegistryError."""
    from penstock.registry.errors import RegistryUnavailable

    try:
        return instance.start()
    except RegistryUnavailable as error:
        problem, _, advice = str(error).rpartition("; ")
        raise RegistryError(sentence(problem or advice), sentence(advice if problem else "")) from None
    except TimeoutError:
        raise RegistryError(
            "The registry did not read its topic in time.", "Run `penstock doctor` to diagnose the cluster."
        ) from None


class RegistryBesideBroker:
    """The registry in a broker's process, on a thread and an event loop of its own."""

    def __init__(self, host: str, port: int, config: str | None) -> None:
        from penstock.cli.connection import client_properties

        self._host = host
        self._port = port
        self._options = {"client_id": "penstock-registry"}
        if config is not None:
            self._options |= security_options(client_properties(config, {}))
        self._registry: Registry | None = None

    def start(self, broker: Broker) -> None:
        """Called on a thread, when the broker serves. RegistryError."""
        from penstock.registry import Registry, RegistrySettings

        listener = broker.advertised[0]
        address = f"[{listener.host}]:{listener.port}" if ":" in listener.host else f"{listener.host}:{listener.port}"
        settings = RegistrySettings(
            bootstrap_servers=address,
            options=self._options,
            host=self._host,
            port=self._port,
            advertised_url=f"http://{listener.host}:{self._port}" if self._host in _ALL_ADDRESSES else None,
            hosts=(listener.host,),
        )
        self._registry = Registry(settings=settings)
        started(self._registry)
        logger.info("schema registry: url=%s", self._registry.url)

    def stop(self) -> None:
        """Called on a thread, before the broker stops."""
        if self._registry is not None:
            self._registry.stop()


def registry_options(command: Any) -> Any:
    """--registry-port and its companions, for commands that run brokers."""
    for option in (
        click.option(
            "--registry-config", metavar="FILE",
            help="File of client properties by which the registry connects to the broker, if that needs a login.",
        ),
        click.option(
            "--registry-host", default="127.0.0.1", show_default=True, help="Address of the schema registry.",
        ),
        click.option(
            "--registry-port", type=click.IntRange(0, 65_535), default=0, show_default=True,
            help="Port of a schema registry in the broker's process, usually 8081; 0 is none.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def registry_beside(host: str, port: int, config: str | None) -> RegistryBesideBroker | None:
    """The companion of a broker; None without a port."""
    return RegistryBesideBroker(host, port, config) if port else None


def registry_words(host: str, port: int, config: str | None) -> list[str]:
    """The same as options of `penstock server start`."""
    if not port:
        return []
    more = [] if config is None else ["--registry-config", config]
    return ["--registry-host", host, "--registry-port", str(port), *more]
