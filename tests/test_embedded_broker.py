"""A broker inside a program, from settings in a file, in a mapping, or without any."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S

import penstock
from penstock import Admin, Broker, ConfigResource, Producer
from penstock.broker.settings import InvalidSettings, UnreadableFile
from penstock.embedded_broker import EmbeddedBroker
from penstock.runtime.network import AddressInUse


def test_the_public_name_is_not_that_of_the_tests() -> None:
    assert penstock.Broker is EmbeddedBroker
    assert issubclass(penstock.testing.Broker, EmbeddedBroker)


def test_a_file_that_cannot_be_read_or_used_is_reported_with_every_problem(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="nowhere"):
        Broker.from_properties(tmp_path / "nowhere.properties")
    (tmp_path / "server.properties").write_text("num.partitions=many\nlog.segment.bytes=-1\n")
    with pytest.raises(InvalidSettings) as caught:
        Broker.from_properties(tmp_path / "server.properties")
    assert [problem.where for problem in caught.value.problems] == ["server.properties:1", "server.properties:2"]


def test_a_mapping_with_an_unknown_name_is_rejected() -> None:
    with pytest.raises(InvalidSettings, match=r"num\.partition: brokers have no such setting"):
        Broker.from_properties({"num.partition": "3"})


def test_a_file_is_run_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "broker.id=7\nlisteners=PLAINTEXT://localhost:0\n"
        f"log.dirs={tmp_path / 'data'}\nnum.partitions=3\nnum.partitons=4\n"
    )
    with caplog.at_level(logging.WARNING, "penstock.embedded_broker"):
        broker = Broker.from_properties(file, http_port=0, settings={"log.retention.hours": "2"})
    assert "name=num.partitons where=server.properties:5 reason=unknown setting" in caplog.text
    with broker, Admin(broker.address) as admin:
        assert broker.address == f"localhost:{broker.port}"
        assert broker.http_port
        values = admin.describe_config(ConfigResource.broker(7))
        assert values["num.partitions"].value == "3"
        assert values["log.retention.hours"].value == "2"
        assert values["group.initial.rebalance.delay.ms"].value == "3000"  # Kafka's default, not that of tests
        assert values["log.retention.check.interval.ms"].value == "300000"
        assert values["socket.busy.poll.us"].value == "0"
        with Producer(broker.address) as producer:
            producer.send("views", b"x").result(PATIENCE_S)
    assert Path(broker.data_dir) == tmp_path / "data"
    assert (tmp_path / "data").is_dir()


def test_settings_of_kafka_0_7_in_a_program(tmp_path: Path) -> None:
    settings = {"brokerid": "1", "port": "0", "hostname": "127.0.0.1", "log.dir": str(tmp_path)}
    with Broker.from_properties(settings) as broker:
        broker.create_topic("test", 2)
        with Producer(broker.address) as producer:
            producer.send("test", "Hello").result(PATIENCE_S)
    assert (tmp_path / "test-0").is_dir()


def test_a_program_waits_for_its_broker_until_it_is_stopped(tmp_path: Path) -> None:
    broker = Broker(tmp_path).start()
    assert not broker.wait(0)
    stopping = threading.Thread(target=broker.stop)
    stopping.start()
    assert broker.wait(PATIENCE_S)
    stopping.join()


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path) as first:
        threads = set(threading.enumerate())
        settings = {"listeners": f"PLAINTEXT://127.0.0.1:{first.port}", "log.dirs": str(tmp_path / "x")}
        with pytest.raises(AddressInUse, match=str(first.port)):
            Broker.from_properties(settings).start()
        assert set(threading.enumerate()) <= threads
