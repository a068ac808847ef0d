"""DescribeCluster: id, controller and brokers of the cluster."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema, versions


class DescribeClusterRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="0+")

    include_cluster_authorized_operations: bool = False
    endpoint_type: Annotated[Int8, versions("1+")] = 1
    include_fenced_brokers: Annotated[bool, versions("2+")] = False


class DescribeClusterBroker(Message):
    broker_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
    is_fenced: Annotated[bool, versions("2+")] = False


class DescribeClusterResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Annotated[Int8, versions("1+")] = 1
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = EMPTY
    cluster_authorized_operations: Int32 = -2147483648
