"""Options of a writer: what they become, and what is refused."""

from __future__ import annotations

import pickle

import pytest

from penstock.client.errors import ConfigError
from penstock.spark.sink import SinkOptions, sink_options

HERE = {"kafka.bootstrap.servers": "broker:9092"}


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
        ({**HERE, "kafka.transactional.id": "x"}, "kafka.transactional.id is not supported", "at least once"),
        ({**HERE, "kafka.security.protocol": "SASL_SSL"}, "SASL_SSL is not supported", "Use PLAINTEXT or SSL"),
        ({**HERE, "topic": " "}, "option topic is empty", "Set a topic"),
    ],
)
def test_invalid_options_are_rejected_in_one_line(given: dict[str, str], problem: str, advice: str) -> None:
    with pytest.raises(ConfigError) as refused:
        sink_options(given)
    assert problem in refused.value.message
    assert advice in str(refused.value)
    assert "\n" not in str(refused.value)
