"""Peers for the tests that ask for them by `@pytest.mark.peer(name)`; a test whose peer is missing says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.peers.installing import NotToBeHad
from tests.peers.java_process import JavaProcess
from tests.peers.provision import PEERS, Found

StartJava = Callable[..., JavaProcess]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("peer"):
        for name in marker.args:
            # Travels with the report, so that the runner can tell which peers ran.
            item.user_properties.append(("peer", name))
            try:
                PEERS.find(name)
            except NotToBeHad as error:
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
