"""Serializers with a registry; confluent-kafka's serializers and registry client are the judges."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.schema_registry.schema_registry_client import ServerConfig
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.timeouts import PATIENCE_MS, PATIENCE_S

from penstock import Avro, Consumer, Json, Producer, Protobuf, RegistryClient, RegistrySchema
from penstock.client.errors import ConfigError, DeserializationError, SerializationError
from penstock.registry import Registry
from penstock.testing.embedded_broker import EmbeddedBroker

# Without stubs for type checkers.
descriptor_pb2: Any = importlib.import_module("google.protobuf.descriptor_pb2")
descriptor_pool: Any = importlib.import_module("google.protobuf.descriptor_pool")
message_factory: Any = importlib.import_module("google.protobuf.message_factory")


@dataclass
class View:
    page: str
    seconds: int = 0


@dataclass
class NewerView:
    page: str
    seconds: int = 0
    site: str = "here"


NewerView.__name__ = "View"  # a later version of the same record
VIEW = View("/index", 7)
AVRO = json.dumps(
    {
        "type": "record",
        "name": "View",
        "fields": [{"name": "page", "type": "string"}, {"name": "seconds", "type": "long", "default": 0}],
    }
)
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "View",
        "type": "object",
        "properties": {"page": {"type": "string"}, "seconds": {"type": "integer"}},
        "required": ["page", "seconds"],
    }
)
HEADERS = {"schema.id.serializer": header_schema_id_serializer}


@pytest.fixture
def theirs(registry: Registry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


def value_of(topic: str, headers: Any = None) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE, [] if headers is None else headers)


def proto_classes() -> tuple[type[Any], type[Any], type[Any]]:
    """(Page, View, View.Click) of two files, one of which imports the other."""
    pool = descriptor_pool.DescriptorPool()
    page = descriptor_pb2.FileDescriptorProto(name="web/page.proto", package="web", syntax="proto3")
    message = page.message_type.add(name="Page")
    message.field.add(name="url", number=1, type=9, label=1, json_name="url")
    view = descriptor_pb2.FileDescriptorProto(
        name="web/view.proto", package="web", syntax="proto3", dependency=["web/page.proto"]
    )
    view.message_type.add(name="Unused").field.add(name="a", number=1, type=5, label=1, json_name="a")
    outer = view.message_type.add(name="View")
    outer.field.add(name="page", number=1, type=11, type_name=".web.Page", label=1, json_name="page")
    outer.nested_type.add(name="Other").field.add(name="a", number=1, type=5, label=1, json_name="a")
    outer.nested_type.add(name="Click").field.add(name="x", number=1, type=5, label=1, json_name="x")
    pool.Add(page)
    pool.Add(view)
    found = [pool.FindMessageTypeByName(name) for name in ("web.Page", "web.View", "web.View.Click")]
    first, second, third = (message_factory.GetMessageClass(each) for each in found)
    return first, second, third


PAGE, PROTO_VIEW, CLICK = proto_classes()


def proto_view() -> Any:
    return PROTO_VIEW(page=PAGE(url="/index"))


# --- what one writes, the other reads


def test_avro_of_ours_is_read_by_theirs(registry: Registry, theirs: SchemaRegistryClient, topic: str) -> None:
    data = Avro(View, registry=registry.url).encode(topic, VIEW)
    assert data is not None
    assert data[:1] == b"\0"
    assert AvroDeserializer(theirs)(data, value_of(topic)) == {"page": "/index", "seconds": 7}
    assert theirs.get_latest_version(f"{topic}-value").schema_id == int.from_bytes(data[1:5], "big")


def test_avro_of_theirs_is_read_by_ours(registry: Registry, theirs: SchemaRegistryClient, topic: str) -> None:
    data = AvroSerializer(theirs, AVRO)({"page": "/index", "seconds": 7}, value_of(topic))
    assert Avro(View, registry=registry.url).decode(topic, data) == VIEW
    assert Avro(registry=registry.url).decode(topic, data) == {"page": "/index", "seconds": 7}


def test_json_both_ways(registry: Registry, theirs: SchemaRegistryClient, topic: str) -> None:
    ours = Json(View, registry=registry.url)
    data = ours.encode(topic, VIEW)
    assert data is not None
    assert JSONDeserializer(None, schema_registry_client=theirs)(data, value_of(topic)) == {
        "page": "/index", "seconds": 7,
    }  # fmt: skip
    data = JSONSerializer(JSON, theirs)({"page": "/other", "seconds": 1}, value_of(f"{topic}-2"))
    assert ours.decode(f"{topic}-2", data) == View("/other", 1)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_protobuf_both_ways(registry: Registry, theirs: SchemaRegistryClient, topic: str, index: int) -> None:
    kind = (PAGE, PROTO_VIEW, CLICK)[index]
    value = (PAGE(url="/index"), proto_view(), CLICK(x=5))[index]
    ours = Protobuf(kind, registry=registry.url)
    data = ours.encode(topic, value)
    read = ProtobufDeserializer(kind, {"use.deprecated.format": False}, theirs)(data, value_of(topic))
    assert read == value
    other = ProtobufSerializer(kind, theirs, {"use.deprecated.format": False})(value, value_of(topic))
    assert other == data
    assert ours.decode(topic, other) == value


def test_their_protobuf_deserializer_reads_schemas_that_were_registered_as_text(
    registry: Registry, theirs: SchemaRegistryClient, topic: str
) -> None:
    text = 'syntax = "proto3"; package web; message Page { string url = 1; }'
    registered = RegistryClient(registry.url).register(f"{topic}-value", RegistrySchema(text, "PROTOBUF"))
    data = b"\0" + registered.id.to_bytes(4, "big") + b"\0" + PAGE(url="/a").SerializeToString()
    read = ProtobufDeserializer(PAGE, {"use.deprecated.format": False}, theirs)(data, value_of(topic))
    assert read == PAGE(url="/a")


def test_headers_of_theirs_are_read_by_ours(
    registry: Registry, registry_broker: EmbeddedBroker, theirs: SchemaRegistryClient, topic: str
) -> None:
    written = [
        (AvroSerializer(theirs, AVRO, conf=HEADERS), {"page": "/a", "seconds": 1}, Avro(View, registry=registry.url)),
        (JSONSerializer(JSON, theirs, conf=HEADERS), {"page": "/a", "seconds": 1}, Json(View, registry=registry.url)),
        (
            ProtobufSerializer(PROTO_VIEW, theirs, {"use.deprecated.format": False, **HEADERS}),
            proto_view(),
            Protobuf(PROTO_VIEW, registry=registry.url),
        ),
    ]
    for number, (serializer, value, ours) in enumerate(written):
        name = f"{topic}-{number}"
        headers: list[tuple[str, bytes]] = []
        data = serializer(value, value_of(name, headers))
        assert [key for key, _ in headers] == ["__value_schema_id"]
        with Producer(registry_broker.address) as producer:
            producer.send(name, data, headers=headers).result(PATIENCE_S)
        (record,) = read(registry_broker, name, 1, value=ours)
        assert record.value == (proto_view() if number == 2 else View("/a", 1))


def test_headers_of_ours_are_read_by_theirs(
    registry: Registry, registry_broker: EmbeddedBroker, theirs: SchemaRegistryClient, topic: str
) -> None:
    stories: list[tuple[Any, Any, Any]] = [
        (Avro(View, registry=registry.url, framing="header"), VIEW, AvroDeserializer(theirs)),
        (
            Json(View, registry=registry.url, framing="header"),
            VIEW,
            JSONDeserializer(None, schema_registry_client=theirs),
        ),
        (
            Protobuf(CLICK, registry=registry.url, framing="header"),
            CLICK(x=5),
            ProtobufDeserializer(CLICK, {"use.deprecated.format": False}, theirs),
        ),
    ]
    for number, (serializer, value, deserializer) in enumerate(stories):
        name = f"{topic}-{number}"
        with Producer(registry_broker.address, value=serializer) as producer:
            producer.send(name, value, headers={"mine": b"kept"}).result(PATIENCE_S)
        (record,) = read(registry_broker, name, 1)
        assert [key for key, _ in record.headers] == ["mine", "__value_schema_id"]
        found = deserializer(record.value, value_of(name, list(record.headers)))
        assert found == (CLICK(x=5) if number == 2 else {"page": "/index", "seconds": 7})


def read(broker: EmbeddedBroker, topic: str, count: int, **options: Any) -> list[Any]:
    settings = {"auto_offset_reset": "earliest", "consumer_timeout_ms": PATIENCE_MS, **options}
    with Consumer(topic, bootstrap_servers=broker.address, **settings) as consumer:
        return list(islice(consumer, count))


# --- producers and consumers


@pytest.mark.parametrize("framing", ["prefix", "header"])
def test_keys_and_values_through_a_broker(
    registry: Registry, registry_broker: EmbeddedBroker, topic: str, framing: Any
) -> None:
    key, value = Json(str, registry=registry.url, framing=framing), Avro(View, registry=registry.url, framing=framing)
    with Producer(registry_broker.address, key=key, value=value) as producer:
        producer.send(topic, VIEW, key="k").result(PATIENCE_S)
        producer.send(topic, None, key="k").result(PATIENCE_S)
        producer.send_many(topic, [View("/bulk"), VIEW], keys=[None, "b"]).result(PATIENCE_S)
    subjects = RegistryClient(registry.url).request("GET", f"/subjects?subjectPrefix={topic}-")
    assert subjects == [f"{topic}-key", f"{topic}-value"]
    found = read(
        registry_broker, topic, 4, key=Json(str, registry=registry.url), value=Avro(View, registry=registry.url)
    )
    assert [(each.key, each.value) for each in found] == [
        ("k", VIEW), ("k", None), (None, View("/bulk")), ("b", VIEW),
    ]  # fmt: skip


def test_a_reader_reads_older_and_newer_records_in_its_own_schema(registry: Registry, topic: str) -> None:
    old, new = Avro(View, registry=registry.url), Avro(NewerView, registry=registry.url)
    written = [old.encode(topic, VIEW), new.encode(topic, NewerView("/new", 1, "there"))]
    assert [old.decode(topic, data) for data in written if data] == [VIEW, View("/new", 1)]
    assert [new.decode(topic, data) for data in written if data] == [
        NewerView("/index", 7, "here"), NewerView("/new", 1, "there"),
    ]  # fmt: skip


def test_a_record_that_cannot_be_decoded_is_an_error_with_its_place(
    registry: Registry, registry_broker: EmbeddedBroker, topic: str
) -> None:
    good = Avro(View, registry=registry.url).encode(topic, VIEW)
    with Producer(registry_broker.address) as producer:
        for data in (good, b"\0\0\x7f\xff\xff\x01", b"plain", b"", good):
            producer.send(topic, data).result(PATIENCE_S)
    with Consumer(
        topic, bootstrap_servers=registry_broker.address, auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_MS, value=Avro(View, registry=registry.url), on_decode_error="skip",
    ) as consumer:  # fmt: skip
        assert [record.offset for record in islice(consumer, 2)] == [0, 4]
    with pytest.raises(DeserializationError, match=f"value of {topic}-0 at offset 1 cannot be decoded.*40403|Schema"):
        read(registry_broker, topic, 2, value=Avro(View, registry=registry.url))


# --- which schema, which subject


def test_without_auto_register_the_schema_has_to_be_there(registry: Registry, topic: str) -> None:
    strict = Avro(View, registry=registry.url, auto_register=False)
    with pytest.raises(SerializationError, match=f"Subject '{topic}-value' not found"):
        strict.encode(topic, VIEW)
    Avro(View, registry=registry.url).prepare(topic)
    assert strict.encode(topic, VIEW) is not None


def test_the_latest_schema_is_used_to_write(registry: Registry, topic: str) -> None:
    Avro(NewerView, registry=registry.url).prepare(topic)
    latest = Avro(registry=registry.url, use_latest=True)
    data = latest.encode(topic, {"page": "/a"})
    assert data is not None
    assert Avro(NewerView, registry=registry.url).decode(topic, data) == NewerView("/a")


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "{topic}-value"),
        ("record", "View"),
        ("topic_record", "{topic}-View"),
        (lambda topic, field, record: f"{topic}/{field}/{record}", "{topic}/value/View"),
    ],
)
def test_subjects(registry: Registry, topic: str, strategy: Any, subject: str) -> None:
    data = Avro(View, registry=registry.url, subject=strategy).encode(topic, VIEW)
    assert data is not None
    found = RegistryClient(registry.url).version(subject.format(topic=topic), "latest")
    assert found.id == int.from_bytes(data[1:5], "big")
    assert Avro(View, registry=registry.url, subject=strategy).decode(topic, data) == VIEW


def test_an_incompatible_schema_is_not_written(registry: Registry, topic: str) -> None:
    Json(schema={"type": "object"}, registry=registry.url).prepare(topic)
    narrower = Json(schema={"type": "object", "required": ["page"]}, registry=registry.url)
    with pytest.raises(SerializationError, match="incompatible"):
        narrower.encode(topic, {"page": "/a"})


def test_options_need_a_registry() -> None:
    nonsense: Any = "nonsense"
    for make in (
        lambda: Avro(View, subject="record"),
        lambda: Json(View, use_latest=True),
        lambda: Protobuf(PAGE, auto_register=False),
        lambda: Avro(View, framing="header"),
        lambda: Avro(View, registry="http://localhost:1", framing=nonsense),
        lambda: Avro(View, registry="http://localhost:1", subject=nonsense),
        lambda: Avro(View, registry="http://localhost:1", schema_id=1),
    ):
        with pytest.raises(ConfigError):
            make()


def test_framing_by_headers_needs_a_producer(registry: Registry, topic: str) -> None:
    with pytest.raises(SerializationError, match="header"):
        Avro(View, registry=registry.url, framing="header").encode(topic, VIEW)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\0", b"\1" + b"x" * 15, b"\2" * 20])
def test_bytes_that_are_no_frame(registry: Registry, topic: str, data: bytes) -> None:
    for serializer in (Avro(registry=registry.url), Json(registry=registry.url), Protobuf(PAGE, registry=registry.url)):
        with pytest.raises(DeserializationError, match="id of a schema"):
            serializer.decode(topic, data)


def test_hostile_message_indexes(registry: Registry, topic: str) -> None:
    serializer = Protobuf(PAGE, registry=registry.url)
    good = serializer.encode(topic, PAGE(url="a"))
    assert good is not None
    for indexes in (b"\xff" * 9, b"\xfe\xff\xff\xff\x0f", b"\x01", b""):
        with pytest.raises(DeserializationError):
            serializer.decode(topic, good[:5] + indexes)


# --- their client as judge of the registry


def test_their_client_registers_evolves_and_reads(theirs: SchemaRegistryClient, topic: str) -> None:
    subject = f"{topic}-value"
    first = theirs.register_schema(subject, Schema(AVRO, "AVRO"))
    assert theirs.get_schema(first).schema_str == json.dumps(json.loads(AVRO), separators=(",", ":"))
    assert theirs.lookup_schema(subject, Schema(AVRO, "AVRO")).version == 1
    evolved = json.loads(AVRO)
    evolved["fields"].append({"name": "site", "type": "string", "default": ""})
    assert theirs.test_compatibility(subject, Schema(json.dumps(evolved), "AVRO"))
    second = theirs.register_schema_full_response(subject, Schema(json.dumps(evolved), "AVRO"))
    assert second.guid is not None
    assert theirs.get_schema_by_guid(second.guid).schema_str == json.dumps(evolved, separators=(",", ":"))
    assert theirs.get_versions(subject) == [1, 2]
    assert subject in theirs.get_subjects(subject_prefix=topic)
    assert subject in theirs.get_subjects_by_schema_id(first)
    assert (subject, 1) in [(each.subject, each.version) for each in theirs.get_schema_versions(first)]
    broken = {**evolved, "fields": [*evolved["fields"], {"name": "x", "type": "int"}]}
    assert not theirs.test_compatibility(subject, Schema(json.dumps(broken), "AVRO"))
    with pytest.raises(SchemaRegistryError) as failed:
        theirs.register_schema(subject, Schema(json.dumps(broken), "AVRO"))
    assert (failed.value.http_status_code, failed.value.error_code) == (409, 409)
    assert theirs.delete_version(subject, 1) == 1
    assert theirs.delete_subject(subject) == [2]
    assert theirs.delete_subject(subject, permanent=True) == [1, 2]
    with pytest.raises(SchemaRegistryError) as missing:
        theirs.get_latest_version(subject)
    assert missing.value.error_code == 40401


def test_their_client_sets_levels_and_modes(theirs: SchemaRegistryClient, topic: str) -> None:
    theirs.set_compatibility(topic, "FULL_TRANSITIVE")
    assert theirs.get_compatibility(topic) == "FULL_TRANSITIVE"
    theirs.set_config(topic, ServerConfig(compatibility_group="major"))
    config = theirs.get_config(topic)
    assert (config.compatibility_group, str(config.compatibility_level)) == ("major", "FULL_TRANSITIVE")
    theirs.delete_config(topic)
    assert theirs.update_mode(topic, "READONLY") == "READONLY"
    assert theirs.get_mode(topic) == "READONLY"
    with pytest.raises(SchemaRegistryError) as failed:
        theirs.register_schema(topic, Schema(AVRO, "AVRO"))
    assert failed.value.error_code == 42205
    assert theirs.delete_mode(topic) == "READONLY"
    assert theirs.get_global_mode() == "READWRITE"
    assert theirs.get_contexts()[0] == "."


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_references_by_their_client_are_used_by_both(
    registry: Registry, theirs: SchemaRegistryClient, topic: str, kind: str
) -> None:
    base, main, name = REFERRING[kind]
    theirs.register_schema(f"{topic}-base", Schema(base, kind))
    schema = Schema(main, kind, [SchemaReference(name, f"{topic}-base", 1)])
    found = theirs.register_schema(f"{topic}-value", schema)
    assert theirs.get_referenced_by(f"{topic}-base", 1) == [found]
    assert RegistryClient(registry.url).by_id(found).schema.references[0].name == name
    if kind == "AVRO":
        data = AvroSerializer(theirs, schema)({"page": {"url": "/a"}}, value_of(topic))
        assert Avro(registry=registry.url).decode(topic, data) == {"page": {"url": "/a"}}
        latest = Avro(registry=registry.url, use_latest=True).encode(topic, {"page": {"url": "/a"}})
        assert latest == data
        assert AvroDeserializer(theirs)(latest, value_of(topic)) == {"page": {"url": "/a"}}


REFERRING: Mapping[str, tuple[str, str, str]] = {
    "AVRO": (
        json.dumps({"type": "record", "name": "Page", "fields": [{"name": "url", "type": "string"}]}),
        json.dumps({"type": "record", "name": "View", "fields": [{"name": "page", "type": "Page"}]}),
        "Page",
    ),
    "JSON": (
        json.dumps({"type": "object", "properties": {"url": {"type": "string"}}}),
        json.dumps({"type": "object", "properties": {"page": {"$ref": "page.json"}}}),
        "page.json",
    ),
    "PROTOBUF": (
        'syntax = "proto3"; package web; message Page { string url = 1; }',
        'syntax = "proto3"; package web; import "web/page.proto"; message View { Page page = 1; }',
        "web/page.proto",
    ),
}
