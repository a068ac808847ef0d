"""Framed values of topics, decoded with the schemas of a registry: writers' by id, the reader's by subject."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import io
import json
import logging
import pickle
import ssl
import struct
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from pyspark.sql import SparkSession
from tests.ports import free_port
from tests.security.certificates import write_broker, write_ca
from tests.spark.test_options_secrets import explained
from tests.timeouts import until

import penstock.spark
from penstock import Producer
from penstock.client.errors import ConfigError, RegistryRequestFailed, RegistryUnreachable
from penstock.client.serializers import Json
from penstock.client.serializers.registry_client import (
    RegisteredSchema,
    RegistryClient,
    RegistrySchema,
    SchemaReference,
)
from penstock.registry import Registry
from penstock.spark.formats.decoder import Decoder, decode_batch, decoded_field, parse_spec, schema_id_of
from penstock.spark.formats.registry import client_of, registry_access
from penstock.spark.formats.spec import DecodeSpec, spec_of_options
from penstock.spark.options import REDACTION
from penstock.spark.source import PenstockDataSource
from penstock.testing import Broker

USER, PASSWORD = "reader", "pass-4711"
ID = {"name": "id", "type": "long"}
USER_FIELD = {"name": "user", "type": ["null", "string"], "default": None}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def record(*fields: Any, name: str = "View") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


OLD, NEW = record(ID), record(ID, USER_FIELD)


@pytest.fixture(scope="module")
def registry(broker: Broker) -> Iterator[Registry]:
    with Registry(broker.address) as instance:
        yield instance


@pytest.fixture(scope="module")
def guarded(broker: Broker) -> Iterator[Registry]:
    """A registry of its own that asks for a login."""
    with Registry(broker.address, topic="_guarded", group_id="guarded", user=USER, password=PASSWORD) as instance:
        yield instance


@pytest.fixture
def client(registry: Registry) -> RegistryClient:
    return RegistryClient(registry.url)


@pytest.fixture
def name() -> str:
    """A topic that need not exist: only its subject counts."""
    return f"t-{uuid.uuid4().hex[:12]}"


def register(client: RegistryClient, subject: str, schema: Any, **more: Any) -> RegisteredSchema:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    client.register(subject, RegistrySchema(text, **more))
    return client.version(subject, "latest")


def avro(schema: Any, value: Any) -> bytes:
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), value)
    return output.getvalue()


def prefix(schema_id: int) -> bytes:
    return struct.pack(">bI", 0, schema_id)


def spec_for(registry: Registry, topic: str, what: str = "avro", **parts: str) -> DecodeSpec:
    named = {"subscribe": topic, "penstock.decode": what, "penstock.decode.registry": registry.url}
    found = spec_of_options(named | {f"penstock.decode.{part}": value for part, value in parts.items()})
    assert found is not None
    return found


def rows(spec: DecodeSpec, *data: bytes | None) -> list[Any]:
    found = Decoder(spec).decode(pa.array(data, pa.binary()))
    assert found.failures == []
    records: list[Any] = found.array.to_pylist()
    return records


def reasons(spec: DecodeSpec, *data: bytes) -> list[str]:
    found = Decoder(spec).decode(pa.array(data, pa.binary()))
    assert len(found.failures) == found.array.null_count
    return [reason for _, reason in found.failures]


class Requests:
    """The requests that a client sends."""

    def __init__(self, client: RegistryClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        send = client.request

        def request(method: str, path: str, body: Any = None) -> Any:
            self.paths.append(path)
            return send(method, path, body)

        monkeypatch.setattr(client, "request", request)


# ------------------------------------------------------------------------------------------------- writers and readers


def test_old_and_new_values_are_read_with_the_latest_schema(
    registry: Registry, client: RegistryClient, name: str
) -> None:
    old = register(client, f"{name}-value", OLD)
    new = register(client, f"{name}-value", NEW)
    spec = spec_for(registry, name)
    assert spec.schema_id == new.id
    values = [prefix(old.id) + avro(OLD, {"id": 1}), None, prefix(new.id) + avro(NEW, {"id": 2, "user": "ann"})]
    assert rows(spec, *values) == [{"id": 1, "user": None}, None, {"id": 2, "user": "ann"}]


def test_a_given_schema_is_the_readers_and_new_fields_are_skipped(
    registry: Registry, client: RegistryClient, name: str
) -> None:
    new = register(client, f"{name}-value", NEW)
    spec = spec_for(registry, name, f"avro: {json.dumps(OLD)}")
    assert spec.schema_id == -1
    assert rows(spec, prefix(new.id) + avro(NEW, {"id": 2, "user": "ann"})) == [{"id": 2}]


def test_schemas_of_other_subjects_are_followed(registry: Registry, client: RegistryClient, name: str) -> None:
    inner = record({"name": "x", "type": "long"}, name="Inner")
    register(client, f"{name}-inner", inner)
    outer = record(ID, {"name": "inner", "type": "Inner"})
    found = register(client, f"{name}-value", outer, references=(SchemaReference("Inner", f"{name}-inner", 1),))
    whole = record(ID, {"name": "inner", "type": inner})
    value = prefix(found.id) + avro(whole, {"id": 1, "inner": {"x": 5}})
    assert rows(spec_for(registry, name), value) == [{"id": 1, "inner": {"x": 5}}]


def test_a_header_names_the_schema_by_its_guid(registry: Registry, client: RegistryClient, name: str) -> None:
    old = register(client, f"{name}-value", OLD)
    new = register(client, f"{name}-value", NEW)
    by_header = [
        {"key": "a", "value": b"b"},
        {"key": "__value_schema_id", "value": b"\x01" + uuid.UUID(old.guid).bytes},
    ]
    values = [avro(OLD, {"id": 1}), prefix(new.id) + avro(NEW, {"id": 2, "user": "u"}), prefix(new.id)[:3]]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array([by_header, None, by_header[:1]], HEADERS)], names=["value", "headers"]
    )
    spec = spec_for(registry, name, mode="permissive")
    assert decode_batch(batch, spec).column("decoded").to_pylist() == [
        {"id": 1, "user": None}, {"id": 2, "user": "u"}, None,
    ]  # fmt: skip
    unnamed = batch.slice(1, 1)
    assert decode_batch(unnamed, spec).column("decoded").to_pylist() == [{"id": 2, "user": "u"}]


def test_json_is_read_by_the_given_schema(registry: Registry, client: RegistryClient, name: str) -> None:
    known = register(client, f"{name}-value", '{"type": "object"}', kind="JSON")
    other = register(client, f"{name}-other", OLD)
    spec = spec_for(registry, name, "json: id BIGINT")
    assert rows(spec, prefix(known.id) + b'{"id": 5}') == [{"id": 5}]
    (plain, wrong, bad) = reasons(spec, b'{"id": 5}', prefix(other.id) + b'{"id": 5}', prefix(known.id) + b"{")
    assert "does not start with the id of a schema" in plain
    assert "is of type AVRO" in wrong
    assert "truncated" in bad


def test_json_is_read_by_the_registered_schema_and_those_it_refers_to(
    registry: Registry, client: RegistryClient, name: str
) -> None:
    user = {"type": "object", "properties": {"name": {"type": "string"}}}
    register(client, f"{name}-user", user, kind="JSON")
    first = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    old = register(client, f"{name}-value", first, kind="JSON")
    client.request("PUT", f"/config/{name}-value", {"compatibility": "NONE"})
    second = first | {
        "properties": {"id": {"type": "integer"}, "user": {"$ref": "user.json"}, "any": {"type": ["string", "integer"]}}
    }
    reference = SchemaReference("user.json", f"{name}-user", 1)
    new = register(client, f"{name}-value", second, kind="JSON", references=(reference,))
    spec = pickle.loads(pickle.dumps(spec_for(registry, name, "json")))
    assert spec.schema_id == new.id
    found = rows(
        spec, prefix(old.id) + b'{"id": 1}', None, prefix(new.id) + b'{"id": 2, "user": {"name": "ann"}, "any": [1]}'
    )
    assert found == [
        {"id": 1, "user": None, "any": None}, None, {"id": 2, "user": {"name": "ann"}, "any": "[1]"},
    ]  # fmt: skip
    assert "missing required field" in reasons(spec, prefix(new.id) + b"{}")[0]
    # A query goes on with the schema that it began with.
    again = spec_of_options(
        {"subscribe": name, "penstock.decode": "json", "penstock.decode.registry": registry.url}, old.id
    )
    assert again is not None
    assert rows(again, prefix(new.id) + b'{"id": 3, "any": 1}') == [{"id": 3}]


def test_a_json_schema_that_is_no_object_is_rejected_at_the_start(
    registry: Registry, client: RegistryClient, name: str
) -> None:
    register(client, f"{name}-value", '{"type": "string"}', kind="JSON")
    with pytest.raises(ConfigError, match=f"{name}-value is not an object with properties"):
        spec_for(registry, name, "json")


def test_what_the_client_writes_is_read_as_columns(registry: Registry, client: RegistryClient, name: str) -> None:
    @dataclasses.dataclass
    class View:
        id: int
        at: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
        tags: list[str]
        user: str | None = None

    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    value = Json(View, registry=client).encode(name, View(1, at, ["a"]))
    assert rows(spec_for(registry, name, "json"), value) == [{"id": 1, "at": at, "tags": ["a"], "user": None}]


def proto(name: str, package: str, imports: Sequence[str] = (), inner: str = "") -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    for message in ("First", "View"):
        made = file.message_type.add(name=message)
        made.field.add(name="id", number=1, type=3, label=1)
        if inner and message == "View":
            made.field.add(name="inner", number=2, type=11, type_name=inner, label=1)
    return file


def test_protobuf_is_read_by_the_registered_file_and_those_it_imports(
    registry: Registry, client: RegistryClient, name: str
) -> None:
    common, file = proto("common.proto", "common"), proto("views.proto", "shop", ["common.proto"], ".common.First")
    pool = descriptor_pool.DescriptorPool()
    for each in (common, file):
        pool.AddSerializedFile(each.SerializeToString())
    view = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.View"))(id=3)
    view.inner.id = 4
    register(client, "common.proto", base64.b64encode(common.SerializeToString()).decode(), kind="PROTOBUF")
    found = register(
        client, f"{name}-value", base64.b64encode(file.SerializeToString()).decode(), kind="PROTOBUF",
        references=(SchemaReference("common.proto", "common.proto", 1),),
    )  # fmt: skip
    value = prefix(found.id) + b"\x02\x02" + view.SerializeToString()
    assert rows(spec_for(registry, name, "protobuf", message="shop.View"), value) == [{"id": 3, "inner": {"id": 4}}]
    assert spec_for(registry, name, "protobuf").schema == "shop.First"
    with pytest.raises(ConfigError, match=r"unknown Protobuf message shop\.Vue"):
        spec_for(registry, name, "protobuf", message="shop.Vue")


def test_a_schema_of_another_type_is_rejected_at_the_start(
    registry: Registry, client: RegistryClient, name: str
) -> None:
    register(client, f"{name}-value", '{"type": "object"}', kind="JSON")
    with pytest.raises(ConfigError, match="is of type JSON, not AVRO"):
        spec_for(registry, name)


# ------------------------------------------------------------------------------------------------- what is not there


def test_a_subject_without_schema_is_rejected_at_the_start(registry: Registry, name: str) -> None:
    with pytest.raises(ConfigError, match=f"the registry has no schema for {name}-value: .*not found"):
        spec_for(registry, name)
    with pytest.raises(ConfigError, match="no subject is known"):
        spec_for(registry, f"{name},more")
    with pytest.raises(ConfigError, match="has no schema for elsewhere"):
        spec_for(registry, f"{name},more", subject="elsewhere")


def test_records_without_a_frame_or_with_an_unknown_id_do_not_match(
    registry: Registry, client: RegistryClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = register(client, f"{name}-value", OLD)
    spec = spec_for(registry, name)
    assert spec.registry is not None
    requests = Requests(client_of(spec.registry), monkeypatch)
    unknown = prefix(987_654) + b"\x02"
    plain, first, second = reasons(spec, b"\x02", unknown, unknown)
    assert "does not start with the id of a schema" in plain
    assert "its schema is unknown" in first
    assert "987654" in first
    assert second == first
    value = prefix(found.id) + avro(OLD, {"id": 1})
    assert len(rows(spec, value, value, value)) == 3
    assert len(rows(spec, value)) == 1
    # Each id is asked for once in a process, found or not.
    assert len([path for path in requests.paths if path.startswith("/schemas/ids/")]) == 2
    assert "1 bytes are left over" in reasons(spec, value + b"\x00")[0]


def test_a_registry_that_does_not_answer_is_no_fault_of_the_record(name: str) -> None:
    spec = parse_spec(f"avro: {json.dumps(OLD)}", registry=f"http://127.0.0.1:{free_port()}", mode="permissive")
    with pytest.raises(RegistryUnreachable):
        Decoder(spec).decode(pa.array([prefix(1) + b"\x02"], pa.binary()))
    # Without a frame there is nothing to ask.
    assert "does not start with" in reasons(spec, b"\x02")[0]


# ------------------------------------------------------------------------------------------------- logins


def test_logins_are_followed_where_they_are_used(
    guarded: Registry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = RegistryClient(guarded.url, user=USER, password=PASSWORD)
    found = register(owner, f"{name}-value", OLD)
    monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
    login = {"registry.user": USER, "registry.password": "env:REGISTRY_PASSWORD"}
    spec = spec_for(guarded, name, **login)
    pickled = pickle.dumps(spec)
    assert PASSWORD.encode() not in pickled
    assert PASSWORD not in repr(spec)
    assert "REGISTRY_PASSWORD" not in repr(spec)
    assert rows(pickle.loads(pickled), prefix(found.id) + avro(OLD, {"id": 1})) == [{"id": 1}]
    secret = tmp_path / "wrong"
    secret.write_text("another\n")
    wrong = spec_for(guarded, name, f"avro: {json.dumps(OLD)}", **login | {"registry.password": f"file:{secret}"})
    with pytest.raises(RegistryRequestFailed, match="rejected GET"):
        Decoder(wrong).decode(pa.array([prefix(found.id) + b"\x02"], pa.binary()))
    with pytest.raises(ConfigError, match="the environment variable NOT_SET is not set"):
        spec_for(guarded, name, **login | {"registry.password": "env:NOT_SET"})


def test_tokens_and_authorities_are_used(broker: Broker, name: str, tmp_path: Path) -> None:
    authority, certificate = write_ca(tmp_path), write_broker(tmp_path)
    secret = tmp_path / "token"
    secret.write_text(PASSWORD)
    with Registry(
        broker.address, topic="_tls", group_id="tls", token=PASSWORD, ssl_certfile=certificate, ssl_keyfile=certificate
    ) as registry:
        until(lambda: registry.is_leader, "the registry leads")
        owner = RegistryClient(registry.url, token=PASSWORD, ssl=ssl.create_default_context(cafile=authority))
        found = register(owner, f"{name}-value", OLD)
        given = {"registry.token": f"file:{secret}", "registry.ca": authority}
        spec = pickle.loads(pickle.dumps(spec_for(registry, name, **given)))
        # Executors may not have the file of the authority.
        Path(authority).unlink()
        assert rows(spec, prefix(found.id) + avro(OLD, {"id": 1})) == [{"id": 1}]
        for client in (owner, client_of(spec.registry)):
            client.close()


def test_plain_secrets_are_warned_of_and_contradictions_rejected(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        assert "word-3" not in repr(registry_access("http://r", token="word-3"))
    assert "option=penstock.decode.registry.token" in caplog.text
    assert "word-3" not in caplog.text
    for given, problem in (
        ({"url": "http://me:word@r"}, "the registry's address contains a login"),
        ({"url": "http://r", "user": "me"}, "user and .*password belong together"),
        ({"url": "http://r", "token": "env:T", "user": "me", "password": "env:P"}, "contradict each other"),
        ({"url": "https://r", "ca": str(tmp_path / "none.pem")}, "cannot use penstock.decode.registry.ca"),
        ({"url": "https://r", "ca": str(Path(__file__))}, "cannot use penstock.decode.registry.ca"),
    ):
        with pytest.raises(ConfigError, match=problem):
            registry_access(**given)


# ------------------------------------------------------------------------------------------------- queries


def test_a_query_keeps_the_schema_it_began_with(registry: Registry, client: RegistryClient, name: str) -> None:
    old = register(client, f"{name}-value", OLD)
    given = {"kafka.bootstrap.servers": "localhost:1", "subscribe": name, "penstock.decode": "avro"}
    source = PenstockDataSource(given | {"penstock.decode.registry": registry.url})
    began = source.schema()
    new = register(client, f"{name}-value", NEW)
    assert (schema_id_of(began), schema_id_of(source.schema())) == (old.id, new.id)
    source.reader(began)
    source.streamReader(began)
    spec = spec_of_options(source.options, schema_id_of(began))
    assert spec is not None
    assert decoded_field(spec) == began.fields[-1]


@pytest.mark.long
@pytest.mark.parametrize("streaming", [False, True])
def test_queries_decode_framed_values(
    spark: SparkSession, broker: Broker, topic: str, guarded: Registry, tmp_path: Path, streaming: bool
) -> None:
    spark.dataSource.register(PenstockDataSource)
    owner = RegistryClient(guarded.url, user=USER, password=PASSWORD)
    old = register(owner, f"{topic}-value", OLD)
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    named = {
        "kafka.bootstrap.servers": broker.address, "subscribe": topic, "penstock.decode": "avro",
        "penstock.decode.registry": guarded.url, "penstock.decode.registry.user": USER,
        "penstock.decode.registry.password": f"file:{secret}", "startingOffsets": "earliest",
    }  # fmt: skip
    reader = spark.readStream if streaming else spark.read
    df = reader.format("penstock").options(**named).load()
    # A later version is for the next start.
    new = register(owner, f"{topic}-value", NEW)
    with Producer(broker.address) as producer:
        producer.send(topic, prefix(old.id) + avro(OLD, {"id": 1}), partition=0)
        producer.send(topic, prefix(new.id) + avro(NEW, {"id": 2, "user": "ann"}), partition=0)
    if streaming:
        query = df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
        assert query.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination(90)
        df = spark.read.parquet(str(tmp_path / "out"))
        for file in (tmp_path / "c").rglob("*"):
            assert file.is_dir() or PASSWORD.encode() not in file.read_bytes()
    assert [row.decoded.asDict() for row in df.orderBy("offset").collect()] == [{"id": 1}, {"id": 2}]
    later = spark.read.format("penstock").options(**named).load().orderBy("offset").select("decoded.*")
    assert [tuple(row) for row in later.collect()] == [(1, None), (2, "ann")]


@pytest.mark.long
def test_queries_have_the_columns_of_a_json_schema(
    spark: SparkSession, broker: Broker, topic: str, registry: Registry, client: RegistryClient
) -> None:
    spark.dataSource.register(PenstockDataSource)
    user = {"type": "object", "properties": {"name": {"type": "string"}, "any": {}}}
    properties = {
        "id": {"type": "integer"}, "user": user, "tags": {"type": "array", "items": {"type": ["string", "integer"]}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "at": {"type": "string", "format": "date-time"},
    }  # fmt: skip
    document = {"type": "object", "properties": properties, "required": ["id"]}
    found = register(client, f"{topic}-value", document, kind="JSON")
    value = (
        b'{"id": 1, "user": {"name": "ann", "any": {"x": [1]}}, "tags": ["a", 2], "counts": {"k": 3}, '
        b'"at": "2026-01-02T00:00:00Z"}'
    )
    with Producer(broker.address) as producer:
        producer.send(topic, prefix(found.id) + value, partition=0)
        producer.send(topic, prefix(found.id) + b'{"id": 2}', partition=0)
    named = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
    optioned = spark.read.format("penstock").options(
        **named, **{"penstock.decode": "json", "penstock.decode.registry": registry.url}
    )
    plain = spark.read.format("penstock").options(**named).load()
    for df in (optioned.load(), penstock.spark.decode(plain, "json", registry=registry.url, subject=f"{topic}-value")):
        cut = df.orderBy("offset").selectExpr(
            "decoded.id", "decoded.user.name", "get_json_object(decoded.user.any, '$.x[0]')", "decoded.tags[1]",
            "decoded.counts['k']", "unix_seconds(decoded.at)",
        )  # fmt: skip
        assert [tuple(row) for row in cut.collect()] == [(1, "ann", "1", "2", 3, 1767312000), (2, *[None] * 5)]


@pytest.mark.long
def test_the_function_reads_headers_and_plans_hide_plain_secrets(
    spark: SparkSession, broker: Broker, topic: str, guarded: Registry
) -> None:
    spark.dataSource.register(PenstockDataSource)
    owner = RegistryClient(guarded.url, user=USER, password=PASSWORD)
    found = register(owner, f"{topic}-value", NEW)
    header = {"__value_schema_id": b"\x01" + uuid.UUID(found.guid).bytes}
    with Producer(broker.address) as producer:
        producer.send(topic, avro(NEW, {"id": 1, "user": "ann"}), partition=0, headers=header)
        producer.send(topic, prefix(found.id) + avro(NEW, {"id": 2, "user": None}), partition=0)
        producer.send(topic, b"plain", partition=0)
    named = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "includeHeaders": "true"}
    df = penstock.spark.decode(
        spark.read.format("penstock").options(**named).load(), "avro", registry=guarded.url, registry_user=USER,
        registry_password=PASSWORD, subject=f"{topic}-value", mode="permissive",
    )  # fmt: skip
    kept = [None if row.decoded is None else tuple(row.decoded) for row in df.orderBy("offset").collect()]
    assert kept == [(1, "ann"), (2, None), None]
    login = {"penstock.decode.registry.user": USER, "penstock.decode.registry.password": PASSWORD}
    decode = {"penstock.decode": "avro", "penstock.decode.registry": guarded.url}
    spark.conf.set("spark.sql.redaction.options.regex", REDACTION)
    try:
        optioned = spark.readStream.format("penstock").options(**named, **decode, **login).load()
        plans = explained(optioned) + explained(df)
    finally:
        spark.conf.unset("spark.sql.redaction.options.regex")
    assert "penstock.decode.registry.password=*********(redacted)" in plans
    assert PASSWORD not in plans
