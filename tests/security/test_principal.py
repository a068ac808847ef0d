"""Principals as text, and what a connection's identity is made of."""

from __future__ import annotations

import pytest

from penstock.security.principal import ANONYMOUS, GROUP, USER, Principal, Session, parse_principal


def test_a_name_may_contain_colons() -> None:
    parsed = parse_principal(" User:CN=a:b ")
    assert parsed == Principal(USER, "CN=a:b")
    assert str(parsed) == "User:CN=a:b"


@pytest.mark.parametrize("text", ["", "alice", "User:", ":alice", "User"])
def test_what_is_not_a_principal_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="User:alice"):
        parse_principal(text)


def test_groups_of_a_session_are_principals_beside_its_user() -> None:
    assert Session().principals == (ANONYMOUS,)
    ops = Principal(GROUP, "ops")
    session = Session(Principal(USER, "alice"), groups=frozenset({ops}))
    assert session.principals == (Principal(USER, "alice"), ops)
