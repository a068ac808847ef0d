"""A consumer that shares partitions through ZooKeeper, as consumers of Kafka 0.8 and 0.9 do, in one group with them.

    with ZooKeeperConsumer("views", streams=2, zookeeper_connect="zk1:2181", group_id="feed") as streams:
        threads = [Thread(target=work, args=(stream,)) for stream in streams]

A consumer registers, watches the members of its group, the brokers and its topics, and rebalances itself whenever one
of them changes (`zookeeper_registry` decides who owns what). It first stops reading what it must give up, commits, and
releases it; then it claims what it gets, by an ephemeral node for each partition, and reads it from the committed
offset. A claim that another member still holds is tried again when that node goes, and after `rebalance_backoff_ms`.
What stays is read on without an interruption.

If the session is lost, or ZooKeeper was unreachable for as long as a session lasts, others own the partitions: reading
stops without a commit, and the consumer registers again. Offsets are not fenced in ZooKeeper, so delivery is at least
once. Use `Consumer`, whose groups are coordinated by brokers, unless you share a group with old consumers.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, Unpack, get_args, overload

from penstock.client.addresses import Addresses, ZooKeeperAddress, parse_bootstrap
from penstock.client.background import Background
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.core import ConsumerCore
from penstock.client.consumer.message_streams import MessageStream
from penstock.client.consumer.reader import K, V
from penstock.client.consumer.settings import ConsumerOptions
from penstock.client.consumer.zookeeper_registry import (
    BROKER_IDS,
    TOPICS,
    GroupPaths,
    PartitionOrder,
    Registry,
    RegistryError,
    Subscription,
    assign,
    check_node_name,
    decode_partitions,
    decode_registration,
    encode_registration,
    rebalance,
    subscribe,
    thread_id,
    topics_of,
)
from penstock.client.errors import ConfigError, PenstockError, TimedOut
from penstock.client.offset_stores.zookeeper import ZooKeeperOffsetStore
from penstock.client.serializers.base import AnyDecoder
from penstock.client.zookeeper import SESSION_TIMEOUT_MS, kazoo, new_client, start_client
from penstock.runtime.clock import SystemClock

OffsetsStorage = Literal["zookeeper", "kafka"]

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 30.0
_JOIN_S: Final = 0.1
_EXIT_TIMEOUT_S: Final = 3.0
_NOT_FOR_GROUPS_HERE: Final = ("group_instance_id", "partition_assignment_strategy", "exactly_once")


class ZooKeeperConsumer(Generic[K, V]):
    """`streams` iterators over topics given by name, by `pattern` (white-list) or by `exclude` (black-list).

    `streams` may be a number for each topic: stream n then reads the topics that have more than n. One thread iterates
    a stream; `commit` and `close` may come from any thread.
    """

    @overload
    def __init__(
        self: ZooKeeperConsumer[bytes, bytes],
        *topics: str,
        zookeeper_connect: str,
        streams: int | Mapping[str, int] = ...,
        pattern: str | None = ...,
        exclude: str | None = ...,
        consumer_id: str | None = ...,
        offsets_storage: OffsetsStorage = ...,
        partition_order: PartitionOrder = ...,
        zookeeper_session_timeout_ms: int = ...,
        rebalance_backoff_ms: int = ...,
        rebalance_patience_ms: int = ...,
        timeout_ms: int | None = ...,
        bootstrap_servers: Addresses | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *topics: str,
        zookeeper_connect: str,
        streams: int | Mapping[str, int] = ...,
        pattern: str | None = ...,
        exclude: str | None = ...,
        consumer_id: str | None = ...,
        offsets_storage: OffsetsStorage = ...,
        partition_order: PartitionOrder = ...,
        zookeeper_session_timeout_ms: int = ...,
        rebalance_backoff_ms: int = ...,
        rebalance_patience_ms: int = ...,
        timeout_ms: int | None = ...,
        bootstrap_servers: Addresses | None = ...,
        key: AnyDecoder[K] | None = ...,
        value: AnyDecoder[V] | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    def __init__(
        self,
        *topics: str,
        zookeeper_connect: str,
        streams: int | Mapping[str, int] = 1,
        pattern: str | None = None,
        exclude: str | None = None,
        consumer_id: str | None = None,
        offsets_storage: OffsetsStorage = "zookeeper",
        partition_order: PartitionOrder = "number",
        zookeeper_session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_backoff_ms: int = 2_000,
        rebalance_patience_ms: int = 1_000,
        timeout_ms: int | None = None,
        bootstrap_servers: Addresses | None = None,
        key: AnyDecoder[Any] | None = None,
        value: AnyDecoder[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Register and take part in the group; the other options are those of `Consumer`, and `group_id` is required.

        `zookeeper_connect` is like "zk1:2181,zk2:2181/chroot". Brokers are found there, unless `bootstrap_servers` are
        given. `rebalance_patience_ms` bounds how long a rebalance waits for streams to finish the record in hand.
        `partition_order="broker"` keeps partitions of a broker together; all members of the group must have the same.
        Raises BootstrapError if ZooKeeper or the brokers cannot be reached, ConfigError for an invalid option.
        """
        group = options.get("group_id")
        subscription = subscribe(topics, streams, pattern, exclude)
        _check_options(group, options, (rebalance_backoff_ms, zookeeper_session_timeout_ms))
        _check_choice("offsets_storage", offsets_storage, get_args(OffsetsStorage))
        _check_choice("partition_order", partition_order, get_args(PartitionOrder))
        where = parse_bootstrap(f"zookeeper://{zookeeper_connect.removeprefix('zookeeper://')}")
        if group is None or not isinstance(where, ZooKeeperAddress):
            raise ConfigError("ZooKeeperConsumer needs a group_id", hint="Its members share the partitions")
        self.consumer_id = f"{group}_{consumer_id or _new_consumer_id()}"
        check_node_name("consumer", self.consumer_id)
        options["consumer_timeout_ms"] = timeout_ms
        self._client = new_client(where, zookeeper_session_timeout_ms)
        start_client(self._client, where, options.get("connect_timeout_ms") or zookeeper_session_timeout_ms)
        self._streams: list[MessageStream[K, V]] = []
        self._member: _Member | None = None
        if offsets_storage == "zookeeper" and options.get("offset_store") is None:
            options["offset_store"] = ZooKeeperOffsetStore(str(where), client=self._client)
        try:
            for _ in range(subscription.stream_count):
                consumer: Consumer[K, V] = Consumer(
                    bootstrap_servers=str(where) if bootstrap_servers is None else bootstrap_servers,
                    key=key, value=value, **options,
                )  # fmt: skip
                self._streams.append(MessageStream(consumer))
            cores = [stream.consumer._core for stream in self._streams]
            self._member = _Member(
                self._client, GroupPaths(group), self.consumer_id, subscription, partition_order, cores,
                session_timeout_s=zookeeper_session_timeout_ms / 1000, backoff_s=rebalance_backoff_ms / 1000,
                patience_s=rebalance_patience_ms / 1000,
            )  # fmt: skip
            self._member.start()
            _open.add(self)
        except BaseException:
            self.close(autocommit=False)
            raise

    def __iter__(self) -> Iterator[MessageStream[K, V]]:
        return iter(self._streams)

    def __getitem__(self, number: int) -> MessageStream[K, V]:
        return self._streams[number]

    def __len__(self) -> int:
        return len(self._streams)

    def assignment(self) -> dict[TopicPartition, int]:
        """The partitions that this consumer owns, and the number of the stream that reads each."""
        return {} if self._member is None else dict(self._member.owned)

    def wait_for_assignment(self, timeout: float = 60.0) -> dict[TopicPartition, int]:
        """Wait until the consumer has claimed its share, which may be empty; returns what it owns. Raises TimedOut."""
        if self._member is None or not self._member.settled.wait(timeout):
            raise TimedOut(
                f"{self.consumer_id} has not claimed its partitions within {timeout:g} s",
                hint="Another member may still own them, or sort them by another partition_order: look at "
                "/consumers/<group>/owners in ZooKeeper",
            )
        return self.assignment()

    def commit(self) -> None:
        """Commit what all streams have handed out so far, including the records in hand."""
        for stream in self._streams:
            stream.consumer.commit()

    def close(self, timeout: float = _CLOSE_TIMEOUT_S, *, autocommit: bool = True) -> None:
        """End all iterations, commit (if enable_auto_commit), release the partitions and leave the group. Calling it
        twice is allowed."""
        client, self._client = self._client, None
        if client is None:
            return
        _open.discard(self)
        member = self._member
        if member is not None:
            member.stop()
        for stream in self._streams:
            stream.consumer.close(timeout, autocommit=autocommit)
        if member is not None:
            member.leave()
        client.stop()
        client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(autocommit=kind is None)

    def __repr__(self) -> str:
        return f"<ZooKeeperConsumer {self.consumer_id}, {len(self.assignment())} partitions>"


_open: weakref.WeakSet[ZooKeeperConsumer[Any, Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The interpreter ends: release the partitions, so that others need not wait for the session to expire."""
    for consumer in list(_open):
        consumer.close(_EXIT_TIMEOUT_S, autocommit=False)


def _check_options(group: str | None, options: ConsumerOptions, positive: Sequence[object]) -> None:
    if not group:
        raise ConfigError("ZooKeeperConsumer needs a group_id", hint="Its members share the partitions of a group")
    check_node_name("group", group)
    for name in _NOT_FOR_GROUPS_HERE:
        if options.get(name):
            raise ConfigError(f"{name} is not for groups in ZooKeeper", hint="Use Consumer, or leave it out")
    if not all(isinstance(each, int) and each >= 1 for each in positive):
        raise ConfigError(f"rebalance_backoff_ms and zookeeper_session_timeout_ms are {positive}", hint="1 or more")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}", hint=f"It is {' or '.join(map(repr, choices))}")


def _new_consumer_id() -> str:
    """A consumer id as Kafka makes it: host, time, part of a UUID."""
    return f"{socket.gethostname()}-{SystemClock().now_ms()}-{uuid.uuid4().hex[:8]}"


# --------------------------------------------------------------------------------------------------- membership


class _Member:
    """The member of a group. Its thread rebalances when a watch, the session or a back-off wakes it."""

    def __init__(
        self,
        client: Any,
        paths: GroupPaths,
        consumer: str,
        subscription: Subscription,
        partition_order: PartitionOrder,
        streams: Sequence[ConsumerCore],
        *,
        session_timeout_s: float,
        backoff_s: float,
        patience_s: float,
    ) -> None:
        self._client = client
        self._paths = paths
        self._consumer = consumer
        self._subscription = subscription
        self._partition_order = partition_order
        self._streams = streams
        self._session_timeout_s = session_timeout_s
        self._backoff_s = backoff_s
        self._patience_s = patience_s
        self._errors = kazoo("exceptions")
        self._states = kazoo("protocol.states")
        self._background = Background.acquire()
        self.owned: dict[TopicPartition, int] = {}
        self.settled = threading.Event()
        """Whether everything that is this member's share is claimed."""
        self._attempted: set[TopicPartition] = set()  # claims of which the outcome is not known
        self._session = 0  # in which it is registered
        self._unconnected_s: float | None = None
        self._is_expired = False
        self._unreadable: set[str] = set()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"zookeeper-{consumer}", daemon=True)

    def start(self) -> None:
        """Register, so that an error is the caller's, and begin to rebalance."""
        self._client.add_listener(self._state_changed)
        self._register()
        self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop rebalancing; it keeps the partitions that it owns."""
        self._client.remove_listener(self._state_changed)
        self._is_stopping = True
        self._wake.set()
        waited_s = 0.0
        while self._thread.is_alive():
            self._thread.join(_JOIN_S)
            waited_s += 0.0 if self._client.connected else _JOIN_S
            if waited_s > self._session_timeout_s:
                self._client.stop()  # ends the request that it waits for

    def leave(self) -> None:
        """Release everything, and unregister."""
        try:
            if self._client.connected:
                self._delete_owners({*self.owned, *self._attempted})
                with suppress(self._errors.NoNodeError):
                    self._client.delete(self._paths.consumer(self._consumer))
        except (self._errors.KazooException, kazoo("handlers.threading").KazooTimeoutError) as error:
            _log.info("the session ends later: consumer=%s error=%s", self._consumer, error)
        finally:
            self.owned = {}
            self._background.release()

    # ------------------------------------------------------------------------------------------ events

    def _state_changed(self, state: str) -> None:
        """Called by kazoo, which waits for it."""
        if state == self._states.KazooState.CONNECTED:
            self._unconnected_s = None
        elif self._unconnected_s is None:
            self._unconnected_s = time.monotonic()
        if state == self._states.KazooState.LOST:
            self._is_expired = True
        self._wake.set()

    def _notice(self, event: Any) -> None:
        if event.type != self._states.EventType.NONE:  # that is the end of the connection
            self._wake.set()

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        failures = (self._errors.KazooException, kazoo("handlers.threading").KazooTimeoutError, PenstockError)
        wait_s: float | None = None
        while True:
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._is_stopping:
                return
            try:
                wait_s = self._step()
            except failures as error:
                if not self._is_stopping:
                    _log.warning("rebalance failed, retrying: consumer=%s error=%r", self._consumer, error)
                wait_s = self._backoff_s
            except Exception as error:  # noqa: BLE001 - the thread must not end silently
                _log.exception("rebalance failed: consumer=%s", self._consumer)
                self._report(error)
                wait_s = self._backoff_s

    def _report(self, error: BaseException) -> None:
        failure = PenstockError(f"{self._consumer} cannot rebalance: {error!r}")
        for core in self._streams:
            self._background.call(core.queue.fail, failure)

    def _step(self) -> float | None:
        """Come nearer to this member's share. Returns when to try again, None if an event will tell."""
        since_s = self._unconnected_s
        is_over = since_s is not None and time.monotonic() - since_s >= self._session_timeout_s
        if self._is_expired or is_over:
            self._is_expired = False
            self._lose_everything()
        if not self._client.connected:
            self.settled.clear()
            if since_s is None or is_over:
                return None
            return since_s + self._session_timeout_s - time.monotonic() + 0.01
        if self._session != self._current_session():
            self._lose_everything()
            self._register()
        registry = self._read()
        if not registry.has_brokers:
            return None
        if self._consumer not in registry.members:  # another client has deleted it
            self._register()
            registry = self._read()
        wanted = assign(registry, self._consumer)
        plan = rebalance(self.owned, wanted)
        if plan.release or plan.claim:
            self.settled.clear()
        self._release(plan.release, {each for each in self._attempted if each not in wanted})
        missing = self._claim(plan.claim)
        if missing:
            _log.info("partitions are still owned by others: consumer=%s partitions=%s", self._consumer, missing)
            return self._backoff_s
        self.settled.set()
        return None

    def _current_session(self) -> int:
        client_id = self._client.client_id
        return 0 if client_id is None else int(client_id[0])

    def _register(self) -> None:
        """Create the ephemeral node of this member; one of its previous session goes within a session timeout."""
        path = self._paths.consumer(self._consumer)
        data = encode_registration(self._subscription, SystemClock().now_ms())
        deadline_s = time.monotonic() + 3 * self._session_timeout_s
        while True:
            session = self._current_session()
            try:
                self._client.create(path, data, ephemeral=True, makepath=True)
            except self._errors.NodeExistsError:
                stat = self._client.exists(path)
                if stat is not None and stat.ephemeralOwner != session:
                    if time.monotonic() > deadline_s:
                        raise ConfigError(
                            f"consumer id {self._consumer} is in use in group {self._paths.group}",
                            hint="Give each consumer of a group its own consumer_id, or none",
                        ) from None
                    time.sleep(min(0.1, self._session_timeout_s / 10))
                    continue
            self._session = session
            return

    # ------------------------------------------------------------------------------------------ reading

    def _read(self) -> Registry:
        """Everything that the decision depends on, with watches that report the next change of it."""
        members = self._members()
        has_filters = any(each.kind != "static" for each in members.values())
        topics = frozenset(self._children(TOPICS)) if has_filters else frozenset()
        has_brokers = bool(self._children(BROKER_IDS))
        own = list(topics_of(members, self._consumer, topics))
        partitions: dict[str, Sequence[int]] = {}
        for name, data in zip(own, self._data([f"{TOPICS}/{name}" for name in own], is_watched=True), strict=True):
            if data is None:
                self._client.exists(f"{TOPICS}/{name}", watch=self._notice)
                continue
            try:
                partitions[name] = decode_partitions(data, self._partition_order)
            except RegistryError as error:
                self._complain(f"{TOPICS}/{name}", error)
        return Registry(members, topics, partitions, has_brokers)

    def _members(self) -> dict[str, Subscription]:
        names = self._children(self._paths.ids)
        found: dict[str, Subscription] = {}
        for name, data in zip(names, self._data([self._paths.consumer(name) for name in names]), strict=True):
            if data is not None:
                try:
                    found[name] = decode_registration(data)
                except RegistryError as error:
                    self._complain(self._paths.consumer(name), error)
        return found

    def _complain(self, path: str, error: RegistryError) -> None:
        if path not in self._unreadable:
            self._unreadable.add(path)
            _log.warning("node ignored: path=%s reason=%s", path, error)

    def _children(self, path: str) -> list[str]:
        while True:
            try:
                found: list[str] = self._client.get_children(path, watch=self._notice)
                return found
            except self._errors.NoNodeError:
                if self._client.exists(path, watch=self._notice) is None:
                    return []

    def _data(self, paths: Sequence[str], *, is_watched: bool = False) -> list[bytes | None]:
        """All requests are sent before the first answer is awaited."""
        watch = self._notice if is_watched else None
        answers = [self._client.get_async(path, watch=watch) for path in paths]
        found: list[bytes | None] = []
        for answer in answers:
            try:
                found.append(answer.get(timeout=_ANSWER_TIMEOUT_S)[0])
            except self._errors.NoNodeError:
                found.append(None)
        return found

    # ------------------------------------------------------------------------------------------ owners

    def _lose_everything(self) -> None:
        """Stop reading without a commit: others may own the partitions."""
        owned, self.owned = self.owned, {}
        self._attempted.clear()
        self._session = 0
        self.settled.clear()
        if owned:
            _log.warning("partitions lost with the session: consumer=%s partitions=%d", self._consumer, len(owned))
            self._disown(owned, is_lost=True)

    def _release(self, released: Mapping[TopicPartition, int], abandoned: Iterable[TopicPartition]) -> None:
        """Stop reading and commit, then delete the nodes, so that the next owner finds the offsets."""
        self._disown(released, is_lost=False)
        self._delete_owners({*released, *abandoned})
        for partition in released:
            self.owned.pop(partition, None)
        self._attempted.difference_update(abandoned)

    def _disown(self, released: Mapping[TopicPartition, int], *, is_lost: bool) -> None:
        async def all_streams() -> None:
            await asyncio.gather(
                *(
                    core.disown(
                        [each for each, stream in released.items() if stream == number],
                        patience_s=0.0 if is_lost else self._patience_s,
                        lost=is_lost,
                    )
                    for number, core in enumerate(self._streams)
                )
            )

        if released:
            self._background.run(all_streams())

    def _delete_owners(self, partitions: Iterable[TopicPartition]) -> None:
        session = self._current_session()
        asked = [(path, self._client.exists_async(path)) for path in map(self._paths.owner, sorted(partitions))]
        stats = [(path, answer.get(timeout=_ANSWER_TIMEOUT_S)) for path, answer in asked]
        own = [path for path, stat in stats if stat is not None and stat.ephemeralOwner == session]
        for answer in [self._client.delete_async(path) for path in own]:
            with suppress(self._errors.NoNodeError):
                answer.get(timeout=_ANSWER_TIMEOUT_S)

    def _claim(self, wanted: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Claim and read what is free; returns the rest, whose nodes are watched."""
        if not wanted:
            return []
        for topic in {partition.topic for partition in wanted}:
            self._client.ensure_path(self._paths.owners(topic))
        self._attempted.update(wanted)
        answers = [
            (partition, self._owner_data(number), self._create_owner(partition, number))
            for partition, number in sorted(wanted.items())
        ]
        missing: list[TopicPartition] = []
        for partition, data, answer in answers:
            try:
                answer.get(timeout=_ANSWER_TIMEOUT_S)
            except self._errors.NodeExistsError:
                if not self._is_own(partition, data):
                    missing.append(partition)
        self._attempted.difference_update(wanted)
        claimed = {partition: number for partition, number in wanted.items() if partition not in missing}
        if claimed:
            self.owned = {**self.owned, **claimed}
            self._background.run(self._own(frozenset(claimed.values())))
        return missing

    def _owner_data(self, number: int) -> bytes:
        return thread_id(self._consumer, number).encode()

    def _create_owner(self, partition: TopicPartition, number: int) -> Any:
        return self._client.create_async(self._paths.owner(partition), self._owner_data(number), ephemeral=True)

    def _is_own(self, partition: TopicPartition, data: bytes) -> bool:
        """Whether the existing node is that of a claim whose answer was lost."""
        path = self._paths.owner(partition)
        stat = self._client.exists(path, watch=self._notice)
        if stat is None:
            self._wake.set()  # it went meanwhile: try again at once
            return False
        if stat.ephemeralOwner != self._current_session():
            return False
        self._client.set(path, data)
        return True

    async def _own(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            await self._streams[number].own(each for each, stream in self.owned.items() if stream == number)
