"""`penstock up`: a broker on this machine to try things with, or a cluster (`local_cluster`).

No setting is needed, and nothing outside this machine can connect. Snippets can be copied into a shell or a Python
prompt as they stand: they begin in the first column and are never wrapped.
"""

from __future__ import annotations

import os
import shlex
from functools import partial
from typing import TYPE_CHECKING

import click

from penstock.cli.log_format import LEVELS, log_to_stderr
from penstock.cli.output import printable
from penstock.cli.registry.registry import registry_beside, registry_words
from penstock.cli.server.server import DataFolder
from penstock.runtime.quantities import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.broker.broker import Broker
    from penstock.cli.security.security import SecurityFolder

_HOST = "127.0.0.1"
SECURITY_FOLDER = "security"
CLUSTER_FILE = "cluster.json"  # repeated here, because importing local_cluster would delay a single broker

_SNIPPETS = (
    (
        "In a shell",
        "or with kcat, or any Kafka tool",
        """\
echo hello | penstock produce -b {address}{command} greetings
penstock consume -b {address}{command} greetings --from-beginning""",
    ),
    (
        "Produce from Python",
        "or with any Kafka client",
        """\
from penstock import Producer{imports}
with Producer("{address}"{options}) as producer: print(producer.send("greetings", b"hello").result(10))""",
    ),
    (
        "Consume from Python",
        "until Ctrl-C",
        """\
from penstock import Consumer{imports}
consumer = Consumer("greetings", bootstrap_servers="{address}", auto_offset_reset="earliest"{options})
for record in consumer: print(record.offset, record.value)""",
    ),
)


@click.command(short_help="Run a broker or a cluster on this machine.")
@click.option(
    "--brokers", type=click.IntRange(1, 100), metavar="N",
    help="Number of brokers to run, with a ZooKeeper. An existing cluster keeps its number.",
)  # fmt: skip
@click.option(
    "--zookeepers", type=click.IntRange(1, 7), metavar="N",
    help="Number of ZooKeeper servers; three tolerate the loss of one.  [default: 1]",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1, 64), metavar="N",
    help="Number of brokers that run as one host.  [default: 1]",
)  # fmt: skip
@click.option(
    "--data-dir", type=DataFolder(), default="penstock-data", show_default=True, metavar="FOLDER",
    help="Data folder.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=9092, show_default=True,
    help="Port for clients; 0 is any free port. Further brokers use the next ports.",
)  # fmt: skip
@click.option(
    "--http-port", type=click.IntRange(0, 65_535), default=8092, show_default=True,
    help="Port of the console, /metrics and /health; 0 disables them. Further brokers use the next ports.",
)  # fmt: skip
@click.option(
    "--registry-port", type=click.IntRange(0, 65_535), default=0, show_default=True,
    help="Port of a schema registry in the first broker's process, usually 8081; 0 is none.",
)  # fmt: skip
@click.option(
    "--secure", is_flag=True,
    help="Use TLS, users and ACLs. The first start creates a certificate authority and the user admin "
    "in the data folder; later starts use them.",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="warning", show_default=True,
    help="Level of the log on standard error.",
)  # fmt: skip
def up(
    data_dir: str,
    port: int,
    http_port: int,
    registry_port: int,
    log_level: str,
    secure: bool,
    brokers: int | None,
    zookeepers: int | None,
    workers: int | None,
) -> None:
    """Run a broker on this machine until Ctrl-C; with --brokers 3, a cluster with a real ZooKeeper.

    Kafka clients on this machine can use it immediately. Topics are created when they are first used. To change
    settings or serve other machines, use `penstock server start`.

    \b
    Exit code: 0  stopped cleanly
               1  could not start; the message says what to do
               2  invalid options
    """
    log_to_stderr(log_level)
    security = _secured(data_dir, port, is_wanted=secure)
    if {brokers, zookeepers, workers} == {None} and not os.path.exists(os.path.join(data_dir, CLUSTER_FILE)):
        _run_single_broker(data_dir, port, http_port, registry_port, security)
        return
    from penstock.cli.server.local_cluster import run_cluster

    code = run_cluster(
        data_dir,
        brokers=brokers,
        workers=workers,
        zookeepers=zookeepers,
        port=port,
        http_port=http_port,
        log_level=log_level,
        snippets=partial(_snippet_lines, security=security),
        security=None if security is None else security.server_properties,
        registry=registry_words(_HOST, registry_port, None if security is None else str(security.client_properties)),
    )
    click.get_current_context().exit(code)


def _secured(data_dir: str, port: int, *, is_wanted: bool) -> SecurityFolder | None:
    """The security files of a data folder, made if they are wanted for the first time; None for plaintext."""
    home = os.path.join(data_dir, SECURITY_FOLDER)
    if not is_wanted and not os.path.exists(home):
        return None
    from pathlib import Path

    from penstock.cli.security.security import SecurityFolder

    folder = SecurityFolder(Path(home))
    if not folder.exists:
        folder.create(("localhost", _HOST, "::1"), port or 9092)
    return folder


def _run_single_broker(
    data_dir: str, port: int, http_port: int, registry_port: int, security: SecurityFolder | None
) -> None:
    from rich.console import Console

    from penstock.broker.settings import InvalidSettings, load_settings
    from penstock.cli.server.broker_process import SettingsRejected, run_broker

    console = Console(highlight=False)
    protocol = "PLAINTEXT" if security is None else "SASL_SSL"
    assignments = {
        "log.dirs": data_dir,
        "listeners": f"{protocol}://{_HOST}:{port}",
        "advertised.listeners": f"{protocol}://{_HOST}:{port}",
        # The delay is for members that start together; here it would only puzzle a new user.
        "group.initial.rebalance.delay.ms": "0",
    }
    try:
        settings = load_settings(
            None if security is None else security.server_properties,
            [f"{name}={value}" for name, value in assignments.items()],
        ).settings
    except InvalidSettings as error:
        raise SettingsRejected(error) from None
    run_broker(
        settings,
        http_host=_HOST,
        http_port=http_port or None,
        on_started=lambda broker: _welcome(console, broker, security, registry_port),
        on_stopping=lambda: console.print("\nStopping ...", style="dim"),
        advise_on_port=_advise_on_port,
        companion=registry_beside(_HOST, registry_port, None if security is None else str(security.client_properties)),
    )
    console.print(f"Stopped. The data is kept in {printable(data_dir)}", markup=False, soft_wrap=True)


def _welcome(console: Console, broker: Broker, security: SecurityFolder | None, registry_port: int) -> None:
    from rich.text import Text

    from penstock import __version__
    from penstock.cli.server.broker_process import http_url

    address = f"{_HOST}:{broker.advertised[0].port}"
    facts = {
        "Kafka clients": address,
        "Cluster": broker.cluster.image.cluster_id,
        "Data": f"{printable(broker.settings.log_dirs[0])} ({_contents(broker)})",
    }
    if broker.http_port is not None:
        url = http_url(_HOST, broker.http_port)
        facts |= {"Console": f"{url}/", "Metrics": f"{url}/metrics", "Health": f"{url}/health"}
    if registry_port:
        facts["Schemas"] = http_url(_HOST, registry_port)
    if security is not None:
        facts["Login"] = f"{printable(str(security.client_properties))} (for --command-config, and other Kafka tools)"
    lines = [Text.assemble(("Penstock", "bold cyan"), f" {__version__} is ", ("running", "bold green"), "."), Text()]
    lines += [Text.assemble((f"  {name:<15}", "dim"), value) for name, value in facts.items()]
    for title, note, code in [*_snippets(address, security), *_user_snippet(address, security)]:
        lines += [Text(), Text.assemble((title, "bold"), (f" ({note})", "dim"))]
        lines += [Text(line, "cyan") for line in code.splitlines()]
    lines += [Text(), Text.assemble(("Ctrl-C", "bold"), " to stop. The data is kept.")]
    for line in lines:
        console.print(line, soft_wrap=True)
    console.file.flush()


def _snippets(address: str, security: SecurityFolder | None) -> list[tuple[str, str, str]]:
    """(title, note, code) for this address."""
    command, options, imports = "", "", ""
    if security is not None:
        command = f" --command-config {shlex.quote(str(security.client_properties))}"
        login = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": security.user,
            "sasl_plain_password": f"file:{security.password.absolute()}",
            "ssl_truststore_location": str(security.authority.absolute()),
        }
        imports = f"\nlogin = {login!r}"
        options = ", **login"
    return [
        (title, note, code.format(address=address, command=command, options=options, imports=imports))
        for title, note, code in _SNIPPETS
    ]


def _user_snippet(address: str, security: SecurityFolder | None) -> list[tuple[str, str, str]]:
    """The commands that add a user and an ACL."""
    if security is None:
        return []
    from penstock.cli.security.security import first_steps

    return [("Add a user and an ACL", "in a shell", "\n".join(first_steps(security.client_properties, address)))]


def _snippet_lines(address: str, security: SecurityFolder | None = None) -> list[str]:
    """The snippets for a cluster at this address."""
    lines: list[str] = []
    for title, note, code in [*_snippets(address, security), *_user_snippet(address, security)]:
        lines += ["", f"{title} ({note})", *code.splitlines()]
    return lines


def _contents(broker: Broker) -> str:
    topics = sum(not topic.startswith("__") for topic in broker.cluster.image.topics)
    return counted(topics, "topic") if topics else "no topics yet"


def _advise_on_port(port: int) -> str:
    from penstock.cli.server.broker_process import free_port_after

    free = free_port_after(port)
    example = f"penstock up --port {free}" if free else "penstock up --port 0 (any free port)"
    return f"If it is a broker, use it. Otherwise choose another port: {example}"
