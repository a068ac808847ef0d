"""kcat, whose librdkafka repeats the client nonce in SCRAM, through TLS."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.compatibility.peer_stories import numbered
from tests.peers.provision import Found
from tests.peers.security.secure_peers import SCRAM, WAYS, Secured
from tests.security.certificates import WRONG_CERTIFICATES, wrong_certificates
from tests.security.secure_broker import USER

pytestmark = pytest.mark.peer("kcat")

RUN_S = 60

Kcat = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kcat(peer: Callable[[str], Found]) -> Kcat:
    def run(settings: dict[str, str], *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
        return subprocess.run(
            [str(peer("kcat").path), *options, *arguments], input=given, capture_output=True, text=True, timeout=RUN_S
        )

    return run


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_what_is_written_is_read(
    kcat: Kcat, secured: Secured, topic: str, group: str, listener: str, mechanism: str
) -> None:
    settings = secured.librdkafka(listener, mechanism)
    lines = [*numbered(200), "x" * 900_000]
    written = kcat(settings, "-P", "-t", topic, "-p", "0", given="".join(f"{line}\n" for line in lines))
    assert written.returncode == 0, written.stderr
    beginning = settings | {"auto.offset.reset": "earliest"}
    read = kcat(beginning, "-G", group, "-c", "201", "-q", topic)
    assert read.returncode == 0, read.stderr
    assert read.stdout.splitlines() == lines


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_a_wrong_password_is_reported(kcat: Kcat, secured: Secured, mechanism: str) -> None:
    before = secured.logins("failure")
    rejected = kcat(secured.librdkafka("SASL_SSL", mechanism, password="wrong"), "-L", "-m", "10")
    assert rejected.returncode == 1
    assert "SASL authentication error" in rejected.stderr
    assert "Authentication failed" in rejected.stderr
    assert secured.logins("failure") > before


@pytest.mark.parametrize("kind", WRONG_CERTIFICATES)
def test_wrong_certificates_are_reported(kcat: Kcat, secured: Secured, tmp_path: Path, kind: str) -> None:
    authority, own = wrong_certificates(tmp_path, USER, kind)
    settings = secured.librdkafka("SSL", "") | {"ssl.ca.location": authority}
    settings["bootstrap.servers"] = secured.broker.address_of("MTLS")
    if own is not None:
        settings |= {"ssl.certificate.location": own, "ssl.key.location": own}
    rejected = kcat(settings, "-L", "-m", "3")
    assert rejected.returncode == 1
    assert re.search("certificate|unknown ca", rejected.stderr), rejected.stderr
