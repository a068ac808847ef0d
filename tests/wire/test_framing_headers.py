"""Request and response headers, their special cases, and whole frames."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from tests.wire.generate import ALL_CASES, Case, Generator, check_every

from penstock.wire.errors import (
    DecodeError,
    EncodeError,
    InvalidLength,
    InvalidUtf8,
    Truncated,
    UnknownApi,
    UnknownVersion,
)
from penstock.wire.framing import (
    RequestHeader,
    ResponseHeader,
    chunk_size,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from penstock.wire.protocol import APIS, ApiKey, request_codec, response_codec
from penstock.wire.schemas.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.schemas.controlled_shutdown import ControlledShutdownRequest
from penstock.wire.schemas.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from penstock.wire.schemas.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.schemas.sasl_handshake import SaslHandshakeRequest


def whole(chunks: list[Any]) -> bytearray:
    """The one frame that chunks make on the wire."""
    stream = bytearray().join(chunks)
    assert stream[:4] == pack(">i", len(stream) - 4)
    return stream[4:]


def test_header_1_has_a_plain_client_id() -> None:
    frame = whole(encode_request(ApiKey.HEARTBEAT, 3, 77, "kcat", HeartbeatRequest("g", 1, "m")))
    assert frame.startswith(pack(">hhih", 12, 3, 77, 4) + b"kcat" + b"\0\1g")
    header, position = decode_request(frame)
    assert header == RequestHeader(APIS[12], 3, 77, "kcat")
    assert request_codec(12, 3).decode(frame, position) == (HeartbeatRequest("g", 1, "m"), len(frame))


def test_header_2_keeps_the_plain_client_id_and_adds_tags() -> None:
    frame = whole(encode_request(ApiKey.HEARTBEAT, 4, 77, "kcat", HeartbeatRequest("g", 1, "m")))
    assert frame.startswith(pack(">hhih", 12, 4, 77, 4) + b"kcat\0" + b"\2g")
    assert decode_request(frame) == (RequestHeader(APIS[12], 4, 77, "kcat"), 15)


def test_header_0_has_no_client_id() -> None:
    frame = whole(encode_request(ApiKey.CONTROLLED_SHUTDOWN, 0, 77, "ignored", ControlledShutdownRequest(5)))
    assert frame == pack(">hhii", 7, 0, 77, 5)
    assert decode_request(frame) == (RequestHeader(APIS[7], 0, 77, None), 8)


@pytest.mark.parametrize("client_id", [None, "", "Grüße", "x" * 32_767])
@pytest.mark.parametrize("version", [3, 4])
def test_client_ids_come_back(client_id: str | None, version: int) -> None:
    frame = whole(encode_request(ApiKey.HEARTBEAT, version, -1, client_id, HeartbeatRequest()))
    header, position = decode_request(memoryview(frame))
    assert (header.client_id, header.correlation_id) == (client_id, -1)
    assert request_codec(12, version).decode(frame, position)[1] == len(frame)


def test_a_client_id_that_cannot_be_written_is_rejected() -> None:
    with pytest.raises(EncodeError):
        encode_request(ApiKey.HEARTBEAT, 4, 1, "x" * 32_768, HeartbeatRequest())
    with pytest.raises(EncodeError):
        encode_request(ApiKey.HEARTBEAT, 4, 1 << 40, "x", HeartbeatRequest())
    with pytest.raises(EncodeError):
        encode_request(ApiKey.HEARTBEAT, 4, 1, "\ud800", HeartbeatRequest())
    with pytest.raises(EncodeError):
        encode_response(ApiKey.HEARTBEAT, 4, 1 << 40, HeartbeatResponse())


def test_unknown_tags_of_a_header_are_read_over_and_kept() -> None:
    frame = pack(">hhih", 12, 4, 77, -1) + b"\1\x05\2ab" + b"body"
    header, position = decode_request(frame)
    assert header.unknown_tags == {5: b"ab"}
    assert frame[position:] == b"body"
    response, position = decode_response(ApiKey.HEARTBEAT, 4, pack(">i", 77) + b"\1\x05\2ab" + b"body")
    assert (response, position) == (ResponseHeader(77, {5: b"ab"}), 9)


def test_an_unknown_api_is_rejected_with_its_correlation_id() -> None:
    with pytest.raises(UnknownApi) as caught:
        decode_request(pack(">hhih", 999, 3, 77, -1))
    assert (caught.value.api_key, caught.value.api_version, caught.value.correlation_id) == (999, 3, 77)
    with pytest.raises(UnknownApi):
        decode_request(pack(">hhih", -1, 0, 77, -1))
    with pytest.raises(UnknownApi):
        decode_request(pack(">hhih", ApiKey.VOTE, 0, 77, -1))


@pytest.mark.parametrize("version", [99, 5, -1, 0x7FFF])
def test_an_unknown_version_is_rejected_with_its_correlation_id(version: int) -> None:
    with pytest.raises(UnknownVersion, match="of ApiVersions; known") as caught:
        decode_request(pack(">hhi", ApiKey.API_VERSIONS, version, 77) + b"whatever the header is")
    error = caught.value
    assert (error.api_key, error.version, error.correlation_id) == (18, version, 77)
    assert (error.lowest, error.highest) == (0, 4)


def test_an_answer_to_api_versions_has_header_0_in_every_version() -> None:
    for version in range(5):
        frame = whole(encode_response(ApiKey.API_VERSIONS, version, 77, ApiVersionsResponse(35)))
        assert frame.startswith(pack(">ih", 77, 35))
        assert decode_response(ApiKey.API_VERSIONS, version, frame) == (ResponseHeader(77), 4)
    request = whole(encode_request(ApiKey.API_VERSIONS, 3, 77, "c", ApiVersionsRequest("lib", "1")))
    assert decode_request(request)[0].client_id == "c"


def test_a_flexible_answer_has_header_1() -> None:
    frame = whole(encode_response(ApiKey.HEARTBEAT, 4, 77, HeartbeatResponse(0, 27)))
    assert frame == pack(">ixihx", 77, 0, 27)
    assert decode_response(ApiKey.HEARTBEAT, 4, frame) == (ResponseHeader(77), 5)
    frame = whole(encode_response(ApiKey.HEARTBEAT, 3, 77, HeartbeatResponse(0, 27)))
    assert frame == pack(">iih", 77, 0, 27)


def test_apis_that_were_never_flexible_stay_with_the_old_headers() -> None:
    frame = whole(encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, None, SaslHandshakeRequest("PLAIN")))
    assert frame == pack(">hhihh", 17, 1, 1, -1, 5) + b"PLAIN"


def test_a_request_cut_inside_its_header_is_rejected() -> None:
    frame = whole(encode_request(ApiKey.HEARTBEAT, 4, 77, "kcat", HeartbeatRequest("g", 1, "m")))
    for length in range(15):
        with pytest.raises(Truncated):
            decode_request(frame[:length])
    for length in range(5):
        with pytest.raises(Truncated):
            decode_response(ApiKey.HEARTBEAT, 4, frame[:length])


def test_a_damaged_client_id_is_rejected() -> None:
    with pytest.raises(InvalidUtf8):
        decode_request(pack(">hhih", 12, 3, 77, 1) + b"\xff")
    with pytest.raises(InvalidLength):
        decode_request(pack(">hhih", 12, 3, 77, -2))
    with pytest.raises(DecodeError):
        decode_request(pack(">hhih", 12, 4, 77, -1) + b"\xff\xff\xff\xff\xff\xff")


def test_records_of_a_request_can_be_patched_in_the_frame() -> None:
    partition = PartitionProduceData(0, bytes(2000))
    message = ProduceRequest(None, 1, 1000, [TopicProduceData("t", partition_data=[partition])])
    chunks = encode_request(ApiKey.PRODUCE, 9, 1, "c", message)
    assert len(chunks) == 3
    frame = whole(chunks)
    header, position = decode_request(frame)
    decoded, _ = request_codec(header.api.key, header.api_version).decode(frame, position)
    decoded.topic_data[0].partition_data[0].records[:3] = b"abc"
    assert b"abc\0\0" in frame


def test_the_length_prefix_counts_regions_too() -> None:
    class RegionOfFile:
        size = 123_456

    region = RegionOfFile()
    message = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[PartitionData(records=region)])])
    chunks = encode_response(ApiKey.FETCH, 12, 9, message)
    assert chunks[1] is region
    assert isinstance(chunks[0], bytes)
    assert int.from_bytes(chunks[0][:4], "big") == sum(map(chunk_size, chunks)) - 4


def test_a_frame_too_long_for_its_prefix_is_rejected() -> None:
    class Gigabyte:
        size = 1 << 30

    partitions = [PartitionData(records=Gigabyte()) for _ in range(2)]
    message = FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])
    with pytest.raises(EncodeError, match="exceeds the maximum"):
        encode_response(ApiKey.FETCH, 12, 9, message)


def test_every_message_travels_in_a_frame() -> None:
    def check(case: Case) -> None:
        message = Generator(3).message(case.message, case.version)
        key = case.api.key
        if case.side == "request":
            frame = whole(encode_request(key, case.version, 5, "c", message))
            header, position = decode_request(frame)
            assert (header.api, header.api_version, header.correlation_id) == (case.api, case.version, 5)
            assert request_codec(key, case.version).decode(frame, position) == (message, len(frame))
        else:
            frame = whole(encode_response(key, case.version, 5, message))
            response, position = decode_response(key, case.version, frame)
            assert response.correlation_id == 5
            assert response_codec(key, case.version).decode(frame, position) == (message, len(frame))

    check_every(ALL_CASES, check)
