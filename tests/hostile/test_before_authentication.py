"""Random and mutated bytes on every kind of listener, before and after authentication.

A well-behaved client on the same broker is answered all the while, no exception is logged, and nothing stays behind.
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.wire_client import WireClient, request_bytes
from tests.security.certificates import write_ca, write_client
from tests.security.secure_broker import PASSWORD, USER, secure_broker
from tests.security.tokens import token
from tests.timeouts import until

from penstock.security.credentials import Secret
from penstock.security.sasl import BearerClient, PlainClient, ScramClientMechanism
from penstock.security.tls import client_context
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.api_versions import ApiVersionsRequest
from penstock.wire.schemas.metadata import MetadataRequest
from penstock.wire.schemas.sasl_authenticate import SaslAuthenticateRequest
from penstock.wire.schemas.sasl_handshake import SaslHandshakeRequest

CONVERSATIONS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure")


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[EmbeddedBroker]:
    with secure_broker(
        folder, penstock__authentication__timeout__ms="2000", connection__failed__authentication__delay__ms="0"
    ) as broker:
        yield broker


def seeds() -> list[bytes]:
    """Requests of an honest login, in every mechanism."""
    found = [
        request_bytes(ApiKey.API_VERSIONS, 3, 1, ApiVersionsRequest("fuzz", "1")),
        request_bytes(ApiKey.METADATA, 9, 2, MetadataRequest(topics=None)),
        request_bytes(ApiKey.METADATA, 1, 2, MetadataRequest(topics=[])),
    ]
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"):
        request = SaslHandshakeRequest(mechanism=mechanism)
        found += [request_bytes(ApiKey.SASL_HANDSHAKE, version, 3, request) for version in (0, 1)]
    tokens = [
        PlainClient(USER, Secret(PASSWORD)).first(),
        ScramClientMechanism("SCRAM-SHA-256", USER, Secret(PASSWORD), "nonce").first(),
        BearerClient(Secret(token(USER))).first(),
        b"c=biws,r=nonce,p=AAAA",
        b"\x01",
    ]
    for each in tokens:
        found += [
            request_bytes(ApiKey.SASL_AUTHENTICATE, version, 4, SaslAuthenticateRequest(auth_bytes=each))
            for version in (0, 1, 2)
        ]
        found.append(len(each).to_bytes(4, "big") + each)
    return found


def mutated(source: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(source.choice((0, 0, 1, 1, 2, 5))):
        place = source.randrange(len(changed))
        kind = source.randrange(4)
        if kind == 0:
            changed[place] = source.randrange(256)
        elif kind == 1:
            changed[place : place + 1] = source.randbytes(source.randrange(8))
        elif kind == 2:
            del changed[place : place + source.randrange(1, 8)]
        else:
            changed[place] ^= 1 << source.randrange(8)
        if not changed:
            break
    return bytes(changed)


def converse(sock: socket.socket, source: random.Random, messages: list[bytes]) -> None:
    """Send a few messages and read what comes, until the broker has had enough."""
    sock.settimeout(0.02)
    for _ in range(source.randrange(1, 5)):
        try:
            if source.random() < 0.05:
                sock.sendall(source.randbytes(source.randrange(200)))
            else:
                sock.sendall(mutated(source, source.choice(messages)))
            if not sock.recv(65_536):
                return
        except TimeoutError:
            continue
        except OSError:
            return


def contexts(folder: Path, listener: str) -> ssl.SSLContext | None:
    if listener in ("PLAINTEXT", "SASL_PLAINTEXT"):
        return None
    settings = {"ssl.truststore.location": write_ca(folder)}
    if listener == "MTLS":
        settings["ssl.keystore.location"] = write_client(folder, USER)
    return client_context(settings)


@pytest.mark.long
@pytest.mark.parametrize("listener", ["SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("with_tls", [True, False])
def test_hostile_bytes_hurt_only_their_own_connection(
    secure: EmbeddedBroker, folder: Path, listener: str, with_tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    context = contexts(folder, listener)
    if context is None and not with_tls:
        pytest.skip("the listener has no TLS")
    source = random.Random(f"{listener} {with_tls}")
    host, _, port = secure.address_of(listener).rpartition(":")
    honest = WireClient(int(secure.address_of("PLAINTEXT").rpartition(":")[2]))
    messages = seeds()
    server: Any = secure.broker.services.server
    with caplog.at_level(logging.ERROR):
        for _ in range(CONVERSATIONS):
            sock: socket.socket = socket.create_connection((host, int(port)), 10)
            try:
                if context is not None and with_tls:
                    sock = context.wrap_socket(sock, server_hostname="localhost")
                converse(sock, source, messages)
            except OSError:
                pass
            finally:
                sock.close()
            assert honest.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 9).brokers
        until(lambda: len(server.connections) == 1, "hostile connections are gone")
    honest.close()
    assert [record.message for record in caplog.records] == []
    assert secure.broker.services.server.counters.connections <= 1
