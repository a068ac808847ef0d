"""Values that are not what their topic says, in place of good ones.

Noun: a `Spoiler`.

Rule: which events are hit, and how, follows from the seed, the topic and the tick. The record keeps its key and its
time. Whatever is done to a value, no reader that goes by the schema can take it for a good one: random bytes have their
highest bit set, with which no JSON begins and no number of Avro ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from penstock.activity.events import KINDS
from penstock.activity.site.chance import Purpose, draws
from penstock.activity.site.encoding import with_replaced

_LONGEST_NOISE: Final = 60
_NUMBERS: Final = {kind.topic: number for number, kind in enumerate(KINDS)}
_TIME: Final = re.compile(rb'"time":\d+')


class Spoiler:
    """Spoils a share of all values."""

    def __init__(self, share: float, value_format: str, seed: int) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"a share of {share:g} malformed values: it is from 0 to 1")
        self._share = share
        self._ways = _JSON_WAYS if value_format == "json" else _AVRO_WAYS
        self._seed = seed

    def spoil(self, topic: str, values: Any, ticks: Iterable[tuple[int, int]]) -> tuple[Any, frozenset[int]]:
        """The values with some spoilt, and the places of those; `ticks` has each tick and how many values it has."""
        if not self._share:
            return values, frozenset()
        replaced: dict[int, bytes] = {}
        before = 0
        for tick, count in ticks:
            rng = draws(self._seed, Purpose.MALFORMED, tick, _NUMBERS[topic])
            for place in np.flatnonzero(rng.random(count) < self._share).tolist():
                way = self._ways[int(rng.integers(0, len(self._ways)))]
                replaced[before + place] = way(values[before + place].as_py(), rng)
            before += count
        return with_replaced(values, replaced), frozenset(replaced)


def _truncated(value: bytes, rng: np.random.Generator) -> bytes:
    return value[: int(rng.integers(1, len(value) - 1))]


def _wrong_type(value: bytes, _: np.random.Generator) -> bytes:
    return _TIME.sub(b'"time":["yesterday"]', value, count=1)


def _missing_column(value: bytes, rng: np.random.Generator) -> bytes:
    row = json.loads(value)
    del row[list(row)[int(rng.integers(0, len(row)))]]
    return json.dumps(row, separators=(",", ":")).encode()


def _random_bytes(_: bytes, rng: np.random.Generator) -> bytes:
    return bytes(byte | 0x80 for byte in rng.bytes(int(rng.integers(1, _LONGEST_NOISE))))


def _too_long(value: bytes, _: np.random.Generator) -> bytes:
    return value + b"\x00"


Way = Callable[[bytes, np.random.Generator], bytes]
_JSON_WAYS: Final[tuple[Way, ...]] = (_truncated, _wrong_type, _missing_column, _random_bytes)
_AVRO_WAYS: Final[tuple[Way, ...]] = (_truncated, _too_long, _random_bytes)
