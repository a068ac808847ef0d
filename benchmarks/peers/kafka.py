"""Apache Kafka 4.3: one KRaft node that is broker and controller, with the JVM flags of its own start script.

Settings are as shipped except for addresses, folders and what a single node needs. Syncing is a topic setting
(flush.messages=1), so one process serves both.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.peers.installing import Budget, NotAvailable
from tests.peers.jdk import Jdk
from tests.peers.maven import Jars

from benchmarks.peers.servers import (
    HOST,
    NO_CONFIGS,
    NO_LISTENERS,
    Flushing,
    Server,
    ServerFailed,
    addresses,
    free_ports,
)

NAME = "Kafka 4.3"
_JARS = Jars("kafka-broker-4.3", "4.3.0", ("org.apache.kafka:kafka_2.13:4.3.0",))
JAVA = Jdk(oldest=17, debian_package="default-jdk-headless")
# As shipped, no answer waits for a sync.
FLUSHING = Flushing(synced_topic={"flush.messages": "1"}, unsynced_topic={})
INSTALL_S = 240.0
_FORMAT_S = 60
_FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_SETTINGS = """\
process.roles=broker,controller
node.id=1
listeners={listeners},CONTROLLER://{host}:{controller_port}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@{host}:{controller_port}
log.dirs={data}
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.segment.delete.delay.ms=1000
"""


class JavaServer(Server):
    has_reserved_heap = True


class Kafka:
    """Kafka's jars and a Java to run them, found or installed; raises NotAvailable."""

    def __init__(self) -> None:
        budget = Budget(INSTALL_S)
        for provider in (JAVA, _JARS):
            if provider.find() is None:
                provider.install(budget)
        java, jars = JAVA.find(), _JARS.find()
        if java is None or jars is None:
            raise NotAvailable("its installation said that it succeeded, yet it is not there")
        self._java = str(java)
        self._class_path = os.pathsep.join(map(str, sorted(jars.glob("*.jar"))))

    def command(self, flags: Sequence[str] = ()) -> list[str]:
        """What runs a class of Kafka, which is to follow; by default with the flags of Kafka's own script."""
        return [self._java, *(flags or _FLAGS), "-cp", self._class_path]

    def start(
        self, folder: Path, listeners: Mapping[str, int] = NO_LISTENERS, more: Mapping[str, str] = NO_CONFIGS
    ) -> Server:
        """In a folder that is new, or that it has run in before; with further listeners and settings."""
        folder.mkdir(parents=True, exist_ok=True)
        port, controller_port = free_ports(2)
        settings = folder / "server.properties"
        text = _SETTINGS.format(
            host=HOST,
            listeners=addresses({"PLAINTEXT": port, **listeners}),
            controller_port=controller_port,
            data=folder / "data",
        )
        settings.write_text(text + "".join(f"{name}={value}\n" for name, value in more.items()))
        if not (folder / "data").exists():
            self._format(settings)
        return JavaServer(NAME, [*self.command(), "kafka.Kafka", str(settings)], port, folder, FLUSHING)

    def _format(self, settings: Path) -> None:
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")
        formatted = subprocess.run(
            [*self.command(), "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings)],
            capture_output=True,
            text=True,
            timeout=_FORMAT_S,
        )
        if formatted.returncode != 0:
            raise ServerFailed(f"Kafka's folder could not be formatted: {formatted.stderr[-1000:]}")
