"""Certificates for tests: one authority, brokers and clients that it signed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import trustme


@cache
def authority() -> trustme.CA:
    return trustme.CA()


def pem(certificate: trustme.LeafCert) -> bytes:
    """Key and chain in one file, as ssl.keystore.location has them."""
    return certificate.private_key_and_cert_chain_pem.bytes()


def write_ca(folder: Path, ca: trustme.CA | None = None, name: str = "ca.pem") -> str:
    path = folder / name
    path.write_bytes((ca or authority()).cert_pem.bytes())
    return str(path)


def write_broker(folder: Path, ca: trustme.CA | None = None, name: str = "broker.pem") -> str:
    """The certificate of a broker on this machine."""
    path = folder / name
    path.write_bytes(pem((ca or authority()).issue_cert("localhost", "127.0.0.1")))
    return str(path)


def write_client(folder: Path, common_name: str, ca: trustme.CA | None = None) -> str:
    path = folder / f"{common_name}.pem"
    issued = (ca or authority()).issue_cert(
        f"{common_name}.example", common_name=common_name, organization_name="Penstock", organization_unit_name="Users"
    )
    path.write_bytes(pem(issued))
    return str(path)


def broker_settings(folder: Path, *, client_auth: str = "none") -> dict[str, str]:
    """`ssl.*` settings of a broker."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": write_broker(folder),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": write_ca(folder),
        "ssl.client.auth": client_auth,
    }


WRONG_CERTIFICATES = ("missing", "foreign", "another authority")


def wrong_certificates(folder: Path, name: str, kind: str) -> tuple[str, str | None]:
    """An authority, and a client's certificate of which one is not what the broker or the client expects."""
    if kind == "missing":
        return write_ca(folder), None
    other = trustme.CA()
    if kind == "foreign":
        return write_ca(folder), write_client(folder, name, other)
    return write_ca(folder, other), write_client(folder, name)
