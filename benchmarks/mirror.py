"""Our mirror beside MirrorMaker 2 of Apache Kafka 4.3: throughput, CPU and memory, and the time from source to target.

Two brokers run on the same machine, a source and a target, of Apache Kafka 4.3 and then of ours. A topic of 6
partitions is filled; a mirror starts, and is clocked from the first record that arrives in the target to the last. Then
records are sent at a flat rate, and a consumer of the target compares their timestamps with the clock, after a
warm-up. Both mirrors have their default guarantees: ours each record once, MirrorMaker's at least once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.peers.installing import Budget, NotAvailable
from tests.peers.maven import Jars

from benchmarks import results
from benchmarks.clients.rounds import Outcome, Outcomes
from benchmarks.peers import kafka, ours
from benchmarks.peers.servers import Server, process_cpu_s
from benchmarks.results import Better, Row, in_turn

PARTITIONS: Final = 6
MIRROR: Final = "penstock mirror"
MIRROR_MAKER: Final = "MirrorMaker 2"
_VALUE_BYTES: Final = 1_000
_RATE: Final = 1_000
_WARM_UP_S: Final = 5.0  # a JVM that was started for this round compiles meanwhile
_PATIENCE_S: Final = 180.0
_LOOK_S: Final = 0.02
_JARS: Final = Jars(
    "kafka-mirror-4.3", "4.3.0", ("org.apache.kafka:connect-mirror:4.3.0", "org.slf4j:slf4j-simple:1.7.36")
)
_SETTINGS: Final = """\
clusters=source,target
source.bootstrap.servers={source}
target.bootstrap.servers={target}
source->target.enabled=true
source->target.topics={topic}
target->source.enabled=false
replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
emit.heartbeats.enabled=false
sync.topic.acls.enabled=false
tasks.max=2
source.consumer.max.poll.records=5000
source.consumer.fetch.max.bytes=52428800
target.producer.batch.size=262144
target.producer.linger.ms=5
target.producer.compression.type=lz4
"""
_NOTES: Final = (
    "Values of 1,000 bytes of which half compresses, lz4, batches of up to 256 KB, 6 partitions. Clocked from the "
    "first record that arrives in the target to the last; starting the process is not clocked.",
    "Our mirror keeps offsets and batches, and has every record once. MirrorMaker 2 has identity names, two tasks, "
    "larger batches and polls than by default, and may repeat records after a failure.",
    "Time from source to target: 1,000 records/s, from the producer's timestamp to a consumer of the target, after "
    "five seconds at that rate.",
)


# --- mirrors


@contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A mirror in a process of its own; a failure shows the end of its output."""
    output = folder / f"{uuid.uuid4().hex[:8]}.txt"
    with output.open("wb") as stream:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd=folder)
    try:
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} has ended: {output.read_text(errors='replace')[-2000:]}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def our_mirror(source: Server, target: Server, topic: str, folder: Path) -> list[str]:
    return [
        sys.executable, "-m", "penstock", "mirror", "run", "--name", topic, "-t", topic,
        "--source", f"source={source.address}", "--target", target.address,
    ]  # fmt: skip


class MirrorMaker:
    """Its jars, found or installed; raises NotAvailable."""

    def __init__(self) -> None:
        if _JARS.find() is None:
            _JARS.install(Budget(kafka.INSTALL_S))
        java, jars = kafka.JAVA.find(), _JARS.find()
        if java is None or jars is None:
            raise NotAvailable("its installation reported success, but the files are missing")
        self._command = [
            str(java), "-Xmx1G", "-XX:+UseG1GC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp", os.pathsep.join(map(str, sorted(jars.glob("*.jar")))),
            "org.apache.kafka.connect.mirror.MirrorMaker",
        ]  # fmt: skip

    def command(self, source: Server, target: Server, topic: str, folder: Path) -> list[str]:
        path = folder / f"{topic}.properties"
        path.write_text(_SETTINGS.format(source=source.address, target=target.address, topic=topic))
        return [*self._command, str(path)]


Command = Callable[[Server, Server, str, Path], list[str]]


# --- work


def fill(address: str, topic: str, count: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 50,
            "batch.size": 262_144,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    for number in range(count):
        value = os.urandom(_VALUE_BYTES // 2) + bytes(_VALUE_BYTES // 2)
        producer.produce(topic, value, partition=number % PARTITIONS)
        if not number % 1_000:
            producer.poll(0)
    producer.flush()


def end_of(consumer: Consumer, topic: str) -> int:
    """Records in the topic; 0 as long as it does not exist."""
    from confluent_kafka import KafkaException

    try:
        if len(consumer.list_topics(topic, timeout=10).topics[topic].partitions) < PARTITIONS:
            return 0
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1] for number in range(PARTITIONS)
        )
    except KafkaException:
        return 0


def reader(address: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {_PATIENCE_S:.0f} s: {what}")
        time.sleep(_LOOK_S)


def catch_up(process: subprocess.Popen[bytes], target: str, topic: str, count: int) -> Outcome:
    """From the first record in the target to the last."""
    consumer = reader(target)
    try:
        first = [0]

        def has_begun() -> bool:
            first[0] = end_of(consumer, topic)
            return first[0] > 0 or process.poll() is not None

        until(has_begun, "the first record arrives")
        began, cpu_s = time.perf_counter(), process_cpu_s(process.pid)
        until(lambda: end_of(consumer, topic) >= count or process.poll() is not None, "the last record arrives")
        took_s = time.perf_counter() - began
        copied_gb = (count - first[0]) * _VALUE_BYTES / 1e9
        return {
            "mb_s": copied_gb * 1e3 / took_s,
            "cpu_s_gb": (process_cpu_s(process.pid) - cpu_s) / copied_gb,
            "rss_mb": _rss_mb(process.pid),
        }
    finally:
        consumer.close()


def _rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024 / 1e6


def delays(source: str, target: str, topic: str, seconds: float) -> Outcome:
    """Records at a flat rate, and how old they are when a consumer of the target gets them, once all are warm."""
    consumer, producer = reader(target), Producer({"bootstrap.servers": source, "linger.ms": 1, "log_level": 0})
    ends = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign([TopicPartition(topic, e.partition, consumer.get_watermark_offsets(e)[1]) for e in ends])
    found: list[float] = []
    began, sent = time.monotonic(), 0
    total = int((_WARM_UP_S + seconds) * _RATE)
    deadline = began + total / _RATE + _PATIENCE_S
    while len(found) < total and time.monotonic() < deadline:
        due = min(total, int((time.monotonic() - began) * _RATE))
        while sent < due:
            stamp = time.time_ns().to_bytes(8, "big")
            producer.produce(topic, stamp + bytes(_VALUE_BYTES - 8), partition=sent % PARTITIONS)
            sent += 1
        producer.poll(0)
        found += [
            (time.time_ns() - int.from_bytes((message.value() or b"")[:8], "big")) / 1e6
            for message in consumer.consume(1_000, 0.002)
            if message.error() is None
        ]
    consumer.close()
    if len(found) < total:
        raise RuntimeError(f"{total - len(found)} of {total} records did not arrive in {topic}")
    late = sorted(found[int(_WARM_UP_S * _RATE) :])
    return {"p50_ms": late[len(late) // 2], "p99_ms": late[int(len(late) * 0.99)]}


# --- the run


class Run:
    def __init__(self, mirrors: dict[str, Command], rounds: int, megabytes: int, seconds: float) -> None:
        self._mirrors = mirrors
        self._rounds = rounds
        self._count = megabytes * 1_000_000 // _VALUE_BYTES
        self._seconds = seconds
        self.outcomes: dict[str, Outcomes] = {}

    def measure(self, between: str, source: Server, target: Server, folder: Path) -> None:
        outcomes = self.outcomes[between] = Outcomes()
        for number in range(self._rounds):
            for name in in_turn(list(self._mirrors), number):
                print(f"{between}: {name} ...", flush=True)
                topic = f"bench-{uuid.uuid4().hex[:8]}"
                source.topics.make(topic, partitions=PARTITIONS)
                fill(source.address, topic, self._count)
                with running(self._mirrors[name](source, target, topic, folder), folder) as process:
                    outcome = catch_up(process, target.address, topic, self._count)
                    outcome |= delays(source.address, target.address, topic, self._seconds)
                outcomes.add(name, outcome)
                for server in (source, target):
                    server.topics.delete(topic)

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        kinds: tuple[tuple[str, str, Better, str, float | None], ...] = (
            ("throughput", "MB/s", Better.HIGHER, "mb_s", 2.0),
            ("CPU of the mirror", "s/GB", Better.LOWER, "cpu_s_gb", 0.5),
            ("memory of the mirror", "MB", Better.LOWER, "rss_mb", None),
            ("source to target: p50", "ms", Better.LOWER, "p50_ms", None),
            ("source to target: p99", "ms", Better.LOWER, "p99_ms", None),
        )
        for between, outcomes in self.outcomes.items():
            names = {name: name for name in outcomes.by_contender}
            for work, unit, better, field, goal in kinds:
                figures = outcomes.figures(names, field)
                rows.append(Row(work, unit, better, figures, MIRROR, MIRROR_MAKER, goal, between))
        return rows


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("mirror", "Our mirror beside MirrorMaker 2 of Apache Kafka 4.3.")
    parser.add_argument("--ours-only", action="store_true", help="our mirror between our brokers alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=500, help="how much is in the source at first")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long records are sent at a flat rate")
    options = parser.parse_args(arguments)
    recording = results.begin("mirror", parser, options, arguments)
    mirrors: dict[str, Command] = {MIRROR: our_mirror}
    starters: dict[str, Any] = {f"Between brokers of {ours.NAME}": ours.start}
    if not options.ours_only:
        try:
            mirrors[MIRROR_MAKER] = MirrorMaker().command
            starters[f"Between brokers of {kafka.NAME}"] = kafka.Kafka().start
        except NotAvailable as error:
            recording.lacks(f"Apache Kafka 4.3 is not installed: {error}")
    run = Run(mirrors, options.rounds, options.megabytes, options.seconds)
    for between, start in starters.items():
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            source, target = (stack.enter_context(start(folder / name)) for name in ("source", "target"))
            run.measure(between, source, target, folder)
    recording.keep(run.rows(), notes=_NOTES)


if __name__ == "__main__":
    main(sys.argv[1:])
