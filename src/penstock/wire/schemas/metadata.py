"""Metadata: brokers, topics, partitions and their leaders; the first thing a client asks.

In version 0 an empty list asks for all topics, from 1 null does. Topic ids come with version 10.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import (
    EMPTY,
    NO_UUID,
    Int16,
    Int32,
    Message,
    Schema,
    Uuid,
    ignorable,
    nullable,
    versions,
)


class MetadataRequestTopic(Message):
    topic_id: Annotated[Uuid, versions("10+"), ignorable] = NO_UUID
    name: Annotated[str | None, nullable("10+")] = ""


class MetadataRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-13", flexible="9+")

    topics: Annotated[list[MetadataRequestTopic] | None, nullable("1+")] = EMPTY
    allow_auto_topic_creation: Annotated[bool, versions("4+")] = True
    include_cluster_authorized_operations: Annotated[bool, versions("8-10")] = False
    include_topic_authorized_operations: Annotated[bool, versions("8+")] = False


class MetadataResponseBroker(Message):
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: Annotated[str | None, versions("1+"), ignorable] = None


class MetadataResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, versions("7+"), ignorable] = -1
    replica_nodes: list[Int32] = EMPTY
    isr_nodes: list[Int32] = EMPTY
    offline_replicas: Annotated[list[Int32], versions("5+"), ignorable] = EMPTY


class MetadataResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[str | None, nullable("12+")] = ""
    topic_id: Annotated[Uuid, versions("10+"), ignorable] = NO_UUID
    is_internal: Annotated[bool, versions("1+"), ignorable] = False
    partitions: list[MetadataResponsePartition] = EMPTY
    topic_authorized_operations: Annotated[Int32, versions("8+")] = -2147483648


class MetadataResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-13", flexible="9+")

    throttle_time_ms: Annotated[Int32, versions("3+"), ignorable] = 0
    brokers: list[MetadataResponseBroker] = EMPTY
    cluster_id: Annotated[str | None, versions("2+"), ignorable] = None
    controller_id: Annotated[Int32, versions("1+"), ignorable] = -1
    topics: list[MetadataResponseTopic] = EMPTY
    cluster_authorized_operations: Annotated[Int32, versions("8-10")] = -2147483648
    error_code: Annotated[Int16, versions("13+"), ignorable] = 0
