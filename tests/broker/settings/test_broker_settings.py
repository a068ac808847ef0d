"""Settings files of several Kafka versions, and all that can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.settings import (
    BrokerSettings,
    InvalidSettings,
    LoadedSettings,
    Source,
    load_settings,
    log_settings,
    settings_from,
)
from penstock.broker.settings.catalogue import BROKER_DEFINITIONS
from penstock.broker.settings.listeners import Listener
from penstock.config_def import HOUR_MS, MINUTE_MS, NEVER
from penstock.log.settings import LogSettings

KAFKA = r"""
# A broker of a cluster, as its operators write it
############################# Basics #############################
broker.id=3
broker.rack=eu-1a

! sockets
listeners=PLAINTEXT://:9092
#advertised.listeners=PLAINTEXT://your.host.name:9092
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600

# logs
log.dirs=/disk1/logs,\
         /disk2/logs
num.partitions=4
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.flush.interval.messages=10000
log.flush.interval.ms=1000
log.retention.hours=48
log.retention.bytes=1073741824
log.segment.bytes=536870912
log.retention.check.interval.ms=300000
log.cleanup.policy=compact,delete

zookeeper.connect=zk1:2181,zk2:2181/kafka
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""

KAFKA_0_7 = """
brokerid=7
hostname=broker7.example
port=6667
num.threads=8
socket.send.buffer=1048576
socket.receive.buffer=1048575
max.socket.request.bytes=104857601
max.message.size=2000000
monitoring.period.secs=600
log.dir=/var/kafka
num.partitions=2
log.flush.interval=500
log.default.flush.interval.ms=2000
log.default.flush.scheduler.interval.ms=1000
log.retention.hours=24
log.retention.size=1000000000
log.file.size=536870912
log.roll.hours=12
log.cleanup.interval.mins=5
topic.partition.count.map=clicks:8,views:16
topic.log.file.size=clicks:1048576
topic.log.retention.hours=clicks:1,views:2
topic.log.roll.hours=views:6
topic.log.retention.size=clicks:5000000
topic.flush.intervals.ms=clicks:100
enable.zookeeper=true
zk.connect=localhost:2181
zk.connectiontimeout.ms=1000000
"""


def logs(settings: BrokerSettings) -> LogSettings:
    """Of a topic without settings of its own."""
    return log_settings(settings, {})


def load(tmp_path: Path, text: str, *assignments: str) -> LoadedSettings:
    path = tmp_path / "server.properties"
    path.write_text(text)
    return load_settings(path, assignments, host_name=lambda: "machine")


def rejected(tmp_path: Path, text: str, *assignments: str) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        load(tmp_path, text, *assignments)
    return [str(problem) for problem in caught.value.problems]


def test_a_server_properties_file_of_kafka_loads_without_notices(tmp_path: Path) -> None:
    loaded = load(tmp_path, KAFKA)
    settings = loaded.settings
    assert loaded.notices == ()
    assert (settings.broker_id, settings.broker_rack, settings.num_partitions) == (3, "eu-1a", 4)
    assert settings.log_dirs == ("/disk1/logs", "/disk2/logs")
    assert logs(settings).retention_ms == 48 * HOUR_MS
    assert (logs(settings).flush_messages, logs(settings).flush_ms) == (10000, 1000)
    assert logs(settings).cleanup_policy == {"compact", "delete"}
    assert settings.zookeeper_connect == "zk1:2181,zk2:2181/kafka"
    assert not settings.stands_alone
    assert settings.groups.initial_rebalance_delay_ms == 0
    assert settings.socket_request_max_bytes == 100 * 1024 * 1024
    assert settings.where("log.dirs") == "server.properties:18"
    assert settings.where("log.retention.ms") == "server.properties:27"
    assert settings.where("message.max.bytes") == "default"


def test_a_file_of_kafka_0_7_is_understood(tmp_path: Path) -> None:
    loaded = load(tmp_path, KAFKA_0_7)
    settings = loaded.settings
    assert settings.broker_id == 7
    assert settings.listeners == (Listener("PLAINTEXT", "PLAINTEXT", "", 6667),)
    assert settings.advertised_listeners == (Listener("PLAINTEXT", "PLAINTEXT", "broker7.example", 6667),)
    assert (settings.socket_send_buffer_bytes, settings.socket_receive_buffer_bytes) == (1048576, 1048575)
    assert (settings.socket_request_max_bytes, logs(settings).max_message_bytes) == (104857601, 2000000)
    assert settings.log_dirs == ("/var/kafka",)
    assert (logs(settings).flush_messages, logs(settings).flush_ms) == (500, 2000)
    assert (logs(settings).retention_ms, logs(settings).retention_bytes) == (24 * HOUR_MS, 1_000_000_000)
    assert (logs(settings).segment_bytes, logs(settings).segment_ms) == (536870912, 12 * HOUR_MS)
    assert settings.log_retention_check_interval_ms == 5 * MINUTE_MS
    assert settings.zookeeper_connect == "localhost:2181"
    assert settings.zookeeper_connection_timeout_ms == 1_000_000
    assert settings.where("broker.id") == "server.properties:2"
    assert [notice.name for notice in loaded.notices] == ["monitoring.period.secs", "log.flush.scheduler.interval.ms"]


def test_settings_of_single_topics_in_0_7_become_presets(tmp_path: Path) -> None:
    settings = load(tmp_path, KAFKA_0_7).settings
    clicks = settings.preset("clicks")
    assert clicks.partitions == 8
    assert clicks.settings == {
        "segment.bytes": "1048576", "retention.ms": str(HOUR_MS), "retention.bytes": "5000000", "flush.ms": "100",
    }  # fmt: skip
    assert settings.preset("views").settings == {"retention.ms": str(2 * HOUR_MS), "segment.ms": str(6 * HOUR_MS)}
    assert settings.preset("others").partitions is None
    assert settings.preset("others").settings == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("topic.partition.count.map=clicks", "name:number"),
        ("topic.partition.count.map=clicks:0", "at least 1"),
        ("topic.partition.count.map=cl icks:1", "topic name"),
        ("topic.log.file.size=clicks:1", "as segment.bytes"),
        ("topic.log.roll.hours=clicks:x", "name:number"),
        ("log.cleanup.interval.mins=ten", "not an integer"),
        ("log.cleanup.interval.mins=0", "log.cleanup.interval.mins (older name of log.retention.check.interval.ms)"),
        ("brokerid=seven", "brokerid (older name of broker.id)"),
        ("enable.zookeeper=no", "true or false"),
        ("port=http", "port (older names for listeners)"),
        ("port=70000", "0 to 65535"),
        ("hostname=0.0.0.0", "cannot be advertised"),
    ],
)
def test_a_bad_value_of_an_old_name_is_rejected_by_that_name(tmp_path: Path, line: str, words: str) -> None:
    (problem,) = rejected(tmp_path, f"\n{line}\n")
    assert problem.startswith(f"server.properties:2: {line.split('=', maxsplit=1)[0]}")
    assert words in problem


def test_zookeeper_can_be_switched_off_in_the_way_of_0_7(tmp_path: Path) -> None:
    assert load(tmp_path, "zk.connect=a:2181\nenable.zookeeper=false").settings.stands_alone


def test_the_address_names_of_0_8_are_understood(tmp_path: Path) -> None:
    settings = load(tmp_path, "host.name=10.0.0.5\nport=7000\nadvertised.port=7001").settings
    assert [str(each) for each in settings.listeners] == ["PLAINTEXT://10.0.0.5:7000"]
    assert [str(each) for each in settings.advertised_listeners] == ["PLAINTEXT://10.0.0.5:7001"]
    settings = load(tmp_path, "advertised.host.name=fe80::1\nlisteners=PLAINTEXT://:7000").settings
    assert [str(each) for each in settings.advertised_listeners] == ["PLAINTEXT://[fe80::1]:7000"]
    settings = load(tmp_path, "hostname=\nport=7000").settings
    assert [str(each) for each in settings.advertised_listeners] == ["PLAINTEXT://machine:7000"]


def test_the_current_name_applies_beside_an_old_one(tmp_path: Path) -> None:
    loaded = load(tmp_path, "brokerid=1\nbroker.id=2\n")
    assert loaded.settings.broker_id == 2
    (notice,) = loaded.notices
    assert str(notice) == (
        "server.properties:1: brokerid: older name of broker.id, which is also set (server.properties:2) and applies"
    )


# --- errors


def test_all_problems_of_a_file_are_reported_together(tmp_path: Path) -> None:
    problems = rejected(
        tmp_path,
        "num.partitions=0\nlog.dirs=\\u12\nlog.segment.bytes=1 GiB\nlisteners=nowhere\nlog.dirs=/a,/a\n"
        "replica.fetch.wait.max.ms=50000\nmax.connections.per.ip.overrides=x\n",
        "fetch.max.bytes=-1",
        "no assignment",
    )
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["server.properties:2", "log.dirs"],
        ["--set", "'no assignment' is not name=value"],
        ["server.properties:1", "num.partitions"],
        ["server.properties:3", "log.segment.bytes"],
        ["--set", "fetch.max.bytes"],
        ["server.properties:7", "max.connections.per.ip.overrides"],
        ["server.properties:4", "listeners"],
        ["server.properties:5", "log.dirs"],
        ["server.properties:6", "replica.fetch.wait.max.ms"],
        ["server.properties:6", "replica.fetch.wait.max.ms"],
    ]


def test_an_error_names_setting_value_type_and_range(tmp_path: Path) -> None:
    assert rejected(tmp_path, "num.partitions=0") == [
        "server.properties:1: num.partitions: '0' is not allowed: expected an int (32-bit integer), at least 1"
    ]
    assert rejected(tmp_path, "log.cleaner.min.cleanable.ratio=1.5") == [
        "server.properties:1: log.cleaner.min.cleanable.ratio: '1.5' is not allowed: expected a double (decimal "
        "number), 0 to 1"
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("broker.id=-2", "at least -1"),
        ("broker.id=1\nnode.id=2", "differs from node.id"),
        ("broker.id=1001\nzookeeper.connect=a:1", "reserved.broker.max.id"),
        ("broker.id.generation.enable=false\nzookeeper.connect=a:1", "must be set"),
        ("log.dirs=", "at least one folder"),
        ("log.dirs=/a,,/b", "at least one folder"),
        ("log.dirs=/a\\u0007", "control characters"),
        ("log.dirs=/a/,/a", "a folder twice"),
        ("log.retention.ms=0", "not 0"),
        ("log.retention.hours=0", "not 0"),
        ("log.roll.hours=0", "at least 1"),
        ("log.flush.interval.messages=0", "at least 1"),
        ("log.cleanup.policy=compress", "compact, delete"),
        ("compression.type=rar", "one of uncompressed"),
        ("log.message.timestamp.type=createtime", "CreateTime, LogAppendTime"),
        ("max.connections.per.ip=0", "rejects all connections"),
        ("max.connections.per.ip.overrides=10.0.0.1:-1", "at least 0"),
        ("queued.max.request.bytes=1000", "socket.request.max.bytes"),
        ("replica.lag.time.max.ms=100", "replica.lag.time.max.ms, which is 100"),
        ("log.cleaner.min.compaction.lag.ms=10\nlog.cleaner.max.compaction.lag.ms=5", "10 must not be larger"),
        ("group.min.session.timeout.ms=9\ngroup.max.session.timeout.ms=8", "9 must not be larger"),
        ("offsets.topic.replication.factor=40000", "16-bit"),
        ("log.cleaner.dedupe.buffer.size=1024", "at least 1048577"),
        ("security.inter.broker.protocol=SSL", "no listener uses it"),
    ],
)
def test_settings_that_cannot_work_are_rejected(tmp_path: Path, text: str, words: str) -> None:
    (problem,) = rejected(tmp_path, text)
    assert words in problem


def test_one_mistake_makes_one_message(tmp_path: Path) -> None:
    (problem,) = rejected(tmp_path, "replica.fetch.wait.max.ms=many\nreplica.lag.time.max.ms=100")
    assert problem.startswith("server.properties:1: replica.fetch.wait.max.ms: 'many'")


def test_a_name_in_capitals_or_misspelt_is_ignored_with_the_nearest_one(tmp_path: Path) -> None:
    loaded = load(tmp_path, "log.retention.hour=1\nNUM.PARTITIONS=8\ncolour=secret\n")
    assert logs(loaded.settings).retention_ms == 168 * HOUR_MS
    assert [str(notice) for notice in loaded.notices] == [
        "server.properties:1: log.retention.hour: unknown setting, ignored; did you mean log.retention.hours?",
        "server.properties:2: NUM.PARTITIONS: unknown setting, ignored; did you mean num.partitions?",
        "server.properties:3: colour: unknown setting, ignored",
    ]


def test_kafka_settings_without_effect_are_not_reported_as_typing_errors(tmp_path: Path) -> None:
    loaded = load(tmp_path, "ssl.provider=hunter2\nreplica.selector.class=A\nprincipal.builder.class=B\n")
    assert [notice.name for notice in loaded.notices] == ["ssl.provider", "principal.builder.class"]
    assert all("effect in Penstock" in notice.text for notice in loaded.notices)
    assert "hunter2" not in f"{loaded}"


def test_a_file_full_of_unknown_names_is_read_soon(tmp_path: Path) -> None:
    loaded = load(tmp_path, "".join(f"unknown.name.{number}=1\n" for number in range(20_000)))
    assert len(loaded.notices) == 20_000


# --- which value counts


def test_a_name_that_is_set_twice_has_its_last_value(tmp_path: Path) -> None:
    loaded = load(tmp_path, "num.partitions=2\nnum.partitions=3\n")
    assert loaded.settings.num_partitions == 3
    assert "was set before (server.properties:1)" in loaded.notices[0].text


@pytest.mark.parametrize(
    ("text", "retention_ms"),
    [
        ("", 168 * HOUR_MS),
        ("log.retention.hours=2", 2 * HOUR_MS),
        ("log.retention.minutes=3\nlog.retention.hours=2", 3 * MINUTE_MS),
        ("log.retention.hours=2\nlog.retention.ms=5\nlog.retention.minutes=3", 5),
        ("log.retention.hours=-1", -1),
        ("log.retention.ms=-7", -1),
    ],
)
def test_the_finest_unit_counts(tmp_path: Path, text: str, retention_ms: int) -> None:
    assert logs(load(tmp_path, text).settings).retention_ms == retention_ms


def test_the_finest_unit_counts_for_rolling_and_flushing_too(tmp_path: Path) -> None:
    settings = load(tmp_path, "log.roll.hours=2\nlog.roll.jitter.hours=1\nlog.flush.scheduler.interval.ms=9").settings
    assert (logs(settings).segment_ms, logs(settings).segment_jitter_ms) == (2 * HOUR_MS, HOUR_MS)
    assert logs(settings).flush_ms == 9
    settings = load(tmp_path, "log.roll.ms=7\nlog.roll.hours=2\nlog.flush.interval.ms=3").settings
    assert (logs(settings).segment_ms, logs(settings).flush_ms) == (7, 3)


def test_an_overridden_value_is_reported(tmp_path: Path) -> None:
    (notice,) = load(tmp_path, "log.retention.hours=2\nlog.retention.ms=5").notices
    assert (
        str(notice)
        == "server.properties:1: log.retention.hours: is overridden by log.retention.ms (server.properties:2)"
    )


def test_the_older_limit_of_timestamps_stands_for_both_newer_ones(tmp_path: Path) -> None:
    settings = load(
        tmp_path, "log.message.timestamp.difference.max.ms=5\nlog.message.timestamp.after.max.ms=7"
    ).settings
    assert logs(settings).message_timestamp_before_max_ms == 5
    assert logs(settings).message_timestamp_after_max_ms == 7
    settings = load(tmp_path, "").settings
    assert logs(settings).message_timestamp_before_max_ms == NEVER
    assert logs(settings).message_timestamp_after_max_ms == HOUR_MS


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "num.partitions=2\nlog.retention.ms=5\nlisteners=PLAINTEXT://:1\nzookeeper.connect=a:1\n",
        "num.partitions = 8",
        "log.retention.hours=1",
        "port=6667",
        "hostname=public.example",
        "zookeeper.connect=",
    )
    settings = loaded.settings
    assert settings.num_partitions == 8
    assert settings.where("num.partitions") == "--set"
    assert logs(settings).retention_ms == HOUR_MS
    assert [str(each) for each in settings.advertised_listeners] == ["PLAINTEXT://public.example:6667"]
    assert settings.stands_alone
    assert loaded.notices == ()


def test_node_id_is_another_name_of_broker_id(tmp_path: Path) -> None:
    assert load(tmp_path, "node.id=5").settings.broker_id == 5
    assert load(tmp_path, "node.id=5\nbroker.id=5").settings.broker_id == 5
    assert load(tmp_path, "").settings.broker_id == -1
    assert load(tmp_path, "").settings.with_broker_id(9).broker_id == 9


def test_without_a_connection_timeout_the_sessions_counts(tmp_path: Path) -> None:
    assert load(tmp_path, "zookeeper.session.timeout.ms=7").settings.zookeeper_connection_timeout_ms == 7


def test_connections_can_be_limited_for_single_addresses(tmp_path: Path) -> None:
    text = "max.connections.per.ip=0\nmax.connections.per.ip.overrides=10.0.0.1:5,::1:7"
    assert load(tmp_path, text).settings.max_connections_per_ip_overrides == {"10.0.0.1": 5, "::1": 7}


def test_settings_from_a_program_have_no_unknown_names() -> None:
    assert settings_from({"brokerid": "4"}, host_name=lambda: "m").broker_id == 4
    with pytest.raises(InvalidSettings, match=r"num\.partition: brokers have no such setting"):
        settings_from({"num.partition": "1"})


# --- changes while running


def test_a_change_makes_new_settings_and_leaves_the_old_ones() -> None:
    old = settings_from({"log.retention.ms": "5"})
    new = old.with_changes({"log.retention.ms": "60000", "max.connections": "10"})
    assert (logs(old).retention_ms, logs(new).retention_ms, new.max_connections) == (5, 60000, 10)
    assert new.where("log.retention.ms") == "changed for this broker"
    assert new.dynamic() == {"log.retention.ms": "60000", "max.connections": "10"}
    assert new.dynamic(cluster_wide=True) == {}
    assert logs(new.with_changes({"log.retention.ms": None})).retention_ms == 5


def test_a_change_of_one_broker_is_stronger_than_one_of_all() -> None:
    settings = settings_from({}).with_changes({"log.segment.bytes": "1000"}, cluster_wide=True)
    assert logs(settings).segment_bytes == 1000
    settings = settings.with_changes({"log.segment.bytes": "2000"})
    assert logs(settings).segment_bytes == 2000
    (deciding, below) = settings.layers.given("log.segment.bytes")
    assert (deciding.source, below.source) == (Source.DYNAMIC_BROKER, Source.DYNAMIC_DEFAULT_BROKER)
    assert logs(settings.with_changes({"log.segment.bytes": None})).segment_bytes == 1000


def test_a_change_of_the_milliseconds_is_stronger_than_hours_in_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, "log.retention.minutes=1").settings.with_changes({"log.retention.ms": "7"})
    assert logs(settings).retention_ms == 7


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("log.dirs", "/b", "cannot be changed while the broker runs"),
        ("log.dirs", None, "cannot be changed while the broker runs"),
        ("message.max.bytes", "big", "an int"),
        ("log.retention.ms", "0", "not 0"),
        ("max.connections.per.ip", "0", "rejects all connections"),
        ("log.cleaner.min.compaction.lag.ms", str(NEVER + 1), "64-bit"),
    ],
)
def test_an_invalid_change_is_rejected(name: str, value: str | None, words: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings_from({}).with_changes({name: value})
    (problem,) = caught.value.problems
    assert problem.name == name
    assert words in problem.reason


def test_a_hostile_number_of_changes_is_answered_with_some_problems() -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings_from({}).with_changes(dict.fromkeys(BROKER_DEFINITIONS, "?"))
    assert len(caught.value.problems) == 20
