"""Events as records: JSON or Avro values, keys, timestamps, and a share of malformed values.

JSON is built column by column, without an object per row. The key is the text of the key column and the record
timestamp is the event time. How ticks are grouped has no influence on the bytes of a record.

Which values are malformed, and how, follows from seed, topic and tick. No reader that checks the schema accepts one:
random bytes have their highest bit set, with which no JSON value begins and no Avro number ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.activity.events import KINDS, TIME, Kind
from penstock.activity.site.behaviour import Column, Columns, joined_columns
from penstock.activity.site.randomness import Purpose, random_generator
from penstock.activity.site.site import Site

FORMATS: Final = ("json", "avro")
_LONGEST_NOISE: Final = 60
_NUMBERS: Final = {kind.topic: number for number, kind in enumerate(KINDS)}
_TIME: Final = re.compile(rb'"time":\d+')

# ---------------------------------------------------------------------------------------------- records


@dataclass(frozen=True)
class Encoded:
    """Records of a topic: columns key, value and timestamp."""

    topic: str
    records: Any
    malformed: frozenset[int] = frozenset()
    """The positions of malformed values."""

    def __len__(self) -> int:
        count: int = self.records.num_rows
        return count

    @property
    def size_bytes(self) -> int:
        size: int = self.records.nbytes
        return size


class Batches:
    """Encodes the ticks of a site, with a share of malformed values."""

    def __init__(self, site: Site, value_format: str = "json", malformed: float = 0.0) -> None:
        self._site = site
        self._encode = encoder(value_format)
        self._corruptor = ValueCorruptor(malformed, value_format, site.population.seed)

    def of(self, ticks: Iterable[int], most: int | None = None) -> list[Encoded]:
        """The records of the ticks by topic, at most `most`."""
        parts: dict[str, list[tuple[int, Columns]]] = {}
        room = most
        for tick in ticks:
            for topic, columns in self._site.tick(tick).items():
                taken = columns if room is None or len(columns) <= room else columns.first(room)
                if len(taken):
                    parts.setdefault(topic, []).append((tick, taken))
                if room is not None:
                    room -= len(taken)
        return [self._records(kind.topic, parts[kind.topic]) for kind in KINDS if kind.topic in parts]

    def _records(self, topic: str, parts: list[tuple[int, Columns]]) -> Encoded:
        columns = joined_columns([part for _, part in parts])
        values = self._encode(columns)
        values, malformed = self._corruptor.corrupt(topic, values, [(tick, len(part)) for tick, part in parts])
        return records_of(columns, values, malformed)


def records_of(columns: Columns, values: Any, malformed: frozenset[int] = frozenset()) -> Encoded:
    """The records of events, with these values."""
    kind = columns.kind
    key = _text(columns.arrays[kind.key], columns.words.get(kind.key))
    times = pa.array(columns.arrays[TIME]).view(pa.timestamp("ms"))
    return Encoded(kind.topic, pa.record_batch([key, values, times], ["key", "value", "timestamp"]), malformed)


# ---------------------------------------------------------------------------------------------- values


Encode = Callable[[Columns], Any]
"""Encodes events as an Arrow column of values."""


def encoder(value_format: str) -> Encode:
    """The encoder of a format. Raises MissingDependency for Avro without its package."""
    return Json() if value_format == "json" else Avro()


class Json:
    """Encodes values as JSON objects, with the columns in the order of the kind."""

    def __call__(self, columns: Columns) -> Any:
        parts: list[Any] = []
        before = "{"
        for name, spark_type in columns.kind.columns:
            quote = '"' if spark_type == "STRING" else ""
            parts += [f'{before}"{name}":{quote}', _text(columns.arrays[name], columns.words.get(name))]
            before = f"{quote},"
        closing = '"}' if columns.kind.columns[-1][1] == "STRING" else "}"
        return pc.binary_join_element_wise(*parts, closing, "").cast(pa.binary())


class Avro:
    """Encodes values as Avro records without a frame."""

    def __init__(self) -> None:
        from penstock.client.serializers import Avro as Serializer

        self._make = Serializer
        self._by_topic: dict[str, Any] = {}

    def __call__(self, columns: Columns) -> Any:
        kind = columns.kind
        if kind.topic not in self._by_topic:
            self._by_topic[kind.topic] = self._serializer(kind)
        encode = self._by_topic[kind.topic].encode
        return pa.array([encode(kind.topic, row) for row in columns.rows()], pa.binary())

    def _serializer(self, kind: Kind) -> Any:
        return self._make(json.loads(kind.avro))


def _text(array: Column, words: tuple[str, ...] | None) -> Any:
    """A column as text."""
    if words is not None:
        return _vocabulary(words).take(pa.array(array))
    if array.dtype == object:
        return pa.array(array, pa.string())
    return pc.cast(pa.array(array), pa.string())


_known: Final[dict[int, tuple[tuple[str, ...], Any]]] = {}


def _vocabulary(words: tuple[str, ...]) -> Any:
    """The words as an Arrow column, built once."""
    found = _known.get(id(words))
    if found is None or found[0] is not words:
        found = (words, pa.array(words, pa.string()))
        _known[id(words)] = found
    return found[1]


# ---------------------------------------------------------------------------------------------- malformed values


class ValueCorruptor:
    """Makes a share of all values malformed."""

    def __init__(self, share: float, value_format: str, seed: int) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"the share of malformed values is {share:g}; it must be between 0 and 1")
        self._share = share
        self._corruptions = _JSON_CORRUPTIONS if value_format == "json" else _AVRO_CORRUPTIONS
        self._seed = seed

    def corrupt(self, topic: str, values: Any, ticks: Iterable[tuple[int, int]]) -> tuple[Any, frozenset[int]]:
        """The values with some malformed, and their positions; `ticks` has each tick and its number of values."""
        if not self._share:
            return values, frozenset()
        replaced: dict[int, bytes] = {}
        before = 0
        for tick, count in ticks:
            rng = random_generator(self._seed, Purpose.MALFORMED, tick, _NUMBERS[topic])
            for place in np.flatnonzero(rng.random(count) < self._share).tolist():
                corruption = self._corruptions[int(rng.integers(0, len(self._corruptions)))]
                replaced[before + place] = corruption(values[before + place].as_py(), rng)
            before += count
        return with_replaced(values, replaced), frozenset(replaced)


def with_replaced(values: Any, replaced: Mapping[int, bytes]) -> Any:
    """The column with some values replaced."""
    if not replaced:
        return values
    mask = np.zeros(len(values), bool)
    mask[list(replaced)] = True
    return pc.replace_with_mask(
        values, pa.array(mask), pa.array([replaced[at] for at in sorted(replaced)], pa.binary())
    )


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


Corruption = Callable[[bytes, np.random.Generator], bytes]
_JSON_CORRUPTIONS: Final[tuple[Corruption, ...]] = (_truncated, _wrong_type, _missing_column, _random_bytes)
_AVRO_CORRUPTIONS: Final[tuple[Corruption, ...]] = (_truncated, _too_long, _random_bytes)
