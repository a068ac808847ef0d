"""What the three schema formats share: references, errors, differences, and JSON text within limits. Pure.

Every schema comes from a stranger. Its size, its nesting and the number of its references are checked before anything
walks through it, so that no schema costs more than a bounded amount of time and memory.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
Compatibility = Literal[
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
]
SCHEMA_TYPES: tuple[SchemaType, ...] = get_args(SchemaType)
COMPATIBILITIES: tuple[Compatibility, ...] = get_args(Compatibility)

# A record of `_schemas` holds one schema, and `max.message.bytes` is 1 MiB by default.
SCHEMA_CHARACTERS_MAX = 1_000_000
# All references together: they are parsed anew for each schema that names them.
REFERENCED_CHARACTERS_MAX = 4_000_000
REFERENCES_MAX = 1_000
# Arrays and objects in one another. A record of Avro inside a record takes three levels.
NESTING_MAX = 120

_OUTSIDE_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


class InvalidSchema(Exception):
    """The schema, or one that it refers to, cannot be used. The message says what is wrong and where."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference as in the REST API: the name used in the schema stands for a version of a subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class ReferencedSchema:
    """The text behind a reference. Dependencies come before those that need them."""

    name: str
    schema: str


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """A reason why data of the writer's schema cannot be read with the reader's; `path` points into the latter."""

    kind: str
    path: str
    message: str


class ParsedSchema(Protocol):
    """A schema that was parsed. `canonical` identifies it, `normalized` does after `normalize=true`."""

    @property
    def schema_type(self) -> SchemaType: ...

    @property
    def canonical(self) -> str: ...

    @property
    def normalized(self) -> str: ...

    def check_unfinished(self) -> None:
        """Find what is checked in new schemas only, since older ones may have it.

        :raises InvalidSchema: for example for a default that does not fit its type
        """


def shortened(value: object, limit: int = 80) -> str:
    """The value as an error message shows it."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def check_sizes(text: str, references: Sequence[ReferencedSchema]) -> None:
    """Reject what is too large before anything reads it."""
    if len(text) > SCHEMA_CHARACTERS_MAX:
        raise InvalidSchema(
            f"The schema has {len(text):,} characters; at most {SCHEMA_CHARACTERS_MAX:,} are allowed. "
            "Split it, and use references."
        )
    if len(references) > REFERENCES_MAX:
        raise InvalidSchema(
            f"The schema has {len(references):,} references, direct and indirect; "
            f"at most {REFERENCES_MAX:,} are allowed."
        )
    total = sum(len(each.schema) for each in references)
    if total > REFERENCED_CHARACTERS_MAX:
        raise InvalidSchema(
            f"The schemas referred to have {total:,} characters; at most {REFERENCED_CHARACTERS_MAX:,} are allowed."
        )


def parse_json(text: str, what: str = "schema") -> Any:
    """The JSON value of a text that is nested at most `NESTING_MAX` levels deep.

    :raises InvalidSchema: for text that is not JSON, or whose numbers or strings have no portable form
    """
    _check_nesting(text, what)
    try:
        value = json.loads(text, parse_constant=_reject_constant, parse_float=_finite)
        # Half of a surrogate pair has no UTF-8 form, and nothing downstream could store it.
        if "\\u" in text or not text.isascii():
            json_text(value).encode()
    except json.JSONDecodeError as error:
        raise InvalidSchema(
            f"The {what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except UnicodeEncodeError:
        raise InvalidSchema(
            f"The {what} has a string with half of a surrogate pair, which has no UTF-8 form."
        ) from None
    except ValueError as error:  # integers of thousands of digits
        raise InvalidSchema(f"The {what} has a number that cannot be used: {shortened(str(error))}.") from None
    return value


def _check_nesting(text: str, what: str) -> None:
    depth = 0
    for match in _OUTSIDE_STRINGS.finditer(text):
        first = match.group()
        if first in ("[", "{"):
            depth += 1
            if depth > NESTING_MAX:
                raise InvalidSchema(
                    f"The {what} is nested more than {NESTING_MAX} levels deep at character {match.start():,}. "
                    "Name the inner types, and refer to them by name."
                )
        elif first in ("]", "}"):
            depth -= 1


def _reject_constant(name: str) -> float:
    raise InvalidSchema(f"The schema is not JSON: {name} is not a number of JSON.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidSchema(f"The number {shortened(text)} is too large for a double.")
    return value


def json_text(value: object, *, sort_keys: bool = False) -> str:
    """JSON without blanks. Keys keep their order unless asked otherwise."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=sort_keys)


def json_equal(left: object, right: object) -> bool:
    """Whether two JSON values are the same: 1 and 1.0 are, 1 and true are not."""
    return json_key(left) == json_key(right)


def json_key(value: object) -> str:
    """Text that is equal for equal JSON values and differs for others."""
    return json_text(_comparable(value), sort_keys=True)


def _comparable(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(each) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _comparable(each) for key, each in cast("dict[str, object]", value).items()}
    return value


def pointer(parts: Iterable[object]) -> str:
    """A JSON pointer to the place that the parts lead to."""
    return "".join("/" + shortened(str(part)).replace("~", "~0").replace("/", "~1") for part in parts)
