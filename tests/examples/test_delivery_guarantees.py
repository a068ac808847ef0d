"""The delivery guarantees, each held by its example while it is killed in the middle, again and again.

The records are numbers. An example runs until it has come some way, is killed (SIGKILL: it can tidy up nothing), and is
started again, always with more to do than it has done; the last run goes to the end. Then the numbers are counted.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer
from kafka import KafkaProducer
from tests.timeouts import PATIENCE_S

from penstock.testing import Broker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AHEAD = 1_500
KILLS = 6
FURTHEST = 300
IDLE_MS = 3_000
LOOK_S = 0.005

Results = Callable[[Path], list[int]]


class Numbers:
    """A topic of numbers from 0 on, of which there are always more than were read."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        broker.create_topic(topic, partitions=3)
        self._producer = KafkaProducer(bootstrap_servers=broker.address)

    def be_ahead_of(self, read: int) -> None:
        while self.sent < read + AHEAD:
            self._producer.send(self.topic, b"%d" % self.sent, partition=self.sent % 3)
            self.sent += 1
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()


class Outcome(NamedTuple):
    counts: Counter[int]
    sent: int
    kills: int


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def numbers(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Numbers]:
    numbers = Numbers(broker, request.node.name)
    yield numbers
    numbers.close()


def lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def rows(path: Path) -> list[int]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as database:
        try:
            return [int(value) for (value,) in database.execute("SELECT value FROM results")]
        except sqlite3.OperationalError:
            return []  # killed before it made the table


class Committed:
    """The numbers in a topic that a reader of committed records has seen so far."""

    def __init__(self, broker: Broker, topic: str) -> None:
        broker.create_topic(topic, partitions=3)
        self._seen: list[int] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe([topic])

    def __call__(self, path: Path) -> list[int]:
        messages = self._consumer.consume(1_000, LOOK_S)
        self._seen += [int(message.value() or b"") for message in messages if message.error() is None]
        return self._seen

    def until(self, count: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self._seen) < count:
            self(Path())
            assert time.monotonic() < deadline_s, f"{len(self._seen)} of {count} results are visible"

    def close(self) -> None:
        self._consumer.close()


def start(example: str, broker: Broker, topic: str, results: Path) -> subprocess.Popen[bytes]:
    program = str(EXAMPLES / example)
    command = [
        sys.executable,
        program,
        broker.address,
        topic,
        str(results),
        "--group",
        topic,
        "--idle-ms",
        str(IDLE_MS),
    ]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Looks for a moment, during which it runs on."""
    try:
        process.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def run_with_kills(example: str, broker: Broker, numbers: Numbers, results: Path, read: Results) -> Outcome:
    chance = random.Random(example)
    deadline_s = time.monotonic() + PATIENCE_S
    kills = in_the_middle = 0
    while in_the_middle < KILLS:
        seen = len(read(results))
        numbers.be_ahead_of(seen)
        enough = seen + chance.randint(1, FURTHEST)
        process = start(example, broker, numbers.topic, results)
        try:
            while len(read(results)) < enough:
                assert not has_ended(process), "it ended by itself, before it was killed"
                assert time.monotonic() < deadline_s, f"{example} came to {len(read(results))}, not to {enough}"
        finally:
            process.kill()
            process.wait()
        kills += 1
        in_the_middle += len(set(read(results))) < numbers.sent - kills
    last = start(example, broker, numbers.topic, results)
    try:
        assert last.wait(PATIENCE_S) == 0
    finally:
        last.kill()
        last.wait()
    return Outcome(Counter(read(results)), numbers.sent, kills)


@pytest.mark.long
def test_at_most_once_handles_nothing_twice(broker: Broker, numbers: Numbers, tmp_path: Path) -> None:
    outcome = run_with_kills("at_most_once.py", broker, numbers, tmp_path / "results.txt", lines)
    assert {number: count for number, count in outcome.counts.items() if count > 1} == {}
    assert set(outcome.counts) <= set(range(outcome.sent))
    # A kill loses what was in hand, one record, and nothing else.
    assert len(outcome.counts) >= outcome.sent - outcome.kills


@pytest.mark.long
def test_at_least_once_loses_nothing(broker: Broker, numbers: Numbers, tmp_path: Path) -> None:
    outcome = run_with_kills("at_least_once.py", broker, numbers, tmp_path / "results.txt", lines)
    assert set(outcome.counts) == set(range(outcome.sent))
    # A kill repeats what was in hand, one record, and nothing else.
    assert outcome.counts.total() <= outcome.sent + outcome.kills


@pytest.mark.long
def test_exactly_once_neither_loses_nor_repeats(broker: Broker, numbers: Numbers, tmp_path: Path) -> None:
    outcome = run_with_kills("exactly_once_sql.py", broker, numbers, tmp_path / "results.db", rows)
    assert outcome.counts == Counter(range(outcome.sent))


@pytest.mark.long
def test_exactly_once_between_topics_neither_loses_nor_repeats(broker: Broker, numbers: Numbers) -> None:
    results = f"{numbers.topic}-results"
    committed = Committed(broker, results)
    try:
        outcome = run_with_kills("exactly_once_topics.py", broker, numbers, Path(results), committed)
        committed.until(outcome.sent)
        assert Counter(committed(Path())) == Counter(range(outcome.sent))
    finally:
        committed.close()
