"""Dead letters: records that do not fit their table, with the reason, in a table of their own.

Rule: a record is in the table or among its dead letters, and never in both. One that the table's policy drops leaves a
row here too, without its content, so that the sums of an audit are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.spark.tables.event_time import metadata_fields
from penstock.spark.tables.types import TIMESTAMP


def dead_schema() -> pa.Schema:
    return pa.schema(
        [
            *metadata_fields(),
            pa.field("value", pa.binary()),
            pa.field("reason", pa.string()),
            pa.field("dropped", pa.bool_()),
            pa.field("loaded_at", TIMESTAMP),
        ]
    )


def dead_rows(origin: pa.Table, values: Any, reasons: Sequence[str], dropped: bool, now_us: int) -> pa.Table:
    """`origin` has the metadata columns."""
    count = origin.num_rows
    schema = dead_schema()
    columns = {name: origin.column(name) for name in origin.column_names}
    columns |= {
        "value": values,
        "reason": pa.array(reasons, pa.string()),
        "dropped": pa.repeat(pa.scalar(dropped), count),
        "loaded_at": pa.repeat(pa.scalar(now_us, pa.int64()), count).cast(TIMESTAMP),
    }
    if dropped:
        columns |= {name: pa.nulls(count, schema.field(name).type) for name in ("_key", "_headers", "value")}
    return pa.table([columns[name] for name in schema.names], schema=schema)
