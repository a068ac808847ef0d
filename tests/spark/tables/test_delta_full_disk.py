"""Disks with no room left, really: a limit on the size of files, and a small file system where one can be mounted.

Each time: one line, the table as it was, no orphaned file, and the same command continues once there is room.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.demands import lacking
from tests.spark.tables.table_stories import FIRST_MS, VIEWS, World, dead, once, places, rows
from tests.timeouts import PATIENCE_S

from penstock.spark.tables import OpenTable, Warehouse

ROOT = Path(__file__).parents[3]
DAY_MS = 86_400_000


def loaded(world: World, *, file_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    """`penstock load views`, in a process of its own; no file of it may become larger than this."""

    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    command = [
        sys.executable, "-m", "penstock", "load", "views", "-b", world.address, "-w", world.warehouse.storage.uri,
        "--local", "--no-maintenance",
    ]  # fmt: skip
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, preexec_fn=limit, check=False
    )


def parts(opened: OpenTable) -> set[str]:
    """The Parquet files that lie in the folders, named by a commit or not."""
    stores = (opened.store, opened.dead)
    found = [path for store in stores for path in Path(store.storage.uri).rglob("part-*") if path.is_file()]
    return {path.name for path in found}


def named(opened: OpenTable) -> set[str]:
    opened.store.refresh()
    opened.dead.refresh()
    return {Path(file.path).name for store in (opened.store, opened.dead) for file in store.files()}


def assert_told_in_a_line(done: subprocess.CompletedProcess[str], *, reason: str) -> None:
    assert done.returncode == 4, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) <= 2, done.stderr
    assert reason in done.stderr
    assert "nothing was committed" in done.stderr
    assert "Free some space" in done.stderr


@pytest.mark.long
def test_data_files_that_find_no_room_end_a_load_in_a_line_and_leave_nothing(world: World) -> None:
    world.views(200)
    opened = world.make(schema=VIEWS)
    assert loaded(world).returncode == 0
    version, before = opened.store.version + 1, parts(opened)
    large = [json.dumps({"user": os.urandom(20_000).hex()}).encode() for _ in range(20)]
    world.send([*large, b"bad"])
    assert_told_in_a_line(loaded(world, file_bytes=50_000), reason=os.strerror(27))
    assert parts(opened) == before == named(opened)
    assert opened.store.version == version
    assert loaded(world).returncode == 0
    assert places(rows(opened)) + places(dead(opened)) == once(world.log())


@pytest.mark.long
def test_a_commit_that_finds_no_room_leaves_the_table_as_it_was(world: World) -> None:
    """Sixty days are sixty small files, and a commit that is larger than any of them."""
    world.send(json.dumps({"user": "a", "at": FIRST_MS + DAY_MS * day}).encode() for day in range(60))
    opened = world.make(schema=VIEWS, event_time="at")
    assert_told_in_a_line(loaded(world, file_bytes=10_000), reason=os.strerror(27))
    assert parts(opened) == named(opened) == set()
    assert opened.store.version == 0
    assert loaded(world).returncode == 0
    assert places(rows(opened)) == once(world.log())


def mount_small(folder: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "penstock-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0:
        lacking("mounts", f"no small file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount_small(folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=PATIENCE_S)


@pytest.mark.long
def test_a_disk_that_is_full_then_has_room_again(world: World, small_disk: Path) -> None:
    world.warehouse = Warehouse(str(small_disk))
    opened = world.make(schema="user string")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(250_000))
    world.send([json.dumps({"user": os.urandom(4_000).hex()}).encode() for _ in range(40)])
    assert_told_in_a_line(loaded(world), reason=os.strerror(28))
    assert parts(opened) == named(opened) == set()
    assert opened.store.version == 0
    ballast.unlink()
    assert loaded(world).returncode == 0
    assert places(rows(opened)) == once(world.log())
