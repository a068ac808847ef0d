"""Schemas as text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.spark.errors import DeclarationError
from penstock.spark.tables.declaration import TIMESTAMP, Column, columns_text, parse_columns, type_text


def test_a_schema_is_read_as_it_is_written() -> None:
    text = (
        "user string not null, ms int, at timestamp_ms, tags array<string>, "
        "place struct<city:string,at:struct<x:double,y:double>>, price decimal(10,2), `odd name` long"
    )
    columns = parse_columns(text)
    assert columns[0] == Column("user", pa.string(), required=True)
    assert columns[2] == Column("at", TIMESTAMP, epoch="ms")
    assert columns_text(columns) == text


def test_spark_s_own_text_of_a_schema_is_understood() -> None:
    columns = parse_columns("user:string,n:bigint,t:timestamp")
    assert [type_text(column.type) for column in columns] == ["string", "long", "timestamp"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no columns"),
        ("user", "a name or a type was expected"),
        ("user strin", "'strin' is no type"),
        ("user string page string", "',' was expected"),
        ("a struct<>", "has fields"),
        ("a struct<b:int,b:int>", "by a name of its own"),
        ("a array<int", "'>' was expected"),
        ("a decimal(50,2)", "1 to 38 digits"),
        ("a decimal(5,9)", "1 to 38 digits"),
        ("a array<timestamp_ms>", "is for columns"),
        ("a string not nul", "'null' was expected"),
        ("5 int", "no name of a column"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "deep"),
        ("a int; drop", "',' was expected"),
    ],
)
def test_a_schema_that_does_not_parse_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_columns(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
