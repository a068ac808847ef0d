"""SCRAM (RFC 5802): credentials, and both sides of the exchange. Pure.

    client-first   n,,n=alice,r=<client nonce>
    server-first   r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final   c=biws,r=<client nonce><server nonce>,p=<proof>
    server-final   v=<signature>

A server keeps no password, only keys made from it. It checks the whole nonce (CVE-2024-56128: Kafka compared only its
end). librdkafka before 2.6.1 sends the client nonce twice in its last message; exactly that form is accepted, because
the proof covers the message as it was sent.

The exchange of a user who does not exist runs to its end, with a salt that depends on the name and the iterations that
new users get, and fails where that of a wrong password does. Names and passwords are UTF-8 without SASLprep, as in
Kafka: that is why the exchange is not left to a library that prepares them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.security.credentials import SCRAM_SHA_256, SCRAM_SHA_512

HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384
# New credentials have these, and so have the pretended ones of users who do not exist.
DEFAULT_ITERATIONS: Final = 8_192
SALT_BYTES: Final = 24
# What a client accepts from a server: more would be an attack on its processor.
_CLIENT_MAX_ITERATIONS: Final = 1_000_000
_MAX_MESSAGE: Final = 8 * 1024
_NAME: Final = r"(?:[^=,\x00]|=2C|=3D)+"
_CLIENT_FIRST: Final = re.compile(rf"(n,(?:a=({_NAME}))?,)(n=({_NAME}),r=([!-+\--~]+)((?:,[A-Za-z]+=[^,\x00]+)*))")
_CLIENT_FINAL: Final = re.compile(
    r"(c=([A-Za-z0-9+/]+={0,2}),r=([!-+\--~]+)(?:,[A-Za-z]=[^,\x00]+)*),p=([A-Za-z0-9+/]+={0,2})"
)
_SERVER_FIRST: Final = re.compile(r"r=([!-+\--~]+),s=([A-Za-z0-9+/]+={0,2}),i=([0-9]{1,9})(?:,[A-Za-z]=[^,\x00]+)*")
_SERVER_FINAL: Final = re.compile(r"v=([A-Za-z0-9+/]+={0,2})(?:,[A-Za-z]=[^,\x00]+)*|e=([^,\x00]+).*")


class ScramError(ValueError):
    """An exchange that failed. `is_malformed`: the messages are not SCRAM, whatever the credentials are."""

    def __init__(self, message: str, *, is_malformed: bool = False) -> None:
        super().__init__(message)
        self.is_malformed = is_malformed


# ---------------------------------------------------------------------------------------------------------- credentials


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server keeps of a password."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def make(cls, password: str, mechanism: str, iterations: int, salt: bytes) -> ScramCredential:
        """The credential of a password. It takes milliseconds: not for the event loop. ValueError."""
        if mechanism not in HASHES:
            raise ValueError(f"{mechanism!r} is not a SCRAM mechanism; use {' or '.join(HASHES)}")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ValueError(f"iterations is {iterations}; it must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        if not password or not salt:
            raise ValueError("the password or the salt is empty")
        return cls.from_salted(salted_password(password, mechanism, iterations, salt), mechanism, iterations, salt)

    @classmethod
    def from_salted(cls, salted: bytes, mechanism: str, iterations: int, salt: bytes) -> ScramCredential:
        """From a password that was salted elsewhere, as AlterUserScramCredentials carries it."""
        name = HASHES[mechanism]
        client_key = hmac.digest(salted, b"Client Key", name)
        return cls(salt, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name), iterations)

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        """The form of Kafka's tree: salt=..,stored_key=..,server_key=..,iterations=... ValueError, without the text."""
        values = dict(part.strip().partition("=")[::2] for part in text.split(","))
        try:
            salt, stored, server = (
                base64.b64decode(values[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            iterations = int(values["iterations"])
        except (KeyError, ValueError):
            raise ValueError("a SCRAM credential is salt=..,stored_key=..,server_key=..,iterations=..") from None
        if len(values) != 4 or not salt or len(stored) not in (32, 64) or len(stored) != len(server) or iterations < 1:
            raise ValueError("a SCRAM credential has a wrong length or number")
        return cls(salt, stored, server, iterations)

    def format(self) -> str:
        salt, stored, server = (
            base64.b64encode(value).decode() for value in (self.salt, self.stored_key, self.server_key)
        )
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"


@dataclass(frozen=True, slots=True)
class InitialUsers:
    """Users that a broker stores in a tree that does not know their names: settings by name, by mechanism."""

    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> InitialUsers:
        """From `mechanism:name:credential`, separated by semicolons. ValueError, without credentials."""
        found: dict[str, dict[str, str]] = {}
        for number, part in enumerate(filter(None, (each.strip() for each in text.split(";"))), 1):
            mechanism, _, rest = part.partition(":")
            name, _, credential = rest.rpartition(":")
            if mechanism not in HASHES or not name:
                raise ValueError(
                    f"user {number} is not <mechanism>:<name>:<credential>; mechanisms: {', '.join(HASHES)}"
                )
            try:
                found.setdefault(name, {})[mechanism] = ScramCredential.parse(credential).format()
            except ValueError as error:
                raise ValueError(f"user {name!r}: {error}") from None
        return cls(found)

    def format(self) -> str:
        return ";".join(
            f"{mechanism}:{name}:{credential}"
            for name, credentials in self.settings.items()
            for mechanism, credential in credentials.items()
        )


def salted_password(password: str, mechanism: str, iterations: int, salt: bytes) -> bytes:
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


# --------------------------------------------------------------------------------------------------------------- server


class ScramServer:
    """One exchange of a server. `lookup` gives the credential of a user, or None.

    `nonce` is this exchange's own. `secret` makes the salts of users who do not exist; all brokers have the same one.
    """

    def __init__(
        self, mechanism: str, lookup: Callable[[str], ScramCredential | None], nonce: str, secret: bytes
    ) -> None:
        self.mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._lookup = lookup
        self._own_nonce = nonce
        self._secret = secret
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._gs2_header = ""
        self._client_nonce = ""
        self._transcript = ""
        self.username = ""

    def first(self, message: bytes) -> bytes:
        """The server-first message for a client-first message. ScramError."""
        found = _CLIENT_FIRST.fullmatch(_text(message))
        if found is None:
            raise ScramError("the first message is not a SCRAM client-first message", is_malformed=True)
        self._gs2_header, authorization_id, bare, name, self._client_nonce, extensions = found.groups()
        if "tokenauth=true" in extensions.lower():
            raise ScramError("delegation tokens are not supported")
        self.username = _unescaped(name)
        if authorization_id is not None and _unescaped(authorization_id) != self.username:
            raise ScramError("the authorization id differs from the user name")
        credential = self._lookup(self.username)
        self._is_known = credential is not None and len(credential.stored_key) == hashlib.new(self._hash).digest_size
        self._credential = credential if credential is not None and self._is_known else self._pretended()
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._client_nonce}{self._own_nonce},s={salt},i={self._credential.iterations}"
        self._transcript = f"{bare},{answer}"
        return answer.encode()

    def _pretended(self) -> ScramCredential:
        """The same for each attempt with a name, so that it does not give the name away."""
        seed = hmac.digest(self._secret, f"{self.mechanism}:{self.username}".encode(), "sha512")
        size = hashlib.new(self._hash).digest_size
        return ScramCredential(seed[:SALT_BYTES], bytes(size), bytes(size), DEFAULT_ITERATIONS)

    def final(self, message: bytes) -> bytes:
        """The server-final message; the user is authenticated if this does not raise ScramError."""
        found = _CLIENT_FINAL.fullmatch(_text(message))
        credential = self._credential
        if found is None or credential is None:
            raise ScramError("the second message is not a SCRAM client-final message", is_malformed=True)
        without_proof, binding, nonce, proof_text = found.groups()
        proof = _decoded(proof_text)
        transcript = f"{self._transcript},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, transcript, self._hash)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        is_proved = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        whole = self._client_nonce + self._own_nonce
        # The second form is librdkafka's before 2.6.1.
        is_our_nonce = nonce in (whole, self._client_nonce + whole)
        is_our_header = _decoded(binding) == self._gs2_header.encode()
        if not (is_proved and is_our_nonce and is_our_header and self._is_known and len(proof) == len(signature)):
            raise ScramError("invalid credentials")
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, transcript, self._hash))


# --------------------------------------------------------------------------------------------------------------- client


class ScramClient:
    """One exchange of a client. `final` hashes the password with `salted`, which takes milliseconds."""

    def __init__(
        self,
        mechanism: str,
        username: str,
        password: str,
        nonce: str,
        salted: Callable[[str, str, int, bytes], bytes] = salted_password,
    ) -> None:
        self.mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._password = password
        self._salted = salted
        self._nonce = nonce
        self._bare = f"n={_escaped(username)},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The client-final message. ScramError if the server's message cannot be trusted."""
        text = _text(server_first)
        found = _SERVER_FIRST.fullmatch(text)
        if found is None:
            raise ScramError("the broker's first message is not SCRAM", is_malformed=True)
        nonce, salt, iterations = found[1], _decoded(found[2]), int(found[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the broker's nonce does not continue the client's")
        if not MIN_ITERATIONS <= iterations <= _CLIENT_MAX_ITERATIONS:
            raise ScramError(
                f"the broker asks for {iterations} iterations; {MIN_ITERATIONS} to {_CLIENT_MAX_ITERATIONS} are allowed"
            )
        salted = self._salted(self._password, self.mechanism, iterations, salt)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        transcript = f"{self._bare},{text},{without_proof}".encode()
        signature = hmac.digest(stored_key, transcript, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), transcript, self._hash)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """ScramError if the server did not prove that it knows the password's keys."""
        found = _SERVER_FINAL.fullmatch(_text(server_final))
        if found is None:
            raise ScramError("the broker's last message is not SCRAM", is_malformed=True)
        if found[1] is None:
            raise ScramError(f"the broker reports {found[2]}")
        if not self._signature or not hmac.compare_digest(_decoded(found[1]), self._signature):
            raise ScramError("the broker did not prove that it knows this user")


# ----------------------------------------------------------------------------------------------------------------- text


def _text(message: bytes) -> str:
    if len(message) > _MAX_MESSAGE:
        raise ScramError(f"a SCRAM message of {len(message)} bytes is too long", is_malformed=True)
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a SCRAM message is not UTF-8", is_malformed=True) from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("a SCRAM message has a value that is not base64", is_malformed=True) from None


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
