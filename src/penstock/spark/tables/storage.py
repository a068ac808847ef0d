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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


@contextmanager
def told_plainly(what: str) -> Iterator[None]:
    """What the disk says, in one line."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "Free some space, then run the same again" if full else "See whether the folder can be written"
        why = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
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
            self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd")

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
        """The file, whole and on the disk."""
        self._flush()
        with told_plainly(f"{self._storage.uri} cannot be written"):
            self._writer.close()
            size = int(self._sink.tell())
            self._sink.close()
            self._storage.sync(self.path)
        return DataFile(self.path, size, self._rows, self._values, self._bounds.stats(self._rows))

    def abandon(self) -> None:
        """Leave no file behind, as far as that is possible."""
        self._waiting = []
        try:
            self._writer.close()
            self._sink.close()
        except (OSError, pa.ArrowException):
            pass  # The disk that failed to write may fail here too; a vacuum removes what is left.
        self._storage.remove_files([self.path])


class _Bounds:
    """The least and greatest of the columns that say where a record came from."""

    _NAMES = ("_partition", "_offset")

    def __init__(self) -> None:
        self._least: dict[str, int] = {}
        self._greatest: dict[str, int] = {}

    def take(self, rows: pa.Table) -> None:
        for name in self._NAMES:
            found = pc.min_max(rows.column(name)).as_py()
            self._least[name] = min(self._least.get(name, found["min"]), found["min"])
            self._greatest[name] = max(self._greatest.get(name, found["max"]), found["max"])

    def stats(self, rows: int) -> str:
        return json.dumps(
            {
                "numRecords": rows,
                "minValues": self._least,
                "maxValues": self._greatest,
                "nullCount": dict.fromkeys(self._NAMES, 0),
            }
        )
