"""Three brokers that only answer: a cluster whose state a test sets, for commands whose text and decisions are tested.

What they mean to a real controller is tested against real clusters; this one takes what it is asked for as done.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.client.scripted import Scripted, speaking
from tests.timeouts import PATIENCE_S

from penstock.wire.framing import RequestHeader
from penstock.wire.protocol import APIS, ApiKey
from penstock.wire.schemas import alter_partition_reassignments as alter_moves
from penstock.wire.schemas import describe_configs, describe_log_dirs, incremental_alter_configs, metadata
from penstock.wire.schemas import describe_topic_partitions as topic_partitions
from penstock.wire.schemas import elect_leaders as elections
from penstock.wire.schemas import list_partition_reassignments as list_moves
from penstock.wire.schemas.api_versions import ApiVersion
from penstock.wire.schemas.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from penstock.wire.schemas.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.types import Message

SERVED = (
    ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_CONFIGS, ApiKey.LIST_OFFSETS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
)  # fmt: skip
_TOPIC, _BROKER = 2, 4
_DYNAMIC = {_TOPIC: 1, _BROKER: 2}


@dataclass
class Part:
    """A partition. `adding` and `removing` make it one that is being moved."""

    replicas: list[int]
    isr: list[int] | None = None
    leader: int | None = None
    elr: list[int] = field(default_factory=list)
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)
    size_bytes: int = 1000
    copied_bytes: int = 0

    @property
    def in_sync(self) -> list[int]:
        return self.replicas if self.isr is None else self.isr

    @property
    def led_by(self) -> int:
        return self.in_sync[0] if self.leader is None else self.leader


class ScriptedCluster:
    """`with ScriptedCluster(topics) as cluster`; brokers 0, 1 and 2 in racks of their own."""

    served: ClassVar[tuple[ApiKey, ...]] = SERVED

    def __init__(self, topics: dict[str, list[Part]]) -> None:
        self.topics = topics
        self.away: set[int] = set()
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.history: list[tuple[int, str, dict[str, str | None]]] = []
        """Every change of settings, in order."""
        self.rejections: dict[tuple[str, int], int] = {}
        """Error codes for partitions that shall not be moved or led as asked."""
        self.finishes_moves = True
        self.newest: dict[ApiKey, int] = {}
        """The newest version that the brokers have of an API, if they are old."""
        self.absent: set[ApiKey] = set()
        """APIs that these brokers do not have."""
        self._servers: dict[int, Scripted] = {}
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._live(),))

    @property
    def address(self) -> str:
        return self._servers[min(set(self._servers) - self.away)].address

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _live(self) -> None:
        versions = [
            ApiVersion(
                api_key=key,
                min_version=APIS[key].versions.lowest,
                max_version=self.newest.get(key, APIS[key].versions.highest),
            )
            for key in self.served
            if key not in self.absent
        ]
        for broker in range(3):

            def answer(header: RequestHeader, message: Any, broker: int = broker) -> Message:
                return self._answer(broker, header, message)

            self._servers[broker] = Scripted(speaking(answer, versions))
            await self._servers[broker].__aenter__()
        self._ready.set()
        await self._end.wait()
        for server in self._servers.values():
            await server.__aexit__()

    def _alive(self) -> list[int]:
        return [broker for broker in self._servers if broker not in self.away]

    def _answer(self, broker: int, header: RequestHeader, message: Any) -> Message:
        name = f"_{header.api.key.name.lower()}"
        found: Message = getattr(self, name)(broker, message)
        return found

    # --- what they answer

    def _metadata(self, _: int, asked: Any) -> Message:
        wanted = list(self.topics) if asked.topics is None else [topic.name for topic in asked.topics]
        return metadata.MetadataResponse(
            cluster_id="scripted",
            controller_id=self._alive()[0],
            brokers=[
                metadata.MetadataResponseBroker(
                    node_id=each, host="127.0.0.1", port=self._servers[each].port, rack=f"rack-{each}"
                )
                for each in self._alive()
            ],
            topics=[self._topic(name) for name in wanted],
        )

    def _topic(self, name: str) -> metadata.MetadataResponseTopic:
        if name not in self.topics:
            return metadata.MetadataResponseTopic(name=name, error_code=3)
        parts = [
            metadata.MetadataResponsePartition(
                partition_index=index,
                leader_id=part.led_by,
                replica_nodes=part.replicas,
                isr_nodes=part.in_sync,
                offline_replicas=[each for each in part.replicas if each in self.away],
            )
            for index, part in enumerate(self.topics[name])
        ]
        return metadata.MetadataResponseTopic(name=name, partitions=parts)

    def _describe_topic_partitions(self, _: int, asked: Any) -> Message:
        """A partition a page."""
        names = [topic.name for topic in asked.topics] or list(self.topics)
        pages = [(name, index) for name in names if name in self.topics for index in range(len(self.topics[name]))]
        at = pages.index((asked.cursor.topic_name, asked.cursor.partition_index)) if asked.cursor else 0
        if not pages:
            return topic_partitions.DescribeTopicPartitionsResponse()
        (name, index), following = pages[at], pages[at + 1 : at + 2]
        part = self.topics[name][index]
        reported = topic_partitions.DescribeTopicPartitionsResponsePartition(
            partition_index=index, eligible_leader_replicas=part.elr, last_known_elr=[]
        )
        return topic_partitions.DescribeTopicPartitionsResponse(
            topics=[topic_partitions.DescribeTopicPartitionsResponseTopic(name=name, partitions=[reported])],
            next_cursor=topic_partitions.Cursor(topic_name=following[0][0], partition_index=following[0][1])
            if following
            else None,
        )

    def _describe_cluster(self, _: int, asked: Any) -> Message:
        nodes = [
            DescribeClusterBroker(broker_id=each, host="127.0.0.1", port=self._servers[each].port, rack=f"rack-{each}")
            for each in self._alive()
        ]
        return DescribeClusterResponse(cluster_id="scripted", controller_id=self._alive()[0], brokers=nodes)

    def _describe_log_dirs(self, broker: int, _: Any) -> Message:
        topics = [
            describe_log_dirs.DescribeLogDirsTopic(
                name=name,
                partitions=[
                    describe_log_dirs.DescribeLogDirsPartition(
                        partition_index=index,
                        partition_size=part.copied_bytes if broker in part.adding else part.size_bytes,
                    )
                    for index, part in enumerate(parts)
                    if broker in part.replicas
                ],
            )
            for name, parts in self.topics.items()
        ]
        folder = describe_log_dirs.DescribeLogDirsResult(log_dir=f"/data/{broker}", topics=topics)
        return describe_log_dirs.DescribeLogDirsResponse(results=[folder])

    def _list_offsets(self, _: int, asked: Any) -> Message:
        topics = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=part.partition_index, offset=0, timestamp=-1)
                    for part in topic.partitions
                ],
            )
            for topic in asked.topics
        ]
        return ListOffsetsResponse(topics=topics)

    def _describe_configs(self, _: int, asked: Any) -> Message:
        results = []
        for resource in asked.resources:
            own = self.configs.get((resource.resource_type, resource.resource_name), {})
            rows = {"min.insync.replicas": ("2", 5)} if resource.resource_type == _TOPIC else {}
            rows |= {name: (value, _DYNAMIC[resource.resource_type]) for name, value in own.items()}
            results.append(
                describe_configs.DescribeConfigsResult(
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[
                        describe_configs.DescribeConfigsResourceResult(name=name, value=value, config_source=source)
                        for name, (value, source) in rows.items()
                    ],
                )
            )
        return describe_configs.DescribeConfigsResponse(results=results)

    def _incremental_alter_configs(self, _: int, asked: Any) -> Message:
        for resource in asked.resources:
            key = (resource.resource_type, resource.resource_name)
            changes = {item.name: item.value for item in resource.configs}
            self.history.append((*key, changes))
            merged: dict[str, str | None] = {**self.configs.get(key, {}), **changes}
            self.configs[key] = {name: value for name, value in merged.items() if value is not None}
        return incremental_alter_configs.IncrementalAlterConfigsResponse(
            responses=[
                incremental_alter_configs.AlterConfigsResourceResponse(
                    resource_type=resource.resource_type, resource_name=resource.resource_name
                )
                for resource in asked.resources
            ]
        )

    def _list_partition_reassignments(self, _: int, asked: Any) -> Message:
        wanted = {(topic.name, index) for topic in asked.topics or () for index in topic.partition_indexes}
        topics = [
            list_moves.OngoingTopicReassignment(
                name=name,
                partitions=[
                    list_moves.OngoingPartitionReassignment(
                        partition_index=index,
                        replicas=part.replicas,
                        adding_replicas=part.adding,
                        removing_replicas=part.removing,
                    )
                    for index, part in enumerate(parts)
                    if (part.adding or part.removing) and (asked.topics is None or (name, index) in wanted)
                ],
            )
            for name, parts in self.topics.items()
        ]
        return list_moves.ListPartitionReassignmentsResponse(topics=[topic for topic in topics if topic.partitions])

    def _alter_partition_reassignments(self, _: int, asked: Any) -> Message:
        responses = []
        for topic in asked.topics:
            rows = []
            for item in topic.partitions:
                code = self.rejections.get((topic.name, item.partition_index), 0)
                if not code:
                    self._move(self.topics[topic.name][item.partition_index], item.replicas)
                rows.append(
                    alter_moves.ReassignablePartitionResponse(partition_index=item.partition_index, error_code=code)
                )
            responses.append(alter_moves.ReassignableTopicResponse(name=topic.name, partitions=rows))
        return alter_moves.AlterPartitionReassignmentsResponse(responses=responses)

    def _move(self, part: Part, wanted: list[int] | None) -> None:
        if wanted is None:
            wanted = [each for each in part.replicas if each not in part.adding]
        old = [each for each in part.replicas if each not in part.adding]
        part.adding = [] if self.finishes_moves else [each for each in wanted if each not in old]
        part.removing = [] if self.finishes_moves else [each for each in old if each not in wanted]
        part.isr = None if self.finishes_moves else old
        part.replicas = wanted + part.removing

    def _elect_leaders(self, _: int, asked: Any) -> Message:
        chosen = {topic.topic: topic.partitions for topic in asked.topic_partitions or ()}
        if asked.topic_partitions is None:
            chosen = {name: list(range(len(parts))) for name, parts in self.topics.items()}
        results = []
        for name, indexes in chosen.items():
            rows = []
            for index in indexes:
                part = self.topics[name][index]
                code = self.rejections.get((name, index), 84 if part.led_by == part.replicas[0] else 0)
                if not code:
                    part.leader = part.replicas[0]
                if not (code == 84 and asked.topic_partitions is None):
                    rows.append(elections.PartitionResult(partition_id=index, error_code=code, error_message=None))
            results.append(elections.ReplicaElectionResult(topic=name, partition_result=rows))
        return elections.ElectLeadersResponse(replica_election_results=results)


def written(folder: Path, *entries: dict[str, Any]) -> Path:
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": list(entries)}))
    return plan


def entry(index: int, replicas: list[int], topic: str = "views") -> dict[str, Any]:
    return {"topic": topic, "partition": index, "replicas": replicas}
