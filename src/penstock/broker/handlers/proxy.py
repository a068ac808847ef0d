"""Proxied listeners: any broker serves any partition and group, for clients that can reach only one address.

On a listener that `penstock.proxy.listeners` names, Metadata returns the listener's advertised address for every
broker. The broker that a connection reaches serves what it leads or coordinates, and forwards the rest to the other
brokers. Each client connection has its own links to them, opened on demand and closed with it: its requests stay in
order, and its long polls delay no other client.

Produce and Fetch are forwarded unchanged, so that no record is copied into another message. The leader sees a broker as
their sender; therefore this broker rejects what ACLs deny and what only brokers may write. Everything else is sent in a
`Forward` request, in the client's name. Quotas are those of this broker.

If a leader or coordinator is lost while it serves a request, the client gets the error of a leader that has moved, and
retries. The outcome of a Produce is unknown then, so it times out. Clients get no incremental fetch sessions and read
from leaders only. A connection has one forwarded Fetch at a time, which takes at most its share of `_FETCH_BYTES`;
versions before 3 have no such limit and return what they ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.broker.broker_only import is_protected
from penstock.broker.fetch_session import SLICE
from penstock.broker.handlers.forward import forwarded, response_in
from penstock.broker.request import Answer, Channel, ChannelClosed, CloseConnection, Handler, Request, Services
from penstock.cluster.broker_links import Link, LinkLost, Links
from penstock.cluster.image import ClusterImage
from penstock.coordination.coordinator_runtime import partition_for_key
from penstock.wire.framing import chunk_size
from penstock.wire.protocol import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, ApiKey, ErrorCode, find_api
from penstock.wire.schemas.fetch import FetchRequest, FetchResponse
from penstock.wire.schemas.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from penstock.wire.types import NO_UUID, Message

_FETCH_BYTES: Final = 64 * 1024 * 1024
"""What all forwarded fetches together should return at once."""
_MAX_FETCH_BYTES: Final = 8 * 1024 * 1024
_MIN_FETCH_BYTES: Final = 64 * 1024
_MIXED_WAIT_MS: Final = 50
"""How long a part of a fetch from several leaders waits for records: the others may have some."""
_SLICE_KEYS: Final = 100
_PATIENCE_MS: Final = 30_000
_REBALANCE_MS: Final = 31 * 60_000
"""For requests that wait for the other members of a group: longer than group.max.session.timeout.ms."""
_REBALANCES: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})


# --- which broker serves what


class _ByLeader(NamedTuple):
    """A request that names partitions: its arrays and those of its response, and how they name topic and partition."""

    requested: tuple[str, str]
    answered: tuple[str, str]
    name: str = "name"
    number: str = "partition_index"
    """Empty if the elements are the numbers themselves."""
    answered_number: str = "partition_index"


class _ByCoordinator(NamedTuple):
    """A request that names a group or a transactional id in `key`, or several of them in the array `keys`."""

    topic: str
    key: str = "group_id"
    keys: str = ""
    answered: str = ""


class _ByEveryBroker(NamedTuple):
    """A request for what each broker coordinates."""

    answered: str


_Route = _ByLeader | _ByCoordinator | _ByEveryBroker
_PARTITIONS: Final = ("topics", "partitions")
_GROUP: Final = _ByCoordinator(OFFSETS_TOPIC)
_TRANSACTION: Final = _ByCoordinator(TRANSACTION_STATE_TOPIC, "transactional_id")
_PRODUCE: Final = _ByLeader(
    ("topic_data", "partition_data"), ("responses", "partition_responses"), number="index", answered_number="index"
)
_FETCH: Final = _ByLeader(_PARTITIONS, ("responses", "partitions"), "topic", "partition")

ROUTES: Final[dict[int, _Route]] = {
    ApiKey.PRODUCE: _PRODUCE,
    ApiKey.FETCH: _FETCH,
    ApiKey.LIST_OFFSETS: _ByLeader(_PARTITIONS, _PARTITIONS),
    ApiKey.DELETE_RECORDS: _ByLeader(_PARTITIONS, _PARTITIONS),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _ByLeader(_PARTITIONS, _PARTITIONS, "topic", "partition", "partition"),
    ApiKey.DESCRIBE_PRODUCERS: _ByLeader(("topics", "partition_indexes"), _PARTITIONS, number=""),
    ApiKey.OFFSET_COMMIT: _GROUP,
    ApiKey.OFFSET_FETCH: _GROUP._replace(keys="groups", answered="groups"),
    ApiKey.OFFSET_DELETE: _GROUP,
    ApiKey.JOIN_GROUP: _GROUP,
    ApiKey.SYNC_GROUP: _GROUP,
    ApiKey.HEARTBEAT: _GROUP,
    ApiKey.LEAVE_GROUP: _GROUP,
    ApiKey.DESCRIBE_GROUPS: _GROUP._replace(key="", keys="groups", answered="groups"),
    ApiKey.DELETE_GROUPS: _GROUP._replace(key="", keys="groups_names", answered="results"),
    ApiKey.TXN_OFFSET_COMMIT: _GROUP,
    ApiKey.INIT_PRODUCER_ID: _TRANSACTION,
    ApiKey.ADD_PARTITIONS_TO_TXN: _TRANSACTION._replace(key="v3_and_below_transactional_id"),
    ApiKey.ADD_OFFSETS_TO_TXN: _TRANSACTION,
    ApiKey.END_TXN: _TRANSACTION,
    ApiKey.DESCRIBE_TRANSACTIONS: _TRANSACTION._replace(
        key="", keys="transactional_ids", answered="transaction_states"
    ),
    ApiKey.LIST_GROUPS: _ByEveryBroker("groups"),
    ApiKey.LIST_TRANSACTIONS: _ByEveryBroker("transaction_states"),
}  # fmt: skip


# --- connections


class Proxy:
    """The connections of a broker's proxied listeners."""

    def __init__(self, services: Services, links: Links) -> None:
        self.services = services
        self.links = links
        self.fetches = 0
        """Forwarded fetches that are not answered yet."""
        self._connections: set[ProxiedConnection] = set()

    def connected(self, channel: Channel) -> ProxiedConnection:
        connection = ProxiedConnection(self, channel)
        self._connections.add(connection)

        def closed() -> None:
            self._connections.discard(connection)
            connection.close()

        channel.watch(closed)
        return connection

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """A listener of images: requests to brokers that are gone fail now, even if their hosts are silent."""
        for broker in old.brokers.keys() - new.brokers.keys():
            for connection in self._connections:
                connection.drop(broker)

    def close(self) -> None:
        for connection in tuple(self._connections):
            connection.close()
        self._connections.clear()

    def fetch_bytes(self) -> int:
        """What the next fetch may return."""
        return max(_MIN_FETCH_BYTES, min(_MAX_FETCH_BYTES, _FETCH_BYTES // (self.fetches + 1)))


class ProxiedConnection:
    """A client's connection, and its links to the brokers that serve it."""

    def __init__(self, proxy: Proxy, channel: Channel) -> None:
        self._proxy = proxy
        self._services = proxy.services
        self._channel = channel
        self._links: dict[int, Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def handler(self, api_key: int, local: Handler) -> Handler:
        """What serves a request of this connection; `local` is this broker's own handler."""
        if api_key == ApiKey.FETCH:
            return partial(self._fetch, local)
        route = ROUTES.get(api_key)
        return local if route is None else partial(self._serve, route, local)

    def drop(self, broker: int) -> None:
        """Close the link to a broker. Requests in flight fail."""
        link = self._links.pop(broker, None)
        if link is not None:
            link.close()

    def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        for broker in tuple(self._links):
            self.drop(broker)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Tasks begin in the order of their requests, and links keep it."""

        async def run() -> None:
            try:
                await work
            except ChannelClosed:
                pass
            except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this connection only
                self._channel.end(error)

        task = self._services.loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())

    # --- requests

    def _serve(self, route: _Route, local: Handler, services: Services, request: Request, answer: Answer) -> None:
        slices = _parts(services, route, request)
        try:
            next(slices)
        except StopIteration as end:
            self._serve_parts(end.value, route, local, request, answer)
            return

        async def rest() -> None:
            parts = await services.long_requests.through(slices, self._channel)
            self._serve_parts(parts, route, local, request, answer)

        services.long_requests.start(self._channel, request.size, rest)

    def _serve_parts(self, parts: Parts, route: _Route, local: Handler, request: Request, answer: Answer) -> None:
        if self._is_local(parts):
            local(self._services, request, answer)
            return
        if len(parts) > 1:
            # Their responses come at different times, and a later request must not be served before a part of this.
            self._channel.mute()
        self._start(self._answer(parts, route, local, request, answer))

    def _is_local(self, parts: Parts) -> bool:
        return all(broker == self._services.node_id for broker, _ in parts)

    async def _answer(self, parts: Parts, route: _Route, local: Handler, request: Request, answer: Answer) -> None:
        is_unanswered = request.api_key == ApiKey.PRODUCE and request.message.acks == 0
        try:
            if is_unanswered:
                # This broker must learn of errors, and must not read more requests than leaders accept.
                parts = [(broker, replace(part, acks=1)) for broker, part in parts]
            response = await self._gather(parts, route, local, request)
            if is_unanswered:
                _raise_rejected(response)
            answer(None if is_unanswered else response)
        finally:
            if len(parts) > 1:
                self._channel.unmute()

    async def _gather(self, parts: Parts, route: _Route, local: Handler, request: Request) -> Any:
        # A task for each, even if there is one: tasks begin in the order in which they are made.
        asked = (self._ask(broker, local, request._replace(message=part)) for broker, part in parts)
        responses = await asyncio.gather(*asked)
        if len(responses) == 1:
            return responses[0]
        return await self._services.long_requests.through(_merged(route, request.message, responses), self._channel)

    async def _ask(self, broker: int, local: Handler, request: Request) -> Message:
        """The response of a broker, this one or another."""
        if broker == self._services.node_id:
            return await self._ask_here(local, request)
        message, key = request.message, request.api_key
        timeout_ms = _REBALANCE_MS if key in _REBALANCES else _PATIENCE_MS
        timeout_ms += getattr(message, "timeout_ms", 0) + getattr(message, "max_wait_ms", 0)
        link = self._links.get(broker)
        try:
            if link is None:
                link = self._links[broker] = self._proxy.links.to(broker)
            if key == ApiKey.PRODUCE or key == ApiKey.FETCH:
                response = await link.ask(key, request.version, message, timeout_ms)
                self._readdress(request, response)
                return response
            wrapped = await link.ask(ApiKey.FORWARD, 0, forwarded(request), timeout_ms)
        except LinkLost as error:
            if self._links.get(broker) is link:
                self.drop(broker)
            return await self._lost(local, request, error)
        try:
            return response_in(request, wrapped)
        except LinkLost as error:
            return await self._lost(local, request, error)

    async def _ask_here(self, local: Handler, request: Request) -> Message:
        future: asyncio.Future[Message] = self._services.loop.create_future()

        def answer(message: Message | None) -> None:
            if message is not None and not future.done():
                future.set_result(message)

        local(self._services, request, answer)
        return await future

    async def _lost(self, local: Handler, request: Request, error: LinkLost) -> Message:
        """What the client gets for a broker that did not answer. The local handler reports that it does not lead or
        coordinate this, which makes clients look for who does.
        """
        if self._channel.is_closed:
            raise ChannelClosed
        name = ApiKey(request.api_key).name
        self._services.complain("proxy", f"request not forwarded: api={name} peer={request.peer} error={error}")
        if request.api_key == ApiKey.PRODUCE:
            return _timed_out(request.message)
        if isinstance(ROUTES[request.api_key], _ByEveryBroker):
            response: Any = find_api(request.api_key).response()
            response.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return response  # type: ignore[no-any-return]
        return await self._ask_here(local, request)

    def _readdress(self, request: Request, response: Any) -> None:
        """A leader that has moved names the new one by its address for brokers."""
        address = self._services.proxied[request.session.listener]
        for node in response.node_endpoints:
            node.host, node.port = address.host, address.port

    # --- fetch

    def _fetch(self, local: Handler, services: Services, request: Request, answer: Answer) -> None:
        message: FetchRequest = request.message
        if message.session_id and message.session_epoch > 0:
            # Of a time when the listener was not proxied.
            code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            services.metrics.count_error(ApiKey.FETCH, code)
            answer(FetchResponse(error_code=code))
            return
        sessionless = replace(message, session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="")
        self._channel.mute()
        self._start(self._fetch_parts(local, request._replace(message=sessionless), answer))

    async def _fetch_parts(self, local: Handler, request: Request, answer: Answer) -> None:
        services, proxy = self._services, self._proxy
        proxy.fetches += 1
        try:
            parts = await services.long_requests.through(_parts(services, _FETCH, request), self._channel)
            if self._is_local(parts):
                local(services, request, answer)
                return
            most = proxy.fetch_bytes() // len(parts)
            for _, part in parts:
                part.max_bytes = min(part.max_bytes, most)
            answer(await self._poll(parts, local, request))
        finally:
            proxy.fetches -= 1
            self._channel.unmute()

    async def _poll(self, parts: Parts, local: Handler, request: Request) -> Message:
        """The response of the leader. Several leaders are asked again and again, so that none waits for another."""
        response: FetchResponse
        if len(parts) == 1:
            response = await self._gather(parts, _FETCH, local, request)
            return response
        now_ms = self._services.clock.monotonic_ms
        end_ms = now_ms() + request.message.max_wait_ms
        wait_ms = 0
        while True:
            asked = [(broker, replace(part, max_wait_ms=wait_ms)) for broker, part in parts]
            response = await self._gather(asked, _FETCH, local, request)
            left_ms = int(end_ms - now_ms())
            if left_ms <= 0 or _has_news(response):
                return response
            wait_ms = min(left_ms, _MIXED_WAIT_MS)


# --- parts of requests


Parts = list[tuple[int, Any]]
"""Brokers, and what each is asked for."""


def _parts(services: Services, route: _Route, request: Request) -> Generator[None, None, Parts]:
    """The parts of a request. None has more than `SLICE` partitions, because it is encoded at once."""
    if isinstance(route, _ByLeader):
        return (yield from _by_leader(services, route, request))
    message, image = request.message, services.cluster.image
    if isinstance(route, _ByEveryBroker):
        return [(broker, message) for broker in image.brokers]
    keys: Sequence[Any] = getattr(message, route.keys) if route.keys else ()
    if not keys:
        key = getattr(message, route.key) if route.key else ""
        return [(_coordinator(services, route.topic, key or ""), message)]
    found: dict[int, list[Any]] = {}
    for count, each in enumerate(keys, 1):
        key = each if isinstance(each, str) else getattr(each, route.key)
        found.setdefault(_coordinator(services, route.topic, key), []).append(each)
        if not count % _SLICE_KEYS:
            yield
    return [(broker, replace(message, **{route.keys: some})) for broker, some in found.items()]


def _by_leader(services: Services, route: _ByLeader, request: Request) -> Generator[None, None, Parts]:
    message, (topics, partitions) = request.message, route.requested
    parts: Parts = []
    open_parts: dict[int, tuple[Any, int]] = {}
    for topic in getattr(message, topics):
        name = _name(services, route, topic)
        of_topic: dict[int, list[Any]] = {}
        for count, each in enumerate(getattr(topic, partitions), 1):
            if not count % SLICE:
                yield
            leader = services.node_id
            if name is not None and _may_ask(services, request, name):
                leader = _leader(services, name, getattr(each, route.number) if route.number else each)
            of_topic.setdefault(leader, []).append(each)
        for leader, of_leader in of_topic.items():
            for begin in range(0, len(of_leader), SLICE):
                some = of_leader[begin : begin + SLICE]
                part, size = open_parts.get(leader, (None, 0))
                if part is None or size + len(some) > SLICE:
                    part, size = replace(message, **{topics: []}), 0
                    parts.append((leader, part))
                getattr(part, topics).append(replace(topic, **{partitions: some}))
                open_parts[leader] = part, size + len(some)
                if size + len(some) >= SLICE:
                    yield
    return parts


def _may_ask(services: Services, request: Request, topic: str) -> bool:
    """Whether a leader may be asked in this broker's name; if not, this broker rejects the topic itself."""
    if request.api_key == ApiKey.PRODUCE:
        return not is_protected(services, request.session, topic)
    return request.permits is None or request.permits(topic)


def _name(services: Services, route: _ByLeader, topic: Any) -> str | None:
    name: str = getattr(topic, route.name)
    if name:
        return name
    found = services.cluster.image.topic_by_id(topic.topic_id) if hasattr(topic, "topic_id") else None
    return None if found is None else found.name


def _leader(services: Services, topic: str, index: int) -> int:
    """This broker if there is none: its handler says why."""
    image = services.cluster.image
    partition = image.partition(topic, index)
    leader = -1 if partition is None else image.live_leader(partition)
    return services.node_id if leader < 0 else leader


def _coordinator(services: Services, topic: str, key: str) -> int:
    found = services.cluster.image.topics.get(topic)
    if found is None or not key:
        return services.node_id
    return _leader(services, topic, partition_for_key(key, len(found.partitions)))


# --- responses


def _merged(route: _Route, message: Message, responses: Sequence[Any]) -> Generator[None, None, Any]:
    """One response from those of the parts. The first becomes part of it."""
    whole = responses[0]
    if isinstance(route, _ByLeader):
        rows = yield from _in_order(route, message, responses)
        setattr(whole, route.answered[0], rows)
        if hasattr(whole, "node_endpoints"):
            whole.node_endpoints = [node for each in responses for node in each.node_endpoints]
    elif route.answered:
        setattr(whole, route.answered, [row for each in responses for row in getattr(each, route.answered)])
    for each in responses:
        code = getattr(each, "error_code", 0)
        if code:
            whole.error_code = code
    return whole


def _in_order(route: _ByLeader, message: Message, responses: Sequence[Any]) -> Generator[None, None, list[Message]]:
    """The topics of the responses, and their partitions, as the request names them."""
    topics, partitions = route.answered
    found: dict[Any, Any] = {}
    rows: dict[tuple[Any, int], Any] = {}
    for response in responses:
        for topic in getattr(response, topics):
            key = _key(route, topic)
            found[key] = topic
            for row in getattr(topic, partitions):
                rows[key, getattr(row, route.answered_number)] = row
        yield
    whole: list[Message] = []
    for count, topic in enumerate(getattr(message, route.requested[0]), 1):
        key = _key(route, topic)
        indexes = (getattr(each, route.number) if route.number else each for each in getattr(topic, route.requested[1]))
        if key in found:
            some = [rows[key, each] for each in indexes if (key, each) in rows]
            whole.append(replace(found[key], **{partitions: some}))
        if not count % _SLICE_KEYS:
            yield
    return whole


def _raise_rejected(response: ProduceResponse) -> None:
    """A producer that wants no response learns of errors by a closed connection."""
    for topic in response.responses:
        for outcome in topic.partition_responses:
            if outcome.error_code:
                raise CloseConnection(f"records for {topic.name}-{outcome.index} with acks=0 were rejected")


def _key(route: _ByLeader, topic: Any) -> Any:
    """The id where there is one: responses of this broker have the name too, those of others do not."""
    topic_id = getattr(topic, "topic_id", NO_UUID)
    return getattr(topic, route.name) if topic_id == NO_UUID else topic_id


def _timed_out(message: Any) -> ProduceResponse:
    reason = "the leader was lost before it answered; the records may have been written"
    code = ErrorCode.REQUEST_TIMED_OUT
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(index=each.index, error_code=code, base_offset=-1, error_message=reason)
                    for each in topic.partition_data
                ],
            )
            for topic in message.topic_data
        ]
    )


def _has_news(response: FetchResponse) -> bool:
    if response.error_code:
        return True
    return any(
        row.error_code or (row.records is not None and chunk_size(row.records))
        for topic in response.responses
        for row in topic.partitions
    )
