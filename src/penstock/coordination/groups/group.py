"""A classic group: its settings, members, generation and state; and the groups of a shard.

    Empty ──join──> PreparingRebalance ──all joined, or time is up──> CompletingRebalance ──assigned──> Stable
      ^                    │      ^                                          │                          │
      └──no member left────┘      └───────a member joins, leaves or dies─────┴──────────────────────────┘

This is what the coordinator knows at the moment. What outlives it is the `SavedGroup` of the last generation. This
module keeps the parts consistent; `rebalance` decides what happens.

A member is alive until its deadline. While it waits for a response (JoinGroup, SyncGroup) the deadline does not count,
except for a new member that has never had a response. Members' subscriptions are read only to know which offsets are
still used; version 0 fields begin every version. `GroupTable` schedules a group for the earliest deadline it had when
last looked at, so a heartbeat costs nothing there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from penstock.config_def import DAY_MS, INT_MAX, MIB, MINUTE_MS, ConfigType, Importance, setting
from penstock.coordination.errors import ImpossibleTransition, Rejected
from penstock.coordination.group_records import NO_TIME, SavedGroup, SavedMember
from penstock.coordination.responses import RequestContext, Turn, join_error_response
from penstock.runtime.randomness import Random
from penstock.wire.codec import codec_for
from penstock.wire.errors import WireError
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolSubscription
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.schemas.sync_group import SyncGroupResponse

NEVER: Final = 2**63 - 1
NO_MEMBER_ID: Final = ""
CONSUMER_PROTOCOL: Final = "consumer"
PENDING_MEMBER_BYTES: Final = 512
"""What the id of a member that has not joined with it yet takes."""

_INT, _HIGH = ConfigType.INT, Importance.HIGH
_VERSION_BYTES: Final = 2
# A member id starts with the client id, and must fit a protocol string.
_MAX_STEM_LENGTH: Final = 255
# What a member without protocols takes, and a protocol without metadata.
_MEMBER_BYTES: Final = 1024
_PROTOCOL_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class GroupSettings:
    min_session_timeout_ms: int = setting(
        _INT, 6_000, "Minimum session timeout that a member may request, in milliseconds.",
        broker="group.min.session.timeout.ms", min=0,
    )  # fmt: skip
    max_session_timeout_ms: int = setting(
        _INT, 30 * MINUTE_MS, "Maximum session timeout that a member may request, in milliseconds.",
        broker="group.max.session.timeout.ms", min=0,
    )  # fmt: skip
    initial_rebalance_delay_ms: int = setting(
        _INT, 3_000, "How long a new group waits for more members before its first assignment, in milliseconds.",
        broker="group.initial.rebalance.delay.ms", min=0,
    )  # fmt: skip
    max_size: int = setting(_INT, INT_MAX, "Maximum number of members of a group.", broker="group.max.size", min=1)
    # Not Kafka's, where only the size of a request bounds what a member sends. A consumer sends its subscription and
    # its partitions: about 30 bytes per partition.
    max_member_bytes: int = setting(
        _INT, MIB, "Maximum size of what a member sends with JoinGroup, in bytes. Not a setting of Kafka.",
        broker="group.max.member.metadata.bytes", min=1,
    )  # fmt: skip
    max_members_bytes: int = setting(
        ConfigType.LONG, 256 * MIB, "Maximum size of what the members of all groups of a broker have sent, in bytes; "
        "beyond, new members are rejected with GROUP_MAX_SIZE_REACHED. Not a setting of Kafka.",
        broker="group.max.metadata.bytes", min=1,
    )  # fmt: skip
    # A new member cannot send heartbeats yet; its wait is bounded by this instead.
    new_member_join_timeout_ms: int = 5 * MINUTE_MS

    offsets_retention_ms: int = setting(
        _INT, 7 * DAY_MS, "How long the offsets of a group are kept after its last member left, in minutes.",
        broker=(("offsets.retention.minutes", MINUTE_MS),), importance=_HIGH, min=1,
    )  # fmt: skip
    offsets_retention_check_interval_ms: int = setting(
        ConfigType.LONG, 10 * MINUTE_MS, "How often the coordinator checks for expired offsets, in milliseconds.",
        broker="offsets.retention.check.interval.ms", importance=_HIGH, min=1,
    )  # fmt: skip
    offset_metadata_max_bytes: int = setting(
        _INT, 4096, "Maximum size of the metadata of a committed offset, in bytes.",
        broker="offset.metadata.max.bytes", importance=_HIGH, min=0,
    )  # fmt: skip
    commit_timeout_ms: int = setting(  # of every write
        _INT, 5_000, "How long a commit may wait for its replicas, in milliseconds.",
        broker="offsets.commit.timeout.ms", importance=_HIGH, min=1,
    )  # fmt: skip
    # The records of one expiry batch; the next one follows when it is committed.
    expiry_batch_records: int = 1_000


# --- members


def subscribed_topics(protocol_type: str | None, subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of these subscriptions; None if they cannot be read."""
    if protocol_type != CONSUMER_PROTOCOL:
        return None
    codec = codec_for(ConsumerProtocolSubscription, 0)
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(codec.decode(subscription, _VERSION_BYTES)[0].topics)
    except WireError:
        return None
    return frozenset(topics)


class MemberMemory:
    """The bytes of all members of all groups of a broker."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


def size_of(protocols: dict[str, bytes]) -> int:
    """The bytes of a member with these protocols."""
    return _MEMBER_BYTES + sum(_PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols.items())


@dataclass(slots=True, eq=False)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: dict[str, bytes]
    """The metadata of its protocols by name, in its order of preference."""
    assignment: bytes = b""
    deadline_ms: int = 0
    is_new: bool = False
    must_sync: bool = False
    """It has joined the current generation and has not synced yet."""
    joining: RequestContext | None = None
    syncing: RequestContext | None = None
    held_bytes: int = 0
    """Its share of MemberMemory."""

    @property
    def can_expire(self) -> bool:
        return self.is_new or (self.joining is None and self.syncing is None)

    def vote(self, candidates: set[str]) -> str | None:
        """The first of its protocols that all members support."""
        return next((name for name in self.protocols if name in candidates), None)

    def saved(self, protocol: str | None, assignment: bytes) -> SavedMember:
        return SavedMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols.get(protocol or "", b""),
            assignment,
        )


def new_member(member_id: str, request: JoinGroupRequest, context: RequestContext) -> Member:
    return Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=context.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        protocols=offered_protocols(request),
    )


def loaded_member(saved: SavedMember, protocol: str | None) -> Member:
    """Only the protocol in use is stored; the member sends all of them with the next rebalance."""
    return Member(
        member_id=saved.member_id,
        instance_id=saved.instance_id,
        client_id=saved.client_id,
        client_host=saved.client_host,
        session_timeout_ms=saved.session_timeout_ms,
        rebalance_timeout_ms=saved.rebalance_timeout_ms,
        protocols={protocol or "": saved.subscription},
        assignment=saved.assignment,
    )


def offered_protocols(request: JoinGroupRequest) -> dict[str, bytes]:
    offered: dict[str, bytes] = {}
    for protocol in request.protocols:
        offered.setdefault(protocol.name, protocol.metadata)
    return offered


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    # Version 0 has only the session timeout.
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def new_member_id(context: RequestContext, instance_id: str | None, random: Random) -> str:
    """The client or instance id, and a UUID: `rack-7-4f0c22b1-...`."""
    stem = context.client_id if instance_id is None else instance_id
    raw = random.uuid_bytes().hex()
    return f"{stem[:_MAX_STEM_LENGTH]}-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"


# --- the group


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState

_TRANSITIONS: Final = {
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
        """Ids of members that have not joined with them yet, with their deadlines."""
        self.subscribed: frozenset[str] | None = None
        """Topics of the generation; None if a subscription cannot be read."""

        self.is_initial = False
        self.has_grown = False
        self.delay_left_ms = 0
        """By how much an initial rebalance can still be delayed for more members."""
        self.join_deadline_ms = NEVER
        self.sync_deadline_ms = NEVER
        self.earliest_ms = NEVER
        """No deadline of the group is before this; deadlines that were moved may all be later."""
        self.scheduled_ms = NEVER
        self.writes_in_flight = 0

        self._awaiting_join = 0
        self._supporters: Counter[str] = Counter()

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    @property
    def is_idle(self) -> bool:
        """Whether nothing is known about the group beyond what is stored."""
        return self.state is _EMPTY and not self.members and not self.pending and not self.writes_in_flight

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
        """Whether the group reads the topic. If subscriptions are unreadable, a consumer group counts as subscribed."""
        return self.uses_consumer_protocol if self.subscribed is None else topic in self.subscribed

    def enter(self, state: GroupState, now_ms: int) -> None:
        if state not in _TRANSITIONS[self.state]:
            raise ImpossibleTransition(f"group {self.group_id!r}", self.state.value, state.value)
        self.state = state
        self.since_ms = now_ms

    # Members.

    def add(self, member: Member, protocol_type: str, waiting: RequestContext, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        member.is_new = True
        self._insert(member)
        self.leader = self.leader or member.member_id
        self._drop_pending_member(member.member_id)
        self._wait_for_join(member, waiting)
        self.expect(member, now_ms + self.settings.new_member_join_timeout_ms)

    def update(self, member: Member, protocols: dict[str, bytes], waiting: RequestContext, turn: Turn) -> None:
        """A member joins again, with its current protocols; an earlier JoinGroup of it is answered with an error."""
        self._withdraw_support(member)
        member.protocols = protocols
        self._supporters.update(protocols.keys())
        self._count(member)
        if member.joining is not None:
            self.answer_join(
                member,
                join_error_response(ErrorCode.REBALANCE_IN_PROGRESS, member.joining.api_version, member.member_id),
                turn,
            )
        self._wait_for_join(member, waiting)

    def remove(self, member_id: str, turn: Turn, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Remove a member or a pending member. Its waiting requests are answered with `code`."""
        self._drop_pending_member(member_id)
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
        """The instance was restarted under a new member id; requests of the old one are fenced."""
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
        """The member. Rejected if it is unknown, or fenced by a later process of the same instance."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is not None and current != member_id:
                raise Rejected(ErrorCode.FENCED_INSTANCE_ID)
            if current is None:
                raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def add_pending_member(self, member_id: str, deadline_ms: int) -> None:
        """A member got an id and must join with it before the deadline."""
        self.pending[member_id] = deadline_ms
        self.memory.held += PENDING_MEMBER_BYTES
        self.due(deadline_ms)

    def _drop_pending_member(self, member_id: str) -> None:
        if self.pending.pop(member_id, None) is not None:
            self.memory.held -= PENDING_MEMBER_BYTES

    def has_room_for(self, member_id: str, protocols: dict[str, bytes]) -> bool:
        """Whether the memory of all groups has room for a member with these protocols."""
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

    # Protocols.

    def _withdraw_support(self, member: Member) -> None:
        for name in member.protocols:
            self._supporters[name] -= 1
            # Unused names would accumulate.
            if not self._supporters[name]:
                del self._supporters[name]

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        if self.state is _EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        everyone = len(self.members)
        return protocol_type == self.protocol_type and any(self._supporters[name] == everyone for name in names)

    def chosen_protocol(self) -> str | None:
        """The protocol with the most votes among those that all support; in a tie, the oldest member's choice."""
        everyone = len(self.members)
        candidates = {name for name, count in self._supporters.items() if count == everyone}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__, default=None)

    # Generations.

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
        """Continue a stored generation; its members have a session timeout to find this coordinator."""
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

    # Waiting requests and deadlines.

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
        """The member has shown that it is alive."""
        self.expect(member, now_ms + member.session_timeout_ms)

    def expect(self, member: Member, deadline_ms: int) -> None:
        member.deadline_ms = deadline_ms
        self.due(deadline_ms)

    def due(self, deadline_ms: int) -> None:
        if deadline_ms < self.earliest_ms:
            self.earliest_ms = deadline_ms

    def find_earliest(self) -> None:
        """Find the earliest deadline, after those that have passed were handled."""
        sessions = (member.deadline_ms for member in self.members.values() if member.can_expire)
        self.earliest_ms = min(
            min(sessions, default=NEVER),
            min(self.pending.values(), default=NEVER),
            self.join_deadline_ms,
            self.sync_deadline_ms,
        )

    def abandon(self, code: ErrorCode, turn: Turn) -> None:
        """The group is no longer coordinated here: waiting requests are answered with `code`."""
        for member in self.members.values():
            self._dismiss(member, code, turn)
            self.memory.held -= member.held_bytes
        self.memory.held -= PENDING_MEMBER_BYTES * len(self.pending)
        self.pending.clear()
        self.state = _DEAD

    def _wait_for_join(self, member: Member, waiting: RequestContext) -> None:
        member.joining = waiting
        self._awaiting_join += 1

    def _dismiss(self, member: Member, code: ErrorCode, turn: Turn) -> None:
        if member.joining is not None:
            # A member that is unknown must not rejoin with its id; another coordinator may know it.
            known = member.member_id if code is not ErrorCode.UNKNOWN_MEMBER_ID else ""
            self.answer_join(member, join_error_response(code, member.joining.api_version, known), turn)
        self.answer_sync(member, SyncGroupResponse(error_code=code), turn)


class GroupTable:
    def __init__(self, settings: GroupSettings, memory: MemberMemory) -> None:
        self._settings = settings
        self._memory = memory
        self._groups: dict[str, Group] = {}
        self._schedule: list[tuple[int, int, Group]] = []
        self._count = 0

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def ensure(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, self._settings, self._memory)
        return group

    def ids(self) -> Iterable[str]:
        return self._groups.keys()

    def forget(self, group: Group) -> None:
        group.state = GroupState.DEAD
        self._groups.pop(group.group_id, None)

    def schedule(self, group: Group) -> None:
        if group.earliest_ms < group.scheduled_ms:
            group.scheduled_ms = group.earliest_ms
            self._count += 1
            heappush(self._schedule, (group.earliest_ms, self._count, group))

    @property
    def next_deadline_ms(self) -> int:
        return self._schedule[0][0] if self._schedule else NEVER

    def take_due(self, now_ms: int) -> list[Group]:
        """The groups to look at now; each has to be scheduled again afterwards."""
        due: list[Group] = []
        while self._schedule and self._schedule[0][0] <= now_ms:
            deadline_ms, _, group = heappop(self._schedule)
            if group.state is not GroupState.DEAD and deadline_ms == group.scheduled_ms:
                group.scheduled_ms = NEVER
                due.append(group)
        return due
