"""A Delta table: its Parquet files, its commits, and what each commit says about itself.

A file has a unique name, is complete and synced before anybody learns its name, and counts once a commit names it. A
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


def next_id(topic_id: str, partition: int) -> str:
    return f"penstock:next:{topic_id}:{partition}"


def first_id(topic_id: str, partition: int) -> str:
    return f"penstock:first:{topic_id}:{partition}"


@dataclass(frozen=True)
class DataFile:
    """A Parquet file that lies in a table's folder and waits for a commit; or is named by one."""

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
    """What became of the records of some offsets."""

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
        """Every record that was read is somewhere."""
        return self.records == self.landed + self.dead + self.dropped + self.deleted


@dataclass(frozen=True)
class CommitNote:
    """`dead_files` and `dead_replaces` are the dead letters' part of the same commit, carried out right after it."""

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
        """Offsets of the spans that had no record: transaction markers, or compacted away."""
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


_ROW_GROUP_ROWS: Final = 128 * 1024
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
STAGING: Final = "_staging"
STATISTICS: Final = ("_partition", "_offset")
"""The columns whose bounds a commit knows of each file."""


@dataclass(frozen=True)
class Storage:
    """A folder; it travels to executors."""

    uri: str

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri or self.uri.startswith("file://")

    @property
    def local_path(self) -> str:
        return self.uri.removeprefix("file://")

    def absolute(self) -> Storage:
        """The same folder for processes that work in another one, as executors do."""
        return Storage(os.path.abspath(self.uri)) if "://" not in self.uri else self

    def check_there(self, files: Sequence[DataFile]) -> None:
        """Whether what tasks say they wrote is here, where it will be committed; raises TableError.

        A folder that only looks the same on every machine would make commits that name files of nobody.
        """
        if not self.is_local:
            return
        for file in files:
            whole = Path(os.path.abspath(self.local_path), file.path)
            if not whole.is_file() or whole.stat().st_size != file.size:
                raise TableError(
                    f"an executor has written {file.path}, but it is not in {self.uri} here; nothing was committed",
                    hint="The warehouse must be a folder that the driver and all executors share, or a URI such as s3://",
                )

    def child(self, name: str) -> Storage:
        return Storage(f"{self.uri.rstrip('/')}/{name}")

    def filesystem(self) -> tuple[Any, str]:
        """Arrow's file system, and the root's path in it."""
        if self.is_local:
            return pafs.LocalFileSystem(), os.path.abspath(self.local_path)
        try:
            filesystem, path = pafs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, OSError) as error:
            raise TableError(
                f"{self.uri} cannot be used: {error}", hint="Name a folder, or an s3:// or gs:// URI"
            ) from None
        return filesystem, path

    def folders(self) -> list[str]:
        """The names of the folders in it; none if it is not there."""
        filesystem, root = self.filesystem()
        found = filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == pafs.FileType.Directory)

    def remove(self) -> None:
        filesystem, root = self.filesystem()
        if filesystem.get_file_info(root).type == pafs.FileType.Directory:
            filesystem.delete_dir(root)

    def remove_files(self, paths: list[str]) -> None:
        """Files that no commit names; one that is gone already is no matter."""
        filesystem, root = self.filesystem()
        for path in paths:
            try:
                filesystem.delete_file(f"{root}/{path}")
            except OSError:
                continue

    def remove_staged(self, older_than_s: float) -> int:
        """Files that waited for a merge which never came; how many. Delta's own vacuum passes such folders over."""
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
        """Make a file that another wrote durable, where files are ours to sync."""
        if not self.is_local:
            return
        whole = Path(self.local_path) / path
        for each in (whole, whole.parent):
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


NO_SPACE: Final = "Free some space, then run the same again"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_WORDS: Final = tuple(os.strerror(number) for number in sorted(_FULL))


def is_full(error: Exception) -> bool:
    """Whether a disk or a quota has no room for more; libraries may say so in words only."""
    return getattr(error, "errno", None) in _FULL or any(words in str(error) for words in _FULL_WORDS)


def message_of(error: Exception) -> str:
    """What an error says, in a line: that there is no room, if it is that, wherever it stands."""
    text = str(error) or type(error).__name__
    return next((words for words in _FULL_WORDS if words in text), text.splitlines()[0])


@contextmanager
def one_line_os_errors(what: str) -> Iterator[None]:
    """What the disk says, in one line."""
    try:
        yield
    except OSError as error:
        hint = NO_SPACE if is_full(error) else "See whether the folder can be written"
        why = os.strerror(error.errno) if error.errno else message_of(error)
        raise TableError(f"{what}: {why}; nothing was committed", hint=hint) from None


class PartWriter:
    """One Parquet file in the making."""

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
        with one_line_os_errors(f"{storage.uri} cannot be written"):
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
        """Bytes written so far, and what waits."""
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
        with one_line_os_errors(f"{self._storage.uri} cannot be written"):
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=_ROW_GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> DataFile:
        """The file, whole and on the disk; or none."""
        try:
            self._flush()
            with one_line_os_errors(f"{self._storage.uri} cannot be written"):
                self._writer.close()
                size = int(self._sink.tell())
                self._sink.close()
                self._storage.sync(self.path)
        except BaseException:
            self.abandon()
            raise
        return DataFile(self.path, size, self._rows, self._values, self._bounds.stats(self._rows))

    def abandon(self) -> None:
        """Leave no file behind, as far as that is possible."""
        self._waiting = []
        # A file that is open takes its space even when it is removed. The disk that failed may fail here too.
        for part in (self._writer, self._sink):
            with suppress(OSError, pa.ArrowException):
                part.close()
        self._storage.remove_files([self.path])


class _Bounds:
    """The least and greatest of the columns that say where a record came from."""

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

    def may_overlap(self, span: Span) -> bool:
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

        with one_line_os_errors(f"{storage.uri} cannot be written"):
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
                    raise _commit_error(self.storage.uri, error) from error
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


def _commit_error(uri: str, error: Exception) -> TableError:
    hint = NO_SPACE if is_full(error) else "See whether the folder can be read and written"
    return TableError(f"{uri}: nothing was committed: {message_of(error)}", hint=hint)


_BOUNDS: Final = ("min._partition", "max._partition", "min._offset", "max._offset")


def _column(columns: Mapping[str, list[Any]], name: str, count: int) -> list[Any]:
    return columns.get(name, [None] * count)


def _pair(low: int | None, high: int | None) -> tuple[int, int] | None:
    return None if low is None or high is None else (low, high)
