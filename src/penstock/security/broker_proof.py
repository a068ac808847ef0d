"""How brokers of one cluster prove themselves to each other, on listeners of every kind. Pure.

All brokers of a cluster know a secret from its metadata tree; clients do not. Each side of a new connection sends a
random nonce and an HMAC-SHA-256 over both nonces, both broker ids and its own role. The accepting side proves itself
first. A proof is bound to one connection by the nonces, to one direction by the roles, and to two brokers by the ids,
so it can be neither replayed nor reflected, nor used towards another broker.

    connecting broker 2                          accepting broker 1
    nonce A                                ->
                                           <-    nonce B, proof("accepts", 2, 1, A, B)
    proof("connects", 2, 1, A, B)          ->
                                           <-    the connection is a broker's

The secret does not protect what follows from an attacker who can change bytes on the network: that takes TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 32

_CONTEXT: Final = b"penstock broker proof 1"
_CONNECTS: Final = b"connects"
_ACCEPTS: Final = b"accepts"
_IDS: Final = struct.Struct(">qq")


class ProofError(Exception):
    """The peer has not proved that it is the broker that it claims to be."""


class ClusterSecret:
    """The secret of a cluster. Its bytes appear in no text."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != SECRET_BYTES:
            raise ValueError(f"a cluster secret has {SECRET_BYTES} bytes, not {len(key)}")
        self._key = key

    def __repr__(self) -> str:
        return "ClusterSecret(***)"

    def derived(self, purpose: bytes) -> bytes:
        """Another secret that all brokers know, and from which this one cannot be found."""
        return hmac.new(self._key, b"penstock derived secret\0" + purpose, hashlib.sha256).digest()

    def prove(self, role: bytes, connecting: int, accepting: int, nonces: tuple[bytes, bytes]) -> bytes:
        # All parts have fixed lengths, except the role, of which there are two.
        parts = (_CONTEXT, role, _IDS.pack(connecting, accepting), *nonces)
        return hmac.new(self._key, b"\0".join(parts), hashlib.sha256).digest()

    def verify(self, proof: bytes, role: bytes, connecting: int, accepting: int, nonces: tuple[bytes, bytes]) -> bool:
        return hmac.compare_digest(proof, self.prove(role, connecting, accepting, nonces))


class ConnectingProof:
    """The side of the broker `broker_id` that connects to the broker `to`."""

    def __init__(self, secret: ClusterSecret, broker_id: int, to: int, nonce: bytes) -> None:
        self.nonce = nonce
        self.broker_id = broker_id
        self._secret = secret
        self._to = to

    def answer(self, broker_id: int, nonce: bytes, proof: bytes) -> bytes:
        """Verify what the accepting side sent; returns this side's proof. ProofError."""
        if broker_id != self._to:
            raise ProofError(f"broker {broker_id} answers at the address of broker {self._to}")
        if len(nonce) != NONCE_BYTES:
            raise ProofError(f"its nonce has {len(nonce)} bytes")
        nonces = (self.nonce, nonce)
        if not self._secret.verify(proof, _ACCEPTS, self.broker_id, self._to, nonces):
            raise ProofError(f"the proof of broker {self._to} is wrong: it has another cluster secret")
        return self._secret.prove(_CONNECTS, self.broker_id, self._to, nonces)


class AcceptingProof:
    """The side of the broker that accepted one connection. A nonce is good for one attempt."""

    __slots__ = ("_broker_id", "_from", "_nonces", "_secret")

    def __init__(self, secret: ClusterSecret, broker_id: int) -> None:
        self._secret = secret
        self._broker_id = broker_id
        self._from = -1
        self._nonces: tuple[bytes, bytes] | None = None

    def begin(self, connecting: int, their_nonce: bytes, own_nonce: bytes) -> bytes:
        """The first message of the other side; returns this side's proof. ProofError."""
        self._nonces = None
        if connecting < 0 or connecting == self._broker_id:
            raise ProofError(f"it claims to be broker {connecting}")
        if len(their_nonce) != NONCE_BYTES:
            raise ProofError(f"its nonce has {len(their_nonce)} bytes")
        self._from, self._nonces = connecting, (their_nonce, own_nonce)
        return self._secret.prove(_ACCEPTS, connecting, self._broker_id, self._nonces)

    def finish(self, proof: bytes) -> int:
        """The second message of the other side; returns the id of the broker. ProofError."""
        nonces, self._nonces = self._nonces, None
        if nonces is None:
            raise ProofError("it sent a proof without a nonce")
        if not self._secret.verify(proof, _CONNECTS, self._from, self._broker_id, nonces):
            raise ProofError(f"it claims to be broker {self._from}, and its proof is wrong")
        return self._from
