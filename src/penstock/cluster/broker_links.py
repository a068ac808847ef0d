"""The interface by which brokers talk to each other; `penstock.broker` implements it.

A request on a `Link` is answered by a message or fails with `LinkLost`. Several requests may be in flight; they are
answered in order. A lost link is closed and a new one requested, because what the other side knew of the connection is
gone with it.
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
