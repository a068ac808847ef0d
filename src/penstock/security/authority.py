"""A certificate authority of one's own: for trying TLS out, and for clusters without another authority.

Keys are on the curve P-256, which all clients know. A broker's certificate names every host by which clients reach it;
it is good for servers and clients, because brokers connect to each other.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 825
_ORGANIZATION: Final = "Penstock"
# Clocks differ.
_SKEW: Final = datetime.timedelta(hours=1)
_MAX_COMMON_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A private key and its certificate, PEM."""

    key: bytes = field(repr=False)
    certificate: bytes


class CertificateAuthority:
    """Issues certificates."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, name: str, now: datetime.datetime) -> CertificateAuthority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = (
            _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, key: bytes, certificate: bytes) -> CertificateAuthority:
        """From its PEM files. ValueError."""
        found = load_pem_private_key(key, None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the authority is not on an elliptic curve")
        return cls(found, x509.load_pem_x509_certificate(certificate))

    @property
    def pem(self) -> IssuedCertificate:
        return IssuedCertificate(_key_pem(self._key), self._certificate.public_bytes(Encoding.PEM))

    def issue(self, common_name: str, hosts: Sequence[str], now: datetime.datetime) -> IssuedCertificate:
        """A certificate for a broker at these hosts or, without hosts, for a client. ValueError."""
        if not common_name or len(common_name) > _MAX_COMMON_NAME:
            raise ValueError(f"the name {common_name!r} must have 1 to {_MAX_COMMON_NAME} characters")
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = (
            _builder(_name(common_name), self._certificate.subject, key.public_key(), now, CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return IssuedCertificate(_key_pem(key), certificate.public_bytes(Encoding.PEM))


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
