"""Topics that demand valid schema ids: a real broker, and a real registry that may be away."""

from __future__ import annotations

import gc
import logging
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.wire_client import WireClient, batch_of, log_of, make_topic
from tests.ports import free_port
from tests.security.certificates import write_broker, write_ca
from tests.timeouts import PATIENCE_S, until

from penstock import Producer
from penstock.broker.broker import Broker
from penstock.broker.errors import SchemaRegistryAway
from penstock.broker.handlers.schema_ids import ASKED_MAX, SchemaIds, _frames, schema_ids
from penstock.broker.settings import settings_from
from penstock.client.admin import Admin, ConfigResource, TopicSpec
from penstock.client.errors import RegistryUnreachable
from penstock.client.serializers.registry_client import RegistryClient, RegistrySchema
from penstock.config_def import InvalidSettings
from penstock.log.errors import InvalidBatch
from penstock.log.settings import LogSettings
from penstock.log.validation import Budget, LongValidation, Validated, validate
from penstock.records import Codec, encode_batch
from penstock.registry import Registry
from penstock.runtime.clock import SystemClock
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ErrorCode

VALUES = {"confluent.value.schema.validation": "true"}
KEYS = {"confluent.key.schema.validation": "true"}
USER, PASSWORD = "broker", "word-77"


def framed(schema_id: int, rest: bytes = b"x") -> bytes:
    return struct.pack(">bI", 0, schema_id) + rest


@pytest.fixture(scope="module")
def registry_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker_settings(registry_port: int) -> Mapping[str, str]:
    return {
        "confluent.schema.registry.url": f"http://127.0.0.1:{registry_port}",
        "confluent.basic.auth.user.info": f"{USER}:{PASSWORD}",
    }


@pytest.fixture(scope="module")
def registry(embedded: EmbeddedBroker, registry_port: int) -> Iterator[RegistryClient]:
    with Registry(embedded.address, port=registry_port, user=USER, password=PASSWORD) as instance:
        yield RegistryClient(instance.url, user=USER, password=PASSWORD)


def register(registry: RegistryClient, subject: str, name: str = "View") -> int:
    schema = f'{{"type": "record", "name": "{name}", "fields": []}}'
    return registry.register(subject, RegistrySchema(schema)).id


# ------------------------------------------------------------------------------------------------- without a registry


def test_a_registry_that_is_away_rejects_for_now_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "confluent.schema.registry.url": f"http://127.0.0.1:{free_port()}",
        "confluent.basic.auth.user.info": f"{USER}:{PASSWORD}",
    }
    with EmbeddedBroker(settings=given) as embedded, WireClient(embedded.port) as client:
        broker = embedded.broker
        topic, other = make_topic(broker, configs=VALUES), make_topic(broker)
        for _ in range(3):
            outcome = client.produce(topic, batch_of(framed(1)))
            assert outcome.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert "the schema registry does not answer" in (outcome.error_message or "")
        assert client.produce(other, batch_of(b"plain")).error_code == ErrorCode.NONE
        # What no registry could make valid is rejected for good.
        assert client.produce(topic, batch_of(b"plain")).error_code == ErrorCode.INVALID_RECORD
        assert log_of(broker, topic).log_end_offset == 0
    lines = [each for each in caplog.records if "schema registry cannot be asked" in each.getMessage()]
    assert len(lines) == 1
    assert PASSWORD not in caplog.text


def test_a_producer_waits_for_the_registry() -> None:
    port = free_port()
    with EmbeddedBroker(settings={"confluent.schema.registry.url": f"http://127.0.0.1:{port}"}) as embedded:
        topic = make_topic(embedded.broker, configs=VALUES)
        with Registry(embedded.address) as elsewhere:
            schema_id = register(RegistryClient(elsewhere.url), f"{topic}-value")
        with Logged("schema registry cannot be asked") as is_away, Producer(embedded.address) as producer:
            sent = producer.send(topic, framed(schema_id))
            assert is_away.wait(PATIENCE_S)
            with Registry(embedded.address, port=port):
                assert sent.result(PATIENCE_S).offset == 0


class Logged(logging.Handler):
    """An event that a line in the broker's log sets."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self._event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self._event.set()

    def __enter__(self) -> threading.Event:
        logging.getLogger("penstock.broker").addHandler(self)
        return self._event

    def __exit__(self, *_: object) -> None:
        logging.getLogger("penstock.broker").removeHandler(self)


def test_a_broker_without_registry_takes_no_such_topic() -> None:
    with EmbeddedBroker() as embedded, Admin(embedded.address) as admin:
        with pytest.raises(Exception, match=r"needs confluent\.schema\.registry\.url"):
            admin.create_topic(TopicSpec("views", config=VALUES))
        admin.create_topic("views")
        with pytest.raises(Exception, match=r"needs confluent\.schema\.registry\.url"):
            admin.alter_config(ConfigResource.topic("views"), KEYS)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"confluent.schema.registry.url": "localhost:8081"}, "must be http://HOST:PORT"),
        ({"confluent.schema.registry.url": "http://me:word@host"}, "must not contain a login"),
        (
            {"confluent.schema.registry.url": "https://r", "confluent.ssl.truststore.location": "/no/such.pem"},
            "No such file",
        ),
        (
            {"confluent.schema.registry.url": "http://r", "confluent.basic.auth.user.info": "env:NOT_SET_HERE"},
            "NOT_SET_HERE is not set",
        ),
    ],
)
def test_invalid_settings_are_rejected_at_the_start(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem), EmbeddedBroker(settings=settings):
        pass


# ------------------------------------------------------------------------------------------------- with one


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_each_record_without_a_valid_id_is_named(
    broker: Broker, client: WireClient, registry: RegistryClient, codec: Codec
) -> None:
    topic = make_topic(broker, configs=VALUES)
    known = register(registry, f"{topic}-value", f"Known{codec}")
    elsewhere = register(registry, f"elsewhere-{topic}", f"Elsewhere{codec}")
    wrong = batch_of(framed(known), b"plain", framed(elsewhere), b"", framed(424_242), framed(known), codec=codec)
    for _ in range(2):
        outcome = client.produce(topic, wrong)
        assert outcome.error_code == ErrorCode.INVALID_RECORD
        assert [(each.batch_index, each.batch_index_error_message) for each in outcome.record_errors] == [
            (1, "the value does not begin with the id of a schema"),
            (2, f"schema {elsewhere} is not registered under {topic}-value"),
            (3, "the value does not begin with the id of a schema"),
            (4, f"schema 424242 is not registered under {topic}-value"),
        ]
    assert log_of(broker, topic).log_end_offset == 0
    right = batch_of(framed(known), framed(known, b""), codec=codec)
    assert client.produce(topic, right).error_code == ErrorCode.NONE
    assert log_of(broker, topic).log_end_offset == 2


def test_keys_are_checked_by_their_own_subject_and_nulls_are_valid(
    broker: Broker, embedded: EmbeddedBroker, registry: RegistryClient
) -> None:
    topic = make_topic(broker, configs=KEYS | VALUES)
    key, value = register(registry, f"{topic}-key", "Key"), register(registry, f"{topic}-value", "Value")
    with Producer(embedded.address) as producer:
        assert producer.send(topic, framed(value), key=framed(key)).result(PATIENCE_S).offset == 0
        assert producer.send(topic, None, key=framed(key)).result(PATIENCE_S).offset == 1
        assert producer.send(topic, framed(value)).result(PATIENCE_S).offset == 2
        with pytest.raises(Exception, match=f"schema {value} is not registered under {topic}-key"):
            producer.send(topic, framed(value), key=framed(value)).result(PATIENCE_S)


def test_the_setting_counts_from_its_change_on(
    broker: Broker, embedded: EmbeddedBroker, client: WireClient, registry: RegistryClient
) -> None:
    topic = make_topic(broker)
    assert client.produce(topic, batch_of(b"plain")).error_code == ErrorCode.NONE
    with Admin(embedded.address) as admin:
        admin.alter_config(ConfigResource.topic(topic), VALUES)
        assert client.produce(topic, batch_of(b"plain")).error_code == ErrorCode.INVALID_RECORD
        admin.alter_config(ConfigResource.topic(topic), {"confluent.value.schema.validation": "false"})
    assert client.produce(topic, batch_of(b"plain")).error_code == ErrorCode.NONE


def test_the_registry_may_be_https(embedded: EmbeddedBroker, tmp_path: Path) -> None:
    authority, certificate = write_ca(tmp_path), write_broker(tmp_path)
    secret = tmp_path / "login"
    secret.write_text(f"{USER}:{PASSWORD}\n")
    with Registry(
        embedded.address, topic="_tls", group_id="tls", user=USER, password=PASSWORD,
        ssl_certfile=certificate, ssl_keyfile=certificate,
    ) as instance:  # fmt: skip
        until(lambda: instance.is_leader, "the registry leads")
        tls = ssl.create_default_context(cafile=authority)
        owner = RegistryClient(instance.url, user=USER, password=PASSWORD, ssl=tls)
        schema_id = register(owner, "t-value")
        given = {
            "confluent.schema.registry.url": instance.url,
            "confluent.ssl.truststore.location": authority,
            "confluent.basic.auth.user.info": f"file:{secret}",
        }
        ids = schema_ids(settings_from(given), SystemClock())
        check(ids, framed(schema_id))
        with pytest.raises(InvalidBatch, match="is not registered"):
            check(ids, framed(schema_id + 1))
        owner.close()
        # Its connection closes with it.
        del ids
        gc.collect()


# ------------------------------------------------------------------------------------------------- what is remembered

SETTINGS = LogSettings(value_schema_validation=True)


class Time:
    ms = 0.0

    def now_ms(self) -> int:
        return int(self.ms)

    def monotonic_ms(self) -> float:
        return self.ms


class Answers:
    """A registry of ids."""

    def __init__(self, *known: int) -> None:
        self.known = set(known)
        self.asked: list[int] = []
        self.failure: Exception | None = None

    def __call__(self, schema_id: int, subject: str) -> bool:
        assert subject == "t-value"
        self.asked.append(schema_id)
        if self.failure is not None:
            raise self.failure
        return schema_id in self.known


def validated(*values: bytes | None, codec: Codec = Codec.NONE) -> Validated:
    batch = encode_batch([(0, b"k", value, ()) for value in values], codec=codec)
    return validate(LogSettings(), batch, 0)


def check(ids: SchemaIds, *values: bytes | None, on_loop: bool = False, codec: Codec = Codec.NONE) -> None:
    ids.check("t", SETTINGS, validated(*values, codec=codec), Budget(), on_loop=on_loop)


def test_answers_are_remembered_yes_for_long_and_no_for_seconds() -> None:
    time, answers = Time(), Answers(1)
    ids = SchemaIds(answers, time)
    for _ in range(3):
        check(ids, framed(1), framed(1), None)
        with pytest.raises(InvalidBatch, match="schema 2 is not registered under t-value"):
            check(ids, framed(2))
    assert answers.asked == [1, 2]
    time.ms += 10_000
    answers.known.add(2)
    check(ids, framed(1), framed(2))
    assert answers.asked == [1, 2, 2]
    time.ms += 2 * 60 * 60 * 1000
    check(ids, framed(1))
    assert answers.asked == [1, 2, 2, 1]


def test_a_failure_is_remembered_for_a_second_and_logged_once_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    time, answers = Time(), Answers(1)
    answers.failure = RegistryUnreachable("nobody at home")
    ids = SchemaIds(answers, time, "http://r")
    for _ in range(3):
        with pytest.raises(SchemaRegistryAway):
            check(ids, framed(1))
    assert len(answers.asked) == 1
    time.ms += 1_001
    answers.failure = None
    check(ids, framed(1))
    assert len(caplog.records) == 1
    assert "url=http://r" in caplog.text
    assert "nobody at home" in caplog.text
    time.ms += 61_000
    answers.failure = TimeoutError("too slow")
    with pytest.raises(SchemaRegistryAway):
        check(ids, framed(3))
    assert "rejected_batches=3 error=too slow" in caplog.text


def test_the_event_loop_never_asks_and_never_decompresses() -> None:
    answers = Answers(1)
    ids = SchemaIds(answers, Time())
    with pytest.raises(LongValidation):
        check(ids, framed(1), on_loop=True)
    assert answers.asked == []
    check(ids, framed(1))
    check(ids, framed(1), on_loop=True)
    with pytest.raises(LongValidation):
        check(ids, framed(1), on_loop=True, codec=Codec.GZIP)
    with pytest.raises(LongValidation):
        check(ids, framed(1, bytes(40_000)), on_loop=True)
    # The first record decides: nothing has to be asked to reject it.
    with pytest.raises(InvalidBatch, match="record 0 of 1 is rejected"):
        check(ids, b"plain", on_loop=True)


def test_one_batch_cannot_make_the_broker_ask_without_end() -> None:
    answers = Answers(*range(100))
    ids = SchemaIds(answers, Time())
    values = [framed(number) for number in range(100)]
    with pytest.raises(SchemaRegistryAway, match="more than 32 schema ids"):
        check(ids, *values)
    assert len(answers.asked) == ASKED_MAX
    # Trying again gets further.
    for _ in range(2):
        with pytest.raises(SchemaRegistryAway):
            check(ids, *values)
    check(ids, *values)
    assert sorted(answers.asked) == list(range(100))


def test_large_batches_are_judged_to_the_end_and_their_errors_bounded() -> None:
    ids = SchemaIds(Answers(1), Time())
    with pytest.raises(InvalidBatch) as rejected:
        check(ids, *[framed(1)] * 25_000, b"plain", framed(1), None, b"", codec=Codec.ZSTD)
    assert [index for index, _ in rejected.value.record_errors] == [25_000, 25_003]
    with pytest.raises(InvalidBatch) as rejected:
        check(ids, *[b"plain"] * 3_000)
    assert len(rejected.value.record_errors) == 1_000


def test_errors_that_may_not_be_named_are_still_errors() -> None:
    budget = Budget()
    budget.record_errors = 0
    with pytest.raises(InvalidBatch, match="record 1 of 2 is rejected") as rejected:
        SchemaIds(Answers(1), Time()).check("t", SETTINGS, validated(framed(1), b"x"), budget, on_loop=False)
    assert list(rejected.value.record_errors) == []


@given(
    records=st.lists(
        st.tuples(
            st.integers(0, 2**42),
            st.none() | st.binary(max_size=300),
            st.none() | st.binary(max_size=300),
            st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=90)), max_size=2),
        ),
        min_size=1,
        max_size=300,
    ),
    codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
)
def test_frames_are_the_first_bytes_of_keys_and_values(records: list[Any], codec: Codec) -> None:
    settings = LogSettings(message_timestamp_after_max_ms=2**62)
    batches = validate(settings, encode_batch([(at, k, v, tuple(h)) for at, k, v, h in records], codec=codec), 0)
    expected = [(k if k is None else k[:5], v if v is None else v[:5]) for _, k, v, _ in records]
    assert list(_frames(batches)) == expected


def test_without_a_registry_only_nulls_are_valid() -> None:
    ids = SchemaIds(None, Time())
    check(ids, None)
    with pytest.raises(InvalidBatch, match=r"this broker has no confluent\.schema\.registry\.url"):
        check(ids, framed(1))
