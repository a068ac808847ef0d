"""What every test process leaves behind for the next module: nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_shared_client_is_left() -> Iterator[None]:
    """Reads of `penstock.spark` keep their connections for the next ones; other tests count clients' threads."""
    yield
    clusters = sys.modules.get("penstock.spark.clusters")
    if clusters is not None:
        clusters.close_all()
