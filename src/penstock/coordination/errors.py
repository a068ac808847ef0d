"""Errors of the coordinators: rejected requests, and mistakes of their callers."""

from __future__ import annotations

from penstock.wire.protocol import ErrorCode


class CoordinationError(Exception):
    """Base of all errors of the coordination layer."""


class Rejected(CoordinationError):
    """A request that the state of its group or transaction does not allow; `code` is the response."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.meaning)
        self.code = code


class BadGroupRecord(CoordinationError):
    """The bytes of a record of `__consumer_offsets` do not fit its version."""


class BadTransactionRecord(CoordinationError):
    """The bytes of a record of `__transaction_state` do not fit its version, or say what cannot be."""


class ShardNotActive(CoordinationError):
    """A request, or the end of a write, for a shard that is being loaded or was unloaded."""


class ShardActive(CoordinationError):
    """A record to replay for a shard that already serves requests."""


class WriteOutOfOrder(CoordinationError):
    """Writes become durable in the order in which they were requested; another order was reported."""

    def __init__(self, write_id: int, expected: int | None) -> None:
        super().__init__(f"write {write_id} was reported before write {expected}")
        self.write_id = write_id
        self.expected = expected


class ImpossibleTransition(CoordinationError):
    """A group or a transaction was about to make a transition that its states do not have: a bug."""

    def __init__(self, subject: str, before: str, after: str) -> None:
        super().__init__(f"{subject} cannot go from {before} to {after}")
