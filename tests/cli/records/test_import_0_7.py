"""`penstock import-0.7` on a real broker: everything once, in order, however often it is stopped and repeated."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from tests.cli.commands import Shell
from tests.cli.records.kafka_0_7 import gzipped, message, snappied, write_partition
from tests.timeouts import PATIENCE_S, until

from penstock import Producer
from penstock.cli.records.migration_0_7 import HEADER, Place, parse_header
from penstock.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def shell(broker: Broker) -> Shell:
    return Shell(broker.address)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.name)):x}"


def committed(broker: Broker, topic: str, partition: int = 0) -> list[tuple[bytes, Place, int]]:
    """Value, place and time of the records that a client of others reads as committed."""
    where = KafkaPartition(topic, partition)
    with KafkaConsumer(
        bootstrap_servers=broker.address, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([where])
        end = consumer.end_offsets([where])[where]
        found = []
        while consumer.position(where) < end:
            for record in consumer.poll(1_000).get(where, ()):
                named = parse_header(dict(record.headers).get(HEADER))
                found.append((record.value, named[0] if named else Place(-1, 0), record.timestamp))
    return found


def values(broker: Broker, topic: str, partition: int = 0) -> list[bytes]:
    return [value for value, _, _ in committed(broker, topic, partition)]


# --- what is in the folder


def test_all_formats_arrive_in_order_with_their_positions(
    broker: Broker, shell: Shell, topic: str, tmp_path: Path
) -> None:
    files = [[message(b"a", magic=0), gzipped([b"b", b"c"])], [snappied([b"d", b"e"]), message(b"", magic=1)]]
    positions = write_partition(tmp_path / f"{topic}-0", files)
    write_partition(tmp_path / f"{topic}-2", [[message(b"z")]], start=512)
    result = shell("import-0.7", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "Imported 7 messages."
    found = committed(broker, topic)
    assert [value for value, _, _ in found] == [b"a", b"b", b"c", b"d", b"e", b""]
    first, gzip, snappy, last = positions
    assert [place for _, place, _ in found] == [(first, 0), (gzip, 0), (gzip, 1), (snappy, 0), (snappy, 1), (last, 0)]
    assert [place for _, place, _ in committed(broker, topic, 2)] == [(512, 0)]
    assert len(broker.broker.cluster.image.topics[topic].partitions) == 3


def test_a_dry_run_needs_no_cluster_and_changes_nothing(topic: str, tmp_path: Path) -> None:
    write_partition(tmp_path / f"{topic}-0", [[message(b"a"), gzipped([b"b", b"c"])]])
    nowhere = Shell("127.0.0.1:1")
    found = nowhere.json("import-0.7", tmp_path, "--dry-run")
    assert found["dryRun"] is True
    (partition,) = found["partitions"]
    assert (partition["topic"], partition["partition"], partition["messages"]) == (topic, 0, 3)
    assert "Dry run: 3 messages found, nothing was written." in nowhere.done("import-0.7", tmp_path, "--dry-run")


def test_damage_is_reported_left_out_and_shown_in_the_exit_code(
    broker: Broker, shell: Shell, topic: str, tmp_path: Path
) -> None:
    broken = bytearray(message(b"broken"))
    broken[-1] ^= 1
    write_partition(tmp_path / f"{topic}-0", [[message(b"a"), bytes(broken), message(b"b"), message(b"cut")[:-2]]])
    result = shell("import-0.7", tmp_path)
    assert result.exit_code == 1
    assert "the checksum is" in result.stdout
    assert "cut short: a message of 9 bytes, of which 7 are there" in result.stdout
    assert values(broker, topic) == [b"a", b"b"]


def test_options_choose_topics_names_partitions_and_times(
    broker: Broker, shell: Shell, topic: str, tmp_path: Path
) -> None:
    write_partition(tmp_path / "wanted-1", [[message(b"w")]])
    write_partition(tmp_path / "other-0", [[message(b"o")]])
    (file,) = (tmp_path / "wanted-1").iterdir()
    os.utime(file, (1_300_000_000, 1_300_000_000))
    shell.done(
        "import-0.7", tmp_path, "-t", "wanted", "--rename", f"wanted={topic}", "--partition-base", 2, "-p", 6,
        "--timestamps", "file",
    )  # fmt: skip
    assert "other" not in broker.broker.cluster.image.topics
    assert len(broker.broker.cluster.image.topics[topic].partitions) == 6
    assert committed(broker, topic, 3) == [(b"w", Place(0, 0), 1_300_000_000_000)]


# --- errors


@pytest.mark.parametrize(
    ("folders", "options", "message_"),
    [
        ([], [], "has no partitions"),
        (["views-0"], ["-t", "clicks"], "has no topic 'clicks'.\nIt has views."),
        (["views-0", "views_0"], [], "views-0 and views_0 are both partition 0 of views."),
    ],
)
def test_folders_that_cannot_be_imported_are_named(
    tmp_path: Path, folders: list[str], options: list[str], message_: str
) -> None:
    for folder in folders:
        write_partition(tmp_path / folder, [[message(b"x")]])
    result = Shell("127.0.0.1:1")("import-0.7", tmp_path, *options)
    assert result.exit_code == 2
    assert message_ in result.stderr


def test_a_topic_with_too_few_partitions_is_named(broker: Broker, shell: Shell, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, 1)
    write_partition(tmp_path / f"{topic}-3", [[message(b"x")]])
    result = shell("import-0.7", tmp_path)
    assert result.exit_code == 2
    assert f"penstock topics alter {topic} --partitions 4" in result.stderr


def test_records_of_others_are_mixed_with_only_if_the_operator_asks(
    broker: Broker, shell: Shell, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic, 1)
    with Producer(broker.address) as producer:
        producer.send(topic, b"newer").result(PATIENCE_S)
    write_partition(tmp_path / f"{topic}-0", [[message(b"old")]])
    result = shell("import-0.7", tmp_path)
    assert result.exit_code == 2
    assert "no import from" in result.stderr
    assert "--append" in result.stderr
    shell.done("import-0.7", tmp_path, "--append")
    assert values(broker, topic) == [b"newer", b"old"]
    with Producer(broker.address) as producer:
        producer.send(topic, b"newest").result(PATIENCE_S)
    assert "Imported 0 messages." in shell.done("import-0.7", tmp_path)  # its own records are found behind the others


def test_another_folder_under_the_same_or_another_name_is_noticed(
    broker: Broker, shell: Shell, topic: str, tmp_path: Path
) -> None:
    for folder, text in (("one", b"first"), ("two", b"other")):
        write_partition(tmp_path / folder / f"{topic}-0", [[message(text)]])
    shell.done("import-0.7", tmp_path / "one", "--source", "broker-1")
    result = shell("import-0.7", tmp_path / "two", "--source", "broker-1")
    assert result.exit_code == 2
    assert "is not what was imported before" in result.stderr
    result = shell("import-0.7", tmp_path / "two")
    assert result.exit_code == 2
    assert "has records of another import: broker-1." in result.stderr
    assert values(broker, topic) == [b"first"]


# --- again


def test_a_repeated_import_adds_only_what_is_new(broker: Broker, shell: Shell, topic: str, tmp_path: Path) -> None:
    folder = tmp_path / f"{topic}-0"
    write_partition(folder, [[message(b"a"), gzipped([b"b", b"c"])]])
    assert "Imported 3 messages." in shell.done("import-0.7", tmp_path)
    assert "Imported 0 messages." in shell.done("import-0.7", tmp_path)
    (file,) = folder.iterdir()
    with open(file, "ab") as more:
        more.write(message(b"d")[:-1])
    assert shell("import-0.7", tmp_path).exit_code == 1  # the last message is not complete yet
    with open(file, "ab") as more:
        more.write(b"d")
    shell.done("import-0.7", tmp_path)
    write_partition(folder, [[gzipped([b"e", b"f"])]], start=file.stat().st_size)
    found = json.loads(shell.done("import-0.7", tmp_path, "--format", "json"))
    assert found["partitions"][0]["continued"] is True
    assert values(broker, topic) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_an_import_that_fails_in_the_middle_of_a_compressed_set_continues_there(
    broker: Broker, shell: Shell, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [b"%d" % number for number in range(10)]
    write_partition(tmp_path / f"{topic}-0", [[gzipped(texts[:8]), message(texts[8])], [message(texts[9])]])
    monkeypatch.setattr("penstock.cli.records.migration_0_7._RECORDS_AT_ONCE", 3)
    send, sent = Producer.send, []

    def failing(*args: Any, **options: Any) -> Any:
        sent.append(args)
        if len(sent) == 5:
            raise KeyboardInterrupt
        return send(*args, **options)

    monkeypatch.setattr(Producer, "send", failing)
    assert shell("import-0.7", tmp_path).exit_code != 0
    assert values(broker, topic) == texts[:3]
    assert "Imported 7 messages." in shell.done("import-0.7", tmp_path)
    assert values(broker, topic) == texts


@pytest.mark.long
def test_an_import_that_is_killed_again_and_again_has_everything_once(
    broker: Broker, shell: Shell, topic: str, tmp_path: Path
) -> None:
    texts = [b"%06d" % number for number in range(40_000)]
    entries = [gzipped(texts[at : at + 700]) for at in range(0, 15_000, 700)][:-1]
    plain = texts[700 * len(entries) :]
    write_partition(tmp_path / f"{topic}-0", [entries, [message(each) for each in plain]])
    chance = random.Random(7)
    command = [sys.executable, "-m", "penstock", "import-0.7", str(tmp_path), "-b", broker.address]

    def end() -> int:
        partition = broker.broker.replicas.get(topic, 0)
        return 0 if partition is None else partition.log.log_end_offset

    def is_far_enough(process: subprocess.Popen[bytes], enough: int) -> bool:
        return end() >= enough or process.poll() is not None

    for _ in range(3):
        begin = end()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            enough = begin + chance.randint(5_100, 9_000)  # some transactions of 5,000 records
            until(partial(is_far_enough, process, enough), "it writes")
        finally:
            process.kill()
            process.wait()
    assert 0 < len(values(broker, topic)) < len(texts), "it was killed in the middle"
    shell.done("import-0.7", tmp_path)
    assert values(broker, topic) == texts
    assert "Imported 0 messages." in shell.done("import-0.7", tmp_path)
