"""A client for tests of a broker: one blocking socket that sends requests and receives responses.

It never retries, reconnects or requests metadata, so what a test sees is what the broker sent. What the wire does not
offer (a topic with settings, the logs) is read from the broker on its own event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

from tests.timeouts import PATIENCE_S, until

from penstock.broker.broker import Broker
from penstock.cluster.controller.topics import NewTopic
from penstock.log.partition_log import PartitionLog
from penstock.records import Record, encode_batch, records_of, scan
from penstock.wire.framing import chunk_size, decode_response, encode_request
from penstock.wire.protocol import ApiKey, response_codec
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.schemas.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.types import Message

ALL: Final = -1
BEGIN_MS: Final = 1_700_000_000_000
MIB: Final = 1024 * 1024

T = TypeVar("T")


class Disconnected(ConnectionError):
    """The broker ended the connection."""


class WireClient:
    """One connection."""

    def __init__(self, port: int, *, timeout_s: float = PATIENCE_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = itertools.count(1)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, api: ApiKey, message: Message, version: int) -> int:
        """Ask without waiting for the answer; the correlation id."""
        number = next(self._numbers)
        self.send_bytes(request_bytes(api, version, number, message))
        return number

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def receive(self, api: ApiKey, version: int) -> tuple[int, Any]:
        """The next answer, which must be to this kind of request: its correlation id and message."""
        frame = self.receive_frame()
        header, position = decode_response(api, version, frame)
        message, end = response_codec(api, version).decode(frame, position)
        if end != len(frame):
            raise ValueError(f"{len(frame) - end} bytes follow the answer")
        return header.correlation_id, message

    def ask(self, api: ApiKey, message: Message, version: int) -> Any:
        number = self.send(api, message, version)
        answered, answer = self.receive(api, version)
        if answered != number:
            raise ValueError(f"asked as {number}, answered as {answered}")
        return answer

    def is_ended(self) -> bool:
        """Whether the broker ends the connection, having said whatever it still says; waits for either."""
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                part = self.socket.recv(min(size, MIB))
            except ConnectionError as error:
                raise Disconnected(str(error)) from error
            if not part:
                raise Disconnected(f"{size} bytes before the end of an answer")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    # --- the two questions that most stories ask

    def produce(
        self, topic: str, records: bytes | bytearray, *, partition: int = 0, acks: int = ALL, version: int = 9
    ) -> PartitionProduceResponse:
        answer: ProduceResponse = self.ask(
            ApiKey.PRODUCE, produce_request({(topic, partition): records}, acks=acks), version
        )
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int = 0, *, version: int = 12, **limits: int) -> PartitionData:
        answer: FetchResponse = self.ask(ApiKey.FETCH, fetch_request({(topic, 0): offset}, **limits), version)
        return answer.responses[0].partitions[0]


def request_bytes(api: ApiKey, version: int, number: int, message: Message) -> bytes:
    chunks: Iterable[Any] = encode_request(api, version, number, "story", message)
    return b"".join(bytes(chunk) for chunk in chunks if chunk_size(chunk))


def produce_request(
    records: Mapping[tuple[str, int], bytes | bytearray], *, acks: int = ALL, timeout_ms: int = 10_000
) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=bytes(data))])
            for (topic, index), data in records.items()
        ],
    )


def fetch_request(
    offsets: Mapping[tuple[str, int], int],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 * MIB,
    partition_max_bytes: int = MIB,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    leader_epoch: int = -1,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        current_leader_epoch=leader_epoch,
                    )
                ],
            )
            for (topic, index), offset in offsets.items()
        ],
    )


def batch_of(*values: bytes, begin_ms: int = BEGIN_MS, **more: Any) -> bytearray:
    """A batch with these values, a millisecond between one and the next."""
    return encode_batch([(begin_ms + number, b"key", value, ()) for number, value in enumerate(values)], **more)


def records_in(data: Any) -> list[Record]:
    """The records of the batches that an answer holds."""
    plain = bytes(data)
    found = scan(plain)
    if found.end != len(plain):
        raise ValueError(f"no whole batches: {found.problem}")
    return [record for header in found.headers for record in records_of(plain, header)]


def values_in(data: Any) -> list[bytes | None]:
    return [record.value for record in records_in(data)]


# --- what is asked of the broker itself


def on_loop(broker: Broker, work: Coroutine[Any, Any, T]) -> T:
    """Run on the broker's own event loop, from the thread of a test."""
    return asyncio.run_coroutine_threadsafe(work, broker.services.loop).result(PATIENCE_S)


def call(broker: Broker, function: Callable[[], T]) -> T:
    async def work() -> T:
        return function()

    return on_loop(broker, work())


def make_topic(broker: Broker, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
    """A new topic, under a name that no other story uses."""
    name = f"story-{uuid.uuid4().hex[:12]}"
    outcomes = on_loop(
        broker,
        broker.cluster.require_controller().create_topics([NewTopic(name, partitions, 1, configs=configs or {})]),
    )
    if outcomes[0].error is not None:
        raise outcomes[0].error
    return name


def delete_topic(broker: Broker, name: str) -> None:
    outcomes: Sequence[Any] = on_loop(broker, broker.cluster.require_controller().delete_topics([name]))
    if outcomes[0].error is not None:
        raise outcomes[0].error


def log_of(broker: Broker, topic: str, partition: int = 0) -> PartitionLog:
    found = broker.replicas.get(topic, partition)
    if found is None:
        raise AssertionError(f"{topic}-{partition} is not on this broker")
    return found.log


def send_and_be_heard(broker: Broker, client: WireClient, api: ApiKey, message: Message, version: int) -> int:
    """Send a request, and return when the broker has taken it in: it then waits, if it has something to wait for."""
    before = call(broker, lambda: broker.services.server.counters.frames)
    number = client.send(api, message, version)
    until(lambda: call(broker, lambda: broker.services.server.counters.frames) > before, "a request is read")
    return number
