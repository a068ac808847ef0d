"""Random numbers without state: functions of a seed, a purpose and a number.

The counter of Philox has 256 bits and the draws of one generator use the lowest 64. The number lies above those, so
two moments never share a draw, and any moment can be generated again on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MOST_SEED: Final = 2**63 - 1
_WORD: Final = 2**64 - 1
_TICKETS: Final = 2**16


class Purpose(IntEnum):
    """What random numbers are for; each purpose has its own draws."""

    POPULATION = 1
    SESSIONS = 2
    LISTS = 3
    READING = 4
    MACHINES = 5
    PLANTED = 6
    MALFORMED = 7


def random_generator(seed: int, purpose: Purpose, number: int, part: int = 0) -> np.random.Generator:
    """The generator for a purpose, a number (a tick, a slot) and a part."""
    counter = np.array([0, number & _WORD, purpose, part], np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([seed, 0], np.uint64), counter=counter))


def shares(seed: int, *parts: int | NDArray[Any]) -> Floats:
    """A reproducible number in [0, 1) for each combination of the parts."""
    mixed: Any = np.uint64(seed)
    with np.errstate(over="ignore"):
        for part in parts:
            word = part & _WORD if isinstance(part, int) else part.astype(np.uint64)
            mixed = _mixed(np.asarray(mixed ^ _mixed(np.asarray(word, np.uint64) + np.uint64(0x9E3779B97F4A7C15))))
    return np.asarray(mixed >> np.uint64(11), np.float64) / 2.0**53


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = word ^ (word >> np.uint64(31))
    return mixed


class WeightedChoice:
    """Draws indexes by weight, with a precision of 1 in 65,536."""

    def __init__(self, weights: Floats | Sequence[float]) -> None:
        cumulated = np.cumsum(np.asarray(weights, np.float64))
        self.odds: Floats = np.asarray(weights, np.float64) / cumulated[-1]
        self._tickets: Ints = np.searchsorted(cumulated / cumulated[-1], (np.arange(_TICKETS) + 0.5) / _TICKETS)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        drawn: Ints = self._tickets[rng.integers(0, _TICKETS, count, np.uint16)]
        return drawn


def heavy_tail(count: int, steepness: float, flat_top: float) -> Floats:
    """Weights by rank with a heavy tail."""
    return np.asarray((np.arange(count) + flat_top) ** -steepness, np.float64)
