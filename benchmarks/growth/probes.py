"""Requests over bare sockets: one fetch of a ready batch, and the fetches of a session over all partitions.

Requests are encoded before the clock starts and answers are decoded after it has stopped; each answer is checked. The
session is opened over all partitions, and only one of them gets records.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from benchmarks.peers.servers import HOST, Server, ServerFailed, request_frame
from benchmarks.peers.workloads import ACKS_LEADER, RawProducer
from penstock.wire.framing import decode_response
from penstock.wire.protocol import ApiKey, response_codec
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

_VERSION = 12
_PATIENCE_S = 60.0
_LONGEST_WAIT_MS = 10_000
_PARTITION_BYTES = 1_048_576
_SURELY_WAITING_S = 0.05
_ENOUGH_S = 2.0
_MAKING_S, _LOOK_AGAIN_S = 180.0, 0.05

Places = Sequence[tuple[str, int]]
"""Topics with how many partitions each has; partition 0 of the first one is the active one."""


class Cost(NamedTuple):
    p50_us: float
    p99_us: float
    cpu_us: float


class Line:
    """A connection on which one thing is asked at a time."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection((HOST, server.port), _PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._name = server.name

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> bytes:
        """An answer without its length."""
        data = self._socket.recv(262_144)
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            more = self._socket.recv(262_144)
            if not more:
                raise ServerFailed(f"{self._name} closed the connection")
            data += more
        return data[4:]

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.receive()

    def close(self) -> None:
        self._socket.close()


class Fetches:
    """Fetches of one broker: of the active partition alone, and of a session over all of them."""

    def __init__(self, server: Server, places: Places) -> None:
        self._server = server
        self._active = places[0][0]
        self._line = Line(server)
        self._producer = RawProducer(server, self._active, ACKS_LEADER)
        self._session, self._next_offset = self._open(places)
        self._epoch = 1

    def close(self) -> None:
        self._line.close()
        self._producer.close()

    def __enter__(self) -> Fetches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ready(self, count: int) -> Cost:
        """One batch of one record that has long been there, without a session."""
        topic = FetchTopic(self._active, partitions=[FetchPartition(0, fetch_offset=0, partition_max_bytes=1)])
        frame = request_frame(ApiKey.FETCH, _VERSION, FetchRequest(min_bytes=1, max_wait_ms=1000, topics=[topic]))

        def once() -> float:
            began = time.perf_counter()
            answer = self._line.ask(frame)
            took_s = time.perf_counter() - began
            self._has_records(answer)
            return took_s

        return self._measured(once, count)

    def idle(self, count: int) -> Cost:
        """The session has nothing new, and the reader does not want to wait."""

        def once() -> float:
            frame = self._incremental(max_wait_ms=0, moved=False)
            began = time.perf_counter()
            answer = self._line.ask(frame)
            took_s = time.perf_counter() - began
            if _read(answer).responses:
                raise ServerFailed(f"{self._server.name} answers an idle session with news")
            return took_s

        return self._measured(once, count)

    def active(self, count: int) -> Cost:
        """A record has come in one partition of the session: the time of the fetch, the CPU of produce and fetch."""

        def once() -> float:
            self._produce()
            frame = self._incremental(max_wait_ms=_LONGEST_WAIT_MS, moved=True)
            began = time.perf_counter()
            answer = self._line.ask(frame)
            took_s = time.perf_counter() - began
            self._has_records(answer)
            self._next_offset += 1
            return took_s

        return self._measured(once, count)

    def woken(self, count: int) -> Cost:
        """The session waits and a record comes: from the produce request to the reader's answer."""

        def once() -> float:
            self._line.send(self._incremental(max_wait_ms=_LONGEST_WAIT_MS, moved=True))
            time.sleep(_SURELY_WAITING_S)
            began = time.perf_counter()
            self._produce()
            answer = self._line.receive()
            took_s = time.perf_counter() - began
            self._has_records(answer)
            self._next_offset += 1
            return took_s

        return self._measured(once, count)

    def _measured(self, once: Callable[[], float], count: int) -> Cost:
        """As often as asked, or for as long as is enough."""
        once()
        times_s: list[float] = []
        cpu_s = self._server.cpu_s()
        end = time.perf_counter() + _ENOUGH_S
        while len(times_s) < count and time.perf_counter() < end:
            times_s.append(once())
        cpu_s = self._server.cpu_s() - cpu_s
        times_s.sort()
        p50, p99 = times_s[len(times_s) // 2], times_s[len(times_s) * 99 // 100]
        return Cost(p50 * 1e6, p99 * 1e6, cpu_s / len(times_s) * 1e6)

    def _produce(self) -> None:
        self._producer.round_trips(1)

    def _open(self, places: Places) -> tuple[int, int]:
        """A session over everything, from its ends; the session and the end of the active partition."""
        ends = self._all(places, session_epoch=-1, offsets={})
        offsets = {
            (topic.topic, data.partition_index): data.high_watermark
            for topic in ends.responses
            for data in topic.partitions
        }
        opened = self._all(places, session_epoch=0, offsets=offsets)
        if opened.error_code or not opened.session_id:
            raise ServerFailed(f"{self._server.name} gave no session: {opened.error_code}")
        return opened.session_id, offsets[self._active, 0]

    def _all(self, places: Places, session_epoch: int, offsets: dict[tuple[str, int], int]) -> FetchResponse:
        return _read(self._line.ask(_fetch_of_all(places, session_epoch, offsets)))

    def _incremental(self, max_wait_ms: int, moved: bool) -> bytes:
        changed = FetchPartition(0, fetch_offset=self._next_offset, partition_max_bytes=_PARTITION_BYTES)
        topics = [FetchTopic(self._active, partitions=[changed])] if moved else []
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            session_id=self._session,
            session_epoch=self._epoch,
            topics=topics,
        )
        self._epoch += 1
        return request_frame(ApiKey.FETCH, _VERSION, request)

    def _has_records(self, answer: bytes) -> None:
        response = _read(answer)
        rows = [data for topic in response.responses for data in topic.partitions]
        if response.error_code or len(rows) != 1 or rows[0].error_code or not rows[0].records:
            raise ServerFailed(f"{self._server.name} answers a fetch of one partition with {response}")


def _fetch_of_all(places: Places, session_epoch: int, offsets: Mapping[tuple[str, int], int]) -> bytes:
    def wanted(name: str, index: int) -> FetchPartition:
        return FetchPartition(index, fetch_offset=offsets.get((name, index), 0), partition_max_bytes=_PARTITION_BYTES)

    topics = [FetchTopic(name, partitions=[wanted(name, index) for index in range(count)]) for name, count in places]
    # With one byte in all, records of the active partition at most come along.
    return request_frame(ApiKey.FETCH, _VERSION, FetchRequest(max_bytes=1, session_epoch=session_epoch, topics=topics))


def wait_until_readable(server: Server, places: Places) -> None:
    """Return when every partition can be read: a broker may answer that topics are made before their logs are."""
    frame, missing = _fetch_of_all(places, session_epoch=-1, offsets={}), -1
    deadline = time.perf_counter() + _MAKING_S
    with closing(Line(server)) as line:
        while missing:
            if time.perf_counter() > deadline:
                raise ServerFailed(f"{server.name}: {missing} partitions cannot be read after {_MAKING_S:.0f} s")
            response = _read(line.ask(frame))
            missing = sum(data.error_code != 0 for topic in response.responses for data in topic.partitions)
            if missing:
                time.sleep(_LOOK_AGAIN_S)


def _read(answer: bytes) -> FetchResponse:
    _, position = decode_response(ApiKey.FETCH, _VERSION, answer)
    response: FetchResponse = response_codec(ApiKey.FETCH, _VERSION).decode(answer, position)[0]
    return response


class Crowd:
    """Connections that have asked one thing and then nothing more."""

    def __init__(self, server: Server, count: int) -> None:
        self._lines = [Line(server) for _ in range(count)]
        for line in self._lines:
            line.ask(server.dialect.question)

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
