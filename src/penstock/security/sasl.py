"""SASL mechanisms as state machines without I/O, for servers and clients.

A server mechanism takes the client's tokens one after the other (`respond`) and returns a `Challenge` to send, a
`Deferred` (work for a thread, after which the same token is given again) or an `Authenticated` user; a failure raises
`AuthenticationError`, whose message is for the client and says nothing about whether the user exists.

A client mechanism gives its first token (`first`), then one for each challenge (`next`).
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from penstock.security.credentials import OAUTHBEARER, PLAIN, SCRAM_MECHANISMS, Secret
from penstock.security.principal import USER, Principal
from penstock.security.scram import ScramClient, ScramCredential, ScramError, ScramServer

if TYPE_CHECKING:
    from penstock.security.oauth import TokenValidator

MAX_NAME: Final = 1_024
_MAX_PASSWORD: Final = 4_096
_BEARER_FIRST: Final = re.compile(
    r"n,(?:a=([^,\x00\x01]*))?,\x01((?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01", re.DOTALL
)
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)")
_KVSEP: Final = b"\x01"


class AuthenticationError(Exception):
    """Authentication failed. `str()` is for the client; `detail` is for the log, with the user that was claimed."""

    def __init__(self, message: str, detail: str = "", username: str = "") -> None:
        super().__init__(message)
        self.detail = detail or message
        self.username = username


@dataclass(frozen=True, slots=True)
class Challenge:
    """`failure` is set if the exchange has failed already: a client may leave without another word."""

    token: bytes
    failure: AuthenticationError | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A user, with what a token says about them. `token` is the last one for the client."""

    token: bytes
    principal: Principal
    groups: frozenset[Principal] = frozenset()
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """`work` blocks: do it on a thread, then give the same token again."""

    work: Callable[[], None]


Outcome = Challenge | Authenticated | Deferred


class ServerMechanism(Protocol):
    @property
    def name(self) -> str: ...

    def respond(self, token: bytes) -> Outcome:
        """The outcome of a client's token. AuthenticationError."""


class ClientMechanism(Protocol):
    @property
    def name(self) -> str: ...

    def first(self) -> bytes: ...

    def next(self, challenge: bytes) -> bytes | None:
        """The token for a challenge; None after the last one. AuthenticationError. It may take milliseconds."""


# --------------------------------------------------------------------------------------------------------------- PLAIN


class PlainServer:
    """PLAIN (RFC 4616) with the users of a settings file."""

    name = PLAIN

    def __init__(self, users: Mapping[str, Secret]) -> None:
        self._users = users

    def respond(self, token: bytes) -> Outcome:
        parts = token.split(b"\0")
        if len(parts) != 3 or len(token) > 2 * MAX_NAME + _MAX_PASSWORD:
            raise AuthenticationError("Invalid SASL/PLAIN response: expected authorization id, user name and password")
        authorization_id, name, password = parts
        if not name or not password:
            missing = "user name" if not name else "password"
            raise AuthenticationError(f"Authentication failed: {missing} not specified")
        try:
            username = name.decode()
        except UnicodeDecodeError:
            raise AuthenticationError("Authentication failed: the user name is not UTF-8") from None
        known = self._users.get(username)
        # An unknown user costs the same comparison.
        expected = known.reveal().encode() if known is not None else b"\0" * 16
        is_right = hmac.compare_digest(password, expected)
        if not is_right or known is None:
            text = "Authentication failed: Invalid username or password"
            raise AuthenticationError(text, f"user={username!r}", username)
        if authorization_id and authorization_id != name:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return Authenticated(b"", Principal(USER, username))


class PlainClient:
    name = PLAIN

    def __init__(self, username: str, password: Secret) -> None:
        if "\0" in username:
            raise AuthenticationError("the user name contains a zero character")
        self._username, self._password = username, password

    def first(self) -> bytes:
        return f"\0{self._username}\0{self._password.reveal()}".encode()

    def next(self, challenge: bytes) -> bytes | None:
        return None


# --------------------------------------------------------------------------------------------------------------- SCRAM


class ScramServerMechanism:
    """SCRAM-SHA-256 or SCRAM-SHA-512. `lookup` gives the text of a user's credential, as the tree has it."""

    def __init__(self, name: str, lookup: Callable[[str], str | None], nonce: str, secret: bytes) -> None:
        self.name = name
        self._lookup = lookup
        self._exchange = ScramServer(name, self._credential, nonce, secret)
        self._has_begun = False

    def _credential(self, username: str) -> ScramCredential | None:
        text = self._lookup(username)
        if text is None:
            return None
        try:
            return ScramCredential.parse(text)
        except ValueError:
            return None

    def respond(self, token: bytes) -> Outcome:
        exchange = self._exchange
        try:
            if not self._has_begun:
                self._has_begun = True
                return Challenge(exchange.first(token))
            return Authenticated(exchange.final(token), Principal(USER, exchange.username))
        except ScramError as error:
            detail = f"user={exchange.username!r} reason={error}"
            if error.is_malformed:
                raise AuthenticationError(f"Invalid SASL/SCRAM message: {error}", detail) from None
            failed = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
            raise AuthenticationError(f"{failed} {self.name}", detail, exchange.username) from None


class ScramClientMechanism:
    def __init__(self, name: str, username: str, password: Secret, nonce: str) -> None:
        self.name = name
        self._exchange = ScramClient(name, username, password.reveal(), nonce)
        self._steps = 0

    def first(self) -> bytes:
        return self._exchange.first()

    def next(self, challenge: bytes) -> bytes | None:
        self._steps += 1
        try:
            if self._steps == 1:
                return self._exchange.final(challenge)
            self._exchange.check(challenge)
        except ScramError as error:
            raise AuthenticationError(f"{self.name}: {error}") from None
        return None


# --------------------------------------------------------------------------------------------------------------- tokens


class BearerServer:
    """OAUTHBEARER (RFC 7628). A token that is not accepted is answered with a JSON error first, as the RFC has it."""

    name = OAUTHBEARER

    def __init__(self, validator: TokenValidator) -> None:
        self._validator = validator
        self._failure: AuthenticationError | None = None

    def respond(self, token: bytes) -> Outcome:
        if self._failure is not None:
            raise self._failure
        try:
            authorization_id, bearer = parse_bearer(token)
            accepted = self._validator.validate(bearer)
            if isinstance(accepted, Deferred):
                return accepted
            if authorization_id and authorization_id != accepted.principal.name:
                raise AuthenticationError(
                    "Authentication failed: Client requested an authorization id that is different from the token's "
                    "principal name"
                )
        except AuthenticationError as error:
            self._failure = error
            return Challenge(json.dumps({"status": "invalid_token"}).encode(), error)
        return accepted


def parse_bearer(message: bytes) -> tuple[str, str]:
    """(authorization id, token) of a client's first message. AuthenticationError."""
    try:
        found = _BEARER_FIRST.fullmatch(message.decode("utf-8"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise AuthenticationError("Invalid OAUTHBEARER client first message")
    pairs = dict(part.partition("=")[::2] for part in found[2].split("\x01") if part)
    bearer = _BEARER.fullmatch(pairs.get("auth", "").strip())
    if bearer is None:
        raise AuthenticationError("Invalid OAUTHBEARER client first message: 'auth' is not a bearer token")
    return found[1] or "", bearer[1]


class BearerClient:
    """`token` was fetched for this exchange."""

    name = OAUTHBEARER

    def __init__(self, token: Secret, extensions: Mapping[str, str] | None = None) -> None:
        self._token = token
        self._extensions = dict(extensions or {})
        self._error = ""

    def first(self) -> bytes:
        pairs = {"auth": f"Bearer {self._token.reveal()}", **self._extensions}
        return ("n,,\x01" + "".join(f"{name}={value}\x01" for name, value in pairs.items()) + "\x01").encode()

    def next(self, challenge: bytes) -> bytes | None:
        if not challenge or challenge == _KVSEP:
            return None
        # The broker explains why it does not accept the token; it ends the exchange after this.
        self._error = challenge[:200].decode(errors="replace")
        return _KVSEP


def is_scram(mechanism: str) -> bool:
    return mechanism in SCRAM_MECHANISMS
