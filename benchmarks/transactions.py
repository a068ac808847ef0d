"""Transactions on our broker and on Apache Kafka 4.3: how many, how fast they commit, and what they cost.

One producer in a process of its own begins, sends, commits, and begins again. Transactions have 1, 100, 10,000 and
100,000 records, the last of which take about 100 ms: so often Kafka Streams commits. The two largest are compared with
as many records sent and flushed by an idempotent producer without transactions. confluent-kafka
speaks transaction version 1, our client version 2 (KIP-890), each to both brokers. Rounds take turns.

Our broker answers after its disk has synced, Kafka from the page cache. "Penstock, not synced" is our broker with
Kafka's policy: neither records nor decisions are synced.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.peers.installing import NotAvailable

from benchmarks import results
from benchmarks.clients.rounds import CONFLUENT, PARTITIONS, PENSTOCK, Outcome, Outcomes, in_a_process
from benchmarks.peers import kafka, ours
from benchmarks.peers.servers import Server
from benchmarks.results import Better, Row, in_turn

NOT_SYNCED: Final = "penstock, not synced"
SIZES: Final = (1, 100, 10_000, 100_000)
COMPARED: Final = (10_000, 100_000)
"""Measured without transactions, too."""
VALUE_BYTES: Final = 100
_NOTES: Final = (
    "One broker on the same machine, 6 partitions, values of 100 bytes without keys, acks=all, idempotent producers. "
    "The next transaction begins when the last one is committed.",
    "A commit is the call of commit_transaction after a flush: everything sent is acknowledged before it.",
    "Kafka acknowledges from the page cache, our broker after a sync: a transaction of one record waits for four. "
    "'Not synced' is our broker with Kafka's policy (log.flush.interval.messages).",
)


# --- contenders, each in a process of its own


def confluent(address: str, topic: str, size: int, transactional: bool, seconds: float) -> Outcome:
    from confluent_kafka import Producer

    options: dict[str, Any] = {"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    options |= {"enable.idempotence": True, "acks": "all", "log_level": 0}
    if transactional:
        options["transactional.id"] = uuid.uuid4().hex
    producer = Producer(options)
    value = bytes(VALUE_BYTES)

    def send(count: int) -> None:
        for number in range(count):
            producer.produce(topic, value, partition=number % PARTITIONS)
            if not number % 1_000:
                producer.poll(0)
        producer.flush()

    if transactional:
        producer.init_transactions(60)
    return _clocked(
        size,
        transactional,
        seconds,
        producer.begin_transaction,
        send,
        lambda: producer.commit_transaction(60),
    )


def penstock(address: str, topic: str, size: int, transactional: bool, seconds: float) -> Outcome:
    from penstock import Producer

    options: dict[str, Any] = {"transactional_id": uuid.uuid4().hex} if transactional else {}
    value = bytes(VALUE_BYTES)
    with Producer(address, linger_ms=5, **options) as producer:

        def send(count: int) -> None:
            for number in range(count):
                producer.send(topic, value, partition=number % PARTITIONS)
            producer.flush()

        return _clocked(size, transactional, seconds, producer.begin_transaction, send, producer.commit_transaction)


def _clocked(
    size: int,
    transactional: bool,
    seconds: float,
    begin: Callable[[], object],
    send: Callable[[int], None],
    commit: Callable[[], object],
) -> Outcome:
    """Transactions for some seconds, after a few that are not clocked; or batches that are flushed, without any."""
    commits: list[float] = []

    def one() -> None:
        if transactional:
            begin()
        send(size)
        if transactional:
            started = time.perf_counter()
            commit()
            commits.append((time.perf_counter() - started) * 1000)

    for _ in range(3):
        one()
    commits.clear()
    began, cpu_s, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        one()
        done += 1
    took_s = time.perf_counter() - began
    outcome = {
        "transactions": done / took_s,
        "records": done * size / took_s,
        "cpu_us": (time.process_time() - cpu_s) / (done * size) * 1e6,
        "sent": float((done + 3) * size),
    }
    if commits:
        commits.sort()
        outcome |= {"p50_ms": commits[len(commits) // 2], "p99_ms": commits[int(len(commits) * 0.99)]}
    return outcome


CONTENDERS: Final = {CONFLUENT: confluent, PENSTOCK: penstock}


# --- the run


class Run:
    def __init__(self, servers: dict[str, Server], rounds: int, seconds: float) -> None:
        self._servers = servers
        self._rounds = rounds
        self._seconds = seconds
        self.outcomes: dict[tuple[str, int, bool], Outcomes] = {}

    def measure(self, client: str, size: int, *, transactional: bool) -> None:
        outcomes = self.outcomes[client, size, transactional] = Outcomes()
        for number in range(self._rounds):
            for column in in_turn(list(self._servers), number):
                server = self._servers[column]
                topic = f"bench-{uuid.uuid4().hex[:8]}"
                server.topics.make(topic, {"file.delete.delay.ms": "0"}, partitions=PARTITIONS)
                kind = "in transactions" if transactional else "without transactions"
                print(f"{client}, {size:,} records {kind}, {column} ...", flush=True)
                outcome = in_a_process(
                    "benchmarks.transactions",
                    client,
                    address=server.address,
                    topic=topic,
                    size=size,
                    transactional=transactional,
                    seconds=self._seconds,
                )
                require_all_committed(server, topic, int(outcome["sent"]))
                outcomes.add(column, outcome)
                server.topics.delete(topic)

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for client in CONTENDERS:
            found += self._rows_of(client)
        return found

    def _rows_of(self, client: str) -> list[Row]:
        table = f"With {client}"
        rows: list[Row] = []

        def add(
            work: str,
            unit: str,
            better: Better,
            field: str,
            size: int,
            goal: float | None,
            factor: float = 1.0,
            *,
            transactional: bool = True,
        ) -> None:
            names = {column: column for column in self._servers}
            figures = self.outcomes[client, size, transactional].figures(names, field, factor)
            rows.append(Row(work, unit, better, figures, ours.NAME, kafka.NAME, goal, table))

        for size in SIZES:
            goal = 2.0 if size == 1 else None
            what = f"transactions of {size:,} record{'s' if size > 1 else ''}"
            add(what, "1/s", Better.HIGHER, "transactions", size, goal)
        add("commit, 1 record: p50", "ms", Better.LOWER, "p50_ms", 1, 0.6)
        add("commit, 1 record: p99", "ms", Better.LOWER, "p99_ms", 1, None)
        add("commit, 10,000 records: p50", "ms", Better.LOWER, "p50_ms", 10_000, None)
        for size in COMPARED:
            what, unit = f"records in transactions of {size:,}", "k records/s"
            add(what, unit, Better.HIGHER, "records", size, None, 1e-3)
            what = f"records without transactions, flushed every {size:,}"
            add(what, unit, Better.HIGHER, "records", size, None, 1e-3, transactional=False)
            rows.append(self._cost(client, size, table))
        return rows

    def _cost(self, client: str, size: int, table: str) -> Row:
        """The rate in transactions to the rate without, of each broker by itself."""
        with_, without = self.outcomes[client, size, True], self.outcomes[client, size, False]
        figures = {}
        for column in self._servers:
            ratios = [
                each["records"] / other["records"]
                for each, other in zip(with_.by_contender[column], without.by_contender[column], strict=True)
            ]
            figures[column] = results.Figure.of(ratios)
        what = f"rate in transactions of {size:,} to the rate without"
        return Row(what, "", Better.HIGHER, figures, ours.NAME, None, 0.95, table)


def require_all_committed(server: Server, topic: str, sent: int) -> None:
    """RuntimeError unless a reader of committed records sees exactly what was sent."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen, ends = 0, 0
    deadline = time.monotonic() + 120
    while ends < PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.2):
            if message.error() is None:
                seen += 1
            else:
                ends += 1
    consumer.close()
    if seen != sent:
        raise RuntimeError(f"{sent:,} records were committed to {topic} at {server.name}, and {seen:,} are visible")


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("transactions", "Transactions on our broker and on Apache Kafka 4.3.")
    parser.add_argument("--ours-only", action="store_true", help="against our broker alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each is clocked")
    options = parser.parse_args(arguments)
    recording = results.begin("transactions", parser, options, arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            ours.NAME: stack.enter_context(ours.start(folder / "ours")),
            NOT_SYNCED: stack.enter_context(ours.start_unsynced(folder / "unsynced")),
        }
        if not options.ours_only:
            try:
                servers[kafka.NAME] = stack.enter_context(kafka.Kafka().start(folder / "kafka"))
            except NotAvailable as error:
                recording.lacks(f"Apache Kafka 4.3 is not installed: {error}")
        run = Run(servers, options.rounds, options.seconds)
        for client in CONTENDERS:
            for size in SIZES:
                run.measure(client, size, transactional=True)
            for size in COMPARED:
                run.measure(client, size, transactional=False)
    recording.keep(run.rows(), notes=_NOTES)


if __name__ == "__main__":
    name, given = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(CONTENDERS[name](**given)))
