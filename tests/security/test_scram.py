"""SCRAM against an independent implementation (scramp), and what a server must not accept."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.scram import (
    DEFAULT_ITERATIONS,
    InitialUsers,
    ScramClient,
    ScramCredential,
    ScramError,
    ScramServer,
)

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SALT = b"0123456789abcdefghijklmn"


def server_for(mechanism: str, password: str = "pencil", name: str = "alice") -> ScramServer:
    credential = ScramCredential.make(password, mechanism, DEFAULT_ITERATIONS, SALT)
    return ScramServer(mechanism, {name: credential}.get, "server-nonce", b"secret")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_both_sides_agree_with_each_other(mechanism: str) -> None:
    for name in ("alice", "a=b,c", "größe"):
        server = server_for(mechanism, "pässword", name)
        client = ScramClient(mechanism, name, "pässword", "client-nonce")
        client.check(server.final(client.final(server.first(client.first()))))
        assert server.username == name


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_server_accepts_another_client(mechanism: str) -> None:
    server = server_for(mechanism)
    client = scramp.ScramClient([mechanism], "alice", "pencil")
    client.set_server_first(server.first(client.get_client_first().encode()).decode())
    client.set_server_final(server.final(client.get_client_final().encode()).decode())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_client_is_accepted_by_another_server(mechanism: str) -> None:
    other = scramp.ScramMechanism(mechanism)
    information = other.make_auth_info("pencil", iteration_count=4096, salt=SALT)
    server = other.make_server(lambda name: information)
    client = ScramClient(mechanism, "alice", "pencil", "client-nonce")
    server.set_client_first(client.first().decode())
    server.set_client_final(client.final(server.get_server_first().encode()).decode())
    client.check(server.get_server_final().encode())


def test_the_keys_are_those_of_another_implementation() -> None:
    salt, stored, server, iterations = scramp.ScramMechanism("SCRAM-SHA-512").make_auth_info(
        "pencil", iteration_count=8192, salt=SALT
    )
    ours = ScramCredential.make("pencil", "SCRAM-SHA-512", 8192, SALT)
    assert (ours.salt, ours.stored_key, ours.server_key, ours.iterations) == (salt, stored, server, iterations)


def test_a_credential_is_written_as_in_kafkas_tree() -> None:
    credential = ScramCredential.make("pencil", "SCRAM-SHA-256", 4096, SALT)
    text = credential.format()
    assert re.fullmatch(r"salt=[^,]+,stored_key=[^,]+,server_key=[^,]+,iterations=4096", text)
    assert ScramCredential.parse(text) == credential
    assert base64.b64encode(credential.stored_key).decode() not in repr(credential)
    for bad in ("", "salt=AA==", text + ",more=1", text.replace("4096", "x"), text.replace("salt=", "salt=*")):
        with pytest.raises(ValueError, match="SCRAM credential"):
            ScramCredential.parse(bad)


def final_with(nonce: str, first: str, password: str = "pencil", binding: str = "biws") -> bytes:
    """A client-final message with any nonce, whose proof is right for it."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, DEFAULT_ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c={binding},r={nonce}"
    transcript = f"n=alice,r=client-nonce,{first},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), transcript, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    return f"{without_proof},p={proof}".encode()


def test_the_nonce_of_the_last_message_is_checked_whole() -> None:
    """CVE-2024-56128. The doubled client nonce is that of librdkafka before 2.6.1, and nothing else is accepted."""
    accepted = []
    for nonce in (
        "client-nonceserver-nonce",
        "client-nonceclient-nonceserver-nonce",
        "client-nonceclient-nonceclient-nonceserver-nonce",
        "server-nonce",
        "xclient-nonceserver-nonce",
        "otherserver-nonce",
        "client-nonceserver-noncex",
        "client-nonce",
        "server-nonceclient-nonceserver-nonce",
    ):
        server = server_for("SCRAM-SHA-256")
        first = server.first(b"n,,n=alice,r=client-nonce").decode()
        try:
            server.final(final_with(nonce, first))
        except ScramError:
            continue
        else:
            accepted.append(nonce)
    assert accepted == ["client-nonceserver-nonce", "client-nonceclient-nonceserver-nonce"]


def test_the_header_of_the_first_message_is_checked_in_the_last() -> None:
    server = server_for("SCRAM-SHA-256")
    first = server.first(b"n,,n=alice,r=client-nonce").decode()
    with pytest.raises(ScramError, match="invalid credentials"):
        server.final(final_with("client-nonceserver-nonce", first, binding=base64.b64encode(b"y,,").decode()))


def test_an_unknown_user_looks_like_a_wrong_password() -> None:
    messages = []
    for name, password in (("alice", "wrong"), ("nobody", "pencil")):
        server = server_for("SCRAM-SHA-256")
        client = ScramClient("SCRAM-SHA-256", name, password, "client-nonce")
        first = server.first(client.first()).decode()
        assert re.fullmatch(r"r=client-nonceserver-nonce,s=[A-Za-z0-9+/]{32},i=8192", first)
        with pytest.raises(ScramError) as raised:
            server.final(client.final(first.encode()))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    salts = {server_for("SCRAM-SHA-256").first(b"n,,n=nobody,r=x") for _ in range(3)}
    assert len(salts) == 1


def test_a_stored_key_of_zeros_lets_no_one_in() -> None:
    server = server_for("SCRAM-SHA-256")
    server.first(b"n,,n=nobody,r=client-nonce")
    for size in (0, 1, 32, 64):
        with pytest.raises(ScramError):
            server.final(b"c=biws,r=client-nonceserver-nonce,p=" + base64.b64encode(bytes(size) or b"\0"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"p=tls-unique,,n=alice,r=x",
        b"y,,n=alice,r=x",
        b"n,,n=,r=x",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=x",
        b"n,,r=x,n=alice",
        b"n,,m=ext,n=alice,r=x",
        b"n,,n=alice,r=\x01",
        b"n,a=bob,n=alice,r=x",
        b"n,,n=alice,r=x,tokenauth=true",
        b"n,,n=alice,r=" + b"x" * 10_000,
        b"\xff\xfe",
    ],
)
def test_a_first_message_that_is_not_scram_is_rejected(message: bytes) -> None:
    with pytest.raises(ScramError):
        server_for("SCRAM-SHA-256").first(message)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_any_messages_fail_with_one_error(first: bytes, second: bytes) -> None:
    server = server_for("SCRAM-SHA-256")
    for start in (first, b"n,,n=alice,r=client-nonce"):
        try:
            server.first(start)
        except ScramError:
            continue
        with pytest.raises(ScramError):
            server.final(second)


def test_a_client_does_not_trust_a_server_that_does_not_know_the_password() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "pencil", "client-nonce")
    server = server_for("SCRAM-SHA-256")
    client.final(server.first(client.first()))
    with pytest.raises(ScramError, match="did not prove"):
        client.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(ScramError, match="reports invalid-proof"):
        client.check(b"e=invalid-proof")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"r=other,s=AAAA,i=4096", "does not continue"),
        (b"r=client-nonce,s=AAAA,i=4096", "does not continue"),
        (b"r=client-nonceX,s=AAAA,i=1", "asks for 1 iterations"),
        (b"r=client-nonceX,s=AAAA,i=999999999", "iterations"),
        (b"hello", "not SCRAM"),
    ],
)
def test_a_client_rejects_a_first_message_that_weakens_the_exchange(message: bytes, reason: str) -> None:
    with pytest.raises(ScramError, match=reason):
        ScramClient("SCRAM-SHA-256", "alice", "pencil", "client-nonce").final(message)


@pytest.mark.parametrize("iterations", [0, 4095, 16385])
def test_iterations_have_kafkas_bounds(iterations: int) -> None:
    with pytest.raises(ValueError, match="4096 to 16384"):
        ScramCredential.make("pencil", "SCRAM-SHA-256", iterations, SALT)


def test_initial_users_are_read_as_they_are_written() -> None:
    credential = ScramCredential.make("secret", "SCRAM-SHA-512", 4096, b"salt").format()
    users = InitialUsers({"admin": {"SCRAM-SHA-512": credential}, "a:b": {"SCRAM-SHA-512": credential}})
    assert InitialUsers.parse(users.format()) == users
    assert InitialUsers.parse(" ; ") == InitialUsers()
    assert credential not in repr(users)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("admin", "user 1 is not <mechanism>:<name>:<credential>"),
        ("PLAIN:admin:secret", "user 1 is not"),
        ("SCRAM-SHA-512::salt=x", "user 1 is not"),
        ("SCRAM-SHA-512:admin:hunter2", "user 'admin': a SCRAM credential is"),
    ],
)
def test_initial_users_that_cannot_be_read_are_named_without_their_credentials(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as raised:
        InitialUsers.parse(text)
    assert "hunter2" not in str(raised.value)
