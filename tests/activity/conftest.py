"""One Spark session for the tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import new_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`, no user interface."""
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
