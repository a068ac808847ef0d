"""The rules of the codec, one by one: null and empty, tags known and unknown, versions, records by
reference.
"""

from __future__ import annotations

from struct import pack
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.codec import Codec, codec_for
from penstock.wire.errors import EncodeError, FieldNotInVersion, InvalidLength, SchemaError, UnknownVersion
from penstock.wire.schemas.create_topics import CreatableTopicResult, CreateTopicsResponse
from penstock.wire.schemas.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from penstock.wire.schemas.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)
from penstock.wire.schemas.heartbeat import HeartbeatRequest
from penstock.wire.schemas.join_group import JoinGroupRequest
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.types import (
    EMPTY,
    Int32,
    Message,
    Records,
    Schema,
    UInt16,
    UInt32,
    UVarInt,
    UVarLong,
    nullable,
    tagged,
    versions,
)


class Numbers(Message):
    SCHEMA: ClassVar[Schema] = Schema("0")

    small: UVarInt = 0
    large: UVarLong = 0
    sixteen: UInt16 = 0
    thirty_two: UInt32 = 0


class Versioned(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="2+")

    always: Int32 = 7
    later: Annotated[list[Int32] | None, versions("1+"), nullable("2+")] = EMPTY
    note: Annotated[str | None, tagged(5, "2+")] = None


class RegionOfFile:
    def __init__(self, size: int) -> None:
        self.size = size


def produce_request(records: Any) -> ProduceRequest:
    return ProduceRequest(
        None, -1, 1000, [TopicProduceData("orders", partition_data=[PartitionProduceData(0, records)])]
    )


# null and empty


def test_null_and_empty_are_different_in_both_encodings() -> None:
    for version, null, empty in ((1, b"\xff\xff\xff\xff", bytes(4)), (9, b"\0", b"\1")):
        codec = codec_for(MetadataRequest, version)
        assert codec.encode(MetadataRequest(None)).startswith(null)
        assert codec.encode(MetadataRequest([])).startswith(empty)
        assert codec.decode(codec.encode(MetadataRequest(None)))[0].topics is None
        assert codec.decode(codec.encode(MetadataRequest([])))[0].topics == []


def test_null_records_and_empty_records_are_different() -> None:
    for version in (3, 9):
        codec = codec_for(ProduceRequest, version)
        for records in (None, b""):
            (topic,) = codec.decode(codec.encode(produce_request(records)))[0].topic_data
            assert topic.partition_data[0].records == records


def test_null_cannot_be_written_where_the_version_has_no_null() -> None:
    with pytest.raises(EncodeError):
        codec_for(MetadataRequest, 0).encode(MetadataRequest(None))
    with pytest.raises(EncodeError):
        codec_for(HeartbeatRequest, 4).encode(HeartbeatRequest(None))  # type: ignore[arg-type]


def test_a_nullable_struct_is_led_by_a_byte() -> None:
    codec = codec_for(DescribeTopicPartitionsRequest, 0)
    assert codec.encode(DescribeTopicPartitionsRequest(cursor=None)).endswith(b"\xff\0")
    with_cursor = DescribeTopicPartitionsRequest(cursor=Cursor("t", 3))
    data = codec.encode(with_cursor)
    assert data.endswith(b"\1" + b"\2t" + pack(">i", 3) + b"\0\0")
    assert codec.decode(data)[0] == with_cursor
    with pytest.raises(InvalidLength):
        codec.decode(data.replace(b"\1\2t", b"\2\2t"))


# tagged fields


def test_unknown_tagged_fields_are_skipped_kept_and_written_again() -> None:
    codec = codec_for(HeartbeatRequest, 4)
    plain = HeartbeatRequest("g", 1, "m")
    data = codec.encode(plain)
    extended = data[:-1] + b"\2\x07\3abc\xe8\x07\0"
    message, end = codec.decode(extended + b"after")
    assert end == len(extended)
    assert message.unknown_tags == {7: b"abc", 1000: b""}
    assert (message.group_id, message.generation_id, message.member_id) == ("g", 1, "m")
    assert codec.encode(message) == extended


def test_unknown_tags_of_one_element_among_many_are_kept() -> None:
    partitions = [FetchPartition(n, 1, 100 + n, partition_max_bytes=1000) for n in range(5)]
    partitions[3].unknown_tags = {9: b"x" * 200}
    message = FetchRequest(topics=[FetchTopic("orders", partitions=partitions)])
    codec = codec_for(FetchRequest, 12)
    decoded, _ = codec.decode(codec.encode(message))
    assert decoded == message
    assert [p.unknown_tags for p in decoded.topics[0].partitions].count(None) == 4


def test_known_and_unknown_tags_are_written_in_order() -> None:
    codec = codec_for(FetchRequest, 15)
    message = FetchRequest(cluster_id="c", replica_state=ReplicaState(3, 9), unknown_tags={40: b"z"})
    data = codec.encode(message)
    replica = pack(">iqx", 3, 9)
    assert data.endswith(b"\3" + b"\0\2\2c" + b"\1" + bytes([len(replica)]) + replica + b"\x28\1z")
    assert codec.decode(data)[0] == message


def test_a_tagged_field_with_its_default_is_not_written() -> None:
    codec = codec_for(FetchResponse, 12)

    def response(partition: PartitionData) -> FetchResponse:
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=[partition])])

    plain = codec.encode(response(PartitionData(1)))
    # An equal struct that is not the very default object must not be written either.
    assert codec.encode(response(PartitionData(1, current_leader=LeaderIdAndEpoch(-1, -1)))) == plain
    reported = response(PartitionData(1, diverging_epoch=EpochEndOffset(3, 70)))
    assert len(codec.encode(reported)) == len(plain) + 2 + 13
    assert codec.decode(codec.encode(reported))[0] == reported


def test_tagged_fields_of_another_version_count_as_unknown() -> None:
    data = codec_for(FetchRequest, 15).encode(FetchRequest(replica_state=ReplicaState(3, 9)))
    assert codec_for(FetchRequest, 15).decode(data)[0].unknown_tags is None
    old = codec_for(CreateTopicsResponse, 5).encode(
        CreateTopicsResponse(topics=[CreatableTopicResult("t", topic_config_error_code=29)])
    )
    assert codec_for(CreateTopicsResponse, 5).decode(old)[0].topics[0].topic_config_error_code == 29


def test_the_default_of_a_shared_struct_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        PartitionData().current_leader.leader_id = 3  # type: ignore[misc]


# versions


def test_a_value_that_the_version_cannot_carry_is_rejected() -> None:
    with pytest.raises(FieldNotInVersion, match="ProduceRequest version 2 does not have the field transactional_id"):
        codec_for(ProduceRequest, 2).encode(ProduceRequest("tx", -1, 1000))
    with pytest.raises(FieldNotInVersion, match="replica_state"):
        codec_for(FetchRequest, 14).encode(FetchRequest(replica_state=ReplicaState(1, 1)))
    topics = [FetchTopic("t", partitions=[FetchPartition(last_fetched_epoch=4)])]
    with pytest.raises(FieldNotInVersion, match="FetchPartition version 11 does not have the field last_fetched_epoch"):
        codec_for(FetchRequest, 11).encode(FetchRequest(topics=topics))
    with pytest.raises(FieldNotInVersion, match="groups"):
        codec_for(OffsetFetchRequest, 7).encode(OffsetFetchRequest(groups=[Any]))  # type: ignore[list-item]


def test_an_equal_of_a_default_struct_is_not_a_lost_value() -> None:
    request = FetchRequest(replica_state=ReplicaState(-1, -1))
    assert codec_for(FetchRequest, 11).encode(request) == codec_for(FetchRequest, 11).encode(FetchRequest())


def test_an_ignorable_value_is_left_out_silently() -> None:
    modern = JoinGroupRequest("g", 10_000, 60_000, "m", None, "consumer", [], "because")
    assert codec_for(JoinGroupRequest, 7).encode(modern) == codec_for(JoinGroupRequest, 7).encode(
        JoinGroupRequest("g", 10_000, 60_000, "m", None, "consumer", [])
    )


def test_null_is_lost_where_empty_is_the_default() -> None:
    assert codec_for(Versioned, 0).encode(Versioned()) == pack(">i", 7)
    with pytest.raises(FieldNotInVersion, match="later"):
        codec_for(Versioned, 0).encode(Versioned(later=None))


def test_unknown_tags_are_rejected_by_versions_without_tags() -> None:
    with pytest.raises(FieldNotInVersion, match="unknown_tags"):
        codec_for(HeartbeatRequest, 3).encode(HeartbeatRequest("g", 1, "m", unknown_tags={1: b""}))


def test_fields_of_other_versions_are_left_at_their_default() -> None:
    message, _ = codec_for(FetchRequest, 4).decode(codec_for(FetchRequest, 4).encode(FetchRequest(max_wait_ms=5)))
    assert (message.session_epoch, message.rack_id, message.replica_state) == (-1, "", ReplicaState())


def test_each_message_has_lists_of_its_own() -> None:
    data = codec_for(Versioned, 0).encode(Versioned())
    one, other = codec_for(Versioned, 0).decode(data)[0], codec_for(Versioned, 0).decode(data)[0]
    assert one.later is not None
    one.later.append(1)
    assert (other.later, Versioned().later) == ([], [])


def test_a_version_outside_the_schema_is_rejected() -> None:
    with pytest.raises(UnknownVersion, match="unknown version 99 of FetchRequest; known are 0 to 18"):
        codec_for(FetchRequest, 99)
    with pytest.raises(UnknownVersion):
        codec_for(FetchPartition, 0)


def test_a_codec_is_compiled_once() -> None:
    assert codec_for(FetchRequest, 12) is codec_for(FetchRequest, 12)
    assert "unpack_from" not in codec_for(FetchRequest, 12).encode_source


# values


@pytest.mark.parametrize(
    "message",
    [
        MetadataRequest([MetadataRequestTopic(name="x" * 40_000)]),
        MetadataRequest([MetadataRequestTopic(name="\ud800")]),
        MetadataRequest([MetadataRequestTopic(bytes(3), "x")]),
        MetadataRequest([MetadataRequestTopic(name=5)]),  # type: ignore[arg-type]
        MetadataRequest(["x"]),  # type: ignore[list-item]
        MetadataRequest(5),  # type: ignore[arg-type]
        HeartbeatRequest(),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_rejected(message: Any) -> None:
    with pytest.raises(EncodeError):
        codec_for(MetadataRequest, 12).encode(message)


@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1, "5", None, 1.5])
def test_a_number_out_of_range_is_rejected(number: Any) -> None:
    with pytest.raises(EncodeError):
        codec_for(HeartbeatRequest, 3).encode(HeartbeatRequest("g", number, "m"))


def test_a_string_too_long_for_the_old_encoding_is_rejected() -> None:
    with pytest.raises(EncodeError):
        codec_for(HeartbeatRequest, 0).encode(HeartbeatRequest("x" * 32_768, 1, "m"))
    codec_for(HeartbeatRequest, 0).encode(HeartbeatRequest("x" * 32_767, 1, "m"))


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF))
def test_unsigned_numbers_come_back(small: int, large: int, sixteen: int, thirty_two: int) -> None:
    codec = codec_for(Numbers, 0)
    message = Numbers(small, large, sixteen, thirty_two)
    data = codec.encode(message)
    assert codec.decode(data) == (message, len(data))
    assert len(data) == 6 + max(1, -(-small.bit_length() // 7)) + max(1, -(-large.bit_length() // 7))


def test_varints_are_bounded_by_their_width() -> None:
    codec = codec_for(Numbers, 0)
    for message in (Numbers(1 << 32), Numbers(-1), Numbers(0, 1 << 64)):
        with pytest.raises(EncodeError):
            codec.encode(message)
    for data in (b"\xff\xff\xff\xff\x10", b"\xff\xff\xff\xff\xff\x01", b"\0" + b"\xff" * 10):
        with pytest.raises(InvalidLength):
            codec.decode(data + bytes(10))


@given(st.integers(0, 300))
def test_arrays_of_numbers_of_any_length_come_back(count: int) -> None:
    for version in (1, 2):
        codec = codec_for(Versioned, version)
        message = Versioned(later=list(range(count)))
        assert codec.decode(codec.encode(message))[0] == message


# records


def test_records_are_views_of_the_buffer_they_came_in() -> None:
    codec = codec_for(ProduceRequest, 9)
    frame = bytearray(codec.encode(produce_request(b"0123456789")))
    message, _ = codec.decode(frame)
    records = message.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[0:4] = b"abcd"
    assert b"abcd456789" in frame


def test_large_records_are_passed_by_reference_and_small_ones_joined() -> None:
    codec = codec_for(ProduceRequest, 9)
    large = memoryview(bytearray(5000))
    chunks = codec.encode_chunks(produce_request(large))
    assert [chunk is large for chunk in chunks] == [False, True, False]
    assert len(codec.encode_chunks(produce_request(b"small"))) == 1
    assert codec.encode(produce_request(large)) == b"".join(
        bytes(c) for c in chunks if isinstance(c, bytes | memoryview)
    )


@pytest.mark.parametrize("version", [4, 12])
def test_a_region_of_a_file_takes_its_place_between_bytes(version: int) -> None:
    codec = codec_for(FetchResponse, version)
    sizes = (300, 0, 70_000)
    regions = [RegionOfFile(size) for size in sizes]

    def response(records: list[Any]) -> FetchResponse:
        partitions = [PartitionData(n, records=value) for n, value in enumerate(records)]
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])

    chunks = codec.encode_chunks(response(list(regions)))
    assert [chunk for chunk in chunks if isinstance(chunk, RegionOfFile)] == regions
    sent = b"".join(bytes(chunk.size) if isinstance(chunk, RegionOfFile) else bytes(chunk) for chunk in chunks)  # type: ignore[arg-type]
    assert sent == codec.encode(response([bytes(size) for size in sizes]))


def test_a_region_of_a_file_cannot_be_joined_into_bytes() -> None:
    with pytest.raises(EncodeError, match="chunks"):
        codec_for(ProduceRequest, 9).encode(produce_request(RegionOfFile(10)))


def test_something_that_is_neither_bytes_nor_a_region_is_rejected() -> None:
    with pytest.raises(EncodeError):
        codec_for(ProduceRequest, 9).encode_chunks(produce_request(object()))


# schemas


def test_invalid_annotations_are_rejected() -> None:
    class NoDefault(Message):
        SCHEMA: ClassVar[Schema] = Schema("0")
        number: Int32

    class NoWireType(Message):
        SCHEMA: ClassVar[Schema] = Schema("0")
        number: int = 0

    class Nested(Message):
        SCHEMA: ClassVar[Schema] = Schema("0")
        numbers: list[list[Int32]] = EMPTY

    class TaggedTooEarly(Message):
        SCHEMA: ClassVar[Schema] = Schema("0")
        number: Annotated[Int32, tagged(0, "0+")] = 0

    class Marked(Message):
        SCHEMA: ClassVar[Schema] = Schema("0")
        number: Annotated[Int32, "seconds"] = 0

    for message in (NoDefault, NoWireType, Nested, TaggedTooEarly, Marked):
        with pytest.raises(SchemaError):
            Codec(message, 0)
    with pytest.raises(SchemaError):
        versions("two")


def test_records_alone_are_a_message_of_chunks() -> None:
    class Bare(Message):
        SCHEMA: ClassVar[Schema] = Schema("0")
        records: Annotated[Records, nullable("none")] = None

    codec = Codec(Bare, 0)
    with pytest.raises(EncodeError):
        codec.encode(Bare(None))
    assert codec.encode(Bare(b"ab")) == pack(">i", 2) + b"ab"
