"""Who answers when it is no broker: told by the first bytes.

A broker's first four bytes are a length. What other servers say first, read as one, is absurd, but says who they are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.client.errors import Cause


class Stranger(NamedTuple):
    start: bytes
    name: str
    cause: Cause


_STRANGERS: Final = (
    Stranger(b"\x15\x03", "a TLS alert", Cause.TLS_REQUIRED),
    Stranger(b"\x16\x03", "a TLS handshake", Cause.TLS_REQUIRED),
    Stranger(b"HTTP", "an HTTP response", Cause.HTTP),
    Stranger(b"<htm", "an HTML page", Cause.HTTP),
    Stranger(b"<!DO", "an HTML page", Cause.HTTP),
    Stranger(b"SSH-", "an SSH server", Cause.NOT_KAFKA),
    Stranger(b"220 ", "a mail or FTP server", Cause.NOT_KAFKA),
    Stranger(b"-ERR", "a Redis server", Cause.NOT_KAFKA),
    Stranger(b"AMQP", "an AMQP broker", Cause.NOT_KAFKA),
)


def recognise(first_bytes: bytes) -> Stranger | None:
    for known in _STRANGERS:
        if first_bytes.startswith(known.start):
            return known
    return None


def stranger(first_bytes: bytes) -> str:
    """A remark for an error message; empty if the bytes are those of nobody known."""
    known = recognise(first_bytes)
    return f" (this looks like {known.name})" if known is not None else ""
