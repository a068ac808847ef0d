"""Bounds of strings, numbers, objects and arrays in JSON Schema: which follow from which. Pure.

A bound of the reader has to follow from the bounds of the writer, whatever keyword it is written with:
`exclusiveMinimum: 0` of integers is `minimum: 1`. Numbers are compared as the decimals that the schema shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from penstock.registry.formats.json_schema import DRAFT_4
from penstock.registry.formats.pattern import Pattern
from penstock.registry.formats.schema import Incompatibility, shortened

# By type: the keywords that say something of its values.
TYPED_KEYWORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "integer": frozenset(),
    "object": frozenset(
        {
            "properties",
            "patternProperties",
            "additionalProperties",
            "unevaluatedProperties",
            "required",
            "minProperties",
            "maxProperties",
            "propertyNames",
            "dependencies",
            "dependentRequired",
            "dependentSchemas",
        }
    ),
    "array": frozenset(
        {
            "items",
            "prefixItems",
            "additionalItems",
            "unevaluatedItems",
            "contains",
            "minContains",
            "maxContains",
            "minItems",
            "maxItems",
            "uniqueItems",
        }
    ),
}
LIMITS = {
    "string": ("minLength", "maxLength"),
    "object": ("minProperties", "maxProperties"),
    "array": ("minItems", "maxItems", "minContains", "maxContains"),
}
Keywords = Mapping[str, Any]
# The type, the keywords and the draft of a schema of numbers.
Numbers = tuple[str, Keywords, int]


def kind_of(keyword: str, change: str) -> str:
    """The name of a difference: maxLength and DECREASED are MAX_LENGTH_DECREASED."""
    return "".join(f"_{each}" if each.isupper() else each for each in keyword).upper() + "_" + change


def type_of(value: object) -> str:
    """The type of a JSON value. A float without a fraction is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def limit_problems(reader: Keywords, writers: Sequence[Keywords], keywords: Sequence[str]) -> Iterator[Incompatibility]:
    """Lengths and counts that the writer may exceed."""
    for keyword in keywords:
        limit = reader.get(keyword)
        if limit is None or (keyword.startswith("min") and limit == 0):
            continue
        given = [each[keyword] for each in writers if keyword in each]
        upper = keyword.startswith("max")
        if any(each <= limit if upper else each >= limit for each in given):
            continue
        change = "ADDED" if not given else "DECREASED" if upper else "INCREASED"
        written = f"is {given[0]}" if given else "is not set"
        message = f"The reader's {keyword} is {limit}, and the writer's {written}."
        yield Incompatibility(kind_of(keyword, change), f"/{keyword}", message)


def text_problems(reader: Keywords, writers: Sequence[Keywords]) -> Iterator[Incompatibility]:
    """Bounds of strings. Whether one expression follows from another is not decided: they have to be equal."""
    yield from limit_problems(reader, writers, LIMITS["string"])
    pattern = reader.get("pattern")
    given = [each["pattern"] for each in writers if "pattern" in each]
    if pattern is not None and pattern not in given:
        written = f"is {shortened(given[0])!r}" if given else "is not set"
        message = f"The reader's pattern is {shortened(pattern)!r}, and the writer's {written}."
        yield Incompatibility("PATTERN_CHANGED" if given else "PATTERN_ADDED", "/pattern", message)


def number_problems(reader: Numbers, writers: Sequence[Numbers]) -> Iterator[Incompatibility]:
    """Bounds, steps and wholeness of numbers."""
    steps = [step for each in writers if (step := _step(each)) is not None]
    if reader[0] == "integer" and not any(step.denominator == 1 for step in steps):
        yield Incompatibility("TYPE_NARROWED", "", "The reader's type is integer, and the writer allows other numbers.")
    for upper in (False, True):
        yield from _bound_problems(reader, writers, upper=upper)
    if "multipleOf" in reader[1]:
        step = _fraction(reader[1]["multipleOf"])
        if not any((each / step).denominator == 1 for each in steps):
            given = [each[1]["multipleOf"] for each in writers if "multipleOf" in each[1]]
            change = "ADDED"
            if given:
                change = "EXPANDED" if (step / _fraction(given[0])).denominator == 1 else "CHANGED"
            written = f"is {given[0]}" if given else "is not set"
            message = f"The reader's multipleOf is {reader[1]['multipleOf']}, and the writer's {written}."
            yield Incompatibility(kind_of("multipleOf", change), "/multipleOf", message)


def _fraction(value: float) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(value)))


def _step(numbers: Numbers) -> Fraction | None:
    """Every number is a multiple of this."""
    kind, keywords, _ = numbers
    step = _fraction(keywords["multipleOf"]) if "multipleOf" in keywords else None
    if kind == "integer" and (step is None or step.denominator != 1):
        # An integer that is a multiple of n/d, in lowest terms, is one of n.
        return Fraction(1) if step is None else Fraction(step.numerator)
    return step


# The value, whether it is itself excluded, and the keyword.
Bound = tuple[Fraction, bool, str]


def _bound(numbers: Numbers, *, upper: bool) -> Bound | None:
    """The tighter of the inclusive and the exclusive bound."""
    kind, keywords, draft = numbers
    inclusive, exclusive = ("maximum", "exclusiveMaximum") if upper else ("minimum", "exclusiveMinimum")
    bounds: list[Bound] = []
    if inclusive in keywords:
        excluded = draft == DRAFT_4 and keywords.get(exclusive) is True
        bounds.append((_fraction(keywords[inclusive]), excluded, exclusive if excluded else inclusive))
    if draft != DRAFT_4 and exclusive in keywords:
        bounds.append((_fraction(keywords[exclusive]), True, exclusive))
    if not bounds:
        return None
    value, excluded, keyword = min(bounds, key=lambda bound: (bound[0] if upper else -bound[0], not bound[1]))
    if kind == "integer":
        whole = math.floor(value) if upper else math.ceil(value)
        if excluded and whole == value:
            whole += -1 if upper else 1
        return Fraction(whole), False, keyword
    return value, excluded, keyword


def _bound_problems(reader: Numbers, writers: Sequence[Numbers], *, upper: bool) -> Iterator[Incompatibility]:
    own = _bound(reader, upper=upper)
    if own is None:
        return
    given = [bound for each in writers if (bound := _bound(each, upper=upper)) is not None]
    for value, excluded, _ in given:
        inside = value < own[0] if upper else value > own[0]
        if inside or (value == own[0] and (excluded or not own[1])):
            return
    keyword = own[2]
    change = "ADDED" if not given else "DECREASED" if upper else "INCREASED"
    written = f"is {_shown(given[0])}" if given else "is not set"
    message = f"The reader's {keyword} is {_shown(own)}, and the writer's bound {written}."
    yield Incompatibility(kind_of(keyword, change), f"/{keyword}", message)


def _shown(bound: Bound) -> str:
    value, excluded, _ = bound
    text = str(value.numerator) if value.denominator == 1 else repr(float(value))
    return shortened(text, 30) + (" (exclusive)" if excluded else "")


def scalar_fits(
    value: object, kind: str, keywords: Keywords, draft: int, pattern: Callable[[str], Pattern | None]
) -> bool:
    """Whether a value of an enumeration is allowed by one part of a schema; no where that takes a validator."""
    own = type_of(value)
    if own != kind and not (own == "integer" and kind == "number"):
        return False
    if kind in ("null", "boolean"):
        return True
    if isinstance(value, str):
        return _text_fits(value, keywords, pattern)
    if kind in ("number", "integer") and isinstance(value, (int, float)):
        same = {"minimum": value, "maximum": value, "multipleOf": abs(value) or None}
        exact = {keyword: each for keyword, each in same.items() if each is not None}
        wanted = {keyword: each for keyword, each in keywords.items() if value != 0 or keyword != "multipleOf"}
        writer: Numbers = ("integer" if own == "integer" else "number", exact, 0)
        return not any(number_problems((kind, wanted, draft), [writer]))
    # Of objects and arrays only those without demands are judged.
    return not TYPED_KEYWORDS[kind] & keywords.keys()


def _text_fits(value: str, keywords: Keywords, pattern: Callable[[str], Pattern | None]) -> bool:
    if not keywords.get("minLength", 0) <= len(value) <= keywords.get("maxLength", math.inf):
        return False
    if "pattern" not in keywords:
        return True
    compiled = pattern(keywords["pattern"])
    return compiled is not None and compiled.cost(value) < 100_000 and compiled.matches(value) is True
