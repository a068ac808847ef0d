"""One secure broker for all the clients of a test process; each test brings topics, groups and users of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.peers.compatibility.peer_stories import unique
from tests.peers.security.secure_peers import Secured, secured_broker


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    with secured_broker(folder) as broker:
        yield Secured(broker, folder)


@pytest.fixture
def topic() -> str:
    return unique("topic")


@pytest.fixture
def group() -> str:
    return unique("group")
