"""ApiVersions over a socket: the transaction version as a feature, and the versions that come with it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.transactional_client import FEW_PARTITIONS, Transactional, committed_values, describe
from tests.broker.wire_client import WireClient, make_topic
from tests.timeouts import PATIENCE_S, until

from penstock import Producer
from penstock.broker.api_table import API_TABLE
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.schemas.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

BROKER = 4


def ask(client: WireClient, version: int = 4) -> ApiVersionsResponse:
    asked = ApiVersionsRequest(client_software_name="story", client_software_version="1")
    answer: ApiVersionsResponse = client.ask(ApiKey.API_VERSIONS, asked, version)
    return answer


@pytest.mark.parametrize("level", [1, 2])
def test_the_transaction_version_is_announced_as_it_is_set(level: int) -> None:
    settings = {**FEW_PARTITIONS, "transaction.version": str(level)}
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as client:
        newest, older = ask(client), ask(client, 3)
        for answer in (newest, older):
            (finalized,) = answer.finalized_features
            assert (finalized.name, finalized.min_version_level, finalized.max_version_level) == (
                "transaction.version",
                level,
                level,
            )
            assert answer.finalized_features_epoch >= 0
        (supported,) = newest.supported_features
        assert (supported.name, supported.min_version, supported.max_version) == ("transaction.version", 0, 2)
        assert older.supported_features == [], "version 3 cannot state a range from 0"
        assert ask(client, 0).api_keys == newest.api_keys
        # Clients of both kinds are served whatever is announced: they may have asked before it was changed.
        topic = make_topic(embedded.broker)
        for version in (1, 2):
            Transactional(client, version=version).start().transact(topic, b"%d" % version)
        until(lambda: committed_values(client, topic) == [b"1", b"2"], "both are committed")


def set_version(client: WireClient, level: int) -> None:
    change = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=BROKER,
                resource_name="",
                configs=[AlterableConfig(name="transaction.version", value=str(level))],
            )
        ]
    )
    assert client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, change, 1).responses[0].error_code == 0
    until(lambda: ask(client).finalized_features[0].max_version_level == level, "it is announced")


def test_a_lower_transaction_version_is_newer_than_the_one_before() -> None:
    """Clients keep the level with the highest epoch that they have seen."""
    with EmbeddedBroker(settings=FEW_PARTITIONS) as embedded, WireClient(embedded.port) as client:
        before = ask(client)
        set_version(client, 1)
        assert ask(client).finalized_features_epoch > before.finalized_features_epoch


def test_the_transaction_version_is_lowered_and_raised_while_transactions_are_open() -> None:
    """A producer of ours continues in the version of its connection, and one that starts takes the new one."""
    with EmbeddedBroker(settings=FEW_PARTITIONS) as embedded, WireClient(embedded.port) as client:
        topic, sent = make_topic(embedded.broker), list[bytes]()

        def transact(producer: Producer[Any, Any], then: int) -> None:
            """Two transactions; the version changes in the middle of the first."""
            for value in (b"%d" % len(sent), b"%d" % (len(sent) + 1)):
                with producer.transaction():
                    producer.send(topic, value, partition=0).result(PATIENCE_S)
                    set_version(client, then)
                sent.append(value)

        epochs = []
        for then in (1, 2, 2):
            with Producer(embedded.address, transactional_id="orders") as producer:
                transact(producer, then)
            epochs.append(describe(client, "orders").producer_epoch)
        # Version 2 ends each of two transactions in a new epoch, version 1 none, and each producer starts in one.
        assert epochs == [2, 3, 6]
        until(lambda: committed_values(client, topic) == sent, "all are committed")


@pytest.mark.parametrize(("setting", "expected"), [("false", 5), ("true", 6)])
def test_two_phase_commit_is_announced_if_it_is_allowed(setting: str, expected: int) -> None:
    settings = {"transaction.two.phase.commit.enable": setting}
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as client:
        versions = {each.api_key: each.max_version for each in ask(client).api_keys}
        assert versions[ApiKey.INIT_PRODUCER_ID] == expected
        others = {key: api.max_version for key, api in API_TABLE.items() if key in versions}
        assert {**versions, ApiKey.INIT_PRODUCER_ID: 6} == others
