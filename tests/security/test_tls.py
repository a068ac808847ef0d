"""TLS contexts from Kafka's settings: a handshake shows what each of them does."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
    serialize_key_and_certificates,
)
from tests.security.certificates import authority, broker_settings, write_broker, write_ca, write_client

from penstock.security.tls import ReloadingContext, TlsError, client_context, server_context


def shake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> tuple[str | None, bytes | None]:
    """(version, certificate of the client) of a handshake over a real socket pair; raises what either side raises."""
    here, there = socket.socketpair()
    here.settimeout(10)
    there.settimeout(10)
    outcome: list[BaseException | tuple[str | None, bytes | None]] = []

    def serve() -> None:
        try:
            with server.wrap_socket(there, server_side=True) as wrapped:
                wrapped.sendall(b"!")
                outcome.append((wrapped.version(), wrapped.getpeercert(binary_form=True)))
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=host) as wrapped:
            assert wrapped.recv(1) == b"!"
    finally:
        here.close()
        thread.join()
        there.close()
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


def trusting(folder: Path) -> Mapping[str, str]:
    return {"ssl.truststore.location": write_ca(folder)}


def key_and_chain() -> tuple[bytes, bytes]:
    issued = authority().issue_cert("localhost")
    return issued.private_key_pem.bytes(), b"".join(each.bytes() for each in issued.cert_chain_pems)


def test_a_pem_file_has_the_key_and_its_certificates(tmp_path: Path) -> None:
    version, certificate = shake(server_context(broker_settings(tmp_path)), client_context(trusting(tmp_path)))
    assert version == "TLSv1.3"
    assert certificate is None


@pytest.mark.parametrize("one_line", [False, True])
def test_key_and_certificates_may_be_in_the_settings(tmp_path: Path, one_line: bool) -> None:
    key, chain = (each.decode() for each in key_and_chain())
    trusted = authority().cert_pem.bytes().decode()
    if one_line:
        key, chain, trusted = (" ".join(each.split("\n")) for each in (key, chain, trusted))
    settings = {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain}
    assert shake(server_context(settings), client_context({"ssl.truststore.certificates": trusted}))[0] == "TLSv1.3"


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    key, chain = key_and_chain()
    encrypted = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    path = tmp_path / "encrypted.pem"
    path.write_bytes(encrypted + chain)
    settings = {"ssl.keystore.location": str(path)}
    server_context({**settings, "ssl.key.password": "secret"})
    with pytest.raises(TlsError, match=r"encrypted; set ssl\.key\.password"):
        server_context(settings)
    with pytest.raises(TlsError, match=r"ssl\.key\.password is wrong") as wrong:
        server_context({**settings, "ssl.key.password": "hunter2"})
    assert "hunter2" not in str(wrong.value)


def test_pkcs12_stores_hold_keys_and_trusted_certificates(tmp_path: Path) -> None:
    key, chain = key_and_chain()
    certificates = x509.load_pem_x509_certificates(chain)
    store = tmp_path / "broker.p12"
    store.write_bytes(
        serialize_key_and_certificates(
            b"broker",
            load_pem_private_key(key, None),  # type: ignore[arg-type]
            certificates[0],
            certificates[1:],
            BestAvailableEncryption(b"changeit"),
        )
    )
    trust = tmp_path / "trust.p12"
    root = x509.load_pem_x509_certificate(authority().cert_pem.bytes())
    trust.write_bytes(
        serialize_java_truststore([PKCS12Certificate(root, b"root")], BestAvailableEncryption(b"changeit"))
    )
    server = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(store), "ssl.keystore.password": "changeit"}
    client = {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(trust),
        "ssl.truststore.password": "changeit",
    }
    assert shake(server_context(server), client_context(client))[0] == "TLSv1.3"
    with pytest.raises(TlsError, match=r"ssl\.keystore\.password is wrong"):
        server_context({**server, "ssl.keystore.password": "wrong"})


def test_a_jks_store_is_rejected_with_the_command_that_converts_it(tmp_path: Path) -> None:
    path = tmp_path / "server.jks"
    path.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(TlsError, match=r"keytool -importkeystore .*PKCS12"):
        server_context({"ssl.keystore.location": str(path), "ssl.keystore.type": "JKS"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ssl.keystore.location": ""}, r"needs a certificate: set ssl\.keystore\.location"),
        ({"ssl.keystore.location": "/nowhere/broker.pem"}, "cannot read /nowhere/broker.pem: No such file"),
        ({"ssl.keystore.type": "BCFKS"}, "must be PEM or PKCS12"),
        ({"ssl.keystore.key": "x"}, "both set"),
        ({"ssl.client.auth": "maybe"}, "none, requested or required"),
        ({"ssl.client.auth": "required", "ssl.truststore.location": ""}, r"needs ssl\.truststore\.location"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, r"TLSv1\.2, TLSv1\.3 or both"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "chosen together; add TLS_AES_128_GCM_SHA256"),
        ({"ssl.cipher.suites": "ROT13"}, "OpenSSL has none of ROT13"),
    ],
)
def test_a_server_setting_that_cannot_be_used_is_named(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(TlsError, match=reason):
        server_context({**broker_settings(tmp_path), **changes})


def test_a_certificate_of_another_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mixed.pem"
    path.write_bytes(key_and_chain()[0] + key_and_chain()[1])
    with pytest.raises(TlsError, match="not that of the private key"):
        server_context({"ssl.keystore.location": str(path)})


def test_required_client_authentication_rejects_clients_without_a_certificate(tmp_path: Path) -> None:
    server = server_context(broker_settings(tmp_path, client_auth="required"))
    with pytest.raises(OSError, match=r"CERTIFICATE_REQUIRED|PEER_DID_NOT_RETURN|certificate required"):
        shake(server, client_context(trusting(tmp_path)))
    alice = client_context({**trusting(tmp_path), "ssl.keystore.location": write_client(tmp_path, "alice")})
    assert shake(server, alice)[1] is not None
    strange = trustme.CA()
    outsider = client_context(
        {**trusting(tmp_path), "ssl.keystore.location": write_client(tmp_path, "mallory", strange)}
    )
    with pytest.raises(OSError, match=r"CERTIFICATE_VERIFY_FAILED|UNKNOWN_CA|unknown ca"):
        shake(server, outsider)


def test_requested_client_authentication_accepts_both(tmp_path: Path) -> None:
    server = server_context(broker_settings(tmp_path, client_auth="requested"))
    assert shake(server, client_context(trusting(tmp_path)))[1] is None


def test_versions_and_suites_are_those_of_the_settings(tmp_path: Path) -> None:
    older = {**broker_settings(tmp_path), "ssl.enabled.protocols": "TLSv1.2"}
    assert shake(server_context(older), client_context(trusting(tmp_path)))[0] == "TLSv1.2"
    only = {
        **broker_settings(tmp_path),
        "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    }
    context = server_context(only)
    assert {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"} == {
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
    }
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2


def test_a_client_checks_the_authority_and_the_host_name(tmp_path: Path) -> None:
    server = server_context(broker_settings(tmp_path))
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
        shake(server, client_context({}))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake(server, client_context(trusting(tmp_path)), "elsewhere.example")
    relaxed = client_context({**trusting(tmp_path), "ssl.endpoint.identification.algorithm": ""})
    assert shake(server, relaxed, "elsewhere.example")[0] == "TLSv1.3"


def test_changed_files_are_loaded_and_a_bad_one_keeps_the_old_context(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = broker_settings(tmp_path)
    path = Path(settings["ssl.keystore.location"])
    ticks = itertools.count(1)

    def touched() -> None:
        """Files that are written within one tick of the file system's clock look the same."""
        os.utime(path, (next(ticks), 0))

    reloading = ReloadingContext(settings, server_context)
    first = reloading()
    assert not reloading.reload()
    assert reloading() is first
    other = trustme.CA()
    write_broker(tmp_path, other)
    touched()
    assert reloading.reload()
    second = reloading()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(second, client_context(trusting(tmp_path)))
    path.write_text("-----BEGIN NONSENSE")
    touched()
    with caplog.at_level(logging.WARNING):
        assert not reloading.reload()
        assert not reloading.reload()
    reported = [record.message for record in caplog.records if record.name == "penstock.security.tls"]
    assert [text.split(":")[0] for text in reported] == ["certificates not reloaded, the old ones stay in use"]
    assert reloading() is second
    os.unlink(path)
    assert not reloading.reload()
    write_broker(tmp_path)
    assert reloading.reload()


def test_private_keys_never_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "memfd_create"):
        pytest.skip("this system has no files in memory")
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: pytest.fail("a temporary file"))
    key, chain = (each.decode() for each in key_and_chain())
    server_context({"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain})
