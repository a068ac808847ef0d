"""The two clusters as they are set up for a part of the run, and each as the loads of `benchmarks.peers` see it.

The CPU that counts is that of all three brokers, and of the ZooKeepers that ours needs: Kafka's brokers are their own
controllers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.faults.asking import NoAnswer
from benchmarks.faults.clients import CONFLUENT
from benchmarks.faults.clients import OURS as OUR_CLIENT
from benchmarks.faults.clusters import Cluster
from benchmarks.faults.kafka_cluster import KafkaCluster
from benchmarks.faults.penstock_cluster import PenstockCluster
from benchmarks.faults.places import Network
from benchmarks.peers import kafka, ours
from benchmarks.peers.servers import Dialect

OURS: Final = ours.NAME
THEIRS: Final = kafka.NAME
_NEVER: Final = str(2**63 - 1)


@dataclass(frozen=True)
class Setup:
    """Settings on top of what is shipped: of the brokers by cluster, of the producers by client."""

    name: str
    brokers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    producers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


LOADED: Final = Setup("requests and bulk")
_QUIET: Final = {"log_level": 0}
SHIPPED: Final = Setup("as shipped", producers={CONFLUENT: _QUIET})
# Six seconds is what ours ships. Clients that wait half a minute for an answer would hide what the brokers do.
EQUAL: Final = Setup(
    "broker sessions of 6 s, clients that wait 2 s",
    brokers={
        OURS: {"zookeeper.session.timeout.ms": "6000"},
        THEIRS: {"broker.session.timeout.ms": "6000"},
    },
    producers={
        CONFLUENT: {"request.timeout.ms": 2000, "socket.timeout.ms": 2000, **_QUIET},
        OUR_CLIENT: {"request_timeout_ms": 2000},
    },
)


@dataclass
class Contender:
    """`unsynced` are the settings of a topic by which acks=all does not wait for the disk."""

    name: str
    cluster: Cluster
    unsynced: Mapping[str, str]


def penstock(network: Network, folder: Path, setup: Setup) -> Contender:
    cluster = PenstockCluster(network, folder, setup.brokers.get(OURS, {}), tick_ms=None)
    return Contender(OURS, cluster, {"flush.messages": _NEVER})


def apache_kafka(network: Network, folder: Path, setup: Setup) -> Contender:
    """NotToBeHad."""
    return Contender(THEIRS, KafkaCluster(network, folder, setup.brokers.get(THEIRS, {}), jvm=()), {})


Maker = Callable[[Network, Path, Setup], Contender]
MAKERS: Final[dict[str, Maker]] = {"penstock": penstock, "kafka": apache_kafka}


class Leading:
    """A cluster, seen from the broker that leads partition 0 of a topic."""

    def __init__(self, contender: Contender, topic: str) -> None:
        self.name = contender.name
        self.dialect = Dialect()
        self._cluster = contender.cluster
        view = self._cluster.agreed([topic])
        if view is None:
            raise NoAnswer(f"the brokers of {contender.name} do not agree on who leads {topic}")
        node = self._cluster.nodes[view.partitions[topic, 0].leader]
        self.port = node.port
        self.address = node.address

    def cpu_s(self) -> float:
        return self._cluster.cpu_s()
