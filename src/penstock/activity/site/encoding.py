"""Events as bytes: JSON or Avro values, keys and times as Arrow columns, ready to be sent.

Nouns: an encoder of values; `Encoded`, the records of a topic.

Rule: JSON is put together column by column, with no object a row. A key is the key column's text. A record's timestamp
is its event's time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.activity.events import TIME, Kind
from penstock.activity.site.columns import Column, Columns

FORMATS: Final = ("json", "avro")
Encode = Callable[[Columns], Any]
"""From events to an Arrow column of their values."""


@dataclass(frozen=True)
class Encoded:
    """Records of a topic: columns key, value and timestamp."""

    topic: str
    records: Any
    malformed: frozenset[int] = frozenset()
    """The places of those whose values are not what the topic says."""

    def __len__(self) -> int:
        count: int = self.records.num_rows
        return count

    @property
    def size_bytes(self) -> int:
        size: int = self.records.nbytes
        return size


def records_of(columns: Columns, values: Any, malformed: frozenset[int] = frozenset()) -> Encoded:
    """The records of events whose values are these."""
    kind = columns.kind
    key = _text(columns.arrays[kind.key], columns.words.get(kind.key))
    times = pa.array(columns.arrays[TIME]).view(pa.timestamp("ms"))
    return Encoded(kind.topic, pa.record_batch([key, values, times], ["key", "value", "timestamp"]), malformed)


def encoder(value_format: str) -> Encode:
    """How values are made; raises MissingDependency for Avro without its package."""
    return Json() if value_format == "json" else Avro()


class Json:
    """Values as JSON objects, with the columns in the kind's order."""

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
    """Values as Avro records without a frame, by the kind's schema."""

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
    """The words as an Arrow column, made once."""
    found = _known.get(id(words))
    if found is None or found[0] is not words:
        found = (words, pa.array(words, pa.string()))
        _known[id(words)] = found
    return found[1]


def with_replaced(values: Any, replaced: Mapping[int, bytes]) -> Any:
    """The column with other values in some places."""
    if not replaced:
        return values
    mask = np.zeros(len(values), bool)
    mask[list(replaced)] = True
    return pc.replace_with_mask(
        values, pa.array(mask), pa.array([replaced[at] for at in sorted(replaced)], pa.binary())
    )
