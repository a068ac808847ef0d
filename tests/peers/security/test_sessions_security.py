"""Sessions that end (`connections.max.reauth.ms`): Java, franz-go and KafkaJS renew them on the connections they have.

A user that was removed is out when its session ends.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.peers.compatibility.peer_stories import unique
from tests.peers.compatibility.transaction_stories import TransactionalPeer
from tests.peers.conversation import Conversation
from tests.peers.java_process import JavaProcess
from tests.peers.provision import Found
from tests.peers.security.secure_peers import Secured, secured_broker
from tests.timeouts import until

from penstock.client.admin import (
    AclBinding,
    AclEntry,
    Admin,
    Operation,
    Permission,
    ResourcePattern,
    ResourceType,
)

NODE_PROGRAM = Path(__file__).parents[1] / "compatibility" / "node" / "clients.js"
KINDS = {"java": ("java", "java-clients-4.3"), "franz-go": ("franz-go",), "kafkajs": ("kafkajs",)}
# Kafka's clients renew a session when at least 85 % of it are over, and at most once a second.
SESSION_MS = 3_000


@pytest.fixture(scope="module")
def short_lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("sessions")
    with secured_broker(folder, connections__max__reauth__ms=str(SESSION_MS)) as broker:
        yield Secured(broker, folder)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.peer(each) for each in peers]) for name, peers in KINDS.items()],
)
def program(
    request: pytest.FixtureRequest, peer: Callable[[str], Found], start_java: Callable[..., JavaProcess]
) -> Iterator[Conversation]:
    if request.param == "java":
        yield start_java("java-clients-4.3", "Transactions")
        return
    command, environment = [str(peer(request.param).path)], None
    if request.param == "kafkajs":
        command = [shutil.which("node") or "node", str(NODE_PROGRAM)]
        environment = {**os.environ, "NODE_PATH": str(peer("kafkajs").path / "node_modules")}
    with Conversation(request.param, command, environment) as conversation:
        yield conversation


@pytest.fixture
def user(short_lived: Secured) -> str:
    """A user that may do everything with topics and transactions, and whose password is its name."""
    name = unique("user")
    with Admin(short_lived.plain) as admin:
        admin.set_password(name, name)
        admin.create_acls([
            AclBinding(ResourcePattern(kind, "*"), AclEntry(f"User:{name}", "*", Operation.ALL, Permission.ALLOW))
            for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID)
        ])  # fmt: skip
    return name


def opened(program: Conversation, secured: Secured, user: str) -> TransactionalPeer:
    login = ("SASL_SSL", "SCRAM-SHA-512", user, user)
    # By default, KafkaJS renews sessions ten seconds before their end.
    secrets: dict[str, Any] = {**secured.secrets(*login), "renew_before_ms": SESSION_MS // 3}
    timeouts = {"delivery.timeout.ms": "10000", "request.timeout.ms": "5000"}
    options: dict[str, Any] = {"settings": secured.java(*login) | timeouts, "security": secrets}
    return TransactionalPeer(program, secured.broker.address_of("SASL_SSL"), unique("transactional"), **options)


def transaction(producer: TransactionalPeer, topic: str) -> list[str | None]:
    return [producer.do("begin"), producer.send(topic, "x"), producer.do("commit")]


def test_sessions_are_renewed_on_their_connections(
    program: Conversation, short_lived: Secured, topic: str, user: str
) -> None:
    short_lived.broker.create_topic(topic)
    producer = opened(program, short_lived, user)
    assert transaction(producer, topic) == [None] * 3
    server = short_lived.broker.broker.services.server
    connections, logins = server.counters.accepted, short_lived.logins("success")
    failures = short_lived.logins("failure")

    def has_renewed_three_times() -> bool:
        assert transaction(producer, topic) == [None] * 3
        return short_lived.logins("success") >= logins + 3

    until(has_renewed_three_times, "the sessions are renewed")
    assert server.counters.accepted == connections
    assert short_lived.logins("failure") == failures
    producer.do("close")


@pytest.mark.peer("java")
@pytest.mark.peer("java-clients-4.3")
def test_a_user_that_was_removed_is_out_when_its_session_ends(
    start_java: Callable[..., JavaProcess], short_lived: Secured, topic: str, user: str
) -> None:
    short_lived.broker.create_topic(topic)
    producer = opened(start_java("java-clients-4.3", "Transactions"), short_lived, user)
    assert transaction(producer, topic) == [None] * 3
    with Admin(short_lived.plain) as admin:
        admin.delete_user(user)
    found: list[str | None] = []
    before = short_lived.logins("failure")

    def is_out() -> bool:
        found[:] = transaction(producer, topic)
        return any(found)

    until(is_out, "the session has ended")
    # With metadata that it knows, the Java producer tries again until the time for a delivery is over.
    assert {"SaslAuthenticationException", "TimeoutException"} & set(found), found
    assert short_lived.logins("failure") > before
    producer.do("close")
