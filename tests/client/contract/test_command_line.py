"""The command in its own processes, against any broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.records.kafka_0_7 import gzipped, message, write_partition
from tests.client.contract.contract import Capabilities, MakeTopic, fill, new_group, new_name, texts
from tests.timeouts import PATIENCE_S

_REJECTED = 4
Run = Callable[..., "subprocess.CompletedProcess[str]"]
FIXTURES = ("run",)


@pytest.fixture
def run(bootstrap: str) -> Run:
    def running(*words: str, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            input=stdin, capture_output=True, text=True, timeout=PATIENCE_S,
            env={**os.environ, "PENSTOCK_BOOTSTRAP_SERVER": bootstrap},
        )  # fmt: skip
        assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return running


def result_of(run: Run, *words: str, **options: Any) -> Any:
    return json.loads(run(*words, "--format", "json", **options).stdout)


def test_the_command_makes_describes_alters_and_deletes_a_topic(run: Run, capabilities: Capabilities) -> None:
    capabilities.need("administers")
    name = new_name("made")
    made = result_of(run, "topics", "create", name, "--partitions", "2", "--config", "retention.ms=5000000")
    assert [(topic["name"], topic["partitions"], topic["existed"]) for topic in made["topics"]] == [(name, 2, False)]
    run("topics", "create", name, "--if-not-exists")
    rejected = run("topics", "create", name, code=_REJECTED)
    assert name in rejected.stderr
    run("topics", "alter", name, "--partitions", "3", "--config", "cleanup.policy=compact")
    (topic,) = result_of(run, "topics", "describe", name)["topics"]
    assert [part["partition"] for part in topic["partitions"]] == [0, 1, 2]
    assert topic["config"] == {"cleanup.policy": "compact", "retention.ms": "5000000"}
    assert result_of(run, "topics", "delete", name) == {"deleted": [name], "failed": {}, "dryRun": False}


def test_the_command_shows_topics_brokers_and_offsets(
    run: Run, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    fill(bootstrap, topic, texts(5), partition=1)
    assert topic in run("topics", "list").stdout.split()
    (described,) = result_of(run, "topics", "describe", topic)["topics"]
    assert [(part["beginOffset"], part["endOffset"]) for part in described["partitions"]] == [(0, 0), (0, 5)]
    offsets = result_of(run, "offsets", f"{topic}:1")["partitions"]
    assert [(part["partition"], part["begin"], part["end"], part["records"]) for part in offsets] == [(1, 0, 5, 5)]
    (broker,) = result_of(run, "brokers", "list")["brokers"]
    assert f"{broker['host']}:{broker['port']}" == bootstrap
    assert bootstrap.rpartition(":")[2] in run("brokers", "list").stdout
    assert run("topics", "describe", topic).stdout
    if capabilities.administers:
        assert result_of(run, "brokers", "disks")


def test_records_go_in_and_come_out_by_the_command(run: Run, capabilities: Capabilities, make_topic: MakeTopic) -> None:
    topic, copy = make_topic(), make_topic()
    said = run("produce", topic, "--key-separator", ":", "--compression", "gzip", stdin="a:1\nb:2\nc:3\n")
    assert "3 records" in said.stderr
    assert run("consume", topic, "--from-beginning", "--exit").stdout == "1\n2\n3\n"
    assert run("consume", topic, "--offset", "-1", "--exit", "--format", "%p %o %k %s\\n").stdout == "0 2 c 3\n"
    assert run("consume", topic, "--from-beginning", "-n", "1", "--property", "print.key=true").stdout == "a\t1\n"
    lines = run("consume", topic, "--exit", "--format", "json").stdout
    records = [json.loads(line) for line in lines.splitlines()]
    assert [(record["key"], record["value"]) for record in records] == [("a", "1"), ("b", "2"), ("c", "3")]
    if not capabilities.batches:
        lines = "".join(json.dumps({"key": record["key"], "value": record["value"]}) + "\n" for record in records)
    run("produce", copy, "--format", "json", "--sync", stdin=lines)
    again = [json.loads(line) for line in run("consume", copy, "--exit", "--format", "json").stdout.splitlines()]
    assert [(record["key"], record["value"]) for record in again] == [("a", "1"), ("b", "2"), ("c", "3")]
    if capabilities.batches:
        assert [record["timestamp"] for record in again] == [record["timestamp"] for record in records]


def test_records_of_a_pattern_are_read(run: Run, bootstrap: str, make_topic: MakeTopic) -> None:
    family = new_name("family")
    for number, part in enumerate(["a", "b", "not"]):
        fill(bootstrap, make_topic(prefix=f"{family}.{part}"), texts(1, number))
    found = run("consume", "--include", f"{family}.*", "--exclude", r".*\.not.*", "--exit").stdout
    assert sorted(found.split()) == ["0", "1"]


def test_a_group_of_the_command_is_described_moved_and_deleted(
    run: Run, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(), new_group()
    fill(bootstrap, topic, texts(10))
    first = run("consume", topic, "--group", group, "--from-beginning", "-n", "4").stdout
    assert first.encode().split() == texts(4)
    (described,) = result_of(run, "groups", "describe", group)["groups"]
    (part,) = described["partitions"]
    assert (part["committed"], part["end"], part["lagRecords"]) == (4, 10, 6)
    if capabilities.administers:
        assert group in [each["group"] for each in result_of(run, "groups", "list")["groups"]]
    planned = result_of(run, "groups", "seek", group, "--topic", topic, "--shift-by", "-1")
    assert (planned["executed"], [move["offset"] for move in planned["moves"]]) == (False, [3])
    moved = result_of(run, "groups", "seek", group, "--all-topics", "--to-offset", "7", "--execute")
    assert [(move["committed"], move["offset"], move["error"]) for move in moved["moves"]] == [(4, 7, None)]
    rest = run("consume", topic, "--group", group, "-n", "3").stdout
    assert rest.encode().split() == texts(3, 7)
    assert group in run("groups", "describe", group).stdout
    if capabilities.administers:
        assert result_of(run, "groups", "delete", group)["deleted"] == [group]
        run("groups", "describe", group, code=_REJECTED)


def test_settings_by_the_command(run: Run, capabilities: Capabilities, make_topic: MakeTopic) -> None:
    capabilities.need("administers")
    topic = make_topic()
    (change,) = result_of(run, "configs", "alter", "--topic", topic, "--set", "retention.ms=1000000")["changes"]
    assert (change["name"], change["after"]) == ("retention.ms", "1000000")
    settings = {each["name"]: each for each in result_of(run, "configs", "describe", "--topic", topic)["settings"]}
    assert (settings["retention.ms"]["value"], settings["retention.ms"]["source"]) == ("1000000", "topic")
    assert "cleanup.policy" not in settings
    rejected = run("configs", "alter", "--topic", topic, "--set", "retention.mss=1", code=_REJECTED)
    assert "retention.ms" in rejected.stderr


@pytest.mark.parametrize("words", [("topics", "create", "t"), ("configs", "describe", "--topic", "t")])
def test_a_broker_that_is_too_old_is_named_by_the_command(
    run: Run, bootstrap: str, capabilities: Capabilities, words: tuple[str, ...]
) -> None:
    if capabilities.administers:
        pytest.skip(f"{capabilities.name} is not")
    assert bootstrap in run(*words, code=_REJECTED).stderr


def test_the_doctor_finds_a_broker_well(run: Run, capabilities: Capabilities) -> None:
    found = result_of(run, "doctor")
    by_check = {finding["check"]: finding for finding in found["findings"]}
    assert found["healthy"], found
    for check in ("connect", "advertised", "versions", "leaders"):
        assert by_check[check]["level"] != "error", by_check[check]
    if not capabilities.administers:
        assert by_check["versions"]["level"] == "note"


def test_the_command_measures(run: Run, make_topic: MakeTopic) -> None:
    topic = make_topic()
    produced = result_of(run, "perf", "produce", "--topic", topic, "--records", "2000")
    assert (produced["records"], produced["failed"]) == (2000, 0)
    consumed = result_of(run, "perf", "consume", "--topic", topic, "--records", "2000", "--as", "arrow")
    assert consumed["records"] == 2000
    latency = result_of(run, "perf", "latency", "--topic", topic, "--records", "20")
    assert latency["latencyMs"]["measured"] == 20


def test_data_of_kafka_0_7_is_imported_once(
    run: Run, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(1)
    write_partition(tmp_path / f"{topic}-0", [[message(b"a", magic=0), gzipped([b"b", b"c"])], [message(b"d")]])
    if not capabilities.transactions:
        rejected = run("import-0.7", str(tmp_path), code=_REJECTED)
        assert "transactions" in rejected.stderr
        return
    assert run("import-0.7", str(tmp_path)).stdout.endswith("Imported 4 messages.\n")
    assert run("import-0.7", str(tmp_path)).stdout.endswith("Imported 0 messages.\n")
    consumed = run("consume", topic, "--exit", "--format", "json", "-X", "isolation.level=read_committed")
    assert [json.loads(line)["value"] for line in consumed.stdout.splitlines()] == ["a", "b", "c", "d"]
