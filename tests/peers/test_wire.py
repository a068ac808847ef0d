"""Apache Kafka's own generated classes against our schemas: every message, in every version that either has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.peers.java_process import JavaProcess
from tests.peers.kafka_layouts import kafka_json, kafka_layout, without_case, without_null_in_names
from tests.wire.generate import ALL_CASES, Case, Generator, check_every

from penstock.wire.codec import codec_for
from penstock.wire.framing import encode_request, encode_response
from penstock.wire.layout import Struct, layout
from penstock.wire.protocol import FIRST_PRIVATE_KEY, ApiKey, ErrorCode
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from penstock.wire.types import Message

SEEDS = 6
KAFKAS = ("kafka-3.9", "kafka-4.3")
# How many of our messages each of them knows: less than that, and something is no longer compared.
COMPARED = {"kafka-3.9": 540, "kafka-4.3": 476}
# The schemas in 3.9 do not tell that a single struct may be null; those in 4.3 do.
UNTOLD = {
    "kafka-3.9": {
        "ConsumerGroupHeartbeat-response-v0",
        "DescribeTopicPartitions-request-v0",
        "DescribeTopicPartitions-response-v0",
    }
}
RENAMED = {"kafka-3.9": {"LIST_CLIENT_METRICS_RESOURCES": "LIST_CONFIG_RESOURCES"}}

pytestmark = pytest.mark.peer("java")


class TagGenerator(Generator):
    """Puts fields that no schema names into every tagged section, as a newer peer would."""

    def struct(self, struct: Struct) -> msgspec.Struct:
        made = super().struct(struct)
        if struct.flexible and self.random.random() < 0.5:
            tags = {self.random.randint(1000, 70_000): self.random.randbytes(self.random.randint(0, 200))}
            made = msgspec.structs.replace(made, unknown_tags=tags)
        return made


class Kafka:
    """The oracle of one Kafka, and which messages it knows."""

    def __init__(self, name: str, process: JavaProcess) -> None:
        self.name = name
        self.ask = process.ask
        self.apis: dict[int, dict[str, Any]] = {api["key"]: api for api in process.ask("apis")}
        self.cases = [case for case in ALL_CASES if self._knows(case)]

    def _knows(self, case: Case) -> bool:
        api = self.apis.get(int(case.api.key))
        return api is not None and api["lowest"] <= case.version <= api["highest"]

    def about(self, subject: str, case: Case, **more: Any) -> Any:
        return self.ask(subject, key=int(case.api.key), side=case.side, version=case.version, **more)


OracleOf = Callable[[str], Kafka]


@pytest.fixture(scope="module")
def oracle_of(start_java: Callable[..., JavaProcess]) -> OracleOf:
    return lambda name: Kafka(name, start_java(name, "WireOracle", "Layouts.java"))


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.peer(name)) for name in KAFKAS])
def oracle(request: pytest.FixtureRequest, oracle_of: OracleOf) -> Kafka:
    return oracle_of(request.param)


def test_kafka_has_as_many_of_our_messages_as_before(oracle: Kafka) -> None:
    assert len(oracle.cases) >= COMPARED[oracle.name], f"of {len(ALL_CASES)} messages"


@pytest.mark.peer(*KAFKAS)
def test_every_message_of_ours_is_known_to_one_of_them(oracle_of: OracleOf) -> None:
    known = {str(case) for name in KAFKAS for case in oracle_of(name).cases}
    public = [str(case) for case in ALL_CASES if case.api.key < FIRST_PRIVATE_KEY]
    assert [name for name in public if name not in known] == []


def test_the_layout_of_every_message_is_the_same(oracle: Kafka) -> None:
    def check(case: Case) -> None:
        theirs = without_null_in_names(oracle.about("layout", case))
        assert kafka_layout(layout(case.message, case.version)) == theirs

    untold = UNTOLD.get(oracle.name, set())
    check_every([case for case in oracle.cases if str(case) not in untold], check)


@pytest.mark.parametrize("generator", [Generator, TagGenerator])
def test_it_reads_the_same_values_and_writes_the_same_bytes(oracle: Kafka, generator: type[Generator]) -> None:
    def check(case: Case) -> None:
        codec, struct = codec_for(case.message, case.version), layout(case.message, case.version)
        for seed in range(SEEDS):
            message = generator(seed).message(case.message, case.version)
            data = codec.encode(message)
            answer = oracle.about("message", case, hex=data.hex())
            assert (answer["left"], answer["room"]) == (0, 0)
            assert without_case(answer["json"]) == kafka_json(message, struct), f"seed {seed}"
            assert answer["hex"] == data.hex(), f"seed {seed}"

    check_every(oracle.cases, check)


def test_headers_have_the_same_versions(oracle: Kafka) -> None:
    def check(case: Case) -> None:
        theirs = oracle.apis[int(case.api.key)]
        at = case.version - theirs["lowest"]
        ours = case.api.request_header_version, case.api.response_header_version
        assert [version(case.version) for version in ours] == [
            theirs["request_headers"][at],
            theirs["response_headers"][at],
        ]

    check_every(oracle.cases, check)


@pytest.mark.parametrize("client_id", ["reader-7", "", "Grüße", None])
def test_it_reads_our_request_headers_and_finds_the_body(oracle: Kafka, client_id: str | None) -> None:
    def check(case: Case) -> None:
        key, message = case.api.key, Generator(1).message(case.message, case.version)
        frame = b"".join(map(bytes, encode_request(key, case.version, 77, client_id, message)))[4:]  # type: ignore[arg-type]
        header = oracle.ask("request header", hex=frame.hex())
        assert (header["key"], header["version"], header["correlation_id"]) == (key, case.version, 77)
        if case.api.request_header_version(case.version) > 0:
            assert header["client_id"] == (client_id or "")
        assert frame[header["body_at"] :] == codec_for(case.message, case.version).encode(message)

    check_every([case for case in oracle.cases if case.side == "request"], check)


def test_it_reads_our_response_headers_and_finds_the_body(oracle: Kafka) -> None:
    def check(case: Case) -> None:
        message = Generator(1).message(case.message, case.version)
        frame = b"".join(map(bytes, encode_response(case.api.key, case.version, -5, message)))[4:]  # type: ignore[arg-type]
        version = oracle.apis[case.api.key]["response_headers"][case.version - oracle.apis[case.api.key]["lowest"]]
        header = oracle.ask("response header", version=version, hex=frame.hex())
        assert header["correlation_id"] == -5
        assert frame[header["body_at"] :] == codec_for(case.message, case.version).encode(message)

    check_every([case for case in oracle.cases if case.side == "response"], check)


@pytest.mark.parametrize("message", [ConsumerProtocolSubscription, ConsumerProtocolAssignment])
def test_it_agrees_on_the_consumer_protocol(oracle: Kafka, message: type[Message]) -> None:
    versions = message.SCHEMA.versions
    for version in range(versions.lowest, versions.highest + 1):
        about = {"class": message.__name__, "version": version}
        assert kafka_layout(layout(message, version)) == without_null_in_names(oracle.ask("layout", **about))
        for seed in range(SEEDS):
            ours = Generator(seed).message(message, version)
            data = codec_for(message, version).encode(ours)
            answer = oracle.ask("message", **about, hex=data.hex())
            assert answer["hex"] == data.hex()
            assert without_case(answer["json"]) == kafka_json(ours, layout(message, version))


def test_api_keys_have_the_same_names(oracle: Kafka) -> None:
    ours = {key.value: key.name for key in ApiKey}
    renamed = RENAMED.get(oracle.name, {})
    theirs = {key: renamed.get(api["name"], api["name"]) for key, api in oracle.apis.items()}
    assert {key: ours.get(key) for key in theirs} == theirs


def test_error_codes_have_the_same_names_and_are_as_retriable(oracle: Kafka) -> None:
    theirs = {error["code"]: (error["name"], error["retriable"]) for error in oracle.ask("errors")}
    ours = {code.value: (code.name, code.retriable) for code in ErrorCode}
    assert {code: ours.get(code) for code in theirs} == theirs
    if oracle.name == KAFKAS[-1]:
        assert ours.keys() == theirs.keys()
