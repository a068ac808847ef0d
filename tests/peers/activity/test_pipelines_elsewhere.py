"""All pipelines moved by two options: to a Spark standalone cluster of two workers, and to Apache Kafka 4.3 by TLS."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.activity.plain import tables
from tests.client.tls import PEM
from tests.peers.client.kafka_server import HOST, JavaServer, kafka_4_3
from tests.peers.provision import Found
from tests.ports import free_ports
from tests.spark.cluster.standalone import SETTINGS, Daemon, Standalone

from penstock.activity.pipelines import definition
from penstock.activity.pipelines.engine import results, status
from penstock.spark.session import submit_variable

# Seven Javas and some thirty Pythons start on as many cores as there are: beside other work that takes minutes.
pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3"), pytest.mark.timeout(600)]

PATIENCE_S = 450.0
EVENTS = 24_000
_LISTENERS = """\
listeners=PLAINTEXT://{host}:{plain},SSL://{host}:{tls},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{plain},SSL://{host}:{tls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT
controller.quorum.voters=1@{host}:{controller}
log.retention.ms=-1
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""


class Kafka:
    """Where it is, in the clear and by TLS, and what makes clients trust it."""

    def __init__(self, java: Found, jars: Found, folder: Path) -> None:
        plain, tls, controller = free_ports(3)
        keystore, authority = folder / "keystore.pem", folder / "authority.pem"
        keystore.write_text(PEM)
        authority.write_text(PEM[PEM.index("-----BEGIN CERTIFICATE") :])
        self.config = folder / "tls.properties"
        self.config.write_text(f"security.protocol=SSL\nssl.truststore.location={authority}\n")
        self.plain, self.tls = f"{HOST}:{plain}", f"{HOST}:{tls}"
        listeners = _LISTENERS.format(host=HOST, plain=plain, tls=tls, controller=controller, keystore=keystore)
        self.server: JavaServer = kafka_4_3(java, jars, folder, listeners, plain)


@pytest.fixture
def kafka(peer: Callable[[str], Found], tmp_path: Path) -> Iterator[Kafka]:
    folder = tmp_path / "kafka"
    folder.mkdir()
    made = Kafka(peer("java"), peer("kafka-broker-4.3"), folder)
    made.server.launch()
    try:
        yield made
    finally:
        made.server.kill()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path / "standalone")
    yield running
    running.stop()


def penstock(*words: str) -> list[str]:
    return [sys.executable, "-m", "penstock", *words]


def until_read(warehouse: str, pipelines: Daemon) -> None:
    """Until every query has read all there is, and reports were computed from all of it."""
    deadline_s = time.monotonic() + PATIENCE_S
    rounds: int | None = None
    while True:
        assert pipelines.process.poll() is None, pipelines.said()
        found = status.read_all(warehouse)
        assert time.monotonic() < deadline_s, found
        queries = {query.name: query for one in found for query in one.queries}
        loads = queries.get("loads")
        if loads is not None and loads.lag == 0:
            rounds = loads.batch_id if rounds is None else rounds
            is_reported = loads.batch_id > rounds
            if (
                is_reported
                and len(found) == len(definition.pipeline_names())
                and not any(one.lag for one in queries.values())
            ):
                return
        time.sleep(0.1)


def test_pipelines_on_a_spark_cluster_with_kafka_have_the_tables_that_plain_python_has(
    kafka: Kafka, standalone: Standalone, tmp_path: Path
) -> None:
    kafka.server.wait_until_listening()
    generated = subprocess.run(
        penstock(
            "activity", "generate", "--as-fast-as-possible", "--events", str(EVENTS), "--rate", "400", "--rhythm",
            "flat", "--malformed", "0.005", "--start", "2026-09-21T12:00:10Z", "-b", kafka.plain,
        ),
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert generated.returncode == 0, generated.stderr
    warehouse = str(tmp_path / "warehouse")
    command = penstock(
        "pipeline", "run", "--master", standalone.url, "--bootstrap-server", kafka.tls, "--command-config",
        str(kafka.config), "--warehouse", warehouse,
    )  # fmt: skip
    settings = {**SETTINGS, "spark.executor.cores": "2", "spark.cores.max": "4"}
    pipelines = Daemon(command, {**os.environ, "PYSPARK_SUBMIT_ARGS": submit_variable(settings, {})})
    try:
        until_read(warehouse, pipelines)
        executors = standalone.executors("")
        pipelines.process.terminate()
        assert pipelines.process.wait(PATIENCE_S) == 0
    finally:
        pipelines.end()
    assert len(executors) == 2
    assert {one.state for one in status.read_all(warehouse)} == {"stopped"}
    events = tables.logged(kafka.plain)
    assert sum(map(len, events.values())) > EVENTS * 0.98
    tables.assert_same(warehouse, events)
    named = {row["verdict"] for row in results.read_result_table(warehouse, "suspects").to_pylist()}
    assert named == {"crawler", "spammer", "abuser"}
