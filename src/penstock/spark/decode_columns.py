"""Decoded records into Arrow columns of a Spark schema.

Rule: column by column, not row by row: each field of all records becomes one list, and each list one array, so nested
values cost as much as flat ones. How a field is taken out of a record is the format's business (`Access`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

if TYPE_CHECKING:
    import pyarrow

# Of the struct at a path of field numbers, the field of this number.
Access = Callable[[spark.StructType, int], Callable[[Any], Any]]


def arrow_type(kind: spark.DataType) -> pyarrow.DataType:
    """Arrow's name for a type of Spark, with times in UTC."""
    return to_arrow_type(kind, timezone="UTC")


def struct_array(records: Sequence[Any], struct: spark.StructType, access: Access) -> pyarrow.StructArray:
    """The records as one array, null where a record is None. Raises pyarrow's error for a value that does not fit."""
    import pyarrow as pa

    if not struct.fields:
        return pa.array([None if record is None else {} for record in records], pa.struct([]))
    present = [record for record in records if record is not None]
    is_dense = len(present) == len(records)
    columns = []
    for number, field in enumerate(struct.fields):
        take = access(struct, number)
        values = list(map(take, records)) if is_dense else [None if r is None else take(r) for r in records]
        columns.append(_column(values, field.dataType, access))
    # Children of an absent struct are null, whatever the schema says.
    named = zip(struct.names, columns, strict=True)
    fields = [pa.field(name, column.type, nullable=True) for name, column in named]
    mask = None if is_dense else pa.array([record is None for record in records], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def nullable(struct: spark.StructType) -> spark.StructType:
    """The same with every field nullable, as columns of decoded records are."""
    return spark.StructType(
        [spark.StructField(field.name, _nullable(field.dataType), True, field.metadata) for field in struct.fields]
    )


def _nullable(kind: spark.DataType) -> spark.DataType:
    if isinstance(kind, spark.StructType):
        return nullable(kind)
    if isinstance(kind, spark.ArrayType):
        return spark.ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, spark.MapType):
        return spark.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def _column(values: list[Any], kind: spark.DataType, access: Access) -> pyarrow.Array:
    import pyarrow as pa

    if isinstance(kind, spark.StructType):
        return struct_array(values, kind, access)
    if isinstance(kind, spark.ArrayType) and _is_nested(kind.elementType):
        flat = list(chain.from_iterable(value for value in values if value is not None))
        elements = _column(flat, kind.elementType, access)
        kept = pa.list_(pa.field("element", elements.type, nullable=True))
        return pa.ListArray.from_arrays(_offsets(values), elements, type=kept)
    if isinstance(kind, spark.MapType):
        pairs = [None if value is None else list(value.items()) for value in values]
        flat = list(chain.from_iterable(value for value in pairs if value is not None))
        keys = _column([key for key, _ in flat], kind.keyType, access)
        items = _column([item for _, item in flat], kind.valueType, access)
        return pa.MapArray.from_arrays(_offsets(pairs), keys, items)
    return pa.array(values, arrow_type(_nullable(kind)))


def _is_nested(kind: spark.DataType) -> bool:
    return isinstance(kind, (spark.StructType, spark.ArrayType, spark.MapType))


def _offsets(values: list[Any]) -> pyarrow.Array:
    """Where each list begins, null for one that is; and where the last ends."""
    import pyarrow as pa

    offsets: list[int | None] = []
    position = 0
    for value in values:
        offsets.append(None if value is None else position)
        position += 0 if value is None else len(value)
    return pa.array([*offsets, position], pa.int32())
