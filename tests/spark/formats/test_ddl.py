"""Schemas as text: reads what Spark's own parser reads."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from penstock.client.errors import ConfigError
from penstock.spark.formats.ddl import parse_schema

TEXTS = [
    "id BIGINT",
    "a INT, b STRING NOT NULL, c DOUBLE",
    "a: int, b: string",
    "a tinyint, b smallint, c byte, d short, e long, f float, g real, h boolean, i binary, j date",
    "a TIMESTAMP, b timestamp_ntz, c timestamp_ltz, d DECIMAL, e decimal(12), f NUMERIC(12, 2), g dec(3,1)",
    "a ARRAY<INT>, b MAP<STRING, ARRAY<BIGINT>>, c STRUCT<x: INT, y: STRUCT<z: STRING NOT NULL>>",
    "a ARRAY<STRUCT<b: MAP<STRING, STRUCT<c: INT>>>>",
    "`a b` STRING, `tick``s` INT COMMENT 'with '",
    "struct STRING, array INT",
    "a STRUCT<>",
    "struct<a: int, b: string>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_parser_reads_what_spark_reads(spark: SparkSession, text: str) -> None:
    expected = StructType.fromDDL(text)
    assert parse_schema(text) == expected
    assert parse_schema(expected.json()) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "invalid schema at its end: expected the name of a column"),
        ("a", "invalid schema at its end: expected a type"),
        ("a FOO", "invalid schema at 'FOO': expected a type"),
        ("a ARRAY<INT", "invalid schema at its end: expected '>'"),
        ("a INT b", "invalid schema at 'b': expected the end, or a comma"),
        ("a INT,", "invalid schema at its end: expected the name of a column"),
        ("a INT, a STRING", "two columns named a"),
        ("a DECIMAL(40, 2)", "DECIMAL(40, 2) is not valid"),
        ("a MAP<STRING>", "invalid schema at '>': expected ','"),
        ("a INT; DROP TABLE t", "invalid schema at '; DROP TABLE t'"),
        ("a " + "ARRAY<" * 100, "nested deeper than 64"),
        ("{", "not Spark's schema JSON"),
        ('{"type": "array"}', "of type 'array'"),
        ('{"type": "struct", "fields": [{}]}', "not Spark's schema JSON"),
    ],
)
def test_invalid_schema_is_rejected_with_the_place_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        parse_schema(text)
    assert problem in str(rejected.value)
    assert "\n" not in str(rejected.value)


def test_parser_needs_no_session() -> None:
    assert parse_schema("id BIGINT") == StructType([StructField("id", LongType())])
