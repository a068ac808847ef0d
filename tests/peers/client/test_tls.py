"""TLS with Apache Kafka 4.3, by the client and by the command: a broker that is trusted, and one that asks who we are.

The authority, the broker's certificate and the client's are made for the run by `openssl`.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.client.contract.contract import new_name
from tests.peers.client.kafka_server import HOST, JavaServer, kafka_4_3
from tests.peers.provision import Found
from tests.ports import free_ports
from tests.timeouts import PATIENCE_S

from penstock import Admin, Consumer, Producer, TopicSpec

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3"), pytest.mark.peer("openssl")]

_PASSWORD = "opens the key"
_LISTENERS = """\
listeners=PLAINTEXT://{host}:{plain},SSL://{host}:{tls},MUTUAL://{host}:{mutual},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{plain},SSL://{host}:{tls},MUTUAL://{host}:{mutual}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT
listener.name.mutual.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
"""


class Certificates:
    """An authority, and what it vouches for, as PEM files in a folder."""

    def __init__(self, openssl: Path, folder: Path) -> None:
        self._openssl = openssl
        self._folder = folder
        self.authority = folder / "authority.pem"
        self._run("req", "-x509", *_new_key(folder / "authority.key"), "-out", self.authority, "-subj", "/CN=authority")

    def vouch_for(self, name: str, *, password: str | None = None) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, and its key."""
        key, request, made = (self._folder / f"{name}.{ending}" for ending in ("key", "csr", "pem"))
        names = self._folder / "names.cnf"
        names.write_text(f"subjectAltName=IP:{HOST},DNS:localhost\n")
        self._run("req", *_new_key(key, password), "-out", request, "-subj", f"/CN={name}")
        self._run(
            "x509", "-req", "-in", request, "-CA", self.authority, "-CAkey", self._folder / "authority.key",
            "-CAcreateserial", "-out", made, "-days", "2", "-extfile", names,
        )  # fmt: skip
        return made, key

    def _run(self, *arguments: str | Path) -> None:
        subprocess.run(
            [self._openssl, *arguments], check=True, capture_output=True, cwd=self._folder, timeout=PATIENCE_S
        )


def _new_key(path: Path, password: str | None = None) -> list[str | Path]:
    secret = ["-passout", f"pass:{password}"] if password is not None else ["-nodes"]
    return ["-newkey", "rsa:2048", "-keyout", path, *secret]


@dataclass(frozen=True)
class Guarded:
    """A broker with three doors, and what opens the two that have locks."""

    server: JavaServer
    plain: str
    tls: str
    mutual: str
    authority: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def guarded(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    certificates = Certificates(peer("openssl").path, tmp_path_factory.mktemp("certificates"))
    certificate, key = certificates.vouch_for("broker")
    keystore = certificate.with_name("keystore.pem")
    keystore.write_text(key.read_text() + certificate.read_text())
    own_certificate, own_key = certificates.vouch_for("client", password=_PASSWORD)
    plain, tls, mutual, controller = free_ports(4)
    listeners = _LISTENERS.format(
        host=HOST, plain=plain, tls=tls, mutual=mutual, controller=controller, keystore=keystore,
        authority=certificates.authority,
    )  # fmt: skip
    settings = listeners + f"controller.quorum.voters=1@{HOST}:{controller}\n"
    server = kafka_4_3(peer("java"), peer("kafka-broker-4.3"), tmp_path_factory.mktemp("kafka"), settings, plain)
    try:
        server.launch()
        server.wait_until_listening()
        yield Guarded(
            server,
            plain=f"{HOST}:{plain}",
            tls=f"{HOST}:{tls}",
            mutual=f"{HOST}:{mutual}",
            authority=certificates.authority,
            certificate=own_certificate,
            key=own_key,
        )
    finally:
        server.kill()


@pytest.fixture
def topic(guarded: Guarded) -> str:
    name = new_name("guarded")
    with Admin(guarded.plain) as admin:
        admin.create_topic(TopicSpec(name, 1))
    return name


def _trusting(guarded: Guarded) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=guarded.authority)


@pytest.mark.parametrize("door", ["tls", "mutual"])
def test_the_clients_talk_through_tls(guarded: Guarded, topic: str, door: str) -> None:
    context = _trusting(guarded)
    if door == "mutual":
        context.load_cert_chain(guarded.certificate, guarded.key, _PASSWORD)
    address = getattr(guarded, door)
    with Producer(address, ssl=context) as producer:
        producer.send_many(topic, [b"a" * 50_000, b"b"])
        producer.flush(PATIENCE_S)
    with Consumer(
        topic, bootstrap_servers=address, ssl=context, group_id=new_name("g"), auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    ) as consumer:  # fmt: skip
        assert [next(consumer).value for _ in range(2)] == [b"a" * 50_000, b"b"]


def _command(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def _settings(folder: Path, **properties: str | Path) -> Path:
    path = folder / "client.properties"
    named = {name.replace("_", "."): value for name, value in properties.items()}
    path.write_text("".join(f"{name}={value}\n" for name, value in {"security.protocol": "SSL", **named}.items()))
    return path


@pytest.mark.parametrize("door", ["tls", "mutual"])
def test_the_command_talks_through_tls(guarded: Guarded, topic: str, door: str, tmp_path: Path) -> None:
    own = {}
    if door == "mutual":
        own = {"ssl_certificate_location": guarded.certificate, "ssl_key_location": guarded.key}
        own |= {"ssl_key_password": Path(_PASSWORD)}
    through = (
        "--bootstrap-server", getattr(guarded, door),
        "--command-config", _settings(tmp_path, ssl_ca_location=guarded.authority, **own),
    )  # fmt: skip
    produced = _command("produce", topic, *through, stdin="one\ntwo\n")
    assert produced.returncode == 0, produced.stderr
    consumed = _command("consume", topic, "--from-beginning", "--exit", *through)
    assert (consumed.returncode, consumed.stdout) == (0, "one\ntwo\n"), consumed.stderr
    described = _command("topics", "describe", topic, "--format", "json", *through)
    assert described.returncode == 0, described.stderr
    assert topic in json.dumps(json.loads(described.stdout))


def test_command_reports_an_untrusted_certificate(guarded: Guarded, topic: str, tmp_path: Path) -> None:
    rejected = _command(
        "consume", topic, "--exit", "--bootstrap-server", guarded.tls, "--command-config", _settings(tmp_path)
    )
    assert rejected.returncode == 3
    assert "ssl.ca.location" in rejected.stderr


def test_command_reports_that_the_broker_requires_a_certificate(guarded: Guarded, topic: str, tmp_path: Path) -> None:
    rejected = _command(
        "consume", topic, "--exit", "--bootstrap-server", guarded.mutual, "--command-config",
        _settings(tmp_path, ssl_ca_location=guarded.authority), "--request-timeout-ms", "5000",
    )  # fmt: skip
    assert rejected.returncode == 3
    assert "ssl.keystore.location" in rejected.stderr
