"""The parsers that meet bytes of strangers, each as a function of bytes: it returns, or raises what it may raise.

    python -m tests.hostile.fuzz.decoders [NAME ...] [--runs 20000] [--seed 1]

mutates samples; tests do a little of it. `guided.py` does it by coverage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final, NamedTuple

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    load_pem_private_key,
    pkcs12,
)
from tests.hostile.fuzz.requests import Requests, changed, records
from tests.security.tokens import AUDIENCE, ISSUER, jwks, token

from penstock.records import RecordError, append_time_of, kernel, payload_of, python_kernel
from penstock.records.compression import decompress
from penstock.records.legacy import decode_message_set, upconvert
from penstock.security.acls import parse_super_users
from penstock.security.credentials import CredentialsError, Secret, format_jaas, parse_jaas
from penstock.security.distinguished_name import CertificateError, MappingRuleError, PrincipalMapper, subject_of
from penstock.security.oauth import Jwks, OAuthError, OAuthSettings, TokenValidator, parse_jwks
from penstock.security.patterns import Pattern, PatternError
from penstock.security.sasl import AuthenticationError, BearerServer, PlainServer, ScramServerMechanism
from penstock.security.scram import ScramClient, ScramCredential, ScramError
from penstock.security.tls import Store, TlsError
from penstock.wire.errors import WireError
from penstock.wire.framing import decode_request
from penstock.wire.protocol import APIS, request_codec, response_codec

_LIMIT: Final = 1_000_000
_SECRET: Final = "alice's secret"
_SCRAM: Final = "SCRAM-SHA-256"
_NONCE: Final = "nonce"


class Target(NamedTuple):
    parse: Callable[[bytes], object]
    samples: Callable[[], Sequence[bytes]]
    raises: tuple[type[Exception], ...]
    """What it may raise; anything else is a finding."""


# ------------------------------------------------------------------------------------------------------------- records


def _batches(data: bytes) -> None:
    """Both kernels find the same batches and records, or the same damage."""
    found = [_read(each, data) for each in (kernel, python_kernel)]
    if found[0] != found[1]:
        raise AssertionError(f"the kernels differ: {found}")


def _read(loops: ModuleType | Any, data: bytes) -> list[Any]:
    scanned = loops.scan(data)
    seen: list[Any] = [scanned.end, str(scanned.problem), [header.base_offset for header in scanned.headers]]
    for header in kernel.scan(data).headers:
        try:
            plain, start, end = payload_of(data, header, _LIMIT)
            found = loops.decode_records(
                plain,
                start,
                end,
                header.record_count,
                header.base_offset,
                header.base_timestamp,
                append_time_of(header),
            )
            seen.append([(record.offset, record.timestamp, record.key, record.value) for record in found])
        except RecordError as error:
            seen.append(str(error))
    return seen


def _message_set(data: bytes) -> None:
    for read in (decode_message_set, upconvert):
        try:
            read(data, limit=_LIMIT)
        except RecordError:
            continue


def _codecs(data: bytes) -> None:
    for codec in range(1, 5):
        try:
            decompress(codec, data[1:], _LIMIT, magic=2 if data[:1] > b"\x80" else 1)
        except RecordError:
            continue


@cache
def _sample_batches() -> list[bytes]:
    random = Random(1)
    learned = Requests(1).hostile.learned
    return [data for data in (records(random, learned) for _ in range(60)) if len(data) < 5_000]


# ---------------------------------------------------------------------------------------------------------------- wire


def _request(data: bytes) -> None:
    header, position = decode_request(data)
    codec = request_codec(header.api.key, header.api_version)
    message, _ = codec.decode(data, position)
    slices = codec.decode_slices(data, position, 50_000)
    try:
        while True:
            next(slices)
    except StopIteration as end:
        if codec.encode(end.value[0]) != codec.encode(message):
            raise AssertionError("in slices it is another message") from None


def _response(data: bytes) -> None:
    api = APIS[sorted(APIS)[int.from_bytes(data[:1], "big") % len(APIS)]]
    version = api.versions.lowest + int.from_bytes(data[1:2], "big") % (api.versions.highest - api.versions.lowest + 1)
    response_codec(api.key, version).decode(data, 2)


@cache
def _sample_requests() -> list[bytes]:
    return [template.data for template in Requests(1).templates if len(template.data) < 5_000]


# ---------------------------------------------------------------------------------------------------------------- SASL


@cache
def _credential() -> str:
    return ScramCredential.make(_SECRET, _SCRAM, 4096, b"salt of the tests").format()


def _plain(data: bytes) -> object:
    return PlainServer({"alice": Secret(_SECRET)}).respond(data)


def _scram_first(data: bytes) -> object:
    lookup = {"alice": _credential()}.get
    return ScramServerMechanism(_SCRAM, lookup, _NONCE, b"secret").respond(data)


def _scram_final(data: bytes) -> object:
    server = ScramServerMechanism(_SCRAM, {"alice": _credential()}.get, _NONCE, b"secret")
    server.respond(b"n,,n=alice,r=client")
    return server.respond(data)


def _scram_challenge(data: bytes) -> None:
    """What a hostile server may say to a client; without the work that a valid challenge asks for."""
    if b",i=" in data and len(data.rpartition(b",i=")[2]) > 5:
        return
    client = ScramClient(_SCRAM, "alice", _SECRET, "client")
    client.first()
    client.final(data)


@cache
def _validator() -> TokenValidator:
    keys = Jwks(jwks, lambda: 0.0)
    keys.refresh()
    url = "https://issuer.example/keys"
    settings = OAuthSettings(url, ISSUER, (AUDIENCE,), groups_claim="realm.groups", roles_claim="roles")
    return TokenValidator(settings, keys, lambda: 0.0)


def _bearer(data: bytes) -> object:
    return BearerServer(_validator()).respond(data)


def _claims(data: bytes) -> object:
    try:
        claims = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return _validator()._checked(claims) if isinstance(claims, dict) else None


_CLAIMS: Final = (
    b'{"sub":"alice","exp":1e9,"iss":"https://issuer.example","aud":"penstock","iat":0,"roles":["a","b"]}',
    b'{"sub":"alice","exp":Infinity,"iss":"https://issuer.example","aud":["penstock",1],"realm":{"groups":"ops"}}',
    b'{"sub":"alice","exp":NaN,"nbf":-1e400,"iss":"https://issuer.example","aud":["penstock"],"roles":[{}]}',
    b'{"sub":"alice","exp":99999999999999999999999999,"iss":"https://issuer.example","aud":["penstock"]}',
)


# -------------------------------------------------------------------------------------------- certificates and settings


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="penstock-fuzz-")


def _store(data: bytes) -> object:
    path = Path(_folder().name) / "store"
    path.write_bytes(data)
    return Store.key_store({"ssl.keystore.location": str(path), "ssl.keystore.password": "secret"}).load()


@cache
def _certificate() -> tuple[bytes, bytes, bytes]:
    """DER, PEM with its key, and PKCS#12."""
    issued = trustme.CA().issue_cert("client.example", common_name="alice", organization_unit_name="Users")
    text = issued.private_key_and_cert_chain_pem.bytes()
    certificate = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    key: Any = load_pem_private_key(issued.private_key_pem.bytes(), None)
    bundle = pkcs12.serialize_key_and_certificates(b"alice", key, certificate, None, BestAvailableEncryption(b"secret"))
    return certificate.public_bytes(Encoding.DER), text, bundle


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", errors="replace"))


def _mapping(text: str) -> object:
    rules, _, name = text.partition("|")
    return PrincipalMapper(rules).map(name)


def _pattern(text: str) -> object:
    pattern, _, name = text.partition("|")
    return Pattern(pattern).fullmatch(name[:200]), Pattern(pattern).groups(name[:200])


TARGETS: Final[dict[str, Target]] = {
    "batches": Target(_batches, _sample_batches, ()),
    "message-sets": Target(_message_set, _sample_batches, ()),
    "compression": Target(_codecs, lambda: [b"\xff" + batch[61:] for batch in _sample_batches()], ()),
    "requests": Target(_request, _sample_requests, (WireError,)),
    "responses": Target(_response, _sample_requests, (WireError,)),
    "plain": Target(_plain, lambda: [b"\0alice\0" + _SECRET.encode(), b"a\0alice\0x"], (AuthenticationError,)),
    "scram-first": Target(_scram_first, lambda: [b"n,,n=alice,r=client", b"n,a=bob,n=b=2Cb,r=x,tokenauth=true"],
                          (AuthenticationError,)),
    "scram-final": Target(_scram_final, lambda: [b"c=biws,r=clientnonce,p=" + b"A" * 43 + b"="],
                          (AuthenticationError,)),
    "scram-challenge": Target(_scram_challenge, lambda: [b"r=clientnonce,s=c2FsdA==,i=4096", b"e=other-error"],
                              (ScramError,)),
    "bearer": Target(_bearer, lambda: [f"n,,\x01auth=Bearer {token('alice')}\x01\x01".encode()],
                     (AuthenticationError,)),
    "claims": Target(_claims, lambda: _CLAIMS, (AuthenticationError,)),
    "jwks": Target(parse_jwks, lambda: [jwks(), b'{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}'],
                   (OAuthError,)),
    "scram-credential": Target(_text(ScramCredential.parse), lambda: [_credential().encode()], (ValueError,)),
    "key-store": Target(_store, lambda: _certificate(), (TlsError,)),
    "subject": Target(subject_of, lambda: _certificate()[:1], (CertificateError,)),
    "jaas": Target(_text(parse_jaas), lambda: [format_jaas("PLAIN", {"user_alice": 'a"\\b', "x": ""}).encode()],
                   (CredentialsError,)),
    "mapping-rules": Target(_text(_mapping), lambda: [b"RULE:^CN=(.*?),OU=Users.*$/$1/L,DEFAULT|CN=alice,OU=Users,O=x"],
                            (MappingRuleError, CertificateError)),
    "patterns": Target(_text(_pattern), lambda: [b"txn-(a|b)*[^x-z]{2,5}\\d+?|txn-abab__9", b"(a+)+$|aaaaaaaaaaaaaaab"],
                       (PatternError,)),
    "super-users": Target(_text(parse_super_users), lambda: [b"User:alice;User:CN=a,O=b;Group:ops"], (ValueError,)),
}  # fmt: skip


def check(name: str, data: bytes) -> None:
    """Raises what the parser must not raise."""
    target = TARGETS[name]
    with warnings.catch_warnings(), contextlib.suppress(*target.raises):
        # Libraries warn about weak keys and odd encodings.
        warnings.simplefilter("ignore")
        target.parse(data)


def mutate(name: str, runs: int, seed: int) -> None:
    random = Random(f"{name} {seed}")
    samples = TARGETS[name].samples()
    for number in range(runs):
        data = bytearray(random.choice(samples))
        if number:
            changed(random, data)
        if random.random() < 0.1:
            data[random.randrange(len(data) + 1) :] = random.choice(samples)
        try:
            check(name, bytes(data))
        except Exception as error:
            error.add_note(f"{name}: seed {seed}, run {number}, bytes.fromhex({bytes(data).hex()!r})")
            raise


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz.decoders", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*TARGETS, []], metavar="NAME", help=", ".join(TARGETS))
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in options.names or TARGETS:
        mutate(name, options.runs, options.seed)
        sys.stdout.write(f"{name}: {options.runs} runs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
