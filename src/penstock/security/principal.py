"""Who is on the other side of a connection.

A principal is a type and a name, written `User:alice`. Certificates, SASL mechanisms and tokens each give a connection
one user; a token may add groups and roles, which ACLs can name as well. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

USER: Final = "User"
GROUP: Final = "Group"
ROLE: Final = "Role"


class Principal(NamedTuple):
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """`User:alice`; the name may contain colons. ValueError."""
    kind, colon, name = text.strip().partition(":")
    if not (kind and colon and name):
        raise ValueError(f"{text!r} is not a principal; write Type:name, for example User:alice")
    return Principal(kind, name)


@dataclass(frozen=True, slots=True)
class Session:
    """The identity of one connection. Re-authentication replaces it."""

    principal: Principal = ANONYMOUS
    listener: str = "PLAINTEXT"
    protocol: str = "PLAINTEXT"
    """The security protocol of the listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    host: str = ""
    """The peer's address without its port, as ACLs name it."""
    groups: frozenset[Principal] = frozenset()
    """Groups and roles from the claims of a token."""
    is_broker: bool = False
    """Whether the peer has proved that it is a broker of this cluster."""
    expires_at_ms: int | None = None
    """When the peer must authenticate again; None: never."""

    @property
    def principals(self) -> tuple[Principal, ...]:
        """All principals whose ACLs apply to this connection."""
        return (self.principal, *self.groups)


ANONYMOUS_SESSION: Final = Session()
