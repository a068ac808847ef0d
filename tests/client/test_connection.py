"""One connection: pipelining, time-outs, and every way in which it can end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from tests.client.scripted import Handle, Scripted, SkippingLoop, answer_bytes, next_request, run, speaking, this_loop
from tests.timeouts import NEVER_MS, PATIENCE_MS

from penstock.client.addresses import Address
from penstock.client.connection import BufferList, Connection
from penstock.client.connection_pool import ConnectionOptions, open_connection
from penstock.client.errors import NotConnected, ProtocolViolation, RequestTimedOut, UnsupportedVersion
from penstock.runtime import network
from penstock.wire.framing import RequestHeader
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.schemas.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.types import Message

WAY = ConnectionOptions(connect_timeout_ms=PATIENCE_MS, request_timeout_ms=PATIENCE_MS)


def groups(name: str) -> ListGroupsResponse:
    return ListGroupsResponse(groups=[ListedGroup(group_id=name, protocol_type="consumer")])


async def opened(server: Scripted) -> Connection:
    return await open_connection(Address("127.0.0.1", server.port), WAY)


def ask(connection: Connection, timeout_ms: float = 5_000) -> asyncio.Task[Any]:
    return asyncio.ensure_future(connection.request(ApiKey.LIST_GROUPS, ListGroupsRequest(), timeout_ms=timeout_ms))


def after_the_handshake(script: Handle) -> Handle:
    """Agree on versions, then leave the connection to `script`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header, _ = await next_request(reader)
        from tests.client.scripted import VERSIONS

        from penstock.wire.schemas.api_versions import ApiVersionsResponse

        writer.write(answer_bytes(header, ApiVersionsResponse(api_keys=VERSIONS)))
        await script(reader, writer)

    return handle


def test_several_requests_wait_at_once_and_each_gets_its_own_answer() -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = [await next_request(reader) for _ in range(5)]
        for number, (header, _) in enumerate(requests):
            writer.write(answer_bytes(header, groups(f"g{number}")))
        await reader.read()

    async def story() -> None:
        async with Scripted(after_the_handshake(late)) as server:
            connection = await opened(server)
            answers = await asyncio.gather(*(ask(connection) for _ in range(5)))
            assert [answer.groups[0].group_id for answer in answers] == [f"g{number}" for number in range(5)]
            assert connection.in_flight == 0
            connection.close()

    run(story())


def test_an_answer_in_pieces_of_one_byte_is_an_answer() -> None:
    async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header, _ = await next_request(reader)
        for byte in answer_bytes(header, groups("g")):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async def story() -> None:
        async with Scripted(after_the_handshake(dripping)) as server:
            connection = await opened(server)
            assert (await ask(connection)).groups[0].group_id == "g"
            connection.close()

    run(story())


def test_a_connection_that_ends_inside_a_frame_fails_all_requests_in_flight() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header, _ = await next_request(reader)
        writer.write(answer_bytes(header, groups("g" * 200))[:100])
        await writer.drain()

    async def story() -> None:
        async with Scripted(after_the_handshake(cut)) as server:
            connection = await opened(server)
            outcomes = await asyncio.gather(ask(connection), ask(connection), return_exceptions=True)
            for outcome in outcomes:
                assert isinstance(outcome, NotConnected)
                assert outcome.retriable
                assert "in the middle of a frame, 100 bytes into it" in outcome.reason
            assert connection.closed
            with pytest.raises(NotConnected, match="in the middle of a frame"):
                await ask(connection)

    run(story())


def test_a_request_that_is_not_answered_in_time_ends_the_connection() -> None:
    def silent(header: RequestHeader, message: Any) -> Message | None:
        return None

    async def story() -> None:
        async with Scripted(speaking(silent)) as server:
            connection = await opened(server)
            patient, hasty = ask(connection, NEVER_MS), ask(connection, 50)
            with pytest.raises(RequestTimedOut, match="did not answer ListGroups v4 within 50 ms"):
                await hasty
            with pytest.raises(NotConnected, match="was not answered within 50 ms"):
                await patient
            assert connection.closed

    run(story())


def test_an_answered_request_leaves_no_time_out_behind() -> None:
    async def story() -> None:
        async with Scripted(speaking(lambda header, message: groups("g"))) as server:
            connection = await opened(server)
            await ask(connection, NEVER_MS)
            this_loop().skip(2 * NEVER_MS)
            await asyncio.sleep(0)
            assert not connection.closed
            assert (await ask(connection)).groups
            connection.close()

    run(story(), loop_factory=SkippingLoop)


@pytest.mark.parametrize("damage", ["correlation", "garbage", "unasked", "huge"])
def test_an_invalid_response_closes_the_connection(damage: str) -> None:
    async def wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header, _ = await next_request(reader)
        good = answer_bytes(header, groups("g"))
        if damage == "correlation":
            writer.write(answer_bytes(header._replace(correlation_id=77), groups("g")))
        elif damage == "garbage":
            writer.write(good[:8] + b"\xff" * (len(good) - 8))
        elif damage == "unasked":
            writer.write(good + good)
        else:
            writer.write(b"\x7f\xff\xff\xff")
        await reader.read()

    async def story() -> None:
        async with Scripted(after_the_handshake(wrong)) as server:
            connection = await opened(server)
            first = ask(connection)
            if damage == "unasked":
                assert (await first).groups
            else:
                with pytest.raises(ProtocolViolation):
                    await first
            await connection.wait_closed(1000)
            assert connection.closed

    run(story())


def test_giving_up_an_answer_does_not_disturb_the_next() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, _ = await next_request(reader)
        second, _ = await next_request(reader)
        writer.write(answer_bytes(first, groups("first")) + answer_bytes(second, groups("second")))
        await reader.read()

    async def story() -> None:
        async with Scripted(after_the_handshake(slow)) as server:
            connection = await opened(server)
            given_up = ask(connection)
            await asyncio.sleep(0)
            given_up.cancel()
            assert (await ask(connection)).groups[0].group_id == "second"
            connection.close()

    run(story())


def test_closing_fails_requests_in_flight_and_may_be_repeated() -> None:
    async def story() -> None:
        async with Scripted(speaking(lambda header, message: None)) as server:
            connection = await opened(server)
            waiting = ask(connection)
            await asyncio.sleep(0)
            connection.close("enough")
            connection.close("again")
            with pytest.raises(NotConnected, match="enough"):
                await waiting
            await connection.wait_closed(1000)

    run(story())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_records_travel_without_being_joined_or_copied(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    fetched_bytes = bytes(range(256)) * 160_000  # Larger than what is taken at once, so that the buffer has to grow.
    pieces: list[bytes] = [b"a" * 100, b"b" * 70_000, b"c" * 300_000, b"d"]
    seen: list[bytes] = []

    def answer(header: RequestHeader, message: Any) -> Message:
        if header.api.key is ApiKey.PRODUCE:
            seen.append(bytes(message.topic_data[0].partition_data[0].records))
            return ProduceResponse()
        data = PartitionData(partition_index=0, records=fetched_bytes)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

    async def story() -> None:
        async with Scripted(speaking(answer)) as server:
            connection = await opened(server)
            part = PartitionProduceData(index=0, records=BufferList(pieces))
            request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=[part])])
            await connection.request(ApiKey.PRODUCE, request, timeout_ms=PATIENCE_MS)
            assert seen == [b"".join(pieces)]
            fetched = await connection.request(ApiKey.FETCH, FetchRequest(), timeout_ms=PATIENCE_MS)
            records = fetched.responses[0].partitions[0].records
            assert isinstance(records, memoryview)
            assert records == fetched_bytes
            connection.close()

    run(story(), loop_factory=loop_factory)


def test_requests_keep_their_order_while_the_broker_does_not_read() -> None:
    order: list[int] = []
    reads = asyncio.Event()

    async def stubborn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reads.wait()
        while True:
            header, message = await next_request(reader)
            order.append(message.timeout_ms)
            writer.write(answer_bytes(header, ProduceResponse()))

    async def story() -> None:
        async with Scripted(after_the_handshake(stubborn)) as server:
            connection = await opened(server)
            tasks = []
            for number in range(40):
                part = PartitionProduceData(index=0, records=bytes(500_000))
                request = ProduceRequest(
                    acks=1, timeout_ms=number, topic_data=[TopicProduceData(name="t", partition_data=[part])]
                )
                tasks.append(asyncio.ensure_future(connection.request(ApiKey.PRODUCE, request, timeout_ms=PATIENCE_MS)))
                await asyncio.sleep(0)
            reads.set()
            await asyncio.gather(*tasks)
            assert order == list(range(40))
            connection.close()

    run(story())


def test_a_request_without_an_answer_returns_at_once_and_still_leaves() -> None:
    arrived = asyncio.Event()

    def answer(header: RequestHeader, message: Any) -> Message | None:
        arrived.set()
        return None

    async def story() -> None:
        async with Scripted(speaking(answer)) as server:
            connection = await opened(server)
            request = ProduceRequest(acks=0, topic_data=[])
            assert await connection.request(ApiKey.PRODUCE, request, timeout_ms=1, expects_answer=False) is None
            assert connection.in_flight == 0
            connection.close()
            await arrived.wait()

    run(story())


def test_versions_are_the_highest_that_both_know() -> None:
    async def story() -> None:
        async with Scripted(speaking(lambda header, message: None)) as server:
            connection = await opened(server)
            assert connection.version_of(ApiKey.FETCH) == 12
            assert connection.version_of(ApiKey.FETCH, at_most=5) == 5
            assert connection.supports(ApiKey.METADATA, 12)
            assert not connection.supports(ApiKey.METADATA, 13)
            assert not connection.supports(ApiKey.DESCRIBE_CLUSTER, 0)
            with pytest.raises(UnsupportedVersion, match="broker does not have it, this client has 0 to 2"):
                connection.version_of(ApiKey.DESCRIBE_CLUSTER)
            connection.agree([(ApiKey.FETCH, 30, 40)])
            with pytest.raises(UnsupportedVersion, match="broker has versions 30 to 40, this client has 0 to 18"):
                connection.version_of(ApiKey.FETCH)
            connection.close()

    run(story())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_broker_that_falls_silent_while_it_is_waited_for_is_asked_whether_it_is_there(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A machine that loses power does not close its connections, and a JoinGroup may wait for minutes."""

    async def story() -> None:
        async with Scripted(speaking(lambda *_: groups("g"))) as server:
            connection = await opened(server)
            sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == network.KEEP_ALIVE_IDLE_S
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == network.KEEP_ALIVE_INTERVAL_S
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == network.KEEP_ALIVE_PROBES
            connection.abort()

    run(story(), loop_factory=loop_factory)
