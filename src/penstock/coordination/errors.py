"""What the coordinator refuses, and what its own caller must not do."""

from __future__ import annotations

from penstock.wire.protocol import ErrorCode


class CoordinationError(Exception):
    """Base of everything that the coordination layer raises of its own."""


class Rejected(CoordinationError):
    """A request that the state of its group does not allow; `code` is the answer."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.meaning)
        self.code = code


class BadGroupRecord(CoordinationError):
    """The bytes of a record of `__consumer_offsets` are not what its version says."""


class ShardNotActive(CoordinationError):
    """A request, or the end of a write, for a shard that is still being loaded or has been given up."""


class ShardActive(CoordinationError):
    """A record to replay for a shard that already serves requests."""


class WriteOutOfOrder(CoordinationError):
    """Writes become durable in the order in which they were asked for; another order was reported."""

    def __init__(self, write_id: int, expected: int | None) -> None:
        super().__init__(f"write {write_id} was reported, while {expected} is the oldest one not yet reported")
        self.write_id = write_id
        self.expected = expected


class ImpossibleTransition(CoordinationError):
    """A group was about to take a step that its states do not have: a mistake in the source."""

    def __init__(self, group_id: str, before: str, after: str) -> None:
        super().__init__(f"group {group_id!r} cannot go from {before} to {after}")
