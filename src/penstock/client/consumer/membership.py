"""The group membership of one consumer as a state machine. Pure.

    loop:  step = membership.next_step(now_ms)
           carry it out; report the outcome: joined, synced, heartbeat_answered, revoked, assigned, unreachable

A member joins, syncs (the leader distributes the shares) and sends heartbeats until the coordinator announces a
rebalance. Eager members give back everything before they join; cooperative members join with what they have, give
back what the new share lacks, and join again. A member that the coordinator no longer knows has lost its
partitions and commits nothing. Partitions go only by a `Revoke` step and come only by an `Assign` step. A consumer
that does not poll for `max_poll_interval_ms` leaves the group until its next poll.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.assignors import NO_GENERATION
from penstock.wire.protocol import ErrorCode, error_code

NO_MEMBER = ""

Partitions = frozenset[TopicPartition]
NONE: Partitions = frozenset()


class MemberState(Enum):
    OUTSIDE = "outside"  # has to join
    JOINED = "joined"  # has to sync
    MEMBER = "member"  # sends heartbeats
    EXPIRED = "expired"  # left because the application did not poll
    FAILED = "failed"  # the group cannot be joined
    LEFT = "left"


class Join(NamedTuple):
    """Send JoinGroup."""


class Sync(NamedTuple):
    """Send SyncGroup, with the assignments of all members if `is_leader`."""

    is_leader: bool


class Heartbeat(NamedTuple):
    """Send Heartbeat."""


class Revoke(NamedTuple):
    """Stop reading these. If `lost`, another member may own them already."""

    partitions: Partitions
    lost: bool


class Assign(NamedTuple):
    """Start reading `added`; `everything` is the whole assignment."""

    added: Partitions
    everything: Partitions


class Leave(NamedTuple):
    """Send LeaveGroup: the application does not poll."""


class Idle(NamedTuple):
    """Nothing to do before `until_ms`, unless something changes."""

    until_ms: float


class Fail(NamedTuple):
    """The group cannot be joined; retrying does not help."""

    code: ErrorCode


Step = Join | Sync | Heartbeat | Revoke | Assign | Leave | Idle | Fail

_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class Membership:
    """One consumer's membership in its group."""

    def __init__(
        self,
        *,
        is_cooperative: bool,
        instance_id: str | None,
        heartbeat_interval_ms: int,
        max_poll_interval_ms: int,
        retry_backoff_ms: int = 100,
        now_ms: float = 0.0,
    ) -> None:
        self.is_cooperative = is_cooperative
        self.instance_id = instance_id
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._max_poll_interval_ms = max_poll_interval_ms
        self._retry_backoff_ms = retry_backoff_ms
        self.state = MemberState.OUTSIDE
        self.member_id = NO_MEMBER
        self.generation = NO_GENERATION
        self.is_leader = False
        self.owned: Partitions = NONE
        self.rejoin_reason = "joining for the first time"
        self._share: Partitions | None = None
        self._loss: Partitions = NONE
        self._topics: frozenset[str] = frozenset()
        self._next_heartbeat_ms = now_ms
        self._not_before_ms = now_ms
        self._polled_ms = now_ms
        self._failure: ErrorCode | None = None
        self._owes_rejoin = False

    def is_in_group(self) -> bool:
        """Whether it has a generation, which commits carry."""
        return self.generation != NO_GENERATION and self.state in (
            MemberState.MEMBER,
            MemberState.JOINED,
            MemberState.OUTSIDE,
        )

    # --- what to do

    def next_step(self, now_ms: float) -> Step:
        if self._failure is not None and not self._loss:
            return Fail(self._failure)
        if self._loss:
            return Revoke(self._loss, lost=True)
        if self.state in (MemberState.EXPIRED, MemberState.LEFT):
            return Idle(float("inf"))
        if self.member_id and self.is_overdue(now_ms):
            return Leave()
        if now_ms < self._not_before_ms:
            return Idle(self._not_before_ms)
        if self.state is MemberState.OUTSIDE:
            surplus = self._surplus()
            return Revoke(surplus, lost=False) if surplus else Join()
        if self.state is MemberState.JOINED:
            return Sync(self.is_leader)
        return self._as_member(now_ms)

    def _surplus(self) -> Partitions:
        """Partitions to give back before joining."""
        if not self.is_cooperative:
            return self.owned
        return frozenset(partition for partition in self.owned if partition.topic not in self._topics)

    def _as_member(self, now_ms: float) -> Step:
        if self._share is not None:
            gone = self.owned - self._share
            return Revoke(gone, lost=False) if gone else Assign(self._share - self.owned, self._share)
        if now_ms >= self._next_heartbeat_ms:
            return Heartbeat()
        return Idle(min(self._next_heartbeat_ms, self._polled_ms + self._max_poll_interval_ms))

    def is_overdue(self, now_ms: float) -> bool:
        """Whether the application has not polled for max_poll_interval_ms."""
        return now_ms - self._polled_ms > self._max_poll_interval_ms

    # --- what happened

    def polled(self, now_ms: float) -> None:
        """The application polled."""
        self._polled_ms = now_ms
        if self.state is MemberState.EXPIRED:
            self._loss = self.owned
            self._forget_membership()
            self._rejoin("the consumer did not poll for max_poll_interval_ms", now_ms)

    def wants(self, topics: Iterable[str], now_ms: float) -> None:
        """Read these topics from now on."""
        chosen = frozenset(topics)
        if chosen != self._topics:
            self._topics = chosen
            self.request_rejoin("the subscription changed", now_ms)

    def request_rejoin(self, reason: str, now_ms: float) -> None:
        """The group has to rebalance: topics or partitions changed."""
        if self.state in (MemberState.MEMBER, MemberState.JOINED):
            self._rejoin(reason, now_ms)

    def joined(
        self, code: int, now_ms: float, *, member_id: str = NO_MEMBER, generation: int = NO_GENERATION, leader: str = ""
    ) -> None:
        if code == ErrorCode.NONE:
            self.member_id, self.generation = member_id, generation
            self.is_leader = leader == member_id
            self.state = MemberState.JOINED
        elif code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = member_id
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._back_off(now_ms)
        else:
            self._rejected(error_code(code), now_ms)

    def synced(self, code: int, now_ms: float, share: Iterable[TopicPartition] = ()) -> None:
        if code == ErrorCode.NONE:
            if self.state is not MemberState.JOINED:
                return  # a rebalance was requested while this response was in flight
            self._share = frozenset(share)
            self.state = MemberState.MEMBER
            self._next_heartbeat_ms = now_ms + self._heartbeat_interval_ms
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin("the group rebalanced before the assignment was distributed", now_ms)
        else:
            self._rejected(error_code(code), now_ms)

    def heartbeat_answered(self, code: int, now_ms: float) -> None:
        self._next_heartbeat_ms = now_ms + self._heartbeat_interval_ms
        if code == ErrorCode.NONE:
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("the group is rebalancing", now_ms)
        else:
            self._rejected(error_code(code), now_ms)

    def revoked(self, step: Revoke, now_ms: float) -> None:
        """The partitions are given back and no longer read here."""
        self.owned -= step.partitions
        self._loss -= step.partitions
        if not step.lost and self.is_cooperative and self._share is not None:
            # Their new owner gets them only after this member has joined again without them.
            self._owes_rejoin = True

    def assigned(self, step: Assign, now_ms: float) -> None:
        """The application knows its new partitions."""
        self.owned = step.everything
        self._share = None
        if self.generation == NO_GENERATION:
            self._loss = self.owned
        elif self._owes_rejoin:
            self._rejoin("gave back partitions that move to other members", now_ms)

    def unreachable(self, now_ms: float) -> None:
        """The coordinator did not answer; the next one says whether this is still a member."""
        self._back_off(now_ms)
        if self.state is MemberState.JOINED:
            self._rejoin("the coordinator could not be reached", now_ms, at_once=False)

    def left(self, now_ms: float) -> None:
        """The Leave step was carried out."""
        self.state = MemberState.EXPIRED
        self._share = None

    def close(self) -> None:
        self.state = MemberState.LEFT

    def commit_rejected(self, code: int, now_ms: float) -> None:
        """A rejected commit says something about the membership, too."""
        if code in _LOST or code == ErrorCode.FENCED_INSTANCE_ID:
            self._rejected(error_code(code), now_ms)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("the group is rebalancing", now_ms)

    # --- transitions

    def _rejected(self, code: ErrorCode, now_ms: float) -> None:
        if code in _LOST:
            self._loss = self.owned
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = NO_MEMBER
            self.generation = NO_GENERATION
            self._rejoin(f"the coordinator answered {code.name}", now_ms)
        elif code in _ELSEWHERE or code.retriable:
            self.unreachable(now_ms)
        else:
            self._loss = self.owned
            self.generation = NO_GENERATION
            self._failure = code
            self.state = MemberState.FAILED

    def _rejoin(self, reason: str, now_ms: float, *, at_once: bool = True) -> None:
        self.state = MemberState.OUTSIDE
        self.rejoin_reason = reason
        self._share = None
        self._owes_rejoin = False
        if at_once:
            self._not_before_ms = now_ms

    def _back_off(self, now_ms: float) -> None:
        self._not_before_ms = now_ms + self._retry_backoff_ms
        self._next_heartbeat_ms = max(self._next_heartbeat_ms, self._not_before_ms)

    def _forget_membership(self) -> None:
        self.member_id = NO_MEMBER
        self.generation = NO_GENERATION
        self.is_leader = False
