"""Tokens: which are accepted, and what becomes of their claims."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import OctKey
from tests.security.tokens import AUDIENCE, ISSUER, jwks, signing_key, token, write_jwks

from penstock.security.credentials import Secret
from penstock.security.oauth import (
    ClientCredentials,
    Jwks,
    OAuthError,
    OAuthSettings,
    OAuthUnavailable,
    TokenValidator,
    check_url,
    expiry_of,
    parse_jwks,
    read_url,
)
from penstock.security.principal import Principal
from penstock.security.sasl import Authenticated, AuthenticationError, Deferred

SETTINGS = OAuthSettings("file:///keys", ISSUER, (AUDIENCE,), groups_claim="groups", roles_claim="realm_access.roles")


class Source:
    """A JWKS document that changes, with a clock of its own."""

    def __init__(self, *kids: str) -> None:
        self.kids = kids
        self.fetches = 0
        self.now_ms = 0.0
        self.fails = False
        self.keys = Jwks(self._fetch, lambda: self.now_ms)

    def _fetch(self) -> bytes:
        self.fetches += 1
        if self.fails:
            raise OAuthError("gone")
        return jwks(*self.kids)


def validator(settings: OAuthSettings = SETTINGS, *kids: str) -> TokenValidator:
    source = Source(*(kids or ("one",)))
    source.keys.refresh()
    return TokenValidator(settings, source.keys, time.time)


def accepted(text: str, settings: OAuthSettings = SETTINGS) -> Authenticated:
    outcome = validator(settings).validate(text)
    assert isinstance(outcome, Authenticated)
    return outcome


def rejected(text: str, settings: OAuthSettings = SETTINGS) -> str:
    with pytest.raises(AuthenticationError) as raised:
        validator(settings).validate(text)
    assert str(raised.value) == "Authentication failed: the token is not accepted"
    return raised.value.detail


def test_a_token_gives_the_user_the_groups_and_the_time_of_expiry() -> None:
    now = int(time.time())
    outcome = accepted(token("alice", groups=["eng", "ops"], realm_access={"roles": ["admin"]}, exp=now + 60))
    assert outcome.principal == Principal("User", "alice")
    assert outcome.groups == {Principal("Group", "eng"), Principal("Group", "ops"), Principal("Role", "admin")}
    assert outcome.expires_at_ms == (now + 60) * 1000


def test_the_user_is_in_the_claim_of_the_settings() -> None:
    settings = OAuthSettings("file:///keys", sub_claim="preferred_username")
    assert accepted(token("x", preferred_username="bob"), settings).principal.name == "bob"
    assert "no preferred_username claim" in rejected(token("x"), settings)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": None}, "no exp claim"),
        ({"exp": "soon"}, "no exp claim"),
        ({"exp": True}, "no exp claim"),
        ({"exp": 1_000}, "has expired"),
        ({"nbf": 2**40}, "not valid yet"),
        ({"iat": 2**40}, "not valid yet"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "audience"),
        ({"sub": None}, "no sub claim"),
        ({"sub": ""}, "no sub claim"),
        ({"sub": 7}, "no sub claim"),
        ({"sub": "a\nb"}, "no sub claim"),
        ({"groups": ["g"] * 501}, "more than 500"),
    ],
)
def test_claims_that_are_not_as_expected_are_rejected(claims: dict[str, Any], reason: str) -> None:
    assert reason in rejected(token(**claims))


def test_clocks_may_differ_a_little() -> None:
    now = int(time.time())
    accepted(token(exp=now - 10, iat=now + 10))
    assert "expired" in rejected(token(exp=now - 40))


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_unsigned_and_symmetric_tokens_are_rejected() -> None:
    _, payload, _ = token().split(".")
    assert "asymmetric" in rejected(f"{encoded({'alg': 'none'})}.{payload}.AA")
    assert "not a signed JWT" in rejected(f"{encoded({'alg': 'none'})}.{payload}.")
    public = json.dumps(signing_key().as_dict(private=False)).encode()
    claims = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 60}
    forged = jwt.encode({"alg": "HS256", "kid": "one"}, claims, OctKey.import_key(public))
    assert "asymmetric" in rejected(forged)


def test_a_token_that_brings_its_own_key_is_rejected() -> None:
    mine = signing_key("mallory")
    claims = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 60}
    for header in ({"jwk": mine.as_dict(private=False)}, {"jku": "http://127.0.0.1:1/keys"}):
        forged = jwt.encode({"alg": "RS256", "kid": "one", **header}, claims, mine)
        assert "signature" in rejected(forged)


def test_a_changed_token_is_rejected() -> None:
    header, payload, signature = token().split(".")
    other = encoded({"sub": "root", "iss": ISSUER, "aud": AUDIENCE, "exp": 2**40})
    assert "signature" in rejected(f"{header}.{other}.{signature}")
    assert "signature" in rejected(f"{header}.{payload}.{'A' * len(signature)}")


@given(st.text(max_size=100), st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)))
def test_any_text_is_rejected_with_one_error(text: str, header: dict[str, Any]) -> None:
    checks = validator()
    for each in (text, f"{encoded({**header, 'alg': 'RS256', 'kid': 'one'})}.{encoded(header)}.AAAA"):
        with pytest.raises(AuthenticationError):
            checks.validate(each)


def test_unknown_keys_are_fetched_at_most_once_in_ten_seconds() -> None:
    source = Source("one")
    checks = TokenValidator(SETTINGS, source.keys, time.time)
    first = checks.validate(token())
    assert isinstance(first, Deferred)
    first.work()
    assert isinstance(checks.validate(token()), Authenticated)
    for _ in range(50):
        with pytest.raises(AuthenticationError):
            checks.validate(token(kid="two"))
    assert source.fetches == 1
    source.now_ms += 10_001
    source.kids = ("one", "two")
    second = checks.validate(token(kid="two"))
    assert isinstance(second, Deferred)
    second.work()
    assert isinstance(checks.validate(token(kid="two")), Authenticated)
    assert source.fetches == 2


def test_many_clients_with_a_new_key_cause_one_fetch() -> None:
    source = Source("one")
    checks = TokenValidator(SETTINGS, source.keys, time.time)
    deferred = [checks.validate(token()) for _ in range(20)]
    for each in deferred:
        assert isinstance(each, Deferred)
        each.work()
    assert source.fetches == 1
    assert isinstance(checks.validate(token()), Authenticated)


def test_old_keys_stay_in_use_if_they_cannot_be_fetched_again() -> None:
    source = Source("one")
    source.keys.refresh()
    due = [source.keys.is_due]
    source.now_ms += 3_600_001
    due.append(source.keys.is_due)
    source.fails = True
    source.keys.refresh()
    assert source.keys.key("one") is not None
    assert [*due, source.keys.is_due] == [False, True, False]  # the next attempt is not allowed yet


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": [1, {"kty": "oct", "k": "AA"}]}'])
def test_a_document_without_public_keys_is_rejected(data: bytes) -> None:
    with pytest.raises(OAuthError):
        parse_jwks(data)


def test_keys_are_read_from_files_and_only_from_urls(tmp_path: Path) -> None:
    assert parse_jwks(read_url(write_jwks(tmp_path)))
    for url in ("ftp://x/y", "/etc/passwd", "https://", "jar:file:/x"):
        with pytest.raises(OAuthError, match="must be a URL"):
            check_url("sasl.oauthbearer.jwks.endpoint.url", url)


class Provider(http.server.BaseHTTPRequestHandler):
    """A token endpoint that also redirects."""

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        right = base64.b64encode(b"app%3A1:s%2Fcret").decode()
        is_right = self.headers["Authorization"] == f"Basic {right}" and "grant_type=client_credentials" in form
        self.send_response(int(self.path[1:]) if self.path[1:].isdigit() else 200 if is_right else 401)
        self.end_headers()
        answer = "file:/etc/passwd" if "scope=evil" in form else "abc.def.ghi"
        self.wfile.write(json.dumps({"access_token": answer}).encode())

    def do_GET(self) -> None:
        """`/file` and `/elsewhere` redirect, to a file and to keys."""
        place = {"/file": "file:///etc/passwd", "/elsewhere": "/keys"}.get(self.path)
        self.send_response(200 if place is None else 302)
        if place is not None:
            self.send_header("Location", place)
        self.end_headers()
        self.wfile.write(b"what was at the other place")

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def provider() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_client_credentials_are_exchanged_for_a_token() -> None:
    with provider() as url:
        fetched = ClientCredentials(f"{url}/token", "app:1", Secret("s/cret"), "kafka").fetch()
        assert fetched.reveal() == "abc.def.ghi"
        evil = ClientCredentials(f"{url}/token", "app:1", Secret("s/cret"), "evil").fetch()
        assert evil.reveal() == "file:/etc/passwd"  # the text, not the file
        with pytest.raises(OAuthError, match="status 401") as raised:
            ClientCredentials(f"{url}/token", "app:1", Secret("hunter2")).fetch()
        assert "hunter2" not in str(raised.value)
        assert "hunter2" not in repr(ClientCredentials(f"{url}/token", "app:1", Secret("hunter2")))


def test_a_provider_that_is_down_is_distinguished_from_one_that_rejects() -> None:
    with provider() as url:
        for path in ("500", "503", "429", "408"):
            with pytest.raises(OAuthUnavailable, match=f"status {path}"):
                ClientCredentials(f"{url}/{path}", "app:1", Secret("s/cret")).fetch()
        for path in ("400", "401", "403", "404"):
            with pytest.raises(OAuthError, match=f"status {path}") as raised:
                ClientCredentials(f"{url}/{path}", "app:1", Secret("s/cret")).fetch()
            assert not isinstance(raised.value, OAuthUnavailable)
    with pytest.raises(OAuthUnavailable, match="cannot be read"):
        ClientCredentials(f"{url}/token", "app:1", Secret("s/cret")).fetch()


def test_redirects_are_not_followed() -> None:
    """CVE-2025-27817: neither to a file nor to another address."""
    with provider() as url:
        assert read_url(f"{url}/keys")
        for place in ("file", "elsewhere"):
            with pytest.raises(OAuthError, match="status 302"):
                read_url(f"{url}/{place}")


def test_the_holder_of_a_token_reads_when_it_expires() -> None:
    assert expiry_of(token(exp=1234567890)) == 1234567890
    assert expiry_of("opaque") is None
