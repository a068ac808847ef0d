"""franz-go and KafkaJS through TLS, with certificates, passwords and tokens; with ACLs that do not suffice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell
from tests.peers.compatibility.peer_stories import numbered, unique, values
from tests.peers.conversation import Conversation, ProgramFailed
from tests.peers.provision import Found
from tests.peers.security.secure_peers import SCRAM, WAYS, Secured
from tests.security.certificates import WRONG_CERTIFICATES, wrong_certificates
from tests.security.secure_broker import USER
from tests.security.tokens import token

from penstock.client.admin import Admin

NODE_PROGRAM = Path(__file__).parents[1] / "compatibility" / "node" / "clients.js"
KINDS = ("franz-go", "kafkajs")
NOT_LOGGED_IN = "SASL_AUTHENTICATION_FAILED|SASLAuthenticationError"
# The reason is a challenge (RFC 7628), with Kafka too: the one does not expect any, the other believes to be logged in.
NO_TOKEN = "unexpected data in oauth response|KafkaJSConnectionClosedError"
NO_CERTIFICATE = "(?i)certificate|tls|ssl|KafkaJSConnectionError|KafkaJSConnectionClosedError"
NOT_AUTHORIZED = "TOPIC_AUTHORIZATION_FAILED|Topic authorization failed"
NOT_A_MEMBER = "GROUP_AUTHORIZATION_FAILED|Group authorization failed"


class Client:
    """A program and the secrets that it uses."""

    def __init__(self, program: Conversation, secured: Secured) -> None:
        self._program = program
        self._secured = secured

    def ask(self, about: str, listener: str, secrets: dict[str, str], **question: Any) -> Any:
        address = self._secured.broker.address_of(listener)
        return self._program.ask(about, address=address, security=secrets, **question)

    def write(self, listener: str, secrets: dict[str, str], topic: str, texts: list[str]) -> None:
        records = [{"partition": 0, "value": text} for text in texts]
        self.ask("produce", listener, secrets, topic=topic, records=records, codec="none")

    def read(self, listener: str, secrets: dict[str, str], topic: str, group: str, count: int) -> list[str]:
        return values(self.ask("consume", listener, secrets, topic=topic, group=group, count=count))


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.peer(name)) for name in KINDS])
def program(request: pytest.FixtureRequest, peer: Callable[[str], Found]) -> Iterator[Conversation]:
    found = peer(request.param)
    if request.param == "franz-go":
        started = Conversation("franz-go", [str(found.path)])
    else:
        environment = {**os.environ, "NODE_PATH": str(found.path / "node_modules")}
        started = Conversation("kafkajs", [shutil.which("node") or "node", str(NODE_PROGRAM)], environment)
    with started as conversation:
        yield conversation


@pytest.fixture
def client(program: Conversation, secured: Secured) -> Client:
    return Client(program, secured)


@pytest.mark.parametrize(("listener", "mechanism"), [*WAYS, ("SASL_SSL", "OAUTHBEARER")])
def test_what_is_written_is_read(
    client: Client, secured: Secured, topic: str, group: str, listener: str, mechanism: str
) -> None:
    secrets = secured.secrets(listener, mechanism)
    if mechanism == "OAUTHBEARER":
        secrets["token"] = token(USER)
    client.ask("create", listener, secrets, topic=topic, partitions=1)
    texts = [*numbered(200), "x" * 900_000]
    client.write(listener, secrets, topic, texts)
    assert client.read(listener, secrets, topic, group, 201) == texts


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM, "OAUTHBEARER"])
def test_wrong_credentials_are_reported(client: Client, secured: Secured, topic: str, mechanism: str) -> None:
    secrets = secured.secrets("SASL_SSL", mechanism, password="hunter2")
    if mechanism == "OAUTHBEARER":
        secrets["token"] = token(USER, lifetime_s=-100)
    before = secured.logins("failure")
    with pytest.raises(ProgramFailed, match=NO_TOKEN if "token" in secrets else NOT_LOGGED_IN) as raised:
        client.ask("topics", "SASL_SSL", secrets)
    assert "hunter2" not in str(raised.value)
    assert 1 <= secured.logins("failure") - before <= 10


@pytest.mark.parametrize("kind", WRONG_CERTIFICATES)
def test_wrong_certificates_are_reported(client: Client, secured: Secured, tmp_path: Path, kind: str) -> None:
    authority, own = wrong_certificates(tmp_path, USER, kind)
    secrets = {"ca": authority} | ({} if own is None else {"pem": own})
    with pytest.raises(ProgramFailed, match=NO_CERTIFICATE):
        client.ask("topics", "MTLS", secrets)


def test_what_acls_deny_is_reported(client: Client, secured: Secured, topic: str, group: str) -> None:
    user, shell = unique("user"), Shell(secured.plain)
    with Admin(secured.plain) as admin:
        admin.set_password(user, user, mechanism="SCRAM-SHA-256")
    secured.broker.create_topic(topic)
    secrets = secured.secrets("SASL_SSL", "SCRAM-SHA-256", user, user)
    with pytest.raises(ProgramFailed, match=NOT_AUTHORIZED):
        client.write("SASL_SSL", secrets, topic, ["x"])
    shell.done("acls", "add", "-p", f"User:{user}", "--producer", "-t", topic)
    client.write("SASL_SSL", secrets, topic, ["one"])
    shell.done("acls", "add", "-p", f"User:{user}", "-o", "read", "-t", topic)
    # KafkaJS does not say why it finds no coordinator: it may find it here, and not join.
    shell.done("acls", "add", "-p", f"User:{user}", "-o", "describe", "-g", group)
    with pytest.raises(ProgramFailed, match=NOT_A_MEMBER):
        client.read("SASL_SSL", secrets, topic, group, 1)
    shell.done("acls", "add", "-p", f"User:{user}", "-o", "read", "-g", group)
    assert client.read("SASL_SSL", secrets, topic, group, 1) == ["one"]
