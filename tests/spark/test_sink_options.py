"""Options of a writer: what they become, and what is rejected."""

from __future__ import annotations

import pickle

import pytest

from penstock.client.errors import ConfigError
from penstock.spark.sink import SinkOptions, sink_options

HERE = {"kafka.bootstrap.servers": "broker:9092"}
ONCE = {**HERE, "penstock.delivery": "exactly-once"}


def test_settings_of_the_producer_are_passed_on_with_their_types() -> None:
    found = sink_options(
        {
            **HERE, "topic": "views", "kafka.linger.ms": "20", "kafka.batch.size": "1000", "kafka.acks": "all",
            "kafka.enable.idempotence": "true", "kafka.compression.type": "ZSTD", "kafka.compression.zstd.level": "3",
        }
    )  # fmt: skip
    assert found.topic == "views"
    assert dict(found.producer) == {
        "linger_ms": 20.0, "batch_size": 1000, "acks": "all", "enable_idempotence": True, "compression_type": "zstd",
        "compression_level": 3, "client_id": "penstock-spark-sink",
    }  # fmt: skip


def test_names_count_in_any_case() -> None:
    assert dict(sink_options({**HERE, "Kafka.Linger.Ms": "7"}).producer)["linger_ms"] == 7.0


def test_exactly_once_has_options_of_its_own() -> None:
    found = sink_options({**ONCE, "penstock.ledger.topic": "books", "penstock.transaction.timeout.ms": "60000"})
    assert found.exactly_once is not None
    assert found.exactly_once.ledger.topic == "books"
    assert found.exactly_once.timeout_ms == 60_000
    assert sink_options({**HERE, "penstock.delivery": "At-Least-Once"}) == sink_options(HERE)


def test_settings_that_only_java_has_change_nothing() -> None:
    assert sink_options({**HERE, "kafka.send.buffer.bytes": "1", "kafka.metrics.num.samples": "2"}) == sink_options(
        HERE
    )


def test_options_of_a_reader_do_not_disturb() -> None:
    assert sink_options({**HERE, "includeHeaders": "true", "failOnDataLoss": "false"}) == sink_options(HERE)


def test_options_travel_and_name_a_producer() -> None:
    found = sink_options({**HERE, "topic": "views"})
    again: SinkOptions = pickle.loads(pickle.dumps(found))
    assert again == found
    assert hash(again) == hash(found)


@pytest.mark.parametrize(
    ("given", "problem", "advice"),
    [
        ({}, "kafka.bootstrap.servers is missing", 'Write .option("kafka.bootstrap.servers", "host:9092")'),
        ({**HERE, "topik": "a"}, "unknown option topik", "Did you mean topic?"),
        ({**HERE, "kafka.lingerms": "1"}, "unknown option kafka.lingerms", "Did you mean kafka.linger.ms?"),
        ({**HERE, "kafka.linger.ms": "soon"}, "option kafka.linger.ms is 'soon'", "It must be a number"),
        ({**HERE, "kafka.batch.size": "1.5"}, "option kafka.batch.size is '1.5'", "It must be an integer"),
        ({**HERE, "kafka.enable.idempotence": "yes"}, "is 'yes'", "It must be true or false"),
        ({**HERE, "kafka.acks": "2"}, "acks is '2'", "it can be all, 1, 0"),
        ({**HERE, "kafka.compression.type": "rar"}, "compression_type is 'rar'", "none, gzip, snappy, lz4, zstd"),
        (
            {**HERE, "kafka.value.serializer": "X"},
            "kafka.value.serializer is not supported",
            "Values are written as the column has them",
        ),
        ({**HERE, "kafka.transactional.id": "x"}, "kafka.transactional.id is not supported", "Set penstock.delivery"),
        ({**HERE, "kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism is missing", "Use PLAIN"),
        ({**HERE, "kafka.security.protocol": "TLS"}, "kafka.security.protocol TLS is not supported", "Use PLAINTEXT"),
        ({**HERE, "topic": " "}, "option topic is empty", "Set a topic"),
        (
            {**HERE, "penstock.delivery": "twice"},
            "option penstock.delivery is 'twice'",
            "at-least-once or exactly-once",
        ),
        ({**ONCE, "penstock.transaction.timeout.ms": "9"}, "penstock.transaction.timeout.ms is 9", "At least 10000"),
        ({**ONCE, "penstock.lost.rows": "no"}, "penstock.lost.rows is 'no'", "Use fail or accept"),
        ({**ONCE, "penstock.write.id": " "}, "option penstock.write.id is empty", "Set it, or remove it"),
        ({**ONCE, "kafka.acks": "1"}, "exactly-once delivery: ", "acks"),
        (
            {**HERE, "penstock.ledger.topic": "x"},
            "penstock.ledger.topic has no effect with at-least-once",
            "exactly-once",
        ),
        ({**ONCE, "kafka.transaction.timeout.ms": "1"}, "is not supported", "Set penstock.transaction.timeout.ms"),
    ],
)
def test_invalid_options_are_rejected_in_one_line(given: dict[str, str], problem: str, advice: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        sink_options(given)
    assert problem in rejected.value.message
    assert advice in str(rejected.value)
    assert "\n" not in str(rejected.value)
