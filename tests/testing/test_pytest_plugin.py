"""The fixtures, as another project uses them: in a pytest of its own, with a client that is not ours."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.testing.pytest_plugin import topic_name

PLUGIN = ("-p", "penstock.testing.pytest_plugin")

WITH_KAFKA_PYTHON = """
from kafka import KafkaConsumer, KafkaProducer
import pytest

def roundtrip(address, topic):
    producer = KafkaProducer(bootstrap_servers=address)
    for number in range(10):
        producer.send(topic, b"%d" % number)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
    values = [next(consumer).value for _ in range(10)]
    consumer.close()
    return sorted(values, key=int)

def test_what_is_sent_arrives(penstock_broker, penstock_topic):
    assert roundtrip(penstock_broker.address, penstock_topic) == [b"%d" % number for number in range(10)]

@pytest.mark.penstock_topic(partitions=3, config={"retention.ms": "1000"})
def test_a_topic_has_the_requested_partitions_and_settings(penstock_broker, penstock_topic):
    consumer = KafkaConsumer(bootstrap_servers=penstock_broker.address)
    assert consumer.partitions_for_topic(penstock_topic) == {0, 1, 2}
    consumer.close()
"""

NAMES = """
import json, pathlib
import pytest

def note(**what):
    with open(pathlib.Path(__file__).with_name("notes.jsonl"), "a") as notes:
        print(json.dumps(what), file=notes)

@pytest.mark.parametrize("turn", [1, 2])
def test_notes(turn, penstock_broker, penstock_topic):
    note(address=penstock_broker.address, topic=penstock_topic, folder=penstock_broker.data_dir)

def test_fresh(penstock_broker, penstock_fresh_broker):
    note(fresh=penstock_fresh_broker.address, address=penstock_broker.address)
"""


class Outcome(NamedTuple):
    code: int
    text: str


def run_pytest(project: Path) -> Outcome:
    """A pytest that knows nothing of ours: another process, folder and configuration."""
    # Installed, it is loaded by its entry point; loaded a second time, it would be rejected.
    entered = [each.value for each in importlib.metadata.entry_points(group="pytest11")]
    wanted = () if "penstock.testing.pytest_plugin" in entered else PLUGIN
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", str(project), *wanted],
        cwd=project, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return Outcome(ran.returncode, ran.stdout + ran.stderr)


def notes(project: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (project / "notes.jsonl").read_text().splitlines()]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return tmp_path


def test_another_project_with_another_client(project: Path) -> None:
    (project / "test_theirs.py").write_text(WITH_KAFKA_PYTHON)
    outcome = run_pytest(project)
    assert outcome.code == 0, outcome.text
    assert "2 passed" in outcome.text


def test_one_broker_for_the_session_and_a_topic_for_each_test(project: Path) -> None:
    (project / "test_theirs.py").write_text(NAMES)
    outcome = run_pytest(project)
    assert outcome.code == 0, outcome.text
    first, second, fresh = notes(project)
    assert first["address"] == second["address"] == fresh["address"]
    assert fresh["fresh"] != fresh["address"]
    assert first["topic"] != second["topic"]
    assert first["topic"].startswith("test_notes-1")
    assert not Path(first["folder"]).exists(), "it takes its data with it"


def test_a_broker_for_each_test_where_that_is_configured(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\npenstock_broker_scope = function\n")
    (project / "test_theirs.py").write_text(NAMES)
    outcome = run_pytest(project)
    assert outcome.code == 0, outcome.text
    first, second, _ = notes(project)
    assert first["address"] != second["address"]


def test_an_unknown_scope_is_named(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\npenstock_broker_scope = forever\n")
    (project / "test_theirs.py").write_text(NAMES)
    outcome = run_pytest(project)
    assert outcome.code != 0
    assert "'forever'; it can be session, package, module, class, function" in outcome.text


def test_settings_are_overridden_in_a_conftest(project: Path) -> None:
    (project / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def penstock_broker_settings():\n"
        "    return {'num.partitions': '7'}\n"
    )
    (project / "test_theirs.py").write_text(
        "def test_it(penstock_broker):\n    assert penstock_broker.broker.settings.num_partitions == 7\n"
    )
    outcome = run_pytest(project)
    assert outcome.code == 0, outcome.text


def test_an_invalid_marker_is_an_error(project: Path) -> None:
    (project / "test_theirs.py").write_text(
        "import pytest\n@pytest.mark.penstock_topic(partition=3)\ndef test_it(penstock_topic): pass\n"
    )
    outcome = run_pytest(project)
    assert outcome.code != 0
    assert "takes partitions= and config=, not ['partition']" in outcome.text


def test_the_plugin_costs_nothing_unless_it_is_used(project: Path) -> None:
    (project / "test_theirs.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert not [name for name in sys.modules if name.startswith('penstock.broker')]\n"
    )
    outcome = run_pytest(project)
    assert outcome.code == 0, outcome.text


@pytest.mark.parametrize("test", ["test_a", "test_b[ü/..x y]", "x" * 300, "[..]", ""])
def test_names_of_topics_are_allowed_and_never_twice_the_same(test: str) -> None:
    from penstock.cluster.topic_names import check_topic_name

    names = {topic_name(test) for _ in range(50)}
    assert len(names) == 50
    for name in names:
        check_topic_name(name)


def test_a_fresh_broker_is_there_at_once_and_gone_at_once() -> None:
    from penstock.testing import Broker

    with Broker():
        pass  # what is imported and compiled once in a process
    starts_s, stops_s = [], []
    for _ in range(5):
        began_s = time.perf_counter()
        with Broker() as broker:
            up_s = time.perf_counter()
            assert broker.port > 0
        starts_s.append(up_s - began_s)
        stops_s.append(time.perf_counter() - up_s)
    # The best of them: what the machine does besides is not the broker's.
    assert min(starts_s) < 0.3
    assert min(stops_s) < 0.3
