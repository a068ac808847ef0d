"""Transactions with foreign clients that are programs of their own: what they are asked, and how a copy is judged.

Each program knows the same questions. `open`, `begin`, `send`, `commit`, `abort` and `close` concern a producer by its
name, and are answered with the name of an error or null. `copy` starts a loop that reads, processes and writes: what it
has read is committed with what it writes, and after a failure it starts again; `copied` tells how far it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.peers.compatibility.peer_stories import PARTITIONS, unique
from tests.peers.conversation import Conversation
from tests.timeouts import PATIENCE_S, until

from penstock.testing.embedded_broker import EmbeddedBroker

ROWS: Final = 300
ROWS_AT_ONCE: Final = 25
FEW_PARTITIONS: Final = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"}
ONE_BROKER: Final = {**FEW_PARTITIONS, "num.partitions": str(PARTITIONS)}
THREE_BROKERS: Final = {
    **ONE_BROKER,
    "zookeeper.session.timeout.ms": "4000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
}


class TransactionalPeer:
    """A transactional producer in a program."""

    def __init__(self, program: Conversation, address: str, transactional_id: str, **options: Any) -> None:
        self._program = program
        self.name = unique("producer")
        program.ask("open", name=self.name, address=address, id=transactional_id, **options)

    def do(self, step: str, **more: Any) -> str | None:
        """The name of the error, if any."""
        answer: str | None = self._program.ask(step, name=self.name, address="", **more)
        return answer

    def send(self, topic: str, value: str, partition: int = 0) -> str | None:
        return self.do("send", topic=topic, value=value, partition=partition)


class Row(NamedTuple):
    partition: int
    offset: int
    key: str
    value: str


def committed(address: str, topic: str, partitions: int = PARTITIONS, isolation: str = "read_committed") -> list[str]:
    """The values that a reader which is not under test sees, up to the present end."""
    return [row.value for row in read_committed(address, topic, partitions, isolation)]


def read_committed(
    address: str, topic: str, partitions: int = PARTITIONS, isolation: str = "read_committed"
) -> list[Row]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "none", "isolation.level": isolation, "log_level": 0,
         "enable.partition.eof": True, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    rows: list[Row] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
        ended: set[int] = set()

        def at_end() -> bool:
            each: Any
            for each in consumer.consume(1000, 0.1):
                error = each.error()
                if error is None:
                    key, value = (each.key() or b"").decode(), (each.value() or b"").decode()
                    rows.append(Row(each.partition(), each.offset(), key, value))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(each.partition())
            return len(ended) == partitions

        until(at_end, f"the end of {topic}")
    finally:
        consumer.close()
    return sorted(rows)


def make_topic(address: str, name: str) -> str:
    client: Any = AdminClient({"bootstrap.servers": address, "log_level": 0})
    (future,) = client.create_topics([NewTopic(name, PARTITIONS, -1)]).values()
    future.result(PATIENCE_S)
    return name


def commits_and_aborts(program: Conversation, address: str, **options: Any) -> str:
    """Returns the transactional id."""
    topic, name = make_topic(address, unique("topic")), unique("transactional")
    producer = TransactionalPeer(program, address, name, **options)
    for number, end in enumerate(["commit", "abort", "commit", "abort", "commit"]):
        steps = [producer.do("begin")]
        steps += [producer.send(topic, f"{number}", partition) for partition in range(PARTITIONS)]
        steps.append(producer.do(end))
        assert steps == [None] * 5
    producer.do("close")
    until(lambda: len(committed(address, topic)) == 9, "the last markers are there")
    assert committed(address, topic) == ["0", "2", "4"] * PARTITIONS
    assert committed(address, topic, isolation="read_uncommitted") == list("01234") * PARTITIONS
    return name


def is_fenced(program: Conversation, address: str, errors: set[str], **options: Any) -> None:
    """The old producer's transaction is aborted, and its commit fails with one of the errors."""
    topic, name = make_topic(address, unique("topic")), unique("transactional")
    old = TransactionalPeer(program, address, name, **options)
    assert [old.do("begin"), old.send(topic, "old")] == [None, None]
    new = TransactionalPeer(program, address, name, **options)
    assert [new.do("begin"), new.send(topic, "new"), new.do("commit")] == [None, None, None]
    assert old.do("commit") in errors
    for producer in (old, new):
        producer.do("close")
    until(lambda: committed(address, topic) == ["new"], "only the new one is committed")


def times_out(
    program: Conversation, broker: EmbeddedBroker, wait: Callable[[str], None], timeout_ms: int = 1_000, **options: Any
) -> str | None:
    """The error of a commit that comes too late."""
    topic, name = make_topic(broker.address, unique("topic")), unique("transactional")
    slow = TransactionalPeer(program, broker.address, name, timeout_ms=timeout_ms, **options)
    assert [slow.do("begin"), slow.send(topic, "slow")] == [None, None]
    wait(name)
    error = slow.do("commit")
    slow.do("close")
    assert committed(broker.address, topic) == []
    return error


def outlives_its_own_death(start: Callable[[], Conversation], address: str) -> None:
    """A program that copies a topic is killed between its writes and its commit. Another, with the same transactional
    id and the same group, aborts what is open and copies every row once.
    """
    source, target = make_topic(address, unique("source")), make_topic(address, unique("target"))
    names: Any = {"source": source, "target": target, "group": unique("group"), "id": unique("transactional")}
    rows = {f"row {number}" for number in range(ROWS_AT_ONCE)}
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
    for number, row in enumerate(sorted(rows)):
        producer.produce(source, row.encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0

    def written() -> list[str]:
        return committed(address, target, isolation="read_uncommitted")

    with start() as first:
        first.ask("copy", address=address, pause_ms=600_000, **names)
        until(written, "it has written")
        first.kill()
    assert committed(address, target) == [], "its transaction is open"
    with start() as second:
        second.ask("copy", address=address, pause_ms=0, **names)
        wanted = sorted(f"copy of {row}" for row in rows)
        until(lambda: len(committed(address, target)) >= len(wanted), "everything is copied")
        outcome = second.ask("copy-stop")
    assert sorted(committed(address, target)) == wanted, outcome
    assert len(written()) > len(wanted), "what the first one wrote is still there, aborted"


def copies_exactly_once(
    program: Conversation, address: str, kill: Callable[[], None], kills: int, **options: Any
) -> None:
    """The program copies a topic, while brokers are killed and start again; every row arrives once."""
    source, target = make_topic(address, unique("source")), make_topic(address, unique("target"))
    program.ask(
        "copy", address=address, source=source, target=target, group=unique("group"), id=unique("transactional"),
        **options,
    )  # fmt: skip
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0, "linger.ms": 1}
    )

    def transactions() -> int:
        done: int = program.ask("copied")["transactions"]
        return done

    try:
        for begin in range(0, ROWS, ROWS_AT_ONCE):
            before = transactions()
            for number in range(begin, begin + ROWS_AT_ONCE):
                producer.produce(source, f"row {number}".encode(), partition=number % PARTITIONS)
            assert producer.flush(PATIENCE_S) == 0
            if (begin // ROWS_AT_ONCE) % 4 == 1 and kills:
                until(lambda before=before: transactions() > before, "it copies")  # type: ignore[misc]
                kills -= 1
                kill()
        wanted = {f"copy of row {number}" for number in range(ROWS)}
        until(lambda: set(committed(address, target)) >= wanted, "everything is copied")
    finally:
        outcome = program.ask("copy-stop")
    found = Counter(committed(address, target))
    assert {value: count for value, count in found.items() if count > 1} == {}, outcome
    assert found.keys() == wanted
    assert kills == 0
