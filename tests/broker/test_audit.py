"""The audit log of a broker: denials and changes as lines in a file and a topic, rotation, slow and failing disks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.broker.wire_client import WireClient, on_loop
from tests.timeouts import until

from penstock.broker.api_table import API_TABLE
from penstock.broker.audit import CHANGES, MAX_WAITING, FileSink, RotatingFile, TopicSink
from penstock.broker.authorization_rules import RULES
from penstock.broker.request import BrokerState, Services
from penstock.client.admin import Admin
from penstock.log.errors import BatchTooLarge, LogError
from penstock.records import decode_batch, encode_batch
from penstock.runtime.files import PosixFiles
from penstock.runtime.threads import InlineWorkers, Outcome, outcome_of
from penstock.security.acls import AclBinding, AclEntry, Operation, Permission, ResourcePattern, ResourceType
from penstock.security.principal import Principal, Session
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from penstock.wire.schemas.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.schemas.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from penstock.wire.schemas.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.wire.schemas.end_txn import EndTxnRequest
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.schemas.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.wire.schemas.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

SECRET = "hunter2-the-value"


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[tuple[EmbeddedBroker, Path]]:
    path = tmp_path / "audit.log"
    settings = {
        "authorizer.class.name": "penstock",
        "penstock.audit.log.file": str(path),
        "penstock.audit.topic": "audit",
        "auto.create.topics.enable": "true",
    }
    with EmbeddedBroker(settings=settings) as embedded:
        yield embedded, path


def create(client: WireClient, name: str) -> int:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    code: int = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]), 7).topics[0].error_code
    return code


def test_every_change_that_is_served_is_in_the_table() -> None:
    reads = ("DESCRIBE", "LIST", "FETCH", "METADATA", "FIND", "API_VERSIONS", "OFFSET_FETCH", "OFFSET_FOR", "SASL")
    # Produced and committed all the time; members and producers look after themselves; brokers are not audited.
    usual = {
        "PRODUCE", "OFFSET_COMMIT", "TXN_OFFSET_COMMIT", "INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN",
        "ADD_OFFSETS_TO_TXN", "JOIN_GROUP", "SYNC_GROUP", "HEARTBEAT", "LEAVE_GROUP", "ALTER_PARTITION",
        "CONTROLLED_SHUTDOWN", "PUSH_IMAGE",
    }  # fmt: skip
    names = {ApiKey(key).name for key in API_TABLE if key not in CHANGES and key < 30_000}
    assert {name for name in names if not name.startswith(reads)} <= usual
    assert set(CHANGES) <= set(RULES)


def test_denials_and_changes_are_written_and_no_values(audited: tuple[EmbeddedBroker, Path]) -> None:
    embedded, path = audited
    broker = embedded.broker
    with WireClient(embedded.port) as client:
        assert create(client, "views") == 29
        message = ListOffsetsRequest(
            topics=[ListOffsetsTopic(name="views", partitions=[ListOffsetsPartition(partition_index=0)])]
        )
        client.ask(ApiKey.LIST_OFFSETS, message, 5)
        fetching = FetchTopic(topic="views", partitions=[FetchPartition(partition=0)])
        client.ask(ApiKey.FETCH, FetchRequest(topics=[fetching]), 11)
        entry = AclEntry("User:ANONYMOUS", "*", Operation.ALL, Permission.ALLOW)
        pattern = ResourcePattern(ResourceType.TOPIC, "views")
        on_loop(broker, broker.cluster.require_controller().create_acls([AclBinding(pattern, entry)]))
        assert create(client, "views") == 0
        assert create(client, "views") == 36
        edit = AlterableConfig(name="retention.ms", value=SECRET)
        resource = AlterConfigsResource(resource_type=2, resource_name="views", configs=[edit])
        client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource]), 1)
        client.ask(ApiKey.END_TXN, EndTxnRequest(transactional_id="tx", committed=True), 3)
    until(lambda: len(lines_in(path)) >= 7, "the lines are written")
    found = [(line["action"], line["outcome"], line.get("resources"), line.get("errors")) for line in lines_in(path)]
    assert found == [
        ("CreateTopics", "denied", ["Topic views"], ["TOPIC_AUTHORIZATION_FAILED"]),
        ("ListOffsets", "denied", ["Describe Topic views"], None),
        ("Fetch", "denied", ["Read Topic views"], None),
        ("CreateTopics", "allowed", ["Topic views"], None),
        ("CreateTopics", "failed", ["Topic views"], ["TOPIC_ALREADY_EXISTS"]),
        ("IncrementalAlterConfigs", "failed", ["Topic views: retention.ms"], ["INVALID_CONFIG"]),
        ("EndTxn", "denied", None, ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED"]),
    ]
    assert SECRET not in path.read_text()
    line = lines_in(path)[0]
    assert (line["principal"], line["host"], line["listener"]) == ("User:ANONYMOUS", "127.0.0.1", "PLAINTEXT")


def test_the_topic_gets_the_same_lines(audited: tuple[EmbeddedBroker, Path]) -> None:
    embedded, _ = audited
    broker = embedded.broker
    with WireClient(embedded.port) as client:
        create(client, "views")

    def values() -> bytes:
        partition = broker.replicas.get("audit", 0)
        if partition is None or not partition.log.log_end_offset:
            return b""
        region = partition.log.read(0, 1 << 20)
        return b"" if region is None else bytes(region.read())

    until(lambda: b'"CreateTopics"' in values(), "the line is in the topic")


def test_clients_cannot_change_the_topic_whatever_acls_say(tmp_path: Path) -> None:
    """Not even super users: they could forge what was done."""
    settings = {
        "authorizer.class.name": "penstock",
        "super.users": "User:ANONYMOUS",
        "penstock.audit.topic": "audit",
    }
    invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
    with EmbeddedBroker(settings=settings) as embedded, Admin(embedded.address) as admin:
        admin.create_topic("audit", exist_ok=True)
        with WireClient(embedded.port) as client:
            assert client.produce("audit", encode_batch([(0, None, b"forged", ())])).error_code == invalid
            cut = DeleteRecordsTopic(name="audit", partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
            answer = client.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[cut]), 2)
            assert answer.topics[0].partitions[0].error_code == invalid
            gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="audit")])
            assert client.ask(ApiKey.DELETE_TOPICS, gone, 6).responses[0].error_code == invalid
            added = AddPartitionsToTxnTopic(name="audit", partitions=[0])
            joined = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="tx", v3_and_below_producer_id=1, v3_and_below_topics=[added]
            )
            results = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, joined, 3).results_by_topic_v3_and_below
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert results[0].results_by_partition[0].partition_error_code == denied
        admin.create_partitions("audit", 3)
        assert len(embedded.broker.cluster.image.topics["audit"].partitions) == 3


def test_logins_are_noted(audited: tuple[EmbeddedBroker, Path]) -> None:
    embedded, path = audited
    services = embedded.broker.services

    async def log_in() -> None:
        assert services.audit is not None
        session = Session(Principal("User", "alice"), "SASL_SSL", host="10.0.0.9")
        services.audit.login(session, "SCRAM-SHA-256", succeeded=True)
        services.audit.login(session, "SCRAM-SHA-256", succeeded=False)

    on_loop(embedded.broker, log_in())
    until(lambda: len(lines_in(path)) >= 2, "the lines are written")
    assert [(line["event"], line["outcome"], line["action"]) for line in lines_in(path)] == [
        ("login", "allowed", "SCRAM-SHA-256"),
        ("login", "failed", "SCRAM-SHA-256"),
    ]


def test_a_flood_of_denials_is_counted_without_a_further_event(audited: tuple[EmbeddedBroker, Path]) -> None:
    embedded, path = audited
    with WireClient(embedded.port) as client:
        for _ in range(100):
            create(client, "views")
    until(lambda: sum(line.get("suppressed", 1) for line in lines_in(path)) == 100, "all are written or counted")
    assert len(lines_in(path)) < 100


def test_the_audit_log_works_without_an_authorizer(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with (
        EmbeddedBroker(settings={"penstock.audit.log.file": str(path)}) as embedded,
        WireClient(embedded.port) as client,
    ):
        assert create(client, "views") == 0
    assert [(line["action"], line["outcome"]) for line in lines_in(path)] == [("CreateTopics", "allowed")]


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        EmbeddedBroker(settings={"penstock.audit.log.file": str(tmp_path / "nowhere" / "audit.log")}).start()


# --- files


def line(number: int) -> bytes:
    return b'{"n":%d}\n' % number


def test_files_rotate_and_old_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = RotatingFile(PosixFiles(), str(path), 30, 2)
    for number in range(10, 30):
        file.write([line(number)])
    file.close()
    texts = [(tmp_path / name).read_bytes() for name in ("audit.log.2", "audit.log.1", "audit.log")]
    assert b"".join(texts) == b"".join(line(number) for number in range(10, 30))[-sum(map(len, texts)) :]
    assert all(len(text) <= 30 for text in texts)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]


def test_a_restart_continues_the_file_and_many_lines_are_split(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for begin in (10, 15):
        file = RotatingFile(PosixFiles(), str(path), 1000, 1)
        file.write([line(number) for number in range(begin, begin + 5)])
        file.close()
    assert path.read_bytes() == b"".join(line(number) for number in range(10, 20))
    small = RotatingFile(PosixFiles(), str(tmp_path / "small"), 30, 9)
    small.write([line(number) for number in range(10, 30)])
    small.close()
    assert all(each.stat().st_size <= 30 for each in tmp_path.glob("small*"))


def test_without_backups_the_file_begins_again(tmp_path: Path) -> None:
    file = RotatingFile(PosixFiles(), str(tmp_path / "audit.log"), 20, 0)
    for number in range(10, 20):
        file.write([line(number)])
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["audit.log"]


class HeldWorkers:
    """Work that is done when the test says so."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def run(self, work: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        self.held.append(lambda: done(outcome_of(work)))

    def close(self) -> None:
        pass


def test_a_slow_disk_does_not_grow_the_memory_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    workers = HeldWorkers()
    path = tmp_path / "audit.log"
    sink = FileSink(RotatingFile(PosixFiles(), str(path), 1 << 30, 1), workers)
    for number in range(MAX_WAITING + 501):
        sink([line(number)])
    assert len(sink._waiting) == MAX_WAITING
    workers.held.pop()()
    workers.held.pop()()
    sink.close()
    lines = lines_in(path)
    assert len(lines) == MAX_WAITING + 2
    assert lines[-1]["suppressed"] == 500


def test_a_failing_disk_loses_lines_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = RotatingFile(PosixFiles(), str(tmp_path / "missing" / "audit.log"), 1 << 20, 1)
    sink: Callable[[Sequence[bytes]], None] = FileSink(file, InlineWorkers())
    sink([line(1)])
    assert "audit lines lost" in caplog.text


# --- the topic


class TopicStory:
    """A sink whose partition takes batches up to `limit` bytes, if the broker leads it. The test runs the timers."""

    def __init__(self) -> None:
        self.limit = 1 << 20
        self.leadership: object | None = object()
        self.failure: LogError | None = None
        self.values: list[bytes] = []
        self.scheduled: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.services: Any = SimpleNamespace(
            cluster=SimpleNamespace(image=SimpleNamespace(topics={"audit": SimpleNamespace(partitions=[0])})),
            replicas=SimpleNamespace(get=lambda *_: self),
            clock=SimpleNamespace(now_ms=lambda: 0),
            loop=SimpleNamespace(call_soon=self.scheduled.append),
            call_later=lambda _, then: self.timers.append(then),
            state=BrokerState.RUNNING,
        )
        self.sink = TopicSink(cast("Services", self.services), "audit")

    def append(self, batch: bytes, *_: object, **__: object) -> None:
        if self.failure is not None:
            raise self.failure
        if len(batch) > self.limit:
            raise BatchTooLarge(len(batch), self.limit)
        self.values += [record.value or b"" for record in decode_batch(batch)]

    def run(self) -> None:
        while self.scheduled:
            self.scheduled.pop(0)()


def test_a_line_that_is_too_long_for_the_topic_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    story = TopicStory()
    story.limit = 1_000
    lines = [b"x" * 100 + b"%d" % number for number in range(50)]
    story.sink([*lines[:20], b"y" * 2_000, *lines[20:]])
    story.run()
    assert story.values == lines
    assert "audit line rejected" in caplog.text
    assert "lines=1" in caplog.text


def test_lines_that_cannot_be_appended_are_tried_again_without_a_further_event() -> None:
    story = TopicStory()
    story.leadership = None
    story.sink([b"no leader"])
    (again,) = story.timers
    story.timers.clear()
    story.leadership, story.failure = object(), LogError("no room")
    again()
    (again,) = story.timers
    story.timers.clear()
    story.failure = None
    again()
    assert (story.values, story.timers) == ([b"no leader"], [])


def test_a_second_event_may_take_the_lines_that_were_left_for_later() -> None:
    story = TopicStory()
    story.sink([b"%d" % number for number in range(600)])
    story.sink([b"last"])
    story.run()
    assert story.values == [*(b"%d" % number for number in range(600)), b"last"]


def test_dropped_lines_are_reported_even_if_none_can_be_appended(caplog: pytest.LogCaptureFixture) -> None:
    story = TopicStory()
    story.leadership = None
    story.sink([b"line"] * (MAX_WAITING + 7))
    story.timers.pop()()
    assert "audit lines dropped: topic=audit lines=7" in caplog.text
    story.timers.clear()
    story.services.state = BrokerState.STOPPING
    story.sink._is_timer_set = False
    story.sink([b"one more"])
    assert story.timers == []
