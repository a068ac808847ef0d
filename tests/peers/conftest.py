"""Peers for the tests that ask for them by `@pytest.mark.peer(name)`; a test whose peer is missing says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.peers.installing import NotAvailable
from tests.peers.java_process import JavaProcess
from tests.peers.provision import PEERS, Found

StartJava = Callable[..., JavaProcess]
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share a server or an oracle in one worker, so that it is started once."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group(group_of(item)))


def group_of(item: pytest.Item) -> str:
    """A Spark session and the cluster of three serve several files; everything else belongs to one."""
    shared = {"spark", "cluster"} & set(getattr(item, "fixturenames", ()))
    return min(shared, default=item.path.stem)


def pytest_runtest_setup(item: pytest.Item) -> None:
    names = [name for marker in item.iter_markers("peer") for name in marker.args]
    # Travels with the report, so that the runner can tell which peers ran.
    item.user_properties += [("peer", name) for name in names]
    for name in names:
        try:
            PEERS.find(name)
        except NotAvailable as error:
            item.user_properties.append(("missing peer", name))
            pytest.skip(f"{name}: {error}")


@pytest.fixture(scope="session")
def peer() -> Callable[[str], Found]:
    """Where a peer is."""
    return PEERS.find


@pytest.fixture(scope="session")
def start_java() -> Iterator[StartJava]:
    """Starts a program of `java/` on a peer's jars, once in a session; all are ended with the session."""
    running: dict[tuple[str, str], JavaProcess] = {}

    def start(peer: str, main: str, *more_sources: str) -> JavaProcess:
        if (peer, main) not in running:
            sources = ("Lines.java", f"{main}.java", *more_sources)
            running[peer, main] = JavaProcess(PEERS.find("java"), PEERS.find(peer), main, sources)
        return running[peer, main]

    yield start
    for process in running.values():
        process.close()
