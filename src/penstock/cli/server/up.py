"""`penstock up`: a broker on this machine to try things with, or a cluster (`local_cluster`).

No setting is needed, and nothing outside this machine can connect. Snippets can be copied into a shell or a Python
prompt as they stand: they begin in the first column and are never wrapped.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from penstock.cli.log_format import LEVELS, log_to_stderr
from penstock.cli.output import counted, printable
from penstock.cli.server.server import DataFolder

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.broker.broker import Broker

_HOST = "127.0.0.1"
CLUSTER_FILE = "cluster.json"  # repeated here, because importing local_cluster would delay a single broker

_SNIPPETS = (
    (
        "In a shell",
        "or with kcat, or any Kafka tool",
        """\
echo hello | penstock produce -b {address} greetings
penstock consume -b {address} greetings --from-beginning""",
    ),
    (
        "Produce from Python",
        "or with any Kafka client",
        """\
from penstock import Producer
with Producer("{address}") as producer: print(producer.send("greetings", b"hello").result(10))""",
    ),
    (
        "Consume from Python",
        "until Ctrl-C",
        """\
from penstock import Consumer
consumer = Consumer("greetings", bootstrap_servers="{address}", auto_offset_reset="earliest")
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
    help="Port of /metrics and /health; 0 disables them. Further brokers use the next ports.",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="warning", show_default=True,
    help="Level of the log on standard error.",
)  # fmt: skip
def up(
    data_dir: str,
    port: int,
    http_port: int,
    log_level: str,
    brokers: int | None,
    zookeepers: int | None,
    workers: int | None,
) -> None:
    """Run a broker on this machine until Ctrl-C; with --brokers 3, a cluster with a real ZooKeeper.

    Kafka clients on this machine can use it at once. Topics are created when they are first used. To change settings or
    serve other machines, use `penstock server start`.

    \b
    Exit code: 0  stopped cleanly
               1  could not start; the message says what to do
               2  invalid options
    """
    log_to_stderr(log_level)
    if {brokers, zookeepers, workers} == {None} and not os.path.exists(os.path.join(data_dir, CLUSTER_FILE)):
        _run_single_broker(data_dir, port, http_port)
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
        snippets=_snippet_lines,
    )
    click.get_current_context().exit(code)


def _run_single_broker(data_dir: str, port: int, http_port: int) -> None:
    from rich.console import Console

    from penstock.broker.settings import settings_from
    from penstock.cli.server.broker_process import run_broker

    console = Console(highlight=False)
    settings = settings_from(
        {
            "log.dirs": data_dir,
            "listeners": f"PLAINTEXT://{_HOST}:{port}",
            # The delay is for members that start together; here it would only puzzle a new user.
            "group.initial.rebalance.delay.ms": "0",
        }
    )
    run_broker(
        settings,
        http_host=_HOST,
        http_port=http_port or None,
        on_started=lambda broker: _welcome(console, broker),
        on_stopping=lambda: console.print("\nStopping ...", style="dim"),
        advise_on_port=_advise_on_port,
    )
    console.print(f"Stopped. The data is kept in {printable(data_dir)}", markup=False, soft_wrap=True)


def _welcome(console: Console, broker: Broker) -> None:
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
        facts |= {"Metrics": f"{url}/metrics", "Health": f"{url}/health"}
    lines = [Text.assemble(("Penstock", "bold cyan"), f" {__version__} is ", ("running", "bold green"), "."), Text()]
    lines += [Text.assemble((f"  {name:<15}", "dim"), value) for name, value in facts.items()]
    for title, note, code in _SNIPPETS:
        lines += [Text(), Text.assemble((title, "bold"), (f" ({note})", "dim"))]
        lines += [Text(line, "cyan") for line in code.format(address=address).splitlines()]
    lines += [Text(), Text.assemble(("Ctrl-C", "bold"), " to stop. The data is kept.")]
    for line in lines:
        console.print(line, soft_wrap=True)
    console.file.flush()


def _snippet_lines(address: str) -> list[str]:
    """The snippets for a cluster at this address."""
    lines: list[str] = []
    for title, note, code in _SNIPPETS:
        lines += ["", f"{title} ({note})", *code.format(address=address).splitlines()]
    return lines


def _contents(broker: Broker) -> str:
    topics = sum(not topic.startswith("__") for topic in broker.cluster.image.topics)
    return counted(topics, "topic") if topics else "no topics yet"


def _advise_on_port(port: int) -> str:
    from penstock.cli.server.broker_process import free_port_after

    free = free_port_after(port)
    example = f"penstock up --port {free}" if free else "penstock up --port 0 (any free port)"
    return f"If it is a broker, use it. Otherwise choose another port: {example}"
