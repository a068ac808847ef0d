"""What one hostile client costs all others: the attacks of `tests/hostile` at full size, against a broker alone.

Every attack has a fresh broker in a process of its own, whose event loop is metered. A well-behaved client in another
process writes a record and reads it again, all the time. A turn of the loop is measured in processor time of its
thread, which a busy machine changes least; the client's requests and the broker's memory (its peak beyond what it held
before the attack) are what they are. No request may hold the loop for more than 50 ms.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any, Final, NamedTuple

from tests.broker.wire_client import (
    ALL,
    Disconnected,
    WireClient,
    batch_of,
    fetch_request,
    produce_request,
    request_bytes,
)
from tests.hostile.fuzz.run import Child

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.records import Codec, encode_batch
from penstock.wire.protocol import ApiKey, error_code
from penstock.wire.schemas.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.wire.schemas.delete_topics import DeleteTopicsRequest
from penstock.wire.schemas.fetch import FetchPartition
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.schemas.metadata import MetadataRequest
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.types import Message

SUBJECT: Final = "Penstock"
GOAL_MS: Final = 50.0
_OWN_TOPIC: Final = "well-behaved"
_MIB: Final = 1024 * 1024
_PATIENCE_S: Final = 600.0
_QUIET_S: Final = 1.0
_SETTINGS: Final = {
    "penstock.max.partitions": "20000",
    "offsets.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "socket.busy.poll.us": "0",
}
_TURNS: Final = "Longest turn of the event loop"
_CLIENT: Final = "A well-behaved client meanwhile"
_MEMORY: Final = "Memory of the broker, peak beyond what it held before"
_NOTES: Final = (
    "A turn of the event loop is measured in processor time of its thread; the latencies are wall time.",
    "A request with more elements than the broker takes (50,000 partitions in a Fetch) is rejected while it is read, "
    "and its connection is closed.",
)


class Target(NamedTuple):
    """The broker that is attacked, and how much of the full size an attack has."""

    port: int
    scale: float

    def size(self, full: int) -> int:
        return max(1, int(full * self.scale))

    def connect(self) -> WireClient:
        return WireClient(self.port, timeout_s=_PATIENCE_S)


Codes = Counter[str]
"""How the requests of an attack ended: names of error codes, or that the connection was closed."""


def asked(client: WireClient, api: ApiKey, message: Message, version: int) -> Any:
    """The response; None if the broker closes the connection instead."""
    with suppress(Disconnected, ConnectionError):
        return client.ask(api, message, version)
    return None


def codes(rows: Iterable[Any] | None) -> Codes:
    if rows is None:
        return Counter({"connection closed": 1})
    return Counter(error_code(row.error_code).name for row in rows)


# --- attacks


def nothing(target: Target) -> Codes:
    time.sleep(_QUIET_S * 2 * target.scale)
    return Counter()


def compacted_topic(target: Target) -> Codes:
    """Compacted topics are looked into record by record: 1.2 MB that become 1.2 GB."""
    count = target.size(100)
    config = CreatableTopicConfig(name="cleanup.policy", value="compact")
    topic = CreatableTopic(name="compacted", num_partitions=count, replication_factor=1, configs=[config])
    batch = encode_batch([(0, b"key", bytes(12_000_000), ())], codec=Codec.GZIP)
    with target.connect() as client:
        client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]), 7)
        request = produce_request({("compacted", index): batch for index in range(count)}, timeout_ms=600_000)
        answer = asked(client, ApiKey.PRODUCE, request, 9)
    return codes(answer and [row for each in answer.responses for row in each.partition_responses])


def wide_fetch(target: Target, full: int) -> Codes:
    request = fetch_request({(_OWN_TOPIC, 0): 0}, session_epoch=0)
    request.topics[0].partitions = [FetchPartition(partition=index) for index in range(target.size(full))]
    with target.connect() as client:
        answer = asked(client, ApiKey.FETCH, request, 12)
    return codes(answer and [row for each in answer.responses for row in each.partitions])


def wide_commit(target: Target, full: int) -> Codes:
    rows = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=7) for index in range(target.size(full))
    ]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name=_OWN_TOPIC, partitions=rows)])
    with target.connect() as client:
        _wait_for_groups(client, "g")
        answer = asked(client, ApiKey.OFFSET_COMMIT, request, 8)
    return codes(answer and [row for each in answer.topics for row in each.partitions])


def pipelined_metadata(target: Target) -> Codes:
    """All connections send at once what they have, and read the responses later."""
    at_once = target.size(200)
    burst = b"".join(
        request_bytes(ApiKey.METADATA, 9, number, MetadataRequest(topics=None)) for number in range(at_once)
    )
    with ExitStack() as stack:
        crowd = [stack.enter_context(target.connect()) for _ in range(target.size(200))]
        threads = [threading.Thread(target=each.send_bytes, args=(burst,)) for each in crowd]
        for thread in threads:
            thread.start()
        for each in crowd:
            for _ in range(at_once):
                each.receive_frame()
        for thread in threads:
            thread.join()
    return Counter({"NONE": len(crowd) * at_once})


def unknown_topics(target: Target) -> Codes:
    names = [f"nothing-{number}" for number in range(target.size(99_999))]
    with target.connect() as client:
        answer = asked(client, ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=names), 5)
    return codes(answer and answer.responses)


def half_sent_requests(target: Target) -> Codes:
    """Each is all but complete; the broker reads as much of them as `queued.max.request.bytes` allows."""
    size = target.size(95 * _MIB)
    chunk = bytes(_MIB)
    with ExitStack() as stack:
        peers = [stack.enter_context(WireClient(target.port)).socket for _ in range(20)]
        for peer in peers:
            peer.sendall(pack(">i", size))
            peer.setblocking(False)
        left = dict.fromkeys(peers, size - 1)
        progress_s = time.monotonic()
        while time.monotonic() - progress_s < _QUIET_S and any(left.values()):
            for peer in peers:
                with suppress(BlockingIOError):
                    sent = peer.send(memoryview(chunk)[: left[peer]]) if left[peer] else 0
                    left[peer] -= sent
                    if sent:
                        progress_s = time.monotonic()
            time.sleep(0.001)
        return Counter({"received but for the end": sum(not each for each in left.values()), "sent": len(left)})


def group_metadata(target: Target) -> Codes:
    metadata = bytes(1_000_000)
    found: Codes = Counter()
    with target.connect() as client:
        _wait_for_groups(client, "group-0")
        for number in range(target.size(1_000)):
            request = JoinGroupRequest(
                group_id=f"group-{number}",
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
            )
            answer = asked(client, ApiKey.JOIN_GROUP, request, 3)
            found += codes(None if answer is None else [answer])
    return found


def fetch_sessions(target: Target) -> Codes:
    request = fetch_request({(_OWN_TOPIC, 0): 0}, session_epoch=0)
    request.topics[0].partitions = [FetchPartition(partition=index) for index in range(target.size(10_000))]
    request.max_wait_ms = 0
    found: Codes = Counter()
    with ExitStack() as stack:
        for _ in range(target.size(100)):
            client = stack.enter_context(target.connect())
            answer = asked(client, ApiKey.FETCH, request, 12)
            found["a session" if answer is not None and answer.session_id else "no session"] += 1
    return found


def many_topics(target: Target) -> Codes:
    topics = [
        CreatableTopic(name=f"many-{number}", num_partitions=1, replication_factor=1)
        for number in range(target.size(10_000))
    ]
    with target.connect() as client:
        answer = asked(client, ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics, timeout_ms=600_000), 7)
    return codes(answer and answer.topics)


def _wait_for_groups(client: WireClient, group: str) -> None:
    question = FindCoordinatorRequest(key=group)
    deadline_s = time.monotonic() + _PATIENCE_S
    while client.ask(ApiKey.FIND_COORDINATOR, question, 3).error_code and time.monotonic() < deadline_s:
        time.sleep(0.05)


ATTACKS: Final[Mapping[str, Callable[[Target], Codes]]] = {
    "nothing": nothing,
    "1.2 MB of compressed batches that become 1.2 GB, compacted topic": compacted_topic,
    "Fetch of 500,000 partitions": lambda target: wide_fetch(target, 500_000),
    "Fetch of 49,999 partitions": lambda target: wide_fetch(target, 49_999),
    "OffsetCommit of 200,000 partitions": lambda target: wide_commit(target, 200_000),
    "OffsetCommit of 199,999 partitions": lambda target: wide_commit(target, 199_999),
    "200 connections, 200 pipelined Metadata each": pipelined_metadata,
    "DeleteTopics of 99,999 unknown names": unknown_topics,
    "20 half-sent requests of 95 MiB": half_sent_requests,
    "1,000 groups with 1 MB of metadata": group_metadata,
    "100 fetch sessions of 10,000 partitions": fetch_sessions,
    "CreateTopics of 10,000 topics": many_topics,
}


# --- the well-behaved client, a process of its own


def behave(port: int) -> None:
    """Write and read until standard input says so, then print the times of all requests in milliseconds."""
    is_stopped = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        is_stopped.set()

    times_ms: list[float] = []
    with WireClient(port, timeout_s=_PATIENCE_S) as client:

        def one(ask: Callable[[], Any]) -> Any:
            begun_s = time.perf_counter()
            answer = ask()
            times_ms.append((time.perf_counter() - begun_s) * 1000)
            return answer

        batch, offset = batch_of(b"value"), 0
        client.produce(_OWN_TOPIC, batch)
        client.fetch(_OWN_TOPIC, offset)
        print(json.dumps("ready"), flush=True)
        threading.Thread(target=listen, daemon=True).start()
        while not (times_ms and is_stopped.is_set()):
            offset = one(lambda: client.produce(_OWN_TOPIC, batch, acks=ALL)).base_offset
            one(partial(client.fetch, _OWN_TOPIC, offset))
            time.sleep(0.002)
    print(json.dumps(times_ms), flush=True)


# --- a run


class Outcome(NamedTuple):
    seconds: float
    turn_ms: float
    times_ms: Sequence[float]
    memory_mb: float
    codes: Codes

    def percentile_ms(self, part: float) -> float:
        ordered = sorted(self.times_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def measure(attack: Callable[[Target], Codes], scale: float) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="penstock-hostile-") as name, ExitStack() as stack:
        broker = Child("broker_process")
        stack.callback(broker.end)
        settings = {**_SETTINGS, "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(Path(name, "data"))}
        started = broker.ask(json.dumps({"settings": settings, "topics": {_OWN_TOPIC: {}}}))
        client = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile", str(started["PLAINTEXT"])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        stack.enter_context(client)
        stack.callback(client.kill)
        _line(client)
        broker.ask("restart-meter")
        # From here the peak of its memory is counted.
        Path(f"/proc/{started['pid']}/clear_refs").write_text("5")
        before = broker.ask("status")
        begun_s = time.perf_counter()
        found = attack(Target(started["PLAINTEXT"], scale))
        took_s = time.perf_counter() - begun_s
        # What it left behind is done away with, and the client is served.
        time.sleep(_QUIET_S * min(1.0, scale))
        times_ms, _ = client.communicate("stop\n", _PATIENCE_S)
        after = broker.ask("status")
        peak_bytes = _peak_bytes(started["pid"])
    memory_mb = max(0, peak_bytes - before["resident_bytes"]) / 1e6
    return Outcome(took_s, after["longest_cpu_ms"], json.loads(times_ms), memory_mb, found)


def _line(process: subprocess.Popen[str]) -> str:
    if process.stdout is None:
        raise RuntimeError("no standard output")
    return process.stdout.readline()


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no peak of the memory")


def rows(outcomes: Mapping[str, Sequence[Outcome]]) -> list[Row]:
    """The worst of all rounds counts for a turn, the maximum and memory; medians for the rest."""

    def row(work: str, unit: str, values: Sequence[float], table: str, goal: float | None = None) -> Row:
        figure = Figure(max(values), tuple(values)) if unit in ("ms, worst", "MB") else Figure.of(values)
        return Row(work, unit.partition(",")[0], Better.LOWER, {SUBJECT: figure}, SUBJECT, None, goal, table)

    found = [
        row(name, "ms, worst", [each.turn_ms for each in rounds], _TURNS, GOAL_MS) for name, rounds in outcomes.items()
    ]
    for name, rounds in outcomes.items():
        found += [
            row(f"{name}: p50", "ms", [each.percentile_ms(0.5) for each in rounds], _CLIENT),
            row(f"{name}: p99", "ms", [each.percentile_ms(0.99) for each in rounds], _CLIENT),
            row(f"{name}: longest", "ms, worst", [max(each.times_ms) for each in rounds], _CLIENT),
        ]
    found += [row(name, "MB", [each.memory_mb for each in rounds], _MEMORY) for name, rounds in outcomes.items()]
    return [
        *found,
        *(row(name, "s", [each.seconds for each in rounds], "Duration") for name, rounds in outcomes.items()),
    ]


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("hostile", "Hostile requests at full size, and what a well-behaved client notices.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size that each attack has")
    parser.add_argument("--only", help="attacks whose names contain this")
    options = parser.parse_args(arguments)
    recording = results.begin("hostile", parser, options, arguments)
    chosen = {name: attack for name, attack in ATTACKS.items() if options.only is None or options.only in name}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in chosen}
    for _ in range(options.rounds):
        for name, attack in chosen.items():
            print(f"{name} ...", flush=True)
            outcomes[name].append(measure(attack, options.scale))
    answered = {name: dict(rounds[0].codes) for name, rounds in outcomes.items()}
    recording.keep(rows(outcomes), notes=_NOTES, details={"answered": answered})


if __name__ == "__main__":
    behave(int(sys.argv[1]))
