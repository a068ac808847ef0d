"""The status of pipelines for other processes: a small file that is replaced every second.

`PipelineFolder` holds what is not in the tables: checkpoints, the status, and the request to stop. The file is
replaced atomically, so a reader never sees half of it. A pipeline counts as alive while its process exists or, seen
from another machine, while the file is fresh.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.spark.tables.delta import Storage, one_line_os_errors

FOLDER: Final = "_pipelines"
STARTING: Final = "starting"
RUNNING: Final = "running"
WAITING: Final = "waiting"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
_ENDED: Final = (STOPPED, FAILED)
_FRESH_MS: Final = 15_000
_STATUS: Final = "status.json"
_STOP: Final = "stop"


class QueryStatus(msgspec.Struct, kw_only=True):
    """The status of a query. Totals count from the start of its process; lag is in records, -1 if unknown.

    `state_rows` and `state_bytes` are the state that Spark keeps between batches.
    """

    name: str
    state: str = STARTING
    batch_id: int = -1
    batch_ms: int = 0
    rows_per_s: float = 0.0
    input_rows_total: int = 0
    malformed_total: int = 0
    lag: int = -1
    last_commit_ms: int = 0
    table_rows_changed: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    restarts: int = 0
    message: str = ""


class PipelineStatus(msgspec.Struct, kw_only=True):
    """The status of a pipeline."""

    name: str
    state: str = STARTING
    message: str = ""
    pid: int = 0
    host: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    queries: list[QueryStatus] = []

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    @property
    def is_alive(self) -> bool:
        """Whether a process is running it."""
        if self.has_ended or not self.pid:
            return False
        if self.host == socket.gethostname():
            return _is_running(self.pid)
        return time.time_ns() // 1_000_000 - self.updated_ms < _FRESH_MS

    @property
    def lag(self) -> int:
        known = [query.lag for query in self.queries if query.lag >= 0]
        return sum(known) if known else -1

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document | {"is_alive": self.is_alive, "lag": self.lag}


class PipelineFolder:
    """A pipeline's folder in a warehouse."""

    def __init__(self, warehouse_uri: str, pipeline: str) -> None:
        self._storage = Storage(warehouse_uri).absolute().child(FOLDER).child(pipeline)

    def checkpoint(self, rows: str) -> Storage:
        return self._storage.child(rows)

    def has_checkpoint(self, rows: str) -> bool:
        return "commits" in self.checkpoint(rows).folders()

    def forget(self) -> None:
        """Removes checkpoints, status and stop request."""
        self._storage.remove()

    def write(self, status: PipelineStatus) -> None:
        self._put(_STATUS, msgspec.json.encode(status))

    def read(self) -> PipelineStatus | None:
        text = self._storage.read_text(_STATUS)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=PipelineStatus)
        except msgspec.DecodeError:
            return None  # Written by another version, so its process is not running.

    def request_stop(self) -> None:
        self._put(_STOP, b"")

    def is_stop_requested(self) -> bool:
        return self._storage.read_text(_STOP) is not None

    def clear_stop_request(self) -> None:
        self._storage.remove_files([_STOP])

    def _put(self, name: str, data: bytes) -> None:
        with one_line_os_errors(f"cannot write {self._storage.uri}"):
            if self._storage.is_local:
                folder = Path(self._storage.local_path)
                folder.mkdir(parents=True, exist_ok=True)
                temporary = folder / f".{name}.{uuid.uuid4().hex}"
                temporary.write_bytes(data)
                os.replace(temporary, folder / name)
                return
            filesystem, root = self._storage.filesystem()
            filesystem.create_dir(root, recursive=True)
            with filesystem.open_output_stream(f"{root}/{name}") as stream:
                stream.write(pa.py_buffer(data))


def read_all(warehouse_uri: str, names: Sequence[str] | None = None) -> list[PipelineStatus]:
    """The status of these pipelines, or of all that have run in the warehouse."""
    wanted = Storage(warehouse_uri).child(FOLDER).folders() if names is None else names
    found = (PipelineFolder(warehouse_uri, name).read() for name in wanted)
    return [status for status in found if status is not None]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A zombie does not run.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True
