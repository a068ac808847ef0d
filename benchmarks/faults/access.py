"""How clients and the harness reach a cluster: in plaintext, or with TLS and a login of their own."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.logins import log_in
from penstock.security.credentials import SCRAM_SHA_512

PROTOCOL: Final = "SASL_SSL"
MECHANISM: Final = SCRAM_SHA_512
CONFLUENT, KAFKA_PYTHON, OURS = "confluent-kafka", "kafka-python", "penstock"


@dataclass(frozen=True)
class Access:
    """A user, and the authority that signed the brokers' certificates; without an authority, plaintext."""

    username: str = ""
    password: str = field(default="", repr=False)
    authority: str = ""

    def options(self, client: str) -> Mapping[str, Any]:
        """The settings of a client, by its name."""
        if not self.authority:
            return {}
        if client == CONFLUENT:
            return {
                "security.protocol": PROTOCOL, "ssl.ca.location": self.authority, "sasl.mechanism": MECHANISM,
                "sasl.username": self.username, "sasl.password": self.password,
            }  # fmt: skip
        authority = {KAFKA_PYTHON: "ssl_cafile", OURS: "ssl_truststore_location"}[client]
        return {
            "security_protocol": PROTOCOL, "sasl_mechanism": MECHANISM, "sasl_plain_username": self.username,
            "sasl_plain_password": self.password, authority: self.authority,
        }  # fmt: skip

    def connect(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """A connection that is ready for requests. Raises OSError, ServerFailed, ScramError."""
        connection = socket.create_connection((host, port), timeout_s)
        if not self.authority:
            return connection
        try:
            connection = _context(self.authority).wrap_socket(connection, server_hostname=host)
            log_in(connection, MECHANISM, self.username, self.password)
        except BaseException:
            connection.close()
            raise
        return connection

    def save(self, path: Path) -> None:
        """For a process that `load`s it; only its owner can read it."""
        path.touch(mode=0o600)
        os.chmod(path, 0o600)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Access:
        return cls(**json.loads(path.read_text()))


@cache
def _context(authority: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


PLAINTEXT: Final = Access()
