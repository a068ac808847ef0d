"""Secrets in options reach the clients of tasks, and nothing that Spark shows or stores."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.security.certificates import write_ca, write_client
from tests.security.secure_broker import PASSWORD, USER, secure_broker

from penstock import Producer
from penstock.security.credentials import format_jaas
from penstock.spark import options as options_module
from penstock.spark.options import REDACTION, plain_secrets, security_of
from penstock.spark.session import settings
from penstock.spark.sink import sink_options
from penstock.spark.source import PenstockDataSource
from penstock.testing.embedded_broker import EmbeddedBroker

_SETTING = "spark.sql.redaction.options.regex"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure")


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[EmbeddedBroker]:
    with secure_broker(folder) as broker:
        yield broker


@pytest.fixture
def redacting(spark: SparkSession) -> Iterator[SparkSession]:
    """With the setting that `penstock.spark.session` adds."""
    spark.dataSource.register(PenstockDataSource)
    spark.conf.set(_SETTING, settings({}, master="local")[_SETTING])
    yield spark
    spark.conf.unset(_SETTING)


def key_and_certificate(folder: Path) -> tuple[str, str]:
    """PEM, apart."""
    text = Path(write_client(folder, USER)).read_text()
    key, mark, chain = text.partition("-----BEGIN CERTIFICATE-----")
    return key, mark + chain


def given(broker: EmbeddedBroker, folder: Path) -> dict[str, str]:
    """Options with every secret as plain text."""
    key, chain = key_and_certificate(folder)
    return {
        "kafka.bootstrap.servers": broker.address_of("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": format_jaas("SCRAM", {"username": USER, "password": PASSWORD}),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": write_ca(folder),
        "kafka.ssl.keystore.key": key,
        "kafka.ssl.keystore.certificate.chain": chain,
    }


def explained(frame: DataFrame) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain(True)
    return printed.getvalue()


@pytest.mark.long
def test_a_query_shows_and_stores_no_secret(
    redacting: SparkSession, secure: EmbeddedBroker, folder: Path, tmp_path: Path
) -> None:
    spark, options = redacting, given(secure, folder)
    body = options["kafka.ssl.keystore.key"].splitlines()[1]
    with Producer(secure.address_of("PLAINTEXT")) as producer:
        producer.send("views", b"one").result(60)
    reading = {**options, "subscribe": "views", "startingOffsets": "earliest"}
    batch = spark.read.format("penstock").options(**reading).load()
    stream = spark.readStream.format("penstock").options(**reading).load()
    plans = explained(batch) + explained(stream)
    assert [row.value for row in batch.select("value").collect()] == [b"one"]
    checkpoint = tmp_path / "checkpoint"
    writer = stream.select("value").writeStream.format("penstock").options(**options).option("topic", "copies")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    batch.select("value").write.format("penstock").options(**options).option("topic", "copies").mode("append").save()
    copies = spark.read.format("penstock").options(**options).option("subscribe", "copies").load()
    assert copies.count() == 2
    files = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    assert len(files) > 2
    assert "kafka.sasl.jaas.config=*********(redacted)" in plans
    for secret in (PASSWORD, body):
        assert secret not in plans
        assert secret not in str(query.lastProgress)
        assert [path for path, content in files.items() if secret.encode() in content] == []


def test_secrets_are_not_in_the_text_of_parsed_options(secure: EmbeddedBroker, folder: Path) -> None:
    options = given(secure, folder)
    assert PASSWORD not in repr(sink_options({**options, "topic": "views"}))
    assert PASSWORD not in repr(security_of(options))


def test_plain_secrets_are_warned_of_once_and_references_are_not(caplog: pytest.LogCaptureFixture) -> None:
    options_module._warn_of.cache_clear()
    plain = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": format_jaas("PLAIN", {"username": "a", "password": "hunter2"}),
        "kafka.ssl.keystore.password": "hunter2",
    }
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        security_of(plain)
        security_of(plain)
    assert len(caplog.records) == 2
    assert "file:/path" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "is_plain"),
    [
        ("sasl.jaas.config", format_jaas("PLAIN", {"username": "a", "password": "env:SECRET"}), False),
        ("sasl.jaas.config", format_jaas("PLAIN", {"username": "a", "password": "file:/run/secret"}), False),
        ("sasl.jaas.config", "x.OAuthBearerLoginModule required clientId=a clientSecret=hunter2;", True),
        ("sasl.jaas.config", "x.OAuthBearerLoginModule required clientId=a clientSecret='env:SECRET';", False),
        ("sasl.jaas.config", "file:/run/jaas", False),
        ("ssl.key.password", "env:SECRET", False),
        ("ssl.key.password", "hunter2", True),
        ("ssl.keystore.key", "-----BEGIN PRIVATE KEY-----", True),
        ("ssl.truststore.location", "/etc/ca.pem", False),
    ],
)
def test_what_is_a_plain_secret(name: str, value: str, is_plain: bool) -> None:
    assert plain_secrets({name: value}) == ([name] if is_plain else [])


def test_sessions_redact_what_spark_does_not_know() -> None:
    assert settings({}, master="local")[_SETTING] == REDACTION
    assert settings({_SETTING: "mine"}, master="local")[_SETTING] == "mine"
