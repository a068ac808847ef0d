"""A topic, a warehouse, and an admin client for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.tables.table_stories import World, world_of

from penstock.testing import Broker


@pytest.fixture
def world(broker: Broker, topic: str, tmp_path: Path) -> Iterator[World]:
    with world_of(broker, topic, tmp_path) as made:
        yield made
