"""Declarations: TOML to tables, and what is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import DeclarationError
from penstock.spark.tables.declaration import Table, from_json, from_mapping, from_toml, to_json

LEAST = {"name": "views", "topic": "views"}


def test_file_declares_a_table(tmp_path: Path) -> None:
    path = tmp_path / "views.toml"
    path.write_text(
        """
        name = "views"
        topic = "web.views"
        partition_by = "hour"
        event_time = "at"
        late = "dead"
        allowed_lateness = "2d"
        retention = "400d"
        [columns]
        user = "string not null"
        at = "timestamp_ms"
        [options]
        "kafka.client.id" = "loader"
        """
    )
    table = from_toml(path)
    assert (table.topic, table.partition_columns) == ("web.views", ("event_day", "event_hour"))
    assert table.allowed_lateness_ms == 2 * 86_400_000
    assert [str(column) for column in table.columns] == ["user string not null", "at timestamp_ms"]
    assert table.options == {"kafka.client.id": "loader"}


def test_declaration_round_trips_through_json() -> None:
    table = from_mapping(
        {**LEAST, "schema": "a long, b timestamp_s", "mode": "upsert", "key": ["a"], "event_time": "b"}
    )
    assert from_json(to_json(table)) == table


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": None}, "name"),
        ({"topic": ""}, "no topic"),
        ({"name": "a/b"}, "not a valid table name"),
        ({"name": "a__dead"}, "not a valid table name"),
        ({"partition": "day"}, "Did you mean partition_by?"),
        ({"mode": "apend"}, "Did you mean append?"),
        ({"format": "xml"}, "format is 'xml'"),
        ({"schema": "a in"}, "at 'in': expected a type"),
        ({"schema": 5}, "not a string"),
        ({"schema": "a int, A int"}, "twice"),
        ({"schema": "_offset long"}, "is reserved"),
        ({"schema": "event_day date"}, "is reserved"),
        ({"schema": "a int", "columns": {"a": "int"}}, "both"),
        ({"schema": "user string", "mode": "upsert", "key": ["usr"]}, "Did you mean user?"),
        ({"schema": "user string", "event_time": "user"}, "is not a timestamp"),
        ({"schema": "user string", "event_time": "at"}, "not in the schema"),
        ({"key": ["user"]}, "mode is append"),
        ({"retention": "1 year"}, "is not a duration"),
        ({"retention": "30d", "partition_by": "none"}, "needs partitions"),
        ({"vacuum_after": "5m"}, "less than an hour"),
        ({"format": "avro"}, "needs avro_schema"),
        ({"format": "avro", "avro_schema": "missing.avsc"}, "No such file"),
        ({"format": "avro", "avro_schema": "{not json"}, "avro_schema is not valid JSON"),
        ({"format": "protobuf", "message": "views.desc"}, "views.desc#shop.View"),
        ({"target_file_mb": 0}, "above 0"),
        ({"target_file_mb": "12"}, "above 0"),
        ({"start": "yesterday"}, "earliest, latest"),
        ({"options": 5}, "options is 5"),
        ({"options": {"kafka.isolation.level": "read_uncommitted"}}, 'Set isolation = "read_uncommitted"'),
        ({"descriptors": "x"}, "unknown table setting"),
    ],
)
def test_invalid_declaration_is_rejected_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        from_mapping({**LEAST, **settings})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"), [(b"name = ", "is not TOML"), (b"\xff\xfe", "is not UTF-8"), (None, "No such file")]
)
def test_unreadable_file_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "views.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DeclarationError, match=r"views\.toml") as caught:
        from_toml(path)
    assert said in str(caught.value)


def test_settings_of_a_later_version_are_ignored() -> None:
    text = to_json(Table("views", "views")).replace('"mode"', '"colour": "blue", "mode"')
    assert from_json(text) == Table("views", "views")
