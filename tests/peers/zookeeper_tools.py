"""The tools of Apache Kafka 0.9 that work through ZooKeeper, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.peers.client.kafka_server import jars_0_9
from tests.peers.java_process import FLAGS
from tests.peers.provision import Found

TOPICS = "kafka.admin.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
REASSIGN = "kafka.admin.ReassignPartitionsCommand"
ELECT = "kafka.admin.PreferredReplicaLeaderElectionCommand"
OFFSETS = "kafka.tools.ConsumerOffsetChecker"
CONSOLE_CONSUMER = "kafka.tools.ConsoleConsumer"
_TIMEOUT_S = 120


class OldTools:
    """They are given one ZooKeeper."""

    def __init__(self, java: Found, package: Found, connect: str) -> None:
        classpath = os.pathsep.join(map(str, jars_0_9(package)))
        self._java = [str(java.path), *FLAGS, "-cp", classpath]
        self.connect = connect

    def run(self, main: str, *arguments: str) -> str:
        """What a tool prints; it must succeed."""
        done = subprocess.run(
            self._command(main, arguments), capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"{main} {arguments}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stdout

    def start(self, main: str, *arguments: str, output: Path) -> subprocess.Popen[bytes]:
        """A tool that continues; its output is in the file."""
        with output.open("ab") as written, output.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                self._command(main, arguments), stdin=subprocess.DEVNULL, stdout=written, stderr=log
            )

    def _command(self, main: str, arguments: Sequence[str]) -> list[str]:
        return [*self._java, main, "--zookeeper", self.connect, *arguments]
