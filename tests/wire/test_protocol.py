"""The table of APIs: consistent with the schemas, complete, and cheap to import."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map

import penstock.wire.schemas
from penstock.wire.errors import SchemaError, UnknownApi, UnknownVersion
from penstock.wire.protocol import (
    APIS,
    FIRST_PRIVATE_KEY,
    ApiKey,
    ErrorCode,
    VersionRange,
    error_code,
    find_api,
    request_codec,
    response_codec,
)

# Versions that must be there: what clients of the last fifteen years use, and what brokers say to each other.
REQUIRED = {
    "PRODUCE": "0-11",
    "FETCH": "0-17",
    "LIST_OFFSETS": "0-7",
    "METADATA": "0-12",
    "OFFSET_COMMIT": "0-9",
    "OFFSET_FETCH": "0-9",
    "FIND_COORDINATOR": "0-4",
    "JOIN_GROUP": "0-9",
    "HEARTBEAT": "0-4",
    "LEAVE_GROUP": "0-5",
    "SYNC_GROUP": "0-5",
    "DESCRIBE_GROUPS": "0-5",
    "LIST_GROUPS": "0-5",
    "SASL_HANDSHAKE": "0-1",
    "SASL_AUTHENTICATE": "0-2",
    "API_VERSIONS": "0-4",
    "CREATE_TOPICS": "0-7",
    "DELETE_TOPICS": "0-6",
    "DELETE_RECORDS": "0-2",
    "INIT_PRODUCER_ID": "0-4",
    "OFFSET_FOR_LEADER_EPOCH": "0-4",
    "ADD_PARTITIONS_TO_TXN": "0-3",
    "ADD_OFFSETS_TO_TXN": "0-3",
    "END_TXN": "0-3",
    "WRITE_TXN_MARKERS": "0-1",
    "TXN_OFFSET_COMMIT": "0-3",
    "DESCRIBE_ACLS": "0-3",
    "CREATE_ACLS": "0-3",
    "DELETE_ACLS": "0-3",
    "DESCRIBE_CONFIGS": "0-4",
    "ALTER_CONFIGS": "0-2",
    "DESCRIBE_LOG_DIRS": "0-4",
    "ALTER_REPLICA_LOG_DIRS": "1-2",
    "CREATE_PARTITIONS": "0-3",
    "DELETE_GROUPS": "0-2",
    "ELECT_LEADERS": "0-2",
    "INCREMENTAL_ALTER_CONFIGS": "0-1",
    "ALTER_PARTITION_REASSIGNMENTS": "0",
    "LIST_PARTITION_REASSIGNMENTS": "0",
    "OFFSET_DELETE": "0",
    "DESCRIBE_CLIENT_QUOTAS": "0-1",
    "ALTER_CLIENT_QUOTAS": "0-1",
    "DESCRIBE_USER_SCRAM_CREDENTIALS": "0",
    "ALTER_USER_SCRAM_CREDENTIALS": "0",
    "DESCRIBE_CLUSTER": "0-1",
    "DESCRIBE_PRODUCERS": "0",
    "DESCRIBE_TRANSACTIONS": "0",
    "LIST_TRANSACTIONS": "0-1",
    "CONSUMER_GROUP_HEARTBEAT": "0-1",
    "CONSUMER_GROUP_DESCRIBE": "0-1",
    "DESCRIBE_TOPIC_PARTITIONS": "0",
    "LEADER_AND_ISR": "0-7",
    "STOP_REPLICA": "0-4",
    "UPDATE_METADATA": "0-8",
    "CONTROLLED_SHUTDOWN": "0-3",
    "ALTER_PARTITION": "0-3",
    "ALLOCATE_PRODUCER_IDS": "0",
}
NOT_AN_API = {"consumer_protocol"}


def test_all_required_versions_are_known() -> None:
    for name, text in REQUIRED.items():
        required, known = VersionRange.parse(text), find_api(ApiKey[name]).versions
        assert known.lowest <= required.lowest, name
        assert known.highest >= required.highest, name


def test_the_table_says_what_the_schemas_say() -> None:
    differing = [
        message.__name__
        for api in APIS.values()
        for message in (api.request, api.response)
        if (message.SCHEMA.versions, message.SCHEMA.flexible) != (api.versions, api.flexible)
    ]
    assert differing == []


def test_every_schema_is_in_the_table() -> None:
    modules = {module.name for module in pkgutil.iter_modules(penstock.wire.schemas.__path__)}
    assert modules - NOT_AN_API == {api.key.name.lower() for api in APIS.values()}


def test_api_keys_are_those_of_kafka() -> None:
    names = {key.value: key.name.lower() for key in ApiKey if key < FIRST_PRIVATE_KEY}
    removed_in_kafka_4 = {4, 5, 6, 7}
    assert names.keys() == api_key_map.keys() | removed_in_kafka_4
    assert all(names[key] == name for key, name in api_key_map.items())


def test_what_is_not_known_is_rejected() -> None:
    with pytest.raises(UnknownApi):
        request_codec(999, 0)
    with pytest.raises(UnknownApi):
        find_api(ApiKey.ENVELOPE)
    with pytest.raises(UnknownVersion, match="unknown version 14 of Produce; known are 0 to 13"):
        response_codec(ApiKey.PRODUCE, 14)


def test_codecs_belong_to_their_side() -> None:
    assert request_codec(0, 9).message.__name__ == "ProduceRequest"
    assert response_codec(0, 9).message.__name__ == "ProduceResponse"
    assert request_codec(0, 9) is request_codec(ApiKey.PRODUCE, 9)


def test_importing_the_registry_loads_no_schema_and_no_compiler() -> None:
    program = (
        "import sys, penstock.wire, penstock.wire.protocol, penstock.wire.protocol\n"
        "late = ('penstock.wire.schemas', 'penstock.wire.codec', 'msgspec')\n"
        "print([name for name in sys.modules if name.startswith(late)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_ranges_read_as_kafka_writes_them() -> None:
    assert 3 in VersionRange.parse("3+")
    assert 2 not in VersionRange.parse("3+")
    assert VersionRange.parse("0-14") == VersionRange(0, 14)
    assert VersionRange.parse("2") == VersionRange(2, 2)
    assert 0 not in VersionRange.parse("none")
    for text in ("", "a", "1-b", "+", "-"):
        with pytest.raises(SchemaError):
            VersionRange.parse(text)


def test_error_codes_are_those_of_kafka() -> None:
    ours = {code.value: (code.name.lower(), code.retriable) for code in ErrorCode}
    assert ours == {code.value: (code.name, code.retriable) for code in KioErrorCode}


def test_every_error_code_says_what_it_means_in_a_sentence() -> None:
    meanings = [code.meaning for code in ErrorCode]
    assert all(meaning.endswith(".") and meaning[0].isupper() for meaning in meanings)
    assert len(set(meanings)) == len(meanings)


def test_an_error_code_from_a_newer_peer_counts_as_unknown() -> None:
    assert error_code(27) is ErrorCode.REBALANCE_IN_PROGRESS
    assert error_code(-1) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert error_code(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
