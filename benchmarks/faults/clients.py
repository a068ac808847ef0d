"""The clients that load the cluster: confluent-kafka, kafka-python and ours, behind one small face.

Rule: each produces idempotently with acks=all and consumes in a group that commits by itself. Settings are as shipped
but for one: how long a client waits for an answer, since a broker that is paused or cut off says nothing, and as
shipped all of them wait for half a minute or more before they ask another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

ANSWER_MS: Final = 2_000
DELIVERY_MS: Final = 120_000
SESSION_MS: Final = 10_000
COMMIT_MS: Final = 1_000
_FLUSH_S: Final = 120.0

Done = Callable[[int, str], None]  # the offset, -1 if it is not known, and what went wrong, if anything
OnAssigned = Callable[[list[int]], None]
Fetched = tuple[int, int, bytes]


class Sender(Protocol):
    is_broken: bool

    def send(self, partition: int, value: bytes, done: Done) -> None: ...

    def serve(self) -> None:
        """Called often: tells what became of records, where the library does not do that in a thread of its own."""

    def close(self) -> None:
        """Wait for all that was sent."""


class Reader(Protocol):
    def poll(self, timeout_s: float) -> list[Fetched]:
        """Partition, offset and value of what is new. Raises what the library tells the application."""

    def close(self) -> None: ...


class ConfluentSender:
    def __init__(self, bootstrap: Sequence[str], topic: str) -> None:
        from confluent_kafka import Producer

        self.is_broken = False
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": ",".join(bootstrap), "enable.idempotence": True, "acks": "all", "log_level": 0,
                "request.timeout.ms": ANSWER_MS, "socket.timeout.ms": ANSWER_MS * 2,
                "delivery.timeout.ms": DELIVERY_MS,
            }
        )  # fmt: skip

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
        self._producer.flush(_FLUSH_S)


class ConfluentReader:
    def __init__(self, bootstrap: Sequence[str], topic: str, group: str, on_assigned: OnAssigned) -> None:
        from confluent_kafka import Consumer

        self._consumer = Consumer(
            {
                "bootstrap.servers": ",".join(bootstrap), "group.id": group, "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS, "auto.commit.interval.ms": COMMIT_MS, "log_level": 0,
                "socket.timeout.ms": ANSWER_MS * 2,
            }
        )  # fmt: skip

        def assigned(_: Any, partitions: list[Any]) -> None:
            on_assigned([each.partition for each in partitions])

        self._consumer.subscribe([topic], on_assign=assigned)

    def poll(self, timeout_s: float) -> list[Fetched]:
        from confluent_kafka import KafkaException

        found: list[Fetched] = []
        first_error: Any = None
        for message in self._consumer.consume(500, timeout_s):
            error = message.error()
            if error is not None:
                first_error = first_error or error
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            if partition is not None and offset is not None and isinstance(value, bytes):
                found.append((partition, offset, value))
        if first_error is not None and not found:
            raise KafkaException(first_error)
        return found

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonSender:
    def __init__(self, bootstrap: Sequence[str], topic: str) -> None:
        from kafka import KafkaProducer

        self.is_broken = False
        self._topic = topic
        self._producer = KafkaProducer(
            bootstrap_servers=list(bootstrap), enable_idempotence=True, acks="all", request_timeout_ms=ANSWER_MS,
            delivery_timeout_ms=DELIVERY_MS, reconnect_backoff_max_ms=1000,
        )  # fmt: skip

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
        self._producer.flush(_FLUSH_S)
        self._producer.close(timeout=5)


class KafkaPythonReader:
    def __init__(self, bootstrap: Sequence[str], topic: str, group: str, on_assigned: OnAssigned) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                pass

            def on_partitions_assigned(self, assigned: Any) -> None:
                on_assigned([each.partition for each in assigned])

        self._consumer = KafkaConsumer(
            bootstrap_servers=list(bootstrap), group_id=group, auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS, auto_commit_interval_ms=COMMIT_MS, reconnect_backoff_max_ms=1000,
            request_timeout_ms=SESSION_MS + ANSWER_MS, heartbeat_interval_ms=1000,
        )  # fmt: skip
        self._consumer.subscribe([topic], listener=Listener())

    def poll(self, timeout_s: float) -> list[Fetched]:
        found = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [(at.partition, each.offset, each.value) for at, records in found.items() for each in records]

    def close(self) -> None:
        self._consumer.close()


class OurSender:
    def __init__(self, bootstrap: Sequence[str], topic: str) -> None:
        from penstock import Producer

        self.is_broken = False
        self._topic = topic
        self._producer: Producer[bytes, bytes] = Producer(
            list(bootstrap), enable_idempotence=True, request_timeout_ms=ANSWER_MS, delivery_timeout_ms=DELIVERY_MS
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
        self._producer.flush(_FLUSH_S)
        self._producer.close()


class OurReader:
    def __init__(self, bootstrap: Sequence[str], topic: str, group: str, on_assigned: OnAssigned) -> None:
        from penstock import Consumer

        self._consumer: Consumer[Any, Any] = Consumer(
            topic, bootstrap_servers=list(bootstrap), group_id=group, auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS, auto_commit_interval_ms=COMMIT_MS, request_timeout_ms=ANSWER_MS,
        )  # fmt: skip
        self._consumer.on_assign(lambda partitions: on_assigned([each.partition for each in partitions]))

    def poll(self, timeout_s: float) -> list[Fetched]:
        found = self._consumer.poll(int(timeout_s * 1000))
        return [(at.partition, each.offset, each.value) for at, records in found.items() for each in records]

    def close(self) -> None:
        self._consumer.close()


def _known(offset: int | None) -> int:
    """A broker that has a record already may acknowledge it without knowing where it is."""
    return -1 if offset is None else offset


SENDERS: Final[dict[str, Callable[[Sequence[str], str], Sender]]] = {
    "confluent-kafka": ConfluentSender,
    "kafka-python": KafkaPythonSender,
    "penstock": OurSender,
}
READERS: Final[dict[str, Callable[[Sequence[str], str, str, OnAssigned], Reader]]] = {
    "confluent-kafka": ConfluentReader,
    "kafka-python": KafkaPythonReader,
    "penstock": OurReader,
}
