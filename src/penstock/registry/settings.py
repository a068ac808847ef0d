"""The settings of an instance of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

TOPIC: Final = "_schemas"
GROUP: Final = "schema-registry"
PORT: Final = 8081


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """`options` are those of all clients: security_protocol, sasl_*, ssl_*, request_timeout_ms and so on.

    Instances with the same topic and group form one registry. `advertised_url` is where the others find this one.
    """

    bootstrap_servers: str = "127.0.0.1:9092"
    options: Mapping[str, Any] = field(default_factory=dict)
    topic: str = TOPIC
    group_id: str = GROUP
    replication_factor: int = 3
    """At most as many as there are brokers."""
    host: str = "127.0.0.1"
    port: int = PORT
    """0 is any free port."""
    advertised_url: str | None = None
    hosts: tuple[str, ...] = ()
    """Names by which clients may call this machine, besides its own; `*` is any."""
    token: str | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    """With a token, or a user and password, requests have to show one of them."""
    session_timeout_ms: int = 10_000
    write_timeout_ms: int = 15_000
    request_timeout_ms: int = 60_000
    """For a whole request, from its first byte to the last one of the response."""
    start_timeout_ms: int = 60_000
    body_bytes: int = 1024 * 1024
    connections: int = 512
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_cafile: str | None = None
    """Certificates (PEM) that forwarding to the leader trusts; by default the system's and roots in `ssl_certfile`."""
