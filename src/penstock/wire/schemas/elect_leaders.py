"""ElectLeaders: preferred, or from version 1 also unclean, leader elections."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema, versions


class TopicPartitions(Message):
    topic: str = ""
    partitions: list[Int32] = EMPTY


class ElectLeadersRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    election_type: Annotated[Int8, versions("1+")] = 0
    topic_partitions: list[TopicPartitions] | None = EMPTY
    timeout_ms: Int32 = 60000


class PartitionResult(Message):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class ReplicaElectionResult(Message):
    topic: str = ""
    partition_result: list[PartitionResult] = EMPTY


class ElectLeadersResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, versions("1+")] = 0
    replica_election_results: list[ReplicaElectionResult] = EMPTY
