"""How one broker speaks to another, as replication needs it.

Noun: a `Link`, one connection to one broker, for one user.

Rule: a question is answered by its message, or by `LinkLost`; never by anything else, and never not at all. Several
questions may be on their way at once, and are answered in the order in which they were asked. A link that was lost is
closed and another one asked for: what the other side remembered of the connection is gone with it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.wire.types import Message


class LinkLost(Exception):
    """Refused, broken, timed out, answered with what nobody understands, or nobody knows where: try again later."""


class Link(Protocol):
    """One connection, made when it is first needed."""

    async def ask(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message:
        """The answer; LinkLost if none came within `timeout_ms`."""

    def send(
        self, api_key: int, version: int, message: Message, timeout_ms: float
    ) -> asyncio.Future[Message] | None:  # fmt: skip
        """As `ask`, at once: None if there is no connection yet. Whatever the future fails with, the link is lost."""

    def close(self) -> None:
        """Let go of it; who still waits for an answer is told LinkLost. Again is harmless."""


class Links(Protocol):
    """Ways to the other brokers."""

    def to(self, broker_id: int) -> Link:
        """A link of its own; LinkLost if nobody knows where that broker is."""
