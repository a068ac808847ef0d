"""Produce: appending record batches to partitions.

From version 3 records are batches of magic 2 and may belong to a transaction; from 13 topics go by id.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import (
    EMPTY,
    NO_UUID,
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


class PartitionProduceData(Message):
    index: Int32 = 0
    records: Records = None


class TopicProduceData(Message):
    name: Annotated[str, versions("0-12"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("13+"), ignorable] = NO_UUID
    partition_data: list[PartitionProduceData] = EMPTY


class ProduceRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-13", flexible="9+")

    transactional_id: Annotated[str | None, versions("3+")] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = EMPTY


class BatchIndexAndErrorMessage(Message):
    batch_index: Int32 = 0
    batch_index_error_message: str | None = None


class LeaderIdAndEpoch(Value, frozen=True):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Message):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Annotated[Int64, versions("2+"), ignorable] = -1
    log_start_offset: Annotated[Int64, versions("5+"), ignorable] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], versions("8+"), ignorable] = EMPTY
    error_message: Annotated[str | None, versions("8+"), ignorable] = None
    current_leader: Annotated[LeaderIdAndEpoch, tagged(0, "10+")] = LeaderIdAndEpoch()


class TopicProduceResponse(Message):
    name: Annotated[str, versions("0-12"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("13+"), ignorable] = NO_UUID
    partition_responses: list[PartitionProduceResponse] = EMPTY


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None


class ProduceResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-13", flexible="9+")

    responses: list[TopicProduceResponse] = EMPTY
    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    node_endpoints: Annotated[list[NodeEndpoint], tagged(0, "10+")] = EMPTY
