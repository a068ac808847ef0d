"""What `Producer` and `AsyncProducer` share: from a record to its batch, from start to close.

Most records go straight into the kernel's lanes (see `Producer.send`); only those that need a new batch come here.
`append` never waits: it returns what is missing (memory, the topic's partitions), and each face waits in its own way.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import ClusterView
from penstock.client.errors import (
    ClosedError,
    ConfigError,
    PenstockError,
    RecordTooLarge,
    SerializationError,
    UnsupportedVersion,
)
from penstock.client.producer.accumulator import (
    Accumulator,
    Blocked,
    PartitionQueue,
    TopicQueues,
    checked,
    partition_of_key,
    record_size,
)
from penstock.client.producer.delivery import Delivery
from penstock.client.producer.direct_sender import DirectSender
from penstock.client.producer.interceptors import EnqueuedRecord, Headers, Interceptors
from penstock.client.producer.producer_batch import FIRST_WITH_BATCHES, OnDelivery, ProducerBatch, ProducerId
from penstock.client.producer.sender import HIGHEST_VERSION, Sender
from penstock.client.producer.settings import ProducerSettings
from penstock.client.producer.transaction_manager import TransactionManager
from penstock.client.serializers.base import Encoder, HeaderEncoder
from penstock.client.settings import Metrics, StatisticsReporter
from penstock.records.kernel import Moment, TopicLanes
from penstock.runtime.clock import SystemClock
from penstock.wire.protocol import ApiKey, ErrorCode

_log = logging.getLogger("penstock.producer")

AnyHeaders = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]
INTERRUPTED_CLOSE_S: Final = 1.0
"""The time that close() gives to waiting records after Ctrl-C."""
NO_HEADERS: Final[Headers] = ()
PLAIN_HEADERS: Final = (list, tuple, dict)  # the kernel accepts these as they are


class ProducerCore:
    """A producer without its public methods. Created anywhere; started and closed on its event loop."""

    def __init__(
        self,
        cluster: ClusterClient,
        settings: ProducerSettings,
        *,
        key: Encoder[Any] | None,
        value: Encoder[Any] | None,
        is_waited_for_by_threads: bool = False,
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.lock = threading.RLock()
        self.moment = Moment()
        self.interceptors = Interceptors(settings.interceptors)
        self.fast: dict[str, TopicLanes[Delivery]] = {}
        """Topics whose records go straight into the kernel's lanes, once they are bytes."""
        reads_this_clock = isinstance(cluster.clock, SystemClock)
        self.compiled: dict[str, TopicLanes[Delivery]] = (
            self.fast if key is None and value is None and reads_this_clock else {}
        )
        """Those that `lanes_first` may append to by itself: it runs no serializer, and stamps with the real time."""
        self.is_closed = False
        self.on_freed: Callable[[], None] = _no_listener
        self._key = key
        self._value = value
        self._adds_headers = isinstance(key, HeaderEncoder) or isinstance(value, HeaderEncoder)
        self.partitioner = settings.partitioner
        self._is_fast = self.partitioner is None and not self.interceptors.sees_records
        self._takes_headers = True
        self.accumulator = Accumulator(
            settings, self.moment, cluster.random, is_numbering=settings.is_idempotent, on_closed=self._batched
        )
        self.transactions: TransactionManager | None = None
        if settings.transactional_id is not None:
            self.transactions = TransactionManager(cluster, settings, self.lock, self)
            self.accumulator.transaction = self.transactions.state
        self._reports = StatisticsReporter(self.metrics, settings.on_statistics, settings.statistics_interval_ms)
        self._sender: Sender | None = None
        self._stop_listening: Callable[[], None] | None = None
        self.direct_sender: DirectSender | None = None
        self._may_drive = (
            is_waited_for_by_threads and settings.required_acks != 0 and not self.interceptors.sees_batches
        )

    # --- start and end, on the loop

    async def start(self) -> None:
        """Find the cluster; raises BootstrapError."""
        await self.cluster.start(timeout_ms=self.settings.start_timeout_ms)
        connection = await self.cluster.to_any()
        version = connection.version_of(ApiKey.PRODUCE, at_most=HIGHEST_VERSION)
        self._takes_headers = version >= FIRST_WITH_BATCHES
        if self.settings.is_idempotent and not (
            self._takes_headers and connection.supports(ApiKey.INIT_PRODUCER_ID, 0)
        ):
            if self.transactions is not None:
                raise UnsupportedVersion(connection.node, "transactions (InitProducerId)", (0, 5), None)
            if self.settings.enable_idempotence:
                raise UnsupportedVersion(connection.node, "idempotent producing (InitProducerId)", (0, 5), None)
            _log.warning(
                "broker is too old for idempotent producing, a retried record may be stored twice: broker=%s",
                connection.node,
            )
            self.accumulator.is_numbering = False
        self._is_fast = self._is_fast and self._takes_headers  # otherwise every record has to be checked for headers
        self._stop_listening = self.cluster.on_change(self._cluster_changed)
        self._sender = Sender(
            self.cluster, self.accumulator, self.lock, self.interceptors, self.cluster.clock, self.cluster.random,
            on_freed=lambda: self.on_freed(), transactions=self.transactions,
        )  # fmt: skip
        self._reports.start()
        if self._may_drive:
            self.direct_sender = self.accumulator.driver = DirectSender(self._sender, self.accumulator, self.lock)

    async def flush(self, timeout_s: float | None) -> bool:
        """Whether everything sent before is acknowledged or has failed in time."""
        batches = self.hurry()
        try:
            async with asyncio.timeout(timeout_s):
                for batch in batches:
                    await batch.ended()
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float | None) -> None:
        """Send what waits, within the time-out, fail the rest, and close everything."""
        self.stop_accepting()
        self._reports.stop()
        if self._sender is not None:
            if self.transactions is not None:
                await self.transactions.close(timeout_s)
            if timeout_s is None or timeout_s > 0:
                await self.flush(timeout_s)
            left = len(self.accumulator.undone())
            if left:
                _log.warning("producer closed before all batches were acknowledged: batches=%d", left)
            if self.direct_sender is not None:
                await self.direct_sender.end()
            await self._sender.end(
                ClosedError("the producer was closed before the record was acknowledged; it may be in the log or not")
            )
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        await self.cluster.close()

    def stop_accepting(self) -> None:
        """Accept no more records. May be called from any thread."""
        with self.lock:
            self.is_closed = True
            self._is_fast = False
            self.close_for_sending()
        self.on_freed()

    def hurry(self, *, is_driven: bool = False) -> list[ProducerBatch]:
        """Make all batches due; returns the unfinished ones. May be called from any thread.

        With `is_driven` the calling thread is about to wait for them, and may send the only one itself.
        """
        with self.lock:
            self.accumulator.make_all_due()
            batches = self.accumulator.undone()
        if batches and not (is_driven and self._is_expected(batches[0])):
            self.wake()
        return batches

    @property
    def has_unfinished(self) -> bool:
        """Whether batches are not acknowledged. Called with the lock held."""
        return bool(self.accumulator.undone())

    def wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    # --- transactions: see `transaction_manager.Batches`

    def open_for_sending(self) -> None:
        """A transaction begins: records may be sent. Called with the lock held."""
        if self._is_fast:
            self.fast.update({name: topic.lanes for name, topic in self.accumulator.topics.items()})

    def close_for_sending(self) -> None:
        """Close all batches; records no longer go straight into the kernel's lanes. Called with the lock held."""
        self.fast.clear()
        for topic in self.accumulator.topics.values():
            for queue in topic.queues:
                self.accumulator.close_open(queue)

    def use(self, producer: ProducerId) -> None:
        """Number the batches of the next transaction under this id and epoch. Called with the lock held."""
        if self._sender is not None:
            self._sender.producer = producer
        for topic in self.accumulator.topics.values():
            for queue in topic.queues:
                queue.sequences.move_to(producer)

    def drop_unsent(self, error: PenstockError) -> None:
        """Fail the batches of an aborted transaction that are not in flight. Called on the loop."""
        if self._sender is not None:
            self._sender.drop_unsent(error)

    def transactional(self) -> TransactionManager:
        """The transactions of this producer; raises ConfigError if it has no transactional_id."""
        if self.transactions is None:
            raise ConfigError(
                "the producer has no transactional_id", hint='Create it with transactional_id="...", unique to it'
            )
        return self.transactions

    def check_sending(self) -> None:
        """Raises if records cannot be sent now: the producer is closed, or not in a transaction."""
        self.check_open()
        if self.transactions is not None:
            self.transactions.check_sending()

    # --- topics

    async def learn_topic(self, topic: str, timeout_ms: int) -> None:
        """Wait until the partitions of a topic are known. Called on the loop."""
        view = await self.cluster.wait_for_topic(topic, timeout_ms=timeout_ms)
        self.cluster.follow([topic])
        with self.lock:
            self._take_in(topic, len(view.partitions), [each.index for each in view.partitions if each.leader >= 0])

    def _cluster_changed(self, old: ClusterView, new: ClusterView) -> None:
        with self.lock:
            for name in list(self.accumulator.topics):
                view = new.topics.get(name)
                if view is not None and view.partitions and view != old.topics.get(name):
                    with_leader = [each.index for each in view.partitions if each.leader >= 0]
                    self._take_in(name, len(view.partitions), with_leader)

    def _take_in(self, name: str, partition_count: int, with_leader: Sequence[int]) -> None:
        topic = self.accumulator.add_topic(name, partition_count, self.lock)
        self.accumulator.set_usable(name, with_leader)
        if self._is_fast and (self.transactions is None or self.transactions.state.may_send):
            self.fast[name] = topic.lanes

    def partitions_of(self, topic: str) -> frozenset[int] | None:
        known = self.accumulator.topics.get(topic)
        return None if known is None else frozenset(range(len(known.queues)))

    def metrics(self) -> Metrics:
        """May be called from any thread."""
        with self.lock:
            return {**self.accumulator.metrics(), "connections": self.cluster.connection_count}

    # --- accepting records, on any thread

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = NO_HEADERS,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery | Blocked:
        """Append a record to a batch of its partition; or return what it has to wait for."""
        with self.lock:
            self.check_sending()
            queues = self.accumulator.topics.get(topic)
            if queues is None:
                return Blocked.NO_TOPIC
            stamp_ms = self.cluster.clock.now_ms() if timestamp_ms is None else timestamp_ms
            queue, is_sticky = self._choose(queues, key, partition)
            delivery = queue.lane.append(value, key, stamp_ms, headers, on_delivery)
            if delivery is None and is_sticky:
                self.accumulator.close_open(queue)
                queue = self.accumulator.stick(queues)
                delivery = queue.lane.append(value, key, stamp_ms, headers, on_delivery)
            if delivery is None:
                self.check_size(topic, record_size(key, value, headers))
                opened = self.accumulator.open(
                    queue, self.cluster.clock.monotonic_ms(), stamp_ms, key, value, headers, on_delivery
                )  # fmt: skip
                if isinstance(opened, Blocked):
                    self.wake()
                    return opened
                delivery = opened
                if self.accumulator.wants_attention and not self._is_expected(queue.open):
                    self.wake()
            if self.interceptors.sees_records:  # with the lock held, so that it comes before the end of the batch
                self.interceptors.enqueued(EnqueuedRecord(topic, queue.partition, key, value, headers, stamp_ms))
        return delivery

    def _is_expected(self, batch: ProducerBatch | None) -> bool:
        """Whether a thread is likely to send the batch directly."""
        return self.direct_sender is not None and batch is not None and self.direct_sender.is_expected(batch)

    def _choose(self, topic: TopicQueues, key: bytes | None, partition: int | None) -> tuple[PartitionQueue, bool]:
        """The partition of a record, and whether any other would do."""
        count = len(topic.queues)
        if partition is not None:
            return topic.queues[checked(partition, count, "the partition", topic.name)], False
        if self.partitioner is not None:
            return topic.queues[self.ask_partitioner(topic.name, key, count)], False
        if key is not None:
            return topic.queues[partition_of_key(key, count)], False
        if topic.lanes.sticky < 0:
            return self.accumulator.stick(topic), True
        return topic.queues[topic.lanes.sticky], True

    def ask_partitioner(self, topic: str, key: bytes | None, partition_count: int) -> int:
        """The choice of the application's partitioner; -1 without one."""
        if self.partitioner is None:
            return -1
        chosen = self.partitioner(topic, key, partition_count)
        return checked(chosen, partition_count, "what the partitioner returned", topic)

    def check_open(self) -> None:
        if self.is_closed:
            raise ClosedError("the producer is closed", hint="Send before close(), or create a new producer")

    def check_size(self, topic: str, size: int) -> None:
        """Raises RecordTooLarge for a record that exceeds max_request_size."""
        if size > self.settings.max_request_size:
            raise RecordTooLarge(
                ErrorCode.MESSAGE_TOO_LARGE,
                where=f"topic {topic}",
                detail=f"a record of about {size} bytes exceeds max_request_size ({self.settings.max_request_size})",
                hint="Send smaller records, or raise max_request_size and the topic's max.message.bytes",
            )

    def _batched(self, batch: ProducerBatch) -> None:
        if self.interceptors.sees_batches:
            self.interceptors.batched(batch.info(self.cluster.clock.monotonic_ms()))

    # --- serializing

    def encode(
        self, topic: str, key: Any, value: Any, headers: AnyHeaders | None
    ) -> tuple[bytes | None, bytes | None, AnyHeaders | None]:
        """Key and value as bytes, and the headers with those that serializers add to them."""
        if not self._adds_headers:
            return self.encode_key(topic, key), self.encode_value(topic, value), headers
        added: list[tuple[str, bytes]] = []
        if isinstance(self._key, HeaderEncoder):
            key, more = self._key.encode_with_headers(topic, key)
            added += more
        else:
            key = self.encode_key(topic, key)
        if isinstance(self._value, HeaderEncoder):
            value, more = self._value.encode_with_headers(topic, value)
            added += more
        else:
            value = self.encode_value(topic, value)
        return key, value, [*self.encode_headers(headers), *added] if added else headers

    def encode_value(self, topic: str, value: Any) -> bytes | None:
        if self._value is not None:
            return self._value.encode(topic, value)
        return plain_bytes(value, topic, "value")

    def encode_key(self, topic: str, key: Any) -> bytes | None:
        if self._key is not None:
            return None if key is None else self._key.encode(topic, key)
        return plain_bytes(key, topic, "key")

    @property
    def is_plain(self) -> bool:
        """Whether values are bytes or text, without a serializer."""
        return self._value is None

    @property
    def is_record_wise(self) -> bool:
        """Whether a partitioner or an interceptor has to see each record, or a serializer adds headers to it."""
        return self.partitioner is not None or self.interceptors.sees_records or self._adds_headers

    def check_headers(self) -> None:
        if not self._takes_headers:
            raise SerializationError("the broker is too old for headers", hint="Headers need Kafka 0.11 or newer")

    def encode_headers(self, headers: AnyHeaders | None) -> Headers:
        """Headers as pairs of text and bytes."""
        if not headers:
            return NO_HEADERS
        self.check_headers()
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        return [(name, content.encode() if isinstance(content, str) else content) for name, content in pairs]


def plain_bytes(data: Any, topic: str, what: str) -> bytes | None:
    """Bytes as they are, text as UTF-8."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise SerializationError(
                f"the {what} for topic {topic} is not text: {error}", topic=topic, field=what
            ) from None
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise SerializationError(
        f"the {what} for topic {topic} is a {type(data).__name__}, not bytes or str",
        topic=topic,
        field=what,
        hint=f"Serialize it first, or give the producer a serializer: {what}=Json()",
    )


def _no_listener() -> None:
    """The default of `on_freed`."""
