"""Urgent queries and the others."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.activity.pipelines.engine.session import URGENT_POOL, USUAL_POOL, pool_of, pool_settings
from penstock.activity.pipelines.operations import PIPELINE


def test_alerts_do_not_wait_for_rankings() -> None:
    assert pool_of(PIPELINE.trigger) == URGENT_POOL
    assert pool_of(timedelta(seconds=5)) == USUAL_POOL


def test_the_pools_are_in_a_file_that_is_made_once_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = Path(pool_settings()["spark.scheduler.allocation.file"].removeprefix("file://"))
    shares = {pool.get("name"): pool.findtext("minShare") for pool in ElementTree.parse(place).getroot()}
    assert shares == {URGENT_POOL: "1", USUAL_POOL: "0"}
    place.write_text("something else")
    assert pool_settings()["spark.scheduler.allocation.file"] == place.as_uri()
    assert URGENT_POOL in place.read_text()
    assert [one.name for one in tmp_path.iterdir()] == [place.name]
