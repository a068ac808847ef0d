"""Partitions on disk that the cluster does not know."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from tests.broker.wire_client import WireClient, batch_of, make_topic, values_in

from penstock.testing.embedded_broker import EmbeddedBroker


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "penstock.broker.strays"]


def test_a_stray_is_named_with_its_path_and_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with EmbeddedBroker(str(tmp_path)) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker)
        client.produce(topic, batch_of(b"kept"))
    for name in ("elsewhere-0", f"{topic}-7"):
        shutil.copytree(tmp_path / f"{topic}-0", tmp_path / name)
    before = sorted(path.name for path in (tmp_path / "elsewhere-0").iterdir())
    caplog.clear()
    with EmbeddedBroker(str(tmp_path)) as embedded, WireClient(embedded.port) as client:
        assert values_in(client.fetch(topic).records) == [b"kept"]
        assert client.fetch("elsewhere").error_code != 0, "nobody is served from it"
    told = warnings_of(caplog)
    assert len(told) == 2
    assert f"{tmp_path}/elsewhere-0: " in told[0]
    assert f"{tmp_path}/{topic}-7: " in told[1]
    assert "the topic has 1 partitions" in told[1]
    assert set(before) <= {path.name for path in (tmp_path / "elsewhere-0").iterdir()}


def test_partitions_that_the_cluster_knows_are_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with EmbeddedBroker(str(tmp_path)) as embedded:
            make_topic(embedded.broker, partitions=3)
    assert warnings_of(caplog) == []
