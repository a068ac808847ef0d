"""The workloads: big batches through confluent-kafka, and requests with one record on a bare socket.

Bulk: every record is accounted for; a failed delivery or a record that does not come back ends the run. The consumer's
clock starts with its first records, since connecting is not measured.

Requests: the frame is built once and sent again and again, so all answers are equal up to the base offset. The first
is decoded and the others are compared with it after the clock has stopped.
"""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from benchmarks.peers.servers import HOST, Loaded, ServerFailed, request_frame
from penstock.records import encode_batch
from penstock.records.legacy import LegacyMessage, encode_message_set
from penstock.wire.errors import Frame
from penstock.wire.framing import FrameReceiver, decode_response, encode_response
from penstock.wire.protocol import ApiKey, response_codec
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData

WINDOW = 64
VALUE_BYTES = 100
ACKS_LEADER, ACKS_ALL = 1, -1
UNCOMPRESSED = "none"
_CHUNK_BYTES = 1_000_000
_IN_FLIGHT_BYTES = 64_000_000
_PATIENCE_S = 60.0
_POLL_S = 0.001
_MOST_AT_ONCE = 10_000
_MAX_ANSWER_BYTES = 1024 * 1024
_FIRST_VERSION_WITH_BATCHES = 3
_FETCH_VERSION = 12
_TIMEOUT_MS = 30_000
_OFFSET_BYTES = 8
_PRODUCER: dict[str, Any] = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 2_000_000,
    "queue.buffering.max.kbytes": 1_000_000,
    "delivery.report.only.error": True,
}
_CONSUMER: dict[str, Any] = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 65_536,
    "fetch.message.max.bytes": 8_388_608,
    # By default a client whose queue is full asks again after a second, and a fast broker does fill it.
    "fetch.queue.backoff.ms": 10,
}

# ---------------------------------------------------------------------------------------------- bulk


class Transfer(NamedTuple):
    mb_per_s: float
    cpu_s_per_gb: float


def produce(
    server: Loaded, topic: str, value_bytes: int, count: int, acks: int = 1, codec: str = UNCOMPRESSED
) -> Transfer:
    """Random values or, with a codec, random hexadecimal digits, which compress to about 55 %."""
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    settings = {**_client(server), **_PRODUCER, "acks": acks, "compression.type": codec}
    producer = Producer({**settings, "on_delivery": on_delivery})
    producer.list_topics(topic, _PATIENCE_S)
    chunk = max(1, _CHUNK_BYTES // value_bytes)
    most = _IN_FLIGHT_BYTES // value_bytes
    messages = [{"value": _value(value_bytes, codec)} for _ in range(chunk)]
    cpu_s, began = server.cpu_s(), time.perf_counter()
    left = count
    while left:
        if len(producer) + chunk > most:
            producer.poll(_POLL_S)
            continue
        queued = producer.produce_batch(topic, messages if left >= chunk else messages[:left], partition=0)
        left -= queued
        if not queued:
            producer.poll(_POLL_S)
    unsent = producer.flush(_PATIENCE_S)
    took_s, cpu_s = time.perf_counter() - began, server.cpu_s() - cpu_s
    if unsent or failures:
        raise ServerFailed(f"{server.name}: {unsent or len(failures)} records not delivered {failures[:1]}")
    volume = count * value_bytes
    return Transfer(volume / took_s / 1e6, cpu_s / volume * 1e9)


def consume(server: Loaded, topic: str, value_bytes: int, count: int) -> Transfer:
    consumer = Consumer({**_client(server), **_CONSUMER})
    # consume() waits until it has as many as asked for: always fewer than the client's queue can hold.
    most = min(_MOST_AT_ONCE, _CHUNK_BYTES * 4 // value_bytes)
    try:
        cpu_s = server.cpu_s()
        consumer.assign([TopicPartition(topic, 0, 0)])
        first = _next(server, consumer, 1)
        began = time.perf_counter()
        left = count - first
        while left > 0:
            left -= _next(server, consumer, min(most, left))
        took_s, cpu_s = time.perf_counter() - began, server.cpu_s() - cpu_s
    finally:
        consumer.close()
    return Transfer((count - first) * value_bytes / took_s / 1e6, cpu_s / (count * value_bytes) * 1e9)


def _value(size: int, codec: str) -> bytes:
    return os.urandom(size) if codec == UNCOMPRESSED else os.urandom(size // 2).hex().encode()


def _client(server: Loaded) -> dict[str, Any]:
    return {"bootstrap.servers": server.address, "log_level": 0, **server.dialect.client}


def _next(server: Loaded, consumer: Consumer, most: int) -> int:
    deadline = time.perf_counter() + _PATIENCE_S
    while time.perf_counter() < deadline:
        messages = consumer.consume(most, 0.1)
        for message in messages[:1]:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
        if messages:
            return len(messages)
    raise ServerFailed(f"{server.name}: records are missing")


# ---------------------------------------------------------------------------------------------- requests


class RoundTrips(NamedTuple):
    p50_us: float
    p99_us: float
    cpu_us: float


class Pipelined(NamedTuple):
    per_s: float
    cpu_us: float


class RawRequests(ABC):
    """A connection to a broker and the one frame that is sent over it.

    `connected` is a connection that is there already, such as one that has logged in.
    """

    def __init__(self, server: Loaded, frame: bytes, connected: socket.socket | None = None) -> None:
        self._server = server
        self._frame = frame
        self._socket = connected or socket.create_connection((HOST, server.port), _PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._constant, self._answer_bytes = self._first_answer()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def round_trips(self, count: int) -> RoundTrips:
        frame, size = self._frame, self._answer_bytes
        send, receive, clock = self._socket.sendall, self._socket.recv, time.perf_counter
        answers, times_s = [], []
        cpu_s = self._server.cpu_s()
        for _ in range(count):
            began = clock()
            send(frame)
            answer = receive(65_536)
            while len(answer) < size:
                answer += self._more()
            times_s.append(clock() - began)
            answers.append(answer)
        cpu_s = self._server.cpu_s() - cpu_s
        self._check(b"".join(answers), count)
        times_s.sort()
        return RoundTrips(times_s[count // 2] * 1e6, times_s[count * 99 // 100] * 1e6, cpu_s / count * 1e6)

    def pipelined(self, count: int, window: int = WINDOW) -> Pipelined:
        """As many as the window holds are always under way: for each answer, the next request."""
        frames = [self._frame * number for number in range(window + 1)]
        answers = bytearray()
        sent = 0
        cpu_s, began = self._server.cpu_s(), time.perf_counter()
        while len(answers) < count * self._answer_bytes:
            room = min(window - (sent - len(answers) // self._answer_bytes), count - sent)
            if room > 0:
                self._socket.sendall(frames[room])
                sent += room
            answers += self._more()
        took_s, cpu_s = time.perf_counter() - began, self._server.cpu_s() - cpu_s
        self._check(bytes(answers), count)
        return Pipelined(count / took_s, cpu_s / count * 1e6)

    def _more(self) -> bytes:
        data = self._socket.recv(65_536)
        if not data:
            raise ServerFailed(f"{self._server.name} closed the connection")
        return data

    def _first_answer(self) -> tuple[bytes, int]:
        """What every answer begins with, and how long it is."""
        self._socket.sendall(self._frame)
        raw, receiver = b"", FrameReceiver(_MAX_ANSWER_BYTES)
        frames: list[Frame] = []
        while not frames:
            data = self._more()
            raw += data
            receiver.get_buffer()[: len(data)] = data
            frames = receiver.received(len(data))
        return self._constant_of(raw, frames[0]), len(raw)

    @abstractmethod
    def _constant_of(self, raw: bytes, answer: Frame) -> bytes:
        """What all answers have in common with the first one. Raises ServerFailed if that is an error."""

    def _check(self, answers: bytes, count: int) -> None:
        size, constant = self._answer_bytes, self._constant
        if len(answers) != count * size:
            raise ServerFailed(f"{self._server.name}: {len(answers)} bytes for {count} answers of {size}")
        wrong = sum(not answers.startswith(constant, start) for start in range(0, len(answers), size))
        if wrong:
            raise ServerFailed(f"{self._server.name} rejected {wrong} of {count} records")


class RawProducer(RawRequests):
    """Produces one record with each request."""

    def __init__(self, server: Loaded, topic: str, acks: int, connected: socket.socket | None = None) -> None:
        self._version = server.dialect.produce_version
        data = [PartitionProduceData(0, _one_record(self._version))]
        request = ProduceRequest(None, acks, _TIMEOUT_MS, [TopicProduceData(topic, partition_data=data)])
        super().__init__(server, request_frame(ApiKey.PRODUCE, self._version, request), connected)

    def _constant_of(self, raw: bytes, answer: Frame) -> bytes:
        _, position = decode_response(ApiKey.PRODUCE, self._version, answer)
        response, _ = response_codec(ApiKey.PRODUCE, self._version).decode(answer, position)
        outcome = response.responses[0].partition_responses[0]
        if outcome.error_code:
            raise ServerFailed(f"{self._server.name} rejected a record: {outcome}")
        # Written with an offset that stands out, the answer shows where its offset is.
        outcome.base_offset = -1
        chunks: list[Any] = list(encode_response(ApiKey.PRODUCE, self._version, 1, response))
        return raw[: b"".join(chunks).index(b"\xff" * _OFFSET_BYTES)]


class RawFetcher(RawRequests):
    """Fetches the only record of a topic with each request, so that all answers are equal."""

    def __init__(self, server: Loaded, topic: str, connected: socket.socket | None = None) -> None:
        places = [FetchPartition(0, fetch_offset=0, partition_max_bytes=_MAX_ANSWER_BYTES)]
        request = FetchRequest(min_bytes=1, max_wait_ms=500, topics=[FetchTopic(topic, partitions=places)])
        super().__init__(server, request_frame(ApiKey.FETCH, _FETCH_VERSION, request), connected)

    def _constant_of(self, raw: bytes, answer: Frame) -> bytes:
        _, position = decode_response(ApiKey.FETCH, _FETCH_VERSION, answer)
        response, _ = response_codec(ApiKey.FETCH, _FETCH_VERSION).decode(answer, position)
        outcome = response.responses[0].partitions[0]
        if response.error_code or outcome.error_code or not outcome.records:
            raise ServerFailed(f"{self._server.name} returned no record: {outcome}")
        return raw


def _one_record(version: int) -> bytes:
    """In the form that the version of the request has: a batch, or a message of the oldest kind."""
    value = os.urandom(VALUE_BYTES)
    if version < _FIRST_VERSION_WITH_BATCHES:
        return encode_message_set([LegacyMessage(0, -1, 0, None, value)], magic=0)
    return bytes(encode_batch([(int(time.time() * 1000), None, value, [])]))
