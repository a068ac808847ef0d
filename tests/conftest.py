"""What holds for every test: how workers share them, no deadlines, and nothing left behind for the next module."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from tests.demands import UnknownDemand, demanded

# A first example imports what it needs, on a machine that may be busy.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")

# A shell lets what it starts in the background ignore Ctrl-C, and so would every process that a test starts.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of tests that all live until the end: collecting garbage among them would take a tenth of the whole run.
gc.disable()

# Most tests wait for sockets, processes and disks now and then: one worker for each core would leave the cores idle.
WORKERS_PER_CORE = 2
MOST_WORKERS = 8  # each may start a Spark session of a gigabyte


def pytest_configure() -> None:
    """A demand that no test knows would demand nothing."""
    try:
        demanded()
    except UnknownDemand as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """What `-n auto` is; None leaves it to xdist, which reads that variable."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return min(WORKERS_PER_CORE * (os.cpu_count() or 1), MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """In a new clone compile the tests once, on every core: each worker would compile all of them for itself."""
    modules = sorted(Path(__file__).parent.rglob("test_*.py"))
    new = [str(each) for each in modules if not [*each.parent.glob(f"__pycache__/{each.stem}.*-pytest-*.pyc")]]
    if len(new) < len(modules) // 2 or sys.dont_write_bytecode:
        return
    shares = [new[first :: os.cpu_count() or 1] for first in range(os.cpu_count() or 1)]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider"]
    for each in [subprocess.Popen([*command, *share], stdout=subprocess.DEVNULL) for share in shares if share]:
        each.wait()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests on Spark first and side by side, so that few workers start a session, and those at once."""
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    """From here on collect the garbage of the tests, but not look through the tests themselves each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def no_shared_client_is_left() -> Iterator[None]:
    """Reads of `penstock.spark` keep their connections for the next ones; other tests count clients' threads."""
    yield
    clusters = sys.modules.get("penstock.spark.connections")
    if clusters is not None:
        clusters.close_all()


@pytest.fixture(scope="module", autouse=True)
def commands_leave_the_environment_alone() -> Iterator[None]:
    """`penstock` keeps its child processes from importing from the working directory; those of later tests may."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    if before is None:
        os.environ.pop("PYTHONSAFEPATH", None)
