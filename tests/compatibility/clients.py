"""confluent-kafka, kafka-python and aiokafka, unmodified, behind the interface of `client_interface`.

Adapters translate names and results; they retry nothing and hide nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

import aiokafka
import aiokafka.admin
import aiokafka.errors
import aiokafka.structs
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.errors
import kafka.structs
from aiokafka.admin import config_resource as aiokafka_resources
from tests.compatibility.client_interface import (
    CODES,
    END,
    Admin,
    Client,
    Consumer,
    ConsumerOptions,
    Features,
    Producer,
    ProducerOptions,
    Record,
    Rejected,
    Sent,
    TransactionFailed,
)
from tests.compatibility.client_stories import HEARTBEAT_MS, SESSION_TIMEOUT_MS
from tests.timeouts import PATIENCE_S, until

from penstock.wire.protocol import ErrorCode

_NO_RECORD: Final = -1


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


# --- confluent-kafka


def confluent_settings(address: str, **more: Any) -> dict[str, Any]:
    """Settings by their names, with underscores for dots. The library does not print connection errors."""
    quiet = {"log_level": 0, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
    return {"bootstrap.servers": address, **quiet, **{key.replace("_", "."): more[key] for key in given(**more)}}


class Confluent(Client):
    features = Features(
        "confluent-kafka",
        """
import sys
from confluent_kafka import Consumer
address, topic, group = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": address, "group.id": group, "session.timeout.ms": 2000,
                     "heartbeat.interval.ms": 200, "log_level": 0})
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(0.1)
print(len(consumer.assignment()), flush=True)
while True:
    consumer.poll(0.1)
""",
        strategies=("range", "roundrobin", "cooperative-sticky"),
        lacks=frozenset({"offsets in a transaction while their coordinator is killed"}),
    )

    @contextmanager
    def producing(self, address: str, **chosen: Any) -> Iterator[Producer]:
        options = ProducerOptions(**chosen)
        transactional = options.transactional_id is not None
        producer = ConfluentProducer(confluent_kafka.Producer(confluent_settings(
            address, compression_type=options.codec, acks=options.acks, enable_idempotence=options.idempotent or None,
            linger_ms=options.linger_ms, batch_num_messages=options.batch_records,
            message_max_bytes=options.request_bytes, transactional_id=options.transactional_id,
            transaction_timeout_ms=options.transaction_timeout_ms if transactional else None,
            # librdkafka 2.16 waits forever for a group's coordinator that it knew before it forgot all brokers.
            metadata_recovery_strategy="none" if transactional else None,
        )))  # fmt: skip
        if transactional:
            producer.start()
        yield producer
        if not transactional:
            producer.settle()

    @contextmanager
    def consuming(self, address: str, **chosen: Any) -> Iterator[Consumer]:
        options = ConsumerOptions(**chosen)
        settings = confluent_settings(
            address, group_id=options.group or "none", auto_offset_reset="earliest", enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS, heartbeat_interval_ms=HEARTBEAT_MS,
            topic_metadata_refresh_interval_ms=500, partition_assignment_strategy=options.strategy,
            group_instance_id=options.instance, fetch_message_max_bytes=options.fetch_bytes,
            fetch_wait_max_ms=options.fetch_wait_ms, isolation_level=options.isolation,
        )  # fmt: skip
        with closing(confluent_kafka.Consumer(settings)) as consumer:
            if options.topic is not None:
                consumer.subscribe([options.topic])
            yield ConfluentConsumer(consumer)

    @contextmanager
    def administering(self, address: str) -> Iterator[ConfluentAdmin]:
        yield ConfluentAdmin(address)


class ConfluentProducer(Producer):
    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._sent: dict[int, Sent] = {}
        self._count = 0

    def send(self, topic: str, record: Record) -> None:
        number, self._count = self._count, self._count + 1

        def done(error: Any, message: Any) -> None:
            self._sent[number] = Sent(message.partition(), message.offset(), error and CODES[error.code()])

        more = given(partition=record.partition, timestamp=record.timestamp_ms)
        headers = list(record.headers)
        self._producer.produce(topic, record.value, key=record.key, headers=headers, on_delivery=done, **more)

    def settle(self) -> list[Sent]:
        assert self._producer.flush(PATIENCE_S) == 0
        sent, self._sent = self._sent, {}
        return [sent[number] for number in sorted(sent)]

    def start(self) -> None:
        self._transact(self._producer.init_transactions, PATIENCE_S)

    def begin(self) -> None:
        self._transact(self._producer.begin_transaction)

    def commit(self) -> None:
        self._transact(self._producer.commit_transaction, PATIENCE_S)

    def abort(self) -> None:
        self._transact(self._producer.abort_transaction, PATIENCE_S)

    def send_offsets(self, consumer: Consumer, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        listed = [confluent_kafka.TopicPartition(*where, offset) for where, offset in offsets.items()]
        metadata = consumer.group_metadata(group)
        self._transact(self._producer.send_offsets_to_transaction, listed, metadata, PATIENCE_S)

    @staticmethod
    def _transact(step: Callable[..., object], *arguments: object) -> None:
        try:
            step(*arguments)
        except confluent_kafka.KafkaException as failure:
            error = failure.args[0]
            raise TransactionFailed(str(error), is_fenced=error.code() in _CONFLUENT_FENCED) from None


_CONFLUENT_FENCED: Final = (
    confluent_kafka.KafkaError._FENCED,
    int(ErrorCode.PRODUCER_FENCED),
    int(ErrorCode.INVALID_PRODUCER_EPOCH),
)


class ConfluentConsumer(Consumer):
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def group_metadata(self, group: str) -> Any:
        return self._consumer.consumer_group_metadata()

    def leave(self) -> None:
        self._consumer.unsubscribe()

    def assign(self, topic: str, partition: int, offset: int = 0) -> None:
        start = confluent_kafka.OFFSET_END if offset == END else offset
        self._consumer.assign([confluent_kafka.TopicPartition(topic, partition, start)])

    def poll(self) -> list[Record]:
        found = []
        for each in self._consumer.consume(1000, 0.1):
            error = each.error()
            if error is None:
                headers = tuple(each.headers() or ())
                found.append(
                    Record(each.value(), each.key(), headers, each.timestamp()[1], each.partition(), each.offset())
                )
            elif not error.retriable():
                raise Rejected(error.code())
        return found

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self, offsets: Mapping[tuple[str, int], tuple[int, str]] | None = None) -> None:
        if offsets is None:
            self._consumer.commit(asynchronous=False)
            return
        listed = [confluent_kafka.TopicPartition(*where, offset, note) for where, (offset, note) in offsets.items()]
        self._consumer.commit(offsets=listed, asynchronous=False)

    def committed(self, topic: str, partition: int) -> int | None:
        (found,) = self._consumer.committed([confluent_kafka.TopicPartition(topic, partition)], timeout=PATIENCE_S)
        return None if found.offset < 0 else found.offset

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        where = confluent_kafka.TopicPartition(topic, partition)
        first, last = self._consumer.get_watermark_offsets(where, timeout=PATIENCE_S)
        return first, last

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        asked = [confluent_kafka.TopicPartition(topic, partition, time_ms)]
        (found,) = self._consumer.offsets_for_times(asked, timeout=PATIENCE_S)
        return None if found.offset < 0 else found.offset


class ConfluentAdmin(Admin):
    """`client` and `result` are for stories of this client alone."""

    def __init__(self, address: str) -> None:
        self._kinds: Any = confluent_kafka.admin
        self.client = self._kinds.AdminClient(confluent_settings(address))

    def result(self, futures: Any) -> Any:
        """The result of a request about one thing."""
        (future,) = futures.values()
        try:
            return future.result(PATIENCE_S)
        except confluent_kafka.KafkaException as error:
            raise Rejected(error.args[0].code()) from None

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        wanted = self._kinds.NewTopic(topic, partitions, 1, config=dict(config or {}))
        self.result(self.client.create_topics([wanted]))

    def delete_topic(self, topic: str) -> None:
        self.result(self.client.delete_topics([topic]))

    def topics(self) -> set[str]:
        return set(self.client.list_topics(timeout=PATIENCE_S).topics)

    def partitions(self, topic: str) -> list[int]:
        described = self.result(self.client.describe_topics(confluent_kafka.TopicCollection([topic])))
        return sorted(each.id for each in described.partitions)

    def add_partitions(self, topic: str, count: int) -> None:
        self.result(self.client.create_partitions([self._kinds.NewPartitions(topic, count)]))

    def setting(self, topic: str, name: str) -> Any:
        return self._settings("TOPIC", topic)[name].value

    def _settings(self, kind: str, name: str) -> Any:
        return self.result(self.client.describe_configs([self._kinds.ConfigResource(kind, name)]))

    def alter(self, topic: str, name: str, value: str | None, operation: str) -> None:
        operation_type = self._kinds.AlterConfigOpType[operation]
        entry = self._kinds.ConfigEntry(name, value, incremental_operation=operation_type)
        resource = self._kinds.ConfigResource("TOPIC", topic, incremental_configs=[entry])
        self.result(self.client.incremental_alter_configs([resource]))

    def alter_setting(self, topic: str, name: str, value: str) -> None:
        self.alter(topic, name, value, "SET")

    def reset_setting(self, topic: str, name: str) -> None:
        self.alter(topic, name, None, "DELETE")

    def broker_setting(self, name: str) -> Any:
        (node,) = self.client.list_topics(timeout=PATIENCE_S).brokers
        return self._settings("BROKER", str(node))[name].value

    def groups(self) -> set[str]:
        return {each.group_id for each in self.client.list_consumer_groups().result(PATIENCE_S).valid}

    def group_state(self, group: str) -> str:
        return str(self.result(self.client.describe_consumer_groups([group])).state.name).capitalize()

    def group_offset(self, group: str, topic: str, partition: int) -> tuple[int, str]:
        where = [confluent_kafka.TopicPartition(topic, partition)]
        asked = [confluent_kafka.ConsumerGroupTopicPartitions(group, where)]
        (found,) = self.result(self.client.list_consumer_group_offsets(asked)).topic_partitions
        return found.offset, found.metadata

    def delete_group(self, group: str) -> None:
        self.result(self.client.delete_consumer_groups([group]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        asked = [confluent_kafka.TopicPartition(topic, partition, before)]
        return int(self.result(self.client.delete_records(asked)).low_watermark)


# --- kafka-python and aiokafka, whose consumers and producers have mostly the same methods


class KafkaPython(Client):
    features = Features(
        "kafka-python",
        """
import sys
from kafka import KafkaConsumer
address, topic, group = sys.argv[1:]
consumer = KafkaConsumer(bootstrap_servers=address, group_id=group, session_timeout_ms=2000,
                         heartbeat_interval_ms=200)
while not consumer.partitions_for_topic(topic):
    pass
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(timeout_ms=1000)
print(len(consumer.assignment()), flush=True)
while True:
    consumer.poll(timeout_ms=100)
""",
        lacks=frozenset({"idempotence after an error", "transactions while brokers of a cluster are killed"}),
    )

    @contextmanager
    def producing(self, address: str, **chosen: Any) -> Iterator[Producer]:
        settings = _producer_settings(ProducerOptions(**chosen), "batch_size")
        with closing(kafka.KafkaProducer(bootstrap_servers=address, **settings)) as producer:
            if "transactional_id" in settings:
                producer.init_transactions()
            yield KafkaPythonProducer(producer)

    @contextmanager
    def consuming(self, address: str, **chosen: Any) -> Iterator[Consumer]:
        options = ConsumerOptions(**chosen)
        settings = _consumer_settings(options) | given(group_instance_id=options.instance)
        with closing(kafka.KafkaConsumer(bootstrap_servers=address, **settings)) as consumer:
            if options.topic is not None:
                # A member that learns of the topic after it has joined must join again; see `poll`.
                until(lambda: bool(consumer.partitions_for_topic(options.topic)), "the topic is known")
                consumer.subscribe([options.topic])
            yield KafkaPythonConsumer(consumer, is_member=options.topic is not None)

    @contextmanager
    def administering(self, address: str) -> Iterator[Admin]:
        with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=address)) as admin:
            yield KafkaPythonAdmin(admin)


class AioKafka(Client):
    features = Features(
        "aiokafka",
        """
import asyncio, sys
from aiokafka import AIOKafkaConsumer
address, topic, group = sys.argv[1:]

async def main():
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=address, group_id=group, session_timeout_ms=2000,
                                heartbeat_interval_ms=200)
    await consumer.start()
    while not consumer.assignment():
        await consumer.getmany(timeout_ms=100)
    print(len(consumer.assignment()), flush=True)
    while True:
        await consumer.getmany(timeout_ms=100)

asyncio.run(main())
""",
        lacks=frozenset(
            {"idempotence after an error", "static members", "resetting settings", "deleting groups", "broker settings"}
        ),
    )

    @contextmanager
    def producing(self, address: str, **chosen: Any) -> Iterator[Producer]:
        settings = _producer_settings(ProducerOptions(**chosen), "max_batch_size")
        with Blocking(lambda: aiokafka.AIOKafkaProducer(bootstrap_servers=address, **settings), "stop") as producer:
            yield AioKafkaProducer(producer)

    @contextmanager
    def consuming(self, address: str, **chosen: Any) -> Iterator[Consumer]:
        options = ConsumerOptions(**chosen)
        topics, settings = [options.topic] if options.topic else [], _consumer_settings(options)
        with Blocking(
            lambda: aiokafka.AIOKafkaConsumer(*topics, bootstrap_servers=address, **settings), "stop"
        ) as consumer:
            yield AioKafkaConsumer(consumer)

    @contextmanager
    def administering(self, address: str) -> Iterator[Admin]:
        with Blocking(lambda: aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=address), "close") as admin:
            yield AioKafkaAdmin(admin)


def _producer_settings(options: ProducerOptions, batch_name: str) -> dict[str, Any]:
    settings = {
        "acks": options.acks if options.acks == "all" else int(options.acks),
        "compression_type": None if options.codec == "none" else options.codec,
        "enable_idempotence": options.idempotent,
        "linger_ms": options.linger_ms,
        "max_request_size": options.request_bytes,
        batch_name: options.batch_records and 100 * options.batch_records,
    }
    if options.transactional_id is not None:
        settings |= {
            "transactional_id": options.transactional_id,
            "transaction_timeout_ms": options.transaction_timeout_ms,
            "enable_idempotence": True,
        }
    return given(**settings)


def _consumer_settings(options: ConsumerOptions) -> dict[str, Any]:
    return given(
        group_id=options.group, auto_offset_reset="earliest", enable_auto_commit=False, metadata_max_age_ms=500,
        session_timeout_ms=SESSION_TIMEOUT_MS, heartbeat_interval_ms=HEARTBEAT_MS, isolation_level=options.isolation,
        max_partition_fetch_bytes=options.fetch_bytes, fetch_max_wait_ms=options.fetch_wait_ms,
    )  # fmt: skip


class Blocking:
    """An asyncio object with blocking methods: each call runs on an event loop with a thread of its own."""

    def __init__(self, make: Callable[[], Any], stop: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stop = stop
        self._made = self._run(lambda: make())
        self.start()

    def _run(self, call: Callable[[], Any]) -> Any:
        async def work() -> Any:
            result = call()
            return await result if inspect.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(PATIENCE_S)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: self._run(lambda: getattr(self._made, name)(*args, **more))

    def settled(self, futures: list[Any]) -> list[Any]:
        """The results of futures of the loop, or their exceptions."""

        async def work() -> list[Any]:
            return await asyncio.gather(*futures, return_exceptions=True)

        results: list[Any] = asyncio.run_coroutine_threadsafe(work(), self._loop).result(PATIENCE_S)
        return results

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        getattr(self, self._stop)()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class KafkaPythonProducer(Producer):
    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._futures: list[Any] = []

    def send(self, topic: str, record: Record) -> None:
        future = self._producer.send(
            topic, record.value, key=record.key, headers=list(record.headers), timestamp_ms=record.timestamp_ms,
            partition=record.partition,
        )  # fmt: skip
        self._futures.append(future)

    def settle(self) -> list[Sent]:
        self._producer.flush()
        futures, self._futures = self._futures, []
        return [self._sent(outcome) for outcome in self._outcomes(futures)]

    def _outcomes(self, futures: list[Any]) -> list[Any]:
        return [future.exception or future.value for future in futures]

    @staticmethod
    def _sent(outcome: Any) -> Sent:
        if isinstance(outcome, Exception):
            return Sent(_NO_RECORD, _NO_RECORD, CODES[getattr(outcome, "errno", int(ErrorCode.UNKNOWN_SERVER_ERROR))])
        if outcome is None:  # aiokafka, acks=0
            return Sent(_NO_RECORD, _NO_RECORD)
        return Sent(outcome.partition, outcome.offset)

    def begin(self) -> None:
        self._transact(self._producer.begin_transaction)

    def commit(self) -> None:
        self._transact(self._producer.commit_transaction)

    def abort(self) -> None:
        self._transact(self._producer.abort_transaction)

    def send_offsets(self, consumer: Consumer, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        listed = {kafka.TopicPartition(*where): kafka.structs.OffsetAndMetadata(offset, "", -1)
                  for where, offset in offsets.items()}  # fmt: skip
        self._transact(self._producer.send_offsets_to_transaction, listed, consumer.group_metadata(group))

    @staticmethod
    def _transact(step: Callable[..., object], *arguments: object) -> None:
        try:
            step(*arguments)
        except (kafka.errors.KafkaError, aiokafka.errors.KafkaError) as error:
            raise TransactionFailed(repr(error), is_fenced=isinstance(error, _FENCED)) from None


_FENCED: Final = (
    kafka.errors.ProducerFencedError,
    kafka.errors.InvalidProducerEpochError,
    aiokafka.errors.ProducerFenced,
)


class AioKafkaProducer(KafkaPythonProducer):
    def send_offsets(self, consumer: Consumer, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        listed = {aiokafka.TopicPartition(*where): offset for where, offset in offsets.items()}
        self._transact(self._producer.send_offsets_to_transaction, listed, group)

    def _outcomes(self, futures: list[Any]) -> list[Any]:
        outcomes: list[Any] = self._producer.settled(futures)
        return outcomes


class KafkaPythonConsumer(Consumer):
    _partition: Any = kafka.TopicPartition

    def __init__(self, consumer: Any, *, is_member: bool = False) -> None:
        self._consumer = consumer
        # kafka-python loses an assignment that arrives after the poll that joined has timed out: members poll long.
        self._poll_ms = 1_000 if is_member else 100

    def assign(self, topic: str, partition: int, offset: int = 0) -> None:
        where = self._partition(topic, partition)
        self._consumer.assign([where])
        if offset == END:
            self._consumer.seek_to_end(where)
            self._consumer.position(where)
        else:
            self._consumer.seek(where, offset)

    def group_metadata(self, group: str) -> Any:
        return self._consumer.group_metadata()

    def _polled(self) -> Any:
        return self._consumer.poll(timeout_ms=self._poll_ms)

    def poll(self) -> list[Record]:
        return [
            Record(each.value, each.key, tuple(each.headers), each.timestamp, each.partition, each.offset)
            for batch in self._polled().values()
            for each in batch
        ]

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def _offset(self, offset: int, note: str) -> Any:
        return kafka.structs.OffsetAndMetadata(offset, note, -1)

    def commit(self, offsets: Mapping[tuple[str, int], tuple[int, str]] | None = None) -> None:
        listed = {self._partition(*where): self._offset(*pair) for where, pair in (offsets or {}).items()}
        self._consumer.commit(listed or None)

    def committed(self, topic: str, partition: int) -> int | None:
        found: int | None = self._consumer.committed(self._partition(topic, partition))
        return found

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        where = self._partition(topic, partition)
        return self._consumer.beginning_offsets([where])[where], self._consumer.end_offsets([where])[where]

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        where = self._partition(topic, partition)
        found = self._consumer.offsets_for_times({where: time_ms})[where]
        return None if found is None else int(found.offset)


class AioKafkaConsumer(KafkaPythonConsumer):
    _partition = aiokafka.TopicPartition

    def group_metadata(self, group: str) -> Any:
        return group

    def _polled(self) -> Any:
        return self._consumer.getmany(timeout_ms=self._poll_ms)

    def _offset(self, offset: int, note: str) -> Any:
        return aiokafka.structs.OffsetAndMetadata(offset, note)


def _asked(request: Callable[..., Any], *arguments: Any) -> Any:
    """The response of an admin client of either library."""
    try:
        return request(*arguments)
    except (kafka.errors.KafkaError, aiokafka.errors.KafkaError) as error:
        raise Rejected(error.errno) from None


class KafkaPythonAdmin(Admin):
    def __init__(self, admin: Any) -> None:
        self._admin = admin

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        wanted = {topic: {"num_partitions": partitions, "configs": dict(config or {})}}
        _asked(self._admin.create_topics, wanted)

    def delete_topic(self, topic: str) -> None:
        _asked(self._admin.delete_topics, [topic])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partitions(self, topic: str) -> list[int]:
        (described,) = self._admin.describe_topics([topic])
        return sorted(each["partition_index"] for each in described["partitions"])

    def add_partitions(self, topic: str, count: int) -> None:
        _asked(self._admin.create_partitions, {topic: count})

    @staticmethod
    def _resource(kind: str, name: str, *more: Any) -> Any:
        return kafka.admin.ConfigResource(kafka.admin.ConfigResourceType[kind], name, *more)

    def setting(self, topic: str, name: str) -> Any:
        found = self._admin.describe_configs([self._resource("TOPIC", topic)], config_filter="all")
        return found["topic"][topic][name]["value"]

    def alter_setting(self, topic: str, name: str, value: str) -> None:
        _asked(self._admin.alter_configs, [self._resource("TOPIC", topic, {name: value})])

    def reset_setting(self, topic: str, name: str) -> None:
        _asked(self._admin.reset_configs, [self._resource("TOPIC", topic, [name])])

    def broker_setting(self, name: str) -> Any:
        node = str(self._admin.describe_cluster()["brokers"][0]["broker_id"])
        found = self._admin.describe_configs([self._resource("BROKER", node)], config_filter="all")
        return found["broker"][node][name]["value"]

    def groups(self) -> set[str]:
        return {each["group_id"] for each in self._admin.list_groups()}

    def group_state(self, group: str) -> str:
        return str(self._admin.describe_groups([group])[group]["group_state"])

    def group_offset(self, group: str, topic: str, partition: int) -> tuple[int, str]:
        where = kafka.TopicPartition(topic, partition)
        found = self._admin.list_group_offsets({group: [where]})[group][where]
        return found.offset, found.metadata

    def delete_group(self, group: str) -> None:
        outcome = self._admin.delete_groups([group])[group]
        if outcome != "OK":
            raise Rejected(getattr(kafka.errors, outcome).errno)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        where = kafka.TopicPartition(topic, partition)
        return int(self._admin.delete_records({where: before})[where]["low_watermark"])


class AioKafkaAdmin(Admin):
    def __init__(self, admin: Any) -> None:
        self._admin = admin

    @staticmethod
    def _check(code: int) -> None:
        if code != ErrorCode.NONE:
            raise Rejected(code)

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        wanted = aiokafka.admin.NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))
        self._check(_asked(self._admin.create_topics, [wanted]).topic_errors[0][1])

    def delete_topic(self, topic: str) -> None:
        self._check(_asked(self._admin.delete_topics, [topic]).topic_error_codes[0][1])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partitions(self, topic: str) -> list[int]:
        (described,) = self._admin.describe_topics([topic])
        return sorted(each["partition"] for each in described["partitions"])

    def add_partitions(self, topic: str, count: int) -> None:
        wanted = {topic: aiokafka.admin.NewPartitions(count)}
        self._check(_asked(self._admin.create_partitions, wanted).topic_errors[0][1])

    @staticmethod
    def _resource(topic: str, *more: Any) -> Any:
        return aiokafka_resources.ConfigResource(aiokafka_resources.ConfigResourceType.TOPIC, topic, *more)

    def setting(self, topic: str, name: str) -> Any:
        answers = self._admin.describe_configs([self._resource(topic)])
        entries = [entry for answer in answers for resource in answer.resources for entry in resource[4]]
        return {entry[0]: entry[1] for entry in entries}[name]

    def alter_setting(self, topic: str, name: str, value: str) -> None:
        _asked(self._admin.alter_configs, [self._resource(topic, {name: value})])

    def groups(self) -> set[str]:
        return {name for name, _ in self._admin.list_consumer_groups()}

    def group_state(self, group: str) -> str:
        (described,) = self._admin.describe_consumer_groups([group])[0].groups
        return str(described[2])

    def group_offset(self, group: str, topic: str, partition: int) -> tuple[int, str]:
        found = self._admin.list_consumer_group_offsets(group)[aiokafka.TopicPartition(topic, partition)]
        return found.offset, found.metadata

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        where = aiokafka.TopicPartition(topic, partition)
        wanted = {where: aiokafka.admin.RecordsToDelete(before_offset=before)}
        return int(_asked(self._admin.delete_records, wanted)[where])


CONFLUENT, KAFKA_PYTHON, AIOKAFKA = Confluent(), KafkaPython(), AioKafka()
CLIENTS: Final[tuple[Client, ...]] = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)
