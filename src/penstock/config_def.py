"""What a setting is: type, default, bounds, documentation, names; its text form.

A class that uses a setting declares it once, as the field that holds its value:

    @dataclass(frozen=True, slots=True)
    class LogSettings:
        segment_bytes: int = setting(INT, GIB, "Size at which a log rolls to a new segment.", min=14, dynamic=True,
                                     broker="log.segment.bytes", topic="segment.bytes")

`declarations` lists the fields of a class that are declared so; `penstock.broker.settings.catalogue` makes a
`Definition` for each name.

A text is accepted exactly if Kafka's parser accepts it for that type and the value is within the bounds; the error
names the value, the type and the bounds. Hostile texts are cheap to reject.

Reading settings collects every `Problem` and raises one `InvalidSettings`, so that a file is reported as a whole. A
`Notice` does not stop the start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum
from typing import Any, Final

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
GIB: Final = 1024 * MIB

_SHOWN_CHARACTERS: Final = 120
_MAX_TEXT: Final = 100_000
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_DOUBLE: Final = re.compile(
    r"([+-]?(?:[0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,6})?)[dDfF]?", re.ASCII
)
_COMMA: Final = re.compile(r"\s*,\s*")


# --- problems


def shown(text: str) -> str:
    """Text for a message: without control characters, and cut if long."""
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:200])
    return printable if len(printable) <= _SHOWN_CHARACTERS else printable[:_SHOWN_CHARACTERS] + "..."


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting that cannot be used: where it was written, its name, and the reason, which says what to do."""

    where: str
    name: str
    reason: str

    def __str__(self) -> str:
        text = f"{self.name}: {self.reason}" if self.name else self.reason
        return f"{self.where}: {text}" if self.where else text


@dataclass(frozen=True, slots=True)
class Notice:
    """A setting that is valid but probably a mistake."""

    where: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.name}: {self.text}" if self.where else f"{self.name}: {self.text}"


class SettingsError(Exception):
    """Base of all errors about settings."""


class UnreadableFile(SettingsError):
    """The settings file cannot be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"settings file {shown(path)}: {reason}")
        self.path = path
        self.reason = reason


class InvalidSettings(SettingsError):
    """Settings that cannot be used, with all reasons."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


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
    """Where a setting of this name exists."""

    BROKER = "broker"
    TOPIC = "topic"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Definition:
    """One name of a setting.

    `min` and `max` bound it, `excluded` takes values out, `also` lets values outside of the bounds in. `one_of`
    lists the words that a string, or each element of a list, may be; `pattern` is a regular expression that all of the
    text must match, described by `pattern_words`. `dynamic`: it can be changed while the broker runs.
    """

    name: str
    type: ConfigType
    default: Value
    doc: str
    importance: Importance = Importance.MEDIUM
    min: float | None = None
    max: float | None = None
    excluded: tuple[float, ...] = ()
    also: tuple[float, ...] = ()
    one_of: tuple[str, ...] = ()
    pattern: str = ""
    pattern_words: str = ""
    dynamic: bool = False
    has_effect: bool = True
    broker_name: str | None = None
    """Of a topic's setting: the broker setting that applies where the topic sets nothing."""

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def documentation(self) -> str:
        return self.doc if self.has_effect else f"{self.doc} Accepted, but without effect in Penstock."


# --- declarations

Unit = tuple[str, int]
"""A name, and the factor that converts its value to the finest unit."""
_UNIT_WORDS: Final = {1: "", MINUTE_MS: ", in minutes", HOUR_MS: ", in hours"}
_KEY: Final = "setting"


def _as_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Declaration:
    """The setting of a field. `definition` is a template for its names, with the default in the finest unit."""

    definition: Definition
    family: tuple[Unit, ...]
    """The broker settings that give the value, the finest unit first; empty if only topics have it."""
    topic: str | None
    topic_min: float | None
    aliases: tuple[str, ...]
    """Older names that apply if these are not set: the broker's, then the topic's."""
    convert: Callable[[Any], Any]

    def broker_definitions(self) -> Iterator[Definition]:
        """The last of a family has the default; only the first can be changed while the broker runs."""
        template = self.definition
        for place, (name, factor) in enumerate(self.family):
            default = template.default if place == len(self.family) - 1 else None
            if factor != 1 and isinstance(default, int):
                default //= factor
            doc = template.doc
            if place:
                doc = f"Same as {self.family[0][0]}{_UNIT_WORDS[factor]}. Used if that is not set."
            kind = template.type if factor == 1 else ConfigType.INT
            dynamic = template.dynamic and place == 0
            yield replace(template, name=name, type=kind, default=default, doc=doc, dynamic=dynamic)

    def topic_definition(self) -> Definition | None:
        if self.topic is None:
            return None
        found = replace(
            self.definition,
            name=self.topic,
            dynamic=True,
            importance=Importance.MEDIUM,
            broker_name=self.family[0][0] if self.family else None,
        )
        return found if self.topic_min is None else replace(found, min=self.topic_min, excluded=())


def setting(
    kind: ConfigType,
    default: Value,
    doc: str,
    *,
    broker: str | tuple[str | Unit, ...] = (),
    topic: str | None = None,
    topic_min: float | None = None,
    aliases: tuple[str, ...] = (),
    convert: Callable[[Any], Any] = _as_is,
    **bounds: Any,
) -> Any:
    """A field of a dataclass that holds the value of a setting.

    `broker` names the broker's setting, or several that give one value in different units, finest first. `topic` names
    the topic's; `topic_min` is its lower bound if that differs. `convert` turns the setting's value into the field's.
    The rest is passed to `Definition`.
    """
    names = (broker,) if isinstance(broker, str) else broker
    family = tuple((each, 1) if isinstance(each, str) else each for each in names)
    name = family[0][0] if family else topic
    if name is None:
        raise ValueError("a setting needs a name")
    definition = Definition(name, kind, default, doc, **bounds)
    declaration = Declaration(definition, family, topic, topic_min, aliases, convert)
    shown_in_repr = not definition.is_sensitive
    if convert(default).__class__.__hash__ is None:
        return field(default_factory=lambda: convert(default), metadata={_KEY: declaration}, repr=shown_in_repr)
    return field(default=convert(default), metadata={_KEY: declaration}, repr=shown_in_repr)


def declarations(section: type[Any]) -> dict[str, Declaration]:
    """The declared fields of a dataclass."""
    return {each.name: each.metadata[_KEY] for each in fields(section) if _KEY in each.metadata}


# --- values

_TYPE_WORDS: Final = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a string",
    ConfigType.SHORT: "a short (16-bit integer)",
    ConfigType.INT: "an int (32-bit integer)",
    ConfigType.LONG: "a long (64-bit integer)",
    ConfigType.DOUBLE: "a double (decimal number)",
    ConfigType.LIST: "a comma-separated list",
    ConfigType.CLASS: "a class",
    ConfigType.PASSWORD: "a password",
}


class InvalidValue(SettingsError):
    """A text that is not a value of a setting; the message names value, type and range."""


def parse_value(definition: Definition, text: str) -> Value:
    """The value of a text. InvalidValue with the reason."""
    stripped = text.strip()
    if len(stripped) > _MAX_TEXT:
        raise InvalidValue(f"a value of {len(stripped)} characters is too long; the limit is {_MAX_TEXT}")
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
        too_small = definition.min is not None and value < definition.min
        too_large = definition.max is not None and value > definition.max
        return not (too_small or too_large or value in definition.excluded)
    words = [_text(word) for word in (value if isinstance(value, tuple) else (value,))]
    if definition.one_of and not all(word in definition.one_of for word in words):
        return False
    return not definition.pattern or all(re.fullmatch(definition.pattern, word) for word in words)


def _text(word: Value) -> str:
    return str(word).lower() if isinstance(word, bool) else str(word)


def expectation(definition: Definition) -> str:
    """Type and range in words: "an int (32-bit integer), at least 1"."""
    words = [_TYPE_WORDS[definition.type]]
    if definition.min is not None and definition.max is not None:
        words.append(f"{definition.min} to {definition.max}")
    elif definition.min is not None:
        words.append(f"at least {definition.min}")
    elif definition.max is not None:
        words.append(f"at most {definition.max}")
    if definition.also:
        words.append(f"or {', '.join(map(str, definition.also))}")
    if definition.excluded:
        words.append(f"not {', '.join(map(str, definition.excluded))}")
    if definition.one_of:
        each = "each " if definition.type is ConfigType.LIST else ""
        words.append(f"{each}one of {', '.join(definition.one_of)}")
    if definition.pattern:
        words.append(definition.pattern_words)
    return ", ".join(words)


def format_value(definition: Definition, value: Value) -> str | None:
    """The text of a value as Kafka's tools show it; None for a secret."""
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
    """A float as Java's Double.toString formats it: 0.5, 1.048576E7, 1.7976931348623157E308."""
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
    """{"a": 8, "b": 16} for "a:8,b:16". InvalidValue names the first part that is not name:number."""
    numbers = {}
    for part in parse_list(text):
        name, colon, number = part.rpartition(":")
        if not colon or not name.strip() or not _INTEGER.fullmatch(number.strip()):
            raise InvalidValue(f"{shown(part)!r} is not name:number; expected a list like first:8,second:16")
        numbers[name.strip()] = int(number)
    return numbers
