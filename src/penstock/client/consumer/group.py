"""A member at work: carries out the steps of its `Membership` against the group's coordinator.

Rule: decisions are the membership's; here are only the requests, and the waiting for the user's side to do its duties.
While it waits it goes on beating, so a user who is slow to let partitions go does not lose them, until
max_poll_interval_ms are over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from penstock.client.cluster import ClusterClient
from penstock.client.cluster_view import ClusterView
from penstock.client.connection import Connection
from penstock.client.consumer.assignors import Assignor, GroupMember
from penstock.client.consumer.membership import (
    Assign,
    Beat,
    Fail,
    Join,
    Leave,
    Membership,
    Rest,
    Revoke,
    State,
    Step,
    Sync,
)
from penstock.client.consumer.protocol import (
    PROTOCOL_TYPE,
    Assignment,
    ProtocolError,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import GroupError, PenstockError, UnsupportedVersion, error_for
from penstock.runtime.clock import Clock
from penstock.wire.api_keys import ApiKey
from penstock.wire.error_codes import ErrorCode, error_code
from penstock.wire.schemas.heartbeat import HeartbeatRequest
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.schemas.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.schemas.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

_log = logging.getLogger(__name__)

_INSTANCE_IDS_FROM: Final = {ApiKey.JOIN_GROUP: 5, ApiKey.SYNC_GROUP: 3, ApiKey.HEARTBEAT: 3}
_LEAVES_MANY_FROM: Final = 3
# What brokers before 0.10.1 accept unless they are told otherwise; today's default session is longer.
_LONGEST_OLD_SESSION_MS: Final = 30_000
# What a rebalance usually takes; a coordinator that takes longer is looked after.
_REBALANCE_MS: Final = 5_000.0
_LEAST_REST_MS: Final = 1.0
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

DoDuty = Callable[[Revoke | Assign], Awaitable[None]]


class GroupWorker:
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
        do_duty: DoDuty,
        on_failure: Callable[[BaseException], None],
        on_loss: Callable[[], None],
    ) -> None:
        """`topics`: what to read now. `visits`: a value that changes while the user reads."""
        self._group_id = group_id
        self._cluster = cluster
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._topics = topics
        self._visits = visits
        self._seen: object = None
        self._do_duty = do_duty
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
        """Whether a member wants a topic that is not there, as far as the leader knows: it alone looks for all."""
        return self._membership.is_leader and any(count == 0 for count in self._counted.values())

    def wake(self) -> None:
        """Something happened that the membership should hear of before its next heartbeat."""
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
                _log.info("group %s: %s; trying again", self._group_id, error)
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
        if isinstance(step, Rest):
            await self._rest(step.until_ms)
        elif isinstance(step, Beat):
            await self._beat()
        elif isinstance(step, Revoke | Assign):
            await self._perform(step)
        elif isinstance(step, Join):
            await self._join()
        elif isinstance(step, Sync):
            await self._sync(step)
        elif isinstance(step, Leave):
            await self._expire()

    async def _rest(self, until_ms: float) -> None:
        # Not less than a timer can tell from nothing: whoever rests for that long would be back before it is over.
        wait_ms = max(until_ms - self._clock.monotonic_ms(), _LEAST_REST_MS)
        try:
            async with asyncio.timeout(None if wait_ms == float("inf") else wait_ms / 1000):
                await self._wakened.wait()
        except TimeoutError:
            return
        finally:
            self._wakened.clear()

    # Requests

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
        # The answer comes when all members are there, for which the coordinator waits this long.
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
            shares = await self._shares()
        request = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=membership.generation,
            member_id=membership.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=shares,
        )
        # Not as long as a join may take: everybody has joined, and a coordinator that is silent now is likely gone.
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

    async def _shares(self) -> list[SyncGroupRequestAssignment]:
        """As the leader: what everybody gets."""
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

    async def _beat(self) -> None:
        membership = self._membership
        request = HeartbeatRequest(
            group_id=self._group_id, generation_id=membership.generation, member_id=membership.member_id
        )
        timeout_ms = min(self._settings.request_timeout_ms, self._settings.session_timeout_ms)
        response = await self._ask(ApiKey.HEARTBEAT, request, timeout_ms=timeout_ms)
        membership.beaten(error_code(response.error_code), self._clock.monotonic_ms())

    # Duties

    async def _perform(self, step: Revoke | Assign) -> None:
        """Have the user's side do it, and beat meanwhile."""
        duty = asyncio.ensure_future(self._do_duty(step))
        try:
            while not duty.done():
                await asyncio.wait({duty}, timeout=self._settings.heartbeat_interval_ms / 1000)
                if not duty.done():
                    await self._stay(step)
        except BaseException:
            duty.cancel()
            raise
        duty.result()
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
                await self._beat()
        except PenstockError as error:
            _log.info("group %s: heartbeat failed: %s", self._group_id, error)
            self._cluster.forget_coordinator("group", self._group_id)
        if not membership.is_in_group():
            self._on_loss()

    # The end

    async def _expire(self) -> None:
        _log.warning(
            "group %s: nobody has polled for max_poll_interval_ms (%d ms); leaving, so that others can have the "
            "partitions. Handle fewer records at once or raise max_poll_interval_ms",
            self._group_id, self._settings.max_poll_interval_ms,
        )  # fmt: skip
        # A static member is expected back; its session ends without a farewell.
        if self._settings.group_instance_id is None:
            await self.leave("nobody polls")
        self._membership.left(self._clock.monotonic_ms())
        self._on_loss()

    async def leave(self, reason: str) -> None:
        """Say farewell, so that nobody waits for the session to end. Failing to is no harm."""
        membership = self._membership
        if not membership.member_id or membership.state is State.EXPIRED:
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
            _log.info("group %s: could not say farewell: %s", self._group_id, error)

    def close(self) -> None:
        self._stop_listening()
        self._membership.close()

    # News

    def _cluster_changed(self, old: ClusterView, new: ClusterView) -> None:
        membership = self._membership
        if membership.is_leader and self._counted:
            counts = _counts(new, self._counted)
            # A topic that is missing for a moment is no reason to take it from everybody.
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
        _log.warning("a member of the group says what cannot be read; it gets nothing: %s", error)
        return Subscription(())


def _counts(view: ClusterView, topics: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in topics:
        topic = view.topics.get(name)
        counts[name] = len(topic.partitions) if topic is not None else 0
    return counts
