"""Urgent queries and the others."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.activity.pipelines.operations import PIPELINE
from penstock.activity.pipelines.pools import URGENT, USUAL, pool_of, settings


def test_alerts_do_not_wait_for_rankings() -> None:
    assert pool_of(PIPELINE.trigger) == URGENT
    assert pool_of(timedelta(seconds=5)) == USUAL


def test_the_pools_are_in_a_file_that_is_made_once_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = Path(settings()["spark.scheduler.allocation.file"].removeprefix("file://"))
    shares = {pool.get("name"): pool.findtext("minShare") for pool in ElementTree.parse(place).getroot()}
    assert shares == {URGENT: "1", USUAL: "0"}
    place.write_text("something else")
    assert settings()["spark.scheduler.allocation.file"] == place.as_uri()
    assert URGENT in place.read_text()
    assert [one.name for one in tmp_path.iterdir()] == [place.name]
