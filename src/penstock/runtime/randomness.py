"""Randomness as an argument: ids, jitter and orders are drawn from a `Random` that is passed in.

`SeededRandom` makes a run repeatable from one number; `SystemRandom` gives unpredictable, unique ids.
"""

from __future__ import annotations

import os
import random
from collections.abc import MutableSequence
from typing import Any, Protocol

_UUID_BYTES = 16


class Random(Protocol):
    """A source of chance."""

    def random_bytes(self, count: int) -> bytes: ...

    def below(self, bound: int) -> int:
        """An integer from 0 to `bound` - 1; ValueError unless `bound` is positive."""

    def uniform(self, low: float, high: float) -> float: ...

    def uuid_bytes(self) -> bytes:
        """Sixteen bytes of a version 4 UUID; in base64 it never begins with "-", as an option would."""

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Put `items` into an arbitrary order, in place."""


class SystemRandom:
    """The operating system's own source."""

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def uuid_bytes(self) -> bytes:
        return _uuid_bytes(self)

    def shuffle(self, items: MutableSequence[Any]) -> None:
        self._source.shuffle(items)


class SeededRandom:
    """Chance that repeats: the same seed and the same calls give the same answers."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self._source = random.Random(seed)

    def branch(self, name: str) -> SeededRandom:
        """An independent source for a part of the run, so that one part's draws do not shift another's."""
        return SeededRandom(f"{self.seed}/{name}")

    def random_bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def uuid_bytes(self) -> bytes:
        return _uuid_bytes(self)

    def shuffle(self, items: MutableSequence[Any]) -> None:
        self._source.shuffle(items)


def _uuid_bytes(source: Random) -> bytes:
    while True:
        raw = bytearray(source.random_bytes(_UUID_BYTES))
        raw[6] = 0x40 | raw[6] & 0x0F
        raw[8] = 0x80 | raw[8] & 0x3F
        # "-" is digit 62 of the base64 that URLs use, and the first digit is the first six bits.
        if raw[0] >> 2 != 62:
            return bytes(raw)
