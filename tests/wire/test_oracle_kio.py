"""kio, generated from Kafka's own schemas, reads what we write and writes the same bytes.

kio follows Kafka 4.x: it lacks the versions that Kafka 4 dropped. kafka-python, the other oracle, has most
of those.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import uuid
from enum import Enum
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from tests.wire.generate import ALL_CASES, Case, Generator, check_every

from penstock.wire.codec import codec_for
from penstock.wire.layout import layout, struct_layout
from penstock.wire.protocol import APIS, ApiKey, VersionRange
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from penstock.wire.types import Message

SEEDS = 4

# The lowest version that kio has of each API; up to our highest it must have them all.
COVERED_FROM = {
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 4,
    ApiKey.LIST_OFFSETS: 1,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.OFFSET_FETCH: 1,
    ApiKey.CREATE_TOPICS: 2,
    ApiKey.DELETE_TOPICS: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.DESCRIBE_ACLS: 1,
    ApiKey.CREATE_ACLS: 1,
    ApiKey.DELETE_ACLS: 1,
    ApiKey.DESCRIBE_CONFIGS: 1,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 1,
    ApiKey.ALTER_PARTITION: 2,
}
NOT_COVERED = {
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.PUSH_IMAGE,
    ApiKey.AUTHENTICATE_BROKER,
    ApiKey.FORWARD,
}

_KNOWN_CODES = [code.value for code in KioErrorCode]


class KioGenerator(Generator):
    """kio turns error codes, durations and times into objects that cannot hold every number."""

    def integer(self, code: str, name: str) -> int:
        if "error_code" in name:
            return self.random.choice(_KNOWN_CODES)
        if "time" in name or name.endswith("_ms"):
            return self.random.randint(0, 0x7FFFFFFF)
        return super().integer(code, name)


COVERED = [
    case for case in ALL_CASES if case.api.key not in NOT_COVERED and case.version >= COVERED_FROM.get(case.api.key, 0)
]


def kio_class(case: Case) -> Any:
    paths = schema_name_map[case.api.key.name.lower()][case.version]
    return resolve_name(paths[EntityType.request] if case.side == "request" else paths[EntityType.response])


def plain(value: Any) -> Any:
    """A value of kio's as ours."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, Enum):
        return value.value
    return value


def assert_same(ours: Any, theirs: Any, version: int, where: str) -> None:
    if isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, version, where)
    elif isinstance(ours, msgspec.Struct):
        assert_same_struct(ours, theirs, version, where)
    elif ours == bytes(16):
        assert theirs is None or plain(theirs) == ours, where
    else:
        assert plain(theirs) == ours, where


def assert_same_struct(ours: msgspec.Struct, theirs: Any, version: int, where: str) -> None:
    present = [name for name in _present(type(ours), version) if name != "unknown_tags"]
    fields = dataclasses.fields(theirs)
    assert [name.removesuffix("_ms") for name in present] == [field.name.removesuffix("_ms") for field in fields], where
    for name, field in zip(present, fields, strict=True):
        assert_same(getattr(ours, name), getattr(theirs, field.name), version, f"{where}.{name}")


def _present(message: type[msgspec.Struct], version: int) -> list[str]:
    struct = struct_layout(message, version, flexible=True)
    absent = {field.name for field in struct.absent}
    return [name for name in message.__struct_fields__ if name not in absent]


def test_kio_still_covers_what_it_did() -> None:
    for api in APIS.values():
        name = api.key.name.lower()
        if api.key in NOT_COVERED:
            assert name not in schema_name_map, f"kio has {name} now: test it"
            continue
        expected = VersionRange(COVERED_FROM.get(api.key, 0), api.versions.highest)
        missing = [
            version for version in range(expected.lowest, expected.highest + 1) if version not in schema_name_map[name]
        ]
        assert not missing, name


@pytest.mark.long
def test_kio_reads_the_same_values_and_writes_the_same_bytes() -> None:
    def check(case: Case) -> None:
        theirs = kio_class(case)
        read, write = entity_reader(theirs), entity_writer(theirs)
        codec = codec_for(case.message, case.version)
        for seed in range(SEEDS):
            message = KioGenerator(seed).message(case.message, case.version)
            data = codec.encode(message)
            entity, end = read(data, 0)
            assert end == len(data)
            assert_same(message, entity, case.version, str(case))
            out = io.BytesIO()
            write(out, entity)
            assert out.getvalue() == data

    check_every(COVERED, check)


def test_flexible_versions_are_those_of_kio() -> None:
    def check(case: Case) -> None:
        theirs = kio_class(case)
        assert layout(case.message, case.version).flexible == theirs.__flexible__
        assert theirs.__api_key__ == case.api.key
        header = theirs.__header_schema__.__version__
        if case.side == "request":
            assert header == case.api.request_header_version(case.version)
        else:
            assert header == case.api.response_header_version(case.version)

    check_every(COVERED, check)


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("message", [ConsumerProtocolSubscription, ConsumerProtocolAssignment])
def test_kio_agrees_on_the_consumer_protocol(message: type[Message], version: int) -> None:
    name = message.__name__.removeprefix("ConsumerProtocol").lower()
    module = f"kio.schema.consumer_protocol_{name}.v{version}.data"
    theirs = getattr(import_module(module), message.__name__)
    for seed in range(SEEDS):
        ours = Generator(seed).message(message, version)
        data = codec_for(message, version).encode(ours)
        entity, _ = entity_reader(theirs)(data, 0)
        assert_same(ours, entity, version, name)
        out = io.BytesIO()
        entity_writer(theirs)(out, entity)
        assert out.getvalue() == data
