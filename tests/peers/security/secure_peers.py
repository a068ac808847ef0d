"""A broker with every kind of secure listener and with ACLs, and the settings by which foreign clients use it.

`alice` and clients without a name may do everything; everybody else needs an ACL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from tests.peers.compatibility.peer_stories import BROKER_SETTINGS
from tests.security.certificates import write_ca, write_client
from tests.security.secure_broker import PASSWORD, USER, secure_broker

from penstock.security.credentials import format_jaas, kind_of
from penstock.testing.embedded_broker import EmbeddedBroker

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
WAYS: Final = [("SSL", ""), ("MTLS", ""), *(("SASL_SSL", each) for each in ("PLAIN", *SCRAM))]
"""Listeners and mechanisms; tokens need more than a password."""


@dataclass(frozen=True)
class Secured:
    broker: EmbeddedBroker
    folder: Path

    @property
    def plain(self) -> str:
        """Where our own commands look at what others did."""
        return self.broker.address_of("PLAINTEXT")

    @property
    def authority(self) -> str:
        return write_ca(self.folder)

    def certificate(self, name: str) -> str:
        """Key and certificate in one file. Java reads keys as PKCS#8 only."""
        path = Path(write_client(self.folder, name))
        content = path.read_bytes()
        key = load_pem_private_key(content, None)
        chain = content[content.index(b"-----BEGIN CERTIFICATE") :]
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain)
        return str(path)

    def java(self, listener: str, mechanism: str = "", user: str = USER, password: str = PASSWORD) -> dict[str, str]:
        """Settings of a Java client."""
        settings = {
            "bootstrap.servers": self.broker.address_of(listener),
            "security.protocol": "SSL" if listener == "MTLS" else listener,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
        }
        if listener == "MTLS":
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate(user)}
        if mechanism:
            login = format_jaas(kind_of(mechanism), {"username": user, "password": password})
            settings |= {"sasl.mechanism": mechanism, "sasl.jaas.config": login}
        return settings

    def librdkafka(self, listener: str, mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
        settings = {
            "bootstrap.servers": self.broker.address_of(listener),
            "security.protocol": "SSL" if listener == "MTLS" else listener,
            "ssl.ca.location": self.authority,
        }
        if listener == "MTLS":
            pem = self.certificate(user)
            settings |= {"ssl.certificate.location": pem, "ssl.key.location": pem}
        if mechanism:
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        return settings

    def secrets(self, listener: str, mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
        """The settings of the programs in Go and JavaScript."""
        found = {"ca": self.authority}
        if listener == "MTLS":
            found["pem"] = self.certificate(user)
        return found | ({"mechanism": mechanism, "username": user, "password": password} if mechanism else {})

    def logins(self, outcome: str) -> float:
        """How many logins through TLS have had this outcome: `success` or `failure`."""
        counters = self.broker.broker.services.metrics.authentications
        return counters.labelled(listener="SASL_SSL", outcome=outcome).value


def secured_broker(folder: Path, **more: str) -> EmbeddedBroker:
    """`more` has settings whose names are written with two underscores for a dot."""
    settings = {
        **BROKER_SETTINGS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER}",
    }
    return secure_broker(folder, **{name.replace(".", "__"): value for name, value in settings.items()}, **more)
