"""Certificates of our own authority work in both directions, and only for the hosts that they name."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from tests.security.test_tls import shake

from penstock.security.authority import CertificateAuthority
from penstock.security.distinguished_name import subject_of
from penstock.security.tls import client_context, server_context

NOW = datetime.datetime.now(datetime.UTC)


def test_brokers_and_clients_accept_each_other(tmp_path: Path) -> None:
    authority = CertificateAuthority.create("Penstock authority", NOW)
    # As it is read from its files.
    authority = CertificateAuthority.load(authority.pem.key, authority.pem.certificate)
    trust = tmp_path / "ca.pem"
    trust.write_bytes(authority.pem.certificate)
    files = {}
    for name, hosts in (("broker", ("kafka-1.example", "127.0.0.1", "::1")), ("alice", ())):
        issued = authority.issue(name, hosts, NOW)
        files[name] = str(tmp_path / f"{name}.pem")
        Path(files[name]).write_bytes(issued.key + issued.certificate)
    trusted = {"ssl.truststore.location": str(trust)}
    server = server_context({**trusted, "ssl.keystore.location": files["broker"], "ssl.client.auth": "required"})
    alice = client_context({**trusted, "ssl.keystore.location": files["alice"]})
    for host in ("kafka-1.example", "127.0.0.1", "::1"):
        _, certificate = shake(server, alice, host)
        assert certificate is not None
        assert subject_of(certificate) == "CN=alice,O=Penstock"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, alice, "kafka-2.example")
    # A broker is a client of other brokers; a client's certificate is not good for a server.
    shake(server, client_context({**trusted, "ssl.keystore.location": files["broker"]}), "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server_context({"ssl.keystore.location": files["alice"]}), client_context(trusted), "alice")


def test_an_issued_certificate_signs_no_other() -> None:
    authority = CertificateAuthority.create("Penstock authority", NOW)
    issued = x509.load_pem_x509_certificate(authority.issue("broker", ("h",), NOW).certificate)
    assert not issued.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_names_have_a_length(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 characters"):
        CertificateAuthority.create("a", NOW).issue(name, (), NOW)
