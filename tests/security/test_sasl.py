"""Mechanisms as state machines: both sides of each, and what a server rejects."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.tokens import AUDIENCE, ISSUER, jwks, token

from penstock.security.credentials import Secret
from penstock.security.oauth import Jwks, OAuthSettings, TokenValidator
from penstock.security.principal import Principal
from penstock.security.sasl import (
    Authenticated,
    AuthenticationError,
    BearerClient,
    BearerServer,
    Challenge,
    ClientMechanism,
    PlainClient,
    PlainServer,
    ScramClientMechanism,
    ScramServerMechanism,
    ServerMechanism,
    parse_bearer,
)
from penstock.security.scram import ScramCredential

CREDENTIAL = ScramCredential.make("pencil", "SCRAM-SHA-512", 4096, b"salt").format()


def converse(client: ClientMechanism, server: ServerMechanism) -> Authenticated:
    sent: bytes | None = client.first()
    for _ in range(5):
        assert sent is not None
        outcome = server.respond(sent)
        if isinstance(outcome, Authenticated):
            assert client.next(outcome.token) is None
            return outcome
        assert isinstance(outcome, Challenge)
        sent = client.next(outcome.token)
    raise AssertionError("the exchange has no end")


def bearer_server() -> BearerServer:
    keys = Jwks(lambda: jwks(), lambda: 0.0)
    keys.refresh()
    return BearerServer(TokenValidator(OAuthSettings("", ISSUER, (AUDIENCE,)), keys, time.time))


def scram_server() -> ScramServerMechanism:
    users = {"alice": CREDENTIAL, "damaged": "salt=x"}
    return ScramServerMechanism("SCRAM-SHA-512", users.get, "nonce", b"secret")


def test_each_mechanism_authenticates_its_client() -> None:
    pairs: list[tuple[ClientMechanism, ServerMechanism]] = [
        (PlainClient("alice", Secret("pencil")), PlainServer({"alice": Secret("pencil")})),
        (ScramClientMechanism("SCRAM-SHA-512", "alice", Secret("pencil"), "x"), scram_server()),
        (BearerClient(Secret(token("alice")), {"traceId": "1"}), bearer_server()),
    ]
    for client, server in pairs:
        assert client.name == server.name
        assert converse(client, server).principal == Principal("User", "alice")


def test_wrong_credentials_say_nothing_about_the_user() -> None:
    def failure(client: ClientMechanism, server: ServerMechanism) -> str:
        with pytest.raises(AuthenticationError) as raised:
            converse(client, server)
        return str(raised.value)

    users = {"alice": Secret("pencil")}
    plain = {failure(PlainClient(name, Secret("wrong")), PlainServer(users)) for name in ("alice", "nobody")}
    scram = {
        failure(ScramClientMechanism("SCRAM-SHA-512", name, Secret("wrong"), "x"), scram_server())
        for name in ("alice", "nobody", "damaged")
    }
    assert plain == {"Authentication failed: Invalid username or password"}
    assert len(scram) == 1
    assert "not accepted" in failure(BearerClient(Secret(token(exp=1))), bearer_server())


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "expected authorization id"),
        (b"alice\0pencil", "expected authorization id"),
        (b"\0alice\0pencil\0", "expected authorization id"),
        (b"\0\0pencil", "user name not specified"),
        (b"\0alice\0", "password not specified"),
        (b"\0\xff\0pencil", "not UTF-8"),
        (b"bob\0alice\0pencil", "different from username"),
        (b"\0alice\0" + b"x" * 10_000, "expected authorization id"),
        (b"\0nobody\0" + bytes(1) * 16, "expected authorization id"),
    ],
)
def test_plain_messages_that_are_wrong_are_rejected(message: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason):
        PlainServer({"alice": Secret("pencil")}).respond(message)


def test_an_authorization_id_may_repeat_the_name() -> None:
    assert isinstance(PlainServer({"a": Secret("p")}).respond(b"a\0a\0p"), Authenticated)


def test_a_rejected_token_is_answered_in_json_before_the_exchange_ends() -> None:
    server = bearer_server()
    outcome = server.respond(BearerClient(Secret(token(exp=1))).first())
    assert outcome == Challenge(b'{"status": "invalid_token"}')
    with pytest.raises(AuthenticationError):
        server.respond(b"\x01")
    with pytest.raises(AuthenticationError):
        server.respond(BearerClient(Secret(token())).first())


def test_bearer_messages_are_parsed_as_clients_send_them() -> None:
    assert parse_bearer(b"n,,\x01auth=Bearer a.b.c\x01\x01") == ("", "a.b.c")
    assert parse_bearer(b"n,a=alice,\x01k=v\x01auth=bearer  a.b.c\x01x=\x01\x01") == ("alice", "a.b.c")
    for bad in (b"", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01auth=Bearer a.b.c\x01", b"\xff"):
        with pytest.raises(AuthenticationError):
            parse_bearer(bad)


@given(st.binary(max_size=200))
def test_any_message_is_rejected_with_one_error(message: bytes) -> None:
    servers: list[ServerMechanism] = [PlainServer({"alice": Secret("pencil")}), scram_server(), bearer_server()]
    for server in servers:
        try:
            outcome = server.respond(message)
        except AuthenticationError:
            continue
        assert not isinstance(outcome, Authenticated)
