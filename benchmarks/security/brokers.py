"""Brokers with the same listeners, certificate, user and ACLs, ours and Kafka's.

Each has a listener of every protocol. With an authorizer, the user needs an ACL for what it does, among some hundreds
of others; clients without a name (the PLAINTEXT listener, by which the brokers are prepared) are super users.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import Producer

from benchmarks.peers.servers import HOST, NO_CONFIGS, Dialect, Server, ServerFailed, free_ports
from penstock import Admin
from penstock.security.acls import (
    AclBinding,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.security.authority import CertificateAuthority
from penstock.security.credentials import SCRAM_SHA_512, format_jaas

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
USER, PASSWORD, ITERATIONS = "bench", "a password for the benchmark", 4096
MECHANISM: Final = SCRAM_SHA_512
TOPIC, ONE_RECORD = "bench", "bench-one"
ACLS: Final = 500
_FURTHER: Final = (SSL, SASL_PLAINTEXT, SASL_SSL)
_OTHERS: Final = 40
_VALUE_BYTES: Final = 100
_TIMEOUT_S: Final = 60.0
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class Start(Protocol):
    """Starts a broker in a folder, with further listeners and settings."""

    def __call__(self, folder: Path, listeners: Mapping[str, int], more: Mapping[str, str]) -> Server: ...


@dataclass(frozen=True)
class Certificates:
    authority: Path
    broker: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """One authority, and a certificate for this machine (ECDSA on P-256)."""
        now = datetime.datetime.now(datetime.UTC)
        authority = CertificateAuthority.create("benchmark", now)
        issued = authority.issue("broker", (HOST,), now)
        made = cls(folder / "ca.pem", folder / "broker.pem")
        made.authority.write_bytes(authority.pem.certificate)
        made.broker.write_bytes(issued.key + issued.certificate)
        return made


@dataclass(frozen=True)
class Listener:
    """A broker as clients of one of its listeners see it; the workloads of `benchmarks.peers` load it."""

    server: Server
    protocol: str
    port: int
    client: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def dialect(self) -> Dialect:
        return Dialect(client=self.client)

    def cpu_s(self) -> float:
        return self.server.cpu_s()


@dataclass(frozen=True)
class SecureBroker:
    """A running broker with its listeners. `has_acls`: an authorizer decides by ACLs."""

    server: Server
    certificates: Certificates
    ports: Mapping[str, int]
    has_acls: bool

    @property
    def name(self) -> str:
        return self.server.name

    def listener(self, protocol: str) -> Listener:
        client: dict[str, Any] = {"security.protocol": protocol}
        if protocol.endswith(SSL):
            client["ssl.ca.location"] = str(self.certificates.authority)
        if protocol.startswith("SASL"):
            client |= {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": PASSWORD}
        return Listener(self.server, protocol, self.ports[protocol], client)

    def prepare(self) -> None:
        """Make the user, the topics, and the ACLs."""
        for topic in (TOPIC, ONE_RECORD):
            self.server.topics.make(topic, self.server.flushing.unsynced_topic)
        # This client waits until the topics are there.
        producer = Producer({"bootstrap.servers": self.server.address, "log_level": 0})
        for topic in (TOPIC, ONE_RECORD):
            producer.produce(topic, bytes(_VALUE_BYTES))
        if producer.flush(_TIMEOUT_S):
            raise ServerFailed(f"{self.name} did not acknowledge the first records")
        with Admin(self.server.address) as admin:
            admin.set_password(USER, PASSWORD, mechanism=MECHANISM, iterations=ITERATIONS)
            if self.has_acls:
                self._make_acls(admin)

    def _make_acls(self, admin: Admin) -> None:
        failed = [error for error in admin.create_acls(acls()).values() if error is not None]
        if failed:
            raise ServerFailed(f"{self.name} did not store {len(failed)} ACLs: {failed[0]}")
        deadline = time.monotonic() + _TIMEOUT_S
        while len(admin.describe_acls()) < ACLS:
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} does not have all ACLs after {_TIMEOUT_S:.0f} s")
            time.sleep(0.1)


@contextmanager
def running(start: Start, folder: Path, certificates: Certificates, *, has_acls: bool) -> Iterator[SecureBroker]:
    """A broker that is started, prepared and stopped."""
    listeners = dict(zip(_FURTHER, free_ports(len(_FURTHER)), strict=True))
    with start(folder, listeners, settings(certificates, has_acls=has_acls)) as server:
        broker = SecureBroker(server, certificates, {PLAINTEXT: server.port, **listeners}, has_acls)
        broker.prepare()
        yield broker


def settings(certificates: Certificates, *, has_acls: bool) -> dict[str, str]:
    """The settings of both brokers."""
    protocols = (PLAINTEXT, *_FURTHER)
    login = format_jaas("SCRAM", {})
    return {
        "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *(f"{each}:{each}" for each in protocols)]),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "sasl.enabled.mechanisms": MECHANISM,
        **{
            f"listener.name.{each.lower()}.{MECHANISM.lower()}.sasl.jaas.config": login
            for each in (SASL_PLAINTEXT, SASL_SSL)
        },
        **({"authorizer.class.name": _AUTHORIZER, "super.users": "User:ANONYMOUS"} if has_acls else NO_CONFIGS),
    }


def acls() -> list[AclBinding]:
    """ACLs as a cluster with many users has them; those of the benchmark's user are two of them."""
    literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
    found = [
        _allow(TOPIC, literal, USER, Operation.WRITE),
        _allow(ONE_RECORD, literal, USER, Operation.READ),
    ]
    for number in range(_OTHERS):
        # On the same topics, on all topics, and on prefixes of their names.
        found += [
            _allow((TOPIC, ONE_RECORD)[number % 2], literal, f"user-{number}", Operation.READ),
            _allow("*", literal, f"auditor-{number}", Operation.DESCRIBE),
            _allow(TOPIC[: 1 + number % len(TOPIC)], prefixed, f"team-{number}", Operation.WRITE),
        ]
    for number in range(ACLS - len(found)):
        pattern = prefixed if number % 2 else literal
        found.append(_allow(f"topic-{number}", pattern, f"user-{number % _OTHERS}", Operation.READ))
    return found


def _allow(name: str, pattern: PatternType, user: str, operation: Operation) -> AclBinding:
    entry = AclEntry(f"User:{user}", "*", operation, Permission.ALLOW)
    return AclBinding(ResourcePattern(ResourceType.TOPIC, name, pattern), entry)
