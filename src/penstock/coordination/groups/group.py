"""A classic group: who its members are, which generation they form, and in which of five states it is.

    Empty ──join──> PreparingRebalance ──all joined, or time is up──> CompletingRebalance ──assigned──> Stable
      ^                    │      ^                                          │                          │
      └──nobody is left────┘      └───────a member joins, leaves or dies─────┴──────────────────────────┘

All of this is what the coordinator knows at the moment. What outlives it is the `SavedGroup` of its last generation,
which `saved` makes and `load` reads. This module keeps the parts consistent with each other; `rebalance`, `joining`,
`syncing` and `leaving` decide what happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Final

from penstock.coordination.errors import ImpossibleTransition, Refused
from penstock.coordination.events import RequestContext, Turn
from penstock.coordination.group_records import NO_TIME, SavedGroup
from penstock.coordination.groups.members import PROMISE_BYTES, Member, MemberMemory, loaded_member, size_of
from penstock.coordination.groups.subscriptions import CONSUMER_PROTOCOL, subscribed_topics
from penstock.coordination.refusals import refuse_join
from penstock.coordination.settings import GroupSettings
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.join_group import JoinGroupResponse
from penstock.wire.schemas.sync_group import SyncGroupResponse

NEVER: Final = 2**63 - 1


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState

_STEPS: Final = {
    _EMPTY: {_PREPARING, _DEAD},
    _PREPARING: {_COMPLETING, _EMPTY, _DEAD},
    _COMPLETING: {_STABLE, _PREPARING, _DEAD},
    _STABLE: {_PREPARING, _DEAD},
    _DEAD: set[GroupState](),
}


class Group:
    """The live state of one group."""

    def __init__(self, group_id: str, settings: GroupSettings, memory: MemberMemory) -> None:
        self.group_id = group_id
        self.settings = settings
        self.memory = memory
        self.state = _EMPTY
        self.since_ms = NO_TIME
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        self.pending: dict[str, int] = {}
        """Ids given to members that have not joined with them yet, and until when they may."""
        self.subscribed: frozenset[str] | None = None
        """Topics that the generation reads, as far as its members' bytes can be understood."""

        self.is_initial = False
        self.has_grown = False
        self.patience_ms = 0
        """Of an initial rebalance: by how much it may still be put off for the sake of further members."""
        self.join_deadline_ms = NEVER
        self.sync_deadline_ms = NEVER
        self.earliest_ms = NEVER
        """No deadline of the group lies before this; deadlines that were moved may all lie behind it."""
        self.scheduled_ms = NEVER
        self.writes_on_their_way = 0

        self._awaiting_join = 0
        self._supporters: Counter[str] = Counter()

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    @property
    def is_idle(self) -> bool:
        """Nothing is known of the group but what has been written."""
        return self.state is _EMPTY and not self.members and not self.pending and not self.writes_on_their_way

    @property
    def awaiting_join(self) -> int:
        return self._awaiting_join

    @property
    def all_joined(self) -> bool:
        return self._awaiting_join == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_subscribed(self, topic: str) -> bool:
        """When in doubt, a group of consumers reads the topic."""
        return self.uses_consumer_protocol if self.subscribed is None else topic in self.subscribed

    def enter(self, state: GroupState, now_ms: int) -> None:
        if state not in _STEPS[self.state]:
            raise ImpossibleTransition(self.group_id, self.state.value, state.value)
        self.state = state
        self.since_ms = now_ms

    # Members

    def add(self, member: Member, protocol_type: str, waiting: RequestContext, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        member.is_new = True
        self._insert(member)
        self.leader = self.leader or member.member_id
        self._drop_promise(member.member_id)
        self._wait_for_join(member, waiting)
        self.expect(member, now_ms + self.settings.new_member_join_timeout_ms)

    def update(self, member: Member, protocols: dict[str, bytes], waiting: RequestContext, turn: Turn) -> None:
        """A member joins again, with what it now offers; its JoinGroup that may still wait is overtaken."""
        self._withdraw_support(member)
        member.protocols = protocols
        self._supporters.update(protocols.keys())
        self._count(member)
        if member.joining is not None:
            self.answer_join(
                member, refuse_join(ErrorCode.REBALANCE_IN_PROGRESS, member.joining.api_version, member.member_id), turn
            )
        self._wait_for_join(member, waiting)

    def remove(self, member_id: str, turn: Turn, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """A member, or the promise of one, is no longer there. What it waits for is answered with `code`."""
        self._drop_promise(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.memory.held -= member.held_bytes
        self._withdraw_support(member)
        self._dismiss(member, code, turn)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def replace_static(self, old_id: str, new_id: str, context: RequestContext, turn: Turn) -> Member:
        """The instance starts again under a new member id; whoever still waits under the old one is fenced."""
        old = self.members[old_id]
        leads = self.leader == old_id
        self.remove(old_id, turn, ErrorCode.FENCED_INSTANCE_ID)
        member = Member(
            member_id=new_id,
            instance_id=old.instance_id,
            client_id=context.client_id,
            client_host=context.client_host,
            session_timeout_ms=old.session_timeout_ms,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self._insert(member)
        if leads:
            self.leader = new_id
        return member

    def validate(self, member_id: str, instance_id: str | None) -> Member:
        """The member, or Refused: unknown, or fenced by a later start of the same instance."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is not None and current != member_id:
                raise Refused(ErrorCode.FENCED_INSTANCE_ID)
            if current is None:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def promise(self, member_id: str, deadline_ms: int) -> None:
        """An id is given to a member, which has to join with it by then."""
        self.pending[member_id] = deadline_ms
        self.memory.held += PROMISE_BYTES
        self.due(deadline_ms)

    def _drop_promise(self, member_id: str) -> None:
        if self.pending.pop(member_id, None) is not None:
            self.memory.held -= PROMISE_BYTES

    def has_room_for(self, member_id: str, protocols: dict[str, bytes]) -> bool:
        """Whether a member may bring these, as far as the memory of all groups goes."""
        member = self.members.get(member_id)
        before = 0 if member is None else member.held_bytes
        more = size_of(protocols) - before
        return more <= 0 or self.memory.held + more <= self.settings.max_members_bytes

    def _count(self, member: Member) -> None:
        size = size_of(member.protocols)
        self.memory.held += size - member.held_bytes
        member.held_bytes = size

    def _insert(self, member: Member) -> None:
        self.members[member.member_id] = member
        self._count(member)
        self._supporters.update(member.protocols.keys())
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    # Protocols

    def _withdraw_support(self, member: Member) -> None:
        for name in member.protocols:
            self._supporters[name] -= 1
            # Names that nobody uses any more would pile up.
            if not self._supporters[name]:
                del self._supporters[name]

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        if self.state is _EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        everyone = len(self.members)
        return protocol_type == self.protocol_type and any(self._supporters[name] == everyone for name in names)

    def chosen_protocol(self) -> str | None:
        """The protocol with the most votes of those that all support; of several, what the eldest prefers."""
        everyone = len(self.members)
        candidates = {name for name, count in self._supporters.items() if count == everyone}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__, default=None)

    # Generations

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol = self.chosen_protocol()
        self.enter(_COMPLETING if self.members else _EMPTY, now_ms)
        self.note_subscriptions()

    def note_subscriptions(self) -> None:
        self.subscribed = subscribed_topics(
            self.protocol_type, (member.protocols.get(self.protocol or "", b"") for member in self.members.values())
        )

    def saved(self, now_ms: int, assignments: dict[str, bytes]) -> SavedGroup:
        members = tuple(
            member.saved(self.protocol, assignments.get(member.member_id, b"")) for member in self.members.values()
        )
        return SavedGroup(self.protocol_type or "", self.generation, self.protocol, self.leader, now_ms, members)

    def load(self, saved: SavedGroup, now_ms: int) -> None:
        """Takes up a generation that another coordinator left, giving its members time to find this one."""
        self.state = _STABLE if saved.members else _EMPTY
        self.since_ms = saved.since_ms
        self.generation = saved.generation
        self.protocol_type = saved.protocol_type or None
        self.protocol = saved.protocol
        self.leader = saved.leader
        for each in saved.members:
            member = loaded_member(each, saved.protocol)
            self._insert(member)
            self.expect(member, now_ms + member.session_timeout_ms)
        self.note_subscriptions()

    # Waiting and deadlines

    def answer_join(self, member: Member, response: JoinGroupResponse, turn: Turn) -> None:
        if member.joining is not None:
            turn.reply(member.joining, response)
            member.joining = None
            self._awaiting_join -= 1

    def wait_for_sync(self, member: Member, waiting: RequestContext, turn: Turn) -> None:
        self.answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), turn)
        member.syncing = waiting
        member.must_sync = False

    def answer_sync(self, member: Member, response: SyncGroupResponse, turn: Turn) -> None:
        if member.syncing is not None:
            turn.reply(member.syncing, response)
            member.syncing = None

    def renew(self, member: Member, now_ms: int) -> None:
        """A sign of life."""
        self.expect(member, now_ms + member.session_timeout_ms)

    def expect(self, member: Member, deadline_ms: int) -> None:
        member.deadline_ms = deadline_ms
        self.due(deadline_ms)

    def due(self, deadline_ms: int) -> None:
        if deadline_ms < self.earliest_ms:
            self.earliest_ms = deadline_ms

    def find_earliest(self) -> None:
        """Looks at every deadline, after those that had come were dealt with."""
        sessions = (member.deadline_ms for member in self.members.values() if member.can_expire)
        self.earliest_ms = min(
            min(sessions, default=NEVER),
            min(self.pending.values(), default=NEVER),
            self.join_deadline_ms,
            self.sync_deadline_ms,
        )

    def abandon(self, code: ErrorCode, turn: Turn) -> None:
        """The group is no longer ours: whoever waits is told."""
        for member in self.members.values():
            self._dismiss(member, code, turn)
            self.memory.held -= member.held_bytes
        self.memory.held -= PROMISE_BYTES * len(self.pending)
        self.pending.clear()
        self.state = _DEAD

    def _wait_for_join(self, member: Member, waiting: RequestContext) -> None:
        member.joining = waiting
        self._awaiting_join += 1

    def _dismiss(self, member: Member, code: ErrorCode, turn: Turn) -> None:
        if member.joining is not None:
            # An id that is not valid any more is not worth keeping, unless it is another coordinator's to know.
            known = member.member_id if code is not ErrorCode.UNKNOWN_MEMBER_ID else ""
            self.answer_join(member, refuse_join(code, member.joining.api_version, known), turn)
        self.answer_sync(member, SyncGroupResponse(error_code=code), turn)
