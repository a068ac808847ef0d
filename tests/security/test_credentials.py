"""Secrets stay hidden, and JAAS text is parsed without loading what it names."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.credentials import CredentialsError, Login, Secret, format_jaas, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_secret_is_not_shown() -> None:
    secret = Secret("hunter2")
    assert "hunter2" not in f"{secret!r} {secret} {[secret]} {secret!s}"
    assert "hunter2" not in repr(Login("PLAIN", {"password": "hunter2"}))
    assert secret.reveal() == "hunter2"
    assert secret == Secret("hunter2") != Secret("other")


def test_secrets_come_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "password"
    path.write_text("from a file\n")
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "from the environment")
    secret = Secret(f"file:{path}")
    assert secret.reveal() == "from a file"
    path.write_text("changed")
    assert secret.reveal() == "changed"
    assert Secret("env:PENSTOCK_TEST_SECRET").reveal() == "from the environment"
    with pytest.raises(CredentialsError, match="variable PENSTOCK_NOT_THERE is not set"):
        Secret("env:PENSTOCK_NOT_THERE").reveal()
    with pytest.raises(CredentialsError, match="cannot read the secret in /nowhere"):
        Secret("file:/nowhere").reveal()


def test_a_literal_secret_is_not_followed(tmp_path: Path) -> None:
    """A token that another machine sent must not name a file of this one."""
    assert Secret.literal("file:/etc/passwd").reveal() == "file:/etc/passwd"
    assert Secret.literal("env:HOME").reveal() == "env:HOME"
    assert Secret("x") != Secret.literal("x")


def test_jaas_text_gives_user_and_password() -> None:
    login = parse_jaas(
        f'{PLAIN} required\n  username="alice"\n  password="a \\"b\\" = ; \\\\"\n  user_bob=simple user_c="x";\n'
    )
    assert (login.kind, login.username, login.password.reveal()) == ("PLAIN", "alice", 'a "b" = ; \\')
    assert {name: each.reveal() for name, each in login.users().items()} == {"bob": "simple", "c": "x"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "'com.sun.security.auth.module.JndiLoginModule' is"),
        ("evil.PlainLoginModule required;", "is not supported"),
        (f"{PLAIN} username=a;", "'required' must follow"),
        (f'{PLAIN} required username="a"', "does not end with ;"),
        (f"{PLAIN} required; {PLAIN} required;", "more than one"),
        (f'{PLAIN} required username="a', "quotation mark"),
        (f"{PLAIN} required username;", "name=value"),
        (f"{PLAIN} required a b c;", "name=value"),
        (f'{PLAIN} required a "=" c;', "name=value"),
    ],
)
def test_jaas_text_that_cannot_be_used_says_why(text: str, reason: str) -> None:
    with pytest.raises(CredentialsError, match=reason):
        parse_jaas(text)


def test_errors_about_jaas_text_have_no_secret() -> None:
    with pytest.raises(CredentialsError) as raised:
        parse_jaas(f'{PLAIN} required password="hunter2" x;')
    assert "hunter2" not in str(raised.value)


names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1)


@given(st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"]))))
def test_what_is_formatted_is_parsed(options: dict[str, str]) -> None:
    assert dict(parse_jaas(format_jaas("SCRAM", options)).options) == options


@given(st.text(max_size=200))
def test_any_text_gives_a_login_or_one_error(text: str) -> None:
    for each in (text, f"{PLAIN} required {text}"):
        with contextlib.suppress(CredentialsError):
            parse_jaas(each)
