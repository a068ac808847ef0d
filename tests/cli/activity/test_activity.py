"""`penstock activity`, against a broker: counts, topics, the end by a signal, a broker that goes and comes back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell
from tests.cli.running import Running
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock import Admin, Consumer, TopicPartition
from penstock.activity.events import KINDS, TRUTH_TOPIC
from penstock.activity.site import Site
from penstock.testing.embedded_broker import EmbeddedBroker

TOPICS = [kind.topic for kind in KINDS]


def read(address: str, topic: str) -> list[tuple[str, bytes, int]]:
    """All records of a topic."""
    with Admin(address) as admin, Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        partitions = [part.index for part in admin.describe_topic(topic).partitions]
        everywhere = [TopicPartition(topic, partition) for partition in partitions]
        consumer.assign(everywhere)
        ends = consumer.end_offsets(everywhere)
        found = []
        while any(consumer.position(place) < ends[place] for place in everywhere):
            for records in consumer.poll(1000, 100_000).values():
                found += [(record.key.decode(), record.value, record.timestamp) for record in records]
    return found


@pytest.fixture
def fresh() -> Any:
    with EmbeddedBroker() as broker:
        yield broker


def test_generates_what_it_counts_and_what_the_site_says(fresh: EmbeddedBroker) -> None:
    shell = Shell(fresh.address)
    options = ("--seed", 4, "--rate", 1000, "--minutes", "0.1", "--malformed", "0.02")
    start = "2026-11-15T10:00:00Z"
    summary = shell.json("activity", "generate", *options, "--as-fast-as-possible", "--start", start)
    site = Site(seed=4, rate=1000, origin_ms=summary["origin_ms"])
    made = [site.tick(site.first_tick + number) for number in range(60)]
    for topic in TOPICS:
        records = read(fresh.address, topic)
        assert len(records) == summary["good"][topic] + summary["malformed"][topic]
        assert len(records) == sum(len(tick[topic]) for tick in made if topic in tick)
    rows = {row["id"]: row for tick in made for row in tick["views"].rows()}
    seen = 0
    for key, value, time_ms in read(fresh.address, "views"):
        try:
            row = json.loads(value)
            is_whole = row == rows[row["id"]]
        except (ValueError, KeyError):
            is_whole = False
        if is_whole:
            assert (key, time_ms) == (str(row["member"]), row["time"])
            seen += 1
    assert seen == summary["good"]["views"]
    truth = {key: json.loads(value) for key, value, _ in read(fresh.address, TRUTH_TOPIC)}
    printed = shell.json("activity", "truth", "--seed", 4, "--rate", 1000, "--origin", start, "--minutes", 5)
    assert all(value in truth.values() for value in printed)
    assert {value["kind"] for value in printed} == {"crawler", "spammer", "abuser", "trending", "incident"}
    with Admin(fresh.address) as admin:
        assert len(admin.describe_topic("views").partitions) == 4


def test_ends_by_ctrl_c_with_counts_of_what_is_there(fresh: EmbeddedBroker) -> None:
    with Running("activity", "generate", "-b", fresh.address, "--rate", "500", "--format", "json") as running:
        running.until("Created 10 topics")
        with Consumer("views", bootstrap_servers=fresh.address, auto_offset_reset="earliest") as consumer:
            next(iter(consumer))
        assert running.stop(signal.SIGINT) == 0
    summary = json.loads(running.text[running.text.index("{") :])
    for topic in TOPICS:
        assert len(read(fresh.address, topic)) == summary["good"].get(topic, 0)
    assert summary["unacknowledged"] == 0


@pytest.mark.long
def test_waits_for_a_broker_and_outlives_its_restart_with_every_event_once(tmp_path: Path) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    listen = ("server", "start", "--data-dir", tmp_path, "--listen", address, "--http-port", "0")
    options = ("--rate", "1000", "--minutes", "0.12", "--malformed", "0.01", "--format", "json")
    with Running("activity", "generate", "-b", address, *options) as running:
        running.until("Waiting for a broker")
        with Running(*listen) as broker:
            broker.until("broker started: ")
            running.until("Created 10 topics")
            with Consumer("requests", bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
                next(iter(consumer))
            broker.stop(signal.SIGKILL)
        with Running(*listen) as broker:
            broker.until("broker started: ")
            assert running.end() == 0
            summary = json.loads(running.text[running.text.index("{") :])
            site = Site(seed=1, rate=1000, origin_ms=summary["origin_ms"])
            made = [site.tick(site.first_tick + number) for number in range(72)]
            for topic in TOPICS:
                values = [value for _, value, _ in read(address, topic)]
                assert len(values) == summary["good"][topic] + summary["malformed"][topic], topic
                assert len(values) == sum(len(tick[topic]) for tick in made if topic in tick), topic
                whole = [value for value in values if value.startswith(b'{"id":') and value.endswith(b"}")]
                assert len(set(whole)) == len(whole)
            broker.stop()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--as-fast-as-possible",), "needs an end"),
        (("--start", "-1h"), "needs --as-fast-as-possible"),
        (("--members", "10"), "10 members"),
        (("--rate", "1000000"), "the rate is 1e+06"),
        (("--origin", "2999-01-01T00:00Z"), "--origin is after the first event"),
        (("--incident-after", "1h"), "the incident starts 3600000 ms"),
    ],
)
def test_invalid_options_are_rejected_before_a_request(
    options: tuple[str, ...], complaint: str
) -> None:  # fmt: skip
    result = Shell("localhost:1")("activity", "generate", *options)
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize("missing", ["numpy", "pyspark", "deltalake"])
def test_without_the_spark_extra_it_is_named(missing: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from penstock.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, "activity", "run", "--data-dir", tmp_path], capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    problem, hint = done.stderr.splitlines()
    assert problem == f"Error: A site's activity needs {missing}, which is not installed."
    assert hint == 'pip install "penstock[spark]"'


def test_truth_is_printed_for_people_too() -> None:
    lines = Shell("localhost:1").lines("activity", "truth", "--origin", "2026-11-15T10:00:00Z")
    assert sum(line.startswith("crawler ") for line in lines) == 12
    assert any(line.startswith("incident  server server-") and "10:01:00.000Z to" in line for line in lines)
