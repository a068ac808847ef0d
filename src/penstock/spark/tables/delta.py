"""A Delta table as its driver sees it: what is in it, where it stands, and commits.

Noun: `Store`, one version of a table, and the way to the next one.

Rule: a commit is made for exactly the version that was looked at. Delta would retry it on top of whatever came in
between; here it is refused, everything it was based on is checked again, and only then it is tried again. Whether a
commit that ended with an error happened is asked of the log: each carries an id of its own.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.spark.tables.commits import KEY, CommitNote, DataFile, first_id, next_id
from penstock.spark.tables.errors import ConcurrentLoad, NoSuchTable, TableError
from penstock.spark.tables.ranges import Span
from penstock.spark.tables.storage import NO_SPACE, Storage, is_full, said_by, told_plainly

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_TRIES: Final = 50
_NOTE_ID: Final = "id"


@dataclass(frozen=True)
class LiveFile:
    """A file of the table. The bounds are None where whoever wrote it left no statistics."""

    path: str
    size: int
    rows: int | None
    partition_values: Mapping[str, str | None]
    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None

    @property
    def span(self) -> Span | None:
        """Where its records come from, if it is one partition."""
        if self.partitions is None or self.offsets is None or self.partitions[0] != self.partitions[1]:
            return None
        return Span(self.partitions[0], self.offsets[0], self.offsets[1] + 1)

    def may_meet(self, span: Span) -> bool:
        if self.partitions is None or self.offsets is None:
            return True
        if not self.partitions[0] <= span.partition <= self.partitions[1]:
            return False
        return self.offsets[0] < span.end and span.start <= self.offsets[1]


Attempt = Callable[["DeltaTable", "CommitProperties"], None]


class Store:
    """Raises NoSuchTable if there is none."""

    def __init__(self, storage: Storage) -> None:
        from deltalake import DeltaTable

        self.storage = storage
        if not self.is_there(storage):
            raise NoSuchTable(f"there is no table at {storage.uri}", hint="`penstock table list` shows those there are")
        self.delta = DeltaTable(storage.uri)

    @staticmethod
    def is_there(storage: Storage) -> bool:
        from deltalake import DeltaTable

        return DeltaTable.is_deltatable(storage.uri)

    @classmethod
    def create(
        cls,
        storage: Storage,
        schema: pa.Schema,
        partition_by: Sequence[str],
        name: str,
        configuration: Mapping[str, str],
    ) -> Store:
        from deltalake import DeltaTable, Schema

        with told_plainly(f"{storage.uri} cannot be written"):
            DeltaTable.create(
                storage.uri,
                Schema.from_arrow(schema),
                mode="error",
                partition_by=list(partition_by),
                name=name,
                configuration=dict(configuration),
                raise_if_key_not_exists=False,
            )
        return cls(storage)

    def refresh(self) -> None:
        self.delta.update_incremental()

    # ------------------------------------------------------------------------------------------ looking

    @property
    def version(self) -> int:
        return self.delta.version()

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.delta.metadata().configuration

    def schema(self) -> pa.Schema:
        return pa.schema(self.delta.schema().to_arrow())

    def transaction(self, app_id: str) -> int | None:
        return self.delta.transaction_version(app_id)

    def next_offset(self, topic_id: str, partition: int) -> int | None:
        return self.transaction(next_id(topic_id, partition))

    def first_offset(self, topic_id: str, partition: int) -> int | None:
        return self.transaction(first_id(topic_id, partition))

    def files(self) -> list[LiveFile]:
        found = pa.table(self.delta.get_add_actions(flatten=True))
        columns = found.to_pydict()
        count = found.num_rows
        named = {name: columns[f"partition.{name}"] for name in self.delta.metadata().partition_columns}
        bounds = [_column(columns, name, count) for name in _BOUNDS]
        rows = _column(columns, "num_records", count)
        return [
            LiveFile(
                columns["path"][number],
                columns["size_bytes"][number],
                rows[number],
                {name: None if values[number] is None else str(values[number]) for name, values in named.items()},
                _pair(bounds[0][number], bounds[1][number]),
                _pair(bounds[2][number], bounds[3][number]),
            )
            for number in range(count)
        ]

    def note(self, version: int) -> CommitNote | None:
        """What the commit of a version says; None if it is not one of ours, or no longer there."""
        document = self._note_document(version)
        return None if document is None else CommitNote.from_json(document)

    def _note_document(self, version: int) -> dict[str, Any] | None:
        text = self.storage.read_text(f"_delta_log/{version:020d}.json")
        for line in (text or "").splitlines():
            info = json.loads(line).get("commitInfo")
            if info is not None:
                found: dict[str, Any] | None = info.get(KEY)
                return found
        return None

    # ------------------------------------------------------------------------------------------ committing

    def commit(
        self,
        note: CommitNote,
        *,
        add: Sequence[DataFile] = (),
        remove: Sequence[LiveFile] = (),
        transactions: Mapping[str, int] | None = None,
        data_change: bool = True,
        check: Callable[[], None] | None = None,
    ) -> int:
        """Files in, files out, and the note, as one version; which one. `check` raises if it must not be any more.

        Raises ConcurrentLoad where a file that should go is gone.
        """
        from deltalake.transaction import AddAction, RemoveAction

        def recheck() -> None:
            if remove:
                there = {one.path for one in self.files()}
                if any(one.path not in there for one in remove):
                    raise ConcurrentLoad(
                        "files that were to be replaced have been replaced by another", hint="Run the same again"
                    )
            if check is not None:
                check()

        def attempt(delta: DeltaTable, properties: CommitProperties) -> None:
            now_ms = time.time_ns() // 1_000_000
            actions: list[AddAction | RemoveAction] = [
                RemoveAction(one.path, data_change, now_ms, one.size, dict(one.partition_values)) for one in remove
            ]
            actions += [
                AddAction(one.path, one.size, one.partition_values, now_ms, data_change, one.stats) for one in add
            ]
            delta.create_write_transaction(
                actions, "append", delta.schema(), delta.metadata().partition_columns, commit_properties=properties
            )

        return self.attempt(note, attempt, transactions=transactions, check=recheck)

    def attempt(
        self,
        note: CommitNote,
        attempt: Attempt,
        *,
        transactions: Mapping[str, int] | None = None,
        check: Callable[[], None] | None = None,
    ) -> int:
        """Carry out anything that makes one commit, for the version that was looked at; which version it became."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        note_id = uuid.uuid4().hex
        properties = CommitProperties(
            custom_metadata={KEY: note.to_json() | {_NOTE_ID: note_id}},
            max_commit_retries=0,
            app_transactions=[Transaction(name, version) for name, version in (transactions or {}).items()],
        )
        for _ in range(_TRIES):
            if check is not None:
                check()
            target = self.version + 1
            try:
                attempt(self.delta, properties)
            except CommitFailedError:
                self.refresh()
            except (DeltaError, OSError) as error:
                # It may have failed at what follows a commit, such as a checkpoint.
                if not self._is_ours(target, note_id):
                    raise _refused(self.storage.uri, error) from error
            if self._is_ours(target, note_id):
                self.storage.sync(f"_delta_log/{target:020d}.json")
                self.refresh()
                return target
        raise ConcurrentLoad(
            f"{self.storage.uri}: others commit so often that {_TRIES} attempts failed", hint="Stop one of the loads"
        )

    def _is_ours(self, version: int, note_id: str) -> bool:
        document = self._note_document(version)
        return document is not None and document.get(_NOTE_ID) == note_id


def _refused(uri: str, error: Exception) -> TableError:
    hint = NO_SPACE if is_full(error) else "See whether the folder can be read and written"
    return TableError(f"{uri}: nothing was committed: {said_by(error)}", hint=hint)


_BOUNDS: Final = ("min._partition", "max._partition", "min._offset", "max._offset")


def _column(columns: Mapping[str, list[Any]], name: str, count: int) -> list[Any]:
    return columns.get(name, [None] * count)


def _pair(low: int | None, high: int | None) -> tuple[int, int] | None:
    return None if low is None or high is None else (low, high)
