"""Security of a client's connections: TLS contexts and SASL logins from its options, and the exchange itself.

`security_of` turns options into a context and a `Login`, or raises ConfigError before anything is connected. Passwords
may be `file:/path` or `env:NAME`; they are read for each login, so that a changed file counts. A login that a broker
or a token endpoint rejects raises AuthenticationFailed, which is not retried. An endpoint that is down is: for as long
as a connection may take to open, then by the code that retries connections.

A session that ends is renewed on its connection (KIP-368) after 85 to 95 % of its lifetime: other requests wait for the
two or three steps of the exchange. Tokens are fetched on a thread, unless `sasl_oauth_token` is a coroutine function.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import logging
import os
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.client.connection import Connection
from penstock.client.connection_pool import run_in_daemon_thread
from penstock.client.errors import AuthenticationFailed, ConfigError, NotConnected, PenstockError
from penstock.security.credentials import (
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    SCRAM_MECHANISMS,
    CredentialsError,
    Secret,
    kind_of,
    parse_jaas,
    resolve,
)
from penstock.security.oauth import ClientCredentials, OAuthError, OAuthUnavailable, tls_of
from penstock.security.sasl import (
    AuthenticationError,
    BearerClient,
    ClientMechanism,
    PlainClient,
    ScramClientMechanism,
)
from penstock.security.tls import ReloadingContext, TlsError, client_context
from penstock.wire.protocol import ApiKey, ErrorCode, error_code
from penstock.wire.schemas.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.schemas.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from penstock.client.settings import ClientSettings

_log = logging.getLogger(__name__)

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
Contexts = ssl.SSLContext | ReloadingContext
TokenSource = Callable[[], str | Awaitable[str]]
_MAX_STEPS: Final = 10
_EARLIEST, _LATEST = 0.85, 0.95
_NONCE_BYTES: Final = 24
_BACKLOG_S: Final = 0.01
# As sasl.login.retry.backoff.ms and sasl.login.retry.backoff.max.ms of Kafka's clients.
_RETRY_S, _RETRY_MAX_S = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class Login:
    """How a client authenticates. Nothing secret is in its `repr`."""

    mechanism: str
    username: str = ""
    password: Secret = field(default=Secret(""), repr=False)
    token: TokenSource | ClientCredentials | None = field(default=None, repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)

    async def begin(self) -> ClientMechanism:
        """The client side of a new exchange. CredentialsError, OAuthError."""
        if self.mechanism == OAUTHBEARER:
            return BearerClient(Secret.literal(await self._fetch_token()), self.extensions)
        if self.mechanism == PLAIN:
            return PlainClient(self.username, Secret.literal(self.password.reveal()))
        nonce = base64.b64encode(os.urandom(_NONCE_BYTES)).decode().rstrip("=")
        return ScramClientMechanism(self.mechanism, self.username, self.password, nonce)

    async def _fetch_token(self) -> str:
        source = self.token
        if isinstance(source, ClientCredentials):
            return (await run_in_daemon_thread(source.fetch, "penstock-token")).reveal()
        if source is None:
            raise OAuthError("no source of tokens is configured")
        if inspect.iscoroutinefunction(source):
            found = await source()
        else:
            found = await run_in_daemon_thread(source, "penstock-token")
            if inspect.isawaitable(found):
                found = await found
        if not isinstance(found, str) or not found:
            raise OAuthError("sasl_oauth_token did not return a token")
        return found


# -------------------------------------------------------------------------------------------------------------- options


def security_of(settings: ClientSettings) -> tuple[Contexts | None, Login | None]:
    """TLS context (None: plaintext) and login (None: without SASL) of a client's options. ConfigError."""
    protocol = settings.security_protocol.upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(f"security_protocol is {protocol!r}", hint=f"Use one of {', '.join(PROTOCOLS)}")
    if settings.ssl is not None and protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        # `ssl` alone has always been enough.
        protocol = "SSL" if protocol == "PLAINTEXT" else "SASL_SSL"
    if settings.sasl_mechanism is not None and not protocol.startswith("SASL_"):
        raise ConfigError(
            f"sasl_mechanism is set, but security_protocol is {protocol}", hint="Use SASL_SSL or SASL_PLAINTEXT"
        )
    context = _context_of(settings) if protocol.endswith("SSL") else None
    return context, _login_of(settings) if protocol.startswith("SASL_") else None


def _context_of(settings: ClientSettings) -> Contexts:
    if settings.ssl is not None:
        return settings.ssl
    texts = {
        name.replace("_", "."): str(value)
        for name in (each.name for each in fields(settings))
        if name.startswith("ssl_") and (value := getattr(settings, name)) is not None
    }
    return context_from(texts)


def context_from(texts: Mapping[str, str]) -> ReloadingContext:
    """The context of `ssl.*` settings by Kafka's names. ConfigError."""
    try:
        return ReloadingContext({name: _followed(name, text) for name, text in texts.items()}, client_context)
    except (TlsError, CredentialsError) as error:
        raise ConfigError(f"the TLS options cannot be used: {error}") from None


def _followed(name: str, text: str) -> str:
    """The value of a setting. A location is a path, so `file:` has no other meaning there."""
    return text.removeprefix("file:") if name.endswith(".location") else resolve(text)


def _login_of(settings: ClientSettings) -> Login:
    mechanism = (settings.sasl_mechanism or "").upper()
    if mechanism not in MECHANISMS:
        given = f"sasl_mechanism is {mechanism!r}" if mechanism else "sasl_mechanism is not set"
        raise ConfigError(given, hint=f"Use one of {', '.join(MECHANISMS)}")
    return login_from(
        mechanism,
        settings.sasl_jaas_config,
        settings.sasl_plain_username,
        settings.sasl_plain_password,
        _token_source(settings) if mechanism == OAUTHBEARER else None,
    )


def _token_source(settings: ClientSettings) -> TokenSource | ClientCredentials | None:
    if settings.sasl_oauth_token is not None:
        return settings.sasl_oauth_token
    if settings.sasl_oauthbearer_token_endpoint_url is None:
        return None
    return _client_credentials(
        settings.sasl_oauthbearer_token_endpoint_url,
        settings.sasl_oauthbearer_client_id,
        settings.sasl_oauthbearer_client_secret,
        settings.sasl_oauthbearer_scope,
        settings.sasl_jaas_config,
    )


def _client_credentials(
    url: str, client_id: str | None, secret: str | None, scope: str | None, jaas: str | None
) -> ClientCredentials:
    """Credentials by the options, or by those of the login module (clientId, clientSecret, ...). ConfigError."""
    try:
        options = parse_jaas(resolve(jaas)).options if jaas else {}
        found_id = client_id or options.get("clientId", "")
        found_secret = secret or options.get("clientSecret", "")
        if not found_id or not found_secret:
            raise ConfigError(
                "OAUTHBEARER needs a client id and a secret for the token endpoint",
                hint="Set sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret",
            )
        return ClientCredentials(
            url, found_id, Secret(found_secret), scope or options.get("scope", ""), tls_of(options)
        )
    except (CredentialsError, OAuthError, TlsError) as error:
        raise ConfigError(str(error)) from None


def login_from(
    mechanism: str,
    jaas: str | None,
    username: str | None = None,
    password: str | None = None,
    token: TokenSource | ClientCredentials | None = None,
    *,
    token_url: str | None = None,
) -> Login:
    """The login of a mechanism, from a JAAS text or a name and a password. ConfigError."""
    options: Mapping[str, str] = {}
    if jaas:
        try:
            module = parse_jaas(resolve(jaas))
        except CredentialsError as error:
            raise ConfigError(str(error)) from None
        if module.kind != kind_of(mechanism):
            raise ConfigError(f"sasl.jaas.config has the login module of {module.kind}, not of {mechanism}")
        options = module.options
    if mechanism == OAUTHBEARER:
        if token is None and token_url is not None:
            token = _client_credentials(token_url, None, None, None, jaas)
        if token is None:
            raise ConfigError(
                "OAUTHBEARER has no source of tokens",
                hint="Set sasl_oauth_token to a function, or sasl_oauthbearer_token_endpoint_url",
            )
        extensions = {
            name.removeprefix("extension_"): value for name, value in options.items() if name.startswith("extension_")
        }
        return Login(mechanism, token=token, extensions=extensions)
    username, password = username or options.get("username"), password or options.get("password")
    if not username or not password:
        raise ConfigError(
            f"{mechanism} needs a user name and a password",
            hint="Set sasl_plain_username and sasl_plain_password, or sasl_jaas_config",
        )
    return Login(mechanism, username, Secret(password))


# ------------------------------------------------------------------------------------------------------------- exchange


async def authenticate(connection: Connection, login: Login, timeout_ms: float) -> None:
    """Log in on a connection, and again before the session ends. AuthenticationFailed, NotConnected."""
    lifetime_ms = await _exchange(connection, login, timeout_ms)
    connection.is_authenticated = True
    if lifetime_ms > 0:
        # As Kafka's clients do, so that not all of them come at once.
        delay_s = lifetime_ms * random.uniform(_EARLIEST, _LATEST) / 1000
        connection.call_later(delay_s, lambda: _start_renewal(connection, login, timeout_ms))


def _start_renewal(connection: Connection, login: Login, timeout_ms: float) -> None:
    task = asyncio.create_task(_renew(connection, login, timeout_ms))
    connection.keep_task(task)


async def _renew(connection: Connection, login: Login, timeout_ms: float) -> None:
    try:
        # A token is fetched before other requests have to wait.
        mechanism = await _begin(connection, login, timeout_ms)
        while connection.has_backlog and not connection.closed:
            await asyncio.sleep(_BACKLOG_S)
        connection.hold()
        try:
            lifetime_ms = await _converse(connection, mechanism, timeout_ms)
        finally:
            connection.release()
    except (PenstockError, AuthenticationError) as error:
        if not connection.closed:
            _log.warning("session not renewed, connection closed: node=%s error=%s", connection.node, error)
            connection.abort(f"the session could not be renewed: {error}")
        return
    if lifetime_ms > 0:
        delay_s = lifetime_ms * random.uniform(_EARLIEST, _LATEST) / 1000
        connection.call_later(delay_s, lambda: _start_renewal(connection, login, timeout_ms))


async def _exchange(connection: Connection, login: Login, timeout_ms: float) -> int:
    return await _converse(connection, await _begin(connection, login, timeout_ms), timeout_ms)


async def _begin(connection: Connection, login: Login, timeout_ms: float) -> ClientMechanism:
    """The client side of a new exchange. AuthenticationFailed; NotConnected if no token could be had in time."""
    loop = asyncio.get_running_loop()
    deadline, delay_s = loop.time() + timeout_ms / 1000, _RETRY_S
    while True:
        try:
            return await _begin_once(connection, login)
        except (OAuthUnavailable, OSError) as error:
            if loop.time() + delay_s >= deadline or connection.closed:
                hint = "Check the token endpoint; it is tried again with the next connection"
                raise NotConnected(connection.node, f"there is no token to log in with: {error}", hint=hint) from error
            _log.warning("token not fetched, trying again: node=%s error=%s", connection.node, error)
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, _RETRY_MAX_S)


async def _begin_once(connection: Connection, login: Login) -> ClientMechanism:
    try:
        return await login.begin()
    except (OAuthUnavailable, OSError):
        raise
    except (CredentialsError, OAuthError, AuthenticationError) as error:
        raise AuthenticationFailed(connection.node, login.mechanism, str(error)) from None
    except PenstockError:
        raise
    except Exception as error:
        # The application's own function for tokens.
        raise AuthenticationFailed(connection.node, login.mechanism, f"no token: {error!r}") from error


async def _converse(connection: Connection, mechanism: ClientMechanism, timeout_ms: float) -> int:
    """The lifetime of the session, 0 without end."""
    name = mechanism.name
    answer: SaslHandshakeResponse = await _ask(
        connection, ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=name), 1, timeout_ms
    )
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        enabled = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(connection.node, name, f"the broker does not offer it; it offers {enabled}")
    if answer.error_code:
        code = error_code(answer.error_code).name
        reason = f"the broker answers {code}; it may need no authentication on this port"
        raise AuthenticationFailed(connection.node, name, reason)
    version = connection.version_of(ApiKey.SASL_AUTHENTICATE)
    token: bytes | None = mechanism.first()
    lifetime_ms = 0
    for _ in range(_MAX_STEPS):
        if token is None:
            return lifetime_ms
        request = SaslAuthenticateRequest(auth_bytes=token)
        response: SaslAuthenticateResponse = await _ask(
            connection, ApiKey.SASL_AUTHENTICATE, request, version, timeout_ms
        )
        if response.error_code:
            reason = response.error_message or "the broker rejects the credentials"
            raise AuthenticationFailed(connection.node, name, reason)
        lifetime_ms = response.session_lifetime_ms
        try:
            if name in SCRAM_MECHANISMS:
                # Hashing the password takes milliseconds.
                token = await run_in_daemon_thread(partial(mechanism.next, response.auth_bytes), "penstock-scram")
            else:
                token = mechanism.next(response.auth_bytes)
        except AuthenticationError as error:
            raise AuthenticationFailed(connection.node, name, str(error)) from None
    raise AuthenticationFailed(connection.node, name, "the exchange takes too many messages")


async def _ask(connection: Connection, api_key: ApiKey, message: Any, version: int, timeout_ms: float) -> Any:
    future = connection.send(api_key, message, version=version, timeout_ms=timeout_ms, is_urgent=True)
    if future is None:
        raise PenstockError("a request that expects a response has no future")
    return await future
