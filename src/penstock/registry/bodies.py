"""Bodies of requests and responses of the REST API, checked by type. Unknown fields are rejected, as Confluent does."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from penstock.registry.changes import SchemaRequest
from penstock.registry.errors import RegistryError, invalid_schema
from penstock.registry.formats import Reference
from penstock.registry.records import AVRO, Document, StoredSchema

T = TypeVar("T")


class _Body(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Names are in camel case; what is null or missing is left out of documents."""

    def document(self) -> Document:
        return dict(msgspec.to_builtins(self))


class MetadataBody(_Body):
    tags: dict[str, list[str]] | None = None
    properties: dict[str, str] | None = None
    sensitive: list[str] | None = None


class RuleSetBody(_Body):
    migration_rules: list[dict[str, Any]] | None = None
    domain_rules: list[dict[str, Any]] | None = None
    encoding_rules: list[dict[str, Any]] | None = None
    enable_at: str | None = None


class ReferenceBody(_Body):
    name: str
    subject: str
    version: int = -1


class SchemaBody(_Body):
    """A schema to register, look up or compare. The last fields are in what the registry returns; they mean nothing."""

    schema: str | None = None
    schema_type: str | None = None
    references: list[ReferenceBody] | None = None
    metadata: MetadataBody | None = None
    rule_set: RuleSetBody | None = None
    id: int | None = None
    version: int | None = None
    schema_tags_to_add: list[Any] | None = None
    schema_tags_to_remove: list[Any] | None = None
    schema_tags: list[Any] | None = None
    propagate_schema_tags: bool | None = None
    subject: str | None = None
    guid: str | None = None
    deleted: bool | None = None
    ts: int | None = None

    def request(self) -> SchemaRequest:
        if not self.schema:
            raise invalid_schema("Empty schema")
        return SchemaRequest(
            schema=self.schema,
            schema_type=(self.schema_type or AVRO).upper(),
            references=tuple(Reference(each.name, each.subject, each.version) for each in self.references or ()),
            metadata=None if self.metadata is None else self.metadata.document(),
            rule_set=None if self.rule_set is None else self.rule_set.document(),
            id=None if self.id is None or self.id < 0 else self.id,
            version=None if self.version is None or self.version < 1 else self.version,
        )


class ConfigBody(_Body):
    """Settings to change; null resets one, what is not given stays."""

    compatibility: str | msgspec.UnsetType | None = msgspec.UNSET
    compatibility_level: str | msgspec.UnsetType | None = msgspec.UNSET
    compatibility_group: str | msgspec.UnsetType | None = msgspec.UNSET
    compatibility_policy: str | msgspec.UnsetType | None = msgspec.UNSET
    alias: str | msgspec.UnsetType | None = msgspec.UNSET
    normalize: bool | msgspec.UnsetType | None = msgspec.UNSET
    validate_fields: bool | msgspec.UnsetType | None = msgspec.UNSET
    validate_rules: bool | msgspec.UnsetType | None = msgspec.UNSET
    default_metadata: MetadataBody | msgspec.UnsetType | None = msgspec.UNSET
    override_metadata: MetadataBody | msgspec.UnsetType | None = msgspec.UNSET
    default_rule_set: RuleSetBody | msgspec.UnsetType | None = msgspec.UNSET
    override_rule_set: RuleSetBody | msgspec.UnsetType | None = msgspec.UNSET


class ModeBody(_Body):
    mode: str | None = None


def decoded(data: bytes, kind: type[T]) -> T:
    """The body of a request. RegistryError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise RegistryError(422, f"The body of the request is not valid: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RegistryError(400, f"The body of the request is not JSON: {error}") from error


def schema_document(stored: StoredSchema, text: str | None = None) -> Document:
    """A version as responses show it."""
    content = stored.content
    if text is not None:
        content["schema"] = text
    found: Document = {"subject": stored.subject, "version": stored.version, "id": stored.id, "guid": stored.guid}
    return found | content | ({"deleted": True} if stored.deleted else {})
