"""Offsets in the database that holds the results, in the same transaction: exactly-once without Kafka transactions.

    store = SqlOffsetStore(lambda: psycopg.connect(dsn))
    with Consumer("views", group_id="feed", offset_store=store, enable_auto_commit=False, ...) as consumer:
        for record in consumer:
            with database.transaction():                       # the caller's own
                insert_result(database, record)
                store.save_in(database, "feed", {(record.topic, record.partition): record.offset + 1})

Loading a partition makes this store its owner and increments `owner_epoch`; saving requires that epoch. A member that
was replaced finds a higher one and gets StaleOwner: its transaction must be rolled back. The row's lock orders the
two.

    old owner    load: epoch 1 ........................... save with epoch 1 -> no such row: StaleOwner
    new owner                  load: epoch 2, offset 40 ................. save with epoch 2 -> offset 50

Offsets only advance: a record delivered twice raises AlreadyStored; to replay, pass `rewind=True`. Statements are
written once with {names} and adapted to the driver's parameter style. Values are always parameters; table names are
checked.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

from penstock.client.errors import ConfigError
from penstock.client.offset_stores.base import (
    NO_MEMBER,
    AlreadyStored,
    Membership,
    OffsetAndMetadata,
    OffsetStoreError,
    P,
    StaleOwner,
)

logger = logging.getLogger(__name__)
_NAME: Final = re.compile(r"\{(\w+)\}")
_TABLE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)
_POSITIONAL: Final[dict[str, Callable[[int], str]]] = {
    "qmark": lambda number: "?",
    "format": lambda number: "%s",
    "numeric": lambda number: f":{number}",
}
_NAMED: Final[dict[str, Callable[[str], str]]] = {
    "named": lambda name: f":{name}",
    "pyformat": lambda name: f"%({name})s",
}
STYLES: Final = (*_POSITIONAL, *_NAMED)
_NOTHING: Final = -1
_BEYOND_ALL: Final = 2**63 - 1
_ATTEMPTS: Final = 5
_ROW: Final = "consumer_group = {group} AND topic = {topic} AND partition_id = {partition}"


class SqlOffsetStore:
    """Offsets in a table. `connect` opens the store's own connections, for work outside of a caller's transaction."""

    def __init__(
        self,
        connect: Callable[[], Any] | None = None,
        *,
        table: str = "penstock_offsets",
        paramstyle: str | None = None,
    ) -> None:
        self._connect = connect
        self._style = None if paramstyle is None else checked_style(paramstyle)
        self.table = checked_table(table)
        self._epochs: dict[tuple[str, str, int], int] = {}
        self._lock = threading.Lock()
        self._create = Statement(
            f"CREATE TABLE IF NOT EXISTS {table} ("
            "consumer_group VARCHAR(255) NOT NULL, topic VARCHAR(249) NOT NULL, partition_id INTEGER NOT NULL, "
            "next_offset BIGINT NOT NULL, leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL, "
            "owner_epoch BIGINT NOT NULL, PRIMARY KEY (consumer_group, topic, partition_id))"
        )
        self._claim = Statement(f"UPDATE {table} SET owner_epoch = owner_epoch + 1 WHERE {_ROW}")
        self._insert = Statement(
            f"INSERT INTO {table}"
            " (consumer_group, topic, partition_id, next_offset, leader_epoch, metadata, owner_epoch)"
            " VALUES ({group}, {topic}, {partition}, {offset}, {leader_epoch}, {metadata}, 1)"
        )
        self._select = Statement(f"SELECT next_offset, leader_epoch, metadata, owner_epoch FROM {table} WHERE {_ROW}")
        self._update = Statement(
            f"UPDATE {table} SET next_offset = {{offset}}, leader_epoch = {{leader_epoch}}, metadata = {{metadata}}"
            f" WHERE {_ROW} AND owner_epoch = {{epoch}} AND next_offset < {{below}}"
        )

    # --- in the caller's transaction: nothing here commits or rolls back

    def create_table(self, connection: Any) -> None:
        """Create the table if it does not exist."""
        with cursor_of(connection) as cursor:
            self._create.on(cursor, self._style_for(connection))

    def load_in(self, connection: Any, group: str, partitions: Iterable[P]) -> dict[P, OffsetAndMetadata]:
        """Become the owner of partitions; returns their stored offsets. Effective when the caller commits."""
        style = self._style_for(connection)
        loaded: dict[P, OffsetAndMetadata] = {}
        epochs: dict[tuple[str, str, int], int] = {}
        with cursor_of(connection) as cursor:
            # In one order, so that two concurrent owners wait for each other instead of deadlocking.
            for partition in sorted(partitions):
                topic, number = partition
                key = {"group": group, "topic": topic, "partition": number}
                row = self._owned_row(cursor, style, key) or self._claimed_row(cursor, style, key)
                epochs[group, topic, number] = row[3]
                if row[0] != _NOTHING:
                    loaded[partition] = OffsetAndMetadata(*row[:3])
        with self._lock:
            self._epochs.update(epochs)
        return loaded

    def _owned_row(self, cursor: Any, style: str, key: dict[str, Any]) -> Any:
        """The row of a partition that this store owns; None if it does not, or no longer.

        It is only looked at, because the caller may hold the row in a transaction of their own.
        """
        with self._lock:
            epoch = self._epochs.get((key["group"], key["topic"], key["partition"]))
        if epoch is None:
            return None
        self._select.on(cursor, style, **key)
        row = cursor.fetchone()
        return row if row is not None and row[3] == epoch else None

    def _claimed_row(self, cursor: Any, style: str, key: dict[str, Any]) -> Any:
        # The update comes first: it waits for an old owner's transaction, so the select sees its result.
        if self._claim.on(cursor, style, **key) == 0:
            self._insert.on(cursor, style, **key, offset=_NOTHING, leader_epoch=-1, metadata="")
        self._select.on(cursor, style, **key)
        return cursor.fetchone()

    def read_in(self, connection: Any, group: str, partitions: Iterable[P]) -> dict[P, OffsetAndMetadata]:
        """The stored offsets, without changing the owner."""
        style = self._style_for(connection)
        found: dict[P, OffsetAndMetadata] = {}
        with cursor_of(connection) as cursor:
            for partition in partitions:
                self._select.on(cursor, style, group=group, topic=partition[0], partition=partition[1])
                row = cursor.fetchone()
                if row is not None and row[0] != _NOTHING:
                    found[partition] = OffsetAndMetadata(*row[:3])
        return found

    def save_in(
        self, connection: Any, group: str, offsets: Mapping[P, OffsetAndMetadata | int], *, rewind: bool = False
    ) -> None:
        """Store offsets on a connection or cursor, without committing.

        Raises StaleOwner or AlreadyStored, and then: roll back. With `rewind` an offset need not advance.
        """
        style = self._style_for(connection)
        with cursor_of(connection) as cursor:
            for (topic, number), what in sorted(offsets.items()):
                stored = what if isinstance(what, OffsetAndMetadata) else OffsetAndMetadata(what)
                if stored.offset < 0:
                    raise OffsetStoreError(f"{stored.offset} is not an offset of {_named(group, topic, number)}")
                with self._lock:
                    epoch = self._epochs.get((group, topic, number))
                if epoch is None:
                    raise OffsetStoreError(
                        f"this store does not own {_named(group, topic, number)}",
                        hint="Call load or load_in first; consumers do when partitions are assigned",
                    )
                key = {"group": group, "topic": topic, "partition": number}
                below = _BEYOND_ALL if rewind else stored.offset
                values = {"offset": stored.offset, "leader_epoch": stored.leader_epoch, "metadata": stored.metadata}
                if self._update.on(cursor, style, **key, **values, epoch=epoch, below=below) != 1:
                    self._select.on(cursor, style, **key)
                    raise _rejection(_named(group, topic, number), epoch, stored.offset, cursor.fetchone())

    # --- as a consumer's offset store: on connections of its own

    async def load(self, group: str, partitions: Iterable[P]) -> dict[P, OffsetAndMetadata]:
        """The stored offsets of a group; partitions without one are left out."""
        wanted = list(partitions)
        return await asyncio.to_thread(self._own, lambda connection: self.load_in(connection, group, wanted), True)

    async def save(
        self, group: str, offsets: Mapping[P, OffsetAndMetadata], membership: Membership = NO_MEMBER
    ) -> None:
        """Store the offsets of a group, all or none."""
        given = dict(offsets)
        await asyncio.to_thread(
            self._own, lambda connection: self.save_in(connection, group, given, rewind=True), False
        )

    async def close(self) -> None:
        """Does nothing: no connection stays open between calls."""

    def _own(self, work: Callable[[Any], Any], is_repeatable: bool) -> Any:
        if self._connect is None:
            raise ConfigError(
                "SqlOffsetStore cannot connect to its database",
                hint="Pass connect: SqlOffsetStore(lambda: sqlite3.connect(path))",
            )
        for attempt in range(1, _ATTEMPTS + 1):
            with closing(self._connect()) as connection:
                try:
                    outcome = work(connection)
                    connection.commit()
                except Exception as error:
                    connection.rollback()
                    # Two first owners insert the same row, or deadlock: the next attempt finds the row.
                    if not is_repeatable or attempt == _ATTEMPTS or not _may_pass(error):
                        raise
                    logger.debug(
                        "loading offsets failed, retrying: table=%s attempt=%d error=%s", self.table, attempt, error
                    )
                else:
                    return outcome
        raise OffsetStoreError(f"offsets in {self.table} could not be loaded")

    def _style_for(self, connection: Any) -> str:
        return self._style or style_of(connection)


def _rejection(partition: str, epoch: int, offset: int, row: Any) -> OffsetStoreError:
    if row is not None and row[3] == epoch:
        return AlreadyStored(
            f"{partition} is already stored up to {row[0]}, which {offset} does not exceed",
            hint="Roll the transaction back: these records were processed before. Use rewind=True to replay them",
        )
    return StaleOwner(
        f"{partition} has another owner: nothing was stored",
        hint="Roll the transaction back; the partition's new owner reads these records again",
    )


def _may_pass(error: Exception) -> bool:
    """Whether an error may come from a concurrent transaction; DB-API has names of errors, not their causes."""
    return any(each.__name__ in ("IntegrityError", "OperationalError") for each in type(error).__mro__)


def _named(group: str, topic: str, partition: int) -> str:
    return f"{topic}-{partition} of group {group}"


# --------------------------------------------------------------------------------------------------- statements


class Statement:
    """One statement in every parameter style."""

    def __init__(self, text: str) -> None:
        self._names = _NAME.findall(text)
        self._texts: dict[str, str] = {}
        for style, named in _NAMED.items():
            self._texts[style] = _NAME.sub(lambda match, named=named: named(match[1]), text)  # type: ignore[misc]
        for style, numbered in _POSITIONAL.items():
            numbers = iter(range(1, len(self._names) + 1))
            self._texts[style] = _NAME.sub(lambda match, of=numbered, n=numbers: of(next(n)), text)  # type: ignore[misc]

    def on(self, cursor: Any, style: str, **values: Any) -> int:
        """Execute it; returns the number of changed rows."""
        parameters: Any = values if style in _NAMED else tuple(values[name] for name in self._names)
        cursor.execute(self._texts[style], parameters)
        changed: int = cursor.rowcount
        return changed


def checked_table(name: str) -> str:
    if not _TABLE.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be the name of a table", hint="Use letters, digits, _; schema.table")
    return name


def checked_style(style: str) -> str:
    if style not in STYLES:
        raise ConfigError(f"paramstyle {style!r} is not one of DB-API 2", hint=f"Use one of {', '.join(STYLES)}")
    return style


def style_of(connection: Any) -> str:
    """The parameter style of the driver of a connection or cursor."""
    parts = type(connection).__module__.split(".")
    for length in range(len(parts), 0, -1):
        style = getattr(sys.modules.get(".".join(parts[:length])), "paramstyle", None)
        if isinstance(style, str):
            return checked_style(style)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise ConfigError(f"the paramstyle of {kind} is unknown", hint="Pass paramstyle= to SqlOffsetStore")


@contextmanager
def cursor_of(connection: Any) -> Iterator[Any]:
    """A cursor of a connection, closed afterwards; a cursor is passed through and left open."""
    make = getattr(connection, "cursor", None)
    if make is None:
        yield connection
        return
    cursor = make()
    try:
        yield cursor
    finally:
        cursor.close()
