"""Produce requests with one record, on a bare socket: what a broker costs a request, with next to no client.

Rule: the frame is built once and sent again and again, so all answers are alike up to the base offset; every answer is
compared with the first, which is decoded, after the clock has stopped.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, NamedTuple

from benchmarks.peers.servers import HOST, Loaded, ServerFailed, request_frame
from penstock.records import encode_batch
from penstock.records.legacy import LegacyMessage, encode_message_set
from penstock.wire.api_keys import ApiKey
from penstock.wire.frames import FrameDecoder
from penstock.wire.headers import decode_response, encode_response
from penstock.wire.registry import response_codec
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData

WINDOW = 64
VALUE_BYTES = 100
ACKS_LEADER, ACKS_ALL = 1, -1
_FIRST_VERSION_WITH_BATCHES = 3
_TIMEOUT_MS = 30_000
_PATIENCE_S = 60.0
_OFFSET_BYTES = 8


class RoundTrips(NamedTuple):
    p50_us: float
    p99_us: float
    cpu_us: float


class Pipelined(NamedTuple):
    per_s: float
    cpu_us: float


def _one_record(version: int) -> bytes:
    """In the form that the version of the request has: a batch, or a message of the oldest kind."""
    value = os.urandom(VALUE_BYTES)
    if version < _FIRST_VERSION_WITH_BATCHES:
        return encode_message_set([LegacyMessage(0, -1, 0, None, value)], magic=0)
    return bytes(encode_batch([(int(time.time() * 1000), None, value, [])]))


class RawProducer:
    """A connection to a broker and the one frame that is sent over it."""

    def __init__(self, server: Loaded, topic: str, acks: int) -> None:
        self._server = server
        self._version = server.dialect.produce_version
        data = [PartitionProduceData(0, _one_record(self._version))]
        request = ProduceRequest(None, acks, _TIMEOUT_MS, [TopicProduceData(topic, partition_data=data)])
        self._frame = request_frame(ApiKey.PRODUCE, self._version, request)
        self._socket = socket.create_connection((HOST, server.port), _PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._constant, self._answer_bytes = self._first_answer()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> RawProducer:
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
        raw, decoder = b"", FrameDecoder()
        while True:
            data = self._more()
            raw += data
            frames = decoder.feed(data)
            if frames:
                break
        _, position = decode_response(ApiKey.PRODUCE, self._version, frames[0])
        response, _ = response_codec(ApiKey.PRODUCE, self._version).decode(frames[0], position)
        outcome = response.responses[0].partition_responses[0]
        if outcome.error_code:
            raise ServerFailed(f"{self._server.name} refused a record: {outcome}")
        # Written with an offset that stands out, the answer shows where its offset is.
        outcome.base_offset = -1
        chunks: list[Any] = list(encode_response(ApiKey.PRODUCE, self._version, 1, response))
        return raw[: b"".join(chunks).index(b"\xff" * _OFFSET_BYTES)], len(raw)

    def _check(self, answers: bytes, count: int) -> None:
        size, constant = self._answer_bytes, self._constant
        if len(answers) != count * size:
            raise ServerFailed(f"{self._server.name}: {len(answers)} bytes for {count} answers of {size}")
        wrong = sum(not answers.startswith(constant, start) for start in range(0, len(answers), size))
        if wrong:
            raise ServerFailed(f"{self._server.name} refused {wrong} of {count} records")
