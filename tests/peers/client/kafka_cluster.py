"""Three Apache Kafka 4.3 as one cluster, whose leaders can be moved in every possible way.

Settings are the defaults, except for addresses, folders, racks and fast failure detection. Each node is broker and
controller, so that losing a node may lose the controller. After every move `settle` waits until all replicas are in
sync again, so that the next node may fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.broker.wire_client import WireClient
from tests.peers.client.kafka_server import HOST, JavaServer, new_cluster_id, node_4_3
from tests.peers.provision import Found
from tests.ports import free_ports
from tests.timeouts import PATIENCE_S, until

from penstock import Admin
from penstock.client.admin.results import TopicDescription
from penstock.client.cluster_client import ClusterClient
from penstock.client.errors import PenstockError, TimedOut
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.schemas.elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic

OFFSETS_TOPIC = "__consumer_offsets"
_NODES = (1, 2, 3)
_ANSWER_MS = 30_000
_SETTINGS = """\
process.roles=broker,controller
node.id={node}
broker.rack=rack-{node}
replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
controller.quorum.election.timeout.ms=300
controller.quorum.fetch.timeout.ms=600
controller.quorum.election.backoff.max.ms=200
log.dirs={data}
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=200
replica.lag.time.max.ms=2000
auto.leader.rebalance.enable=false
group.initial.rebalance.delay.ms=0
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
"""

Leaders = Mapping[tuple[str, int], int]


class KafkaCluster:
    def __init__(self, java: Found, jars: Found, folder: Path) -> None:
        """Three nodes in folders of their own, not begun yet."""
        ports = free_ports(2 * len(_NODES))
        addresses = dict(zip(_NODES, ports[: len(_NODES)], strict=True))
        controllers = dict(zip(_NODES, ports[len(_NODES) :], strict=True))
        voters = ",".join(f"{node}@{HOST}:{port}" for node, port in controllers.items())
        cluster_id = new_cluster_id()

        def make(node: int) -> JavaServer:
            own = folder / str(node)
            own.mkdir()
            settings = _SETTINGS.format(
                node=node, host=HOST, port=addresses[node], controller_port=controllers[node], voters=voters,
                data=own / "data",
            )  # fmt: skip
            return node_4_3(java, jars, own, settings, addresses[node], cluster_id)

        with ThreadPoolExecutor(len(_NODES)) as together:
            self.nodes = dict(zip(_NODES, together.map(make, _NODES), strict=True))
        self.bootstrap = [node.address for node in self.nodes.values()]

    def launch(self) -> None:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_until_listening()
        with Admin(self.bootstrap) as admin:
            until(lambda: len(admin.describe_cluster().nodes) == len(_NODES), "all brokers are there", PATIENCE_S)

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def is_known_everywhere(self, topic: str) -> bool:
        """Whether every broker has heard of a topic: a new one is on some brokers before others."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        for node in self.nodes.values():
            with WireClient(int(node.address.rpartition(":")[2])) as client:
                (found,) = client.ask(ApiKey.METADATA, request, 9).topics
            if found.error_code or not found.partitions or any(part.error_code for part in found.partitions):
                return False
        return True

    # Who leads

    def leaders(self, admin: Admin, topics: Sequence[str]) -> Leaders:
        """The leader of each partition, 0 without a leader; empty if unknown."""
        return {
            (topic.name, one.index): one.leader.id if one.leader is not None else 0
            for topic in self._described(admin, topics)
            for one in topic.partitions
        }

    def settle(self, admin: Admin, topics: Sequence[str]) -> None:
        """Wait until every replica is in sync and every partition led."""

        def is_whole() -> bool:
            described = self._described(admin, topics)
            partitions = [one for topic in described for one in topic.partitions]
            return bool(described) and all(one.leader and len(one.isr) == len(_NODES) for one in partitions)

        until(is_whole, "all replicas are in sync", PATIENCE_S)

    def without(self, admin: Admin, topics: Sequence[str], node: int) -> None:
        """Wait until others lead what this node has led."""

        def is_led() -> bool:
            leaders = self.leaders(admin, topics).values()
            return bool(leaders) and node not in leaders and 0 not in leaders

        until(is_led, "others lead", PATIENCE_S)

    def _described(self, admin: Admin, topics: Sequence[str]) -> list[TopicDescription]:
        """All of the topics, or none: the broker that was asked may be the one that is away."""
        try:
            described = list(admin.describe_topics(topics).values())
        except TimedOut:
            return []
        found = [topic for topic in described if not isinstance(topic, PenstockError)]
        return found if len(found) == len(topics) else []

    def elect(self, admin: Admin, topics: Sequence[str]) -> None:
        """Have the next replica of every partition lead it, without anybody going away."""
        before = self.leaders(admin, topics)
        wanted = {partition: leader % len(_NODES) + 1 for partition, leader in before.items()}
        asyncio.run(self._elect(wanted))
        until(lambda: self.leaders(admin, topics) == wanted, "the new leaders lead", PATIENCE_S)

    async def _elect(self, wanted: Leaders) -> None:
        def by_topic(make: Any) -> dict[str, list[Any]]:
            topics: dict[str, list[Any]] = {}
            for (topic, index), leader in wanted.items():
                topics.setdefault(topic, []).append(make(index, leader))
            return topics

        def preferring(index: int, leader: int) -> ReassignablePartition:
            others = [node for node in _NODES if node != leader]
            return ReassignablePartition(partition_index=index, replicas=[leader, *others])

        order = [ReassignableTopic(name=name, partitions=rows) for name, rows in by_topic(preferring).items()]
        election = by_topic(lambda index, _: index)
        chosen = [TopicPartitions(topic=name, partitions=rows) for name, rows in election.items()]
        async with ClusterClient(self.bootstrap) as client:
            connection = await client.to_any()
            ordered = await connection.request(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                AlterPartitionReassignmentsRequest(topics=order),
                timeout_ms=_ANSWER_MS,
            )
            codes = [ordered.error_code, *(one.error_code for topic in ordered.responses for one in topic.partitions)]
            assert not any(codes), codes
            elected = await connection.request(
                ApiKey.ELECT_LEADERS, ElectLeadersRequest(topic_partitions=chosen), timeout_ms=_ANSWER_MS
            )
            assert elected.error_code == 0
