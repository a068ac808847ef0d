"""Kafka Connect 4.3 with exactly-once sources on our broker: a worker that is killed copies every line once."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.broker_process import BrokerProcess
from tests.peers.compatibility.peer_stories import unique
from tests.peers.compatibility.transaction_stories import ONE_BROKER, committed, make_topic
from tests.peers.java_process import FLAGS, classpath
from tests.peers.provision import Found
from tests.ports import free_port
from tests.timeouts import until

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-connect-4.3")]

PARTS = 12
LINES = 20


class Worker:
    """A distributed worker; it ends in no other way than by SIGKILL."""

    def __init__(self, peer: Callable[[str], Found], folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address
        java, jars = peer("java"), peer("kafka-connect-4.3")
        self._command = [
            str(java.path),
            *FLAGS,
            "-cp",
            classpath(jars),
            "org.apache.kafka.connect.cli.ConnectDistributed",
        ]
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "worker.log"

    def start(self) -> None:
        self.port = free_port()
        settings = {
            "bootstrap.servers": self._address,
            "group.id": "connect",
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "config.storage.topic": "connect-configs",
            "offset.storage.topic": "connect-offsets",
            "status.storage.topic": "connect-status",
            "config.storage.replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "offset.storage.partitions": "2",
            "status.storage.partitions": "2",
            "listeners": f"http://127.0.0.1:{self.port}",
            "plugin.discovery": "service_load",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "offset.flush.interval.ms": "500",
            # The tasks of a worker that was killed are not kept for its return.
            "scheduled.rebalance.max.delay.ms": "0",
        }
        file = self._folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*self._command, str(file)], stdout=log, stderr=log)
        until(lambda: self.ask("/connectors") is not None, f"the worker serves: {self.last_words()}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, path: str, body: Any = None) -> Any:
        """The answer; None as long as there is none."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def last_words(self) -> str:
        return self._log.read_text()[-3000:]


@contextmanager
def working(worker: Worker) -> Iterator[Worker]:
    worker.start()
    try:
        yield worker
    finally:
        worker.kill()


def test_lines_of_a_file_are_copied_once_while_the_worker_and_the_broker_are_killed(
    peer: Callable[[str], Found], tmp_path: Path
) -> None:
    source = tmp_path / "lines.txt"
    source.touch()
    with BrokerProcess(tmp_path / "data", ONE_BROKER) as broker:
        topic = make_topic(broker.address, unique("lines"))
        with working(Worker(peer, tmp_path, broker.address)) as worker:
            connector = {
                "name": "lines",
                "config": {
                    "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
                    "file": str(source),
                    "topic": topic,
                    "tasks.max": "1",
                    "exactly.once.support": "required",
                    "transaction.boundary": "poll",
                },
            }
            until(lambda: worker.ask("/connectors", connector) is not None, f"it is accepted: {worker.last_words()}")
            wanted: list[str] = []
            for part in range(PARTS):
                # A little at a time: the source leaves what does not fit into a batch until the file grows.
                lines = [f"line {number}" for number in range(part * LINES, (part + 1) * LINES)]
                with source.open("a") as file:
                    file.write("".join(f"{line}\n" for line in lines))
                before = len(wanted)
                until(lambda least=before: len(committed(broker.address, topic)) > least, "it copies")  # type: ignore[misc]
                wanted += lines
                if part in (2, 8):
                    worker.kill()
                    worker.start()
                elif part == 5:
                    broker.restart()
            until(lambda: set(committed(broker.address, topic)) >= set(wanted), "all lines are there")
            found = Counter(committed(broker.address, topic))
    assert {line: count for line, count in found.items() if count > 1} == {}
    assert found.keys() == set(wanted)
