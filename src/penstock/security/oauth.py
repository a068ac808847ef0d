"""OAUTHBEARER tokens: signed JWTs checked with the keys of a JWKS, and tokens fetched with client credentials.

The URL of the keys comes from the broker's settings only, never from a token or a client (CVE-2025-27817). Only
signatures with asymmetric keys are accepted: not `none`, and no HMAC, with which a public key could be taken for a
secret. A token must expire, and must have the issuer and audience of the settings.

`Jwks` caches the keys. A token with an unknown key id has them fetched again on a thread, at most once in ten seconds
whatever clients send; keys older than the refresh interval are fetched in the background while the old ones serve.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.security.credentials import CredentialsError, Secret
from penstock.security.principal import GROUP, ROLE, USER, Principal
from penstock.security.sasl import Authenticated, AuthenticationError, Deferred
from penstock.security.tls import client_context

logger = logging.getLogger(__name__)

MAX_TOKEN: Final = 64 * 1024
MAX_ANSWER_BYTES: Final = 1024 * 1024
MAX_GROUPS: Final = 500
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
UNKNOWN_KEY_INTERVAL_MS: Final = 10_000
_KEY_TYPES: Final = frozenset({"RSA", "EC", "OKP"})
_JWS: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
# RFC 9110: time-out, too early, too many requests.
_TRY_AGAIN: Final = frozenset({408, 425, 429})
_FAILED: Final = "Authentication failed: the token is not accepted"


class OAuthError(ValueError):
    """OAuth settings or answers that cannot be used. The message has no secret in it."""


class OAuthUnavailable(OAuthError):
    """A provider that cannot be reached, is overloaded or fails: another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """What a broker expects of tokens; the names are those of `sasl.oauthbearer.*`."""

    jwks_url: str
    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_s: int = 30
    refresh_ms: int = 3_600_000
    groups_claim: str | None = None
    roles_claim: str | None = None


# ----------------------------------------------------------------------------------------------------------------- keys


class Jwks:
    """The keys of a JWKS document. `fetch` blocks and raises OAuthError; the rest may be called on any thread."""

    def __init__(self, fetch: Callable[[], bytes], now_ms: Callable[[], float], refresh_ms: int = 3_600_000) -> None:
        self._fetch = fetch
        self._now_ms = now_ms
        self._refresh_ms = refresh_ms
        self._keys: dict[str | None, Any] = {}
        self._loaded_ms: float | None = None
        self._tried_ms = float("-inf")
        self._fetching = threading.Lock()

    def key(self, kid: str | None) -> Any | None:
        """The key of this id; without an id, the only key there is."""
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    @property
    def may_refresh(self) -> bool:
        """Whether a fetch for an unknown key is allowed now."""
        return self._now_ms() - self._tried_ms >= UNKNOWN_KEY_INTERVAL_MS

    @property
    def is_due(self) -> bool:
        """Whether the keys should be fetched in the background."""
        return self.may_refresh and (self._loaded_ms is None or self._now_ms() - self._loaded_ms >= self._refresh_ms)

    def refresh(self) -> None:
        """Fetch the keys, if that is allowed now; the old ones stay if it fails. It blocks; callers take turns."""
        with self._fetching:
            if not self.may_refresh:
                return  # another caller was here first: many clients may come with the same new key at once
            self._tried_ms = self._now_ms()
            try:
                self._keys = parse_jwks(self._fetch())
            except OAuthError as error:
                logger.warning("keys for tokens not loaded: error=%s", error)
                return
            self._loaded_ms = self._now_ms()
            logger.info("keys for tokens loaded: count=%d", len(self._keys))


def parse_jwks(data: bytes) -> dict[str | None, Any]:
    """The public keys of a JWKS document by id; others are left out. OAuthError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    try:
        document = json.loads(data)
        entries = document["keys"]
        if not isinstance(entries, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise OAuthError("the answer is not a JWKS document") from None
    keys: dict[str | None, Any] = {}
    for entry in entries[:1_000]:
        if not isinstance(entry, dict) or entry.get("kty") not in _KEY_TYPES or entry.get("use", "sig") != "sig":
            continue
        try:
            key = import_key({name: value for name, value in entry.items() if name != "d"})
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        kid = entry.get("kid")
        keys[kid if isinstance(kid, str) else None] = key
    if not keys:
        raise OAuthError("the JWKS document has no public key")
    return keys


# --------------------------------------------------------------------------------------------------------------- tokens


class TokenValidator:
    """Checks tokens for a broker. `now_s` is the time of day."""

    def __init__(self, settings: OAuthSettings, keys: Jwks, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._keys = keys
        self._now_s = now_s

    def validate(self, token: str) -> Authenticated | Deferred:
        """The user of a token, or a fetch of the keys that must come first. AuthenticationError."""
        header = _header_of(token)
        kid = header.get("kid")
        key = self._keys.key(kid if isinstance(kid, str) else None)
        if key is None:
            if self._keys.may_refresh:
                return Deferred(self._keys.refresh)
            raise AuthenticationError(_FAILED, "the key of the token is unknown")
        return self._checked(_verified(token, key))

    def _checked(self, claims: Mapping[str, Any]) -> Authenticated:
        settings, now_s, skew_s = self._settings, self._now_s(), self._settings.clock_skew_s
        expires_s: Any = claims.get("exp")
        if not _is_number(expires_s):
            raise AuthenticationError(_FAILED, "the token has no exp claim")
        if now_s >= expires_s + skew_s:
            raise AuthenticationError(_FAILED, "the token has expired")
        for name in ("nbf", "iat"):
            value = claims.get(name, now_s)
            if not _is_number(value) or value - skew_s > now_s:
                raise AuthenticationError(_FAILED, f"the token is not valid yet ({name})")
        if settings.issuer is not None and claims.get("iss") != settings.issuer:
            raise AuthenticationError(_FAILED, "the issuer is not the expected one")
        if settings.audiences and not set(_texts(claims.get("aud"))) & set(settings.audiences):
            raise AuthenticationError(_FAILED, "the audience is not the expected one")
        user: Any = claims.get(settings.sub_claim)
        if not isinstance(user, str) or not user.strip() or len(user) > 1_024 or not user.isprintable():
            raise AuthenticationError(_FAILED, f"the token has no {settings.sub_claim} claim")
        groups = [Principal(GROUP, each) for each in _texts(_nested(claims, settings.groups_claim))]
        roles = [Principal(ROLE, each) for each in _texts(_nested(claims, settings.roles_claim))]
        if len(groups) + len(roles) > MAX_GROUPS:
            raise AuthenticationError(_FAILED, f"the token has more than {MAX_GROUPS} groups and roles")
        return Authenticated(b"", Principal(USER, user), frozenset(groups + roles), int(expires_s * 1000))


def _header_of(token: str) -> Mapping[str, Any]:
    found = _JWS.fullmatch(token) if len(token) <= MAX_TOKEN else None
    if found is None:
        raise AuthenticationError(_FAILED, "the token is not a signed JWT")
    try:
        header = json.loads(_unpadded(found[1]))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise AuthenticationError(_FAILED, "the header of the token is not JSON")
    if header.get("alg") not in ALGORITHMS:
        raise AuthenticationError(_FAILED, "the token is not signed with an asymmetric algorithm")
    if "crit" in header:
        raise AuthenticationError(_FAILED, "the token has a critical header that is not known")
    return header


def _verified(token: str, key: Any) -> Mapping[str, Any]:
    """The claims of a token whose signature is right. The key is ours: those that a header names are ignored."""
    from joserfc import jwt

    try:
        claims = jwt.decode(token, key, algorithms=list(ALGORITHMS)).claims
    except Exception as error:  # noqa: BLE001 - whatever the library makes of a hostile token, it is not accepted
        raise AuthenticationError(_FAILED, f"the signature is not accepted ({type(error).__name__})") from None
    if not isinstance(claims, dict):
        raise AuthenticationError(_FAILED, "the claims of the token are not an object")
    return claims


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53


def _nested(claims: Mapping[str, Any], path: str | None) -> Any:
    """A claim by name, or by a path such as realm_access.roles."""
    if not path:
        return None
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _texts(value: Any) -> Iterable[str]:
    """A claim that is a list of texts, or a text with words."""
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [each for each in value if isinstance(each, str) and each]
    return []


# ----------------------------------------------------------------------------------------------------------------- URLs


def check_url(name: str, url: str, schemes: tuple[str, ...] = ("https", "http", "file")) -> None:
    """OAuthError if a setting is not a URL of one of these schemes."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in schemes or not (parts.netloc or parts.scheme == "file"):
        raise OAuthError(f"{name} is {url!r}; it must be a URL that starts with {' or '.join(schemes)}://")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to another host or a file."""

    def redirect_request(self, *_: Any) -> None:
        return None


def read_url(url: str, *, timeout_s: float = 10, context: ssl.SSLContext | None = None) -> bytes:
    """The document at a URL of the settings. It blocks. OAuthError."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        path = urllib.request.url2pathname(parts.path)
        try:
            with open(path, "rb") as file:
                return _bounded(file.read(MAX_ANSWER_BYTES + 1), path)
        except OSError as error:
            raise OAuthError(f"cannot read {path}: {error.strerror}") from None
    return _request(urllib.request.Request(url), timeout_s, context)


def _request(request: urllib.request.Request, timeout_s: float, context: ssl.SSLContext | None) -> bytes:
    where = request.full_url.partition("?")[0]
    opener = urllib.request.build_opener(
        _NoRedirects(), urllib.request.HTTPSHandler(context=context or ssl.create_default_context())
    )
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return _bounded(response.read(MAX_ANSWER_BYTES + 1), where)
    except urllib.error.HTTPError as error:
        error.close()
        kind = OAuthUnavailable if error.code >= 500 or error.code in _TRY_AGAIN else OAuthError
        raise kind(f"{where} answers with status {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        # A certificate or a URL that is wrong stays wrong.
        is_wrong = isinstance(error, ValueError) or isinstance(reason, ssl.SSLCertVerificationError)
        raise (OAuthError if is_wrong else OAuthUnavailable)(f"{where} cannot be read: {reason}") from None


def _bounded(data: bytes, where: str) -> bytes:
    if len(data) > MAX_ANSWER_BYTES:
        raise OAuthError(f"{where} has more than {MAX_ANSWER_BYTES} bytes")
    return data


def tls_of(options: Mapping[str, str]) -> ssl.SSLContext | None:
    """The context for a provider, from the `ssl.*` options of a login; None for the system's authorities."""
    given = {name: value for name, value in options.items() if name.startswith("ssl.")}
    return client_context(given) if given else None


# --------------------------------------------------------------------------------------------------- client credentials


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Fetches tokens with the client-credentials grant (RFC 6749, 4.4)."""

    token_url: str
    client_id: str
    client_secret: Secret
    scope: str = ""
    context: ssl.SSLContext | None = None
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        check_url("sasl.oauthbearer.token.endpoint.url", self.token_url, ("https", "http"))

    def fetch(self) -> Secret:
        """A new token. It blocks. OAuthError, CredentialsError."""
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        quoted = ":".join(urllib.parse.quote_plus(part) for part in (self.client_id, self.client_secret.reveal()))
        headers = {
            "Accept": "application/json",
            "Authorization": "Basic " + base64.b64encode(quoted.encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        request = urllib.request.Request(self.token_url, urllib.parse.urlencode(form).encode(), headers)
        try:
            answer = json.loads(_request(request, self.timeout_s, self.context))
        except (ValueError, RecursionError) as error:
            if isinstance(error, OAuthError | CredentialsError):
                raise
            raise OAuthError(f"the answer of {self.token_url} is not JSON") from None
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token:
            raise OAuthError(f"the answer of {self.token_url} has no access_token")
        return Secret.literal(token)


def expiry_of(token: str) -> float | None:
    """When a token expires, in seconds since 1970, as its holder reads it; None if it does not say."""
    found = _JWS.fullmatch(token)
    if found is None:
        return None
    try:
        expires = json.loads(_unpadded(found[2])).get("exp")
    except (ValueError, AttributeError, RecursionError):
        return None
    return float(expires) if _is_number(expires) else None
