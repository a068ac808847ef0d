"""The worked examples, each run as a user runs it: a program with the address of a broker, or without one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition
from tests.timeouts import PATIENCE_S

from penstock import Broker as OwnBroker
from penstock import consumer_from_properties, producer_from_properties
from penstock.spark.tables import Warehouse
from penstock.testing import Broker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.name)):x}"


def run(example: str, *arguments: str | Path, cwd: Path | None = None) -> list[str]:
    """The lines that an example prints; it must succeed and warn of nothing."""
    command = [sys.executable, str(EXAMPLES / example), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=cwd, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def write(broker: Broker, topic: str, records: list[tuple[str, str]], partitions: int = 2) -> None:
    broker.create_topic(topic, partitions)
    producer = KafkaProducer(bootstrap_servers=broker.address)
    for number, (key, value) in enumerate(records):
        producer.send(topic, value.encode(), key=key.encode(), partition=number % partitions)
    producer.flush()
    producer.close()


def numbered(broker: Broker, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """The records of a partition in which every offset has one."""
    where = KafkaPartition(topic, partition)
    with KafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([where])
        end = consumer.end_offsets([where])[where]
        found: list[tuple[int, bytes]] = []
        while len(found) < end:
            found += [(record.offset, record.value) for record in consumer.poll(1_000).get(where, ())]
    return found


def values(broker: Broker, topic: str, partition: int) -> list[bytes]:
    return [value for _, value in numbered(broker, topic, partition)]


def test_every_example_is_on_the_page_and_is_run_by_a_test() -> None:
    page = (EXAMPLES / "README.md").read_text()
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert f"[{path.name}]({path.name})" in page
        assert path.name in tests or path.name.startswith("read_tables_")


@pytest.mark.long
@pytest.mark.parametrize("example", ["own_encoder.py", "simple_consumer.py", "search_index.py"])
def test_an_example_without_an_address_brings_its_own_broker(example: str, tmp_path: Path) -> None:
    assert run(example, cwd=tmp_path)


def test_own_encoder_and_partitioner(broker: Broker, topic: str) -> None:
    lines = run("own_encoder.py", broker.address, "--topic", topic)
    assert len(lines) == 5
    by_kind = {line.split()[2]: set[str]() for line in lines}
    for line in lines:
        by_kind[line.split()[2]].add(line.split()[1])
    assert {kind: len(partitions) for kind, partitions in by_kind.items()} == {"seller": 1, "buyer": 1, "developer": 1}
    stored = [value for partition in range(4) for value in values(broker, topic, partition)]
    assert sorted(stored)[0] == b"0|chenhui|china|1357539454000"
    assert b"4|dave|shoes %7C sale|1357539454004" in stored


@pytest.mark.long
def test_simple_consumer_continues_where_its_file_says(broker: Broker, topic: str, tmp_path: Path) -> None:
    write(broker, topic, [("k", f"page {number}") for number in range(4)])
    offsets = tmp_path / "offsets.json"
    lines = run("simple_consumer.py", broker.address, "--topic", topic, "--offsets", offsets)
    assert sorted(line.split("  ")[2] for line in lines) == [f"page {number}" for number in range(4)]
    assert json.loads(offsets.read_text()) == {"0": 2, "1": 2}
    assert run("simple_consumer.py", broker.address, "--topic", topic, "--offsets", offsets) == []
    assert len(run("simple_consumer.py", broker.address, "--topic", topic, "--since", "2001-01-01")) == 4


def test_group_consumer_reads_everything_once_with_its_threads(broker: Broker, topic: str) -> None:
    write(broker, topic, [("k", f"/page/{number % 3}") for number in range(30)], partitions=4)
    options = ("--topic", topic, "--group", topic, "--threads", "2")
    lines = run("group_consumer.py", broker.address, *options)
    assert sorted(line.strip() for line in lines[-3:]) == ["10 /page/0", "10 /page/1", "10 /page/2"]
    read = [re.findall(r"partition (\d) offset (\d+)", line)[0] for line in lines[:-3]]
    assert len(set(read)) == len(read) == 30
    assert {line.split(":")[0] for line in lines[:-3]} == {"thread 0", "thread 1"}
    assert run("group_consumer.py", broker.address, *options, "--idle-ms", "500") == []


@pytest.mark.long
def test_profile_visits_of_a_member_are_counted_by_one_consumer(broker: Broker, topic: str) -> None:
    options = ("--topic", topic, "--group", topic, "--visits", "500")
    lines = run("profile_visits.py", broker.address, *options)
    assert sum(int(line.split()[4]) for line in lines[:3]) == 500
    members = [line for line in lines if line.startswith("member ")]
    assert len(members) == 5
    assert not [line for line in members if "," in line.partition("counted by ")[2]]
    counts = [value for partition in range(6) for value in values(broker, f"{topic}-counts", partition)]
    assert max(int(count) for count in counts) == int(members[0].split()[2])


def test_a_search_index_that_is_killed_continues_with_its_last_segment(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    write(broker, topic, [(str(number), f"word{number % 7} number{number}") for number in range(3_000)])
    folder = tmp_path / "index"
    command = [sys.executable, str(EXAMPLES / "search_index.py"), broker.address, "--topic", topic]
    command += ["--index", str(folder), "--flush-every", "50"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("500 "):
                break
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    before = len(list(folder.glob("*.segment")))
    assert before >= 10
    options = ("--topic", topic, "--index", folder, "--flush-every", "50")
    lines = run("search_index.py", broker.address, *options, "--query", "word3 number10")
    assert int(lines[0].split()[0]) == 50 * before
    assert lines[-1] == "'word3 number10' is in: 10"
    segments = [json.loads(path.read_text()) for path in folder.glob("*.segment")]
    documents = Counter(name for segment in segments for name in segment["documents"])
    assert documents == Counter(str(number) for number in range(3_000))  # each in one segment: none twice, none lost


@pytest.mark.long
def test_an_index_replaces_documents_and_forgets_nothing(broker: Broker, topic: str, tmp_path: Path) -> None:
    write(broker, topic, [("a", "old words"), ("b", "other words"), ("a", "new words")], partitions=1)
    index = tmp_path / "index"
    options = ("--topic", topic, "--index", index)
    assert run("search_index.py", broker.address, *options, "--query", "old")[-1] == "'old' is in: no document"
    assert run("search_index.py", broker.address, *options, "--query", "words")[-1] == "'words' is in: a, b"


@pytest.mark.long
def test_the_site_obeys_the_block_list_of_the_security_pipeline() -> None:
    with Broker() as broker:
        lines = run("block_list.py", broker.address, "--minutes", "2", "--rate", "60")
        first, second = (list(map(int, re.findall(r"\d+", line)))[1:] for line in lines[:2])
        served, rejected, blocked, planted = first
        assert rejected == 0
        assert blocked == planted > 0  # nobody else is blocked
        assert second[1] > 0  # the blocked ones went on, and were rejected
        rows = [json.loads(value) for value in values(broker, "suspects", 0)]
        assert {row["verdict"] for row in rows} <= {"crawler", "spammer", "abuser"}
        again = run("block_list.py", broker.address, "--minutes", "1", "--rate", "60", "--no-judge")
        numbers = list(map(int, re.findall(r"\d+", again[0])))[1:]
        assert numbers[1] > 0  # a site that starts knows the list, and obeys it from the first request
        assert numbers[0] < served


@pytest.mark.long
def test_a_mirrored_warehouse_whose_program_is_killed_has_every_record_once(topic: str, tmp_path: Path) -> None:
    with Broker() as live, Broker() as offline:
        options = ["--live", live.address, "--offline", offline.address, "--topic", topic]
        options += ["--warehouse", str(tmp_path / "warehouse"), "--records", "400"]
        for line in (1, 2):  # killed in the middle of what follows a load: writing, mirroring or loading
            command = [sys.executable, str(EXAMPLES / "mirrored_warehouse.py"), *options, "--loads", "9"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            try:
                for _ in range(line):
                    assert process.stdout.readline().startswith("load ")
            finally:
                process.kill()
                process.wait()
                process.stdout.close()
        lines = run("mirrored_warehouse.py", *options, "--loads", "1")
        assert lines[0].startswith("load 1: ")
        in_live, in_offline = (
            {(partition, offset): value for partition in range(2) for offset, value in numbered(each, topic, partition)}
            for each in (live, offline)
        )
        rows = Warehouse(str(tmp_path / "warehouse")).open(topic).store.delta.to_pyarrow_table().to_pylist()
    assert len(in_live) >= 1_600  # nine loads were not reached, four and a bit were
    assert in_offline == in_live
    assert Counter((row["_partition"], row["_offset"]) for row in rows) == Counter(in_live.keys())
    for row in rows:
        view = json.loads(in_live[row["_partition"], row["_offset"]])
        assert (row["user"], row["page"]) == (view["user"], view["page"])


def test_the_files_to_start_from_can_be_used(broker: Broker, tmp_path: Path) -> None:
    config = EXAMPLES / "config"
    own = OwnBroker.from_properties(
        config / "server.properties", settings={"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    )
    with own:
        options = {"bootstrap_servers": own.address}
        producer = producer_from_properties(config / "producer.properties", **options)
        producer.send("views", b"x")
        producer.close()
        waiting = {**options, "consumer_timeout_ms": PATIENCE_S * 1000}
        with consumer_from_properties(config / "consumer.properties", "views", **waiting) as consumer:
            assert next(iter(consumer)).value == b"x"
