"""What a setting is: name, type, bounds, default, documentation; its text form.

A text is accepted exactly if Kafka's parser accepts it for that type and the value is within the bounds; the error
names the value, the type and the bounds. Hostile texts are cheap to reject.

Reading settings collects every `Problem` and raises one `InvalidSettings`, so that a file is reported as a whole. A
`Notice` does not stop the start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

_SHOWN_CHARACTERS: Final = 120


def shown(text: str) -> str:
    """Text for a message: no control characters, and not endless."""
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:200])
    return printable if len(printable) <= _SHOWN_CHARACTERS else printable[:_SHOWN_CHARACTERS] + "..."


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting that cannot be used: where it was written, its name, and why, in words that say what to do."""

    where: str
    name: str
    reason: str

    def __str__(self) -> str:
        text = f"{self.name}: {self.reason}" if self.name else self.reason
        return f"{self.where}: {text}" if self.where else text


@dataclass(frozen=True, slots=True)
class Notice:
    """Something in the settings that is probably not what was meant."""

    where: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.name}: {self.text}" if self.where else f"{self.name}: {self.text}"


class SettingsError(Exception):
    """Base of everything that is raised about settings."""


class UnreadableFile(SettingsError):
    """The file of settings cannot be read at all."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"settings file {shown(path)}: {reason}")
        self.path = path
        self.reason = reason


class InvalidSettings(SettingsError):
    """Settings that cannot be used, with every reason."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


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


_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_DOUBLE = re.compile(r"([+-]?(?:[0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,6})?)[dDfF]?", re.ASCII)
_COMMA = re.compile(r"\s*,\s*")
_MAX_TEXT: Final = 100_000

_TYPE_WORDS: Final = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a text",
    ConfigType.SHORT: "a short (a whole number of 16 bits)",
    ConfigType.INT: "an int (a whole number of 32 bits)",
    ConfigType.LONG: "a long (a whole number of 64 bits)",
    ConfigType.DOUBLE: "a double (a decimal number)",
    ConfigType.LIST: "a list (parted by commas)",
    ConfigType.CLASS: "a class",
    ConfigType.PASSWORD: "a password",
}


class InvalidValue(SettingsError):
    """A text that is no value of a setting; the message is the reason, with value, type and range."""


def parse_value(definition: Definition, text: str) -> Value:
    """The value that a text stands for. InvalidValue with the reason."""
    stripped = text.strip()
    if len(stripped) > _MAX_TEXT:
        raise InvalidValue(f"a value of {len(stripped)} characters is too long; at most {_MAX_TEXT}")
    if definition.type is ConfigType.PASSWORD:
        return stripped
    if not stripped and definition.default is None and definition.type in (ConfigType.STRING, ConfigType.CLASS):
        return None
    value = _typed(definition, stripped)
    if not _is_allowed(definition, value):
        raise InvalidValue(f"{shown(stripped)!r} is not allowed: expected {expectation(definition)}")
    return value


def _typed(definition: Definition, text: str) -> Value:
    kind = definition.type
    if kind is ConfigType.BOOLEAN and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in BITS and _INTEGER.fullmatch(text):
        number = int(text)
        bits = BITS[kind]
        if -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            return number
    if kind is ConfigType.DOUBLE and (match := _DOUBLE.fullmatch(text)):
        amount = float(match[1])
        if math.isfinite(amount):
            return amount
    if kind is ConfigType.LIST:
        return parse_list(text)
    if kind in (ConfigType.STRING, ConfigType.CLASS):
        return text
    raise InvalidValue(f"{shown(text)!r} is not {_TYPE_WORDS[kind]}; expected {expectation(definition)}")


def _is_allowed(definition: Definition, value: Value) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value in definition.also:
            return True
        too_small = definition.least is not None and value < definition.least
        too_large = definition.most is not None and value > definition.most
        return not (too_small or too_large or value in definition.excluded)
    words = [_text(word) for word in (value if isinstance(value, tuple) else (value,))]
    if definition.one_of and not all(word in definition.one_of for word in words):
        return False
    return not definition.pattern or all(re.fullmatch(definition.pattern, word) for word in words)


def _text(word: Value) -> str:
    return str(word).lower() if isinstance(word, bool) else str(word)


def expectation(definition: Definition) -> str:
    """Type and range in words: "an int (a whole number of 32 bits), at least 1"."""
    words = [_TYPE_WORDS[definition.type]]
    if definition.least is not None and definition.most is not None:
        words.append(f"{definition.least} to {definition.most}")
    elif definition.least is not None:
        words.append(f"at least {definition.least}")
    elif definition.most is not None:
        words.append(f"at most {definition.most}")
    if definition.also:
        words.append(f"or {', '.join(map(str, definition.also))}")
    if definition.excluded:
        words.append(f"not {', '.join(map(str, definition.excluded))}")
    if definition.one_of:
        each = "each of them " if definition.type is ConfigType.LIST else ""
        words.append(f"{each}one of {', '.join(definition.one_of)}")
    if definition.pattern:
        words.append(definition.pattern_words)
    return ", ".join(words)


def format_value(definition: Definition, value: Value) -> str | None:
    """The text of a value as Kafka's tools show it; what is secret is not shown."""
    if value is None or definition.is_sensitive:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _java_double(value)
    return str(value)


def _java_double(value: float) -> str:
    """As Double.toString has it: 0.5, 1.048576E7, 1.7976931348623157E308."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign = "-" if value < 0 else ""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    exponent = int(power or 0) + len(digits) - len(part) - 1
    digits = digits.rstrip("0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


# --- lists, and names with numbers


def parse_list(text: str) -> tuple[str, ...]:
    stripped = text.strip()
    return tuple(_COMMA.split(stripped)) if stripped else ()


def list_with(current: str, added: str) -> str:
    """A list with elements appended, each once: "compact" with "delete" is "compact,delete"."""
    return ",".join(dict.fromkeys((*parse_list(current), *parse_list(added))))


def list_without(current: str, removed: str) -> str:
    gone = set(parse_list(removed))
    return ",".join(element for element in parse_list(current) if element not in gone)


def parse_numbers(text: str) -> dict[str, int]:
    """{"a": 8, "b": 16} for "a:8,b:16". InvalidValue names the first part that is none."""
    numbers = {}
    for part in parse_list(text):
        name, colon, number = part.rpartition(":")
        if not colon or not name.strip() or not _INTEGER.fullmatch(number.strip()):
            raise InvalidValue(f"{shown(part)!r} is not name:number; expected a list like first:8,second:16")
        numbers[name.strip()] = int(number)
    return numbers
