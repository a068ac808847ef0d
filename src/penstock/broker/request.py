"""A request on its way through the broker.

Noun: what a handler is given, and the callback that takes its answer.

Rule: a handler answers exactly once, now or later, with a message, or with None where the protocol wants no answer.
Whoever answers later holds nothing of the connection but this callback: answers leave in the order of the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.wire.types import Message

Answer = Callable[[Message | None], None]


class Request(NamedTuple):
    """A decoded request."""

    api_key: int
    version: int
    client_id: str | None
    peer: str
    message: Any
    now_ms: int
