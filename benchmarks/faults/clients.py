"""The clients that load the cluster: confluent-kafka, kafka-python and ours, behind one small interface.

Each produces idempotently with acks=all and consumes in a group. confluent-kafka and kafka-python commit by themselves
and report commits to a callback; kafka-python does not report its last one, which its reader does instead. Ours has no
such callback, so its reader commits once a second with `commit_async`, and waits for the commit when partitions are
revoked and at the end.

`SETTINGS` holds everything that is set on a client beyond addresses, topic, group and login; reports print it. A broker
that is paused or cut off says nothing, and as shipped the other two clients wait for half a minute or more before they
ask another one. That is why the time-outs are shorter here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from benchmarks.faults.access import CONFLUENT, KAFKA_PYTHON, OURS, Access

ANSWER_MS: Final = 2_000
DELIVERY_MS: Final = 120_000
SESSION_MS: Final = 10_000
COMMIT_MS: Final = 1_000
# Longer than any record may take, so that what is not resolved then never will be.
FLUSH_S: Final = DELIVERY_MS / 1000 + 10
CLOSE_S: Final = 5.0

SETTINGS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    CONFLUENT: {
        "producer": {
            "enable.idempotence": True, "request.timeout.ms": ANSWER_MS, "socket.timeout.ms": ANSWER_MS * 2,
            "delivery.timeout.ms": DELIVERY_MS, "log_level": 0,
        },
        "consumer": {
            "auto.offset.reset": "earliest", "session.timeout.ms": SESSION_MS, "auto.commit.interval.ms": COMMIT_MS,
            "socket.timeout.ms": ANSWER_MS * 2, "log_level": 0,
        },
    },
    KAFKA_PYTHON: {
        "producer": {
            "enable_idempotence": True, "acks": "all", "request_timeout_ms": ANSWER_MS,
            "delivery_timeout_ms": DELIVERY_MS, "reconnect_backoff_max_ms": 1000,
        },
        "consumer": {
            "auto_offset_reset": "earliest", "session_timeout_ms": SESSION_MS, "auto_commit_interval_ms": COMMIT_MS,
            "reconnect_backoff_max_ms": 1000, "request_timeout_ms": SESSION_MS + ANSWER_MS,
            "heartbeat_interval_ms": 1000,
        },
    },
    OURS: {
        "producer": {"enable_idempotence": True, "request_timeout_ms": ANSWER_MS, "delivery_timeout_ms": DELIVERY_MS},
        "consumer": {
            "auto_offset_reset": "earliest", "session_timeout_ms": SESSION_MS, "enable_auto_commit": False,
            "request_timeout_ms": ANSWER_MS,
        },
    },
}  # fmt: skip

Done = Callable[[int, str], None]  # the offset, -1 if it is not known, and what went wrong, if anything
OnAssigned = Callable[[list[int]], None]
OnCommitted = Callable[[Mapping[int, int]], None]  # offsets by partition, of a commit that was acknowledged
Fetched = tuple[int, int, bytes]


def group_of(client: str) -> str:
    return f"group-{client}"


class Sender(Protocol):
    is_broken: bool

    def send(self, partition: int, value: bytes, done: Done) -> None: ...

    def serve(self) -> None:
        """Called often: reports what became of records, where the library has no thread of its own for that."""

    def close(self) -> None:
        """Wait for everything that was sent, for at most FLUSH_S and CLOSE_S."""


class Reader(Protocol):
    def poll(self, timeout_s: float) -> Iterator[Fetched]:
        """Partition, offset and value of what is new; each is yielded before the library is asked for more, so that
        an assignment is reported between the records of the old one and those of the new one. Raises what the library
        tells the application."""

    def close(self) -> None: ...


class ConfluentSender:
    def __init__(self, bootstrap: Sequence[str], topic: str, access: Access) -> None:
        from confluent_kafka import Producer

        self.is_broken = False
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": ",".join(bootstrap), **SETTINGS[CONFLUENT]["producer"], **access.options(CONFLUENT)}
        )

    def send(self, partition: int, value: bytes, done: Done) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                done(_known(message.offset()), "")
            else:
                self.is_broken = self.is_broken or error.fatal()
                done(-1, str(error))

        self._producer.produce(self._topic, value, partition=partition, on_delivery=on_delivery)

    def serve(self) -> None:
        self._producer.poll(0)

    def close(self) -> None:
        self._producer.flush(FLUSH_S)


class ConfluentReader:
    def __init__(self, bootstrap: Sequence[str], topic: str, access: Access, group: str, on_assigned: OnAssigned,
                 on_committed: OnCommitted) -> None:  # fmt: skip
        from confluent_kafka import Consumer

        def committed(error: Any, partitions: list[Any]) -> None:
            if error is None:
                on_committed(
                    {each.partition: each.offset for each in partitions if not each.error and each.offset >= 0}
                )

        def assigned(_: Any, partitions: list[Any]) -> None:
            on_assigned([each.partition for each in partitions])

        self._consumer = Consumer(
            {
                "bootstrap.servers": ",".join(bootstrap), "group.id": group, "on_commit": committed,
                **SETTINGS[CONFLUENT]["consumer"], **access.options(CONFLUENT),
            }
        )  # fmt: skip
        self._consumer.subscribe([topic], on_assign=assigned)

    def poll(self, timeout_s: float) -> Iterator[Fetched]:
        from confluent_kafka import KafkaException

        message = self._consumer.poll(timeout_s)
        while message is not None:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            partition, offset, value = message.partition(), message.offset(), message.value()
            if partition is not None and offset is not None and isinstance(value, bytes):
                yield partition, offset, value
            message = self._consumer.poll(0)

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonSender:
    def __init__(self, bootstrap: Sequence[str], topic: str, access: Access) -> None:
        from kafka import KafkaProducer

        self.is_broken = False
        self._topic = topic
        self._producer = KafkaProducer(
            bootstrap_servers=list(bootstrap), **SETTINGS[KAFKA_PYTHON]["producer"], **access.options(KAFKA_PYTHON)
        )

    def send(self, partition: int, value: bytes, done: Done) -> None:
        def failed(error: BaseException) -> None:
            self.is_broken = self.is_broken or "atal" in type(error).__name__
            done(-1, f"{type(error).__name__}: {error}")

        future = self._producer.send(self._topic, value, partition=partition)
        future.add_callback(lambda metadata: done(_known(metadata.offset), ""))
        future.add_errback(failed)

    def serve(self) -> None:
        """It has a thread."""

    def close(self) -> None:
        try:
            self._producer.flush(FLUSH_S)
        finally:
            self._producer.close(timeout=CLOSE_S)


class KafkaPythonReader:
    def __init__(self, bootstrap: Sequence[str], topic: str, access: Access, group: str, on_assigned: OnAssigned,
                 on_committed: OnCommitted) -> None:  # fmt: skip
        from kafka import ConsumerRebalanceListener, KafkaConsumer

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                pass

            def on_partitions_assigned(_, assigned: Any) -> None:  # noqa: N805 - `self` is the reader
                self._next.clear()
                on_assigned([each.partition for each in assigned])

        def committed(offsets: Any, response: Any) -> None:
            if not isinstance(response, BaseException):
                on_committed({at.partition: each.offset for at, each in offsets.items()})

        self._topic, self._on_committed = topic, on_committed
        self._next: dict[int, int] = {}
        self._consumer = KafkaConsumer(
            bootstrap_servers=list(bootstrap), group_id=group, default_offset_commit_callback=committed,
            **SETTINGS[KAFKA_PYTHON]["consumer"], **access.options(KAFKA_PYTHON),
        )  # fmt: skip
        self._consumer.subscribe([topic], listener=Listener())

    def poll(self, timeout_s: float) -> Iterator[Fetched]:
        for at, records in self._consumer.poll(timeout_ms=int(timeout_s * 1000)).items():
            for each in records:
                self._next[at.partition] = each.offset + 1
                yield at.partition, each.offset, each.value

    def close(self) -> None:
        """What it commits when it is closed is not reported to the callback, so that is committed here."""
        from kafka import OffsetAndMetadata, TopicPartition

        owned = {each.partition for each in self._consumer.assignment()}
        last = {partition: offset for partition, offset in self._next.items() if partition in owned}
        try:
            if last:
                self._consumer.commit(
                    {TopicPartition(self._topic, at): OffsetAndMetadata(offset) for at, offset in last.items()},
                    timeout_ms=CLOSE_S * 1000,
                )
                self._on_committed(last)
        finally:
            self._consumer.close()


class OurSender:
    def __init__(self, bootstrap: Sequence[str], topic: str, access: Access) -> None:
        from penstock import Producer

        self.is_broken = False
        self._topic = topic
        self._producer: Producer[bytes, bytes] = Producer(
            list(bootstrap), **SETTINGS[OURS]["producer"], **access.options(OURS)
        )

    def send(self, partition: int, value: bytes, done: Done) -> None:
        def ended(delivery: Any) -> None:
            error = delivery.exception(0)
            if error is None:
                done(_known(delivery.result(0).offset), "")
            else:
                done(-1, f"{type(error).__name__}: {error}")

        self._producer.send(self._topic, value, partition=partition).add_done_callback(ended)

    def serve(self) -> None:
        """It has a thread."""

    def close(self) -> None:
        try:
            self._producer.flush(FLUSH_S)
        finally:
            self._producer.close(CLOSE_S)


class OurReader:
    def __init__(self, bootstrap: Sequence[str], topic: str, access: Access, group: str, on_assigned: OnAssigned,
                 on_committed: OnCommitted) -> None:  # fmt: skip
        from penstock import Consumer

        self._on_committed = on_committed
        self._commit_at_s = time.monotonic() + COMMIT_MS / 1000
        self._is_closing = False
        self._consumer: Consumer[Any, Any] = Consumer(
            topic,
            bootstrap_servers=list(bootstrap),
            group_id=group,
            **SETTINGS[OURS]["consumer"],
            **access.options(OURS),
        )
        self._consumer.on_assign(lambda partitions: on_assigned([each.partition for each in partitions]))
        self._consumer.on_revoke(self._revoked)
        self._consumer.on_lost(lambda _: None)

    def poll(self, timeout_s: float) -> Iterator[Fetched]:
        if time.monotonic() > self._commit_at_s:
            self._commit_at_s = time.monotonic() + COMMIT_MS / 1000
            self._consumer.commit_async(callback=self._committed)
        found = self._consumer.poll(int(timeout_s * 1000))
        yield from ((at.partition, each.offset, each.value) for at, records in found.items() for each in records)

    def close(self) -> None:
        self._commit_and_wait()
        self._is_closing = True
        self._consumer.close()

    def _revoked(self, _: Any) -> None:
        # Commits are carried out one after the other, so none is on its way when another member gets the partitions.
        if not self._is_closing:
            self._commit_and_wait()

    def _commit_and_wait(self) -> None:
        is_over = threading.Event()

        def committed(offsets: Any, error: BaseException | None) -> None:
            self._committed(offsets, error)
            is_over.set()

        self._consumer.commit_async(callback=committed)
        is_over.wait(CLOSE_S)

    def _committed(self, offsets: Any, error: BaseException | None) -> None:
        if error is None:
            self._on_committed({at.partition: each.offset for at, each in offsets.items()})


def _known(offset: int | None) -> int:
    """A broker that has a record already may acknowledge it without knowing where it is."""
    return -1 if offset is None else offset


SENDERS: Final[dict[str, Callable[[Sequence[str], str, Access], Sender]]] = {
    CONFLUENT: ConfluentSender,
    KAFKA_PYTHON: KafkaPythonSender,
    OURS: OurSender,
}
READERS: Final[dict[str, Callable[[Sequence[str], str, Access, str, OnAssigned, OnCommitted], Reader]]] = {
    CONFLUENT: ConfluentReader,
    KAFKA_PYTHON: KafkaPythonReader,
    OURS: OurReader,
}
