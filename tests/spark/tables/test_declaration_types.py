"""Schemas of tables as text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.spark.errors import DeclarationError
from penstock.spark.tables.declaration import TIMESTAMP, Column, columns_text, parse_columns, type_text


def test_schema_round_trips_through_its_text() -> None:
    text = (
        "user string not null, ms int, at timestamp_ms, tags array<string>, "
        "place struct<city:string,at:struct<x:double,y:double>>, price decimal(10,2), `odd name` long"
    )
    columns = parse_columns(text)
    assert columns[0] == Column("user", pa.string(), required=True)
    assert columns[2] == Column("at", TIMESTAMP, epoch="ms")
    assert columns_text(columns) == text


def test_simple_string_of_spark_is_accepted() -> None:
    columns = parse_columns("user:string,n:bigint,t:timestamp")
    assert [type_text(column.type) for column in columns] == ["string", "long", "timestamp"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no columns"),
        ("user", "invalid schema at its end: expected a type"),
        ("user strin", "at 'strin': expected a type"),
        ("user string page string", "at 'page string': expected the end, or a comma"),
        ("a struct<>", "struct without fields"),
        ("a struct<b:int,b:int>", "two columns named b"),
        ("a array<int", "expected '>'"),
        ("a decimal(50,2)", "1 <= p <= 38"),
        ("a decimal(5,9)", "s <= p"),
        ("a array<timestamp_ms>", "timestamp_ms is allowed only for columns"),
        ("a string not nul", "expected NULL after NOT"),
        ("5 int", "at '5 int': expected the name of a column"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "deep"),
        ("a int; drop", "at '; drop': expected the end, or a comma"),
        ("a struct<b: int not null>", "NOT NULL and COMMENT are allowed only for columns"),
        ("a int comment 'x'", "has a COMMENT"),
        ("a map<string, int>", "no type map"),
    ],
)
def test_invalid_schema_is_rejected_with_the_place(text: str, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_columns(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
