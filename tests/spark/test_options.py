"""Options: names, precedence, rejected values, each error in one line."""

from __future__ import annotations

import pytest

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import ConfigError
from penstock.spark.connections import client_security
from penstock.spark.errors import UnknownOption
from penstock.spark.options import (
    EARLIEST,
    LATEST,
    AtEnd,
    AtOffsets,
    AtTimes,
    ReaderOptions,
    SourceOptions,
    check_sink_names,
    parse_source,
)

BASE = {"kafka.bootstrap.servers": "host:9092", "subscribe": "views"}


def parsed(streaming: bool = True, /, **more: str | None) -> SourceOptions:
    given = {**BASE, **{name.replace("__", "."): value for name, value in more.items()}}
    return parse_source({name: value for name, value in given.items() if value is not None}, streaming=streaming)


def rejection(streaming: bool = True, /, **more: str | None) -> str:
    with pytest.raises(ConfigError) as raised:
        parsed(streaming, **more)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_stream_begins_at_the_end_and_a_batch_at_the_beginning() -> None:
    assert parsed().starting == AtEnd(LATEST)
    assert parsed(False).starting == AtEnd(EARLIEST)
    assert parsed(False).ending == AtEnd(LATEST)


def test_names_are_known_whatever_their_case() -> None:
    assert parsed(STARTINGOFFSETS="Earliest", startingoffsets=None).starting == AtEnd(EARLIEST)
    assert parsed(includeheaders="TRUE").reader.include_headers


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failondataloss_", "failOnDataLoss"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.isolation.levle", "kafka.isolation.level"),
        ("penstock.decoed", "penstock.decode"),
        ("subscribePatern", "subscribePattern"),
    ],
)
def test_an_unknown_option_is_rejected_with_the_nearest_known_one(wrong: str, right: str) -> None:
    with pytest.raises(UnknownOption, match=f"Did you mean {right}\\?"):
        parse_source({**BASE, wrong: "1"}, streaming=True)


def test_an_option_like_no_other_is_rejected_without_a_guess() -> None:
    with pytest.raises(UnknownOption, match="unknown option zzzzzz"):
        parse_source({**BASE, "zzzzzz": "1"}, streaming=True)


def test_settings_of_the_java_consumer_come_along() -> None:
    found = parsed(
        kafka__max__poll__records="5", kafka__request__timeout__ms="700", kafka__max__partition__fetch__bytes="5000"
    )
    assert found.reader.request_timeout_ms == 700
    assert found.reader.fetch_bytes == 5000


@pytest.mark.parametrize(
    "name",
    ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"],
)
def test_what_the_stock_connector_rejects_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option kafka.{name} is not supported"):
        parse_source({**BASE, f"kafka.{name}": "x"}, streaming=True)


def test_exactly_one_way_to_choose_topics() -> None:
    assert "none is set" in rejection(subscribe=None)
    assert "subscribe and subscribePattern are set" in rejection(subscribePattern="v.*")
    assert "names no topic" in rejection(subscribe=" , ")
    assert "not a valid regular expression" in rejection(subscribe=None, subscribePattern="(")
    assert "it is not valid JSON" in rejection(subscribe=None, assign="views")
    assert "not a list of numbers" in rejection(subscribe=None, assign='{"views": [-1]}')
    assigned = parsed(subscribe=None, assign='{"views": [0, 2]}').topics
    assert assigned.partitions == {TopicPartition("views", 0), TopicPartition("views", 2)}
    assert parsed(subscribe="a, b,a").topics.names == ("a", "b")


def test_a_pattern_must_match_the_whole_name() -> None:
    topics = parsed(subscribe=None, subscribePattern="view").topics
    assert topics.takes("view")
    assert not topics.takes("views")


def test_the_addresses_of_brokers_are_required() -> None:
    assert "kafka.bootstrap.servers is missing" in rejection(kafka__bootstrap__servers=None)


def test_one_time_goes_before_times_and_times_before_offsets() -> None:
    times, offsets = '{"views": {"0": 5}}', '{"views": {"0": 7}}'
    assert parsed(startingTimestamp="9", startingOffsetsByTimestamp=times, startingOffsets=offsets).starting == AtTimes(
        9, {}
    )
    assert parsed(startingOffsetsByTimestamp=times, startingOffsets=offsets).starting == AtTimes(
        None, {TopicPartition("views", 0): 5}
    )
    assert parsed(startingOffsets=offsets).starting == AtOffsets({TopicPartition("views", 0): 7})


def test_a_time_after_the_last_record_can_mean_the_end() -> None:
    found = parsed(startingTimestamp="9", startingOffsetsByTimestampStrategy="latest").starting
    assert isinstance(found, AtTimes)
    assert found.or_latest
    assert "it can be error or latest" in rejection(startingOffsetsByTimestampStrategy="earliest")


def test_a_batch_can_neither_begin_at_the_end_nor_end_at_the_beginning() -> None:
    assert "cannot be latest" in rejection(False, startingOffsets="latest")
    assert "cannot be latest" in rejection(False, startingOffsets='{"views": {"0": -1}}')
    assert "cannot be earliest" in rejection(False, endingOffsets="earliest")
    assert "cannot be earliest" in rejection(False, endingOffsets='{"views": {"0": -2}}')


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert "for batch queries" in rejection(True, **{name: "latest"})


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"views": 3}', '{"views": {"x": 3}}', '{"views": {"0": "3"}}', '{"views": {"0": -3}}']
)
def test_invalid_offsets_are_rejected_with_an_example(text: str) -> None:
    assert '{"views": {"0": 23, "1": -2}}' in rejection(startingOffsets=text)


@pytest.mark.parametrize(
    "name", ["minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "kafkaConsumer__pollTimeoutMs"]
)
@pytest.mark.parametrize("value", ["0", "-4", "many", "1.5", ""])
def test_counts_must_be_whole_and_positive(name: str, value: str) -> None:
    assert "an integer >=" in rejection(**{name: value})


def test_flags_are_true_or_false() -> None:
    assert "true or false" in rejection(failOnDataLoss="yes")
    assert not parsed(failOnDataLoss="false").reader.fail_on_data_loss
    assert not parsed(visibleLag="false").visible_lag


def test_the_least_may_not_exceed_the_most() -> None:
    assert "larger than" in rejection(minOffsetsPerTrigger="11", maxOffsetsPerTrigger="10")


def test_a_delay_is_written_as_spark_writes_times() -> None:
    assert parsed(maxTriggerDelay="30s").limits.max_delay_ms == 30_000
    assert parsed(maxTriggerDelay="2m").limits.max_delay_ms == 120_000
    assert parsed(maxTriggerDelay="70").limits.max_delay_ms == 70
    assert parsed().limits.max_delay_ms == 15 * 60 * 1000
    assert "30s" in rejection(maxTriggerDelay="soon")


def test_tls_and_sasl_settings_go_to_the_clients_of_tasks_and_are_not_shown() -> None:
    assert parsed().reader.security is None
    security = parsed(
        kafka__security__protocol="sasl_ssl",
        kafka__ssl__truststore__location="/ca.pem",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        kafka__sasl__jaas__config="hunter2",
    ).reader.security
    assert security is not None
    assert dict(security.settings) == {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": "/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "hunter2",
    }
    assert "hunter2" not in repr(security)
    assert client_security(security) == {
        "security_protocol": "SASL_SSL",
        "ssl_truststore_location": "/ca.pem",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_jaas_config": "hunter2",
    }
    assert "Use PLAINTEXT, SSL" in rejection(kafka__security__protocol="TLS")
    assert "kafka.sasl.mechanism is missing" in rejection(kafka__security__protocol="SASL_SSL")
    assert "PEM" in rejection(kafka__security__protocol="SSL", kafka__ssl__truststore__type="JKS")


def test_readers_of_one_cluster_share_a_connection_whatever_else_they_want() -> None:
    one, other = ReaderOptions(include_headers=True, batch_rows=5), ReaderOptions(fail_on_data_loss=False)
    assert one.connection_options() == other.connection_options()
    assert one.connection_options() != ReaderOptions(client_id="mine").connection_options()


def test_writers_have_names_of_their_own() -> None:
    check_sink_names({**BASE, "topic": "views", "kafka.linger.ms": "5", "checkpointLocation": "/x"})
    with pytest.raises(UnknownOption, match=r"Did you mean kafka\.linger\.ms\?"):
        check_sink_names({"kafka.linger": "5"})
