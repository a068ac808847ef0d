"""What goes into a decision and what comes out of it.

A request comes with a `RequestContext`, whose token is all that is kept of the connection. Handling it, or the passing
of time, is a `Turn`: replies that may leave at once, and records to append as one batch together with what happens when
the fate of that batch is known. The shard turns it into an `Outcome` for whoever owns log and sockets.

Rule: every token is answered exactly once, sooner or later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from penstock.coordination.group_records import KeyValue, Record
from penstock.wire.error_codes import ErrorCode
from penstock.wire.types import Message

Token: TypeAlias = object
NO_PRODUCER_ID: Final = -1


class RequestContext(NamedTuple):
    token: Token
    api_version: int
    client_id: str = ""
    client_host: str = ""


class Reply(NamedTuple):
    token: Token
    message: Message


class Producer(NamedTuple):
    """Whose transaction a batch belongs to."""

    producer_id: int
    producer_epoch: int


class Outcome(NamedTuple):
    """What is to be done: send `replies`; append `records` as one batch, and report that under `write_id`.

    With a `producer` the batch is transactional, and written in its name.
    """

    replies: list[Reply]
    records: list[KeyValue]
    write_id: int | None
    producer: Producer | None = None


class Continuation(NamedTuple):
    """What follows once records are in the log for good, or once it is known that they will never be."""

    done: Callable[[Turn], None]
    failed: Callable[[Turn, ErrorCode], None]


class Turn:
    """One event being handled: the time at which it happens, and what comes of it."""

    __slots__ = ("continuations", "now_ms", "producer", "records", "replies")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.replies: list[Reply] = []
        self.records: list[Record] = []
        self.continuations: list[Continuation] = []
        self.producer: Producer | None = None

    def reply(self, to: RequestContext, message: Message) -> None:
        self.replies.append(Reply(to.token, message))

    def write(self, record: Record) -> None:
        self.records.append(record)

    def when_written(self, done: Callable[[Turn], None], failed: Callable[[Turn, ErrorCode], None]) -> None:
        self.continuations.append(Continuation(done, failed))

    def reply_when_written(self, to: RequestContext, message: Message, refusal: Callable[[ErrorCode], Message]) -> None:
        """A reply that waits for what this turn writes, if it writes anything."""
        if not self.records:
            self.reply(to, message)
            return
        self.when_written(
            lambda turn: turn.reply(to, message),
            lambda turn, code: turn.reply(to, refusal(code)),
        )
