"""A safeguard that can be switched off: what is replaced, and under what it shows."""

from __future__ import annotations

from typing import Any, NamedTuple


class Mutation(NamedTuple):
    """In `replaced`, each `target.attribute` becomes `replacement`. With a `schedule` it shows sooner than with faults
    that are drawn; `brokers` is how many it needs.
    """

    what: str
    replaced: tuple[tuple[Any, str, Any], ...]
    brokers: int = 1
    schedule: str | None = None
