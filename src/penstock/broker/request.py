"""A request on its way through the broker.

Noun: what a handler is given, and the callback that takes its answer.

Rule: a handler answers exactly once, now or later, with a message, or with None where the protocol wants no answer.
Whoever answers later holds nothing of the connection but this callback: answers leave in the order of the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.wire.types import Message

Answer = Callable[[Message | None], None]


class EndConnection(Exception):
    """Raised by a handler whose peer expects no answer and must learn all the same that something went wrong."""


class Departure:
    """The end of a connection, for those who would wait for something that only its peer cares about."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: set[Callable[[], None]] = set()

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` when the connection ends."""
        self._waiting.add(gone)

    def unwatch(self, gone: Callable[[], None]) -> None:
        self._waiting.discard(gone)

    def happen(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for gone in waiting:
            gone()


def _nothing() -> None:
    pass


def _ignore(error: Exception) -> None:
    pass


class Channel(Departure):
    """A connection as the broker serves it. While it is muted, the requests that come by it wait in `held`."""

    __slots__ = ("_unmuted", "end", "held", "is_closed", "muted")

    def __init__(self, unmuted: Callable[[], None], end: Callable[[Exception], None]) -> None:
        super().__init__()
        self._unmuted = unmuted
        self.end = end
        """For a handler that has returned already, and whose peer must learn all the same that something went wrong."""
        self.held: deque[Callable[[], None]] = deque()
        self.muted = 0
        self.is_closed = False

    def happen(self) -> None:
        self.is_closed = True
        self.held.clear()
        # Both hold the connection, which holds this.
        self._unmuted = _nothing
        self.end = _ignore
        super().happen()

    def mute(self) -> None:
        self.muted += 1

    def unmute(self) -> None:
        self.muted -= 1
        if not self.muted and self.held:
            self._unmuted()


class Encoded(Message):
    """An answer that was encoded before: the bytes of its body. It holds no error."""

    body: bytes = b""


class Request(NamedTuple):
    """A decoded request."""

    api_key: int
    version: int
    client_id: str | None
    peer: str
    message: Any
    now_ms: int
    departure: Departure | None = None
    size: int = 0
    """Bytes of the frame that it came in."""

    @property
    def channel(self) -> Channel | None:
        return self.departure if isinstance(self.departure, Channel) else None
