"""Three Apache Kafka 4.3, each broker and controller at once (KRaft).

They have their defaults, except for the settings and JVM flags of the cluster and for addresses and folders.
`settings()` reads all of them from the file that the brokers read. With `PROMPT`, Kafka reacts as fast as Penstock to a
lost node, so that a run of faults does not mostly wait.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.peers.installing import NotAvailable
from tests.peers.java_process import FLAGS

from benchmarks.faults.cluster import BROKERS, Cluster, NoAnswer, Node, settings_without
from benchmarks.faults.namespaces import Network, Place
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.servers import ServerFailed

_FORMAT_S: Final = 90
_ANSWER_MS: Final = 3000
AS_SHIPPED: Final[Mapping[str, str]] = MappingProxyType({})
PROMPT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "controller.quorum.election.timeout.ms": "300",
        "controller.quorum.fetch.timeout.ms": "600",
        "controller.quorum.election.backoff.max.ms": "200",
        "broker.session.timeout.ms": "1500",
        "broker.heartbeat.interval.ms": "200",
        "replica.lag.time.max.ms": "2000",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "1",
    }
)
_FILE: Final = "server.properties"
# Settings that place a server, which differ by server or run.
_PLACE: Final = (
    "process.roles", "node.id", "listeners", "advertised.listeners", "controller.listener.names",
    "controller.quorum.voters", "log.dirs",
)  # fmt: skip
# A short run on few cores: the optimizing compiler does not pay off.
LIGHT_JVM: Final = (*FLAGS, "-Xmx512m")


class KafkaCluster(Cluster):
    kind = "kafka"

    def __init__(
        self, network: Network, folder: Path, settings: Mapping[str, str] = PROMPT, jvm: tuple[str, ...] = LIGHT_JVM
    ) -> None:
        """Creates and formats the folders. Without `jvm`, flags are those of Kafka's script. Raises NotAvailable."""
        super().__init__(network, folder)
        self._jvm = jvm
        run = Kafka().command(jvm)
        numbers = range(1, BROKERS + 1)
        places = {number: network.place(f"kafka-{number}") for number in numbers}
        ports = {number: tuple(place.ports(2)) for number, place in places.items()}
        voters = ",".join(f"{number}@{places[number].address}:{ports[number][1]}" for number in numbers)
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")

        def make(number: int) -> Node:
            own = folder / f"kafka-{number}"
            own.mkdir(parents=True)
            file = own / _FILE
            all_settings = {**_settings(number, places[number], ports[number], voters, own), **settings}
            file.write_text("".join(f"{name}={value}\n" for name, value in all_settings.items()))
            _format([*run, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(file)])
            return Node(number, [*run, "kafka.Kafka", str(file)], places[number], ports[number][0], own)

        with ThreadPoolExecutor(BROKERS) as together:
            self.nodes = {node.number: node for node in together.map(make, numbers)}

    def launch(self) -> None:
        for node in self.nodes.values():
            node.launch()

    def settings(self) -> dict[str, Mapping[str, str]]:
        lines = (self.nodes[1].folder / _FILE).read_text().splitlines()
        written = {name: value for name, _, value in (line.partition("=") for line in lines)}
        jvm = {"JVMs": {"flags": " ".join(self._jvm)}} if self._jvm else {}
        return {"brokers": settings_without(written, _PLACE), **jvm}

    def controller(self) -> int:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        up = [node.address for node in self.nodes.values() if node.is_running and not node.is_paused]
        try:
            admin = KafkaAdminClient(bootstrap_servers=up, request_timeout_ms=_ANSWER_MS)
            try:
                return int(admin.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"])
            finally:
                admin.close()
        except (KafkaError, LookupError, TypeError) as error:
            raise NoAnswer(f"the leader of the quorum is unknown: {error}") from error


def provide() -> None:
    """Installs Kafka if it is missing: inside a network namespace nothing can be downloaded."""
    with suppress(NotAvailable):
        Kafka()


def _settings(number: int, place: Place, ports: tuple[int, ...], voters: str, folder: Path) -> dict[str, str]:
    listeners = f"PLAINTEXT://{place.address}:{ports[0]}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "listeners": f"{listeners},CONTROLLER://{place.address}:{ports[1]}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "log.dirs": str(folder / "data"),
    }


def _format(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_S)
    if done.returncode:
        raise ServerFailed(f"cannot format Kafka's folder: {done.stderr[-1000:]}")
