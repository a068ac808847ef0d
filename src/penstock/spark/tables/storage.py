"""The folder of a table: Parquet files into it, their names out of it.

Noun: `Storage`, a root by its URI (a path, s3://, gs://, hdfs://...: what Arrow's file systems know).

Rule: a file has a name that nobody else will give, is whole and on the disk before it is named to anybody, and counts
only once a commit names it. So a task that dies, or runs twice, leaves a file that no reader sees and that a vacuum
removes later. A disk that is full is an error of one line.
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.spark.tables.commits import DataFile
from penstock.spark.tables.errors import TableError

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


def said_by(error: Exception) -> str:
    """What an error says, in a line: that there is no room, if it is that, wherever it stands."""
    text = str(error) or type(error).__name__
    return next((words for words in _FULL_WORDS if words in text), text.splitlines()[0])


@contextmanager
def told_plainly(what: str) -> Iterator[None]:
    """What the disk says, in one line."""
    try:
        yield
    except OSError as error:
        hint = NO_SPACE if is_full(error) else "See whether the folder can be written"
        why = os.strerror(error.errno) if error.errno else said_by(error)
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
        with told_plainly(f"{storage.uri} cannot be written"):
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
        with told_plainly(f"{self._storage.uri} cannot be written"):
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=_ROW_GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> DataFile:
        """The file, whole and on the disk; or none."""
        try:
            self._flush()
            with told_plainly(f"{self._storage.uri} cannot be written"):
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
