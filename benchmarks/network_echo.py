"""The socket server beside asyncio's streams: both answer each frame with the same bytes, on loopback.

The server has a process of its own, started again for each round; the client is a blocking socket, so that the round
trip holds little that is not the server's. Rounds alternate and the median round counts. Both run on uvloop and on
asyncio's own loop. CPU is the server's own, user and system. The floor is a loop of poll, recv and send with nothing
around it: what the machine's kernel takes, which no server can save.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import select
import socket
import struct
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import File, PosixFiles
from penstock.runtime.network import Connection, Limits
from penstock.runtime.socket_server import SocketServer

FRAME = struct.pack(">i", 100) + b"x" * 100
ROUNDS = 5
ROUND_TRIPS = 10_000
PIPELINED, WINDOW = 100_000, 64
REGION_BYTES, REGIONS = 1024 * 1024, 2000
GOAL_CPU_US = 12
OURS, STREAMS, FLOOR = "penstock", "asyncio streams", "bare loop"


class Echo:
    def connected(self, connection: Connection) -> None: ...

    def frame(self, connection: Connection, frame: bytearray) -> None:
        connection.reply().send([len(frame).to_bytes(4, "big") + frame])

    def closed(self, connection: Connection, reason: str) -> None: ...


class Region(NamedTuple):
    file: File
    position: int
    size: int


class Regions(Echo):
    """Answers every frame with a megabyte of a file."""

    def __init__(self, file: File) -> None:
        self._region = Region(file, 0, REGION_BYTES)

    def frame(self, connection: Connection, frame: bytearray) -> None:
        connection.reply().send([REGION_BYTES.to_bytes(4, "big"), self._region])


async def serve_penstock(pipe: Pipe, path: str | None) -> None:
    loop = asyncio.get_running_loop()
    handler = Echo() if path is None else Regions(PosixFiles().open(path))
    server = SocketServer(loop, handler, Limits(), SystemClock())
    pipe.send(server.listen("127.0.0.1", 0)[1])
    await _told_to_stop(pipe)
    await server.close(1000)


async def serve_streams(pipe: Pipe, path: str | None) -> None:
    content = b"" if path is None else PosixFiles().open(path).read_at(0, REGION_BYTES)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                prefix = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(prefix, "big"))
                writer.write(len(content).to_bytes(4, "big") + content if content else prefix + frame)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await _told_to_stop(pipe)
    server.close()


async def serve_floor(pipe: Pipe, path: str | None) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    connection, _ = listener.accept()
    started_s = process_time()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    buffer = memoryview(bytearray(64 * 1024))
    while waiting.poll() and (count := connection.recv_into(buffer)):
        connection.send(buffer[:count])
    pipe.send(process_time() - started_s)
    connection.close()
    listener.close()


async def _told_to_stop(pipe: Pipe) -> None:
    """Serve until the client has what it wants, then say what it took."""
    started_s = process_time()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), stopped.set)
    await stopped.wait()
    loop.remove_reader(pipe.fileno())
    pipe.send(process_time() - started_s)


Serve = Callable[[Pipe, str | None], Any]


def _child(pipe: Pipe, serve: Serve, uvloop: bool, path: str | None) -> None:
    if uvloop:
        factory = importlib.import_module("uvloop").new_event_loop
    else:
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(pipe, path))


def _with_server(
    serve: Serve, uvloop: bool, path: str | None, work: Callable[[socket.socket], dict[str, float]], count: int
) -> dict[str, float]:
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_child, args=(theirs, serve, uvloop, path))
    process.start()
    with socket.create_connection(("127.0.0.1", ours.recv())) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        result = work(client)
    ours.send("stop")
    cpu_s: float = ours.recv()
    process.join()
    result["cpu"] = cpu_s / count * 1e6
    return result


def round_trips(client: socket.socket) -> dict[str, float]:
    times_s = []
    buffer = bytearray(4096)
    for _ in range(ROUND_TRIPS):
        started = perf_counter()
        client.sendall(FRAME)
        got = 0
        while got < len(FRAME):
            got += client.recv_into(buffer)
        times_s.append(perf_counter() - started)
    times_s.sort()
    return {"p50": times_s[ROUND_TRIPS // 2] * 1e6, "p99": times_s[ROUND_TRIPS * 99 // 100] * 1e6}


def pipelined(client: socket.socket) -> dict[str, float]:
    buffer = bytearray(256 * 1024)
    sent = received = 0
    started = perf_counter()
    while received < PIPELINED * len(FRAME):
        room = min(WINDOW - (sent - received // len(FRAME)), PIPELINED - sent)
        if room >= WINDOW // 2 or (room and sent + room == PIPELINED):
            client.sendall(FRAME * room)
            sent += room
        received += client.recv_into(buffer)
    return {"rate": PIPELINED / (perf_counter() - started)}


def regions(client: socket.socket) -> dict[str, float]:
    buffer = bytearray(1024 * 1024)
    request = struct.pack(">i", 1) + b"x"
    expected = REGIONS * (REGION_BYTES + 4)
    started = perf_counter()
    client.sendall(request * 2)
    received, asked = 0, 2
    while received < expected:
        received += client.recv_into(buffer)
        if asked < REGIONS and received // (REGION_BYTES + 4) > asked - 2:
            client.sendall(request)
            asked += 1
    return {"rate": received / (perf_counter() - started) / 1e6}


class Work(NamedTuple):
    name: str
    unit: str
    better: Better
    factor: float = 1.0


TRIPS: Final = {
    "p50": Work("round trip p50", "µs", Better.LOWER),
    "p99": Work("round trip p99", "µs", Better.LOWER),
    "cpu": Work("CPU per round trip", "µs", Better.LOWER),
}
FLOOD: Final = {
    "rate": Work(f"{WINDOW} in flight", "1/s", Better.HIGHER),
    "cpu": Work(f"CPU per request, {WINDOW} in flight", "µs", Better.LOWER),
}
LARGE: Final = {
    "rate": Work("answers of 1 MiB of a file", "MB/s", Better.HIGHER),
    "cpu": Work("CPU per GB of a file", "ms", Better.LOWER, 1e6 / REGION_BYTES),
}
LOOPS: Final = {"uvloop": True, "asyncio's loop": False}

Rounds = dict[tuple[Work, str, str], list[float]]
"""By work, loop and server."""


def measure() -> Rounds:
    found: Rounds = defaultdict(list)

    def add(works: dict[str, Work], loop: str, server: str, figures: dict[str, float]) -> None:
        for key, work in works.items():
            found[work, loop, server].append(figures[key] * work.factor)

    with tempfile.NamedTemporaryFile() as file:
        file.write(os.urandom(REGION_BYTES))
        file.flush()
        for _ in range(ROUNDS):
            floor = _with_server(serve_floor, False, None, round_trips, ROUND_TRIPS)
            for loop, uvloop in LOOPS.items():
                add(TRIPS, loop, FLOOR, floor)
                for server, serve in ((OURS, serve_penstock), (STREAMS, serve_streams)):
                    add(TRIPS, loop, server, _with_server(serve, uvloop, None, round_trips, ROUND_TRIPS))
                    add(FLOOD, loop, server, _with_server(serve, uvloop, None, pipelined, PIPELINED))
                    add(LARGE, loop, server, _with_server(serve, uvloop, file.name, regions, REGIONS))
    return found


def rows(found: Rounds) -> list[Row]:
    """A table for each loop, and what the server adds to the floor."""
    made = []
    for loop in LOOPS:
        table = f"On {loop}"
        for work in (*TRIPS.values(), *FLOOD.values(), *LARGE.values()):
            figures = {
                server: Figure.of(rounds)
                for server in (OURS, STREAMS, FLOOR)
                if (rounds := found.get((work, loop, server)))
            }
            made.append(Row(work.name, work.unit, work.better, figures, OURS, STREAMS, table=table))
        cpu = TRIPS["cpu"]
        above = [mine - bare for mine, bare in zip(found[cpu, loop, OURS], found[cpu, loop, FLOOR], strict=True)]
        what = "CPU per round trip above the bare loop"
        made.append(Row(what, "µs", Better.LOWER, {OURS: Figure.of(above)}, OURS, goal=GOAL_CPU_US, table=table))
    return made


def main(arguments: Sequence[str] = ()) -> None:
    recording = results.begin_plain("network_echo", "The socket server beside asyncio streams.", arguments)
    settings = {"rounds": ROUNDS, "round_trips": ROUND_TRIPS, "pipelined": PIPELINED, "regions": REGIONS}
    recording.keep(rows(measure()), notes=[f"frames of {len(FRAME)} bytes on loopback"], settings=settings)


if __name__ == "__main__":
    main(sys.argv[1:])
