"""A Delta table: its Parquet files, its commits, and what each commit says about itself.

A file has a unique name, is complete and synced before any reader learns its name, and counts once a commit names it. A
task that dies or runs twice leaves a file that no reader sees; a vacuum removes it.

A commit is made for exactly the version that was read. Delta would retry it on top of other commits; here it fails,
its preconditions are checked again, and then it is retried. Each commit has an id, so that the log can say whether a
commit that ended with an error happened. The state of a load is in Delta's application transactions, by topic id:

    penstock:next:<topic id>:<partition>    the offset at which the next load starts
    penstock:first:<topic id>:<partition>   the first offset that was ever loaded
    penstock:dead                           number of commits that changed the dead letters

`CommitNote` in the commit's metadata (offsets, counts) is for people and audits; Delta's log cleanup removes old ones.
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.spark.errors import ConcurrentLoad, NoSuchTable, TableError
from penstock.spark.tables.load_plan import Span, spans_from_json, spans_to_json, total, union

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


KEY: Final = "penstock"
DEAD_SEQUENCE: Final = "penstock:dead"
DEAD_APPLIED: Final = "penstock:applied"
LOAD: Final = "load"
BACKFILL: Final = "backfill"
REPLAY: Final = "replay-dead"
COMPACT: Final = "compact"
EVOLVE: Final = "evolve"
EXPIRE: Final = "expire"
STAGING: Final = "_staging"
STATISTICS: Final = ("_partition", "_offset")
"""The columns whose bounds are in the statistics of each file."""
RUN_AGAIN: Final = "Run the same command again"
NO_SPACE: Final = "Free some space, then run the same command again"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_WORDS: Final = tuple(os.strerror(number) for number in sorted(_FULL))
_ROW_GROUP_ROWS: Final = 128 * 1024
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_TRIES: Final = 50
_NOTE_ID: Final = "id"
_BOUNDS: Final = ("min._partition", "max._partition", "min._offset", "max._offset")

# ---------------------------------------------------------------------------------------------- the table


Attempt = Callable[["DeltaTable", "CommitProperties"], None]


@dataclass(frozen=True)
class LiveFile:
    """A committed file. The bounds are None if its writer left no statistics."""

    path: str
    size: int
    rows: int | None
    partition_values: Mapping[str, str | None]
    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None

    @property
    def span(self) -> Span | None:
        """The span of its records, if they are of one partition."""
        if self.partitions is None or self.offsets is None or self.partitions[0] != self.partitions[1]:
            return None
        return Span(self.partitions[0], self.offsets[0], self.offsets[1] + 1)

    def may_overlap(self, span: Span) -> bool:
        if self.partitions is None or self.offsets is None:
            return True
        if not self.partitions[0] <= span.partition <= self.partitions[1]:
            return False
        return self.offsets[0] < span.end and span.start <= self.offsets[1]


class Store:
    """An existing Delta table: what it has, and commits. Raises NoSuchTable if it does not exist."""

    def __init__(self, storage: Storage) -> None:
        from deltalake import DeltaTable

        self.storage = storage
        if not self.exists(storage):
            raise NoSuchTable(f"no table at {storage.uri}", hint="`penstock table list` lists the tables")
        self.delta = DeltaTable(storage.uri)

    @staticmethod
    def exists(storage: Storage) -> bool:
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

        with one_line_os_errors(f"cannot write {storage.uri}"):
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

    # ------------------------------------------------------------------------------------------ state

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

    def dataset(self) -> Any:
        """The rows of this version as an Arrow dataset."""
        return self.delta.to_pyarrow_dataset(filesystem=self._filesystem())

    def read(self, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
        """The rows of this version; `filters` as deltalake takes them."""
        wanted = None if columns is None else list(columns)
        return self.delta.to_pyarrow_table(columns=wanted, filters=filters, filesystem=self._filesystem())

    def _filesystem(self) -> Any:
        """Arrow's own file system. Without it, Arrow's threads call deltalake's, which is written in Python: a thread
        that still reads ahead when the interpreter ends would abort the process ("terminate called without an active
        exception")."""
        filesystem, root = self.storage.filesystem()
        return pafs.SubTreeFileSystem(root, filesystem)

    def note(self, version: int) -> CommitNote | None:
        """The note of a version; None if the commit is not ours, or was removed by Delta's cleanup."""
        document = self._note_document(version)
        return None if document is None else CommitNote.from_json(document)

    def actions(self, version: int) -> list[dict[str, Any]] | None:
        """The actions of a commit, as in Delta's log; None if the cleanup has removed them."""
        text = self.storage.read_text(_log_file(version))
        return None if text is None else [json.loads(line) for line in text.splitlines()]

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """The commitInfo of a version; None if the cleanup has removed it."""
        text = self.storage.read_text(_log_file(version)) or ""
        line = next((line for line in text.splitlines() if line.startswith('{"commitInfo"')), None)
        found: dict[str, Any] | None = None if line is None else json.loads(line)["commitInfo"]
        return found

    def _note_document(self, version: int) -> dict[str, Any] | None:
        return (self.commit_info(version) or {}).get(KEY)

    # ------------------------------------------------------------------------------------------ commits

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
        """Adds and removes files and stores the note in one version, which is returned.

        `check` raises if the commit is no longer valid. Raises ConcurrentLoad if a file to be removed no longer exists.
        """
        from deltalake.transaction import AddAction, RemoveAction

        def recheck() -> None:
            if remove:
                there = {one.path for one in self.files()}
                if any(one.path not in there for one in remove):
                    raise ConcurrentLoad("files to be replaced were already replaced by another load", hint=RUN_AGAIN)
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
        """Runs an operation that makes one commit on top of the version that was read. Returns the new version."""
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
                # It may have failed after the commit, for example in a checkpoint.
                if not self._is_own_commit(target, note_id):
                    raise _commit_error(self.storage.uri, error) from error
            if self._is_own_commit(target, note_id):
                self.storage.sync(_log_file(target))
                self.refresh()
                return target
        raise ConcurrentLoad(
            f"{self.storage.uri}: {_TRIES} commit attempts failed because of concurrent commits",
            hint="Stop one of the loads",
        )

    def _is_own_commit(self, version: int, note_id: str) -> bool:
        document = self._note_document(version)
        return document is not None and document.get(_NOTE_ID) == note_id


def next_id(topic_id: str, partition: int) -> str:
    return f"penstock:next:{topic_id}:{partition}"


def first_id(topic_id: str, partition: int) -> str:
    return f"penstock:first:{topic_id}:{partition}"


def _commit_error(uri: str, error: Exception) -> TableError:
    hint = NO_SPACE if is_full(error) else "Check that the folder is readable and writable"
    return TableError(f"{uri}: nothing was committed: {message_of(error)}", hint=hint)


def _log_file(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def _column(columns: Mapping[str, list[Any]], name: str, count: int) -> list[Any]:
    return columns.get(name, [None] * count)


def _pair(low: int | None, high: int | None) -> tuple[int, int] | None:
    return None if low is None or high is None else (low, high)


# ---------------------------------------------------------------------------------------------- notes of commits


@dataclass(frozen=True)
class DataFile:
    """A Parquet file in a table's folder, committed or not yet committed."""

    path: str
    size: int
    rows: int
    partition_values: Mapping[str, str | None]
    stats: str
    """Delta's statistics, as JSON."""

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path, "size": self.size, "rows": self.rows,
            "partitionValues": dict(self.partition_values), "stats": self.stats,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DataFile:
        return cls(document["path"], document["size"], document["rows"], document["partitionValues"], document["stats"])


@dataclass(frozen=True)
class Counts:
    """What happened to the records of some offsets."""

    records: int = 0
    landed: int = 0
    dead: int = 0
    dropped: int = 0
    late: int = 0
    deleted: int = 0
    """Tombstones of an upsert table."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.records + other.records, self.landed + other.landed, self.dead + other.dead,
            self.dropped + other.dropped, self.late + other.late, self.deleted + other.deleted,
        )  # fmt: skip

    @property
    def is_balanced(self) -> bool:
        """Whether every record that was read is accounted for."""
        return self.records == self.landed + self.dead + self.dropped + self.deleted


@dataclass(frozen=True)
class CommitNote:
    """What a commit says about itself. `dead_files` and `dead_replaces` are applied to the dead letters after it."""

    kind: str
    topic: str = ""
    topic_id: str = ""
    spans: Sequence[Span] = ()
    counts: Counts = field(default_factory=Counts)
    dead_sequence: int = 0
    dead_files: Sequence[DataFile] = ()
    dead_replaces: Sequence[Span] = ()

    @property
    def gaps(self) -> int:
        """Offsets of the spans without a record: transaction markers, or compacted away."""
        return total(union(self.spans)) - self.counts.records

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"kind": self.kind}
        if self.spans:
            document |= {
                "topic": self.topic,
                "topicId": self.topic_id,
                "offsets": spans_to_json(self.spans),
                "counts": {name: value for name, value in vars(self.counts).items() if value},
            }
        if self.dead_sequence:
            document |= {
                "deadSequence": self.dead_sequence,
                "deadFiles": [one.to_json() for one in self.dead_files],
                "deadReplaces": spans_to_json(self.dead_replaces),
            }
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CommitNote:
        return cls(
            kind=document["kind"],
            topic=document.get("topic", ""),
            topic_id=document.get("topicId", ""),
            spans=spans_from_json(document.get("offsets", {})),
            counts=Counts(**document.get("counts", {})),
            dead_sequence=document.get("deadSequence", 0),
            dead_files=[DataFile.from_json(one) for one in document.get("deadFiles", ())],
            dead_replaces=spans_from_json(document.get("deadReplaces", {})),
        )


# ---------------------------------------------------------------------------------------------- the folder


@dataclass(frozen=True)
class Storage:
    """A folder by path or URI. It is sent to executors."""

    uri: str

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri or self.uri.startswith("file://")

    @property
    def local_path(self) -> str:
        return self.uri.removeprefix("file://")

    def absolute(self) -> Storage:
        """The same folder by absolute path, for executors with another working directory."""
        return Storage(os.path.abspath(self.uri)) if "://" not in self.uri else self

    def check_files_exist(self, files: Sequence[DataFile]) -> None:
        """Checks that the files of the tasks exist here, before they are committed. Raises TableError.

        If the folder is not shared by all machines, a commit would name files that do not exist.
        """
        if not self.is_local:
            return
        for file in files:
            whole = Path(os.path.abspath(self.local_path), file.path)
            if not whole.is_file() or whole.stat().st_size != file.size:
                raise TableError(
                    f"an executor wrote {file.path}, but the driver does not find it in {self.uri}; nothing was "
                    "committed",
                    hint="The warehouse must be a folder that the driver and all executors share, or a URI such as s3://",
                )

    def child(self, name: str) -> Storage:
        return Storage(f"{self.uri.rstrip('/')}/{name}")

    def filesystem(self) -> tuple[Any, str]:
        """Arrow's file system, and the path of this folder in it."""
        if self.is_local:
            return pafs.LocalFileSystem(), os.path.abspath(self.local_path)
        try:
            filesystem, path = pafs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, OSError) as error:
            raise TableError(
                f"cannot use {self.uri}: {error}", hint="Give a folder, or an s3:// or gs:// URI"
            ) from None
        return filesystem, path

    def folders(self) -> list[str]:
        """The names of the folders in it; none if it does not exist."""
        filesystem, root = self.filesystem()
        found = filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == pafs.FileType.Directory)

    def remove(self) -> None:
        filesystem, root = self.filesystem()
        if filesystem.get_file_info(root).type == pafs.FileType.Directory:
            filesystem.delete_dir(root)

    def remove_files(self, paths: list[str]) -> None:
        """Removes uncommitted files; missing ones are ignored."""
        filesystem, root = self.filesystem()
        for path in paths:
            try:
                filesystem.delete_file(f"{root}/{path}")
            except OSError:
                continue

    def remove_staged(self, older_than_s: float) -> int:
        """Removes files that were staged for a merge that never happened, which Delta's vacuum skips."""
        filesystem, root = self.filesystem()
        found = filesystem.get_file_info(pafs.FileSelector(f"{root}/{STAGING}", allow_not_found=True))
        limit_ns = time.time_ns() - int(older_than_s * 1e9)
        old = [f"{STAGING}/{info.base_name}" for info in found if (info.mtime_ns or limit_ns) < limit_ns]
        self.remove_files(old)
        return len(old)

    def read_text(self, path: str) -> str | None:
        filesystem, root = self.filesystem()
        try:
            with filesystem.open_input_stream(f"{root}/{path}") as stream:
                return str(stream.read().decode())
        except FileNotFoundError:
            return None

    def sync(self, path: str) -> None:
        """Syncs a file that another writer created, on a local disk."""
        if not self.is_local:
            return
        whole = Path(self.local_path) / path
        for each in (whole, whole.parent):
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def is_full(error: Exception) -> bool:
    """Whether a disk or quota is full; some libraries report it only by the text."""
    return getattr(error, "errno", None) in _FULL or any(words in str(error) for words in _FULL_WORDS)


def message_of(error: Exception) -> str:
    """The first line of an error, or the text of "no space" wherever it appears."""
    text = str(error) or type(error).__name__
    return next((words for words in _FULL_WORDS if words in text), text.splitlines()[0])


@contextmanager
def one_line_os_errors(what: str) -> Iterator[None]:
    """Turns OSErrors into a TableError of one line."""
    try:
        yield
    except OSError as error:
        hint = NO_SPACE if is_full(error) else "Check that the folder is writable"
        why = os.strerror(error.errno) if error.errno else message_of(error)
        raise TableError(f"{what}: {why}; nothing was committed", hint=hint) from None


# ---------------------------------------------------------------------------------------------- Parquet files


class PartWriter:
    """Writes one Parquet file."""

    def __init__(self, storage: Storage, folder: str, values: Mapping[str, str | None], schema: pa.Schema) -> None:
        self._storage = storage
        self._values = dict(values)
        parts = [folder, *(f"{name}={value}" for name, value in values.items())]
        self.path = "/".join(part for part in (*parts, f"part-{uuid.uuid4().hex}.parquet") if part)
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0
        self._bounds = _Bounds()
        with one_line_os_errors(f"cannot write {storage.uri}"):
            filesystem, root = storage.filesystem()
            whole = f"{root}/{self.path}"
            filesystem.create_dir(os.path.dirname(whole), recursive=True)
            self._sink = filesystem.open_output_stream(whole)
            try:
                self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd")
            except BaseException:
                storage.remove_files([self.path])
                raise

    @property
    def size(self) -> int:
        """Bytes written so far, buffered rows included."""
        return int(self._sink.tell()) + self._waiting_bytes

    def write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        rows = rows.select(self._schema.names)
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        self._bounds.take(rows)
        if self._waiting_rows >= _ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        with one_line_os_errors(f"cannot write {self._storage.uri}"):
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=_ROW_GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> DataFile:
        """Completes and syncs the file. On an error no file is left."""
        try:
            self._flush()
            with one_line_os_errors(f"cannot write {self._storage.uri}"):
                self._writer.close()
                size = int(self._sink.tell())
                self._sink.close()
                self._storage.sync(self.path)
        except BaseException:
            self.abandon()
            raise
        return DataFile(self.path, size, self._rows, self._values, self._bounds.stats(self._rows))

    def abandon(self) -> None:
        """Removes the file, as far as possible."""
        self._waiting = []
        # An open file uses space even after its removal. The disk that failed may fail here too.
        for part in (self._writer, self._sink):
            with suppress(OSError, pa.ArrowException):
                part.close()
        self._storage.remove_files([self.path])


class _Bounds:
    """The least and greatest values of the columns in `STATISTICS`."""

    def __init__(self) -> None:
        self._least: dict[str, int] = {}
        self._greatest: dict[str, int] = {}

    def take(self, rows: pa.Table) -> None:
        for name in STATISTICS:
            found = pc.min_max(rows.column(name)).as_py()
            self._least[name] = min(self._least.get(name, found["min"]), found["min"])
            self._greatest[name] = max(self._greatest.get(name, found["max"]), found["max"])

    def stats(self, rows: int) -> str:
        return json.dumps(
            {
                "numRecords": rows,
                "minValues": self._least,
                "maxValues": self._greatest,
                "nullCount": dict.fromkeys(STATISTICS, 0),
            }
        )
