"""From an exception to what is wrong with an address, and what to try.

Noun: `Unusable`, a NotConnected that knows its cause. Rule: the text names the thing that a person can change.
"""

from __future__ import annotations

import errno
import socket
import ssl

from penstock.client.addresses import Address
from penstock.client.errors import Attempt, Cause, NotConnected, PenstockError, ProtocolViolation, RequestTimedOut
from penstock.client.strangers import recognise

_UNREACHABLE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EADDRNOTAVAIL, errno.EACCES}
)

HINTS: dict[Cause, str] = {
    Cause.DNS: "Look for a typing mistake in the host, and at /etc/hosts and the DNS of this machine",
    Cause.REFUSED: "Nothing listens there: is the broker running, and is this its port?",
    Cause.CONNECT_TIMEOUT: "The host is down, or a firewall drops the packets",
    Cause.UNREACHABLE: "This machine has no route to the host: check the network, VPN and address family",
    Cause.TLS_REQUIRED: "The port speaks TLS: pass ssl=ssl.create_default_context(), or use the plaintext port",
    Cause.TLS_REFUSED: "The port does not speak TLS: leave ssl out, or use the TLS port",
    Cause.TLS_CERTIFICATE: "Load the authority with SSLContext.load_verify_locations, "
    "and use the host name that the certificate has",
    Cause.HTTP: "An HTTP server has this port; brokers usually listen on 9092",
    Cause.NOT_KAFKA: "Something else than a broker has this port; brokers usually listen on 9092",
    Cause.VERSION: "Use a broker of Kafka 0.9 or later",
    Cause.CLOSED: "It may want TLS or SASL, be starting or at its limit of connections, "
    "or be a balancer with no broker behind it",
    Cause.NO_ANSWER: "It accepts connections but does not speak: a hung broker, or no broker",
    Cause.ADVERTISED: "Set advertised.listeners of the broker to an address that its clients can reach",
    Cause.ZOOKEEPER: "Check the zookeeper:// address and its chroot, or give the brokers' own addresses",
}


class Unusable(NotConnected):
    """An address that could not be used."""

    def __init__(self, address: str, cause: Cause, detail: str, hint: str | None = None) -> None:
        super().__init__(address, detail, hint=HINTS.get(cause, "") if hint is None else hint)
        self.cause = cause

    @property
    def attempt(self) -> Attempt:
        return Attempt(self.node, self.cause, self.reason, self.hint)


def connect_failure(address: Address, error: BaseException, timeout_ms: float, *, with_tls: bool) -> Unusable:
    """Why no connection came about."""
    where = str(address)
    if isinstance(error, Unusable):
        return error
    if isinstance(error, socket.gaierror):
        return Unusable(where, Cause.DNS, f"the name {address.host!r} cannot be resolved ({error.strerror or error})")
    if isinstance(error, ssl.SSLCertVerificationError):
        return Unusable(where, Cause.TLS_CERTIFICATE, f"its certificate is not accepted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if reason in {"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE"}:
            return Unusable(where, Cause.TLS_REFUSED, f"the answer to the TLS handshake is no TLS ({reason})")
        return Unusable(where, Cause.OTHER, f"the TLS handshake failed: {reason}", "")
    if isinstance(error, ConnectionRefusedError):
        return Unusable(where, Cause.REFUSED, "connection refused")
    if isinstance(error, TimeoutError):
        return Unusable(where, Cause.CONNECT_TIMEOUT, f"no connection within {timeout_ms:.0f} ms")
    if isinstance(error, ConnectionError) and with_tls:
        return Unusable(where, Cause.TLS_REFUSED, f"the connection ended in the TLS handshake ({error})")
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return Unusable(where, Cause.UNREACHABLE, f"cannot be reached ({error.strerror or error})")
    if isinstance(error, ConnectionError):
        return Unusable(where, Cause.CLOSED, f"the connection was reset ({error})")
    return Unusable(where, Cause.OTHER, str(error) or type(error).__name__, "")


def handshake_failure(address: Address, error: PenstockError, first_bytes: bytes) -> Unusable:
    """Why a connection is no broker's."""
    where = str(address)
    known = recognise(first_bytes)
    if known is not None:
        return Unusable(where, known.cause, f"the answer is {known.name}")
    if isinstance(error, RequestTimedOut):
        return Unusable(where, Cause.NO_ANSWER, f"connected, but no answer to {error.request}")
    if isinstance(error, ProtocolViolation) or first_bytes:
        shown = first_bytes[:8].hex(" ") if first_bytes else "nothing"
        return Unusable(where, Cause.NOT_KAFKA, f"the answer is not Kafka's (it begins with {shown})")
    return Unusable(where, Cause.CLOSED, "it accepted the connection and closed it without an answer")
