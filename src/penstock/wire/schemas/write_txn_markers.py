"""WriteTxnMarkers: a transaction coordinator has its decision written into the partitions."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Int64, Message, Schema, ignorable, versions


class WritableTxnMarkerTopic(Message):
    name: str = ""
    partition_indexes: list[Int32] = EMPTY


class WritableTxnMarker(Message):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = EMPTY
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, versions("2+"), ignorable] = 0


class WriteTxnMarkersRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="1+")

    markers: list[WritableTxnMarker] = EMPTY


class WritableTxnMarkerPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message):
    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = EMPTY


class WritableTxnMarkerResult(Message):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = EMPTY


class WriteTxnMarkersResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="1+")

    markers: list[WritableTxnMarkerResult] = EMPTY
