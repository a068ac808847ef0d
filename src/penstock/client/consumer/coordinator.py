"""The consumer's side of group coordination: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and offset commits.

`Membership` decides; this module sends the requests. While the application runs its rebalance callbacks, heartbeats
continue, so a slow callback does not lose partitions before `max_poll_interval_ms`.

Commits are sent one after the other, in the order of the calls, since of two in flight the older might arrive last. A
commit that waits while one of its partitions is revoked is sent under the generation that requested it, and so
rejected: under a later one it would overwrite the new owner's offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import ClusterView, TopicPartition
from penstock.client.connection import Connection
from penstock.client.consumer.assignors import (
    PROTOCOL_TYPE,
    Assignment,
    Assignor,
    GroupMember,
    ProtocolError,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.client.consumer.membership import (
    Assign,
    Fail,
    Heartbeat,
    Idle,
    Join,
    Leave,
    Membership,
    MemberState,
    Revoke,
    Step,
    Sync,
)
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.errors import (
    CommitFailed,
    ConfigError,
    GroupError,
    PenstockError,
    TimedOut,
    UnsupportedVersion,
    error_for,
)
from penstock.client.fetch_state import PartitionState
from penstock.client.offset_stores.base import NO_MEMBER, OffsetAndMetadata, OffsetStore
from penstock.client.offset_stores.base import Membership as Committer
from penstock.runtime.clock import Clock
from penstock.wire.protocol import ApiKey, ErrorCode, error_code
from penstock.wire.schemas.heartbeat import HeartbeatRequest
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.schemas.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.schemas.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, BaseException | None], object]
RunCallback = Callable[[Revoke | Assign], Coroutine[Any, Any, None]]

_log = logging.getLogger(__name__)
_GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_INSTANCE_IDS_FROM: Final = {ApiKey.JOIN_GROUP: 5, ApiKey.SYNC_GROUP: 3, ApiKey.HEARTBEAT: 3}
_LEAVES_MANY_FROM: Final = 3
# The default limit of brokers before 0.10.1; today's default session is longer.
_LONGEST_OLD_SESSION_MS: Final = 30_000
# How long a rebalance usually takes; a coordinator that takes longer may be silent.
_REBALANCE_MS: Final = 5_000.0
_MIN_IDLE_MS: Final = 1.0


class ConsumerCoordinator:
    def __init__(
        self,
        group_id: str,
        cluster: ClusterClient,
        membership: Membership,
        settings: ConsumerSettings,
        clock: Clock,
        *,
        topics: Callable[[], Iterable[str]],
        visits: Callable[[], object],
        run_callback: RunCallback,
        on_failure: Callable[[BaseException], None],
        on_loss: Callable[[], None],
    ) -> None:
        """`topics` returns what to read now, `visits` a value that changes while the application polls."""
        self._group_id = group_id
        self._cluster = cluster
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._topics = topics
        self._visits = visits
        self._seen: object = None
        self._run_callback = run_callback
        self._on_failure = on_failure
        self._on_loss = on_loss
        self._wakened = asyncio.Event()
        self._protocol: str | None = None
        self._members: list[GroupMember] = []
        self._skips_assignment = False
        self._counted: dict[str, int] = {}
        self._held_before: tuple[TopicPartition, ...] = ()
        self._stop_listening = cluster.on_change(self._cluster_changed)

    @property
    def lacks_topics(self) -> bool:
        """Whether a topic that a member subscribes to does not exist; only the group's leader knows that."""
        return self._membership.is_leader and any(count == 0 for count in self._counted.values())

    def wake(self) -> None:
        """Something changed: look at the membership before the next heartbeat."""
        self._wakened.set()

    async def run(self) -> None:
        while True:
            self._look_around()
            step = self._membership.next_step(self._clock.monotonic_ms())
            try:
                if isinstance(step, Fail):
                    self._on_failure(self._fatal(step.code))
                    return
                await self._take(step)
            except PenstockError as error:
                if not error.retriable:
                    self._on_failure(error)
                    return
                _log.info("group request failed, retrying: group=%s error=%s", self._group_id, error)
                self._cluster.forget_coordinator("group", self._group_id)
                self._membership.unreachable(self._clock.monotonic_ms())

    def _look_around(self) -> None:
        now_ms = self._clock.monotonic_ms()
        seen = self._visits()
        if seen != self._seen:
            self._seen = seen
            self._membership.polled(now_ms)
        self._membership.wants(self._topics(), now_ms)

    async def _take(self, step: Step) -> None:
        if isinstance(step, Idle):
            await self._rest(step.until_ms)
        elif isinstance(step, Heartbeat):
            await self._heartbeat()
        elif isinstance(step, Revoke | Assign):
            await self._perform(step)
        elif isinstance(step, Join):
            await self._join()
        elif isinstance(step, Sync):
            await self._sync(step)
        elif isinstance(step, Leave):
            await self._expire()

    async def _rest(self, until_ms: float) -> None:
        # A shorter wait may end before `until_ms`, because timers are not that precise.
        wait_ms = max(until_ms - self._clock.monotonic_ms(), _MIN_IDLE_MS)
        try:
            async with asyncio.timeout(None if wait_ms == float("inf") else wait_ms / 1000):
                await self._wakened.wait()
        except TimeoutError:
            return
        finally:
            self._wakened.clear()

    # ------------------------------------------------------------------------------------------ requests

    async def _ask(self, api_key: ApiKey, request: Any, *, timeout_ms: int | None = None) -> Any:
        connection = await self._cluster.to_coordinator("group", self._group_id)
        version = connection.version_of(api_key)
        self._name_instance(connection, api_key, version, request)
        if api_key is ApiKey.JOIN_GROUP and version == 0:
            request.session_timeout_ms = min(request.session_timeout_ms, _LONGEST_OLD_SESSION_MS)
        response = await connection.request(
            api_key,
            request,
            version=version,
            timeout_ms=timeout_ms or self._settings.request_timeout_ms,
            wait_ms=_REBALANCE_MS if api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP) else 0,
        )
        if response.error_code in _MOVED:
            self._cluster.forget_coordinator("group", self._group_id)
        return response

    def _name_instance(self, connection: Connection, api_key: ApiKey, version: int, request: Any) -> None:
        instance_id = self._settings.group_instance_id
        if instance_id is None:
            return
        first = _INSTANCE_IDS_FROM[api_key]
        if version < first:
            raise UnsupportedVersion(connection.node, f"{api_key.name} of static members", (first, 9), (0, version))
        request.group_instance_id = instance_id

    async def _join(self) -> None:
        membership, settings = self._membership, self._settings
        request = JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=membership.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[self._offer(assignor) for assignor in settings.assignors],
            reason=membership.rejoin_reason,
        )
        # The response comes when all members have joined, for which the coordinator waits this long.
        timeout_ms = max(settings.max_poll_interval_ms, settings.session_timeout_ms) + settings.request_timeout_ms
        response: JoinGroupResponse = await self._ask(ApiKey.JOIN_GROUP, request, timeout_ms=timeout_ms)
        code = error_code(response.error_code)
        if code == ErrorCode.NONE:
            self._protocol = response.protocol_name
            self._skips_assignment = response.skip_assignment
            self._members = [
                GroupMember(one.member_id, _subscription(one.metadata), one.group_instance_id)
                for one in response.members
            ]
        membership.joined(
            code,
            self._clock.monotonic_ms(),
            member_id=response.member_id,
            generation=response.generation_id,
            leader=response.leader,
        )

    def _offer(self, assignor: Assignor) -> JoinGroupRequestProtocol:
        membership = self._membership
        owned = tuple(sorted(membership.owned))
        held = owned or self._held_before
        subscription = Subscription(
            tuple(sorted(set(self._topics()))),
            assignor.user_data(held, membership.generation),
            owned,
            membership.generation,
            self._settings.client_rack,
        )
        return JoinGroupRequestProtocol(name=assignor.name, metadata=encode_subscription(subscription))

    async def _sync(self, step: Sync) -> None:
        membership = self._membership
        shares: list[SyncGroupRequestAssignment] = []
        if step.is_leader and not self._skips_assignment:
            shares = await self._assignments()
        request = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=membership.generation,
            member_id=membership.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=shares,
        )
        # Shorter than a join: all members have joined, so a coordinator that is silent now has probably failed.
        response = await self._ask(ApiKey.SYNC_GROUP, request)
        code = error_code(response.error_code)
        share = Assignment(())
        if code == ErrorCode.NONE:
            try:
                share = decode_assignment(bytes(response.assignment))
            except ProtocolError as error:
                raise GroupError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, where=f"group {self._group_id}", detail=str(error)
                ) from error
            self._held_before = share.partitions
        membership.synced(code, self._clock.monotonic_ms(), share.partitions)

    async def _assignments(self) -> list[SyncGroupRequestAssignment]:
        """The assignment of every member, computed by the group's leader."""
        assignor = next((one for one in self._settings.assignors if one.name == self._protocol), None)
        if assignor is None:
            raise GroupError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                where=f"group {self._group_id}",
                detail=f"the group chose the assignor {self._protocol}, which this member did not offer",
            )
        topics = {topic for member in self._members for topic in member.topics}
        self._cluster.follow(topics)
        view = await self._cluster.refresh(topics)
        self._counted = _counts(view, topics)
        shares = assignor.assign(self._counted, self._members)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(Assignment(tuple(share))))
            for member_id, share in shares.items()
        ]

    async def _heartbeat(self) -> None:
        membership = self._membership
        request = HeartbeatRequest(
            group_id=self._group_id, generation_id=membership.generation, member_id=membership.member_id
        )
        timeout_ms = min(self._settings.request_timeout_ms, self._settings.session_timeout_ms)
        response = await self._ask(ApiKey.HEARTBEAT, request, timeout_ms=timeout_ms)
        membership.heartbeat_answered(error_code(response.error_code), self._clock.monotonic_ms())

    # ------------------------------------------------------------------------------------------ callbacks

    async def _perform(self, step: Revoke | Assign) -> None:
        """Have the application run its callbacks, and send heartbeats meanwhile."""
        callback = asyncio.create_task(self._run_callback(step))
        try:
            while not callback.done():
                await asyncio.wait({callback}, timeout=self._settings.heartbeat_interval_ms / 1000)
                if not callback.done():
                    await self._stay(step)
        except BaseException:
            callback.cancel()
            raise
        callback.result()
        now_ms = self._clock.monotonic_ms()
        if isinstance(step, Revoke):
            self._membership.revoked(step, now_ms)
        else:
            self._membership.assigned(step, now_ms)

    async def _stay(self, step: Revoke | Assign) -> None:
        self._look_around()
        now_ms = self._clock.monotonic_ms()
        membership = self._membership
        if not membership.is_in_group() or (isinstance(step, Revoke) and step.lost):
            return
        try:
            if membership.is_overdue(now_ms):
                await self._expire()
            else:
                await self._heartbeat()
        except PenstockError as error:
            _log.info("heartbeat failed: group=%s error=%s", self._group_id, error)
            self._cluster.forget_coordinator("group", self._group_id)
        if not membership.is_in_group():
            self._on_loss()

    # ------------------------------------------------------------------------------------------ leaving

    async def _expire(self) -> None:
        _log.warning(
            "leaving the group because the consumer did not poll; lower max_poll_records or raise "
            "max_poll_interval_ms: group=%s max_poll_interval_ms=%d",
            self._group_id, self._settings.max_poll_interval_ms,
        )  # fmt: skip
        # A static member is expected to return; its session ends by itself.
        if self._settings.group_instance_id is None:
            await self.leave("the consumer did not poll for max_poll_interval_ms")
        self._membership.left(self._clock.monotonic_ms())
        self._on_loss()

    async def leave(self, reason: str) -> None:
        """Send LeaveGroup, so that the group does not wait for the session to end. A failure is only logged."""
        membership = self._membership
        if not membership.member_id or membership.state is MemberState.EXPIRED:
            return
        timeout_ms = min(self._settings.request_timeout_ms, 5_000)
        try:
            connection = await self._cluster.to_coordinator("group", self._group_id)
            version = connection.version_of(ApiKey.LEAVE_GROUP)
            request = LeaveGroupRequest(group_id=self._group_id)
            if version >= _LEAVES_MANY_FROM:
                request.members = [MemberIdentity(member_id=membership.member_id, reason=reason)]
            else:
                request.member_id = membership.member_id
            await connection.request(ApiKey.LEAVE_GROUP, request, version=version, timeout_ms=timeout_ms)
        except PenstockError as error:
            _log.info("LeaveGroup failed: group=%s error=%s", self._group_id, error)

    def close(self) -> None:
        self._stop_listening()
        self._membership.close()

    # ------------------------------------------------------------------------------------------ changes

    def _cluster_changed(self, old: ClusterView, new: ClusterView) -> None:
        membership = self._membership
        if membership.is_leader and self._counted:
            counts = _counts(new, self._counted)
            # A topic that is missing for a moment is not taken away from its members.
            if any(counts.get(topic, 0) > count for topic, count in self._counted.items()):
                membership.request_rejoin("a topic has more partitions", self._clock.monotonic_ms())
        self.wake()

    def _fatal(self, code: ErrorCode) -> PenstockError:
        hint = None
        if code == ErrorCode.INVALID_SESSION_TIMEOUT:
            hint = (
                f"session_timeout_ms is {self._settings.session_timeout_ms}; the broker's limits are its settings "
                "group.min.session.timeout.ms and group.max.session.timeout.ms"
            )
        return error_for(code, where=f"group {self._group_id}", hint=hint)


def _subscription(metadata: bytes) -> Subscription:
    try:
        return decode_subscription(bytes(metadata))
    except ProtocolError as error:
        _log.warning("a member's subscription cannot be decoded, it gets no partitions: error=%s", error)
        return Subscription(())


def _counts(view: ClusterView, topics: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in topics:
        topic = view.topics.get(name)
        counts[name] = len(topic.partitions) if topic is not None else 0
    return counts


# --------------------------------------------------------------------------------------------------- commits


class _Pending:
    """A requested commit. `turn` is done when it may be sent."""

    __slots__ = ("committer", "is_outdated", "offsets", "turn")

    def __init__(self, offsets: Offsets, committer: Committer) -> None:
        self.offsets = offsets
        self.committer = committer
        self.is_outdated = False  # whether one of the partitions was revoked since
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _CommitQueue:
    """Commits in the order of the calls, not of when their tasks first run. The first has its turn until it leaves."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def __iter__(self) -> Iterator[_Pending]:
        return iter(self._pending)

    def enter(self, pending: _Pending) -> _Pending:
        self._pending.append(pending)
        self._call()
        return pending

    def leave(self, pending: _Pending) -> None:
        self._pending.remove(pending)
        self._call()

    def _call(self) -> None:
        if self._pending and not self._pending[0].turn.done():
            self._pending[0].turn.set_result(None)


class Commits:
    def __init__(
        self, store: OffsetStore, settings: ConsumerSettings, clock: Clock, on_rejection: Callable[[], None]
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._on_rejection = on_rejection
        self._queue = _CommitQueue()
        self._saved: dict[TopicPartition, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.count = self.failures = 0
        self.membership: Membership | None = None
        """The member as which offsets are committed; None outside of a group."""

    def forget(self, partition: TopicPartition) -> None:
        """The partition was revoked: from now on another member commits its offsets."""
        self._saved.pop(partition, None)
        for pending in self._queue:
            pending.is_outdated = pending.is_outdated or partition in pending.offsets

    async def drain(self) -> None:
        """Wait for the commits of `commit_soon`."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self.drain()

    def consumed(self, states: Iterable[PartitionState]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions that are not committed yet."""
        return {
            state.partition: OffsetAndMetadata(state.position, state.epoch, "")
            for state in states
            if state.position >= 0 and state.has_position and self._saved.get(state.partition) != state.position
        }

    @property
    def committer(self) -> Committer:
        membership = self.membership
        if membership is None:
            return NO_MEMBER
        return Committer(membership.generation, membership.member_id, self._settings.group_instance_id)

    def _group_id(self) -> str:
        if self._settings.group_id is None:
            raise ConfigError("offsets cannot be committed without a group", hint="Give the consumer a group_id")
        return self._settings.group_id

    async def commit(self, offsets: Offsets, timeout_ms: float) -> None:
        group_id = self._group_id()
        if not offsets:
            return
        pending = self._queue.enter(_Pending(offsets, self.committer))
        try:
            await self._commit(group_id, pending, timeout_ms)
        finally:
            self._queue.leave(pending)

    async def _commit(self, group_id: str, pending: _Pending, timeout_ms: float) -> None:
        offsets = pending.offsets
        committer = NO_MEMBER
        self.failures += 1  # until it has succeeded
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await pending.turn
                committer = self.committer
                if self.membership is not None and committer.generation == NO_MEMBER.generation:
                    # Sent without a generation, it would be accepted while the group is empty, and could take back what
                    # other members have committed.
                    reason = "this consumer is not a member of the group now"
                    raise CommitFailed(group_id, reason, ErrorCode.UNKNOWN_MEMBER_ID)
                if pending.is_outdated:
                    committer = pending.committer
                await self._store.save(group_id, offsets, committer)
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            raise TimedOut(
                f"the offsets of group {group_id} were not committed within {timeout_ms:.0f} ms",
                hint="They may still have been committed. Check that the brokers are up",
            ) from None
        except GroupError as error:
            if error.code not in _GONE:
                raise
            if self.membership is not None and committer == self.committer:
                self.membership.commit_rejected(error.code, self._clock.monotonic_ms())
                self._on_rejection()
            raise CommitFailed(group_id, error.message, error.code) from error
        self.failures -= 1
        self.count += 1
        for partition, saved in offsets.items():
            self._saved[partition] = saved.offset

    def commit_soon(
        self,
        offsets: Offsets,
        done: OnCommit | None = None,
    ) -> None:
        """Commit without waiting; `done` is called with the outcome, on the loop's thread."""
        if not offsets:
            return
        pending = self._queue.enter(_Pending(dict(offsets), self.committer))

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._queue.leave(pending)

        task = asyncio.create_task(self._commit_quietly(pending, done))
        self._tasks.add(task)
        task.add_done_callback(over)

    async def _commit_quietly(
        self,
        pending: _Pending,
        done: OnCommit | None,
    ) -> None:
        failure: BaseException | None = None
        try:
            await self._commit(self._group_id(), pending, self._settings.default_api_timeout_ms)
        except PenstockError as error:
            failure = error
            _log.warning("commit failed: error=%s", error)
        if done is not None:
            try:
                done(pending.offsets, failure)
            except Exception:  # noqa: BLE001 - the application's function must not end the loop's work
                _log.exception("a commit callback failed")

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        group_id = self._group_id()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._store.load(group_id, list(partitions))
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            raise TimedOut(f"the offsets of group {group_id} were not found within {timeout_ms:.0f} ms") from None
