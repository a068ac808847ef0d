"""The two clusters, as shipped, and each as the loads of `benchmarks.peers` see it: by the leader of one partition.

Rule: the CPU that counts is that of all three brokers, and of the ZooKeepers that ours needs: Kafka's brokers are their
own controllers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.faults import kafka_cluster, penstock_cluster
from benchmarks.faults.asking import NoAnswer
from benchmarks.faults.clusters import Cluster
from benchmarks.faults.places import Loopback
from benchmarks.peers import kafka, ours
from benchmarks.peers.servers import Dialect

OURS: Final = ours.NAME
THEIRS: Final = kafka.NAME
_NEVER: Final = str(2**63 - 1)
_GROUPS: Final = {"group.initial.rebalance.delay.ms": "0"}


@dataclass
class Contender:
    """`unsynced` are the settings of a topic by which acks=all does not wait for the disk."""

    name: str
    cluster: Cluster
    unsynced: Mapping[str, str]


def penstock(folder: Path) -> Contender:
    cluster = penstock_cluster.PenstockCluster(Loopback(), folder, {**penstock_cluster.AS_SHIPPED, **_GROUPS})
    return Contender(OURS, cluster, {"flush.messages": _NEVER})


def apache_kafka(folder: Path) -> Contender:
    """NotToBeHad."""
    cluster = kafka_cluster.KafkaCluster(Loopback(), folder, {**kafka_cluster.AS_SHIPPED, **_GROUPS}, jvm=())
    return Contender(THEIRS, cluster, {})


MAKERS: Final[dict[str, Callable[[Path], Contender]]] = {"penstock": penstock, "kafka": apache_kafka}


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
