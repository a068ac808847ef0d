"""What commands over tables and pipelines share: the warehouse, where work runs, the cluster for Spark's readers.

A reader in an executor takes a certificate and its key from one file and runs in another folder than the command. So
files are named by absolute paths, and a key in a file of its own is rejected before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli.connection import Cluster
from penstock.cli.output import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.activity.cluster import Cluster as EventCluster
    from penstock.activity.cluster import ValueFormat
    from penstock.spark.tables.runner import Runner
    from penstock.spark.tables.warehouse import Warehouse


WAREHOUSE_VARIABLE: Final = "PENSTOCK_WAREHOUSE"
_Command = TypeVar("_Command", bound=Callable[..., Any])
# As a reader in an executor knows them, by the names of a client's properties here.
_READER_NAMES: Final = {
    "security.protocol": "kafka.security.protocol",
    "ssl.ca.location": "kafka.ssl.truststore.location",
    "ssl.certificate.location": "kafka.ssl.keystore.location",
    **{
        name: f"kafka.{name}"
        for name in (
            "ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.password", "ssl.keystore.location",
            "ssl.keystore.type", "ssl.keystore.password", "ssl.key.password", "ssl.endpoint.identification.algorithm",
            "sasl.mechanism", "sasl.jaas.config", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope",
            "sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.credentials.client.secret",
        )
    },
    "sasl.mechanisms": "kafka.sasl.mechanism",
    "client.id": "kafka.client.id",
}  # fmt: skip


def warehouse_option(command: _Command) -> _Command:
    return click.option(
        "-w", "--warehouse", "warehouse_uri", default="warehouse", show_default=True, envvar=WAREHOUSE_VARIABLE,
        show_envvar=True, metavar="FOLDER", help="Folder of the tables, or a URI such as s3://bucket/tables.",
    )(command)  # fmt: skip


def engine_options(command: _Command) -> _Command:
    """--local, --spark and --master."""
    for option in (
        click.option("--local", is_flag=True, help="Work in this process, without Spark."),
        click.option("--spark", is_flag=True, help="Work in Spark, even if there is little to do."),
        click.option(
            "--master",
            metavar="URL",
            help="Spark master, or sc://host:port for Spark Connect; implies --spark.  [default: Spark's own, else "
            "local[*]]",
        ),
    ):
        command = option(command)
    return command


def open_warehouse(uri: str) -> Warehouse:
    from penstock.spark.tables import Warehouse

    return Warehouse(uri)


def reader_properties(cluster: Cluster) -> Mapping[str, str]:
    """The client options of the command line, for readers in executors."""
    found = {_READER_NAMES[name]: value for name, value in cluster.properties.items() if name in _READER_NAMES}
    return {**found, "kafka.request.timeout.ms": str(cluster.request_timeout_ms)}


@contextmanager
def task_runner(name: str, *, local: bool, spark: bool, master: str | None) -> Iterator[Runner]:
    """The runner of tasks: this process, or Spark if there is much to do. Closed at the end."""
    from penstock.spark.tables.runner import AutomaticRunner, LocalRunner

    if local:
        if spark or master is not None:
            raise CommandError("--local excludes --spark and --master.", "Use one of them.")
        yield LocalRunner()
        return
    from penstock.spark.session import ConsoleOutput, connect_address, session

    console = ConsoleOutput()
    started: list[SparkSession] = []

    def start() -> SparkSession:
        remote = connect_address(master)
        config = {} if remote else {"spark.ui.enabled": "false"}
        started.append(session(name, master=master, config=config, reads_topics=False, console=console))
        return started[0]

    try:
        yield AutomaticRunner(start, always_spark=spark or master is not None)
    finally:
        console.end()
        for one in started:
            one.stop()


_FILE: Final = ".location"


def event_cluster(cluster: Cluster, value_format: ValueFormat = "json") -> EventCluster:
    """The cluster for readers in executors. Raises CommandError for TLS files that they cannot use."""
    from penstock.activity.cluster import Cluster as EventCluster

    connecting = cluster.connecting("penstock-pipelines")
    if connecting["ssl"] is not None and "ssl.key.location" in cluster.properties:
        raise CommandError(
            "Spark's readers need certificate and key in one file; ssl.key.location is another file.",
            "Write both into one PEM file and set ssl.keystore.location to it.",
        )
    options = {
        name: str(Path(value).absolute()) if name.endswith(_FILE) else value
        for name, value in reader_properties(cluster).items()
    }
    return EventCluster(cluster.servers, value_format, options)
