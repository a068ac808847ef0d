"""A range of protocol versions, written as Kafka writes it.

`3+` is everything from 3, `0-14` a closed range, `2` a single version, `none` the empty range.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.wire.errors import SchemaError

ENDLESS: Final = 0x7FFF


class VersionRange(NamedTuple):
    """Versions from `lowest` to `highest`, both included; empty when `highest` is below `lowest`."""

    lowest: int
    highest: int

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        try:
            if text == "none":
                return NO_VERSIONS
            if text.endswith("+"):
                return cls(int(text[:-1]), ENDLESS)
            first, dash, last = text.partition("-")
            return cls(int(first), int(last if dash else first))
        except ValueError as error:
            raise SchemaError(f"{text!r} is not a range of versions") from error

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest


NO_VERSIONS: Final = VersionRange(0, -1)
ALL_VERSIONS: Final = VersionRange(0, ENDLESS)
