"""UpdateMetadata: the controller tells a broker about the brokers and partitions of the cluster.

Partitions lie flat up to version 4 and below their topic from 5.
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
    Schema,
    Uuid,
    ignorable,
    tagged,
    versions,
)


class UpdateMetadataPartitionState(Message):
    topic_name: Annotated[str, versions("0-4"), ignorable] = ""
    partition_index: Int32 = 0
    controller_epoch: Int32 = 0
    leader: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = EMPTY
    zk_version: Int32 = 0
    replicas: list[Int32] = EMPTY
    offline_replicas: Annotated[list[Int32], versions("4+"), ignorable] = EMPTY


class UpdateMetadataTopicState(Message):
    topic_name: str = ""
    topic_id: Annotated[Uuid, versions("7+"), ignorable] = NO_UUID
    partition_states: list[UpdateMetadataPartitionState] = EMPTY


class UpdateMetadataEndpoint(Message):
    port: Int32 = 0
    host: str = ""
    listener: Annotated[str, versions("3+"), ignorable] = ""
    security_protocol: Int16 = 0


class UpdateMetadataBroker(Message):
    id: Int32 = 0
    v0_host: Annotated[str, versions("0"), ignorable] = ""
    v0_port: Annotated[Int32, versions("0"), ignorable] = 0
    endpoints: Annotated[list[UpdateMetadataEndpoint], versions("1+"), ignorable] = EMPTY
    rack: Annotated[str | None, versions("2+"), ignorable] = ""


class UpdateMetadataRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-8", flexible="6+")

    controller_id: Int32 = 0
    is_kraft_controller: Annotated[bool, versions("8+")] = False
    type: Annotated[Int8, tagged(0, "8+")] = 0
    controller_epoch: Int32 = 0
    broker_epoch: Annotated[Int64, versions("5+"), ignorable] = -1
    ungrouped_partition_states: Annotated[list[UpdateMetadataPartitionState], versions("0-4")] = EMPTY
    topic_states: Annotated[list[UpdateMetadataTopicState], versions("5+")] = EMPTY
    live_brokers: list[UpdateMetadataBroker] = EMPTY


class UpdateMetadataResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-8", flexible="6+")

    error_code: Int16 = 0
