"""A secure cluster of three, by one command: what Kafka's tools and Java clients tell one broker, all of them know."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.running import Running
from tests.peers.compatibility.peer_stories import numbered, unique, values
from tests.peers.conversation import ProgramFailed
from tests.peers.java_process import JavaProcess
from tests.peers.security.kafka_tools import ACLS, CONFIGS, Guarded, Tools, initialise, listed, ours
from tests.timeouts import until

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("java-clients-4.3"), pytest.mark.peer("kafka-broker-4.3")]


def test_users_acls_and_records_of_a_secure_cluster_survive_the_kill_of_a_broker(
    start_java: Callable[..., JavaProcess], tmp_path: Path
) -> None:
    home = tmp_path / "penstock-data" / "security"
    initialise(home, 9093)
    with Running("up", "--brokers", "3", "--port", "0", "--http-port", "0", cwd=tmp_path) as cluster:
        cluster.until("Ctrl-C to stop")
        (line,) = [line for line in cluster.said if "Kafka clients" in line]
        address = line.split()[-1]
        everywhere = Tools(start_java, Guarded(home, address))
        each = [Tools(start_java, Guarded(home, one)) for one in address.split(",")]
        assert len(each) == 3
        name, topic, group = unique("user"), unique("topic"), unique("group")

        # Each has other settings.
        who = ("--entity-type", "users", "--entity-name", name)
        each[0].done(CONFIGS, "--alter", *who, "--add-config", f"SCRAM-SHA-512=[password={name}]")
        each[1].done("TopicCommand", "--create", "--topic", topic, "--partitions", "3", "--replication-factor", "3")
        rule = ("--add", "--allow-principal", f"User:{name}")
        each[2].done(ACLS, *rule, "--producer", "--topic", topic)
        each[0].done(ACLS, *rule, "--consumer", "--topic", topic, "--group", group)
        rules = listed(each[1].done(ACLS, "--list"))
        assert len(rules) == 5
        login = Guarded(home, address).login_of(name, name)
        for tools in each:
            until(lambda tools=tools: knows(tools, login, topic), "the broker knows the user and its rights")  # type: ignore[misc]
            assert listed(tools.done(ACLS, "--list")) == rules

        everywhere.clients("produce", login, topic=topic, records=on_all_partitions(numbered(30)))
        pid = next(int(row.split()[-2]) for row in cluster.said if re.match(r"\s*broker 1 +[^|]*$", row))
        os.kill(pid, signal.SIGKILL)
        everywhere.clients("produce", login, topic=topic, records=on_all_partitions(numbered(30, 30)))
        member = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        read = everywhere.clients("consume", login, topic=topic, count=60, commit=True, settings=member)
        assert sorted(values(read)) == numbered(60)
        cluster.until("broker 1  | broker started: id=1")
        until(lambda: knows(each[1], login, topic), "the broker is back, and knows them")
        assert ours(Guarded(home, address)) == rules
        with pytest.raises(ProgramFailed, match="AuthorizationException"):
            everywhere.clients("delete", login, topic=topic)
        assert cluster.stop(signal.SIGINT) == 0


def on_all_partitions(texts: list[str]) -> list[dict[str, object]]:
    return [{"partition": number % 3, "value": text} for number, text in enumerate(texts)]


def knows(tools: Tools, login: Path, topic: str) -> bool:
    """Whether a broker lets the user in and shows it the only topic that it may see."""
    try:
        return set(tools.clients("topics", login)) == {topic}
    except ProgramFailed:
        return False
