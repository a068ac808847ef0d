"""What holds for every test: none is judged by its time, and nothing is left behind for the next module."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import hypothesis
import pytest

# A first example imports what it needs, on a machine that may be busy.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")


@pytest.fixture(scope="module", autouse=True)
def no_shared_client_is_left() -> Iterator[None]:
    """Reads of `penstock.spark` keep their connections for the next ones; other tests count clients' threads."""
    yield
    clusters = sys.modules.get("penstock.spark.clusters")
    if clusters is not None:
        clusters.close_all()
