"""A member of a group, and the id that the coordinator gives it.

A member is alive as long as its deadline is ahead. While it waits for an answer of ours (to JoinGroup or SyncGroup)
nothing can be expected of it, and the deadline does not count; only a member that is new and has never heard from us
is given up even then, since nobody would notice that it has gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.coordination.events import RequestContext
from penstock.coordination.group_records import SavedMember
from penstock.runtime.randomness import Random
from penstock.wire.schemas.join_group import JoinGroupRequest

NO_MEMBER_ID: Final = ""

# An id made of a client id of any length would not fit the strings it is sent in.
_LONGEST_STEM: Final = 255
# What a member takes that brings nothing, and a protocol that is empty.
_LEAST_BYTES: Final = 1024
_PROTOCOL_BYTES: Final = 100
PROMISE_BYTES: Final = 512
"""What an id takes that was given to a member which has not joined with it yet."""


class MemberMemory:
    """The bytes that the members of all groups of a broker take."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0


def size_of(protocols: dict[str, bytes]) -> int:
    """The bytes that a member takes that offers these."""
    return _LEAST_BYTES + sum(_PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols.items())


@dataclass(slots=True, eq=False)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: dict[str, bytes]
    """What the member offers, by name, in its order of preference."""
    assignment: bytes = b""
    deadline_ms: int = 0
    is_new: bool = False
    must_sync: bool = False
    """Has learnt of the current generation and not yet asked for its share."""
    joining: RequestContext | None = None
    syncing: RequestContext | None = None
    held_bytes: int = 0
    """What is counted for it."""

    @property
    def can_expire(self) -> bool:
        return self.is_new or (self.joining is None and self.syncing is None)

    def vote(self, candidates: set[str]) -> str | None:
        """The first of its protocols that everyone supports."""
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
    """Only the protocol in use outlives a coordinator; with the next rebalance the member brings them all."""
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
    # Version 0 has only the session's timeout.
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def new_member_id(context: RequestContext, instance_id: str | None, random: Random) -> str:
    """Recognisable by its beginning, unique by its end: `rack-7-4f0c22b1-...`."""
    stem = context.client_id if instance_id is None else instance_id
    raw = random.uuid_bytes().hex()
    return f"{stem[:_LONGEST_STEM]}-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
