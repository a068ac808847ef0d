"""Other people's clients with TLS, certificates, each SASL mechanism, wrong credentials and expired tokens."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from aiokafka.errors import KafkaError as AioError
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.client.producer.reading import stored_values
from tests.compatibility.client_stories import unique
from tests.security.certificates import WRONG_CERTIFICATES, write_ca, write_client, wrong_certificates
from tests.security.secure_broker import PASSWORD, USER, secure_broker
from tests.security.tokens import token
from tests.timeouts import PATIENCE_S

from penstock.security.tls import client_context
from penstock.testing.embedded_broker import EmbeddedBroker

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WAYS = [
    ("SSL", ""),
    ("MTLS", ""),
    *((listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS),
]
# kafka-python leaves the sockets of lost connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
# Of a token, and so of a session.
LIFETIME_S = 3
LOGINS = 5
CONTENT = [b"record %d" % number for number in range(200)] + [b"x" * 900_000]


@pytest.fixture(autouse=True)
def left_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """They are collected here, where nobody minds, and not in a later test."""
    yield
    if "kafka_python" in request.node.name:
        gc.collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure")


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[EmbeddedBroker]:
    with secure_broker(folder) as broker:
        yield broker


def protocol_of(listener: str) -> str:
    return "SSL" if listener == "MTLS" else listener


def logins(secure: EmbeddedBroker) -> float:
    return secure.broker.services.metrics.authentications.labelled(listener="SASL_SSL", outcome="success").value


def values_in(secure: EmbeddedBroker, topic: str) -> list[bytes | None]:
    return stored_values(int(secure.address_of("PLAINTEXT").rpartition(":")[2]), topic)


# --- librdkafka


def librdkafka(secure: EmbeddedBroker, folder: Path, listener: str, mechanism: str, **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": secure.address_of(listener),
        "security.protocol": protocol_of(listener),
        "ssl.ca.location": write_ca(folder),
        "socket.timeout.ms": 10_000,
    }
    if listener == "MTLS":
        pem = write_client(folder, USER)
        config |= {"ssl.certificate.location": pem, "ssl.key.location": pem}
    if mechanism == "OAUTHBEARER":
        text = changes.pop("token", None) or token(USER)
        config |= {"sasl.mechanism": mechanism, "oauth_cb": lambda _: (text, time.time() + 300)}
    elif mechanism:
        config |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    return config | changes


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_librdkafka_writes_and_reads(secure: EmbeddedBroker, folder: Path, listener: str, mechanism: str) -> None:
    topic = unique("topic")
    config = librdkafka(secure, folder, listener, mechanism)
    producer = confluent_kafka.Producer(config)
    for value in CONTENT:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_kafka.Consumer(config | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    end = time.monotonic() + PATIENCE_S
    while len(found) < len(CONTENT) and time.monotonic() < end:
        found += [message.value() for message in consumer.consume(500, 1.0)]
    consumer.close()
    assert found == CONTENT


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_learns_that_its_credentials_are_wrong(secure: EmbeddedBroker, folder: Path, mechanism: str) -> None:
    errors: list[Any] = []
    wrong = {"token": token(USER, lifetime_s=-100)} if mechanism == "OAUTHBEARER" else {"sasl.password": "wrong"}
    config = librdkafka(secure, folder, "SASL_SSL", mechanism, **wrong) | {"error_cb": errors.append}
    producer = confluent_kafka.Producer(config)
    end = time.monotonic() + PATIENCE_S
    codes: set[int] = set()
    while confluent_kafka.KafkaError._AUTHENTICATION not in codes and time.monotonic() < end:
        producer.poll(0.2)
        codes = {error.code() for error in errors}
    assert confluent_kafka.KafkaError._AUTHENTICATION in codes
    text = " ".join(str(error) for error in errors)
    assert PASSWORD not in text


@pytest.mark.parametrize("kind", WRONG_CERTIFICATES)
def test_librdkafka_gets_nowhere_with_wrong_certificates(
    secure: EmbeddedBroker, folder: Path, tmp_path: Path, kind: str
) -> None:
    authority, own = wrong_certificates(tmp_path, USER, kind)
    errors: list[Any] = []
    config = librdkafka(secure, folder, "SSL", "") | {
        "bootstrap.servers": secure.address_of("MTLS"), "ssl.ca.location": authority, "error_cb": errors.append,
    }  # fmt: skip
    if own is not None:
        config |= {"ssl.certificate.location": own, "ssl.key.location": own}
    producer = confluent_kafka.Producer(config)
    end = time.monotonic() + PATIENCE_S
    while not errors and time.monotonic() < end:
        producer.poll(0.2)
    assert {error.code() for error in errors} <= {
        confluent_kafka.KafkaError._SSL, confluent_kafka.KafkaError._TRANSPORT,
        confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
    }  # fmt: skip
    assert errors
    with pytest.raises(confluent_kafka.KafkaException):
        producer.list_topics(timeout=1)


def test_librdkafka_outlives_its_tokens(secure: EmbeddedBroker, folder: Path) -> None:
    topic, before = unique("topic"), logins(secure)
    config = librdkafka(secure, folder, "SASL_SSL", "OAUTHBEARER") | {
        "oauth_cb": lambda _: (token(USER, lifetime_s=LIFETIME_S), time.time() + LIFETIME_S)
    }
    producer = confluent_kafka.Producer(config)
    failed: list[Any] = []

    def on_delivery(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    end = time.monotonic() + PATIENCE_S
    sent = 0
    while logins(secure) < before + LOGINS and time.monotonic() < end:
        producer.produce(topic, b"%d" % sent, partition=0, on_delivery=on_delivery)
        sent += 1
        producer.poll(0.1)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed
    assert logins(secure) >= before + LOGINS
    assert values_in(secure, topic) == [b"%d" % number for number in range(sent)]


# --- kafka-python


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, text: str, lifetime_s: int = 0) -> None:
        super().__init__()
        self._text = text
        self._lifetime_s = lifetime_s

    def token(self) -> str:
        return token(USER, lifetime_s=self._lifetime_s) if self._lifetime_s else self._text


def kafka_python(secure: EmbeddedBroker, folder: Path, listener: str, mechanism: str, **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap_servers": secure.address_of(listener),
        "security_protocol": protocol_of(listener),
        "ssl_cafile": write_ca(folder),
    }
    if listener == "MTLS":
        config["ssl_certfile"] = config["ssl_keyfile"] = write_client(folder, USER)
    if mechanism == "OAUTHBEARER":
        text = changes.pop("token", None) or token(USER)
        config |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": Tokens(text)}
    elif mechanism:
        config |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
    return config | changes


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_kafka_python_writes_and_reads(secure: EmbeddedBroker, folder: Path, listener: str, mechanism: str) -> None:
    topic = unique("topic")
    config = kafka_python(secure, folder, listener, mechanism)
    producer = kafka.KafkaProducer(**config)
    for value in CONTENT:
        producer.send(topic, value, partition=0)
    producer.flush(PATIENCE_S)
    producer.close(5)
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=PATIENCE_S * 1000, **config)
    found = []
    for record in consumer:
        found.append(record.value)
        if len(found) == len(CONTENT):
            break
    consumer.close()
    assert found == CONTENT


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_learns_that_its_credentials_are_wrong(
    secure: EmbeddedBroker, folder: Path, mechanism: str
) -> None:
    wrong = {"token": token(USER, lifetime_s=-100)} if mechanism == "OAUTHBEARER" else {"sasl_plain_password": "wrong"}
    with pytest.raises(KafkaError):
        kafka.KafkaProducer(**kafka_python(secure, folder, "SASL_SSL", mechanism, **wrong), bootstrap_timeout_ms=3_000)


@pytest.mark.parametrize("kind", WRONG_CERTIFICATES)
def test_kafka_python_gets_nowhere_with_wrong_certificates(
    secure: EmbeddedBroker, folder: Path, tmp_path: Path, kind: str
) -> None:
    authority, own = wrong_certificates(tmp_path, USER, kind)
    config = kafka_python(secure, folder, "MTLS", "") | {
        "ssl_cafile": authority,
        "ssl_certfile": own,
        "ssl_keyfile": own,
    }
    with pytest.raises(KafkaError):
        kafka.KafkaProducer(**config, bootstrap_timeout_ms=3_000)


def test_kafka_python_outlives_its_tokens(secure: EmbeddedBroker, folder: Path) -> None:
    topic, before = unique("topic"), logins(secure)
    config = kafka_python(secure, folder, "SASL_SSL", "OAUTHBEARER")
    producer = kafka.KafkaProducer(**config | {"sasl_oauth_token_provider": Tokens("", LIFETIME_S)})
    waiting: list[Any] = []
    end = time.monotonic() + PATIENCE_S
    while logins(secure) < before + LOGINS and time.monotonic() < end:
        waiting.append(producer.send(topic, b"%d" % len(waiting), partition=0))
        waiting[-1].get(PATIENCE_S)
    producer.close(5)
    assert logins(secure) >= before + LOGINS
    assert values_in(secure, topic) == [b"%d" % number for number in range(len(waiting))]


# --- aiokafka


class AioToken(AioTokens):  # type: ignore[misc]
    def __init__(self, text: str, lifetime_s: int = 0) -> None:
        self._text = text
        self._lifetime_s = lifetime_s

    async def token(self) -> str:
        return token(USER, lifetime_s=self._lifetime_s) if self._lifetime_s else self._text


def aiokafka_config(
    secure: EmbeddedBroker, folder: Path, listener: str, mechanism: str, **changes: Any
) -> dict[str, Any]:
    tls = {"ssl.truststore.location": write_ca(folder)}
    if listener == "MTLS":
        tls["ssl.keystore.location"] = write_client(folder, USER)
    config: dict[str, Any] = {
        "bootstrap_servers": secure.address_of(listener),
        "security_protocol": protocol_of(listener),
        "ssl_context": client_context(tls),
    }
    if mechanism == "OAUTHBEARER":
        text = changes.pop("token", None) or token(USER)
        config |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": AioToken(text)}
    elif mechanism:
        config |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
    return config | changes


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_aiokafka_writes_and_reads(secure: EmbeddedBroker, folder: Path, listener: str, mechanism: str) -> None:
    topic = unique("topic")

    async def story() -> list[bytes]:
        config = aiokafka_config(secure, folder, listener, mechanism)
        async with AIOKafkaProducer(**config) as producer:
            for value in CONTENT:
                await producer.send(topic, value, partition=0)
            await producer.flush()
        found: list[bytes] = []
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **config) as consumer:
            while len(found) < len(CONTENT):
                record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
                found.append(record.value)
        return found

    assert asyncio.run(story()) == CONTENT


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_learns_that_its_credentials_are_wrong(secure: EmbeddedBroker, folder: Path, mechanism: str) -> None:
    wrong = {"token": token(USER, lifetime_s=-100)} if mechanism == "OAUTHBEARER" else {"sasl_plain_password": "wrong"}

    async def story() -> None:
        producer = AIOKafkaProducer(**aiokafka_config(secure, folder, "SASL_SSL", mechanism, **wrong))
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(AioError):
        asyncio.run(story())


@pytest.mark.parametrize("kind", WRONG_CERTIFICATES)
def test_aiokafka_gets_nowhere_with_wrong_certificates(
    secure: EmbeddedBroker, folder: Path, tmp_path: Path, kind: str
) -> None:
    authority, own = wrong_certificates(tmp_path, USER, kind)
    tls = {"ssl.truststore.location": authority} | ({} if own is None else {"ssl.keystore.location": own})

    async def story() -> None:
        config = aiokafka_config(secure, folder, "MTLS", "") | {"ssl_context": client_context(tls)}
        producer = AIOKafkaProducer(**config)
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(AioError):
        asyncio.run(story())


def test_aiokafka_outlives_its_tokens(secure: EmbeddedBroker, folder: Path) -> None:
    topic, before = unique("topic"), logins(secure)

    async def story() -> int:
        config = aiokafka_config(secure, folder, "SASL_SSL", "OAUTHBEARER")
        config["sasl_oauth_token_provider"] = AioToken("", LIFETIME_S)
        count = 0
        async with AIOKafkaProducer(**config) as producer:
            end = time.monotonic() + PATIENCE_S
            while logins(secure) < before + LOGINS and time.monotonic() < end:
                await asyncio.wait_for(producer.send_and_wait(topic, b"%d" % count, partition=0), PATIENCE_S)
                count += 1
        return count

    count = asyncio.run(story())
    assert logins(secure) >= before + LOGINS
    assert values_in(secure, topic) == [b"%d" % number for number in range(count)]
