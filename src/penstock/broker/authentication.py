"""Who is on a connection: certificates, and the SASL exchange before the first request.

`SecureListener` is a listener with TLS or SASL, made from its settings. Its `Gate` stands before the router on a SASL
connection: until the client is authenticated, nothing is decoded but ApiVersions, SaslHandshake and SaslAuthenticate
(or bare tokens after a handshake of version 0). Frames are small, time is limited, and there is one attempt per
connection: a failure is answered after `connection.failed.authentication.delay.ms`, then the connection is closed.

A session ends when its token expires or after `connections.max.reauth.ms`. The client authenticates again on the same
connection (KIP-368), as the same user with the same mechanism; any other request after the end closes the connection.
Authenticated connections pass the gate without a test: a closed gate mutes its channel, which the router looks at
anyway.
"""

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from penstock.broker.request import BrokerState, Channel, Services
from penstock.broker.settings.listener_security import ListenerSecurity
from penstock.config_def import InvalidSettings, Problem
from penstock.runtime.network import Chunk, Connection, RateLimitedLogger, Reply, TlsContexts
from penstock.runtime.threads import Outcome as WorkOutcome
from penstock.runtime.threads import Workers, WorkersError
from penstock.security.credentials import OAUTHBEARER, PLAIN, CredentialsError, Secret
from penstock.security.distinguished_name import PrincipalMapper, subject_of
from penstock.security.oauth import Jwks, OAuthError, TokenValidator, read_url, tls_of
from penstock.security.principal import ANONYMOUS, USER, Principal, Session
from penstock.security.sasl import (
    Authenticated,
    AuthenticationError,
    BearerServer,
    Deferred,
    PlainServer,
    ScramServerMechanism,
    ServerMechanism,
)
from penstock.security.tls import ReloadingContext, TlsError, server_context
from penstock.wire.errors import WireError
from penstock.wire.framing import RequestHeader, decode_request, encode_response
from penstock.wire.protocol import ApiKey, ErrorCode, request_codec
from penstock.wire.schemas.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.schemas.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.background_tasks import Timer
    from penstock.broker.settings import BrokerSettings
    from penstock.security.broker_proof import ClusterSecret

logger = logging.getLogger(__name__)

_HANDSHAKE_KEY: Final = ApiKey.SASL_HANDSHAKE.to_bytes(2, "big")
_API_VERSIONS_KEY: Final = ApiKey.API_VERSIONS.to_bytes(2, "big")
_NONCE_BYTES: Final = 24
# Frames that may wait while keys are fetched; clients send one at a time.
_MAX_WAITING: Final = 8
_MAX_DEFERRALS: Final = 2
_MAX_CLAIMED: Final = 256
_MAX_API_VERSIONS: Final = 10
# Kafka allows one attempt per second.
_REAUTHENTICATION_MS: Final = 1_000
MAINTENANCE_MS: Final = 5_000
"""How often files of certificates are checked for changes."""

Users = Callable[[str], Mapping[str, str]]
"""The settings of a user in the metadata tree, by name; {} for unknown ones."""
TakeFrame = Callable[[Connection, bytearray, Reply], None]


# ------------------------------------------------------------------------------------------------------------ listeners


class SecureListener:
    """A listener with TLS, SASL or both. InvalidSettings if its certificates or keys cannot be used."""

    def __init__(self, services: Services, security: ListenerSecurity, users: Users, workers: Workers) -> None:
        self.name = security.listener.name
        self.protocol = security.listener.protocol
        self.uses_sasl = security.uses_sasl
        self.mechanisms = security.mechanisms
        self.security = security
        self._services = services
        self._users = users
        self._workers = workers
        self._own_secret = services.random.random_bytes(32)
        self._mapper = PrincipalMapper(security.value("ssl.principal.mapping.rules"))
        self._keys: Jwks | None = None
        self.contexts: ReloadingContext | None = None
        try:
            if security.uses_tls:
                self.contexts = ReloadingContext(security.tls(), server_context)
            self._makers = {each: self._maker(each) for each in self.mechanisms} if self.uses_sasl else {}
        except (TlsError, CredentialsError, OAuthError) as error:
            raise InvalidSettings([Problem(f"listener {self.name}", "", str(error))]) from None
        self.complain = RateLimitedLogger(services.clock, logger)

    @property
    def tls(self) -> TlsContexts | None:
        return self.contexts

    def _maker(self, mechanism: str) -> Callable[[], ServerMechanism]:
        """The function that makes the server side of an exchange."""
        login = self.security.login(mechanism)
        static = {} if login is None else {name: each.reveal() for name, each in login.users().items()}
        if mechanism == PLAIN:
            users = {name: Secret.literal(password) for name, password in static.items()}
            return lambda: PlainServer(users)
        if mechanism == OAUTHBEARER:
            settings = self.security.oauth()
            context = tls_of({} if login is None else login.options)
            fetch = partial(read_url, settings.jwks_url, context=context)
            self._keys = Jwks(fetch, self._services.clock.monotonic_ms, settings.refresh_ms)
            validator = TokenValidator(settings, self._keys, lambda: self._services.clock.now_ms() / 1000)
            return lambda: BearerServer(validator)

        def lookup(user: str) -> str | None:
            return self._users(user).get(mechanism) or static.get(user)

        return lambda: ScramServerMechanism(mechanism, lookup, self._nonce(), self._salt_secret())

    def _salt_secret(self) -> bytes:
        """The same on all brokers and after a restart: a salt that changes would show that a user does not exist."""
        secret: ClusterSecret | None = getattr(getattr(self._services, "cluster", None), "secret", None)
        return self._own_secret if secret is None else secret.derived(b"scram salts")

    def _nonce(self) -> str:
        return base64.b64encode(self._services.random.random_bytes(_NONCE_BYTES)).decode().rstrip("=")

    def mechanism(self, name: str) -> ServerMechanism:
        return self._makers[name]()

    def run(self, work: Callable[[], None], done: Callable[[WorkOutcome[None]], None]) -> None:
        """Do blocking work. WorkersError."""
        self._workers.run(work, done)

    def maintain(self) -> None:
        """Look for new certificates and keys, on a thread."""
        keys = self._keys

        def work() -> None:
            if self.contexts is not None:
                self.contexts.reload()
            if keys is not None and keys.is_due:
                keys.refresh()

        try:
            self._workers.run(work, self._maintained)
        except WorkersError as error:
            logger.warning("certificates not checked: listener=%s error=%s", self.name, error)

    def _maintained(self, outcome: WorkOutcome[None]) -> None:
        if outcome.error is not None:
            logger.error("certificates not checked: listener=%s", self.name, exc_info=outcome.error)

    def principal_of(self, connection: Connection) -> Principal:
        """Of the client's certificate; CertificateError if no rule maps it."""
        certificate = connection.peer_certificate
        if certificate is None or self.uses_sasl:
            return ANONYMOUS
        return Principal(USER, self._mapper.map(subject_of(certificate)))

    def lifetime_ms(self, mechanism: str, expires_at_ms: int | None) -> int:
        """How long a session lasts; 0: without end."""
        limits = [self.security.value("connections.max.reauth.ms", mechanism)]
        if expires_at_ms is not None:
            limits.append(max(1, expires_at_ms - self._services.clock.now_ms()))
        return min((each for each in limits if each > 0), default=0)


def secure_listeners(
    services: Services, settings: BrokerSettings, users: Users, workers: Workers
) -> dict[str, SecureListener]:
    """The listeners that are not PLAINTEXT, by name. InvalidSettings."""
    return {
        each.name: SecureListener(services, settings.security(each), users, workers)
        for each in settings.listeners
        if each.protocol != "PLAINTEXT"
    }


def users_in_tree(services: Services) -> Users:
    """Settings of users in the cluster image, which is there once the broker knows its cluster."""

    def find(name: str) -> Mapping[str, str]:
        image = services.cluster.image if hasattr(services, "cluster") else None
        users: Mapping[str, Mapping[str, str]] = getattr(image, "users", {})
        return users.get(name, {})

    return find


# ----------------------------------------------------------------------------------------------------------------- gate


class GateState(Enum):
    HANDSHAKE = "waits for SaslHandshake"
    AUTHENTICATE = "waits for SaslAuthenticate"
    TOKEN = "waits for a bare token"
    OPEN = "authenticated"
    EXPIRED = "the session has ended"
    FAILED = "authentication failed"


class Gate:
    """The SASL exchange of one connection. `take` routes a frame that may pass."""

    __slots__ = (
        "_channel",
        "_connection",
        "_deferrals",
        "_is_busy",
        "_listener",
        "_mechanism",
        "_noted",
        "_services",
        "_started_ms",
        "_take",
        "_timer",
        "_versions_asked",
        "_waiting",
        "mechanism_name",
        "state",
    )

    def __init__(
        self, services: Services, listener: SecureListener, connection: Connection, channel: Channel, take: TakeFrame
    ) -> None:
        self._services = services
        self._listener = listener
        self._connection = connection
        self._channel = channel
        self._take = take
        self.state = GateState.HANDSHAKE
        self.mechanism_name = ""
        self._mechanism: ServerMechanism | None = None
        self._noted: AuthenticationError | None = None
        self._waiting: deque[tuple[bytearray, Reply]] = deque()
        self._is_busy = False
        self._deferrals = 0
        self._versions_asked = 0
        self._started_ms = float("-inf")
        self._timer: Timer | None = None
        self._shut_channel()

    # --- the channel

    def _shut_channel(self) -> None:
        """Have all frames pass here from now on, and limit them."""
        security = self._listener.security
        self._channel.gate = self
        self._channel.mute()
        self._connection.limit_frames(security.value("sasl.server.max.receive.size"))
        self._wait(security.value("penstock.authentication.timeout.ms"), self._too_late)

    def _open_channel(self) -> None:
        self._channel.gate = None
        self._connection.limit_frames(None)
        self._channel.unmute()

    def _wait(self, delay_ms: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = self._services.call_later(delay_ms / 1000, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def closed(self) -> None:
        """The connection is closed."""
        self.state = GateState.FAILED
        self._stop_waiting()
        self._waiting.clear()

    def _too_late(self) -> None:
        self._close("the client did not authenticate in time")

    def _close(self, reason: str) -> None:
        self.state = GateState.FAILED
        self._stop_waiting()
        listener, connection = self._listener, self._connection
        listener.complain(
            "closed",
            f"connection closed: listener={listener.name} peer={connection.peer} reason={reason}",
            logging.INFO,
        )
        connection.close(reason)

    # --- frames

    def frame(self, frame: bytearray, reply: Reply) -> None:
        if self._is_busy:
            if len(self._waiting) >= _MAX_WAITING:
                self._close("too many requests before authentication")
            else:
                self._waiting.append((frame, reply))
            return
        try:
            self._receive(frame, reply)
        except WireError as error:
            self._close(f"bad request before authentication: {error}")

    def _receive(self, frame: bytearray, reply: Reply) -> None:
        if self._services.state not in (BrokerState.RUNNING, BrokerState.JOINING):
            self._close("the broker is starting or stopping")
            return
        state, key = self.state, bytes(frame[:2])
        if state is GateState.TOKEN:
            self._token(bytes(frame), partial(_send_bare, reply), None)
        elif state is GateState.AUTHENTICATE:
            self._authenticate(frame, reply)
        elif key == _HANDSHAKE_KEY and state in (GateState.HANDSHAKE, GateState.EXPIRED):
            header, position = decode_request(frame)
            message: SaslHandshakeRequest
            message, _ = request_codec(header.api.key, header.api_version).decode(frame, position)
            if state is GateState.EXPIRED:
                self._wait(self._listener.security.value("penstock.authentication.timeout.ms"), self._too_late)
            self._handshake(message.mechanism, header.api_version, partial(_send, reply, header))
        elif key == _API_VERSIONS_KEY and state is GateState.HANDSHAKE and self._versions_asked < _MAX_API_VERSIONS:
            self._versions_asked += 1
            self._take(self._connection, frame, reply)
        elif state is GateState.EXPIRED:
            self._close("the session has ended, and the client did not authenticate again")
        elif state is not GateState.FAILED:
            number = int.from_bytes(key, "big")
            self._close(f"request of API {number} before authentication")

    # --- the exchange

    def may_begin_again(self) -> bool:
        """Whether a SaslHandshake on an authenticated connection starts a re-authentication."""
        return (
            self.state is GateState.OPEN
            and self._channel.session.expires_at_ms is not None
            and self._services.clock.monotonic_ms() - self._started_ms >= _REAUTHENTICATION_MS
        )

    def begin_again(self, mechanism: str, version: int, answer: Callable[[Message], None]) -> None:
        """Re-authenticate: a SaslHandshake arrived on the open channel."""
        self._shut_channel()
        self._handshake(mechanism, version, answer)

    def _handshake(self, wanted: str, version: int, answer: Callable[[Message], None]) -> None:
        listener = self._listener
        is_again = bool(self.mechanism_name)
        response = SaslHandshakeResponse(mechanisms=list(listener.mechanisms))
        if wanted not in listener.mechanisms or (is_again and wanted != self.mechanism_name):
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            why = f"the mechanism {wanted[:50]!r} is not enabled" if not is_again else "the mechanism must not change"
            self._fail(AuthenticationError(why), partial(answer, response))
            return
        if is_again and version == 0:
            response.error_code = ErrorCode.ILLEGAL_SASL_STATE
            self._fail(AuthenticationError("bare tokens cannot re-authenticate"), partial(answer, response))
            return
        self.mechanism_name = wanted
        self._started_ms = self._services.clock.monotonic_ms()
        self._mechanism = listener.mechanism(wanted)
        self._deferrals = 0
        self.state = GateState.TOKEN if version == 0 else GateState.AUTHENTICATE
        answer(response)

    def _authenticate(self, frame: bytearray, reply: Reply) -> None:
        header, position = decode_request(frame)
        send = partial(_send, reply, header)
        if header.api.key == ApiKey.SASL_HANDSHAKE:
            illegal = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
            self._fail(AuthenticationError("a second SaslHandshake"), partial(send, illegal))
            return
        if header.api.key != ApiKey.SASL_AUTHENTICATE:
            self._close(f"{header.api.name} before authentication")
            return
        message: SaslAuthenticateRequest
        message, _ = request_codec(header.api.key, header.api_version).decode(frame, position)

        def answer(token: bytes, lifetime_ms: int) -> None:
            send(SaslAuthenticateResponse(auth_bytes=token, error_message=None, session_lifetime_ms=lifetime_ms))

        def reject(error: AuthenticationError) -> None:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            send(SaslAuthenticateResponse(error_code=code, error_message=str(error)))

        self._token(message.auth_bytes, answer, reject)

    def _token(
        self,
        token: bytes,
        answer: Callable[[bytes, int], None],
        reject: Callable[[AuthenticationError], None] | None,
    ) -> None:
        mechanism = self._mechanism
        if mechanism is None:
            raise RuntimeError("no exchange has begun")
        try:
            outcome = mechanism.respond(token)
            if isinstance(outcome, Deferred):
                self._defer(outcome, partial(self._token, token, answer, reject))
            elif isinstance(outcome, Authenticated):
                lifetime_ms = self._succeed(outcome)
                answer(outcome.token, lifetime_ms)
                self._open_channel()
            else:
                if outcome.failure is not None:
                    self._note_failure(outcome.failure)
                answer(outcome.token, 0)
        except AuthenticationError as error:
            self._fail(error, None if reject is None else partial(reject, error))

    def _defer(self, outcome: Deferred, again: Callable[[], None]) -> None:
        """Do the work on a thread; frames that arrive meanwhile wait."""
        self._deferrals += 1
        if self._deferrals > _MAX_DEFERRALS:
            raise AuthenticationError("Authentication failed: try again later")

        def done(_: WorkOutcome[None]) -> None:
            self._is_busy = False
            if self.state is GateState.FAILED:
                return
            again()
            while self._waiting and not self._is_busy and not self._channel.is_closed:
                frame, reply = self._waiting.popleft()
                if self._channel.gate is self:
                    self.frame(frame, reply)
                else:
                    self._take(self._connection, frame, reply)

        self._is_busy = True
        try:
            self._listener.run(outcome.work, done)
        except WorkersError as error:
            self._is_busy = False
            raise AuthenticationError("Authentication failed: try again later", str(error)) from None

    def _succeed(self, outcome: Authenticated) -> int:
        """Note who it is; how long the session lasts."""
        channel, listener = self._channel, self._listener
        before = channel.session
        # Only a session that ends is renewed.
        if before.expires_at_ms is not None and before.principal != outcome.principal:
            raise AuthenticationError(
                f"Cannot change principals during re-authentication from {before.principal} to {outcome.principal}"
            )
        lifetime_ms = listener.lifetime_ms(self.mechanism_name, outcome.expires_at_ms)
        expires_at_ms = self._services.clock.now_ms() + lifetime_ms if lifetime_ms else None
        channel.session = replace(
            before, principal=outcome.principal, groups=outcome.groups, expires_at_ms=expires_at_ms
        )
        self.state = GateState.OPEN
        self._mechanism = None
        self._services.metrics.authentications.labelled(listener=listener.name, outcome="success").add()
        self._stop_waiting()
        if lifetime_ms:
            self._wait(lifetime_ms, self._expire)
        logger.debug("client authenticated: peer=%s principal=%s", self._connection.peer, outcome.principal)
        if self._services.audit is not None:
            self._services.audit.login(channel.session, self.mechanism_name, succeeded=True)
        return lifetime_ms

    def _expire(self) -> None:
        """The next request must be a SaslHandshake. An idle connection stays open."""
        self.state = GateState.EXPIRED
        self._timer = None
        self._channel.gate = self
        self._channel.mute()
        self._connection.limit_frames(self._listener.security.value("sasl.server.max.receive.size"))

    def _note_failure(self, error: AuthenticationError) -> None:
        """Count, log and audit a failed login, once."""
        if error is self._noted:
            return
        self._noted = error
        listener, connection = self._listener, self._connection
        self._services.metrics.authentications.labelled(listener=listener.name, outcome="failure").add()
        listener.complain(
            "failure",
            f"authentication failed: listener={listener.name} peer={connection.peer} "
            f"mechanism={self.mechanism_name or '-'} reason={error.detail}",
        )
        audit = self._services.audit
        if audit is not None:
            claimed = Principal(USER, error.username[:_MAX_CLAIMED]) if error.username else ANONYMOUS
            audit.login(replace(self._channel.session, principal=claimed), self.mechanism_name, succeeded=False)

    def _fail(self, error: AuthenticationError, respond: Callable[[], None] | None) -> None:
        """Answer after a delay, and close: one attempt per connection."""
        self.state = GateState.FAILED
        self._mechanism = None
        self._note_failure(error)
        listener, connection = self._listener, self._connection

        def end() -> None:
            self._timer = None
            if not self._channel.is_closed:
                if respond is not None:
                    respond()
                connection.close("authentication failed")

        self._wait(listener.security.value("connection.failed.authentication.delay.ms"), end)


def _send(reply: Reply, header: RequestHeader, message: Message) -> None:
    chunks = encode_response(header.api.key, header.api_version, header.correlation_id, message)
    reply.send(cast("list[Chunk]", chunks))


def _send_bare(reply: Reply, token: bytes, _: int) -> None:
    reply.send([len(token).to_bytes(4, "big") + token])


def session_of(listener: SecureListener, connection: Connection) -> Session:
    """The session of a new connection. CertificateError."""
    return Session(
        principal=listener.principal_of(connection),
        listener=connection.listener,
        protocol=listener.protocol,
        host=connection.address,
    )
