"""Kafka Streams 4.3 with exactly_once_v2 on our broker: a word count that is killed twice counts every word once."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from benchmarks.faults.namespaces import Loopback
from benchmarks.faults.penstock_cluster import PenstockCluster
from tests.broker.broker_process import BrokerProcess
from tests.peers.compatibility.peer_stories import PARTITIONS, unique
from tests.peers.compatibility.transaction_stories import ONE_BROKER, THREE_BROKERS, make_topic, read_committed
from tests.peers.java_process import FLAGS, classpath, compiled
from tests.peers.provision import Found
from tests.timeouts import PATIENCE_S, until

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-streams-4.3")]

WORDS = ("log", "segment", "offset", "epoch", "marker", "leader", "follower")
LINES = 400


class WordCount:
    """The program; it ends in no other way than by SIGKILL."""

    def __init__(self, peer: Callable[[str], Found], folder: Path, address: str, source: str, target: str) -> None:
        java, jars = peer("java"), peer("kafka-streams-4.3")
        classes = compiled(java, jars, ("WordCount.java",))
        self._log = folder / "word-count.log"
        self._command = [
            str(java.path), *FLAGS, "-cp", classpath(jars, classes), "WordCount",
            address, unique("word-count"), str(folder / "state"), source, target,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def last_words(self) -> str:
        return self._log.read_text()[-3000:]


@contextmanager
def counting(program: WordCount) -> Iterator[WordCount]:
    program.start()
    try:
        yield program
    finally:
        program.kill()


def counts(address: str, topic: str) -> dict[str, int]:
    """The last committed count of every word."""
    rows = read_committed(address, topic)
    return {row.key: int(row.value) for row in rows}


def words_are_counted_once(
    peer: Callable[[str], Found], folder: Path, address: str, kill_broker: Callable[[], None]
) -> None:
    source, target = make_topic(address, unique("lines")), make_topic(address, unique("counts"))
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
    chance = random.Random(4)
    wanted: Counter[str] = Counter()
    with counting(WordCount(peer, folder, address, source, target)) as program:
        for part in range(4):
            for number in range(LINES // 4):
                words = [chance.choice(WORDS) for _ in range(5)]
                wanted.update(words)
                producer.produce(source, " ".join(words).encode(), partition=number % PARTITIONS)
            assert producer.flush(PATIENCE_S) == 0
            if part in (0, 2):
                before = len(read_committed(address, target))
                until(
                    lambda before=before: len(read_committed(address, target)) > before,  # type: ignore[misc]
                    f"it counts: {program.last_words()}",
                )
                program.kill()
                program.start()
            elif part == 1:
                kill_broker()
        try:
            until(lambda: counts(address, target) == dict(wanted), "every word is counted")
        except TimeoutError:
            assert counts(address, target) == dict(wanted), program.last_words()
    # A count that goes up by more or less than its words would have been seen on the way.
    assert all(count <= wanted[word] for word, count in counts(address, target).items())


def test_a_word_count_that_is_killed_twice_is_exact(peer: Callable[[str], Found], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", ONE_BROKER) as broker:
        words_are_counted_once(peer, tmp_path, broker.address, broker.restart)


def test_a_word_count_on_three_brokers_that_is_killed_twice_is_exact(
    peer: Callable[[str], Found], tmp_path: Path
) -> None:
    with PenstockCluster(Loopback(), tmp_path / "cluster", THREE_BROKERS) as cluster:

        def kill() -> None:
            node = cluster.nodes[2]
            node.kill()
            node.launch()
            cluster.wait_until_joined()

        words_are_counted_once(peer, tmp_path, ",".join(cluster.bootstrap), kill)
