"""Three Apache Kafka 4.3, each broker and controller at once (KRaft).

They are as shipped, but for the settings and JVM flags that are given with the cluster and for what gives each its
place: `settings()` has all of them, and reads them from the file that the brokers read. `PROMPT` makes the others act
as soon as ours do when a node goes away, so that a run of faults does not wait for them most of the time.
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

from tests.peers.installing import NotToBeHad
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
# What gives a server its place, and so is different for each or for each run.
_PLACE: Final = (
    "process.roles", "node.id", "listeners", "advertised.listeners", "controller.listener.names",
    "controller.quorum.voters", "log.dirs",
)  # fmt: skip
# A short life beside others on few cores: what the optimising compiler costs is not earned back.
LIGHT_JVM: Final = (*FLAGS, "-Xmx512m")


class KafkaCluster(Cluster):
    kind = "kafka"

    def __init__(
        self, network: Network, folder: Path, settings: Mapping[str, str] = PROMPT, jvm: tuple[str, ...] = LIGHT_JVM
    ) -> None:
        """NotToBeHad. Folders are made and formatted here. Without `jvm`, flags are those of Kafka's own script."""
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
        told = {name: value for name, _, value in (line.partition("=") for line in lines)}
        jvm = {"JVMs": {"flags": " ".join(self._jvm)}} if self._jvm else {}
        return {"brokers": settings_without(told, _PLACE), **jvm}

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
            raise NoAnswer(f"nobody says who leads the quorum: {error}") from error


def provide() -> None:
    """Install Kafka if it is missing: inside a network namespace nothing can be fetched. Failures show there."""
    with suppress(NotToBeHad):
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
        raise ServerFailed(f"Kafka's folder could not be formatted: {done.stderr[-1000:]}")
