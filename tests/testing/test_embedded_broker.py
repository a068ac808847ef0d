"""The embedded broker by its public name."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest
from tests.broker.wire_client import WireClient
from tests.timeouts import until

from penstock import Admin, ConfigResource, testing
from penstock.broker.settings import InvalidSettings
from penstock.cluster.errors import ApiException
from penstock.records import encode_batch
from penstock.testing import Broker


def test_temporary_data_is_removed_afterwards() -> None:
    threads = set(threading.enumerate())
    with Broker(data_dir=None) as broker:
        folder = Path(broker.data_dir)
        assert folder.exists()
        assert broker.address == f"127.0.0.1:{broker.port}"
    assert not folder.exists()
    assert set(threading.enumerate()) <= threads


def test_a_folder_that_was_given_stays_with_what_is_in_it(tmp_path: Path) -> None:
    with Broker(str(tmp_path)) as broker:
        broker.create_topic("kept", partitions=2)
    with Broker(str(tmp_path)) as broker:
        assert len(broker.broker.cluster.image.topics["kept"].partitions) == 2


def test_an_invalid_topic_is_rejected_with_the_brokers_reason() -> None:
    with Broker() as broker:
        broker.create_topic("there")
        with pytest.raises(ApiException, match="there"):
            broker.create_topic("there")
        with pytest.raises(ApiException):
            broker.create_topic("bad name")


def test_a_broker_that_does_not_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(InvalidSettings), Broker(settings={"num.partitions": "many"}):
        raise AssertionError
    assert os.listdir(tmp_path) == []


def test_records_of_long_ago_are_left_to_the_test_unless_it_says_otherwise() -> None:
    old = [(1_700_000_000_000, None, b"old", ())]

    def begin(broker: Broker) -> int:
        found = broker.broker.replicas.get("t", 0)
        assert found is not None
        return found.log.log_start_offset

    with Broker(settings={"log.retention.check.interval.ms": "20"}) as hasty:
        hasty.create_topic("t")
        with WireClient(hasty.port) as client:
            assert client.produce("t", encode_batch(old)).error_code == 0
        until(lambda: begin(hasty) == 1, "it looks, and removes the record")
    with Broker() as patient, Admin(patient.address) as admin:
        reported = admin.describe_config(ConfigResource.broker(0))["log.retention.check.interval.ms"].value
        assert reported == "86400000"


def test_the_module_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="Brokers"):
        _ = testing.Brokers
