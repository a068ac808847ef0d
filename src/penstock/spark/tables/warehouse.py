"""A warehouse: a folder with one folder per table and one for its dead letters.

There is no other catalog. A table is a Delta table whose properties hold its declaration and the id of its topic; its
current columns are those of Delta. A warehouse can be copied, moved and read by any reader of Delta.

Adding a column is a commit of its own, before rows need it: a driver that dies after it leaves a column that is null.
Widening rewrites all rows in one commit, so that the files match the schema for every engine.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.client.errors import MissingDependency
from penstock.spark.errors import DeclarationError, NoSuchTable, TableExists
from penstock.spark.tables import declaration
from penstock.spark.tables.declaration import DAY, DEAD_SUFFIX, HOUR, METADATA, Column, Table, arrow_schema
from penstock.spark.tables.delta import EVOLVE, STATISTICS, CommitNote, LiveFile, Storage, Store
from penstock.spark.tables.load_plan import LogState, TableState
from penstock.spark.tables.schema_evolution import decide
from penstock.spark.tables.system_columns import dead_schema, metadata_fields, partition_fields
from penstock.spark.tables.value_decoder import known_columns, settled_type, with_latest_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


DECLARATION: Final = "penstock.declaration"
TOPIC_ID: Final = "penstock.topic.id"
_SETTINGS: Final = {
    "delta.checkpointInterval": "100",
    # Readers treat a column without its expected statistics as null everywhere, and skip the file.
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
}


class OpenTable:
    """An existing table: its declaration with current columns, its files and its dead letters."""

    def __init__(self, storage: Storage, dead_storage: Storage) -> None:
        self.store = Store(storage)
        self.dead = Store(dead_storage)
        self.topic_id = self.store.configuration.get(TOPIC_ID, "")
        self._declared = declaration.from_json(self.store.configuration[DECLARATION])

    @property
    def table(self) -> Table:
        """The declaration with the current columns of the table."""
        declared = {column.name: column for column in self._declared.columns}
        columns: list[Column] = []
        for field in self.store.schema():
            if field.name in METADATA or field.name in (DAY, HOUR):
                continue
            known = declared.get(field.name)
            kind = settled_type(field.type)
            columns.append(Column(field.name, kind) if known is None else known._replace(type=kind))
        return self._declared.with_columns(tuple(columns))

    @property
    def name(self) -> str:
        return self._declared.name

    def coverage(self, partitions: Iterable[int]) -> TableState:
        """The loaded offsets of these partitions."""
        covered: dict[int, tuple[int, int]] = {}
        for partition in partitions:
            after = self.store.next_offset(self.topic_id, partition)
            if after is not None:
                covered[partition] = (self.store.first_offset(self.topic_id, partition) or 0, after)
        return TableState(covered)

    def declare(self, table: Table) -> None:
        """Stores a new declaration; its columns must already exist."""
        self.store.delta.alter.set_table_properties(
            {DECLARATION: declaration.to_json(table)}, raise_if_not_exists=False
        )
        self.store.refresh()
        self._declared = table


class Warehouse:
    """Tables by name, under a path or URI."""

    def __init__(self, uri: str) -> None:
        # Executors only write files and do not need deltalake.
        if importlib.util.find_spec("deltalake") is None:
            raise MissingDependency("deltalake", "loading tables", "spark")
        self.storage = Storage(uri).absolute()

    def names(self) -> list[str]:
        """The names of all tables, without dead letters, in order."""
        there = set(self.storage.folders())
        pairs = sorted(name for name in there if not name.endswith(DEAD_SUFFIX) and name + DEAD_SUFFIX in there)
        # An interrupted creation may have left a folder.
        return [name for name in pairs if Store.exists(self.storage.child(name))]

    def open(self, name: str) -> OpenTable:
        """Raises NoSuchTable."""
        if name not in self.names():
            from difflib import get_close_matches

            near = get_close_matches(name, self.names(), n=1)
            hint = f"Did you mean {near[0]}?" if near else "`penstock table list` lists the tables"
            raise NoSuchTable(f"Table {name!r} does not exist in {self.storage.uri}", hint=hint)
        return OpenTable(self.storage.child(name), self.storage.child(name + DEAD_SUFFIX))

    def create(
        self, table: Table, state: LogState, sample: Callable[[], tuple[Column, ...]] | None = None
    ) -> OpenTable:
        """Creates a table and its dead letters. Nothing is loaded. Raises TableExists, DeclarationError.

        `sample` infers the columns if the declaration has none.
        """
        if table.name in self.names():
            raise TableExists(
                f"Table {table.name!r} already exists",
                hint=f"Use --update to change its declaration, or `penstock table drop {table.name}`",
            )
        table = self._complete(with_latest_schema(table), sample)
        schema = table_schema(table)
        dead = self.storage.child(table.dead_name)
        main = self.storage.child(table.name)
        # Dead letters first: a table exists once its own folder does. What a crash left in between is replaced.
        dead.remove()
        Store.create(dead, dead_schema(), (), table.dead_name, _SETTINGS)
        properties = {**_SETTINGS, DECLARATION: declaration.to_json(table), TOPIC_ID: state.topic_id}
        Store.create(main, schema, table.partition_columns, table.name, properties)
        return OpenTable(main, dead)

    @staticmethod
    def _complete(table: Table, sample: Callable[[], tuple[Column, ...]] | None) -> Table:
        columns = known_columns(table)
        if not columns and sample is not None:
            columns = sample()
        if not columns and table.evolution == "none":
            raise DeclarationError(
                f"cannot infer the columns of {table.name}: topic {table.topic} has no records",
                hint="Declare a schema, or allow evolution",
            )
        return declaration.checked_columns(replace(table, columns=columns))

    def drop(self, name: str) -> None:
        """Removes a table, its dead letters, and all their files."""
        self.open(name)
        # Without its own folder a table does not exist, whatever is left of its dead letters.
        self.storage.child(name).remove()
        self.storage.child(name + DEAD_SUFFIX).remove()


def table_schema(table: Table) -> pa.Schema:
    return pa.schema([*metadata_fields(), *arrow_schema(table.columns), *partition_fields(table)])


def described(table: OpenTable) -> Mapping[str, object]:
    """The properties of a table, for display and JSON."""
    declared = table.table
    files = table.store.files()
    return {
        "name": declared.name,
        "topic": declared.topic,
        "topicId": table.topic_id,
        "format": declared.format,
        "mode": declared.mode,
        "key": list(declared.key),
        "partitionBy": declared.partition_by,
        "eventTime": declared.event_time or "_timestamp",
        "evolution": declared.evolution,
        "late": declared.late,
        "onError": declared.on_error,
        "onDataLoss": declared.on_data_loss,
        "columns": [{"name": one.name, "type": str(one).removeprefix(f"{one.name} ")} for one in declared.columns],
        "version": table.store.version,
        "files": len(files),
        "bytes": sum(one.size for one in files),
        "rows": sum(one.rows or 0 for one in files),
        "dead": sum(one.rows or 0 for one in table.dead.files()),
        "uri": table.store.storage.uri,
    }


def merged_columns(table: Table, wanted: Sequence[Sequence[Column]]) -> tuple[tuple[Column, ...], list[str]]:
    """The columns that the table needs for what tasks found, and the names that are new or wider.

    If two tasks need different types for a name, the first wins.
    """
    columns = table.columns
    changed: list[str] = []
    for asked in wanted:
        for column in asked:
            evolution = decide(columns, [pa.field(column.name, column.type)], max_columns=table.max_columns)
            if evolution.changes and not evolution.rejected:
                columns = evolution.columns
                changed += [*evolution.added, *evolution.widened]
    return columns, list(dict.fromkeys(changed))


def evolve(opened: OpenTable, columns: tuple[Column, ...]) -> None:
    """Gives the table these columns. Raises ConcurrentLoad if there are too many concurrent commits."""
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
    """All rows with the new schema. Delta's own reader would deadlock with its writer, which waits for the rows."""
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
    """Gives an existing table a new declaration. Returns the columns that are new or wider. Raises DeclarationError.

    Settings that decide which rows exist and where they are cannot change: topic, format, mode, key, partitions.
    """
    before = opened.table
    for setting in ("topic", "format", "mode", "key", "partition_by", "event_time"):
        old, new = getattr(before, setting), getattr(table, setting)
        if old != new:
            raise DeclarationError(
                f"{setting} of {table.name} cannot change from {old!r} to {new!r}", hint="Create another table"
            )
    table = with_latest_schema(table)
    wanted = known_columns(table) or before.columns
    _check_meaning(before, table)
    evolution = decide(before.columns, arrow_schema(wanted), max_columns=table.max_columns)
    if evolution.rejected:
        raise DeclarationError(f"{table.name}: {evolution.rejected[0]}", hint="Columns can only be added or widened")
    if evolution.changes:
        evolve(opened, evolution.columns)
    attributes = {column.name: column for column in wanted}
    kept = [
        attributes[column.name]._replace(type=column.type) if column.name in attributes else column
        for column in evolution.columns
    ]
    opened.declare(table.with_columns(tuple(kept)))
    return [*evolution.added, *evolution.widened]


def _check_meaning(before: Table, after: Table) -> None:
    """A column of a JSON Schema must not change between plain text and the JSON text of any value: both are STRING."""
    if before.format != "json" or not before.value_schema or not after.value_schema:
        return
    from pyspark.sql.types import StructType

    from penstock.spark.formats.json_schema import changed_meaning

    old, new = (StructType.fromJson(json.loads(each.value_schema)) for each in (before, after))
    name = changed_meaning(old, new)
    if name:
        raise DeclarationError(
            f"{after.name}: the schema changes {name} between text and JSON text",
            hint="Its values would be stored in two forms in one column. Give it one type, or another name",
        )


def follow_subject(opened: OpenTable) -> list[str]:
    """Gives a table whose schema is a subject of a registry the columns of its latest version. Returns those that are
    new or wider. Raises DeclarationError, RegistryError."""
    table = opened.table
    if not table.subject or table.evolution == "none":
        return []
    latest = with_latest_schema(table)
    if (latest.value_schema, latest.descriptors) == (table.value_schema, table.descriptors):
        return []
    return redeclare(opened, latest)


def only_adds(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether files of the old type can be read with the new type."""
    if old.equals(new):
        return True
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        fields = {field.name: field.type for field in new}
        return all(field.name in fields and only_adds(field.type, fields[field.name]) for field in old)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return only_adds(old.value_type, new.value_type)
    return False
