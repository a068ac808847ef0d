"""`penstock.decode`: the value of a record as a struct column, by a schema.

    spark.readStream.format("penstock").option("penstock.decode", "json: id BIGINT, name STRING") ...
    penstock.spark.decode(df, "avro: view.avsc")            # any DataFrame with a column value

Rule: the columns that were there stay as they are; one is added. A null value (a tombstone) is a null struct. A record
that is not what the schema says fails the query with its topic, partition and offset (mode `failfast`, the default), or
is a null struct (`permissive`); then value is not null and the struct is, so such records can be found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.client.errors import ConfigError, DeserializationError
from penstock.spark.decode_columns import nullable, struct_array
from penstock.spark.decode_formats import RecordFormat, Undecodable, record_format
from penstock.spark.decode_spec import OPTION, OPTION_NAMES, DecodeSpec, parse_spec, spec_of_options

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

__all__ = [
    "OPTION_NAMES",
    "DecodeSpec",
    "Decoded",
    "Decoder",
    "decode",
    "decode_batch",
    "decoded_field",
    "parse_spec",
    "spec_of_options",
]

_WHERE: Final = ("topic", "partition", "offset")


class Decoded(NamedTuple):
    """An array of structs, null where there was no value or a bad one; and the bad ones, each by row and reason."""

    array: pyarrow.StructArray
    failures: list[tuple[int, str]]


class Decoder:
    """Reads values of a spec; raises ConfigError if the spec cannot be."""

    def __init__(self, spec: DecodeSpec) -> None:
        self.spec = spec
        self._format: RecordFormat = record_format(spec)
        self.struct = nullable(self._format.struct)

    def decode(self, values: pyarrow.Array) -> Decoded:
        """A column of bytes or text, decoded. Bad records raise nothing."""
        failures: list[tuple[int, str]] = []
        read = self._format.read
        records: list[Any] = []
        for row, value in enumerate(_bytes_of(values)):
            try:
                records.append(None if value is None else read(value))
            except Undecodable as reason:
                records.append(None)
                failures.append((row, str(reason)))
        try:
            return Decoded(self._array(records), failures)
        except (ArithmeticError, TypeError, ValueError):
            # A value that its column cannot hold, such as a decimal with too many digits: whose is it?
            records, more = self._without_misfits(records)
            return Decoded(self._array(records), sorted([*failures, *more]))

    def _array(self, records: list[Any]) -> pyarrow.StructArray:
        return struct_array(records, self._format.struct, self._format.access)

    def _without_misfits(self, records: list[Any]) -> tuple[list[Any], list[tuple[int, str]]]:
        kept: list[Any] = []
        failures: list[tuple[int, str]] = []
        for row, record in enumerate(records):
            try:
                self._array([record])
            except (ArithmeticError, TypeError, ValueError) as error:
                failures.append((row, " ".join(str(error).split())))
                kept.append(None)
            else:
                kept.append(record)
        return kept, failures


def decoded_field(spec: DecodeSpec) -> StructField:
    """The column that decoding adds."""
    from pyspark.sql.types import StructField

    return StructField(spec.column, Decoder(spec).struct, True)


def decode_batch(batch: pyarrow.RecordBatch, spec: DecodeSpec) -> pyarrow.RecordBatch:
    """The batch with the decoded column added. Raises DeserializationError in mode failfast."""
    decoded = Decoder(spec).decode(batch.column("value"))
    if decoded.failures and spec.mode == "failfast":
        row, reason = decoded.failures[0]
        where = [batch.column(name)[row].as_py() if name in batch.schema.names else None for name in _WHERE]
        raise _poisoned(spec, reason, where, batch.column("value")[row].as_py())
    if spec.column in batch.schema.names:
        raise _taken(spec.column)
    return batch.append_column(spec.column, decoded.array)


def decode(df: DataFrame, spec: DecodeSpec | str, **parts: str) -> DataFrame:
    """The DataFrame with its column value decoded into one more column, `decoded` unless the spec names another.

    `spec` is a text as in the option, or a DecodeSpec; `parts` are schema, message, framing, registry, mode, column.
    """
    from pyspark.sql.functions import col
    from pyspark.sql.pandas.functions import arrow_udf

    if isinstance(spec, str):
        spec = parse_spec(spec, **parts)
    elif parts:
        raise ConfigError("a DecodeSpec says everything itself", hint="Give either it or text and parts")
    if "value" not in df.columns:
        raise ConfigError(f"there is no column value to decode; there are {', '.join(df.columns)}")
    if spec.column in df.columns:
        raise _taken(spec.column)
    with_place = all(name in df.columns for name in _WHERE)
    # Its stubs do not know that the kind of function can be left to the annotations.
    make: Any = arrow_udf
    function = make(_placed(spec) if with_place else _alone(spec), decoded_field(spec).dataType)
    columns = [col("value"), *(col(name) for name in _WHERE if with_place)]
    return df.withColumn(spec.column, function(*columns))


def _alone(spec: DecodeSpec) -> Callable[[pyarrow.Array], pyarrow.Array]:
    def decoded(value: pyarrow.Array) -> pyarrow.Array:
        return _checked(spec, value, None)

    return _annotated(decoded, 1)


def _placed(spec: DecodeSpec) -> Callable[..., pyarrow.Array]:
    def decoded(
        value: pyarrow.Array, topic: pyarrow.Array, partition: pyarrow.Array, offset: pyarrow.Array
    ) -> pyarrow.Array:
        return _checked(spec, value, (topic, partition, offset))

    return _annotated(decoded, 4)


def _annotated(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Spark looks at annotations to see what kind of function it is; ours are text, and of a lazy import."""
    import pyarrow

    names = list(function.__annotations__)[:count]
    function.__annotations__ = {**dict.fromkeys(names, pyarrow.Array), "return": pyarrow.Array}
    return function


def _checked(spec: DecodeSpec, values: pyarrow.Array, where: tuple[pyarrow.Array, ...] | None) -> pyarrow.Array:
    decoded = Decoder(spec).decode(values)
    if decoded.failures and spec.mode == "failfast":
        row, reason = decoded.failures[0]
        place = [None, None, None] if where is None else [column[row].as_py() for column in where]
        raise _poisoned(spec, reason, place, values[row].as_py())
    return decoded.array


def _bytes_of(values: pyarrow.Array) -> list[bytes | None]:
    import pyarrow as pa

    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_binary())
    found: list[bytes | None] = values.to_pylist()
    return found


def _poisoned(spec: DecodeSpec, reason: str, where: list[Any], data: Any) -> DeserializationError:
    topic, partition, offset = where
    place = "a record" if topic is None else f"{topic}-{partition} at offset {offset}"
    return DeserializationError(
        f"{place} is not the {spec.format} of its schema: {reason}",
        topic=topic, partition=partition, offset=offset, field="value",
        data=data if isinstance(data, bytes) else None, hint=f"{OPTION}.mode = permissive makes such records null",
    )  # fmt: skip


def _taken(column: str) -> ConfigError:
    return ConfigError(f"there is a column {column} already", hint=f"Name another with {OPTION}.column")
