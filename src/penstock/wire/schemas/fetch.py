"""Fetch: reading records from partitions, by consumers and by followers alike.

Version 7 brings sessions, 9 leader epochs, 11 reading from a follower, 12 the check for diverging logs;
from 13 topics go by id. A follower names itself by `replica_id` up to 14, by the tagged `replica_state`
after that.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import (
    EMPTY,
    NO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    Schema,
    Uuid,
    Value,
    ignorable,
    tagged,
    versions,
)


class ReplicaState(Value, frozen=True):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, versions("9+"), ignorable] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, versions("12+")] = -1
    log_start_offset: Annotated[Int64, versions("5+"), ignorable] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, tagged(0, "17+"), ignorable] = NO_UUID
    high_watermark: Annotated[Int64, tagged(1, "18+"), ignorable] = 0x7FFFFFFFFFFFFFFF


class FetchTopic(Message):
    topic: Annotated[str, versions("0-12"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("13+"), ignorable] = NO_UUID
    partitions: list[FetchPartition] = EMPTY


class ForgottenTopic(Message):
    topic: Annotated[str, versions("7-12"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("13+"), ignorable] = NO_UUID
    partitions: list[Int32] = EMPTY


class FetchRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-18", flexible="12+")

    cluster_id: Annotated[str | None, tagged(0, "12+"), ignorable] = None
    replica_id: Annotated[Int32, versions("0-14")] = -1
    replica_state: Annotated[ReplicaState, tagged(1, "15+")] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Annotated[Int32, versions("3+"), ignorable] = 0x7FFFFFFF
    isolation_level: Annotated[Int8, versions("4+"), ignorable] = 0
    session_id: Annotated[Int32, versions("7+"), ignorable] = 0
    session_epoch: Annotated[Int32, versions("7+"), ignorable] = -1
    topics: list[FetchTopic] = EMPTY
    forgotten_topics_data: Annotated[list[ForgottenTopic], versions("7+")] = EMPTY
    rack_id: Annotated[str, versions("11+"), ignorable] = ""


class EpochEndOffset(Value, frozen=True):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(Value, frozen=True):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(Value, frozen=True):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Annotated[Int64, versions("4+"), ignorable] = -1
    log_start_offset: Annotated[Int64, versions("5+"), ignorable] = -1
    diverging_epoch: Annotated[EpochEndOffset, tagged(0, "12+")] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, tagged(1, "12+")] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, tagged(2, "12+")] = SnapshotId()
    aborted_transactions: Annotated[list[AbortedTransaction] | None, versions("4+"), ignorable] = EMPTY
    preferred_read_replica: Annotated[Int32, versions("11+")] = -1
    records: Records = None


class FetchableTopicResponse(Message):
    topic: Annotated[str, versions("0-12"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("13+"), ignorable] = NO_UUID
    partitions: list[PartitionData] = EMPTY


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None


class FetchResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-18", flexible="12+")

    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    error_code: Annotated[Int16, versions("7+"), ignorable] = 0
    session_id: Annotated[Int32, versions("7+")] = 0
    responses: list[FetchableTopicResponse] = EMPTY
    node_endpoints: Annotated[list[NodeEndpoint], tagged(0, "16+")] = EMPTY
