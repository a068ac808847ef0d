"""The Java clients of Apache Kafka 0.9 through TLS, with stores as Java made them then, and with a certificate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
    serialize_key_and_certificates,
)
from tests.peers.compatibility.peer_stories import numbered, values
from tests.peers.conversation import ProgramFailed
from tests.peers.java_process import JavaProcess
from tests.peers.security.secure_peers import Secured
from tests.security.secure_broker import USER

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("java-clients-0.9")]

STORE_PASSWORD = "opens the store"

Ask = Callable[..., Any]


@pytest.fixture
def ask(start_java: Callable[..., JavaProcess], secured: Secured) -> Ask:
    program = start_java("java-clients-0.9", "OldClients")

    def asking(about: str, settings: dict[str, str], **question: Any) -> Any:
        return program.ask(about, address=settings["bootstrap.servers"], settings=settings, **question)

    return asking


def settings_of(secured: Secured, listener: str, user: str = USER) -> dict[str, str]:
    encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
    trust, own = secured.folder / "trust.p12", secured.folder / f"{user}.p12"
    authority = x509.load_pem_x509_certificate(Path(secured.authority).read_bytes())
    trust.write_bytes(serialize_java_truststore([PKCS12Certificate(authority, b"ca")], encryption))
    settings = {
        "bootstrap.servers": secured.broker.address_of(listener),
        "security.protocol": "SSL",
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(trust),
        "ssl.truststore.password": STORE_PASSWORD,
    }
    if listener == "MTLS":
        pem = Path(secured.certificate(user)).read_bytes()
        key: Any = load_pem_private_key(pem, None)
        certificate, *_ = x509.load_pem_x509_certificates(pem)
        own.write_bytes(serialize_key_and_certificates(user.encode(), key, certificate, None, encryption))
        settings |= {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(own),
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
        }
    return settings


@pytest.mark.parametrize("listener", ["SSL", "MTLS"])
def test_what_is_written_is_read(ask: Ask, secured: Secured, topic: str, group: str, listener: str) -> None:
    settings = settings_of(secured, listener)
    secured.broker.create_topic(topic)
    texts = [*numbered(200), "x" * 900_000]
    records = [{"partition": 0, "value": text} for text in texts]
    assert ask("produce", settings, topic=topic, records=records) == list(range(201))
    member = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false", **settings}
    assert values(ask("consume", member, topic=topic, count=201, commit=True)) == texts


def test_what_acls_deny_is_reported(ask: Ask, secured: Secured, topic: str) -> None:
    settings = settings_of(secured, "MTLS", "stranger")
    secured.broker.create_topic(topic)
    with pytest.raises(ProgramFailed, match="TopicAuthorizationException"):
        ask("produce", settings, topic=topic, records=[{"partition": 0, "value": "x"}])
