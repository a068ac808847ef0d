"""The interface of an offset store: where a consumer keeps how far it has read.

A consumer loads offsets when partitions are assigned and saves them when it commits. A stored offset is that of the
next record to read. A store that can fence rejects a member that was replaced (`StaleOwner`); its transaction must be
rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol, TypeVar

from penstock.client.errors import PenstockError

# A pair of topic and partition: a TopicPartition or a tuple. Results have the keys that were passed.
P = TypeVar("P", bound=tuple[str, int])


class OffsetAndMetadata(NamedTuple):
    """The offset of the next record, the leader epoch of the last one read (-1: unknown), and a note of your own."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Membership(NamedTuple):
    """The group member that commits; the default commits outside of a group."""

    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


NO_MEMBER: Final = Membership()


class OffsetStore(Protocol):
    """What a consumer needs from a store. `load` leaves out partitions without a stored offset."""

    async def load(self, group: str, partitions: Iterable[P]) -> dict[P, OffsetAndMetadata]: ...

    async def save(
        self, group: str, offsets: Mapping[P, OffsetAndMetadata], membership: Membership = NO_MEMBER
    ) -> None: ...

    async def close(self) -> None: ...


class OffsetStoreError(PenstockError):
    """A store could not be read or written."""


class StaleOwner(OffsetStoreError):
    """Another member owns the partition by now: nothing was stored. Roll back and do not retry."""


class AlreadyStored(OffsetStoreError):
    """The offset does not advance, so its records were processed before: nothing was stored. Roll back and continue."""
