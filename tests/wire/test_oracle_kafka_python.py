"""kafka-python's protocol module reads what we write and writes the same bytes, down to the oldest
versions.
"""

from __future__ import annotations

import pkgutil
import warnings
from importlib import import_module
from typing import Any

import msgspec
import pytest
from tests.wire.generate import ALL_CASES, Case, Generator, check_every
from tests.wire.test_oracle_kio import COVERED as COVERED_BY_KIO

from penstock.wire.codec import codec_for
from penstock.wire.layout import struct_layout
from penstock.wire.protocol import APIS, ApiKey

SEEDS = 4

# kafka-python has all of our versions of every other API, from 0 on.
NOT_COVERED = {
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_PARTITION,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.PUSH_IMAGE,
    ApiKey.AUTHENTICATE_BROKER,
    ApiKey.FORWARD,
}

# What neither oracle has; test_inter_broker_layouts.py holds these against bytes written by hand.
IN_NO_ORACLE = {
    ApiKey.LEADER_AND_ISR: "0-7",
    ApiKey.STOP_REPLICA: "0-4",
    ApiKey.UPDATE_METADATA: "0-8",
    ApiKey.CONTROLLED_SHUTDOWN: "0-3",
    ApiKey.ALTER_PARTITION: "0-1",
    ApiKey.PUSH_IMAGE: "0-0",
    ApiKey.AUTHENTICATE_BROKER: "0-0",
    ApiKey.FORWARD: "0-0",
}

COVERED = [case for case in ALL_CASES if case.api.key not in NOT_COVERED]


def _message_classes() -> dict[str, Any]:
    with warnings.catch_warnings():
        # It reads its schemas through a function that the standard library is about to drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        for module in pkgutil.walk_packages(import_module("kafka.protocol").__path__, "kafka.protocol."):
            if ".old" not in module.name and "generate" not in module.name:
                import_module(module.name)
    base = import_module("kafka.protocol.api_message").ApiMessage
    return {message.__name__: message for message in base.__subclasses__()}


THEIRS = _message_classes()


class KafkaPythonGenerator(Generator):
    """kafka-python reads an ApiVersions answer that has an error as version 0, as a client should."""

    def __init__(self, seed: int, api: ApiKey) -> None:
        super().__init__(seed)
        self._api = api

    def integer(self, code: str, name: str) -> int:
        if self._api is ApiKey.API_VERSIONS and name == "error_code":
            return 0
        return super().integer(code, name)


def assert_same(ours: Any, theirs: Any, version: int, where: str) -> None:
    if isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, version, where)
    elif isinstance(ours, msgspec.Struct):
        struct = struct_layout(type(ours), version, flexible=True)
        for field in struct.fields + struct.tagged:
            value = getattr(ours, field.name)
            if field.name.endswith("authorized_operations"):
                continue  # they rename bit fields and take them apart; the bytes say whether rightly
            if field in struct.tagged and value == field.default:
                continue  # not sent; what stands for it is each library's choice
            assert_same(value, getattr(theirs, field.name), version, f"{where}.{field.name}")
    else:
        assert getattr(theirs, "bytes", theirs) == ours, where


def test_kafka_python_still_covers_what_it_did() -> None:
    for api in APIS.values():
        for side in ("Request", "Response"):
            theirs = THEIRS.get(api.name + side)
            if api.key in NOT_COVERED:
                assert theirs is None, f"kafka-python has {api.name} now: test it"
            else:
                assert theirs is not None, api.name
                assert theirs.max_version >= api.versions.highest, api.name


def test_what_no_oracle_covers_is_known() -> None:
    checked = {(case.api.key, case.version) for case in COVERED_BY_KIO + COVERED}
    uncovered: dict[ApiKey, list[int]] = {}
    for case in ALL_CASES:
        if case.side == "request" and (case.api.key, case.version) not in checked:
            uncovered.setdefault(case.api.key, []).append(case.version)
    assert {key: f"{min(versions)}-{max(versions)}" for key, versions in uncovered.items()} == IN_NO_ORACLE


@pytest.mark.long
def test_kafka_python_reads_the_same_values_and_writes_the_same_bytes() -> None:
    def check(case: Case) -> None:
        theirs = THEIRS[case.api.name + case.side.capitalize()]
        codec = codec_for(case.message, case.version)
        for seed in range(SEEDS):
            message = KafkaPythonGenerator(seed, case.api.key).message(case.message, case.version)
            data = codec.encode(message)
            decoded = theirs.decode(data, version=case.version)
            assert_same(message, decoded, case.version, str(case))
            decoded._header = None  # its decoder leaves the slot unset, and its encoder reads it
            assert bytes(decoded.encode(version=case.version)) == data

    check_every(COVERED, check)
