"""A broker killed under load and started again: how long until it answers.

A broker as its users start it, in a process of its own, is filled over its sockets by a bare producer (acks=1, so
nothing but the broker's own flushes makes anything durable), killed with SIGKILL while more is being written, started
again on the same folders. The clock runs from the launch of the process to its first answer to a Produce with acks=all
and to a Fetch; so it includes the start of Python. What was acknowledged must be there. After a killed process the page
cache holds what it wrote; `cold` rows drop it first, where that is allowed. In `no checkpoint` rows the file that says
what was durable is removed as well, so that every byte of the log is read and checked: that is the disk's and the
processor's limit, and not what a restart meets.

    python -m benchmarks.restart [--gigabytes 10]
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.records import encode_batch
from penstock.wire.framing import decode_response, encode_request
from penstock.wire.protocol import ApiKey, response_codec
from penstock.wire.schemas.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.types import Message

OURS: Final = "penstock"
HOST: Final = "127.0.0.1"
TOPIC: Final = "filled"
GB: Final = 10**9
KIB: Final = 1024
ROUNDS: Final = 3
GOAL_GB_PER_S: Final = 10
ACKS_LEADER, ACKS_ALL = 1, -1
_IN_FLIGHT: Final = 8
_PATIENCE_S: Final = 120.0
_TRY_AGAIN_S: Final = 0.002
_LOAD_S: Final = 1.0
_RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_VERSIONS: Final = {ApiKey.PRODUCE: 9, ApiKey.FETCH: 11, ApiKey.CREATE_TOPICS: 5}


class Case(NamedTuple):
    name: str
    batch_bytes: int
    partitions: int
    total_bytes: int


class Restart(NamedTuple):
    produce_s: float
    fetch_s: float
    said: str  # by the broker, of its logs


class Connection:
    """A socket on which requests are asked, and answered in order."""

    def __init__(self, port: int, patience_s: float = 0.0) -> None:
        deadline = time.perf_counter() + patience_s
        while True:
            try:
                self.socket = socket.create_connection((HOST, port), _PATIENCE_S)
                break
            except ConnectionRefusedError:
                if time.perf_counter() > deadline:
                    raise
                time.sleep(_TRY_AGAIN_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self, api: ApiKey) -> Any:
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        _, position = decode_response(api, _VERSIONS[api], frame)
        return response_codec(api, _VERSIONS[api]).decode(frame, position)[0]

    def ask(self, api: ApiKey, message: Message) -> Any:
        self.socket.sendall(frame_of(api, message))
        return self.receive(api)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise ConnectionError("the broker ended the connection")
            data += part
        return bytes(data)


def frame_of(api: ApiKey, message: Message) -> bytes:
    chunks: list[Any] = list(encode_request(api, _VERSIONS[api], 1, "restart", message))
    return b"".join(chunks)


def produce(batches: dict[int, bytes], acks: int) -> ProduceRequest:
    parts = [PartitionProduceData(index, batch) for index, batch in batches.items()]
    return ProduceRequest(None, acks, 30_000, [TopicProduceData(TOPIC, partition_data=parts)])


def batch_of(size: int) -> bytes:
    """At most `size` bytes, in records of about 1 KB that do not compress."""
    value = os.urandom(1000)
    now_ms = int(time.time() * 1000)
    return bytes(encode_batch([(now_ms, None, value, ()) for _ in range(max(1, (size - 100) // 1012))]))


class BrokerProcess:
    """`penstock server start` on a folder; `began` is when it was launched."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self._output = folder / "output.txt"
        options = ["--data-dir", str(folder / "data"), "--listen", f"{HOST}:{port}", "--http-port", "0"]
        self.began = time.perf_counter()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "server", "start", *options],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def connect(self) -> Connection:
        return Connection(self.port, _PATIENCE_S)

    def said_of_logs(self) -> str:
        found = re.findall(r"logs opened: (.*)", self._output.read_text(errors="replace"))
        return found[-1].strip() if found else ""

    def stop(self) -> float:
        """Seconds of a clean stop."""
        began = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(_PATIENCE_S):
            raise RuntimeError(f"the broker did not stop cleanly: {self._output.read_text(errors='replace')[-2000:]}")
        return time.perf_counter() - began

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Writer:
    """A bare producer of one frame, again and again: a batch for each of some partitions."""

    def __init__(self, connection: Connection, partitions: list[int], batch: bytes) -> None:
        self._connection = connection
        self._frame = frame_of(ApiKey.PRODUCE, produce(dict.fromkeys(partitions, batch), ACKS_LEADER))
        self.request_bytes = len(partitions) * len(batch)
        self.acknowledged: dict[int, int] = {}

    def write(self, count: int) -> None:
        """Send `count` requests, always with a few in flight. ConnectionError when the broker is gone."""
        under_way: deque[None] = deque()
        for _ in range(count):
            if len(under_way) >= _IN_FLIGHT:
                self._receive(under_way)
            self._connection.socket.sendall(self._frame)
            under_way.append(None)
        while under_way:
            self._receive(under_way)

    def _receive(self, under_way: deque[None]) -> None:
        answer = self._connection.receive(ApiKey.PRODUCE)
        under_way.popleft()
        for outcome in answer.responses[0].partition_responses:
            if outcome.error_code:
                raise RuntimeError(f"a batch was rejected: {outcome}")
            self.acknowledged[outcome.index] = outcome.base_offset


def fill(broker: BrokerProcess, case: Case, batch: bytes) -> None:
    connection = broker.connect()
    topic = CreatableTopic(name=TOPIC, num_partitions=case.partitions, replication_factor=1)
    answer = connection.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    if answer.topics[0].error_code:
        raise RuntimeError(f"the topic was not made: {answer.topics[0]}")
    writer = Writer(connection, list(range(case.partitions)), batch)
    writer.write(max(1, -(-case.total_bytes // writer.request_bytes)))


def kill_under_load(broker: BrokerProcess, case: Case, batch: bytes) -> dict[int, int]:
    """The last acknowledged offset of the partitions that were being written to."""
    writer = Writer(broker.connect(), list(range(min(case.partitions, 8))), batch)
    most = threading.Event()

    def write() -> None:
        try:
            while not most.is_set():
                writer.write(1000)
        except OSError:
            pass  # as it was meant to be

    thread = threading.Thread(target=write)
    thread.start()
    time.sleep(_LOAD_S)
    broker.kill()
    most.set()
    thread.join()
    return writer.acknowledged


def first_answers(broker: BrokerProcess, batch: bytes, acknowledged: dict[int, int]) -> Restart:
    connection = broker.connect()
    answer = connection.ask(ApiKey.PRODUCE, produce({0: batch}, ACKS_ALL))
    produce_s = time.perf_counter() - broker.began
    outcome = answer.responses[0].partition_responses[0]
    if outcome.error_code or outcome.base_offset <= acknowledged.get(0, -1):
        raise RuntimeError(f"offset {acknowledged.get(0)} had been acknowledged; the next one is {outcome}")
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=TOPIC, partitions=[wanted])])
    data = connection.ask(ApiKey.FETCH, request).responses[0].partitions[0]
    if data.error_code or not data.records:
        raise RuntimeError(f"nothing was fetched: {data.error_code}")
    fetch_s = time.perf_counter() - broker.began
    connection.socket.close()
    return Restart(produce_s, fetch_s, broker.said_of_logs())


def drop_caches() -> bool:
    os.sync()
    try:
        _CACHES.write_text("3")
    except OSError:
        return False
    return True


def logged_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "data").glob("*/*.log"))


def measure(case: Case, folder: Path, port: int, recording: results.Recording, notes: list[str]) -> list[Row]:
    batch = batch_of(case.batch_bytes)
    broker = BrokerProcess(folder, port)
    began = time.perf_counter()
    fill(broker, case, batch)
    print(
        f"  {case.name}: {logged_bytes(folder) / GB:.1f} GB written in {time.perf_counter() - began:.0f} s", flush=True
    )
    rows: list[Row] = []
    for kind in ("killed", "killed, cold", "killed, no checkpoint"):
        rounds: list[Restart] = []
        for _ in range(1 if "checkpoint" in kind else ROUNDS):
            acknowledged = kill_under_load(broker, case, batch)
            size = logged_bytes(folder)
            if "cold" in kind and not drop_caches():
                break
            if "checkpoint" in kind:
                (folder / "data" / _RECOVERY_POINTS).unlink()
            broker = BrokerProcess(folder, port)
            rounds.append(first_answers(broker, batch, acknowledged))
        if rounds:
            rows += rows_of(case, kind, size, rounds)
            notes.append(f"{case.name}, {kind}: {rounds[-1].said}")
        else:
            recording.lacks(f"{case.name}, {kind}: the page cache cannot be dropped here")
            broker = BrokerProcess(folder, port)
    broker.connect().socket.close()
    return [*rows, *_clean_rows(case, folder, broker, batch, notes)]


def _clean_rows(case: Case, folder: Path, broker: BrokerProcess, batch: bytes, notes: list[str]) -> list[Row]:
    stops_s, rounds = [], []
    for _ in range(ROUNDS):
        stops_s.append(broker.stop())
        size = logged_bytes(folder)
        broker = BrokerProcess(folder, broker.port)
        rounds.append(first_answers(broker, batch, {}))
    broker.kill()
    notes.append(f"{case.name}, stopped cleanly: {rounds[-1].said}")
    # The first stop had all the writing of the last round to make durable; the others, one batch.
    stop = Row("clean stop", "s", Better.LOWER, {OURS: Figure.of(stops_s)}, OURS, table=_table(case))
    return [*rows_of(case, "stopped cleanly", size, rounds), stop]


def _table(case: Case) -> str:
    return f"{case.name}, {case.partitions:,} partition{'' if case.partitions == 1 else 's'}"


def rows_of(case: Case, kind: str, size: int, rounds: Sequence[Restart]) -> list[Row]:
    """How long it took after one kind of end; the goal grows with the log."""
    goal_s = max(1.0, size / GB / GOAL_GB_PER_S)
    table = _table(case)

    def row(work: str, unit: str, better: Better | None, figure: Figure, goal: float | None = None) -> Row:
        return Row(f"{kind}: {work}", unit, better, {OURS: figure}, OURS, goal=goal, table=table)

    return [
        row("first Produce answered", "s", Better.LOWER, Figure.of([each.produce_s for each in rounds]), goal_s),
        row("first Fetch answered", "s", Better.LOWER, Figure.of([each.fetch_s for each in rounds])),
        row("size of the log", "GB", None, Figure(size / GB)),
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def run(gigabytes: float, recording: results.Recording, notes: list[str]) -> list[Row]:
    rows: list[Row] = []
    total = int(gigabytes * GB)
    # Enough for about one nearly full segment each: without marks, a start after a crash would scan all of them.
    partitions = max(1, round(gigabytes))
    cases = (
        Case("1 MB batches", 1_000_000, partitions, total),
        Case("16 KiB batches", 16 * KIB, partitions, total),
        Case("little data", 2 * KIB, 1000, 1000 * 2 * KIB),
    )
    for case in cases:
        folder = Path(tempfile.mkdtemp(prefix="restart-"))
        try:
            # What the load adds before each kill comes on top.
            room = shutil.disk_usage(folder).free - 15 * GB
            if case.total_bytes > room:
                fits = max(0, room) / GB
                recording.lacks(f"{case.name}: only {fits:.1f} GB of {case.total_bytes / GB:.1f} fit on the disk")
                case = case._replace(total_bytes=max(GB // 10, room))
            rows += measure(case, folder, free_port(), recording, notes)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("restart", (__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the first two logs; 10 by default")
    options = parser.parse_args(arguments)
    recording = results.begin("restart", parser, options, arguments)
    notes = [f"goal: one second for each {GOAL_GB_PER_S} GB, one at least"]
    recording.keep(run(options.gigabytes, recording, notes), notes=notes, settings={"rounds": ROUNDS})


if __name__ == "__main__":
    main(sys.argv[1:])
