"""A client's access to a cluster: bootstrap, metadata, connections to leaders and coordinators.

Bootstrap: all addresses are tried in random order, staggered by 250 ms; the first that answers as a broker wins. At
least one advertised address must be reachable too, since all work goes there. With a zookeeper:// address the brokers'
registrations are read; brokers and topics are watched there, and metadata is refreshed when they change. If no known
node can be reached, the bootstrap addresses are tried again.

`view` is refreshed by age and whenever a response shows that it is stale. Any node can be asked, the least busy
first. While a node leaves requests unanswered (`overdue`), the others are asked for its partitions' leaders, twice a
second at first, and listeners of `on_overdue` can send their requests there. Coordinators are cached until a response
says otherwise, and have a lane of their own, since a JoinGroup may take minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, NoReturn, Unpack

from penstock.client.addresses import Address, Addresses, ZooKeeperAddress, parse_bootstrap
from penstock.client.cluster_metadata import ClusterView, Node, TopicView
from penstock.client.connection import Connection
from penstock.client.connection_pool import (
    HINTS,
    ConnectionKey,
    ConnectionOptions,
    ConnectionPool,
    UnusableAddress,
    first_of,
    open_connection,
    run_in_daemon_thread,
    shared,
)
from penstock.client.errors import (
    Attempt,
    AuthenticationFailed,
    BootstrapError,
    Cause,
    ClosedError,
    NotConnected,
    PenstockError,
    TimedOut,
    UnknownBroker,
    UnsupportedVersion,
    error_for,
)
from penstock.client.metadata_updater import MetadataUpdater, ask_metadata
from penstock.client.settings import ClientOptions, ClientSettings, settings_from
from penstock.client.zookeeper import RegistryWatcher, broker_addresses
from penstock.runtime.backoff import Backoff
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.randomness import Random, SystemRandom
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.schemas.metadata import MetadataResponse

Kind = Literal["group", "transaction"]
Change = Callable[[ClusterView, ClusterView], None]
STAGGER_MS = 250

_log = logging.getLogger(__name__)
_MAIN_LANE = ""
_OVERDUE_FOR_MS = 3_000.0  # after a call of on_silence; longer than to the next one
_START_HINT = "Raise the time-out, or check what listens at the bootstrap addresses: " + HINTS[Cause.CONNECT_TIMEOUT]
_HEARD_BY_BROKERS_S: Final = 1.0
_KEY_TYPES: Final[dict[Kind, int]] = {"group": 0, "transaction": 1}
_FIRST_WITH_TYPES: Final = 1
_FIRST_WITH_MANY: Final = 4


class ClusterClient:
    """Used on one event loop. `start` before anything else, `close` at the end; both may be called twice."""

    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        settings: ClientSettings | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        settings = settings or settings_from(ClientSettings, options, "a client")
        self.bootstrap = parse_bootstrap(bootstrap_servers)
        self.client_id = settings.client_id
        self.request_timeout_ms = settings.request_timeout_ms
        self.clock = clock or SystemClock()
        self.random = random or SystemRandom()
        self.retry_backoff_ms = max(1, settings.retry_backoff_ms)
        self._retry_backoff_max_ms = max(1, settings.retry_backoff_max_ms)
        self.view = ClusterView()
        context, login = settings.security()
        self._options = ConnectionOptions(
            settings.client_id, settings.connect_timeout_ms, settings.request_timeout_ms, context, login
        )
        self._pool = ConnectionPool(
            self._options, self.clock, self.random, self.retry_backoff_ms, self._retry_backoff_max_ms
        )
        self._updater = MetadataUpdater(self, settings.metadata_max_age_ms)
        self._coordinators = CoordinatorLookup(self)
        self._listeners: list[Change] = []
        self._overdue_until_ms: dict[int, float] = {}
        self._overdue_listeners: list[Callable[[int], None]] = []
        self._pool.on_silence = self.overdue
        self._seed_address: Address | None = None
        self._bootstrapping: asyncio.Task[None] | None = None
        self._registry: RegistryWatcher | None = None
        self._started = False
        self.closed = False

    # ------------------------------------------------------------------------------------------ start and end

    async def start(self, *, timeout_ms: int | None = None) -> None:
        """Find the cluster. Every address is tried once, or with `timeout_ms` repeatedly until then.

        Raises BootstrapError. A client that could not start may be started again.
        """
        self._check_open()
        if self._started:
            return
        backoff = self.new_backoff()
        begun_ms = self.clock.monotonic_ms()
        failure: BootstrapError | None = None
        while True:
            try:
                async with asyncio.timeout(None if timeout_ms is None else self._left_s(begun_ms, timeout_ms)):
                    await self._bootstrap_again()
                break
            except TimeoutError as error:
                if isinstance(error, PenstockError):
                    raise
                if failure is not None:
                    raise failure from None  # it says more than the attempt that the deadline cut short
                raise TimedOut(f"no broker was found within {timeout_ms} ms", hint=_START_HINT) from None
            except BootstrapError as error:
                failure = error
                wait_ms = backoff.failed(self.clock.monotonic_ms())
                left_s = 0.0 if timeout_ms is None else self._left_s(begun_ms, timeout_ms)
                if not error.retriable or left_s * 1000 <= wait_ms:
                    raise
                await asyncio.sleep(wait_ms / 1000)
        self._started = True
        self._updater.start()
        if isinstance(self.bootstrap, ZooKeeperAddress):
            self._watch_registry(self.bootstrap)

    def _watch_registry(self, where: ZooKeeperAddress) -> None:
        loop = asyncio.get_running_loop()

        def on_change() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._registry_changed)

        self._registry = RegistryWatcher(where, on_change)
        self._registry.watch_topics(self._updater.followed)
        self._registry.start()

    def _registry_changed(self) -> None:
        """Brokers hear of a change from their controller, perhaps later than this client, which asks twice."""
        self.refresh_soon()
        asyncio.get_running_loop().call_later(_HEARD_BY_BROKERS_S, self.refresh_soon)

    def _left_s(self, begun_ms: float, timeout_ms: float) -> float:
        return max(0.0, begun_ms + timeout_ms - self.clock.monotonic_ms()) / 1000

    async def close(self) -> None:
        """Close all connections; pending calls raise ClosedError or NotConnected. It may be called twice."""
        self.closed = True
        tasks = [*self._updater.end(), *self._coordinators.end()]
        if self._bootstrapping is not None:
            self._bootstrapping.cancel()
            tasks.append(self._bootstrapping)
        if tasks:
            await asyncio.wait(tasks)
        if self._registry is not None:
            registry, self._registry = self._registry, None
            await run_in_daemon_thread(registry.close, "penstock-zookeeper")
        await self._pool.close()

    async def __aenter__(self) -> ClusterClient:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the client is closed")

    def new_backoff(self) -> Backoff:
        """A backoff for a retry loop of a caller."""
        return Backoff(self.retry_backoff_ms, self._retry_backoff_max_ms, self.random)

    # ------------------------------------------------------------------------------------------ what is known

    def follow(self, topics: Iterable[str]) -> None:
        """Keep these topics in the view, and fresh."""
        self._updater.follow(topics)
        if self._registry is not None:
            self._registry.watch_topics(self._updater.followed)

    def unfollow(self, topics: Iterable[str]) -> None:
        self._updater.unfollow(topics)

    def follow_all(self) -> None:
        """Keep all topics of the cluster in the view."""
        self._updater.follow_all()

    def on_change(self, callback: Change) -> Callable[[], None]:
        """Call a function with the old and the new view on every change. Returns a function that stops it."""
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    def on_overdue(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Call a function, repeatedly, with the id of a node that leaves requests unanswered. Returns a function that
        stops it."""
        self._overdue_listeners.append(callback)

        def stop() -> None:
            if callback in self._overdue_listeners:
                self._overdue_listeners.remove(callback)

        return stop

    def overdue(self, node_id: int) -> None:
        """A request to this node is overdue: find out whether others lead its partitions by now."""
        if self.closed or not self._started:
            return
        self._overdue_until_ms[node_id] = self.clock.monotonic_ms() + _OVERDUE_FOR_MS
        if len(self.view.nodes) > 1:
            self.refresh_soon()
        for listener in list(self._overdue_listeners):
            listener(node_id)

    def _is_overdue(self, node_id: int) -> bool:
        until_ms = self._overdue_until_ms.get(node_id)
        if until_ms is None:
            return False
        if until_ms < self.clock.monotonic_ms():
            del self._overdue_until_ms[node_id]
            return False
        return True

    async def refresh(self, topics: Iterable[str] | None = None, *, create: bool = False) -> ClusterView:
        """Request metadata of the followed topics and of these; with `create`, brokers may create missing topics.

        Raises the last failure when request_timeout_ms are over.
        """
        self._check_open()
        return await self._updater.refresh(topics, create=create)

    def refresh_soon(self) -> None:
        """Request metadata without waiting for it, after a response showed that the view is stale. At most as often as
        the backoff allows."""
        if not self.closed:
            self._updater.refresh_soon()

    async def wait_for_topic(self, topic: str, *, timeout_ms: int, create: bool = True) -> TopicView:
        """The topic, once it exists and one of its partitions has a leader; raises UnknownTopic, TimedOut..."""
        begun_ms = self.clock.monotonic_ms()
        backoff = self.new_backoff()
        while True:
            view = self.view.topics.get(topic)
            if view is not None and not view.error and any(item.leader >= 0 for item in view.partitions):
                return view
            left_s = self._left_s(begun_ms, timeout_ms)
            if left_s <= 0 or (view is not None and view.error and not view.error.retriable):
                self._not_there(topic, view, timeout_ms)
            if backoff.failures:
                await asyncio.sleep(min(left_s, backoff.remaining_ms(self.clock.monotonic_ms()) / 1000))
            try:
                async with asyncio.timeout(max(left_s, 0.001)):
                    await self.refresh([topic], create=create)
            except PenstockError as error:
                # A request that times out does not end the wait before its own time-out.
                if not error.retriable or self._left_s(begun_ms, timeout_ms) <= 0:
                    raise
            except TimeoutError:
                pass  # the next round raises
            backoff.failed(self.clock.monotonic_ms())

    def _not_there(self, topic: str, view: TopicView | None, timeout_ms: int) -> NoReturn:
        if view is not None and view.error:
            raise error_for(view.error, where=f"topic {topic}")
        if view is not None and view.partitions:
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, where=f"topic {topic}")
        raise TimedOut(f"no metadata of topic {topic} within {timeout_ms} ms")

    def learnt(self, response: MetadataResponse, *, complete: bool) -> None:
        """Apply a Metadata response and notify the listeners."""
        keep = None if complete else self._updater.keeps
        self._change(self.view.merge(response, complete=complete, keep=keep))
        addresses = {node.id: Address(node.host, node.port) for node in self.view.nodes.values()}
        self._pool.keep_only(addresses)

    def update_leader(self, topic: str, partition: int, leader: int, leader_epoch: int) -> None:
        """Apply the current leader that a Produce or Fetch response names."""
        self._change(self.view.with_leader(topic, partition, leader, leader_epoch))

    def _change(self, new: ClusterView) -> None:
        old = self.view
        if new == old:
            return
        self.view = new
        for listener in list(self._listeners):
            try:
                listener(old, new)
            except Exception:  # noqa: BLE001 - the other listeners must be called, too
                _log.exception("a listener for cluster changes failed")

    # ------------------------------------------------------------------------------------------ connections

    async def to(self, node_id: int, *, lane: str = _MAIN_LANE) -> Connection:
        """The connection to a node, opened if necessary; raises NotConnected.

        Requests of one lane wait behind each other: give long polls a lane of their own.
        """
        self._check_open()
        node = self.view.nodes.get(node_id)
        if node is None:
            await self.refresh()
            node = self.view.nodes.get(node_id)
            if node is None:
                raise UnknownBroker(node_id)
        return await self.to_node(node, lane)

    async def to_node(self, node: Node, lane: str) -> Connection:
        """`to` for a node that is not known from metadata, such as a coordinator."""
        try:
            return await self._pool.get(ConnectionKey(node.id, lane), Address(node.host, node.port))
        except UnusableAddress as error:
            hint = f"{error.hint}. " if error.hint else ""
            raise UnusableAddress(
                str(node),
                error.cause,
                error.reason,
                f"{hint}The broker advertises this address, according to {self._seed_address}; if it is not one "
                "for clients, set advertised.listeners of the broker",
            ) from error

    async def to_any(self) -> Connection:
        """A connection to the least busy node; raises BootstrapError if neither a known node nor a bootstrap address
        can be reached."""
        self._check_open()
        for tries_left in (1, 0):
            connections = {key.node_id: connection for key, connection in self._pool.connections(_MAIN_LANE)}
            answering = [connection for node, connection in connections.items() if not self._is_overdue(node)]
            if answering:
                return min(answering, key=lambda connection: connection.in_flight)
            # Nodes that have just failed are not waited for: the bootstrap addresses may lead to others.
            nodes = [each for each in self.view.nodes.values() if not self._waits(each)]
            outcome = await self._reach_any([each for each in nodes if not self._is_overdue(each.id)])
            if isinstance(outcome, Connection):
                return outcome
            silent = [connection for connection in connections.values() if not connection.closed]
            if silent:
                return min(silent, key=lambda connection: connection.in_flight)
            outcome = await self._reach_any(nodes)
            if isinstance(outcome, Connection):
                return outcome
            if tries_left:
                await self._bootstrap_again()
        raise NotConnected("the cluster", "its brokers close their connections at once")

    def _waits(self, node: Node) -> bool:
        return self._pool.waits(ConnectionKey(node.id, _MAIN_LANE))

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return self._pool.count

    async def to_controller(self) -> Connection:
        """The controller if it is known, otherwise any node."""
        if self.view.controller_id < 0:
            return await self.to_any()
        return await self.to(self.view.controller_id)

    async def to_coordinator(self, kind: Kind, key: str) -> Connection:
        """The coordinator of a group or a transactional id, on a lane of its own."""
        self._check_open()
        return await self._coordinators.connect(kind, key)

    def node_of(self, connection: Connection) -> int:
        """The id of the node that an open connection leads to; -1 for a connection that is closed."""
        return next((key.node_id for key, each in self._pool.connections() if each is connection), -1)

    def forget_coordinator(self, kind: Literal["group", "transaction"], key: str) -> None:
        """After NOT_COORDINATOR and similar errors: look it up again next time."""
        self._coordinators.forget(kind, key)

    async def _reach_any(self, nodes: list[Node]) -> Connection | list[tuple[str, PenstockError]]:
        self.random.shuffle(nodes)
        nodes.sort(key=self._waits)
        outcome = await first_of(
            [lambda node=node: self.to_node(node, _MAIN_LANE) for node in nodes],  # type: ignore[misc]
            stagger_ms=STAGGER_MS,
        )
        if isinstance(outcome, tuple):
            return outcome[1]
        return [(f"{node.host}:{node.port}", error) for node, error in zip(nodes, outcome, strict=True)]

    # ------------------------------------------------------------------------------------------ bootstrap

    def rebootstrap(self) -> None:
        """A broker answered REBOOTSTRAP_REQUIRED: forget all nodes."""
        self.view = self.view.without_nodes()
        self._pool.keep_only({})

    async def _bootstrap_again(self) -> None:
        """One attempt at a time, shared by all callers."""
        self._check_open()
        if self._bootstrapping is None:
            self._bootstrapping = asyncio.create_task(self._find_cluster())
            self._bootstrapping.add_done_callback(self._bootstrapped)
        await shared(self._bootstrapping)

    def _bootstrapped(self, task: asyncio.Task[None]) -> None:
        self._bootstrapping = None
        if not task.cancelled():
            task.exception()

    async def _find_cluster(self) -> None:
        seed = await find_seed(self.bootstrap, self._options, self.random)
        adopted = False
        try:
            response = await self._first_metadata(seed)
            self._seed_address = seed.address
            self.learnt(response, complete=False)
            for node in self.view.nodes.values():
                if (node.host, node.port) == seed.address:
                    self._pool.adopt(ConnectionKey(node.id, _MAIN_LANE), seed.address, seed.connection)
                    adopted = True
                    return
            outcome = await self._reach_any(list(self.view.nodes.values()))
            if not isinstance(outcome, Connection):
                raise unreachable_cluster(seed.address, outcome)
        finally:
            if not adopted:
                seed.connection.close("the brokers' own addresses are known now")

    async def _first_metadata(self, seed: Seed) -> MetadataResponse:
        """A starting broker listens before it knows any broker: retried for up to connect_timeout_ms."""
        begun_ms, backoff = self.clock.monotonic_ms(), self.new_backoff()
        while True:
            try:
                response = await ask_metadata(seed.connection, (), timeout_ms=self.request_timeout_ms)
            except PenstockError as error:
                reason = f"it did not describe its cluster: {error.message}"
                raise BootstrapError([UnusableAddress(str(seed.address), Cause.OTHER, reason, "").attempt]) from error
            if response.brokers:
                return response
            wait_s = backoff.failed(self.clock.monotonic_ms()) / 1000
            if wait_s >= self._left_s(begun_ms, self._options.connect_timeout_ms):
                starting = UnusableAddress(
                    str(seed.address),
                    Cause.OTHER,
                    "the broker does not know any broker yet",
                    "It may still be starting",
                )
                raise BootstrapError([starting.attempt])
            await asyncio.sleep(wait_s)


# --------------------------------------------------------------------------------------------------- coordinators


class CoordinatorLookup:
    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._known: dict[tuple[Kind, str], Node] = {}
        self._asking: dict[tuple[Kind, str], asyncio.Task[Node]] = {}

    def forget(self, kind: Kind, key: str) -> None:
        self._known.pop((kind, key), None)

    def end(self) -> list[asyncio.Task[Node]]:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        return tasks

    async def connect(self, kind: Kind, key: str) -> Connection:
        node = self._known.get((kind, key)) or await self._ask(kind, key)
        try:
            return await self._cluster.to_node(node, kind)
        except NotConnected:
            self.forget(kind, key)
            raise

    async def _ask(self, kind: Kind, key: str) -> Node:
        task = self._asking.get((kind, key))
        if task is None:
            task = self._asking[kind, key] = asyncio.create_task(self._find(kind, key))
            task.add_done_callback(lambda done: self._asked((kind, key), done))
        return await shared(task)

    def _asked(self, which: tuple[Kind, str], task: asyncio.Task[Node]) -> None:
        self._asking.pop(which, None)
        if not task.cancelled() and task.exception() is None:
            self._known[which] = task.result()

    async def _find(self, kind: Kind, key: str) -> Node:
        cluster = self._cluster
        backoff = cluster.new_backoff()
        failure: PenstockError | None = None
        try:
            async with asyncio.timeout(cluster.request_timeout_ms / 1000):
                while True:
                    try:
                        return await self._find_once(await cluster.to_any(), kind, key)
                    except PenstockError as error:
                        if not error.retriable:
                            raise
                        failure = error
                    await asyncio.sleep(backoff.failed(cluster.clock.monotonic_ms()) / 1000)
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            if failure is not None:
                raise failure from None
            raise TimedOut(
                f"the coordinator of {kind} {key} was not found within {cluster.request_timeout_ms} ms"
            ) from None

    async def _find_once(self, connection: Connection, kind: Kind, key: str) -> Node:
        version = connection.version_of(ApiKey.FIND_COORDINATOR)
        request = FindCoordinatorRequest()
        if version >= _FIRST_WITH_MANY:
            request.coordinator_keys = [key]
        else:
            request.key = key
        if version >= _FIRST_WITH_TYPES:
            request.key_type = _KEY_TYPES[kind]
        elif kind != "group":
            raise UnsupportedVersion(connection.node, "FindCoordinator", (_FIRST_WITH_TYPES, 6), (0, version))
        answer: FindCoordinatorResponse = await connection.request(
            ApiKey.FIND_COORDINATOR, request, version=version, timeout_ms=self._cluster.request_timeout_ms
        )
        found = answer.coordinators[0] if version >= _FIRST_WITH_MANY and answer.coordinators else answer
        if found.error_code:
            raise error_for(found.error_code, where=f"{kind} {key}", detail=found.error_message)
        return Node(found.node_id, found.host, found.port)


# --------------------------------------------------------------------------------------------------- bootstrap


class Seed(NamedTuple):
    """The first broker that answered, and its address."""

    address: Address
    connection: Connection


async def find_seed(
    bootstrap: tuple[Address, ...] | ZooKeeperAddress, options: ConnectionOptions, random: Random
) -> Seed:
    """Connect to the first address that answers as a broker; raises BootstrapError."""
    if isinstance(bootstrap, ZooKeeperAddress):
        try:
            addresses = await broker_addresses(bootstrap, options.connect_timeout_ms, options.security_protocol)
        except UnusableAddress as error:
            raise BootstrapError([error.attempt]) from error
    else:
        addresses = bootstrap
    order = list(addresses)
    random.shuffle(order)
    outcome = await first_of(
        [lambda address=address: open_connection(address, options) for address in order],  # type: ignore[misc]
        stagger_ms=STAGGER_MS,
        discard=Connection.close,
    )
    if isinstance(outcome, tuple):
        return Seed(order[outcome[0]], outcome[1])
    if all(isinstance(error, AuthenticationFailed) for error in outcome):
        raise outcome[0]
    failures = dict(zip(order, outcome, strict=True))
    raise BootstrapError([attempt_of(str(address), failures[address]) for address in addresses])


def attempt_of(address: str, error: PenstockError) -> Attempt:
    if isinstance(error, UnusableAddress):
        return error.attempt._replace(address=address)
    if isinstance(error, AuthenticationFailed):
        return Attempt(address, Cause.AUTHENTICATION, error.reason, error.hint)
    return Attempt(address, Cause.OTHER, error.message, error.hint)


def unreachable_cluster(seed: Address, failures: Sequence[tuple[str, PenstockError]]) -> BootstrapError:
    """The error if the bootstrap address works but none of the advertised ones does."""
    return BootstrapError(
        [
            Attempt(
                address,
                Cause.ADVERTISED,
                f"{seed} answers, but the broker advertises {address}, which cannot be reached from here: "
                f"{error.reason if isinstance(error, UnusableAddress) else error.message}",
                HINTS[Cause.ADVERTISED],
            )
            for address, error in failures
        ]
    )
