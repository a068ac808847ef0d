"""One standalone cluster and one driver on it for a test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.spark.cluster.drivers import Driver, classic
from tests.spark.cluster.standalone import Standalone


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    running = Standalone(tmp_path_factory.mktemp("standalone"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def driver(standalone: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    made = Driver(classic, standalone.url, str(tmp_path_factory.mktemp("driver")))
    yield made
    made.stop()
