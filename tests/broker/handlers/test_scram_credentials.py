"""Users with SCRAM credentials over a socket, and through the admin clients of others."""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import Any

import pytest
from tests.broker.wire_client import WireClient, on_loop
from tests.timeouts import PATIENCE_S, until

from penstock.broker.broker import Broker
from penstock.cluster.controller.store import load_entities
from penstock.cluster.entity_configs import Entity
from penstock.cluster.tree.layout import encode_config
from penstock.security.scram import ScramCredential
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.wire.schemas.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName

SALT = b"pepper and salt"


def upsertion(name: str, password: str = "secret", **more: Any) -> ScramCredentialUpsertion:
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, 4096)
    values = {"mechanism": 1, "iterations": 4096, "salt": SALT, "salted_password": salted, **more}
    return ScramCredentialUpsertion(name=name, **values)


def alter(client: WireClient, *wanted: ScramCredentialUpsertion | ScramCredentialDeletion) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        upsertions=[each for each in wanted if isinstance(each, ScramCredentialUpsertion)],
        deletions=[each for each in wanted if isinstance(each, ScramCredentialDeletion)],
    )
    answer = client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, 0)
    return {each.user: each.error_code for each in answer.results}


def describe(client: WireClient, *names: str) -> dict[str, Any]:
    request = DescribeUserScramCredentialsRequest(users=[UserName(name) for name in names] or None)
    answer = client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request, 0)
    return {
        each.user: each.error_code or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in answer.results
    }


def test_a_user_is_added_described_and_removed(client: WireClient, broker: Broker) -> None:
    name = "Grüße/ ~*"
    assert alter(client, upsertion(name)) == {name: 0}
    assert describe(client, name) == {name: [(1, 4096)]}
    assert describe(client)[name] == [(1, 4096)]
    stored = ScramCredential.parse(broker.cluster.image.users[name]["SCRAM-SHA-256"])
    assert stored == ScramCredential.make("secret", "SCRAM-SHA-256", 4096, SALT)
    assert alter(client, ScramCredentialDeletion(name, 1)) == {name: 0}
    assert describe(client, name) == {name: ErrorCode.RESOURCE_NOT_FOUND}
    assert name not in describe(client)


def test_what_is_stored_is_found_again_at_kafkas_path(client: WireClient, broker: Broker) -> None:
    assert alter(client, upsertion("a b~*")) == {"a b~*": 0}
    assert Entity(user="a b~*").path == "/config/users/a%20b%7E%2A"
    tree: Any = broker.cluster
    loaded = on_loop(broker, load_entities(tree._tree))
    assert loaded == broker.cluster.image.entities


def test_what_a_tool_of_kafka_writes_to_the_tree_is_followed(client: WireClient, broker: Broker) -> None:
    metadata: Any = broker.cluster
    stored = ScramCredential.make("secret", "SCRAM-SHA-256", 4096, SALT).format()

    async def write() -> None:
        await metadata._tree.create("/config/users/tool", encode_config({"SCRAM-SHA-256": stored}))
        await metadata._tree.create("/config/changes/config_change_0000000000", b'{"version":2}')

    on_loop(broker, write())
    until(lambda: "tool" in broker.cluster.image.users, "the controller has read it")
    assert describe(client, "tool") == {"tool": [(1, 4096)]}


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("<default>"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", salted_password=b"short"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (ScramCredentialDeletion("nobody", 1), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_what_kafka_rejects_is_rejected(
    client: WireClient, broker: Broker, wanted: ScramCredentialUpsertion | ScramCredentialDeletion, code: ErrorCode
) -> None:
    before = broker.cluster.image.entities
    assert alter(client, wanted, upsertion("bystander")) == {wanted.name: code, "bystander": 0}
    assert set(broker.cluster.image.users) - set(before.users) <= {"bystander"}


def test_a_credential_that_is_changed_twice_and_a_user_who_is_named_twice_are_rejected(client: WireClient) -> None:
    assert alter(client, upsertion("twin"), ScramCredentialDeletion("twin", 1)) == {
        "twin": ErrorCode.DUPLICATE_RESOURCE
    }
    assert describe(client, "twin", "twin") == {"twin": ErrorCode.DUPLICATE_RESOURCE}


def test_no_response_and_no_text_of_the_image_shows_a_key(client: WireClient, broker: Broker) -> None:
    alter(client, upsertion("quiet"))
    stored = broker.cluster.image.users["quiet"]["SCRAM-SHA-256"]
    assert "stored_key" in stored
    assert "stored_key" not in repr(broker.cluster.image)


def test_confluents_admin_client_adds_and_lists_users(embedded: EmbeddedBroker, client: WireClient) -> None:
    theirs: Any = import_module("confluent_kafka.admin")
    admin = theirs.AdminClient({"bootstrap.servers": embedded.address})
    info = theirs.ScramCredentialInfo(theirs.ScramMechanism.SCRAM_SHA_512, 8192)
    wanted = theirs.UserScramCredentialUpsertion("librdkafka", info, b"password", b"some salt")
    for future in admin.alter_user_scram_credentials([wanted]).values():
        future.result(PATIENCE_S)
    found: Any = admin.describe_user_scram_credentials(["librdkafka"])
    described = found["librdkafka"].result(PATIENCE_S)
    assert [each.iterations for each in described.scram_credential_infos] == [8192]
    assert describe(client, "librdkafka") == {"librdkafka": [(2, 8192)]}


def test_kafka_pythons_admin_client_describes_users(embedded: EmbeddedBroker, client: WireClient) -> None:
    from kafka.admin import KafkaAdminClient

    alter(client, upsertion("python"))
    admin = KafkaAdminClient(bootstrap_servers=embedded.address)
    try:
        found: Any = admin.describe_user_scram_credentials(["python"])
    finally:
        admin.close()
    assert "4096" in str(found)
