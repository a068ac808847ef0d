"""Setting and describing quotas over a socket."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.wire_client import WireClient

from penstock.broker.broker import Broker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas import describe_client_quotas
from penstock.wire.schemas.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from penstock.wire.schemas.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

Entity = dict[str, str | None]


def alter(client: WireClient, entity: Entity, *ops: OpData, validate_only: bool = False, version: int = 1) -> int:
    entry = EntryData(entity=[EntityData(kind, name) for kind, name in entity.items()], ops=list(ops))
    request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
    answer = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, request, version)
    code: int = answer.entries[0].error_code
    return code


def described(client: WireClient, *components: ComponentData, strict: bool = False, version: int = 1) -> Any:
    request = DescribeClientQuotasRequest(components=list(components), strict=strict)
    answer: describe_client_quotas.DescribeClientQuotasResponse = client.ask(
        ApiKey.DESCRIBE_CLIENT_QUOTAS, request, version
    )
    if answer.error_code:
        return answer.error_code
    return sorted(
        (
            tuple((each.entity_type, each.entity_name or "<default>") for each in entry.entity),
            tuple((each.key, each.value) for each in entry.values),
        )
        for entry in answer.entries or ()
    )


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_by_filters_and_removed(client: WireClient, broker: Broker, version: int) -> None:
    rate = OpData("producer_byte_rate", 1024.0)
    entities: list[Entity] = [
        {"user": "ann"},
        {"user": None},
        {"client-id": "app"},
        {"user": "ann", "client-id": "app"},
        {"user": "ann", "client-id": None},
    ]
    for entity in entities:
        assert alter(client, entity, rate, version=version) == 0
    assert alter(client, {"ip": "10.0.0.9"}, OpData("connection_creation_rate", 5.0), version=version) == 0
    value = (("producer_byte_rate", 1024.0),)
    ann, app = ("user", "ann"), ("client-id", "app")
    by_user = ComponentData("user", 0, "ann")
    assert described(client, by_user, strict=True, version=version) == [((ann,), value)]
    assert described(client, by_user, version=version) == [
        ((ann,), value),
        ((ann, ("client-id", "<default>")), value),
        ((ann, app), value),
    ]
    assert described(client, ComponentData("user", 1, None), version=version) == [((("user", "<default>"),), value)]
    both = (by_user, ComponentData("client-id", 2, None))
    assert len(described(client, *both, strict=True, version=version)) == 2
    assert described(client, ComponentData("ip", 0, "10.0.0.9")) == [
        ((("ip", "10.0.0.9"),), (("connection_creation_rate", 5.0),))
    ]
    assert len(described(client, version=version)) == 6
    assert broker.cluster.image.user_clients["ann", "app"] == {"producer_byte_rate": "1024"}
    for entity in entities:
        assert alter(client, entity, OpData("producer_byte_rate", 0.0, remove=True), version=version) == 0
    assert alter(client, {"ip": "10.0.0.9"}, OpData("connection_creation_rate", remove=True), version=version) == 0
    assert described(client, version=version) == []


@pytest.mark.parametrize(
    ("entity", "op"),
    [
        ({}, OpData("producer_byte_rate", 1.0)),
        ({"planet": "x"}, OpData("producer_byte_rate", 1.0)),
        ({"user": ""}, OpData("producer_byte_rate", 1.0)),
        ({"user": "x", "ip": "10.0.0.1"}, OpData("producer_byte_rate", 1.0)),
        ({"ip": "not an address"}, OpData("connection_creation_rate", 1.0)),
        ({"ip": "10.0.0.1"}, OpData("producer_byte_rate", 1.0)),
        ({"user": "x"}, OpData("connection_creation_rate", 1.0)),
        ({"user": "x"}, OpData("speed", 1.0)),
        ({"user": "x"}, OpData("producer_byte_rate", 1.5)),
        ({"user": "x"}, OpData("producer_byte_rate", 0.0)),
        ({"user": "x"}, OpData("request_percentage", -1.0)),
        ({"user": "x"}, OpData("request_percentage", float("nan"))),
    ],
)
def test_what_is_not_a_quota_is_rejected(client: WireClient, broker: Broker, entity: Entity, op: OpData) -> None:
    before = broker.cluster.image.entities
    assert alter(client, entity, op) == ErrorCode.INVALID_REQUEST
    assert broker.cluster.image.entities is before


def test_a_change_that_is_only_validated_changes_nothing(client: WireClient, broker: Broker) -> None:
    before = broker.cluster.image.entities
    assert alter(client, {"user": "later"}, OpData("producer_byte_rate", 1.0), validate_only=True) == 0
    assert broker.cluster.image.entities is before


@pytest.mark.parametrize(
    "components",
    [
        [ComponentData("planet", 0, "x")],
        [ComponentData("user", 7, "x")],
        [ComponentData("user", 0, None)],
        [ComponentData("user", 0, "x"), ComponentData("user", 2, None)],
        [ComponentData("user", 0, "x"), ComponentData("ip", 2, None)],
    ],
)
def test_a_filter_that_makes_no_sense_is_rejected(client: WireClient, components: list[ComponentData]) -> None:
    assert described(client, *components) == ErrorCode.INVALID_REQUEST
