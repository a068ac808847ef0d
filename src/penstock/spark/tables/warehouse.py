"""A warehouse: a folder with a folder for each table, and one for its dead letters.

Rule: there is no other catalogue. A table is a Delta table whose properties hold its declaration and the id of its
topic; what columns it has now is what Delta says. So a warehouse can be copied, moved or looked at by anybody who reads
Delta, and nothing can disagree with it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from penstock.client.errors import MissingDependency
from penstock.spark.tables import declaration
from penstock.spark.tables.dead_schema import dead_schema
from penstock.spark.tables.declaration import DAY, DEAD_SUFFIX, HOUR, METADATA, Table
from penstock.spark.tables.decoding import known_columns
from penstock.spark.tables.delta import Store
from penstock.spark.tables.errors import DeclarationError, NoSuchTable, TableExists
from penstock.spark.tables.event_time import metadata_fields, partition_fields
from penstock.spark.tables.planning import LogState, Standing
from penstock.spark.tables.storage import STATISTICS, Storage
from penstock.spark.tables.types import Column, arrow_schema

DECLARATION: Final = "penstock.declaration"
TOPIC_ID: Final = "penstock.topic.id"
_SETTINGS: Final = {
    "delta.checkpointInterval": "100",
    # Readers take a column that should have statistics and has none for one that is null everywhere, and find nothing.
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
}


class OpenTable:
    """A table that is there: its declaration with the columns of now, its files, its dead letters."""

    def __init__(self, storage: Storage, dead_storage: Storage) -> None:
        self.store = Store(storage)
        self.dead = Store(dead_storage)
        self.topic_id = self.store.configuration.get(TOPIC_ID, "")
        self._declared = declaration.from_json(self.store.configuration[DECLARATION])

    @property
    def table(self) -> Table:
        """The declaration; its columns are those that the table has at the moment."""
        declared = {column.name: column for column in self._declared.columns}
        columns: list[Column] = []
        for field in self.store.schema():
            if field.name in METADATA or field.name in (DAY, HOUR):
                continue
            known = declared.get(field.name)
            kind = plain_type(field.type)
            columns.append(Column(field.name, kind) if known is None else known._replace(type=kind))
        return self._declared.with_columns(tuple(columns))

    @property
    def name(self) -> str:
        return self._declared.name

    def standing(self, partitions: Iterable[int]) -> Standing:
        """From where to where it has these partitions."""
        covered: dict[int, tuple[int, int]] = {}
        for partition in partitions:
            after = self.store.next_offset(self.topic_id, partition)
            if after is not None:
                covered[partition] = (self.store.first_offset(self.topic_id, partition) or 0, after)
        return Standing(covered)

    def declare(self, table: Table) -> None:
        """Keep another declaration; its columns must be there already."""
        self.store.delta.alter.set_table_properties(
            {DECLARATION: declaration.to_json(table)}, raise_if_not_exists=False
        )
        self.store.refresh()
        self._declared = table


class Warehouse:
    """Tables by name, under a path or URI."""

    def __init__(self, uri: str) -> None:
        # Executors, which write the files and commit nothing, can do without.
        if importlib.util.find_spec("deltalake") is None:
            raise MissingDependency("deltalake", "loading tables", "spark")
        self.storage = Storage(uri).absolute()

    def names(self) -> list[str]:
        """All tables, in order; dead letters are no tables of their own."""
        there = set(self.storage.folders())
        pairs = sorted(name for name in there if not name.endswith(DEAD_SUFFIX) and name + DEAD_SUFFIX in there)
        # A folder may be what a creation that was cut short has left.
        return [name for name in pairs if Store.is_there(self.storage.child(name))]

    def open(self, name: str) -> OpenTable:
        """Raises NoSuchTable."""
        if name not in self.names():
            from difflib import get_close_matches

            near = get_close_matches(name, self.names(), n=1)
            hint = f"Did you mean {near[0]}?" if near else "`penstock table list` shows those there are"
            raise NoSuchTable(f"there is no table {name} in {self.storage.uri}", hint=hint)
        return OpenTable(self.storage.child(name), self.storage.child(name + DEAD_SUFFIX))

    def create(
        self, table: Table, state: LogState, sample: Callable[[], tuple[Column, ...]] | None = None
    ) -> OpenTable:
        """Make a table and its dead letters; nothing is loaded. Raises TableExists, DeclarationError.

        `sample` says the columns of records where the declaration leaves them open.
        """
        if table.name in self.names():
            raise TableExists(
                f"there is a table {table.name} already", hint="--update changes its declaration; penstock table drop"
            )
        table = self._complete(table, sample)
        schema = table_schema(table)
        dead = self.storage.child(table.dead_name)
        main = self.storage.child(table.name)
        # The dead letters first: a table is there once its own folder is. What a crash left in between is replaced.
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
                f"the columns of {table.name} are not known: the topic {table.topic} has no record to infer them from",
                hint="Declare a schema, or allow evolution",
            )
        return declaration.checked_columns(replace(table, columns=columns))

    def drop(self, name: str) -> None:
        """Remove a table, its dead letters, and all their files."""
        self.open(name)
        # Without its own folder a table is gone, whatever is left of its dead letters.
        self.storage.child(name).remove()
        self.storage.child(name + DEAD_SUFFIX).remove()


def table_schema(table: Table) -> pa.Schema:
    return pa.schema([*metadata_fields(), *arrow_schema(table.columns), *partition_fields(table)])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A type as columns have it, whatever Delta's way through Arrow made of it."""
    from penstock.spark.tables.decoding import settled_type

    return settled_type(kind)


def described(table: OpenTable) -> Mapping[str, object]:
    """What a table says of itself, for people and programs."""
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
