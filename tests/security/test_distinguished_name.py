"""Principals of certificates are those that Kafka gives them."""

from __future__ import annotations

import contextlib
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.distinguished_name import CertificateError, MappingRuleError, PrincipalMapper, subject_of

DN = "CN=kafka-1.Example.com,OU=ServiceUsers,O=Penstock,L=Ulm,C=DE"


def certificate(*attributes: tuple[x509.ObjectIdentifier, str] | x509.RelativeDistinguishedName) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    names = [
        each
        if isinstance(each, x509.RelativeDistinguishedName)
        else x509.RelativeDistinguishedName([x509.NameAttribute(*each)])
        for each in attributes
    ]
    now = datetime.datetime(2026, 1, 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
        .public_key(key.public_key())
        .serial_number(2**100)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(Encoding.DER)


def test_the_last_attribute_comes_first() -> None:
    made = certificate(
        (NameOID.COUNTRY_NAME, "DE"),
        (NameOID.ORGANIZATION_NAME, "Penstock, Inc."),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "Größe"),
        (NameOID.COMMON_NAME, "alice"),
    )
    assert subject_of(made) == "CN=alice,OU=Größe,O=Penstock\\, Inc.,C=DE"


def test_unknown_types_are_numbers_with_encoded_values() -> None:
    made = certificate((NameOID.COMMON_NAME, "a"), (NameOID.EMAIL_ADDRESS, "a@b.c"))
    assert subject_of(made) == "1.2.840.113549.1.9.1=#1605614062" + b".c".hex() + ",CN=a"


def test_attributes_of_one_relative_name_are_joined() -> None:
    both = x509.RelativeDistinguishedName(
        [x509.NameAttribute(NameOID.COMMON_NAME, " a "), x509.NameAttribute(NameOID.USER_ID, "#1")]
    )
    assert sorted(subject_of(certificate(both)).split("+", 1)) == sorted(["CN=\\ a\\ ", "UID=\\#1"])


@given(st.binary(max_size=200))
def test_bytes_that_are_not_a_certificate_give_one_error(data: bytes) -> None:
    with contextlib.suppress(CertificateError):
        subject_of(data)


def test_a_damaged_certificate_gives_one_error_wherever_it_is_damaged() -> None:
    made = certificate((NameOID.COMMON_NAME, "alice"))
    for position in range(200):
        for value in (0x00, 0x30, 0x80, 0xFF):
            damaged = made[:position] + bytes([value]) + made[position + 1 :]
            with contextlib.suppress(CertificateError):
                assert isinstance(subject_of(damaged), str)


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", DN),
        ("", DN),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "kafka-1.Example.com"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT", "kafka-1.example.com"),
        ("RULE:^CN=(.*?),OU=Others.*$/$1/, RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", "KAFKA-1.EXAMPLE.COM@SERVICEUSERS"),
        ("RULE:^CN=nobody$/x/,DEFAULT", DN),
        ("RULE:.*L=([^,]*).*/$1\\$/", "Ulm$"),
        (r"RULE:^CN=([^\/]*),OU=.*$/$1/", "kafka-1.Example.com"),
    ],
)
def test_rules_map_the_name(rules: str, principal: str) -> None:
    assert PrincipalMapper(rules).map(DN) == principal


def test_a_name_that_no_rule_matches_is_rejected() -> None:
    with pytest.raises(CertificateError, match="add DEFAULT"):
        PrincipalMapper("RULE:^CN=x$/x/").map(DN)


@pytest.mark.parametrize("rules", ["RULE:abc", "DEFAULT DEFAULT", "RULE:(a/b/", "RULE:(?=a)/b/", "rule:a/b/"])
def test_rules_that_cannot_be_used_are_rejected(rules: str) -> None:
    with pytest.raises(MappingRuleError):
        PrincipalMapper(rules)


def test_a_hostile_name_takes_linear_time() -> None:
    with pytest.raises(CertificateError):
        PrincipalMapper("RULE:^CN=((a+)+)+$/$1/").map("CN=" + "a" * 4_000 + "!")
