"""Whether a value of JSON fits a column, one value at a time: the way for records that the fast reader refused.

Rule: what fits here and what the fast reader takes are the same, so a record's fate does not depend on its neighbours.
A number without a point fits where one with a point does; nothing else is converted. Times are ISO 8601 text, UTC
where no zone is said.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from penstock.spark.tables.types import Column, type_text

_BITS: Final = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
_EPOCH_US: Final = {"ms": 1_000, "s": 1_000_000}
_INT64: Final = 2**63
_SHOWN: Final = 60


class Unfit(Exception):
    """A value that its column cannot hold; the text says why, in a few words."""


def fit_column(value: Any, column: Column, *, passes_over: bool = False) -> Any:
    """The value as Arrow takes it for the column; raises Unfit. `passes_over`: fields of structs that are not known."""
    if value is None:
        if column.required:
            raise Unfit(f"{column.name} is null or missing")
        return None
    if column.epoch:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _unfit(column.name, value, f"a whole number of {column.epoch} since 1970")
        time_us = value * _EPOCH_US[column.epoch]
        if not -_INT64 <= time_us < _INT64:
            raise Unfit(f"{column.name} is {value}, which is no time")
        return time_us
    return fit(value, column.type, column.name, passes_over=passes_over)


def fit(value: Any, kind: pa.DataType, where: str, *, passes_over: bool = False) -> Any:
    """The value as Arrow takes it for a type; raises Unfit."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return _struct(value, kind, where, passes_over)
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise _unfit(where, value, type_text(kind))
        return [fit(item, kind.value_type, f"{where}[]", passes_over=passes_over) for item in value]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _time(value, kind, where)
    if pa.types.is_decimal(kind):
        return _decimal(value, kind, where)
    return _plain(value, kind, where)


def _plain(value: Any, kind: pa.DataType, where: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if pa.types.is_string(kind) and isinstance(value, str):
        return value
    if pa.types.is_binary(kind) and isinstance(value, str):
        return value.encode()
    if pa.types.is_floating(kind) and is_number:
        return float(value)
    if kind in _BITS and is_number and isinstance(value, int):
        if -(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind]:
            return value
        raise Unfit(f"{where} is {_shown(value)}, which is too large for {type_text(kind)}")
    raise _unfit(where, value, type_text(kind))


def _struct(value: Any, kind: Any, where: str, passes_over: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unfit(where, value, "struct")
    known = {field.name: field.type for field in kind}
    for name in value:
        if name not in known and value[name] is not None and not passes_over:
            raise Unfit(f"{where}.{name} is not in the schema")
    return {name: fit(value.get(name), known[name], f"{where}.{name}", passes_over=passes_over) for name in known}


def _time(value: Any, kind: pa.DataType, where: str) -> Any:
    word = "date" if pa.types.is_date(kind) else "timestamp"
    if not isinstance(value, str):
        raise _unfit(where, value, word)
    try:
        if word == "date":
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _unfit(where, value, word) from None


def _decimal(value: Any, kind: Any, where: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _unfit(where, value, type_text(kind))
    if isinstance(value, float) and not math.isfinite(value):
        raise _unfit(where, value, type_text(kind))
    try:
        number = Decimal(str(value))
        quantized = number.quantize(Decimal(1).scaleb(-kind.scale))
    except (InvalidOperation, ValueError):
        raise _unfit(where, value, type_text(kind)) from None
    if quantized != number or len(quantized.as_tuple().digits) > kind.precision:
        raise Unfit(f"{where} is {_shown(value)}, which has too many digits for {type_text(kind)}")
    return quantized


def _unfit(where: str, value: Any, wanted: str) -> Unfit:
    return Unfit(f"{where} is {_shown(value)}, which is no {wanted}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
