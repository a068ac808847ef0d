"""A broker with a listener of every kind, and the users of its tests."""

from __future__ import annotations

from pathlib import Path

from tests.security.certificates import broker_settings
from tests.security.tokens import AUDIENCE, ISSUER, write_jwks

from penstock.security.credentials import format_jaas
from penstock.security.scram import ScramCredential
from penstock.testing.embedded_broker import EmbeddedBroker

USER, PASSWORD = "alice", "alice's secret"
LISTENERS = ("PLAINTEXT", "SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL")
_HOST = "127.0.0.1"


def scram_jaas(mechanism: str) -> str:
    credential = ScramCredential.make(PASSWORD, mechanism, 4096, b"salt of the tests").format()
    return format_jaas("SCRAM", {f"user_{USER}": credential})


def secure_settings(folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "listeners": ",".join(f"{name}://{_HOST}:0" for name in LISTENERS),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,"
        "SASL_SSL:SASL_SSL",
        "listener.name.mtls.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=Users.*$/$1/,DEFAULT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "connection.failed.authentication.delay.ms": "10",
        "sasl.oauthbearer.jwks.endpoint.url": write_jwks(folder),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "penstock.oauthbearer.groups.claim.name": "groups",
        **{name: value for name, value in broker_settings(folder).items() if name != "ssl.client.auth"},
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{listener}"
        settings[f"{prefix}.plain.sasl.jaas.config"] = format_jaas("PLAIN", {f"user_{USER}": PASSWORD})
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            settings[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = scram_jaas(mechanism)
    return settings


def secure_broker(folder: Path, **more: str) -> EmbeddedBroker:
    """`more` has settings whose names are written with two underscores for a dot."""
    changes = {name.replace("__", "."): value for name, value in more.items()}
    return EmbeddedBroker(settings={**secure_settings(folder), **changes})
