"""A topic's own settings, the broker's behind them, and how both are described."""

from __future__ import annotations

import pytest

from penstock.broker.dynamic_config import SettingsRules
from penstock.broker.settings import (
    BrokerSettings,
    ConfigType,
    InvalidSettings,
    Row,
    Source,
    Synonym,
    check_topic_setting,
    check_topic_settings,
    describe_all_brokers,
    describe_broker,
    describe_topic,
    log_settings,
    settings_from,
    sound_overrides,
    topic_settings,
)
from penstock.broker.settings.catalogue import BROKER_DEFINITIONS, TOPIC_DEFINITIONS
from penstock.cluster.controller.configs import ResourceKind
from penstock.config_def import HOUR_MS
from penstock.log.settings import LogSettings
from penstock.records import Codec


def broker(**values: str) -> BrokerSettings:
    return settings_from({name.replace("_", "."): value for name, value in values.items()}, host_name=lambda: "m")


# --- values


@pytest.mark.parametrize(
    ("of_broker", "of_topic", "syncs"),
    [
        ({}, {}, True),
        ({}, {"flush.messages": "9223372036854775807"}, False),
        ({}, {"flush.ms": "1000"}, False),
        ({"log_flush_interval_messages": "100"}, {}, False),
        ({"log_flush_interval_ms": "100"}, {"retention.ms": "5"}, False),
        ({"log_retention_ms": "100"}, {"segment.ms": "5"}, True),
    ],
)
def test_acks_all_waits_for_the_disk_unless_a_flush_policy_is_set(
    of_broker: dict[str, str], of_topic: dict[str, str], syncs: bool
) -> None:
    assert log_settings(broker(**of_broker), of_topic).sync_before_ack is syncs


def test_a_topic_without_settings_on_a_broker_without_settings_has_the_logs_defaults() -> None:
    assert log_settings(broker(), {}) == LogSettings()


def test_a_topic_without_settings_has_the_brokers() -> None:
    settings = log_settings(
        broker(
            log_segment_bytes="1000", log_roll_hours="2", log_index_size_max_bytes="800", log_index_interval_bytes="10",
            log_flush_interval_messages="3", log_flush_interval_ms="4", log_retention_hours="5",
            log_retention_bytes="6000", log_cleanup_policy="compact", log_segment_delete_delay_ms="7",
            log_cleaner_delete_retention_ms="8", log_cleaner_min_compaction_lag_ms="9",
            log_cleaner_max_compaction_lag_ms="10", log_cleaner_min_cleanable_ratio="0.25", message_max_bytes="11",
            log_message_timestamp_type="LogAppendTime", log_message_timestamp_before_max_ms="12",
            log_message_timestamp_after_max_ms="13", producer_id_expiration_ms="14",
        ),
        {},
    )  # fmt: skip
    assert settings == LogSettings(
        segment_bytes=1000, segment_ms=2 * HOUR_MS, segment_index_bytes=800, index_interval_bytes=10, flush_messages=3,
        flush_ms=4, retention_ms=5 * HOUR_MS, retention_bytes=6000, cleanup_policy=frozenset({"compact"}),
        file_delete_delay_ms=7, delete_retention_ms=8, min_compaction_lag_ms=9, max_compaction_lag_ms=10,
        min_cleanable_dirty_ratio=0.25, max_message_bytes=11, message_timestamp_append_time=True,
        message_timestamp_before_max_ms=12, message_timestamp_after_max_ms=13, producer_id_expiration_ms=14,
        sync_before_ack=False,
    )  # fmt: skip


def test_a_topics_own_settings_are_stronger() -> None:
    own = {
        "segment.bytes": "2000", "segment.ms": "20", "segment.index.bytes": "900", "index.interval.bytes": "30",
        "flush.messages": "40", "flush.ms": "50", "retention.ms": "60", "retention.bytes": "70",
        "cleanup.policy": "delete,compact", "file.delete.delay.ms": "80", "delete.retention.ms": "90",
        "min.compaction.lag.ms": "100", "max.compaction.lag.ms": "110", "min.cleanable.dirty.ratio": "1",
        "max.message.bytes": "120", "message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "130",
        "message.timestamp.after.max.ms": "140",
    }  # fmt: skip
    assert log_settings(broker(log_segment_bytes="1000", log_retention_ms="1"), own) == LogSettings(
        segment_bytes=2000, segment_ms=20, segment_index_bytes=900, index_interval_bytes=30, flush_messages=40,
        flush_ms=50, retention_ms=60, retention_bytes=70, cleanup_policy=frozenset({"compact", "delete"}),
        file_delete_delay_ms=80, delete_retention_ms=90, min_compaction_lag_ms=100, max_compaction_lag_ms=110,
        min_cleanable_dirty_ratio=1.0, max_message_bytes=120, message_timestamp_append_time=True,
        message_timestamp_before_max_ms=130, message_timestamp_after_max_ms=140, sync_before_ack=False,
    )  # fmt: skip


def test_what_a_broker_needs_beyond_the_log_is_there_too() -> None:
    settings = topic_settings(
        broker(min_insync_replicas="2", compression_type="lz4"),
        {"unclean.leader.election.enable": "true", "leader.replication.throttled.replicas": "0:1,1:2"},
    )
    assert settings.min_insync_replicas == 2
    assert settings.unclean_leader_election_enable
    assert (settings.compression_type, settings.compression_level) == ("lz4", 9)
    assert settings.leader_throttled_replicas == ("0:1", "1:2")
    assert settings.message_downconversion_enable
    assert topic_settings(broker(), {}).compression_level is None


def test_unlimited_retention_has_one_form() -> None:
    assert log_settings(broker(log_retention_ms="-5", log_retention_bytes="-9"), {}).retention_ms == -1
    assert log_settings(broker(log_retention_bytes="-9"), {}).retention_bytes == -1
    assert log_settings(broker(), {"retention.ms": "-1", "retention.bytes": "-9"}).retention_bytes == -1


def test_a_log_learns_of_jitter_from_its_topic_or_the_broker() -> None:
    own = {"segment.ms": "1000", "segment.jitter.ms": "200"}
    settings = log_settings(broker(), own)
    assert (settings.segment_ms, settings.segment_jitter_ms) == (1000, 200)
    assert log_settings(broker(log_roll_jitter_hours="2"), {}).segment_jitter_ms == 2 * 3_600_000
    assert log_settings(broker(), {}).segment_jitter_ms == 0


@pytest.mark.parametrize(
    ("own", "codec", "level"),
    [
        ({}, None, None),
        ({"compression.type": "producer", "compression.gzip.level": "5"}, None, None),
        ({"compression.type": "uncompressed"}, Codec.NONE, None),
        ({"compression.type": "snappy"}, Codec.SNAPPY, None),
        ({"compression.type": "gzip"}, Codec.GZIP, None),
        ({"compression.type": "gzip", "compression.gzip.level": "-1"}, Codec.GZIP, None),
        ({"compression.type": "gzip", "compression.gzip.level": "9"}, Codec.GZIP, 9),
        ({"compression.type": "lz4"}, Codec.LZ4, None),
        ({"compression.type": "lz4", "compression.lz4.level": "17"}, Codec.LZ4, 17),
        ({"compression.type": "zstd", "compression.lz4.level": "17"}, Codec.ZSTD, None),
        ({"compression.type": "zstd", "compression.zstd.level": "-5"}, Codec.ZSTD, -5),
    ],
)
def test_a_log_gets_the_codec_and_its_level(own: dict[str, str], codec: Codec | None, level: int | None) -> None:
    settings = log_settings(broker(), own)
    assert (settings.compression_codec, settings.compression_level) == (codec, level)


# As Kafka's own validators have it: exact words, and the bounds of each codec's levels.
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        (
            "compression.type",
            ["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer", " gzip "],
            ["none", "GZIP", "", "gzip,lz4"],
        ),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10", "-2", "fast"]),
        ("compression.lz4.level", ["1", "17"], ["0", "18", "-1"]),
        ("compression.zstd.level", ["-131072", "0", "22"], ["-131073", "23"]),
    ],
)
def test_compression_settings_are_validated_as_in_kafka(name: str, right: list[str], wrong: list[str]) -> None:
    rules = SettingsRules()
    for kind in ResourceKind:
        assert [value for value in right if rules.problem(kind, name, value)] == []
        assert [value for value in wrong if not rules.problem(kind, name, value)] == []


def test_the_older_limit_of_timestamps_counts_where_the_topic_has_no_newer_one() -> None:
    own = {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "6"}
    settings = log_settings(broker(log_message_timestamp_before_max_ms="9"), own)
    assert (settings.message_timestamp_before_max_ms, settings.message_timestamp_after_max_ms) == (5, 6)


def test_invalid_settings_are_rejected_together() -> None:
    with pytest.raises(InvalidSettings) as caught:
        log_settings(broker(), {"retention.ms": "soon", "no.such": "1", "segment.bytes": "13"})
    assert {problem.name for problem in caught.value.problems} == {"retention.ms", "no.such", "segment.bytes"}


def test_a_change_of_the_broker_reaches_topics_without_their_own() -> None:
    changed = broker().with_changes({"log.retention.ms": "77"})
    assert log_settings(changed, {}).retention_ms == 77
    assert log_settings(changed, {"retention.ms": "5"}).retention_ms == 5


# --- checks


@pytest.mark.parametrize("name", TOPIC_DEFINITIONS)
def test_every_setting_of_a_topic_takes_its_own_default(name: str) -> None:
    (row,) = describe_topic(broker(), {}, [name])
    assert check_topic_setting(name, row.value) is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "", "a long"),
        ("retention.ms", None, "a value is missing"),
        ("segment.bytes", "13", "at least 14"),
        ("segment.bytes", "99999999999", "32-bit"),
        ("segment.ms", "0", "at least 1"),
        ("flush.messages", "0", "at least 1"),
        ("cleanup.policy", "compact,remove", "compact, delete"),
        ("compression.type", "brotli", "producer"),
        ("compression.gzip.level", "0", "1 to 9, or -1"),
        ("min.cleanable.dirty.ratio", "2", "0 to 1"),
        ("min.insync.replicas", "0", "at least 1"),
        ("unclean.leader.election.enable", "maybe", "true or false"),
        ("message.timestamp.type", "now", "CreateTime"),
        ("leader.replication.throttled.replicas", "0-1", "partition:broker"),
        ("remote.storage.enable", "true", "one of false"),
        ("log.retention.ms", "1", "did you mean retention.ms?"),
        ("log.retention.hours", "1", "did you mean retention.ms?"),
        ("retention.sm", "1", "did you mean retention.ms?"),
        ("x\n" * 1000, "1", "topics have no such setting"),
    ],
)
def test_a_setting_that_a_topic_cannot_have_is_rejected_with_the_reason(
    name: str, value: str | None, words: str
) -> None:
    reason = check_topic_setting(name, value)
    assert reason is not None
    assert words in reason
    assert reason.isprintable()
    assert len(reason) < 500
    assert check_topic_settings(broker(), {name: value}) == [reason]


def test_settings_are_also_checked_together_and_with_the_brokers() -> None:
    assert check_topic_settings(broker(), {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"}) == []
    (reason,) = check_topic_settings(broker(log_cleaner_max_compaction_lag_ms="5"), {"min.compaction.lag.ms": "10"})
    assert "10 must not be larger than max.compaction.lag.ms, which is 5" in reason


def test_a_hostile_number_of_settings_is_answered_with_some_reasons() -> None:
    assert len(check_topic_settings(broker(), {f"unknown.{number}": "1" for number in range(100_000)})) == 20


def test_settings_of_another_version_are_ignored() -> None:
    sound, reasons = sound_overrides({"retention.ms": "5", "from.the.future": "1", "segment.bytes": "x"})
    assert sound == {"retention.ms": "5"}
    assert len(reasons) == 2
    assert log_settings(broker(), sound).retention_ms == 5


# --- descriptions


def one(rows: list[Row]) -> Row:
    (row,) = rows
    return row


def test_a_topics_own_value_is_described_with_all_that_is_behind_it() -> None:
    settings = broker(log_retention_hours="2").with_changes({"log.retention.ms": "99"}, cluster_wide=True)
    row = one(describe_topic(settings, {"retention.ms": " 7 "}, ["retention.ms"]))
    assert (row.value, row.source, row.is_default, row.read_only) == ("7", Source.TOPIC, False, False)
    assert row.type is ConfigType.LONG
    assert row.documentation == "How long records are kept, in milliseconds; -1 keeps them forever."
    assert row.synonyms == (
        Synonym("retention.ms", "7", Source.TOPIC),
        Synonym("log.retention.ms", "99", Source.DYNAMIC_DEFAULT_BROKER),
        Synonym("log.retention.hours", "2", Source.STATIC_BROKER),
        Synonym("log.retention.hours", "168", Source.DEFAULT),
    )


def test_a_topic_without_its_own_shows_the_brokers_value_or_the_default() -> None:
    row = one(describe_topic(broker(log_roll_hours="1"), {}, ["segment.ms"]))
    assert (row.value, row.source, row.is_default) == (str(HOUR_MS), Source.STATIC_BROKER, False)
    row = one(describe_topic(broker(), {}, ["segment.ms"]))
    assert (row.value, row.source, row.is_default) == (str(168 * HOUR_MS), Source.DEFAULT, True)


def test_an_older_name_of_a_topics_setting_shows_in_the_newer_ones() -> None:
    rows = describe_topic(broker(), {"message.timestamp.difference.max.ms": "5"}, ["message.timestamp.after.max.ms"])
    assert (one(rows).value, one(rows).source) == ("5", Source.TOPIC)
    assert one(rows).synonyms[0].name == "message.timestamp.difference.max.ms"


def test_all_settings_are_described_unless_some_are_named() -> None:
    assert [row.name for row in describe_topic(broker(), {})] == sorted(TOPIC_DEFINITIONS)
    assert [row.name for row in describe_broker(broker())] == sorted(BROKER_DEFINITIONS)
    assert describe_topic(broker(), {}, []) == []
    assert [row.name for row in describe_broker(broker(), ["num.partitions", "no.such"])] == ["num.partitions"]


def test_defaults_of_topics_are_shown_as_kafka_shows_them() -> None:
    shown = {row.name: row.value for row in describe_topic(broker(), {})}
    assert shown["cleanup.policy"] == "delete"
    assert shown["flush.messages"] == "9223372036854775807"
    assert shown["min.cleanable.dirty.ratio"] == "0.5"
    assert shown["preallocate"] == "false"
    assert shown["leader.replication.throttled.replicas"] == ""
    assert shown["max.message.bytes"] == "1048588"


def test_broker_settings_report_their_source() -> None:
    settings = broker(num_partitions="4", message_max_bytes="100").with_changes({"message.max.bytes": "200"})
    row = one(describe_broker(settings, ["message.max.bytes"]))
    assert (row.value, row.source, row.read_only) == ("200", Source.DYNAMIC_BROKER, False)
    assert [(each.value, each.source) for each in row.synonyms] == [
        ("200", Source.DYNAMIC_BROKER),
        ("100", Source.STATIC_BROKER),
        ("1048588", Source.DEFAULT),
    ]
    row = one(describe_broker(settings, ["num.partitions"]))
    assert (row.value, row.source, row.read_only) == ("4", Source.STATIC_BROKER, True)
    row = one(describe_broker(settings, ["log.cleaner.io.max.bytes.per.second"]))
    assert (row.value, row.is_default) == ("1.7976931348623157E308", True)


def test_a_unit_that_was_not_used_has_no_value_and_no_synonyms_as_in_kafkas_answers() -> None:
    settings = broker(log_retention_hours="2")
    row = one(describe_broker(settings, ["log.retention.ms"]))
    assert (row.value, row.source, row.synonyms) == (None, Source.DEFAULT, ())
    row = one(describe_broker(settings, ["log.retention.hours"]))
    assert (row.value, row.source) == ("2", Source.STATIC_BROKER)
    # The topic's value comes from there, and says so.
    row = one(describe_topic(settings, {}, ["retention.ms"]))
    assert (row.value, row.source, row.synonyms) == ("7200000", Source.STATIC_BROKER, ())
    changed = settings.with_changes({"log.retention.ms": "7"})
    row = one(describe_topic(changed, {}, ["retention.ms"]))
    assert row.synonyms == (
        Synonym("log.retention.ms", "7", Source.DYNAMIC_BROKER),
        Synonym("log.retention.hours", "2", Source.STATIC_BROKER),
        Synonym("log.retention.hours", "168", Source.DEFAULT),
    )


def test_a_number_that_the_broker_was_given_is_described() -> None:
    rows = describe_broker(broker().with_broker_id(1001), ["broker.id", "node.id"])
    assert [row.value for row in rows] == ["1001", "1001"]


def test_a_secret_has_no_value_in_any_row() -> None:
    settings = broker(password_encoder_secret="hunter2")
    row = one(describe_broker(settings, ["password.encoder.secret"]))
    assert row.is_sensitive
    assert row.value is None
    assert [each.value for each in row.synonyms] == [None]
    assert "hunter2" not in repr(describe_broker(settings))
    assert "hunter2" not in repr(settings)


def test_all_brokers_have_only_what_was_changed_for_all() -> None:
    settings = broker(log_segment_bytes="100").with_changes({"log.segment.bytes": "1000"}, cluster_wide=True)
    settings = settings.with_changes({"log.segment.bytes": "2000", "max.connections": "5"})
    row = one(describe_all_brokers(settings))
    assert (row.name, row.value, row.source) == ("log.segment.bytes", "1000", Source.DYNAMIC_DEFAULT_BROKER)
    assert describe_all_brokers(settings, ["max.connections"]) == []
