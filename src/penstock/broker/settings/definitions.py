"""What is known about a setting: its name, type, range, default and meaning.

Rule: a definition is data. The tables (`*_table.py`) list them by subject, `catalogue.py` puts them together, and
everything else (reading, refusing, describing) follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

Value = bool | int | float | str | tuple[str, ...] | None

NEVER: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
KIB: Final = 1024
MIB: Final = 1024 * KIB


class ConfigType(IntEnum):
    """The numbers are those of DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Scope(Enum):
    """Who has a setting of this name."""

    BROKER = "broker"
    TOPIC = "topic"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Definition:
    """One setting.

    `least` and `most` bound it, `excluded` takes values out, `also` lets values outside of the bounds in. `one_of`
    lists the words that a text, or each element of a list, may be; `pattern` is a regular expression that all of the
    text must match, said in words by `pattern_words`. `dynamic`: it may change while the broker runs.
    """

    name: str
    type: ConfigType
    default: Value
    doc: str
    importance: Importance = Importance.MEDIUM
    least: float | None = None
    most: float | None = None
    excluded: tuple[float, ...] = ()
    also: tuple[float, ...] = ()
    one_of: tuple[str, ...] = ()
    pattern: str = ""
    pattern_words: str = ""
    dynamic: bool = False
    has_effect: bool = True
    # Of a topic's setting: the broker's setting that counts where the topic has none of its own.
    broker_name: str | None = None

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def documentation(self) -> str:
        return self.doc if self.has_effect else f"{self.doc} Accepted, but without effect here."
