"""A run on an existing cluster with TLS: the options of its commands, the brokers it asks, the results it sees."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.activity.live.test_run_command import rejected
from tests.activity.pipelines.tls_broker import TlsBroker, tls_broker
from tests.client.tls import PEM
from tests.timeouts import PATIENCE_S

from penstock import Producer
from penstock.activity.cluster import Cluster
from penstock.activity.events import KINDS, TRUTH_TOPIC
from penstock.activity.live import preflight as checks
from penstock.activity.live.preflight import CannotRun, RunFolder
from penstock.activity.live.run import Plan
from penstock.activity.live.state import Board
from penstock.activity.live.watch import Watch
from penstock.activity.report.measurements import published_records
from penstock.client.admin.results import TopicSpec


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    with tls_broker(tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture
def cluster(broker: TlsBroker) -> Cluster:
    return Cluster(broker.address, options=broker.options)


def test_every_command_of_a_run_gets_the_connection_settings(tmp_path: Path) -> None:
    plan = Plan(
        tmp_path, ("search",), bootstrap="kafka-1:9093", value_format="avro", command_config="tls.properties",
        command_properties=("client.id=me",),
    )  # fmt: skip
    for command in (plan.pipelines_command(), plan.generator_command(0)):
        text = " ".join(command)
        assert "--bootstrap-server kafka-1:9093 --command-config tls.properties --command-property client.id=me" in text
        assert "--value-format avro" in text


def test_cluster_id_needs_tls_and_plaintext_gets_no_answer(
    broker: TlsBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(checks.cluster_id(Plan(tmp_path, (), bootstrap=broker.address, connecting=broker.options))) == 22
    monkeypatch.setattr(checks, "_TIMEOUT_MS", 1_000)
    with pytest.raises(CannotRun):
        checks.cluster_id(Plan(tmp_path, (), bootstrap=broker.address))


def test_a_watch_and_a_report_read_by_tls(broker: TlsBroker, cluster: Cluster, tmp_path: Path) -> None:
    with cluster.admin("test") as admin:
        topics = [*(kind.topic for kind in KINDS), TRUTH_TOPIC, "feed"]
        admin.create_topics([TopicSpec(name, 1) for name in topics])
        with Producer(broker.address, **cluster.security()) as producer:
            producer.send("views", b"{}")
            producer.send("feed", b'{"member": 7, "entries": []}', key=b"7")
            producer.send(TRUTH_TOPIC, b'{"kind": "crawler"}', key=b"k")
        assert [one.value for one in published_records(cluster, admin, TRUTH_TOPIC)] == [{"kind": "crawler"}]
    watch = Watch(Board(0), cluster, str(tmp_path), (), ["feed"])
    watch.start()
    try:
        watch.cluster_ready()
        deadline_s = time.monotonic() + PATIENCE_S
        while not (watch.snapshot.events and watch.snapshot.members == [7]):
            assert time.monotonic() < deadline_s, watch.snapshot
            time.sleep(0.05)
    finally:
        watch.close()


def test_properties_without_a_cluster_of_others_are_rejected(broker: TlsBroker, tmp_path: Path) -> None:
    options = ("--data-dir", str(tmp_path / "run"), "--port", "0", "--http-port", "0")
    said = rejected(*options, "--command-config", str(broker.config(tmp_path)))
    assert "need an existing cluster" in said
    assert "--bootstrap-server" in said
    assert not (tmp_path / "run").exists()


def test_a_key_in_a_file_of_its_own_is_rejected_since_readers_want_one_file(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(PEM)
    properties = tmp_path / "tls.properties"
    properties.write_text(
        f"security.protocol=SSL\nssl.certificate.location={tmp_path}/key.pem\nssl.key.location={tmp_path}/key.pem\n"
    )
    said = rejected("--data-dir", str(tmp_path / "run"), "-b", "127.0.0.1:1", "--command-config", str(properties))
    assert "one PEM file" in said


def test_a_folder_continues_with_values_as_they_are(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.take()
    folder.remember(folder.check(None, "own broker", "avro"))
    assert folder.check(None, "own broker", "avro").value_format == "avro"
    with pytest.raises(CannotRun, match="--value-format avro"):
        folder.check(None, "own broker")
    folder.release()
