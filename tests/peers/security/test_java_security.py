"""The newest Java clients with TLS, certificates and every SASL mechanism, and the errors that they report."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell
from tests.peers.compatibility.peer_stories import numbered, unique, values
from tests.peers.conversation import ProgramFailed
from tests.peers.java_process import JavaProcess
from tests.peers.security.secure_peers import WAYS, Secured
from tests.security.secure_broker import USER
from tests.security.tokens import token

from penstock.client.admin import Admin
from penstock.security.credentials import format_jaas

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("java-clients-4.3")]

ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
ALLOWED_FILES = "org.apache.kafka.sasl.oauthbearer.allowed.files"
CALLBACKS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"

Settings = dict[str, str]


class Java:
    """The clients, with settings for each question."""

    def __init__(self, program: JavaProcess) -> None:
        self._program = program

    def ask(self, about: str, settings: Settings, **question: Any) -> Any:
        return self._program.ask(about, address=settings["bootstrap.servers"], settings=settings, **question)

    def allow(self, name: str, value: str) -> None:
        self._program.ask("property", name=name, value=value)

    def write(self, settings: Settings, topic: str, texts: list[str]) -> list[int]:
        records = [{"partition": 0, "value": text} for text in texts]
        offsets: list[int] = self.ask("produce", settings, topic=topic, records=records)
        return offsets

    def read(self, settings: Settings, topic: str, group: str, count: int) -> list[str]:
        """As a member of a group, which commits."""
        member = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false", **settings}
        return values(self.ask("consume", member, topic=topic, count=count, commit=True))


@pytest.fixture
def java(start_java: Callable[..., JavaProcess]) -> Java:
    return Java(start_java("java-clients-4.3", "NewClients"))


def works(java: Java, settings: Settings, topic: str, group: str) -> None:
    """Records of many sizes are written and read, offsets are committed, a topic is created."""
    java.ask("create", settings, topic=topic, partitions=1)
    texts = [*numbered(200), "x" * 900_000]
    assert java.write(settings, topic, texts) == list(range(201))
    assert java.read(settings, topic, group, 201) == texts
    assert java.ask("groups", settings, group=group)["committed"] == {"0": 201}


# --- logins


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_clients_write_read_and_administer(
    java: Java, secured: Secured, topic: str, group: str, listener: str, mechanism: str
) -> None:
    works(java, secured.java(listener, mechanism), topic, group)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_reported_at_once(
    java: Java, secured: Secured, topic: str, group: str, mechanism: str
) -> None:
    settings = secured.java("SASL_SSL", mechanism, password="wrong")
    steps: list[Callable[[], object]] = [
        lambda: java.write(settings, topic, ["x"]),
        lambda: java.read(settings, topic, group, 1),
        lambda: java.ask("topics", settings),
    ]
    before = secured.logins("failure")
    for step in steps:
        with pytest.raises(ProgramFailed, match=r"SaslAuthenticationException: .*[Aa]uthentication failed") as raised:
            step()
        assert "wrong" not in str(raised.value)
    # Each client gets the error with its first attempt; until it is closed it may make another.
    assert 3 <= secured.logins("failure") - before <= 9


def test_a_login_where_there_are_no_users_is_reported(java: Java, secured: Secured, topic: str) -> None:
    settings = secured.java("SASL_SSL", "PLAIN") | {"bootstrap.servers": secured.broker.address_of("SSL")}
    with pytest.raises(ProgramFailed, match="IllegalSaslStateException"):
        java.write(settings, topic, ["x"])


def test_certificates_that_are_missing_or_not_trusted_are_reported(java: Java, secured: Secured, topic: str) -> None:
    known = secured.java("SSL")
    anonymous = known | {"bootstrap.servers": secured.broker.address_of("MTLS")}
    with pytest.raises(ProgramFailed, match="SslAuthenticationException"):
        java.write(anonymous, topic, ["x"])
    own = Path(secured.certificate("stranger"))
    distrustful = known | {"ssl.truststore.location": str(own.with_name("other.pem"))}
    Path(distrustful["ssl.truststore.location"]).write_bytes(own.read_bytes())
    with pytest.raises(ProgramFailed, match="SslAuthenticationException"):
        java.write(distrustful, topic, ["x"])


# --- tokens


@contextmanager
def token_endpoint(user: str) -> Iterator[tuple[str, list[str]]]:
    """The URL of an issuer that gives tokens to the client `app`, and the requests it got."""
    forms: list[str] = []

    class Issuer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            forms.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            is_right = self.headers["Authorization"] == "Basic " + base64.b64encode(b"app:app secret").decode()
            content = json.dumps({"access_token": token(user)} if is_right else {"error": "invalid_client"}).encode()
            self.send_response(200 if is_right else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Issuer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", forms
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def bearer(secured: Secured, url: str, **options: str) -> Settings:
    return secured.java("SASL_SSL") | {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": format_jaas("OAUTHBEARER", options),
        "sasl.login.callback.handler.class": CALLBACKS,
        "sasl.oauthbearer.token.endpoint.url": url,
    }


def test_a_token_of_an_issuer_logs_in(java: Java, secured: Secured, topic: str, group: str) -> None:
    with token_endpoint(USER) as (url, forms):
        java.allow(ALLOWED_URLS, url)
        works(java, bearer(secured, url, clientId="app", clientSecret="app secret"), topic, group)
    assert "grant_type=client_credentials" in forms[0]


def test_tokens_in_files_log_in_unless_they_are_expired_or_forged(
    java: Java, secured: Secured, topic: str, group: str
) -> None:
    texts = {
        "good": token(USER),
        "expired": token(USER, lifetime_s=-100),
        "foreign": token(USER, aud="another service"),
        "forged": token(USER)[:-8] + "AAAAAAAA",
    }
    paths = {name: secured.folder / f"{name}.jwt" for name in texts}
    for name, path in paths.items():
        path.write_text(texts[name])
    urls = {name: path.as_uri() for name, path in paths.items()}
    java.allow(ALLOWED_URLS, ",".join(urls.values()))
    java.allow(ALLOWED_FILES, ",".join(map(str, paths.values())))
    works(java, bearer(secured, urls.pop("good")), topic, group)
    for url in urls.values():
        with pytest.raises(ProgramFailed, match="SaslAuthenticationException"):
            java.write(bearer(secured, url), topic, ["x"])


def test_a_group_in_a_token_has_the_rights_of_its_acls(java: Java, secured: Secured, topic: str) -> None:
    path = secured.folder / "member.jwt"
    path.write_text(token("dave", groups=["writers"]))
    java.allow(ALLOWED_URLS, path.as_uri())
    java.allow(ALLOWED_FILES, str(path))
    secured.broker.create_topic(topic)
    with pytest.raises(ProgramFailed, match="TopicAuthorizationException"):
        java.write(bearer(secured, path.as_uri()), topic, ["x"])
    Shell(secured.plain).done("acls", "add", "-p", "Group:writers", "--producer", "-t", topic)
    assert java.write(bearer(secured, path.as_uri()), topic, ["x"]) == [0]


# --- what ACLs deny


@pytest.fixture
def user(secured: Secured) -> str:
    """A user without rights, whose password is its name."""
    name = unique("user")
    with Admin(secured.plain) as admin:
        admin.set_password(name, name)
    return name


def test_clients_report_what_is_denied_until_an_acl_allows_it(
    java: Java, secured: Secured, topic: str, group: str, user: str
) -> None:
    shell, who = Shell(secured.plain), f"User:{user}"
    settings = secured.java("SASL_SSL", "SCRAM-SHA-512", user, user)
    secured.broker.create_topic(topic)
    with pytest.raises(ProgramFailed, match=f"TopicAuthorizationException: Not authorized to access topics: .{topic}"):
        java.write(settings, topic, ["x"])
    with pytest.raises(ProgramFailed, match="AuthorizationException"):
        java.ask("create", settings, topic=unique("new"), partitions=1)
    assert java.ask("topics", settings) == {}

    shell.done("acls", "add", "-p", who, "--producer", "-t", topic)
    assert java.write(settings, topic, ["one", "two"]) == [0, 1]
    assert list(java.ask("topics", settings)) == [topic]
    with pytest.raises(ProgramFailed, match="AuthorizationException"):
        java.read(settings, topic, group, 2)

    shell.done("acls", "add", "-p", who, "-o", "read", "-t", topic)
    with pytest.raises(ProgramFailed, match=f"GroupAuthorizationException: Not authorized to access group: {group}"):
        java.read(settings, topic, group, 2)
    shell.done("acls", "add", "-p", who, "-o", "read", "-g", group)
    assert java.read(settings, topic, group, 2) == ["one", "two"]

    shell.done("acls", "add", "-p", who, "-o", "write", "-t", topic, "--deny")
    with pytest.raises(ProgramFailed, match="TopicAuthorizationException"):
        java.write(settings | {"enable.idempotence": "false"}, topic, ["three"])
    # As in Kafka: a producer id is for those who may write to some topic.
    with pytest.raises(ProgramFailed, match="ClusterAuthorizationException"):
        java.write(settings, topic, ["three"])


def test_the_name_in_a_certificate_has_the_rights_of_its_acls(java: Java, secured: Secured, topic: str) -> None:
    name = unique("robot")
    settings = secured.java("MTLS", user=name)
    secured.broker.create_topic(topic)
    with pytest.raises(ProgramFailed, match="TopicAuthorizationException"):
        java.write(settings, topic, ["x"])
    Shell(secured.plain).done("acls", "add", "-p", f"User:{name}", "--producer", "-t", topic)
    assert java.write(settings, topic, ["x"]) == [0]


def test_transactional_ids_need_acls(
    start_java: Callable[..., JavaProcess], secured: Secured, topic: str, user: str
) -> None:
    shell, transactional_id = Shell(secured.plain), unique("transactional")
    program = start_java("java-clients-4.3", "Transactions")
    settings = secured.java("SASL_SSL", "SCRAM-SHA-512", user, user)
    secured.broker.create_topic(topic)
    shell.done("acls", "add", "-p", f"User:{user}", "--producer", "-t", topic)
    question = {"address": settings["bootstrap.servers"], "settings": settings, "id": transactional_id}
    with pytest.raises(ProgramFailed, match="TransactionalIdAuthorizationException"):
        program.ask("open", name=user, **question)
    shell.done("acls", "add", "-p", f"User:{user}", "--producer", "--transactional-id", transactional_id)
    program.ask("open", name=user, **question)
    steps = [
        program.ask("begin", name=user),
        program.ask("send", name=user, topic=topic, partition=0, value="x"),
        program.ask("commit", name=user),
        program.ask("close", name=user),
    ]
    assert steps == [None] * 4
