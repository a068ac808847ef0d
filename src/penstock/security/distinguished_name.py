"""The principal of a certificate: its distinguished name, and the rules that shorten it. Pure.

A name is written as Java's X500Principal writes it (RFC 2253), because ACLs of Kafka name it so: the last attribute
first, known types by keyword, others as their number with the encoded value in hexadecimal.

`ssl.principal.mapping.rules` are tried in order; the first whose pattern matches the whole name applies:

    RULE:^CN=(.*?),OU=Users.*$/$1/L, DEFAULT

Names come from clients, so patterns match in linear time (`penstock.security.patterns`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.security.patterns import Pattern, PatternError

MAX_NAME: Final = 4_096
_KEYWORDS: Final = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID",
}  # fmt: skip
_SEQUENCE, _SET, _OID, _INTEGER, _VERSION = 0x30, 0x31, 0x06, 0x02, 0xA0
# UTF8String, NumericString, PrintableString, TeletexString, IA5String, UniversalString, BMPString.
_TEXTS: Final = {
    0x0C: "utf-8", 0x12: "ascii", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be",
}  # fmt: skip
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)
_REFERENCE: Final = re.compile(r"\$(\d)|\\(.)", re.DOTALL)


class CertificateError(ValueError):
    """A certificate whose subject cannot be read."""


class MappingRuleError(ValueError):
    """ssl.principal.mapping.rules that cannot be used."""


# --------------------------------------------------------------------------------------------------------------- names


def subject_of(certificate: bytes) -> str:
    """The subject of a DER certificate, as RFC 2253 writes it. CertificateError."""
    try:
        fields = _elements(_only(_only(certificate, _SEQUENCE), None))
        if fields[0][0] == _VERSION:
            fields = fields[1:]
        # serial number, signature algorithm, issuer, validity, subject
        kind, content, _ = fields[4]
        if fields[0][0] != _INTEGER or kind != _SEQUENCE:
            raise CertificateError("the certificate has no subject where one is expected")
        return ",".join(reversed([_relative_name(names) for tag, names, _ in _elements(content) if tag == _SET]))
    except (IndexError, UnicodeDecodeError) as error:
        raise CertificateError(f"the certificate's subject cannot be read: {error}") from None


def _relative_name(names: bytes) -> str:
    return "+".join(_attribute(content) for _, content, _ in _elements(names))


def _attribute(content: bytes) -> str:
    (kind, oid, _), (tag, value, whole) = _elements(content)[:2]
    if kind != _OID:
        raise CertificateError("an attribute of the subject has no type")
    number = _dotted(oid)
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or number}=#{whole.hex()}"
    return f"{keyword}={_escaped(value.decode(_TEXTS[tag]))}"


def _escaped(text: str) -> str:
    plain = "".join(f"\\{each}" if each in _ESCAPED else each for each in text)
    if plain.startswith(" "):
        plain = "\\" + plain
    if plain.endswith(" ") and len(plain) > 2:
        plain = plain[:-1] + "\\ "
    return plain


def _dotted(oid: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _only(data: bytes, kind: int | None) -> bytes:
    """The content of the first element, which is of this kind."""
    tag, content, _ = next(_walk(data))
    if tag != (kind or _SEQUENCE):
        raise CertificateError("this is not a certificate")
    return content


def _elements(data: bytes) -> list[tuple[int, bytes, bytes]]:
    return list(_walk(data))


def _walk(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(tag, content, the element whole) of each DER element."""
    at = 0
    while at < len(data):
        tag, size, start = data[at], data[at + 1], at + 2
        if size >= 0x80:
            width = size & 0x7F
            size = int.from_bytes(data[start : start + width], "big")
            start += width
        if start + size > len(data):
            raise CertificateError("the certificate is cut off")
        yield tag, data[start : start + size], data[at : start + size]
        at = start + size
    if not data:
        raise CertificateError("an element of the certificate is empty")


# --------------------------------------------------------------------------------------------------------------- rules


class _Rule(NamedTuple):
    """`pattern` is None for DEFAULT, which keeps the name."""

    pattern: Pattern | None
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        groups = self.pattern.groups(name)
        if groups is None:
            return None

        def text(found: re.Match[str]) -> str:
            if found[1] is None:
                return str(found[2])
            number = int(found[1])
            return name if number == 0 else groups[number - 1] if number <= len(groups) else ""

        mapped = _REFERENCE.sub(text, self.replacement)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


class PrincipalMapper:
    """The rules of `ssl.principal.mapping.rules`."""

    def __init__(self, text: str = "DEFAULT") -> None:
        self._rules = _parse(text.strip() or "DEFAULT")

    def map(self, name: str) -> str:
        """The name by the first rule that matches. CertificateError if none does, or the name is too long."""
        if len(name) > MAX_NAME:
            raise CertificateError(f"the subject has {len(name)} characters; at most {MAX_NAME} are allowed")
        for rule in self._rules:
            mapped = rule.apply(name)
            if mapped is not None:
                return mapped
        raise CertificateError(f"no rule of ssl.principal.mapping.rules matches {name!r}; add DEFAULT at the end")


def _parse(text: str) -> tuple[_Rule, ...]:
    rules = []
    at = 0
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            raise MappingRuleError(
                f"{text[at : at + 100]!r} is not a rule; write RULE:pattern/replacement/ with L or U at the end for "
                "lower or upper case, or DEFAULT"
            )
        if found[1]:
            rules.append(_Rule(None, "", ""))
        else:
            try:
                pattern = Pattern(found[2].replace("\\/", "/"))
            except PatternError as error:
                raise MappingRuleError(f"the pattern {found[2]!r} cannot be used: {error}") from None
            rules.append(_Rule(pattern, found[3], found[4]))
        rest = text[found.end() :].lstrip()
        if rest and not rest.startswith(","):
            raise MappingRuleError(f"rules are separated by commas, but {rest[:100]!r} follows {found[0]!r}")
        at = len(text) - len(rest[1:].lstrip())
    return tuple(rules)
