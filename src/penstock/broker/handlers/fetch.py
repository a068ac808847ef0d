"""Fetch: reading record batches, at once or when there are enough.

Records leave as regions of files. A reader that asked for more bytes than there are waits, up to its limit, and is
woken: a consumer when the high watermark moves, a follower by appends; the wait costs nothing but a timer. The first
partition with data gives at least one whole batch, however small the limits, so every reader makes progress. Readers of
committed records see nothing at or above the last stable offset and are told which transactions were aborted. Clients
from before magic 2 get converted copies.

A partition of a session that has nothing new is put to rest, and costs nothing until it moves: a consumer of thousands
of partitions pays for those that are written to.

A follower that waits for records is told of a new high watermark soon, but not at once: most often records come first.
One that is held back by a throttle waits until it may have more: that there is more is no news for it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.fetch_conversion import FIRST_VERSION_WITH_BATCHES
from penstock.broker.fetch_reading import Read, Reader, ends_of, read_narrow, read_wide, reader_of
from penstock.broker.fetch_session_cache import Asked
from penstock.broker.fetch_sessions import SLICE, FetchContext
from penstock.broker.request import Answer, Request
from penstock.broker.whereabouts import SENT_AWAY, leader_of, nodes
from penstock.replication.partition import Partition
from penstock.wire.api_keys import ApiKey
from penstock.wire.headers import chunk_size
from penstock.wire.schemas.fetch import FetchRequest, FetchResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

WATERMARK_MS: Final = 50
"""How long a follower that waits may be told of a new high watermark late."""

# Below, an answer has room for the leader but none for its address: who knows no such broker would be lost.
_TELLS_LEADERS = 16
_IDS_VERSION = 13


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: FetchRequest = request.message
    reader = reader_of(broker, request)
    context = broker.sessions.begin(
        message,
        request.version,
        request.now_ms,
        privileged=reader.is_follower,
        names=broker.cluster.image.names_by_id,
    )
    if context.error:
        broker.count_error(request.api_key, context.error)
        answer(context.answer([]))
        return
    pending = context.pending()
    if len(pending) > SLICE:
        _in_slices(broker, request, _wide_pass(broker, context, request, reader, pending, answer, may_wait=True))
        return
    read = read_narrow(broker, context, reader, pending)
    if read.size >= message.min_bytes or _is_enough(read, message, context):
        _finish(broker, context, request, reader, read, answer)
    else:
        _Waiter(broker, context, request, reader, answer, read).wait()


def _is_enough(read: Read, message: FetchRequest, context: FetchContext) -> bool:
    return read.size >= message.min_bytes or read.is_urgent or message.max_wait_ms <= 0 or context.is_empty


def _finish(
    broker: Broker, context: FetchContext, request: Request, reader: Reader, read: Read, answer: Answer
) -> None:
    if request.version < FIRST_VERSION_WITH_BATCHES and read.size:
        work = partial(_convert_and_tell, broker, context, request, reader, read, answer)
        broker.long_work.start(request.channel, read.size, work)
        return
    if not reader.is_follower:
        _count(broker, read.rows)
    response = context.answer(read.rows)
    if read.is_urgent or response.error_code or context.topic_ids is not None:
        for _ in _complete(broker, context, request, read, response):
            pass
    answer(response)


# --- fetches of very many partitions, and of readers whose records are converted


def _in_slices(broker: Broker, request: Request, work: Generator[None, None, None]) -> None:
    async def slices() -> None:
        await broker.long_work.through(work, request.channel)

    broker.long_work.start(request.channel, request.size, slices)


def _wide_pass(
    broker: Broker,
    context: FetchContext,
    request: Request,
    reader: Reader,
    pending: Sequence[Asked],
    answer: Answer,
    *,
    may_wait: bool,
) -> Generator[None, None, None]:
    read = yield from read_wide(broker, context, reader, pending)
    if may_wait and not _is_enough(read, request.message, context):
        waiter = _Waiter(broker, context, request, reader, answer, read)
        waiter.wait()
        # What has come since its partition was read told nobody: the waiter was not there yet.
        if ends_of(read.partitions) != read.ends or len(context.pending()) > len(read.rows):
            waiter.finish_soon()
    elif request.version < FIRST_VERSION_WITH_BATCHES and read.size:
        work = partial(_convert_and_tell, broker, context, request, reader, read, answer)
        broker.long_work.start(request.channel, read.size, work)
    else:
        yield from _tell(broker, context, request, reader, read, answer)


async def _convert_and_tell(
    broker: Broker, context: FetchContext, request: Request, reader: Reader, read: Read, answer: Answer
) -> None:
    offsets = {(topic, wanted.partition): wanted.fetch_offset for topic, wanted in context.partitions}
    rows = [(data, offsets[topic, data.partition_index]) for topic, data in read.rows]
    await broker.conversions.convert(rows, request.version)
    await broker.long_work.through(_tell(broker, context, request, reader, read, answer), request.channel)


def _tell(
    broker: Broker, context: FetchContext, request: Request, reader: Reader, read: Read, answer: Answer
) -> Generator[None, None, None]:
    for begin in range(0, len(read.rows), SLICE):
        if not reader.is_follower:
            _count(broker, read.rows[begin : begin + SLICE])
        yield
    response = yield from context.answer_slices(read.rows)
    yield from _complete(broker, context, request, read, response)
    answer(response)


def _complete(
    broker: Broker, context: FetchContext, request: Request, read: Read, response: FetchResponse
) -> Generator[None, None, None]:
    if response.error_code:
        broker.count_error(ApiKey.FETCH, response.error_code)
    ids = context.topic_ids
    if ids is not None:
        for topic in response.responses:
            topic.topic_id = ids.of(topic.topic)
    if read.is_urgent and request.version >= _TELLS_LEADERS:
        yield from _tell_leaders(broker, response)


def _count(broker: Broker, rows: Sequence[tuple[str, PartitionData]]) -> None:
    failed: set[str] = set()
    for topic, data in rows:
        records = data.records
        if records:
            broker.topic_figures(topic).fetched(chunk_size(records))
        elif data.error_code:
            broker.count_error(ApiKey.FETCH, data.error_code)
            failed.add(topic)
    for topic in {topic for topic, _ in rows}:
        figures = broker.figures_of(topic)
        if figures is not None:
            figures.fetch_requested()
            if topic in failed:
                figures.fetch_failed()


def _tell_leaders(broker: Broker, response: FetchResponse) -> Generator[None, None, None]:
    leaders: set[int] = set()
    seen = 0
    for topic in response.responses:
        for data in topic.partitions:
            if data.error_code not in SENT_AWAY:
                continue
            seen += 1
            if not seen % SLICE:
                yield
            leader = leader_of(broker, topic.topic, data.partition_index)
            if leader is not None:
                data.current_leader = LeaderIdAndEpoch(*leader)
                leaders.add(leader[0])
    if leaders:
        response.node_endpoints = [
            NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes(broker, leaders)
        ]


class _Waiter:
    """A fetch that waits until there are enough bytes, its time is over, or a partition or the reader goes away."""

    __slots__ = (
        "_answer", "_available", "_broker", "_context", "_has_news", "_is_held_back", "_is_over", "_partitions",
        "_reader", "_request", "_timer",
    )  # fmt: skip

    def __init__(
        self, broker: Broker, context: FetchContext, request: Request, reader: Reader, answer: Answer, read: Read
    ) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._reader = reader
        self._answer = answer
        self._available = read.size
        self._partitions = dict.fromkeys(read.partitions)
        # A follower's row that has nothing but offsets is news of the watermark.
        self._has_news = reader.is_follower and len(read.rows) > read.held_back
        self._is_held_back = read.held_back > 0
        self._is_over = False

    def wait(self) -> None:
        for partition in self._partitions:
            self._watch(partition)
        self._context.watch(self)
        wait_ms = self._request.message.max_wait_ms
        if self._has_news:
            wait_ms = min(wait_ms, WATERMARK_MS)
        if self._is_held_back:
            delays_ms = (self._reader.delay_ms(partition) for partition in self._partitions)
            wait_ms = min(wait_ms, max(1.0, min((each for each in delays_ms if each > 0), default=1.0)))
        self._timer = self._broker.call_later(wait_ms / 1000, self._finish)
        if self._request.departure is not None:
            self._request.departure.watch(self._give_up)

    def _watch(self, partition: Partition) -> None:
        if self._reader.is_follower:
            partition.watch_end(self)
        else:
            partition.watch(self)

    def grown(self, partition: Partition, size: int) -> None:
        delay_ms = self._reader.delay_ms(partition)
        if delay_ms <= 0:
            self._available += size
        if self._available >= self._request.message.min_bytes:
            self.finish_soon()
        else:
            # It may have been at rest until now; then nobody else watches it any more.
            self._watch(partition)
            self._partitions[partition] = None
            if delay_ms > 0 and not self._is_held_back and not self._is_over:
                self._is_held_back = True
                self._timer.cancel()
                wait_ms = min(self._request.message.max_wait_ms, delay_ms)
                self._timer = self._broker.call_later(wait_ms / 1000, self._finish)

    def moved(self, partition: Partition) -> None:
        self._watch(partition)
        self._partitions[partition] = None
        if not self._has_news and not self._is_over:
            self._has_news = True
            self._timer.cancel()
            self._timer = self._broker.call_later(WATERMARK_MS / 1000, self._finish)

    def gone(self, partition: Partition) -> None:
        self.finish_soon()

    def finish_soon(self) -> None:
        if self._reader.is_follower:
            # At the end of this turn: what else is appended in it goes along.
            self._broker.loop.call_soon(self._finish)
        else:
            self._finish()

    def _give_up(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._context.unwatch(self)
        for partition in self._partitions:
            partition.unwatch(self)

    def _finish(self) -> None:
        if self._is_over:
            return
        self._give_up()
        if self._request.departure is not None:
            self._request.departure.unwatch(self._give_up)
        broker, context, request = self._broker, self._context, self._request
        reader = reader_of(broker, request)  # of this moment: that a follower asks counts from now
        pending = context.pending()
        if len(pending) > SLICE:
            work = _wide_pass(broker, context, request, reader, pending, self._answer, may_wait=False)
            _in_slices(broker, request, work)
        else:
            read = read_narrow(broker, context, reader, pending)
            _finish(broker, context, request, reader, read, self._answer)
