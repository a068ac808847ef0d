"""Schema formats: Avro, JSON Schema and Protobuf, without any of their libraries. Pure.

    from penstock.registry.formats import check_compatibility, parse_schema

    earlier = parse_schema("AVRO", '{"type": "record", "name": "View", "fields": []}')
    new = parse_schema("AVRO", '{"type": "record", "name": "View", "fields": [{"name": "page", "type": "string"}]}')
    check_compatibility(new, [earlier], "BACKWARD")   # one difference: 'page' has no default

Parsing checks sizes before it walks through anything, so that a stranger's schema costs little whatever it says; a
schema of the largest size takes about a second, though, which is too long for an event loop: use a thread.
"""

from penstock.registry.formats.compatibility import (
    check_compatibility,
    format_schema,
    parse_schema,
    reader_incompatibilities,
)
from penstock.registry.formats.schema import (
    COMPATIBILITIES,
    SCHEMA_TYPES,
    Compatibility,
    Incompatibility,
    InvalidSchema,
    ParsedSchema,
    Reference,
    ReferencedSchema,
    SchemaType,
)

__all__ = [
    "COMPATIBILITIES",
    "SCHEMA_TYPES",
    "Compatibility",
    "Incompatibility",
    "InvalidSchema",
    "ParsedSchema",
    "Reference",
    "ReferencedSchema",
    "SchemaType",
    "check_compatibility",
    "format_schema",
    "parse_schema",
    "reader_incompatibilities",
]
