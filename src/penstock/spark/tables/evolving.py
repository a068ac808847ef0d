"""The table grows: columns added and widened in Delta, before rows that need them are written.

Rule: adding is a change of the schema alone, in a commit of its own: a driver that dies after it leaves a table with a
column that is null everywhere. Widening changes what files hold, so all rows are written again with the wider type, in
one commit: readers of any engine then find files that agree with the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.tables.commits import EVOLVE, CommitNote
from penstock.spark.tables.declaration import Table
from penstock.spark.tables.decoding import known_columns
from penstock.spark.tables.delta import LiveFile, Store
from penstock.spark.tables.errors import DeclarationError
from penstock.spark.tables.event_time import partition_fields
from penstock.spark.tables.evolution import decide
from penstock.spark.tables.types import Column, arrow_schema
from penstock.spark.tables.warehouse import OpenTable, table_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


def merged_columns(table: Table, wanted: Sequence[Sequence[Column]]) -> tuple[tuple[Column, ...], list[str]]:
    """What the table should have so that what tasks found fits; and the names that are new or wider.

    Where two tasks want one name as two types, the first has it.
    """
    columns = table.columns
    changed: list[str] = []
    for asked in wanted:
        for column in asked:
            evolution = decide(columns, [pa.field(column.name, column.type)], max_columns=table.max_columns)
            if evolution.changes and not evolution.refused:
                columns = evolution.columns
                changed += [*evolution.added, *evolution.widened]
    return columns, list(dict.fromkeys(changed))


def evolve(opened: OpenTable, columns: tuple[Column, ...]) -> None:
    """Give the table these columns; raises ConcurrentLoad where others are too busy with it."""
    from deltalake import write_deltalake

    store = opened.store
    table = opened.table.with_columns(columns)
    before = {column.name: column.type for column in opened.table.columns}
    schema = table_schema(table)
    if all(column.name not in before or only_adds(before[column.name], column.type) for column in columns):

        def attempt(delta: DeltaTable, properties: CommitProperties) -> None:
            write_deltalake(
                delta, schema.empty_table(), mode="append", schema_mode="merge", commit_properties=properties
            )
    else:

        def attempt(delta: DeltaTable, properties: CommitProperties) -> None:
            rows = pa.RecordBatchReader.from_batches(schema, _widened(store, schema, table))
            write_deltalake(
                delta,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=list(table.partition_columns) or None,
                commit_properties=properties,
            )

    store.attempt(CommitNote(EVOLVE), attempt)


def _widened(store: Store, schema: pa.Schema, table: Table) -> Iterator[Any]:
    """All rows with the new schema. Delta's own reader cannot be used while its writer waits for the rows."""
    filesystem, root = store.storage.filesystem()
    partition = {field.name: field.type for field in partition_fields(table)}
    for file in store.files():
        with pq.ParquetFile(filesystem.open_input_file(f"{root}/{file.path}")) as parquet:
            for batch in parquet.iter_batches():
                arrays = [_widened_array(batch, field, file, partition.get(field.name)) for field in schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _widened_array(batch: Any, field: pa.Field, file: LiveFile, partition: pa.DataType | None) -> Any:
    if partition is not None:
        value = pa.scalar(file.partition_values[field.name], pa.string())
        return pa.repeat(value, batch.num_rows).cast(partition)
    if field.name in batch.schema.names:
        return batch.column(field.name).cast(field.type)
    return pa.nulls(batch.num_rows, field.type)


def redeclare(opened: OpenTable, table: Table) -> list[str]:
    """Give a table that is there another declaration; which columns are new or wider. Raises DeclarationError.

    What decides where rows are and which of them there are cannot change: topic, format, mode, key, partitions.
    """
    before = opened.table
    for setting in ("topic", "format", "mode", "key", "partition_by", "event_time"):
        old, new = getattr(before, setting), getattr(table, setting)
        if old != new:
            raise DeclarationError(
                f"{setting} of {table.name} is {old!r} and cannot become {new!r}", hint="Make another table for that"
            )
    wanted = known_columns(table) or before.columns
    evolution = decide(before.columns, arrow_schema(wanted), max_columns=table.max_columns)
    if evolution.refused:
        raise DeclarationError(
            f"{table.name}: {evolution.refused[0]}", hint="Columns are added or widened, nothing else"
        )
    if evolution.changes:
        evolve(opened, evolution.columns)
    attributes = {column.name: column for column in wanted}
    kept = [
        attributes[column.name]._replace(type=column.type) if column.name in attributes else column
        for column in evolution.columns
    ]
    opened.declare(table.with_columns(tuple(kept)))
    return [*evolution.added, *evolution.widened]


def only_adds(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether what was written with the old type can be read with the new one as it is."""
    if old.equals(new):
        return True
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        fields = {field.name: field.type for field in new}
        return all(field.name in fields and only_adds(field.type, fields[field.name]) for field in old)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return only_adds(old.value_type, new.value_type)
    return False
