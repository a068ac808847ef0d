"""The status of tables: until when each is complete, its rows, its last load, and why records are dead letters.

Each table is read by itself: one that is damaged, or whose topic is gone, has an error and does not hide the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.client.errors import PenstockError
from penstock.spark.tables.audit import Audit, audit_table
from penstock.spark.tables.delta import BACKFILL, KEY, LOAD, Store
from penstock.spark.tables.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.admin import Admin
    from penstock.spark.tables.runner import Runner
    from penstock.spark.tables.warehouse import OpenTable, Warehouse

MOST_REASONS: Final = 20
_MOST_VERSIONS: Final = 100
_LOADS: Final = (LOAD, BACKFILL)


@dataclass(frozen=True)
class LastLoad:
    """The newest commit of a load."""

    time_ms: int
    records: int


@dataclass(frozen=True)
class TableStatus:
    """One table. What could not be read is None or 0, and `error` says why."""

    name: str
    topic: str = ""
    format: str = ""
    mode: str = ""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    version: int = 0
    dead: int = 0
    """Dead letters with their content, which can be tried again."""
    dropped: int = 0
    """Records that were dropped by policy."""
    reasons: tuple[tuple[str, int], ...] = ()
    """Why records are dead letters, the most frequent first."""
    last_load: LastLoad | None = None
    audit: Audit | None = None
    error: str = ""
    hint: str = ""


def status_of(warehouse: Warehouse, name: str, audit: Callable[[OpenTable], Audit]) -> TableStatus:
    """The status of a table; what it cannot give is in `error`."""
    found = TableStatus(name)
    try:
        opened = warehouse.open(name)
        found = _stored(opened, name)
        return _with(found, audit=audit(opened))
    except PenstockError as error:
        return _with(found, error=error.message, hint=error.hint)
    except Exception as error:  # noqa: BLE001 - damaged files raise errors of Arrow, Delta and JSON
        text = str(error) or type(error).__name__
        return _with(found, error=f"{name} cannot be read: {text.splitlines()[0][:300]}", hint="Its files are damaged")


def audit_with(
    admin: Admin, bootstrap: str, runner: Runner, options: dict[str, str], since_ms: int, now_ms: int
) -> Callable[[OpenTable], Audit]:
    """An audit of any table from `since_ms` to now."""

    def audit(opened: OpenTable) -> Audit:
        return audit_table(Loader(opened, admin, bootstrap, runner, options=options), admin, runner, since_ms, now_ms)

    return audit


def _with(status: TableStatus, **values: Any) -> TableStatus:
    from dataclasses import replace

    return replace(status, **values)


def _stored(opened: OpenTable, name: str) -> TableStatus:
    """What the files of a table say. Its name is that of its folder, which commands open."""
    table = opened.table
    files = opened.store.files()
    dead, dropped, reasons = _dead_letters(opened.dead)
    return TableStatus(
        name, table.topic, table.format, table.mode, sum(file.rows or 0 for file in files), len(files),
        sum(file.size for file in files), opened.store.version, dead, dropped, reasons, last_load(opened.store),
    )  # fmt: skip


def _dead_letters(store: Store) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = store.read(["reason", "dropped"])
    dropped = int(pc.sum(rows.column("dropped").cast(pa.int64())).as_py() or 0)
    counted = rows.column("reason").value_counts().to_pylist()
    reasons = sorted(((each["values"] or "", each["counts"]) for each in counted), key=lambda each: (-each[1], each[0]))
    return rows.num_rows - dropped, dropped, tuple(reasons[:MOST_REASONS])


def last_load(store: Store) -> LastLoad | None:
    """The newest load among the last versions; older commits are compactions and changes of columns."""
    for version in range(store.version, max(-1, store.version - _MOST_VERSIONS), -1):
        info = store.commit_info(version)
        if info is None:
            return None
        note = info.get(KEY) or {}
        if note.get("kind") in _LOADS and note.get("counts"):
            return LastLoad(int(info.get("timestamp") or 0), int(note["counts"].get("records", 0)))
    return None


def documents(statuses: Sequence[TableStatus]) -> list[dict[str, object]]:
    """Statuses as JSON."""
    return [
        {
            "name": one.name, "topic": one.topic, "format": one.format, "mode": one.mode, "rows": one.rows,
            "files": one.files, "bytes": one.bytes, "version": one.version, "dead": one.dead, "dropped": one.dropped,
            "reasons": [{"reason": reason, "count": count} for reason, count in one.reasons],
            "lastLoad": None if one.last_load is None else
            {"time": one.last_load.time_ms, "records": one.last_load.records},
            "audit": None if one.audit is None else one.audit.document(),
            "error": one.error or None, "hint": one.hint or None,
        }
        for one in statuses
    ]  # fmt: skip
