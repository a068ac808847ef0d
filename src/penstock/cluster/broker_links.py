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
    """The connection was refused or broke, timed out, sent an unexpected response, or the address is unknown."""


class Link(Protocol):
    """One connection, opened when it is first needed."""

    async def ask(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message:
        """The response; LinkLost if none arrives within `timeout_ms`."""

    def send(
        self, api_key: int, version: int, message: Message, timeout_ms: float
    ) -> asyncio.Future[Message] | None:  # fmt: skip
        """Send a request like `ask`, without awaiting: None if there is no connection yet.

        If the future fails, the link is lost.
        """

    def close(self) -> None:
        """Requests in flight fail with LinkLost. Closing twice is harmless."""


class Links(Protocol):
    """Opens links to other brokers."""

    def to(self, broker_id: int) -> Link:
        """A new link; LinkLost if the broker's address is unknown."""
