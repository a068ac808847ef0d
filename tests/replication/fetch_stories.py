"""A small cluster for stories about followers: real logs and real fetchers on virtual time, and leaders in memory.

A leader here answers Fetch as the protocol says (sessions, divergence, waiting), from a real log; every message goes
through its codec. Which broker leads is what the story says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tests.log.log_stories import NOW_MS, ROOMY, batch_of

from penstock.cluster.broker_links import LinkLost
from penstock.log.errors import LogFailed
from penstock.log.group_commit import Flush, GroupCommit
from penstock.log.log_loader import open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.log.truncation import truncate_fully, truncate_to
from penstock.records import Buffer, scan
from penstock.replication.fetch_state import Position, SessionKey, divergence
from penstock.replication.follower import FetcherSettings, FollowedPartition, ReplicaFetcherManager, Throttle
from penstock.runtime.threads import Outcome
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.loop import SimulatedLoop, process_loop
from penstock.testing.simulation.scheduler import Scheduler
from penstock.wire.codec import codec_for
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.wire.types import M, Message

T = TypeVar("T")

QUICK = FetcherSettings(max_wait_ms=500, backoff_ms=20.0, backoff_max_ms=200.0, timeout_ms=1000.0)


def topic_id_of(topic: str) -> bytes:
    return topic.encode().ljust(16, b"-")


class Copy:
    """One broker's copy of a partition, led or followed."""

    def __init__(self, me: int, topic: str, index: int, log: PartitionLog) -> None:
        self.me = me
        self.topic = topic
        self.index = index
        self.topic_id = topic_id_of(topic)
        self.log = log
        self.leader = -1
        self.leader_epoch = -1
        self.epoch_start = 0
        self.isr: set[int] = set()
        self.ends: dict[int, int] = {}  # of followers' logs, as they reported in this epoch
        self.starts: dict[int, int] = {}
        self.cuts: list[int] = []
        self.restarts: list[int] = []
        self.tamper: Callable[[bytes], bytes] = bytes
        self.falsify: Callable[[FetchPartition, PartitionData], object] = lambda wanted, data: None
        self.before_append: Callable[[], object] = lambda: None
        self.after_followed: Callable[[], object] = lambda: None
        self.rejections: list[ErrorCode] = []  # the next answers
        self.moved: Callable[[], None] = lambda: None
        self.syncs_at_once = True

    # --- a follower's half

    def append_as_follower(self, records: Buffer) -> None:
        self.before_append()
        self.log.append_as_follower(records, now_ms=NOW_MS)

    def followed(self, high_watermark: int, log_start: int) -> None:
        self.log.advance_high_watermark(high_watermark)
        self.log.advance_start(min(log_start, self.log.high_watermark))
        self.after_followed()

    def truncate_to(self, offset: int) -> None:
        if truncate_to(self.log, offset, NOW_MS):
            self.cuts.append(offset)
        self.log.epochs.truncate_from_end(min(offset, self.log.log_end_offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.restarts.append(offset)
        truncate_fully(self.log, offset, NOW_MS)

    # --- roles

    def lead(self, epoch: int, isr: set[int] | None = None) -> None:
        self.leader, self.leader_epoch = self.me, epoch
        self.log.epochs.assign(epoch, self.log.log_end_offset)
        self.epoch_start = self.log.log_end_offset
        self.isr = {self.me} if isr is None else set(isr)
        self.ends.clear()
        self.moved()

    def be_led(self, leader: int, epoch: int) -> None:
        self.leader, self.leader_epoch = leader, epoch
        self.moved()

    # --- a leader's half

    def put(self, *numbers: int, size: int = 100) -> None:
        for number in numbers:
            self.log.append(batch_of(number, size=size), leader_epoch=self.leader_epoch, now_ms=NOW_MS)
        if self.syncs_at_once and self.log.settings.sync_before_ack:
            self.log.flush()
        self.advance()
        self.moved()

    def advance(self) -> None:
        """The watermark, by all in sync; what this disk may lose does not count."""
        mine = self.log.flushed_offset if self.log.settings.sync_before_ack else self.log.log_end_offset
        ends = [self.ends.get(broker, -1) for broker in self.isr if broker != self.me]
        if self.log.advance_high_watermark(min([mine, *ends])):
            self.moved()

    def answer(self, wanted: FetchPartition, replica: int) -> PartitionData:
        data = self._answer(wanted, replica)
        self.falsify(wanted, data)
        return data

    def _answer(self, wanted: FetchPartition, replica: int) -> PartitionData:
        data = PartitionData(partition_index=wanted.partition)
        error = self._refusal(wanted)
        if error != ErrorCode.NONE:
            data.error_code, data.high_watermark = error, -1
            return data
        log = self.log
        data.high_watermark, data.log_start_offset = log.high_watermark, log.log_start_offset
        parted = divergence(Position(wanted.fetch_offset, wanted.last_fetched_epoch), log.log_end_offset, log.epochs)
        if parted is not None:
            data.diverging_epoch = EpochEndOffset(epoch=parted.epoch, end_offset=parted.end_offset)
            return data
        if not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return data
        self.starts[replica] = wanted.log_start_offset
        self.ends[replica] = wanted.fetch_offset
        self.advance()
        data.high_watermark = log.high_watermark
        region = log.read(wanted.fetch_offset, wanted.partition_max_bytes)
        data.records = b"" if region is None else self.tamper(region.read())
        return data

    def _refusal(self, wanted: FetchPartition) -> ErrorCode:
        if self.rejections:
            return self.rejections.pop(0)
        if wanted.current_leader_epoch > self.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if wanted.current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE if self.leader == self.me else ErrorCode.NOT_LEADER_OR_FOLLOWER


class _Session:
    def __init__(self, number: int) -> None:
        self.id = number
        self.epoch = 1
        self.asked: dict[SessionKey, FetchPartition] = {}
        self.reported: dict[SessionKey, tuple[int, int]] = {}


class Server:
    """Answers Fetch for all copies of a broker. `requests` are those that came, with their times."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.copies: dict[SessionKey, Copy] = {}
        self.requests: list[tuple[float, FetchRequest]] = []
        self.keeps_sessions = True
        self.releases_overtaken = True
        self.is_dead = False
        self._loop = loop
        self._sessions: dict[int, _Session] = {}
        self._number = 0
        self._moved: asyncio.Future[None] = loop.create_future()

    def add(self, copy: Copy) -> None:
        self.copies[copy.topic_id, copy.index] = copy
        copy.moved = self.moved

    def moved(self) -> None:
        before, self._moved = self._moved, self._loop.create_future()
        before.set_result(None)

    def forget_sessions(self) -> None:
        self._sessions.clear()

    def asked_for(self, topic: str) -> list[tuple[float, int]]:
        """When a partition 0 was named, and from which offset."""
        return [
            (time_s, wanted.fetch_offset)
            for time_s, request in self.requests
            for named in request.topics
            for wanted in named.partitions
            if named.topic_id == topic_id_of(topic)
        ]

    async def serve(self, request: FetchRequest) -> FetchResponse | None:
        """The answer; None if the broker ended meanwhile."""
        self.requests.append((self._loop.time(), request))
        asked = {(topic.topic_id, part.partition): part for topic in request.topics for part in topic.partitions}
        is_full = request.session_epoch == 0
        if is_full:
            self._number += 1
            session = _Session(self._number)
            if self.keeps_sessions:
                self._sessions[session.id] = session
        else:
            found = self._sessions.get(request.session_id)
            if found is None:
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            session = found
            if session.epoch != request.session_epoch:
                return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            session.epoch += 1
            self.moved()  # an earlier request that waits is overtaken
        session.asked |= asked
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.asked.pop((forgotten.topic_id, index), None)
                session.reported.pop((forgotten.topic_id, index), None)
        return await self._wait(request, session, is_full=is_full)

    async def _wait(self, request: FetchRequest, session: _Session, *, is_full: bool) -> FetchResponse | None:
        epoch, until_s = session.epoch, self._loop.time() + request.max_wait_ms / 1000
        session_id = session.id if self.keeps_sessions else 0
        while True:
            if self.is_dead:
                return None
            if session.epoch != epoch:
                if self.releases_overtaken:
                    return FetchResponse(session_id=session_id)
                await asyncio.sleep(max(0.0, until_s - self._loop.time()))
                return FetchResponse(session_id=session_id, error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            rows = self._read(session, request.replica_state.replica_id, is_full=is_full)
            left_s = until_s - self._loop.time()
            if any(data.records or data.error_code for _, data in rows) or (rows and not is_full) or left_s <= 1e-9:
                return _response(session_id, rows)
            await asyncio.wait((self._moved,), timeout=left_s)

    def _read(self, session: _Session, replica: int, *, is_full: bool) -> list[tuple[bytes, PartitionData]]:
        rows: list[tuple[bytes, PartitionData]] = []
        for key, wanted in session.asked.items():
            copy = self.copies.get(key)
            if copy is None:
                data = PartitionData(partition_index=key[1], error_code=ErrorCode.UNKNOWN_TOPIC_ID)
            else:
                data = copy.answer(wanted, replica)
            reported = (data.high_watermark, data.log_start_offset)
            is_news = data.error_code or data.records or data.diverging_epoch.epoch >= 0
            if is_full or is_news or session.reported.get(key) != reported:
                rows.append((key[0], data))
                session.reported[key] = reported
        return rows


def _response(session_id: int, rows: list[tuple[bytes, PartitionData]]) -> FetchResponse:
    topics: dict[bytes, FetchableTopicResponse] = {}
    for topic_id, data in rows:
        topics.setdefault(topic_id, FetchableTopicResponse(topic_id=topic_id)).partitions.append(data)
    return FetchResponse(session_id=session_id, responses=list(topics.values()))


class SlowDisk:
    """Work takes virtual time: so much for each path, `sync_ms` where nothing is said."""

    def __init__(self, loop: SimulatedLoop, sync_ms: float) -> None:
        self.sync_ms = sync_ms
        self.slow: dict[str, float] = {}
        self._loop = loop

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        flush = getattr(work, "__self__", None)
        assert isinstance(flush, Flush)
        paths = [file.path for file in flush.targets]
        slow_ms = [took for folder, took in self.slow.items() if any(path.startswith(folder) for path in paths)]
        self._loop.call_later(max([self.sync_ms, *slow_ms]) / 1000, self._finish, work, done)

    def _finish(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        try:
            outcome = Outcome(work())
        except OSError as error:
            outcome = Outcome(None, error)
        done(outcome)

    def close(self) -> None: ...


class Host:
    """A broker, as far as it leads and follows; `life` is its broker epoch."""

    def __init__(
        self,
        room: Room,
        me: int,
        files: SimulatedFiles,
        life: int,
        settings: FetcherSettings,
        throttle: Throttle | None,
    ) -> None:
        self.me = me
        self.files = files
        self.life = life
        self.server = Server(room.loop)
        self.disk = SlowDisk(room.loop, room.sync_ms)
        self.failed: list[tuple[FollowedPartition, LogFailed]] = []
        self.links = Wires(room, me)
        self.fetchers = ReplicaFetcherManager(
            me, lambda: life, self.links, GroupCommit(self.disk), room.loop, settings, throttle,
            lambda partition, failure: self.failed.append((partition, failure)),
        )  # fmt: skip

    def open(self, topic: str = "t", index: int = 0, settings: LogSettings = ROOMY) -> Copy:
        """A copy of a partition: a new one, or what the disk has of it."""
        log = open_log(self.files, f"/{topic}-{index}", settings, clean=False, recovery_point=0, now_ms=NOW_MS).log
        self.files.sync_folder("/")
        copy = Copy(self.me, topic, index, log)
        self.server.add(copy)
        return copy

    def follow(self, copy: Copy, leader: int, epoch: int) -> None:
        copy.be_led(leader, epoch)
        self.fetchers.follow([copy])


class Room:
    """Brokers, wires and time."""

    def __init__(self, seed: int = 0, *, delay_ms: float = 0.1, sync_ms: float = 0.3) -> None:
        self.scheduler = Scheduler(seed)
        self.loop = process_loop(self.scheduler, "room")
        self.hosts: dict[int, Host] = {}
        self.cut_off: set[int] = set()
        self.delay_s = delay_ms / 1000
        self.sync_ms = sync_ms
        self.connections = 0

    def host(
        self,
        me: int,
        files: SimulatedFiles | None = None,
        *,
        life: int = 1,
        settings: FetcherSettings = QUICK,
        throttle: Throttle | None = None,
    ) -> Host:
        host = Host(self, me, files or SimulatedFiles(), life, settings, throttle)
        self.hosts[me] = host
        return host

    def pass_time(self, ms: float) -> None:
        self.scheduler.run_until(limit_s=self.scheduler.now_s + ms / 1000)

    def until(self, done: Callable[[], bool], *, within_ms: float = 5000) -> float:
        """Let things happen until then; how long it took, in ms."""
        began_s = self.scheduler.now_s
        assert self.scheduler.run_until(done, limit_s=began_s + within_ms / 1000), "it did not come about"
        return (self.scheduler.now_s - began_s) * 1000

    def reaches(self, one: int, other: int) -> bool:
        return other in self.hosts and one in self.hosts and not self.cut_off & {one, other}

    def kill(self, me: int) -> None:
        """The broker ends without a word."""
        host = self.hosts.pop(me)
        self.loop.run_until_complete(host.fetchers.close())
        host.server.is_dead = True
        host.server.moved()

    def close(self) -> None:
        for host in self.hosts.values():
            self.loop.run_until_complete(host.fetchers.close())
        self.pass_time(0)
        assert not [host.me for host in self.hosts.values() if host.fetchers.leaders]


class Wires:
    def __init__(self, room: Room, me: int) -> None:
        self._room = room
        self._me = me

    def to(self, broker_id: int) -> Wire:
        if broker_id == 99:
            raise LinkLost("broker 99 is not registered")
        self._room.connections += 1
        return Wire(self._room, self._me, broker_id)


class Wire:
    """One connection: answers come in the order of the questions."""

    def __init__(self, room: Room, me: int, other: int) -> None:
        self._room = room
        self._ends = me, other
        self._closed: asyncio.Future[None] = room.loop.create_future()
        self._last: asyncio.Task[FetchResponse | LinkLost] | None = None

    async def ask(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message:
        assert (api_key, version) == (ApiKey.FETCH, 17)
        assert isinstance(message, FetchRequest)
        request = _carried(message, version)
        task = self._room.loop.create_task(self._carry(request, version, self._last))
        self._last = task
        try:
            await asyncio.wait((task, self._closed), timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or self._closed.done():
                raise LinkLost("no answer came")
            answer = task.result()
        finally:
            task.cancel()
        if isinstance(answer, LinkLost):
            raise answer
        return answer

    def send(self, api_key: int, version: int, message: Message, timeout_ms: float) -> asyncio.Future[Message] | None:
        # The first question opens the connection.
        return (
            None if self._last is None else self._room.loop.create_task(self.ask(api_key, version, message, timeout_ms))
        )

    async def _carry(
        self, request: FetchRequest, version: int, before: asyncio.Task[FetchResponse | LinkLost] | None
    ) -> FetchResponse | LinkLost:
        room, other = self._room, self._ends[1]
        await asyncio.sleep(room.delay_s)
        if not room.reaches(*self._ends):
            return LinkLost("refused")
        host = room.hosts[other]
        answer = await host.server.serve(request)
        if before is not None and not before.done():
            await asyncio.wait((before,))
        await asyncio.sleep(room.delay_s)
        if answer is None or not room.reaches(*self._ends) or room.hosts[other] is not host:
            return LinkLost("broken")
        return _carried(answer, version)

    def close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


def _carried(message: M, version: int) -> M:
    """The same message, as the other side reads it."""
    codec = codec_for(type(message), version)
    return codec.decode(codec.encode(message))[0]


def content(log: PartitionLog, upper_offset: int | None = None) -> bytes:
    """The log's bytes, below an offset if one is given."""
    found, offset = bytearray(), log.log_start_offset
    while (region := log.read(offset, 1 << 20, upper_offset=upper_offset)) is not None:
        data = region.read()
        found += data
        offset = scan(data).headers[-1].next_offset
    return bytes(found)
