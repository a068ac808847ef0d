"""Randomness as an argument: ids, jitter and orders are drawn from a `Random` that is passed in.

`SeededRandom` makes a run repeatable from one number; `SystemRandom` gives unpredictable, unique ids.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, MutableSequence
from typing import Any, Final, Protocol

_UUID_BYTES: Final = 16


class Random(Protocol):
    """A source of random numbers."""

    def random_bytes(self, count: int, /) -> bytes: ...

    def below(self, bound: int, /) -> int:
        """An integer from 0 to `bound` - 1; ValueError unless `bound` is positive."""

    def uniform(self, low: float, high: float, /) -> float: ...

    def uuid_bytes(self) -> bytes:
        """Sixteen bytes of a version 4 UUID; in base64 it never begins with "-", as an option would."""

    def shuffle(self, items: MutableSequence[Any], /) -> None:
        """Put `items` into an arbitrary order, in place."""


class SystemRandom:
    """The operating system's source."""

    def __init__(self) -> None:
        source = random.SystemRandom()
        self.random_bytes: Callable[[int], bytes] = os.urandom
        self.below: Callable[[int], int] = source.randrange
        self.uniform: Callable[[float, float], float] = source.uniform
        self.shuffle: Callable[[MutableSequence[Any]], None] = source.shuffle

    def uuid_bytes(self) -> bytes:
        return _uuid_bytes(self)


class SeededRandom:
    """A repeatable source: the same seed and the same calls give the same results."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        source = random.Random(seed)
        self.random_bytes: Callable[[int], bytes] = source.randbytes
        self.below: Callable[[int], int] = source.randrange
        self.uniform: Callable[[float, float], float] = source.uniform
        self.shuffle: Callable[[MutableSequence[Any]], None] = source.shuffle

    def branch(self, name: str) -> SeededRandom:
        """An independent source for a part of the run: draws in one part do not shift those in another."""
        return SeededRandom(f"{self.seed}/{name}")

    def uuid_bytes(self) -> bytes:
        return _uuid_bytes(self)


def _uuid_bytes(source: Random) -> bytes:
    while True:
        raw = bytearray(source.random_bytes(_UUID_BYTES))
        raw[6] = 0x40 | raw[6] & 0x0F
        raw[8] = 0x80 | raw[8] & 0x3F
        # "-" is digit 62 of the base64 that URLs use, and the first digit is the first six bits.
        if raw[0] >> 2 != 62:
            return bytes(raw)
