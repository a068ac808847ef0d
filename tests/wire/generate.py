"""Messages generated from their schema: every field present in a version gets a value, often an extreme one.

Everything follows from the seed, so a failure names all that is needed to see it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from penstock.wire.layout import ArrayOf, Field, Kind, Struct, layout
from penstock.wire.protocol import APIS, Api
from penstock.wire.types import BOOL, BYTES, FLOAT64, STRING, Message

T = TypeVar("T")

_BITS = {
    "b": (8, True),
    "h": (16, True),
    "H": (16, False),
    "i": (32, True),
    "I": (32, False),
    "q": (64, True),
}
_TEXT = ("", "a", "topic-1", "Grüße", "日志", "x" * 126, "y" * 127, "z" * 300)


class Case(NamedTuple):
    """One message class in one version."""

    api: Api
    side: str
    version: int

    @property
    def message(self) -> type[Message]:
        return self.api.request if self.side == "request" else self.api.response

    def __str__(self) -> str:
        return f"{self.api.name}-{self.side}-v{self.version}"


ALL_CASES = [
    Case(api, side, version)
    for api in APIS.values()
    for side in ("request", "response")
    for version in range(api.versions.lowest, api.versions.highest + 1)
]


def check_every(cases: Iterable[T], check: Callable[[T], None]) -> None:
    """Check all of them and fail with every mismatch, since one mistake in a schema shows in many versions."""
    mismatches, checked = [], 0
    for case in cases:
        checked += 1
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - reported below
            mismatches.append(f"{case}: {type(error).__name__}: {error}")
    assert checked, "no case was checked"
    if mismatches:
        pytest.fail("\n".join([f"{len(mismatches)} of {checked} fail", *mismatches]), pytrace=False)


class Generator:
    """Makes messages; subclasses narrow the values to what an oracle can represent."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def message(self, message: type[Message], version: int) -> Any:
        return self.struct(layout(message, version))

    def struct(self, struct: Struct) -> msgspec.Struct:
        values = {field.name: self.field(field) for field in struct.fields}
        for field in struct.tagged:
            if self.random.random() < 0.5:
                values[field.name] = self.field(field)
        return struct.message(**values)

    def field(self, field: Field) -> Any:
        if field.nullable and self.random.random() < 0.25:
            return None
        return self.value(field.kind, field.name)

    def value(self, kind: Kind, name: str) -> Any:
        if isinstance(kind, Struct):
            return self.struct(kind)
        if isinstance(kind, ArrayOf):
            return [self.value(kind.element, name) for _ in range(self.random.choice((0, 1, 1, 2, 3)))]
        if kind is BOOL:
            return self.random.random() < 0.5
        if kind is FLOAT64:
            return self.random.choice((0.0, -1.5, 1e300, 2.0**-40))
        if kind is STRING:
            return self.random.choice(_TEXT)
        if kind is BYTES or kind.name == "records":
            return self.random.randbytes(self.random.choice((0, 1, 50, 127, 200, 2000)))
        if kind.name == "uuid":
            return self.random.randbytes(16)
        if kind.name.startswith("uvar"):
            return self.random.getrandbits(self.random.choice((1, 7, 8, 14, 15, 32)))
        return self.integer(kind.code, name)

    def integer(self, code: str, name: str) -> int:
        bits, signed = _BITS[code]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return self.random.choice((0, 1, low, high, self.random.randint(low, high)))
