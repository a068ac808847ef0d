"""From text to values and back, as Kafka writes them.

Rule: a text is accepted exactly if Kafka's own parser would accept it for that type and the value is within the
definition's bounds; a refusal says type and bounds. Nothing here is slow or large for a hostile text.
"""

from __future__ import annotations

import math
import re
from typing import Final

from penstock.broker.settings.definitions import BITS, ConfigType, Definition, Value
from penstock.broker.settings.errors import SettingsError, shown

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
