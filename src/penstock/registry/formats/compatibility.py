"""Parsing by type, and compatibility by level. Pure.

`BACKWARD` means that the new schema reads what earlier ones wrote, `FORWARD` that earlier ones read what the new one
writes, `FULL` both. The transitive levels look at all earlier versions, the others at the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.registry.formats.avro import AvroSchema
from penstock.registry.formats.avro_resolution import avro_incompatibilities
from penstock.registry.formats.json_schema import JsonSchema
from penstock.registry.formats.json_schema_inclusion import json_schema_incompatibilities
from penstock.registry.formats.protobuf import ProtobufSchema
from penstock.registry.formats.protobuf_evolution import protobuf_incompatibilities
from penstock.registry.formats.schema import (
    COMPATIBILITIES,
    SCHEMA_TYPES,
    Compatibility,
    Incompatibility,
    InvalidSchema,
    ParsedSchema,
    ReferencedSchema,
    SchemaType,
    shortened,
)


def parse_schema(schema_type: SchemaType, text: str, references: Sequence[ReferencedSchema] = ()) -> ParsedSchema:
    """Parse a schema with the schemas that it refers to, dependencies first.

    :raises InvalidSchema: with what is wrong and where
    """
    if schema_type == "AVRO":
        return AvroSchema(text, references)
    if schema_type == "JSON":
        return JsonSchema(text, references)
    if schema_type == "PROTOBUF":
        return ProtobufSchema(text, references)
    raise InvalidSchema(f"Schema type {shortened(schema_type)} is not known; use one of {', '.join(SCHEMA_TYPES)}.")


def format_schema(schema: ParsedSchema, form: str) -> str:
    """The schema as the parameter `format` of the REST API asks for it; an unknown form is the canonical one.

    Avro has `resolved`, with the types of references in it, Protobuf `serialized`, a descriptor in base64.
    """
    if form == "resolved" and isinstance(schema, AvroSchema):
        return schema.resolved
    if form == "serialized" and isinstance(schema, ProtobufSchema):
        return schema.serialized
    return schema.canonical


def reader_incompatibilities(reader: ParsedSchema, writer: ParsedSchema) -> list[Incompatibility]:
    """Why the reader cannot read all that the writer writes; empty if it can.

    :raises InvalidSchema: if the schemas are too entangled to be compared
    """
    if isinstance(reader, AvroSchema) and isinstance(writer, AvroSchema):
        return avro_incompatibilities(reader, writer)
    if isinstance(reader, JsonSchema) and isinstance(writer, JsonSchema):
        return json_schema_incompatibilities(reader, writer)
    if isinstance(reader, ProtobufSchema) and isinstance(writer, ProtobufSchema):
        return protobuf_incompatibilities(reader, writer)
    message = f"The reader's schema is of type {reader.schema_type}, and the writer's of type {writer.schema_type}."
    return [Incompatibility("SCHEMA_TYPE_MISMATCH", "", message)]


def check_compatibility(
    new: ParsedSchema, earlier: Sequence[ParsedSchema], level: Compatibility
) -> list[Incompatibility]:
    """The differences that keep `new` from following `earlier`, which has the oldest version first.

    The versions are checked from the last to the first; the differences of the first version that has some are the
    answer.

    :raises InvalidSchema: if schemas are too entangled to be compared
    """
    if level not in COMPATIBILITIES:
        raise ValueError(f"compatibility level {level!r} is not known; use one of {', '.join(COMPATIBILITIES)}")
    if level == "NONE":
        return []
    direction = level.removesuffix("_TRANSITIVE")
    compared = list(earlier) if level.endswith("_TRANSITIVE") else list(earlier[-1:])
    for each in reversed(compared):
        found: list[Incompatibility] = []
        if direction in ("BACKWARD", "FULL"):
            found += reader_incompatibilities(new, each)
        if direction in ("FORWARD", "FULL"):
            found += reader_incompatibilities(each, new)
        if found:
            return found
    return []
