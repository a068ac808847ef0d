"""Tables whose schema is the latest version of a subject in a registry."""

from __future__ import annotations

import io
import json
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from tests.spark.tables.table_stories import World, dead, reasons, rows

from penstock import Producer
from penstock.client.errors import RegistryUnreachable
from penstock.client.serializers.registry_client import RegisteredSchema, RegistryClient, RegistrySchema
from penstock.registry import Registry
from penstock.spark.errors import DeclarationError
from penstock.spark.tables import from_mapping
from penstock.spark.tables.declaration import to_json
from penstock.testing import Broker

ID, NOTE = {"name": "id", "type": "int"}, {"name": "note", "type": "string"}
USER = {"name": "user", "type": ["null", "string"], "default": None}


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "View", "fields": list(fields)}


OLD, NEW = record(ID, NOTE), record({"name": "id", "type": "long"}, NOTE, USER)


@pytest.fixture(scope="module")
def registry(broker: Broker) -> Iterator[Registry]:
    with Registry(broker.address) as instance:
        yield instance


def register(registry: Registry, world: World, schema: Any, kind: str = "AVRO") -> RegisteredSchema:
    client = RegistryClient(registry.url)
    subject = f"{world.topic}-value"
    client.register(subject, RegistrySchema(json.dumps(schema), kind))
    return client.version(subject, "latest")


def avro(schema: Any, value: Any) -> bytes:
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), value)
    return output.getvalue()


def framed(found: RegisteredSchema, schema: Any, value: Any) -> bytes:
    return struct.pack(">bI", 0, found.id) + avro(schema, value)


def test_a_new_version_adds_and_widens_columns_at_the_next_load(world: World, registry: Registry) -> None:
    old = register(registry, world, OLD)
    world.send([framed(old, OLD, {"id": 1, "note": "a"}), b"plain"], partition=0)
    opened = world.make(format="avro", registry=registry.url)
    assert [column.name for column in opened.table.columns] == ["id", "note"]
    world.loader(opened).load_new()
    new = register(registry, world, NEW)
    world.send([framed(new, NEW, {"id": 2**40, "note": "b", "user": "ann"})], partition=0)
    with Producer(world.address) as producer:
        header = b"\x01" + uuid.UUID(new.guid).bytes
        producer.send(
            world.topic, avro(NEW, {"id": 3, "note": "c", "user": None}), partition=0,
            headers={"__value_schema_id": header},
        )  # fmt: skip
    world.send([framed(old, OLD, {"id": 4, "note": "d"})], partition=0)
    report = world.loader(world.warehouse.open("views")).load_new()
    assert sorted(report.added_columns) == ["id", "user"]
    found = sorted((row["id"], row["note"], row["user"]) for row in rows(opened).to_pylist())
    assert found == [(1, "a", None), (3, "c", None), (4, "d", None), (2**40, "b", "ann")]
    assert dead(opened).num_rows == 1
    assert "does not start with the id of a schema" in reasons(opened)[0]
    # The same schema again changes nothing.
    assert world.loader(world.warehouse.open("views")).load_new().added_columns == []


def test_a_new_version_of_a_json_schema_adds_columns(world: World, registry: Registry) -> None:
    def document(**properties: Any) -> dict[str, Any]:
        return {"type": "object", "properties": properties, "required": ["id"], "additionalProperties": False}

    integer = {"type": "integer"}
    price = {"type": "object", "properties": {"amount": {"type": "number"}}, "additionalProperties": False}
    old = register(registry, world, document(id=integer, price=price), "JSON")
    world.send([struct.pack(">bI", 0, old.id) + b'{"id": 1, "price": {"amount": 2}}', b'{"id": 1}'], partition=0)
    opened = world.make(format="json", registry=registry.url)
    assert [(column.name, str(column.type)) for column in opened.table.columns] == [
        ("id", "int64"), ("price", "struct<amount: double>"),
    ]  # fmt: skip
    world.loader(opened).load_new()
    price["properties"]["currency"] = {"type": "string"}  # type: ignore[index]
    counts = {"type": "object", "additionalProperties": integer}
    later = document(id=integer, price=price, counts=counts, any={"type": ["string", "integer"]})
    new = register(registry, world, later, "JSON")
    value = b'{"id": 2, "price": {"amount": 3, "currency": "EUR"}, "counts": {"a": 1}, "any": "x"}'
    world.send([struct.pack(">bI", 0, new.id) + value], partition=0)
    report = world.loader(world.warehouse.open("views")).load_new()
    assert sorted(report.added_columns) == ["any", "counts", "price"]
    found = sorted(((row["id"], row["price"], row["counts"], row["any"]) for row in rows(opened).to_pylist()), key=str)
    assert found == [
        (1, {"amount": 2.0, "currency": None}, None, None),
        (2, {"amount": 3.0, "currency": "EUR"}, [{"key": "a", "value": 1}], '"x"'),
    ]  # fmt: skip
    # Without a frame it is a dead letter, though it would fit.
    assert dead(opened).num_rows == 1
    assert "does not start with the id of a schema" in reasons(opened)[0]


def test_a_json_schema_that_changes_a_type_fails_the_load(world: World, registry: Registry) -> None:
    client, subject = RegistryClient(registry.url), f"{world.topic}-value"
    register(registry, world, {"type": "object", "properties": {"id": {"type": "integer"}}}, "JSON")
    world.make(format="json", registry=registry.url)
    client.request("PUT", f"/config/{subject}", {"compatibility": "NONE"})
    register(registry, world, {"type": "object", "properties": {"id": {"type": "string"}}}, "JSON")
    with pytest.raises(DeclarationError, match="id is long, but the record has string"):
        world.loader(world.warehouse.open("views")).load_new()


STRING, TEXT = {"type": "string"}, {"type": ["string", "integer"]}


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (STRING, TEXT, "x"),
        (TEXT, STRING, "x"),
        (STRING, {}, "x"),
        ({"type": "array", "items": STRING}, {"type": "array", "items": TEXT}, "x"),
        ({"type": "object", "properties": {"y": STRING}}, {"type": "object", "properties": {"y": {}}}, "x.y"),
    ],
)
def test_a_column_does_not_change_between_text_and_json_text(
    world: World, registry: Registry, old: Any, new: Any, name: str
) -> None:
    client, subject = RegistryClient(registry.url), f"{world.topic}-value"
    register(registry, world, {"type": "object", "properties": {"x": old}}, "JSON")
    world.make(format="json", registry=registry.url)
    client.request("PUT", f"/config/{subject}", {"compatibility": "NONE"})
    register(registry, world, {"type": "object", "properties": {"x": new}}, "JSON")
    with pytest.raises(DeclarationError, match=f"changes {name} between text and JSON text"):
        world.loader(world.warehouse.open("views")).load_new()


def test_a_table_that_may_not_grow_keeps_its_schema(world: World, registry: Registry) -> None:
    register(registry, world, OLD)
    opened = world.make(format="avro", registry=registry.url, evolution="none")
    new = register(registry, world, NEW)
    world.send([framed(new, NEW, {"id": 5, "note": "b", "user": "ann"})], partition=0)
    report = world.loader(world.warehouse.open("views")).load_new()
    assert report.added_columns == []
    # An int cannot hold what a long may have: the schemas do not resolve, and the record is set aside.
    assert (rows(opened).num_rows, dead(opened).num_rows) == (0, 1)


def test_a_registry_that_is_away_fails_the_load_and_sets_nothing_aside(world: World, broker: Broker) -> None:
    with Registry(broker.address, topic="_away", group_id="away") as registry:
        old = register(registry, world, OLD)
        world.send([framed(old, OLD, {"id": 1, "note": "a"})], partition=0)
        opened = world.make(format="avro", registry=registry.url, avro_schema=OLD)
    with pytest.raises(RegistryUnreachable) as failed:
        world.loader(opened).load_new()
    assert failed.value.retriable
    assert (rows(opened).num_rows, dead(opened).num_rows) == (0, 0)


def test_a_subject_without_schema_makes_no_table(world: World, registry: Registry) -> None:
    with pytest.raises(DeclarationError, match=f"has no schema for {world.topic}-value"):
        world.make(format="avro", registry=registry.url)
    assert world.warehouse.names() == []


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"format": "text"}, "a registry applies only to framed Avro, JSON and Protobuf, not to text"),
        ({"framing": "none"}, "with framing none"),
        ({"format": "json", "schema": "id bigint"}, "columns come from the registry's JSON Schema"),
        ({"format": "json", "avro_schema": OLD}, "needs no avro_schema"),
        ({"avro_schema": OLD, "subject": "s"}, "both subject and a schema are given"),
        ({"registry_user": "me", "registry_password": "word"}, "registry_password is written in the declaration"),
        ({"registry_user": "me"}, "belong together"),
        ({"registry": "http://me:word@r"}, "contains a login"),
        ({"registry": "", "registry_token": "env:T"}, "registry_token is set, but not registry"),
        ({"registry_ca": "/no/such.pem"}, "registry_ca: /no/such.pem: No such file"),
    ],
)
def test_invalid_declarations_are_rejected(more: dict[str, Any], problem: str) -> None:
    document = {"name": "views", "topic": "views", "format": "avro", "registry": "http://r", **more}
    with pytest.raises(DeclarationError) as rejected:
        from_mapping(document)
    assert problem in str(rejected.value)


def test_secrets_are_stored_as_references() -> None:
    login = {"registry_user": "me", "registry_password": "env:WORD"}
    table = from_mapping({"name": "views", "topic": "v", "format": "avro", "registry": "http://r", **login})
    assert (table.framing, table.subject) == ("confluent", "v-value")
    assert json.loads(to_json(table))["registry_password"] == "env:WORD"
