"""One Spark session for the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import new_session

from penstock.spark.clusters import close_all


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`, no user interface."""
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def no_client_is_left() -> Iterator[None]:
    """Loads in this process keep their connections for the next ones; tests elsewhere count clients' threads."""
    yield
    close_all()
