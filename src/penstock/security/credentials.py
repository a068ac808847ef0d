"""Secrets, and the logins that Kafka's `sasl.jaas.config` describes.

A `Secret` shows itself only when asked to (`reveal`): not in `repr`, logs or error messages. A value `file:/path` is
read from a file and `env:NAME` from the environment, when it is used.

JAAS text names a Java class and its options. It is parsed and nothing else: the class only says which mechanism is
meant, and an unknown one is an error. Nothing named in it is ever loaded.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
SCRAM_MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512)

MAX_JAAS: Final = 100_000
MAX_SECRET_BYTES: Final = 64 * 1024
_KINDS: Final = {"PlainLoginModule": "PLAIN", "ScramLoginModule": "SCRAM", "OAuthBearerLoginModule": "OAUTHBEARER"}
_MODULE_NAMES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN: Final = re.compile(r'\s*(?:"((?:\\.|[^"\\])*)"|([=;])|([^\s"=;]+))')
_USER: Final = "user_"


class CredentialsError(ValueError):
    """Credentials that cannot be used. The message has no secret in it."""


class Secret:
    """A text that must not be shown. Two secrets are equal if their texts are.

    A text from a setting may be a reference (`file:`, `env:`). One from elsewhere is `literal`: following what another
    machine sent would let it read files here.
    """

    __slots__ = ("_is_literal", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_literal = False

    @classmethod
    def literal(cls, text: str) -> Secret:
        """A text that is never a reference."""
        secret = cls(text)
        secret._is_literal = True
        return secret

    def __repr__(self) -> str:
        return "Secret(hidden)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self._text, self._is_literal) == (other._text, other._is_literal)

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def reveal(self) -> str:
        """The text; `file:` and `env:` are followed now. CredentialsError."""
        return self._text if self._is_literal else resolve(self._text)


def resolve(text: str) -> str:
    """The value of a setting that may be `file:/path` (without its last line end) or `env:NAME`. CredentialsError."""
    if text.startswith("env:"):
        name = text[4:]
        value = os.environ.get(name)
        if value is None:
            raise CredentialsError(f"the environment variable {name} is not set; set it, or write the value itself")
        return value
    if text.startswith("file:"):
        path = text[5:]
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_SECRET_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CredentialsError(f"cannot read the secret in {path}: {reason}") from None
        if len(data) > MAX_SECRET_BYTES:
            raise CredentialsError(f"the secret in {path} is larger than {MAX_SECRET_BYTES} bytes")
        try:
            return data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise CredentialsError(f"the secret in {path} is not UTF-8") from None
    return text


# ----------------------------------------------------------------------------------------------------------------- JAAS


@dataclass(frozen=True, slots=True)
class Login:
    """One login module of a JAAS text: `kind` is PLAIN, SCRAM or OAUTHBEARER."""

    kind: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def username(self) -> str:
        return self.options.get("username", "")

    @property
    def password(self) -> Secret:
        return Secret(self.options.get("password", ""))

    def users(self) -> dict[str, Secret]:
        """The users that a server accepts: the options user_<name>="password"."""
        return {
            name.removeprefix(_USER): Secret(value) for name, value in self.options.items() if name.startswith(_USER)
        }


def parse_jaas(text: str) -> Login:
    """The one login module of a JAAS text. CredentialsError."""
    if len(text) > MAX_JAAS:
        raise CredentialsError(f"sasl.jaas.config has {len(text)} characters; at most {MAX_JAAS} are allowed")
    tokens = list(_tokens(text))
    if not tokens:
        raise CredentialsError(f"sasl.jaas.config is empty; {_example()}")
    module = tokens[0]
    kind = _KINDS.get(module.rpartition(".")[2])
    if kind is None or module != _MODULE_NAMES[kind]:
        known = ", ".join(_MODULE_NAMES.values())
        raise CredentialsError(f"sasl.jaas.config: the login module {module[:100]!r} is not supported; use {known}")
    if len(tokens) < 2 or tokens[1].lower() not in _FLAGS:
        raise CredentialsError(f"sasl.jaas.config: 'required' must follow {module}; {_example()}")
    end = next((number for number, token in enumerate(tokens) if token is _END), None)
    if end is None:
        raise CredentialsError("sasl.jaas.config does not end with ;")
    if end != len(tokens) - 1:
        raise CredentialsError("sasl.jaas.config has more than one login module; write one")
    options: dict[str, str] = {}
    rest = tokens[2:end]
    if len(rest) % 3:
        raise CredentialsError(f"sasl.jaas.config: options are name=value; {_example()}")
    for number in range(0, len(rest), 3):
        name, equals, value = rest[number : number + 3]
        if equals is not _EQUALS or name is _EQUALS or value is _EQUALS:
            raise CredentialsError(f"sasl.jaas.config: options are name=value; {_example()}")
        options[name] = value
    return Login(kind, options)


class _Mark(str):
    """A separator, which is not equal to a quoted one."""

    __slots__ = ()


_EQUALS: Final = _Mark("=")
_END: Final = _Mark(";")


def _tokens(text: str) -> Iterator[str]:
    at = 0
    stripped = text.rstrip()
    while at < len(stripped):
        found = _TOKEN.match(stripped, at)
        if found is None:
            raise CredentialsError("sasl.jaas.config has a quotation mark without its end")
        quoted, mark, word = found.groups()
        if mark is not None:
            yield _EQUALS if mark == "=" else _END
        elif quoted is not None:
            yield re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        else:
            yield word
        at = found.end()


def _example() -> str:
    return f'write for example: {_MODULE_NAMES["PLAIN"]} required username="alice" password="...";'


def format_jaas(kind: str, options: Mapping[str, str]) -> str:
    """The text that `parse_jaas` reads."""
    parts = [_MODULE_NAMES[kind], "required"]
    for name, value in options.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'{name}="{escaped}"')
    return " ".join(parts) + ";"


def kind_of(mechanism: str) -> str:
    """The login module of a mechanism: PLAIN, SCRAM or OAUTHBEARER."""
    return "SCRAM" if mechanism in SCRAM_MECHANISMS else mechanism
