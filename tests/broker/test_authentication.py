"""The gate before authentication: what passes, what does not, and when a session ends."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.wire_client import Disconnected, WireClient, call
from tests.security.certificates import write_broker, write_ca, write_client
from tests.security.secure_broker import PASSWORD, USER, secure_broker
from tests.security.tokens import token, write_jwks
from tests.timeouts import PATIENCE_S, until

from penstock.broker.settings import InvalidSettings
from penstock.client.admin import Admin
from penstock.runtime.clock import ManualClock
from penstock.security.credentials import Secret
from penstock.security.principal import Principal, Session
from penstock.security.sasl import (
    BearerClient,
    ClientMechanism,
    PlainClient,
    ScramClientMechanism,
)
from penstock.security.tls import client_context
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.metadata import MetadataRequest, MetadataResponse
from penstock.wire.schemas.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.schemas.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

PLAIN_TOKEN = f"\0{USER}\0{PASSWORD}".encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure")


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[EmbeddedBroker]:
    with secure_broker(folder, sasl__server__max__receive__size="20000") as broker:
        yield broker


def port_of(broker: EmbeddedBroker, listener: str) -> int:
    return int(broker.address_of(listener).rpartition(":")[2])


def connect(broker: EmbeddedBroker, listener: str = "SASL_PLAINTEXT") -> WireClient:
    return WireClient(port_of(broker, listener))


def session_of(broker: EmbeddedBroker, client: WireClient) -> Session:
    """What the broker knows about this client."""
    host, port = client.socket.getsockname()[:2]

    async def find() -> Session:
        server: Any = broker.broker.services.server
        found = next(each for each in server.connections if each.peer == f"{host}:{port}")
        session: Session = found.state.session
        return session

    return asyncio.run_coroutine_threadsafe(find(), broker._loop).result(PATIENCE_S)


def handshake(client: WireClient, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
    response: SaslHandshakeResponse = client.ask(
        ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=mechanism), version
    )
    return response


def present(client: WireClient, data: bytes, version: int = 2) -> SaslAuthenticateResponse:
    response: SaslAuthenticateResponse = client.ask(
        ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=data), version
    )
    return response


def log_in(client: WireClient, mechanism: ClientMechanism) -> SaslAuthenticateResponse:
    assert handshake(client, mechanism.name).error_code == 0
    data: bytes | None = mechanism.first()
    while data is not None:
        response = present(client, data)
        if response.error_code:
            return response
        data = mechanism.next(response.auth_bytes)
    return response


def works(client: WireClient) -> bool:
    answer: MetadataResponse = client.ask(ApiKey.METADATA, MetadataRequest(topics=[]), 9)
    return bool(answer.brokers)


def test_each_mechanism_gives_its_user(secure: EmbeddedBroker) -> None:
    mechanisms: list[ClientMechanism] = [
        PlainClient(USER, Secret(PASSWORD)),
        ScramClientMechanism("SCRAM-SHA-256", USER, Secret(PASSWORD), "nonce"),
        ScramClientMechanism("SCRAM-SHA-512", USER, Secret(PASSWORD), "nonce"),
        BearerClient(Secret(token(USER, groups=["eng"]))),
    ]
    for mechanism in mechanisms:
        with connect(secure) as client:
            answer = log_in(client, mechanism)
            assert answer.error_code == 0
            session = session_of(secure, client)
            assert session.principal == Principal("User", USER)
            assert (session.listener, session.protocol, session.host) == ("SASL_PLAINTEXT",) * 2 + ("127.0.0.1",)
            is_token = mechanism.name == "OAUTHBEARER"
            assert session.groups == ({Principal("Group", "eng")} if is_token else frozenset())
            assert (answer.session_lifetime_ms > 0) == is_token == (session.expires_at_ms is not None)
            assert works(client)


def test_the_addresses_that_a_client_gets_are_those_of_its_listener(secure: EmbeddedBroker) -> None:
    with connect(secure) as client, connect(secure, "PLAINTEXT") as plain:
        log_in(client, PlainClient(USER, Secret(PASSWORD)))
        for each, listener in ((client, "SASL_PLAINTEXT"), (plain, "PLAINTEXT"), (client, "SASL_PLAINTEXT")):
            answer: MetadataResponse = each.ask(ApiKey.METADATA, MetadataRequest(topics=None), 9)
            assert [broker.port for broker in answer.brokers] == [port_of(secure, listener)]


def test_versions_are_reported_before_authentication(secure: EmbeddedBroker) -> None:
    with connect(secure) as client:
        answer: ApiVersionsResponse = client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
        keys = {each.api_key: each.max_version for each in answer.api_keys}
        assert (keys[ApiKey.SASL_HANDSHAKE], keys[ApiKey.SASL_AUTHENTICATE]) == (1, 2)
        assert log_in(client, PlainClient(USER, Secret(PASSWORD))).error_code == 0


@pytest.mark.parametrize("begun", [False, True])
def test_nothing_else_is_served_before_authentication(secure: EmbeddedBroker, begun: bool) -> None:
    requests = [
        (ApiKey.METADATA, MetadataRequest(topics=None), 9),
        (ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key="g"), 3),
    ]
    for api, message, version in requests:
        with connect(secure) as client:
            if begun:
                handshake(client, "PLAIN")
            client.send(api, message, version)
            with pytest.raises(Disconnected):
                client.receive(api, version)


def test_bytes_that_are_not_a_request_end_the_connection(secure: EmbeddedBroker) -> None:
    for data in (b"", b"\0", b"\0\x11", b"\0\x11\0\1\0\0\0\1\xff\xff", b"\0\x24" + b"\xff" * 30, b"\x7f" * 100):
        with connect(secure) as client:
            client.send_bytes(len(data).to_bytes(4, "big") + data)
            assert client.is_ended()


def test_large_frames_are_rejected_before_and_accepted_after_authentication(
    tmp_path: Path, secure: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with secure_broker(tmp_path, sasl__server__max__receive__size="20000") as broker, connect(broker) as client:
        client.send_bytes((20_001).to_bytes(4, "big"))
        assert client.is_ended()
    assert "frame of 20001 bytes exceeds 20000" in caplog.text
    with connect(secure) as client:
        log_in(client, PlainClient(USER, Secret(PASSWORD)))
        name = "g" * 25_000
        answer = client.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key=name, key_type=7), 3)
        assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "mechanism",
    [
        PlainClient(USER, Secret("wrong")),
        PlainClient("nobody", Secret(PASSWORD)),
        ScramClientMechanism("SCRAM-SHA-512", USER, Secret("wrong"), "nonce"),
        ScramClientMechanism("SCRAM-SHA-512", "nobody", Secret(PASSWORD), "nonce"),
        BearerClient(Secret(token(USER, lifetime_s=-100))),
    ],
)
def test_a_failed_login_is_answered_and_ends_the_connection(
    secure: EmbeddedBroker, mechanism: ClientMechanism, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(secure) as client:
        answer = log_in(client, mechanism)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "nobody" not in (answer.error_message or "")
        assert USER not in (answer.error_message or "")
        assert client.is_ended()
    assert PASSWORD not in caplog.text


def test_logins_are_counted(tmp_path: Path) -> None:
    with secure_broker(tmp_path) as broker:
        for password in (PASSWORD, "wrong", "wrong"):
            with connect(broker) as client:
                log_in(client, PlainClient(USER, Secret(password)))
        text = b"".join(broker.broker.services.metrics.registry.render()).decode()
    for outcome, count in (("success", 1), ("failure", 2)):
        series = f'kafka_network_authentications_total{{listener="SASL_PLAINTEXT",outcome="{outcome}"}} {count}'
        assert series in text


@pytest.mark.parametrize("says_more", [True, False])
def test_a_rejected_token_is_counted_and_audited_once_whatever_the_client_does_next(
    tmp_path: Path, says_more: bool
) -> None:
    path = tmp_path / "audit.log"
    with secure_broker(tmp_path, penstock__audit__log__file=str(path)) as broker:
        failures = broker.broker.services.metrics.authentications.labelled(listener="SASL_PLAINTEXT", outcome="failure")
        with connect(broker) as client:
            mechanism = BearerClient(Secret(token(USER, lifetime_s=-100)))
            handshake(client, mechanism.name)
            assert present(client, mechanism.first()).auth_bytes == b'{"status": "invalid_token"}'
            if says_more:
                assert present(client, b"\x01").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        until(lambda: failures.value, "the login is counted")
    assert failures.value == 1
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["event"], line["outcome"], line["action"]) == ("login", "failed", "OAUTHBEARER")


def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are(secure: EmbeddedBroker) -> None:
    with connect(secure) as client:
        answer = handshake(client, "GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
        assert client.is_ended()


def test_a_second_handshake_is_illegal(secure: EmbeddedBroker) -> None:
    with connect(secure) as client:
        handshake(client, "PLAIN")
        assert handshake(client, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.is_ended()


def test_a_handshake_of_version_0_is_followed_by_bare_tokens(secure: EmbeddedBroker) -> None:
    with connect(secure) as client:
        assert handshake(client, "PLAIN", 0).error_code == 0
        client.send_bytes(len(PLAIN_TOKEN).to_bytes(4, "big") + PLAIN_TOKEN)
        assert client.receive_frame() == b""
        assert works(client)
    with connect(secure) as client:
        handshake(client, "PLAIN", 0)
        client.send_bytes((4).to_bytes(4, "big") + b"\0a\0b")
        assert client.is_ended()


def test_sasl_is_illegal_where_it_is_not_used(secure: EmbeddedBroker) -> None:
    with connect(secure, "PLAINTEXT") as client:
        assert handshake(client, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert present(client, PLAIN_TOKEN).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert works(client)
    with connect(secure) as client:
        log_in(client, PlainClient(USER, Secret(PASSWORD)))
        # A session without an end is not renewed.
        assert handshake(client, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert works(client)


def test_requests_behind_a_login_are_served_when_it_has_succeeded(secure: EmbeddedBroker) -> None:
    """A pipelined request waits for nothing but the login, also when keys must be fetched on a thread first."""
    with connect(secure) as client:
        handshake(client, "OAUTHBEARER")
        client.send(
            ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=BearerClient(Secret(token())).first()), 2
        )
        client.send(ApiKey.METADATA, MetadataRequest(topics=[]), 9)
        assert client.receive(ApiKey.SASL_AUTHENTICATE, 2)[1].error_code == 0
        assert client.receive(ApiKey.METADATA, 9)[1].brokers


def test_a_client_that_does_not_authenticate_in_time_is_disconnected(tmp_path: Path) -> None:
    with secure_broker(tmp_path, penstock__authentication__timeout__ms="100") as broker:
        with connect(broker) as idle, connect(broker) as half:
            handshake(half, "SCRAM-SHA-256")
            assert idle.is_ended()
            assert half.is_ended()

        def stays() -> bool:
            with connect(broker) as client:
                try:
                    log_in(client, PlainClient(USER, Secret(PASSWORD)))
                except (Disconnected, ConnectionError):
                    return False  # it took longer, on a busy machine
                time.sleep(0.3)
                return works(client)

        until(stays, "one that authenticates in time stays connected")


def test_a_failed_login_is_answered_late(tmp_path: Path) -> None:
    with (
        secure_broker(tmp_path, connection__failed__authentication__delay__ms="400") as broker,
        connect(broker) as client,
    ):
        handshake(client, "PLAIN")
        begun = time.monotonic()
        assert present(client, b"\0a\0b").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert time.monotonic() - begun >= 0.39


def test_users_who_do_not_exist_are_challenged_like_others_by_every_listener(secure: EmbeddedBroker) -> None:
    def challenge(client: WireClient, user: str) -> list[str]:
        assert handshake(client, "SCRAM-SHA-512").error_code == 0
        answer = present(client, ScramClientMechanism("SCRAM-SHA-512", user, Secret("x"), "nonce").first())
        return answer.auth_bytes.decode().split(",")[1:]

    name, password = "dave", "hunter2"
    with Admin(
        secure.address_of("SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=USER,
        sasl_plain_password=PASSWORD,
    ) as admin:
        admin.set_password(name, password)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(secure) as first, connect(secure) as second, tls_client(secure, "SASL_SSL", context) as third:
        known, unknown = challenge(first, name), challenge(second, "mallory")
        assert [len(each) for each in known] == [len(each) for each in unknown]
        assert known[1] == unknown[1]
        assert challenge(third, "mallory") == unknown


class Time:
    """The clock of a broker stands still until it is advanced, and sessions end then."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker.broker
        services: Any = self._broker.services
        self._clock = ManualClock(services.clock.now_ms())
        self._timers: list[tuple[float, Callable[..., Any], asyncio.TimerHandle]] = []
        call_later = services.call_later

        def later(delay_s: float, then: Callable[..., Any], *given: Any) -> asyncio.TimerHandle:
            """What is due within a minute is not for the story to decide."""
            timer: asyncio.TimerHandle = call_later(delay_s, then, *given)
            if delay_s >= 60:
                self._timers.append((self._clock.monotonic_ms() + delay_s * 1000, partial(then, *given), timer))
            return timer

        def take_over() -> None:
            services.clock, services.call_later = self._clock, later

        call(self._broker, take_over)

    def advance(self, ms: int) -> None:
        def pass_by() -> None:
            self._clock.advance(ms)
            due = [each for each in self._timers if each[0] <= self._clock.monotonic_ms()]
            self._timers = [each for each in self._timers if each not in due]
            for _, then, timer in due:
                if not timer.cancelled():
                    timer.cancel()
                    then()

        call(self._broker, pass_by)


LIFETIME_MS = 500_000


def test_a_session_is_renewed_on_its_connection(tmp_path: Path) -> None:
    settings = {"connections__max__reauth__ms": str(LIFETIME_MS)}
    with secure_broker(tmp_path, **settings) as broker, connect(broker) as client:
        passing = Time(broker)
        answer = log_in(client, PlainClient(USER, Secret(PASSWORD)))
        assert answer.session_lifetime_ms == LIFETIME_MS
        first = session_of(broker, client).expires_at_ms
        # Not more than once a second.
        passing.advance(999)
        assert handshake(client, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        passing.advance(1)
        assert log_in(client, PlainClient(USER, Secret(PASSWORD))).session_lifetime_ms == LIFETIME_MS
        second = session_of(broker, client).expires_at_ms
        assert first is not None
        assert second == first + 1000
        # The first session would be over.
        passing.advance(LIFETIME_MS - 1)
        assert works(client)
        # After its end, it can still be renewed, and nothing else.
        passing.advance(1)
        assert log_in(client, PlainClient(USER, Secret(PASSWORD))).error_code == 0
        assert works(client)
        passing.advance(LIFETIME_MS)
        client.send(ApiKey.METADATA, MetadataRequest(topics=[]), 9)
        with pytest.raises(Disconnected):
            client.receive(ApiKey.METADATA, 9)


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "PLAIN"])
def test_neither_the_user_nor_the_mechanism_changes_when_a_session_is_renewed(tmp_path: Path, mechanism: str) -> None:
    is_token = mechanism == "OAUTHBEARER"
    other = BearerClient(Secret(token("bob"))) if is_token else PlainClient(USER, Secret(PASSWORD))
    with secure_broker(tmp_path) as broker, connect(broker) as client:
        passing = Time(broker)
        log_in(client, BearerClient(Secret(token(USER))))
        passing.advance(1000)
        answer = handshake(client, other.name)
        if is_token:
            assert answer.error_code == 0
            rejected = present(client, other.first())
            assert rejected.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "Cannot change principals" in (rejected.error_message or "")
        else:
            assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert client.is_ended()


def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    with secure_broker(tmp_path) as broker, connect(broker) as client:
        passing = Time(broker)
        answer = log_in(client, BearerClient(Secret(token(USER, lifetime_s=LIFETIME_MS // 1000))))
        assert 60_000 < answer.session_lifetime_ms <= LIFETIME_MS
        passing.advance(answer.session_lifetime_ms - 1)
        assert works(client)
        passing.advance(1)
        client.send(ApiKey.METADATA, MetadataRequest(topics=[]), 9)
        assert client.is_ended()


def test_new_keys_are_fetched_when_a_token_names_them(tmp_path: Path) -> None:
    with secure_broker(tmp_path) as broker:
        with connect(broker) as client:
            assert log_in(client, BearerClient(Secret(token(USER)))).error_code == 0
        write_jwks(tmp_path, "one", "two")
        with connect(broker) as client:
            # The broker looked less than ten seconds ago.
            assert log_in(client, BearerClient(Secret(token(USER, "two")))).error_code != 0


# --- TLS


def tls_client(broker: EmbeddedBroker, listener: str, context: ssl.SSLContext) -> WireClient:
    client = connect(broker, listener)
    plain: Any = client.socket
    client.socket = context.wrap_socket(plain, server_hostname="localhost")
    return client


def test_a_certificate_gives_the_user_by_the_rules(secure: EmbeddedBroker, folder: Path) -> None:
    trust = {"ssl.truststore.location": write_ca(folder)}
    alice = client_context({**trust, "ssl.keystore.location": write_client(folder, "alice")})
    with tls_client(secure, "MTLS", alice) as client:
        assert works(client)
        session = session_of(secure, client)
        assert (session.principal, session.protocol) == (Principal("User", "alice"), "SSL")
    with tls_client(secure, "SSL", client_context(trust)) as client:
        assert works(client)
        assert session_of(secure, client).principal == Principal("User", "ANONYMOUS")


def test_a_certificate_that_no_rule_maps_is_rejected(tmp_path: Path) -> None:
    settings = {"ssl__principal__mapping__rules": "RULE:^CN=(bob),.*$/$1/"}
    with secure_broker(tmp_path, **settings) as broker:
        alice = client_context(
            {"ssl.truststore.location": write_ca(tmp_path), "ssl.keystore.location": write_client(tmp_path, "alice")}
        )
        with tls_client(broker, "MTLS", alice) as client:
            assert client.is_ended()


def test_certificates_are_reloaded_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.authentication.MAINTENANCE_MS", 50)
    trust = client_context({"ssl.truststore.location": write_ca(tmp_path)})

    def serial(broker: EmbeddedBroker) -> str:
        with tls_client(broker, "SSL", trust) as client:
            found: Any = client.socket
            return str(found.getpeercert()["serialNumber"])

    with secure_broker(tmp_path) as broker, tls_client(broker, "SSL", trust) as old:
        first = serial(broker)
        write_broker(tmp_path)
        until(lambda: serial(broker) != first, "the new certificate")
        assert works(old)


def test_a_broker_with_a_bad_certificate_does_not_start(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nonsense")
    with (
        pytest.raises(InvalidSettings, match=r"listener SSL: .*bad\.pem"),
        EmbeddedBroker(settings={"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(bad)}),
    ):
        pass


def test_a_plaintext_client_on_a_tls_listener_is_disconnected_at_once(
    secure: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(secure, "SSL") as client:
        client.send(ApiKey.API_VERSIONS, ApiVersionsRequest(), 3)
        assert client.is_ended()
    assert "the first bytes are not TLS" in caplog.text, "it is not waited for a handshake"
