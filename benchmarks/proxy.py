"""What a proxied listener costs: the same three brokers, reached directly and through one address.

Through one address, every connection is to the same broker, which leads a third of the partitions and asks the others
for the rest. Records have 1 KB; each of six partitions has three replicas. confluent-kafka writes with acks=all and
reads; then one record at a time makes the round trip. CPU is that of all brokers. Rounds take turns.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks import results
from benchmarks.clients.rounds import PARTITIONS, Outcome, Outcomes, in_a_process
from benchmarks.faults.cluster import NoAnswer, Node, until, view_of
from benchmarks.faults.namespaces import Loopback
from benchmarks.results import Better, Row, in_turn
from penstock import Admin, TopicSpec
from penstock.testing.zookeeper import ZooKeeperServer

DIRECT: Final = "direct"
PROXIED: Final = "one address"
VALUE_BYTES: Final = 1000
_BROKERS: Final = 3
_WAIT_S: Final = 120.0
_NOTES: Final = (
    "Three brokers and a ZooKeeper on one machine, 6 partitions with 3 replicas, min.insync.replicas=2, values of "
    "1,000 bytes, confluent-kafka, acks=all.",
    "Through one address, all connections reach the same broker: two thirds of the requests are forwarded.",
)


# --- contenders, each in a process of its own


def write(address: str, topic: str, seconds: float) -> Outcome:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "acks": "all", "log_level": 0})
    value = bytes(VALUE_BYTES)
    producer.produce(topic, value)
    producer.flush()
    began, sent = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        try:
            producer.produce(topic, value, partition=sent % PARTITIONS)
            sent += 1
        except BufferError:
            producer.poll(0.01)
    if producer.flush(_WAIT_S):
        raise RuntimeError("not everything was acknowledged")
    return {"mb_per_s": sent * VALUE_BYTES / (time.perf_counter() - began) / 1e6, "sent": float(sent + 1)}


def read(address: str, topic: str, count: int) -> Outcome:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": uuid.uuid4().hex, "log_level": 0})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    began, seen, deadline = time.perf_counter(), 0, time.monotonic() + _WAIT_S
    while seen < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{seen:,} of {count:,} records were read")
        seen += sum(message.error() is None for message in consumer.consume(10_000, 0.1))
    took_s = time.perf_counter() - began
    consumer.close()
    return {"mb_per_s": seen * VALUE_BYTES / took_s / 1e6}


def ping(address: str, topic: str, seconds: float) -> Outcome:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all", "log_level": 0})
    took: list[float] = []
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or not took:
        at = time.perf_counter()
        producer.produce(topic, b"ping", partition=number % PARTITIONS)
        producer.flush(_WAIT_S)
        number += 1
        if number > PARTITIONS:
            took.append((time.perf_counter() - at) * 1000)
    took.sort()
    return {"p50_ms": took[len(took) // 2], "p99_ms": took[int(len(took) * 0.99)]}


CONTENDERS: Final[dict[str, Callable[..., Outcome]]] = {"write": write, "read": read, "ping": ping}


# --- the brokers


class Brokers:
    """Each has two listeners. A proxied one advertises itself: the broker that is reached is the one address."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        place = Loopback().place("all")
        self.nodes: list[Node] = []
        self.addresses: dict[str, str] = {}
        for number in range(_BROKERS):
            port, proxied = place.ports(2)
            own = folder / str(number)
            own.mkdir()
            settings = {
                "broker.id": str(number),
                "zookeeper.connect": zookeeper,
                "listeners": f"PLAINTEXT://127.0.0.1:{port},ONE://127.0.0.1:{proxied}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,ONE:PLAINTEXT",
                "penstock.proxy.listeners": "ONE",
                "min.insync.replicas": "2",
            }
            command = [
                *(sys.executable, "-m", "penstock", "server", "start", "--data-dir", str(own / "data")),
                *("--http-port", "0", "--log-level", "warning"),
                *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
            ]
            self.nodes.append(Node(number, command, place, port, own))
            self.addresses.setdefault(DIRECT, f"127.0.0.1:{port}")
            self.addresses.setdefault(PROXIED, f"127.0.0.1:{proxied}")

    @contextmanager
    def running(self) -> Iterator[Brokers]:
        try:
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait_until_up()
            until(self._is_whole, "all brokers have joined", _WAIT_S)
            yield self
        finally:
            for node in self.nodes:
                node.kill()

    def _is_whole(self) -> bool:
        try:
            return all(len(view_of(each.place.address, each.port, []).brokers) == _BROKERS for each in self.nodes)
        except NoAnswer:
            return False

    def cpu_s(self) -> float:
        return sum(node.cpu_s() for node in self.nodes)


def measure(brokers: Brokers, outcomes: Outcomes, column: str, seconds: float) -> None:
    address, topic = brokers.addresses[column], f"bench-{uuid.uuid4().hex[:8]}"
    print(f"{column} ...", flush=True)
    with Admin(brokers.addresses[DIRECT]) as admin:
        admin.create_topic(TopicSpec(topic, PARTITIONS, replication_factor=_BROKERS))
        found: Outcome = {}
        began = brokers.cpu_s()
        written = in_a_process("benchmarks.proxy", "write", address=address, topic=topic, seconds=seconds)
        gb = written["sent"] * VALUE_BYTES / 1e9
        found |= {"write": written["mb_per_s"], "write_cpu": (brokers.cpu_s() - began) / gb}
        began = brokers.cpu_s()
        done = in_a_process("benchmarks.proxy", "read", address=address, topic=topic, count=int(written["sent"]))
        found |= {"read": done["mb_per_s"], "read_cpu": (brokers.cpu_s() - began) / gb}
        found |= in_a_process("benchmarks.proxy", "ping", address=address, topic=topic, seconds=seconds)
        outcomes.add(column, found)
        admin.delete_topics([topic])


def rows(outcomes: Outcomes) -> list[Row]:
    columns = {column: column for column in (PROXIED, DIRECT)}

    def row(work: str, unit: str, better: Better, field: str) -> Row:
        return Row(work, unit, better, outcomes.figures(columns, field), PROXIED, DIRECT, None, "")

    return [
        row("write, acks=all", "MB/s", Better.HIGHER, "write"),
        row("write: CPU of the brokers", "s/GB", Better.LOWER, "write_cpu"),
        row("read", "MB/s", Better.HIGHER, "read"),
        row("read: CPU of the brokers", "s/GB", Better.LOWER, "read_cpu"),
        row("round trip of one record: p50", "ms", Better.LOWER, "p50_ms"),
        row("round trip of one record: p99", "ms", Better.LOWER, "p99_ms"),
    ]


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("proxy", "Three brokers, reached directly and through one address.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each is clocked")
    options = parser.parse_args(arguments)
    recording = results.begin("proxy", parser, options, arguments)
    outcomes = Outcomes()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        zookeeper = stack.enter_context(ZooKeeperServer())
        brokers = stack.enter_context(Brokers(folder, zookeeper.connect).running())
        for number in range(options.rounds):
            for column in in_turn([DIRECT, PROXIED], number):
                measure(brokers, outcomes, column, options.seconds)
    recording.keep(rows(outcomes), notes=_NOTES)


if __name__ == "__main__":
    name, given = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(CONTENDERS[name](**given)))
