"""The columns of a table whose declaration leaves them to its records: a sample of the topic, looked at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from penstock.spark.options import ReaderOptions
from penstock.spark.tables.declaration import Table
from penstock.spark.tables.evolution import infer_columns
from penstock.spark.tables.planning import LogState
from penstock.spark.tables.types import Column

_SAMPLE: Final = 1000


def sample_columns(table: Table, state: LogState, bootstrap: str, reader: ReaderOptions) -> tuple[Column, ...]:
    """What the first records of each partition have; none if there are no records."""
    return infer_columns(_documents(table, state, bootstrap, reader))


def _documents(table: Table, state: LogState, bootstrap: str, reader: ReaderOptions) -> Iterator[Any]:
    from penstock.spark.fetching import read_range

    decode = msgspec.json.Decoder().decode
    for partition, (begin, end) in state.bounds.items():
        last = min(end, begin + _SAMPLE)
        batches = read_range(
            bootstrap, reader, table.topic, partition, begin, last, isolation=table.isolation,  # type: ignore[arg-type]
        )  # fmt: skip
        for batch in batches:
            for value in batch.column("value").to_pylist():
                try:
                    yield None if value is None else decode(value)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue  # It will be a dead letter.
