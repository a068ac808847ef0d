"""Events as columns.

Noun: `Columns`, some events of a kind, an array a column.

Rule: numbers lie in arrays; a text that is one of few lies there as its index in `words`, any other text as itself.
The columns are those of the kind, in its order, and rows are in the order of their times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.activity.events import TIME, Kind

TICK_MS: Final = 100
IDS_IN_A_TICK: Final = 100_000
_FIRST_TICK: Final = 1_577_836_800_000 // TICK_MS  # 2020: ids stay below 2**53, which every reader of JSON can count to

Column = NDArray[Any]
Piece = Mapping[str, Any]
"""Some events of a tick: arrays by column, without ids, `time` being milliseconds since the beginning of the tick."""


@dataclass(frozen=True)
class Columns:
    """Some events of a kind."""

    kind: Kind
    arrays: Mapping[str, Column]
    words: Mapping[str, tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.arrays[TIME])

    def first(self, count: int) -> Columns:
        return Columns(self.kind, {name: array[:count] for name, array in self.arrays.items()}, self.words)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Row by row, as readers of the topic see them."""
        lists = [
            [self.words[name][code] for code in array.tolist()] if name in self.words else array.tolist()
            for name, array in self.arrays.items()
        ]
        for row in zip(*lists, strict=True):
            yield dict(zip(self.arrays, row, strict=True))


def assembled(kind: Kind, tick: int, pieces: Sequence[Piece], words: Mapping[str, tuple[str, ...]]) -> Columns:
    """The events of a tick, in order, with ids and times."""
    names = kind.names[1:]
    arrays = {name: np.concatenate([np.asarray(piece[name]) for piece in pieces]) for name in names}
    order = np.argsort(arrays[TIME].astype(np.uint8), kind="stable")
    arrays = {name: array[order] for name, array in arrays.items()}
    arrays[TIME] = arrays[TIME].astype(np.int64) + tick * TICK_MS
    ids = np.arange(len(order)) + (tick - _FIRST_TICK) * IDS_IN_A_TICK
    return Columns(kind, {"id": ids, **arrays}, words)


def joined(parts: Sequence[Columns]) -> Columns:
    """Events of several ticks of a kind as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    arrays = {name: np.concatenate([part.arrays[name] for part in parts]) for name in first.arrays}
    return Columns(first.kind, arrays, first.words)
