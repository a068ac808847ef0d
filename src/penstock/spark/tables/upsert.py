"""The newest record of each key, merged into the table in one commit.

Rule: of two records of a key in one partition the one with the greater offset is newer; of two in different partitions
(the topic got more of them) the one with the later timestamp. A record is written only over an older one, so merging
records again changes nothing, and a record without a value removes its key's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.tables.commits import DataFile
from penstock.spark.tables.declaration import Table
from penstock.spark.tables.rewriting import conformed
from penstock.spark.tables.storage import Storage
from penstock.spark.tables.tasks import DELETED, file_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_ROW: Final = "_row"


def key_columns(table: Table) -> tuple[str, ...]:
    return table.key or ("_key",)


def staged_rows(table: Table, storage: Storage, files: Sequence[DataFile]) -> pa.Table:
    """What tasks left for the merge: one row a key."""
    filesystem, root = storage.filesystem()
    schema = file_schema(table, staged=True)
    tables = [pq.read_table(f"{root}/{one.path}", filesystem=filesystem, partitioning=None) for one in files]
    rows = pa.concat_tables([conformed(one, schema) for one in tables]) if tables else schema.empty_table()
    return newest(rows, key_columns(table))


def newest(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The newest row of each key."""
    of_partition = _last(rows.sort_by([("_partition", "ascending"), ("_offset", "ascending")]), [*keys, "_partition"])
    if pc.count_distinct(of_partition.column("_partition")).as_py() <= 1:
        return of_partition
    by_time = [("_timestamp", "ascending"), ("_partition", "ascending")]
    return _last(of_partition.sort_by(by_time), keys)


def _last(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(keys)).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    return rows.take(last)


def merge(table: Table, rows: pa.Table, delta: DeltaTable, properties: CommitProperties) -> None:
    """One commit: rows into the table, over older ones of their keys."""
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key_columns(table))
    newer = (
        "((s._partition = t._partition AND s._offset >= t._offset) OR "
        "(s._partition <> t._partition AND s._timestamp >= t._timestamp))"
    )
    values: dict[str, Any] = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names if name != DELETED}
    (
        delta.merge(rows, same, source_alias="s", target_alias="t", commit_properties=properties)
        .when_matched_delete(f"s.{DELETED} AND {newer}")
        .when_matched_update(values, predicate=f"NOT s.{DELETED} AND {newer}")
        .when_not_matched_insert(values, predicate=f"NOT s.{DELETED}")
        .execute()
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
