"""The clients with TLS and SASL: both faces, sessions that are renewed, wrong credentials, options."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.cluster_stories import BrokerCluster
from tests.ports import free_port
from tests.security.certificates import broker_settings, write_ca, write_client
from tests.security.secure_broker import PASSWORD, USER, secure_broker
from tests.security.tokens import token
from tests.timeouts import NEVER_MS, PATIENCE_S, until

from penstock import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, TopicSpec, errors
from penstock.client.errors import AuthenticationFailed, ConfigError
from penstock.client.producer.settings import ProducerSettings
from penstock.security.credentials import format_jaas
from penstock.security.scram import ScramCredential
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.testing.zookeeper import ZooKeeperServer

WAYS = [
    ("SSL", ""),
    ("MTLS", ""),
    ("SASL_PLAINTEXT", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-256"),
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_SSL", "OAUTHBEARER"),
]
CONTENT = [b"record %d" % number for number in range(300)] + [b"x" * 900_000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure")


@pytest.fixture(scope="module")
def secure(folder: Path) -> Iterator[EmbeddedBroker]:
    with secure_broker(folder) as broker:
        yield broker


def options(folder: Path, listener: str, mechanism: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "security_protocol": "SSL" if listener == "MTLS" else listener,
        "ssl_truststore_location": write_ca(folder),
    }
    if listener == "MTLS":
        found["ssl_keystore_location"] = write_client(folder, USER)
    if mechanism == "OAUTHBEARER":
        found |= {"sasl_mechanism": mechanism, "sasl_oauth_token": lambda: token(USER)}
    elif mechanism:
        found |= {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    return found


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_the_blocking_clients_write_and_read(
    secure: EmbeddedBroker, folder: Path, listener: str, mechanism: str
) -> None:
    address, given = secure.address_of(listener), options(folder, listener, mechanism)
    topic = f"blocking-{listener}-{mechanism}"
    with Admin(address, **given) as admin:
        admin.create_topics([TopicSpec(topic, 1)])
    with Producer(address, **given) as producer:
        for value in CONTENT:
            producer.send(topic, value)
        producer.flush()
    with Consumer(topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest", **given) as consumer:
        found = []
        for record in consumer:
            found.append(record.value)
            if len(found) == len(CONTENT):
                break
    assert found == CONTENT


def test_the_asyncio_clients_write_and_read(secure: EmbeddedBroker, folder: Path) -> None:
    address, given = secure.address_of("SASL_SSL"), options(folder, "SASL_SSL", "SCRAM-SHA-512")

    async def fetch_token() -> str:
        await asyncio.sleep(0)
        return token(USER)

    async def story() -> list[bytes]:
        async with AsyncProducer(address, **given) as producer:
            for value in CONTENT:
                await producer.send("asyncio", value)
            await producer.flush()
        reading = {**given, "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token": fetch_token}
        found: list[bytes] = []
        consumer = AsyncConsumer("asyncio", bootstrap_servers=address, auto_offset_reset="earliest", **reading)
        async with consumer:
            async for record in consumer:
                found.append(record.value)
                if len(found) == len(CONTENT):
                    return found
        return found

    assert asyncio.run(story()) == CONTENT


def test_options_may_be_jaas_text_and_secrets_in_files_or_the_environment(
    secure: EmbeddedBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text(PASSWORD + "\n")
    monkeypatch.setenv("PENSTOCK_TEST_PASSWORD", PASSWORD)
    jaas = format_jaas("SCRAM", {"username": USER, "password": PASSWORD})
    (tmp_path / "jaas").write_text(jaas)
    base = options(folder, "SASL_SSL", "")
    for given in (
        {"sasl_jaas_config": jaas},
        {"sasl_jaas_config": f"file:{tmp_path / 'jaas'}"},
        {"sasl_plain_username": USER, "sasl_plain_password": f"file:{tmp_path / 'password'}"},
        {"sasl_plain_username": USER, "sasl_plain_password": "env:PENSTOCK_TEST_PASSWORD"},
    ):
        more: dict[str, Any] = {**base, "sasl_mechanism": "SCRAM-SHA-256", **given}
        with Admin(secure.address_of("SASL_SSL"), **more) as admin:
            assert admin.describe_cluster().nodes


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_wrong_credentials_are_reported_and_not_retried(secure: EmbeddedBroker, folder: Path, mechanism: str) -> None:
    given = options(folder, "SASL_SSL", mechanism)
    if mechanism == "OAUTHBEARER":
        given["sasl_oauth_token"] = lambda: token(USER, lifetime_s=-100)
    else:
        given["sasl_plain_password"] = "hunter2"
    with pytest.raises(AuthenticationFailed, match=f"{mechanism} authentication failed") as raised:
        Producer(secure.address_of("SASL_SSL"), start_timeout_ms=NEVER_MS, **given)
    assert not raised.value.retriable
    assert "hunter2" not in str(raised.value)


def test_a_token_that_cannot_be_fetched_is_reported(secure: EmbeddedBroker, folder: Path) -> None:
    def fail() -> str:
        raise RuntimeError("the issuer is down")

    given = {**options(folder, "SASL_SSL", "OAUTHBEARER"), "sasl_oauth_token": fail}
    with pytest.raises(AuthenticationFailed, match="the issuer is down"):
        Admin(secure.address_of("SASL_SSL"), **given)


class TokenEndpoint(http.server.BaseHTTPRequestHandler):
    """Answers with these statuses, then always with the last one."""

    statuses: tuple[int, ...] = ()
    asked = 0
    url = ""

    def do_POST(self) -> None:
        kind = type(self)
        status = kind.statuses[min(kind.asked, len(kind.statuses) - 1)]
        kind.asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(status)
        self.end_headers()
        if status == 200:
            self.wfile.write(json.dumps({"access_token": token(USER)}).encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def token_endpoint(*statuses: int) -> Iterator[type[TokenEndpoint]]:
    class Handler(TokenEndpoint):
        pass

    Handler.statuses = statuses
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Handler.url = f"http://127.0.0.1:{server.server_port}/token"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Handler
        finally:
            server.shutdown()
            thread.join()


def with_endpoint(folder: Path, url: str) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "ssl_truststore_location": write_ca(folder),
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": url,
        "sasl_oauthbearer_client_id": "app",
        "sasl_oauthbearer_client_secret": "hunter2",
    }


def test_a_token_endpoint_that_is_down_is_asked_again(secure: EmbeddedBroker, folder: Path) -> None:
    with token_endpoint(503, 500, 429, 200) as endpoint:
        with Admin(secure.address_of("SASL_SSL"), **with_endpoint(folder, endpoint.url)) as admin:
            assert admin.describe_cluster().nodes
        assert endpoint.asked >= 4


def test_a_token_endpoint_that_stays_down_is_reported_as_retriable(secure: EmbeddedBroker, folder: Path) -> None:
    given = with_endpoint(folder, f"http://127.0.0.1:{free_port()}/token")
    with pytest.raises(errors.BootstrapError, match="there is no token to log in with") as raised:
        Admin(secure.address_of("SASL_SSL"), connect_timeout_ms=1_000, **given)
    assert not isinstance(raised.value, AuthenticationFailed)
    assert "hunter2" not in str(raised.value)


def test_a_token_endpoint_that_rejects_the_client_is_asked_once(secure: EmbeddedBroker, folder: Path) -> None:
    with token_endpoint(401) as endpoint:
        with pytest.raises(AuthenticationFailed, match="status 401"):
            Producer(secure.address_of("SASL_SSL"), start_timeout_ms=60_000, **with_endpoint(folder, endpoint.url))
        assert endpoint.asked == 1


def test_the_reason_says_what_to_change(secure: EmbeddedBroker, folder: Path) -> None:
    plain = secure.address_of("PLAINTEXT")
    with pytest.raises(AuthenticationFailed, match="may need no authentication on this port"):
        Admin(plain, **options(folder, "SASL_PLAINTEXT", "PLAIN"))
    with pytest.raises(errors.BootstrapError, match="SASL_SSL"):
        Admin(secure.address_of("SSL"))
    with pytest.raises(errors.BootstrapError, match="does not speak TLS"):
        Admin(plain, **options(folder, "SSL", ""))
    with pytest.raises(errors.BootstrapError, match="ssl_truststore_location"):
        Admin(secure.address_of("SSL"), security_protocol="SSL")


def test_a_mechanism_that_the_broker_does_not_offer_is_named(tmp_path: Path) -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": format_jaas("PLAIN", {"user_a": "b"}),
    }
    with (
        EmbeddedBroker(settings=settings) as broker,
        pytest.raises(AuthenticationFailed, match="does not offer it; it offers PLAIN"),
    ):
        Admin(broker.address, **options(tmp_path, "SASL_PLAINTEXT", "SCRAM-SHA-512"))


def test_sessions_are_renewed_while_records_flow(tmp_path: Path) -> None:
    """The broker closes connections whose session ends; no request fails, because each is renewed before."""
    with secure_broker(tmp_path, connections__max__reauth__ms="1500") as broker:
        address = broker.address_of("SASL_PLAINTEXT")
        given = options(tmp_path, "SASL_PLAINTEXT", "SCRAM-SHA-256")
        server: Any = broker.broker.services.server
        with Producer(address, retries=0, enable_idempotence=False, **given) as producer:
            producer.send("renewed", b"first").result(PATIENCE_S)
            accepted = server.counters.accepted
            end = time.monotonic() + 5
            count = 0
            while time.monotonic() < end or count <= 100:
                producer.send("renewed", b"%d" % count).result(PATIENCE_S)
                count += 1
            assert server.counters.accepted == accepted


def test_a_consumer_outlives_its_tokens(tmp_path: Path) -> None:
    with secure_broker(tmp_path) as broker:
        address = broker.address_of("SASL_PLAINTEXT")
        fetched = []

        def fetch() -> str:
            fetched.append(time.monotonic())
            return token(USER, lifetime_s=3)

        writing = options(tmp_path, "SASL_PLAINTEXT", "PLAIN")
        reading = {**options(tmp_path, "SASL_PLAINTEXT", "OAUTHBEARER"), "sasl_oauth_token": fetch}
        with (
            Producer(address, **writing) as producer,
            Consumer("tokens", bootstrap_servers=address, auto_offset_reset="earliest", **reading) as consumer,
        ):
            records = iter(consumer)
            end = time.monotonic() + 7
            number = 0
            while time.monotonic() < end or len(fetched) < 4:
                producer.send("tokens", b"%d" % number).result(PATIENCE_S)
                assert next(records).value == b"%d" % number
                number += 1
                time.sleep(0.05)


def test_a_producer_whose_password_becomes_wrong_fails_its_records(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(PASSWORD)
    with secure_broker(tmp_path / "broker", connections__max__reauth__ms="1200") as broker:
        given = {
            **options(tmp_path, "SASL_PLAINTEXT", "PLAIN"),
            "sasl_plain_password": f"file:{secret}",
        }
        with Producer(broker.address_of("SASL_PLAINTEXT"), delivery_timeout_ms=30_000, **given) as producer:
            producer.send("t", b"1").result(PATIENCE_S)
            secret.write_text("wrong")

            def fails() -> bool:
                try:
                    producer.send("t", b"2").result(PATIENCE_S)
                except errors.PenstockError as error:
                    return "authentication failed" in str(error)
                time.sleep(0.1)
                return False

            until(fails, "records fail with the reason")


# --- options


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"security_protocol": "TLS"}, "Use one of PLAINTEXT"),
        ({"sasl_mechanism": "PLAIN"}, "Use SASL_SSL or SASL_PLAINTEXT"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "sasl_mechanism is not set"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}, "'GSSAPI'"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}, "needs a user name and a password"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}, "no source of tokens"),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": format_jaas("SCRAM", {"username": "a", "password": "hunter2"}),
            },
            "not of PLAIN",
        ),
        ({"security_protocol": "SSL", "ssl_truststore_location": "/nowhere"}, "cannot read /nowhere"),
        (
            {"security_protocol": "SSL", "ssl_key_password": "env:NOT_THERE_AT_ALL"},
            "variable NOT_THERE_AT_ALL is not set",
        ),
        ({"sasl_plain_password": 7}, "must be text, not int"),
        ({"ssl_cafile": "x"}, "Did you mean ssl_truststore_location"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        Producer("localhost:1", **given)
    assert "hunter2" not in str(raised.value)


def test_secrets_are_not_shown() -> None:
    settings = ProducerSettings(
        sasl_plain_password="hunter2",
        sasl_jaas_config="hunter2",
        ssl_key_password="hunter2",
        sasl_oauthbearer_client_secret="hunter2",
        ssl_keystore_key="hunter2",
    )
    assert "hunter2" not in repr(settings)


def test_client_credentials_come_from_options_or_jaas_text() -> None:
    from penstock.client.security import security_of

    base = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": "https://issuer.example/token",
    }
    jaas = format_jaas("OAUTHBEARER", {"clientId": "app", "clientSecret": "hunter2", "extension_tenant": "7"})
    for more in (
        {"sasl_oauthbearer_client_id": "app", "sasl_oauthbearer_client_secret": "hunter2"},
        {"sasl_jaas_config": jaas},
    ):
        given: dict[str, Any] = {**base, **more}
        _, login = security_of(ProducerSettings(**given))
        assert login is not None
        assert "hunter2" not in repr(login)
        source: Any = login.token
        assert (source.client_id, source.client_secret.reveal()) == ("app", "hunter2")


# --- between brokers


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["", "PLAIN", "SCRAM-SHA-512"])
def test_brokers_reach_each_other_through_a_secure_listener(tmp_path: Path, mechanism: str) -> None:
    protocol = "SASL_SSL" if mechanism else "SSL"
    settings = {
        **broker_settings(tmp_path, client_auth="none" if mechanism else "required"),
        "listeners": f"PLAINTEXT://127.0.0.1:0,{protocol}://127.0.0.1:0",
        "security.inter.broker.protocol": protocol,
    }
    if mechanism:
        kind = "PLAIN" if mechanism == "PLAIN" else "SCRAM"
        known = "secret" if kind == "PLAIN" else ScramCredential.make("secret", mechanism, 4096, b"salt").format()
        settings |= {
            "sasl.enabled.mechanisms": mechanism,
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.jaas.config": format_jaas(kind, {"username": "broker", "password": "secret", "user_broker": known}),
            "connections.max.reauth.ms": "2000",
        }
    with ZooKeeperServer() as zookeeper:
        cluster = BrokerCluster(zookeeper, str(tmp_path), settings)
        try:
            for number in range(3):
                cluster.start(number)
            address = cluster.brokers[0].address_of("PLAINTEXT")
            with Admin(address) as admin:
                admin.create_topics([TopicSpec("replicated", 3, replication_factor=3)])
            cluster.until_in_sync("replicated")
            with Producer(address, acks="all") as producer:
                end = time.monotonic() + 4
                sent = 0
                while time.monotonic() < end:
                    producer.send("replicated", b"%d" % sent).result(PATIENCE_S)
                    sent += 1
            assert all(len(cluster.partition("replicated", index).isr) == 3 for index in range(3))
            document = json.dumps(cluster.brokers[0].broker.settings.inter_broker_listener.protocol)
            assert protocol in document
            assert sent
        finally:
            cluster.close()
