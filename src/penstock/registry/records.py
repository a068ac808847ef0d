"""Records of `_schemas`, in the JSON format of Confluent's registry: each can read the topic of the other.

    key                                                               value
    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}          the schema; null removes it for ever
    {"keytype":"CONFIG","subject":"s","magic":0}                      compatibility and more; subject null is global
    {"keytype":"MODE","subject":"s","magic":0}                        READWRITE, READONLY, IMPORT ...
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}              versions up to this one are deleted (soft)
    {"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}               a subject that starts anew
    {"keytype":"CONTEXT","tenant":"default","context":".c","magic":0} a context exists
    {"keytype":"NOOP","magic":0}                                      nothing; its value names the leader

The order of fields in a key is part of the format, because compaction compares bytes. Pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.registry.formats import Reference

DEFAULT_CONTEXT: Final = "."
GLOBAL_CONTEXT: Final = ":.__GLOBAL:"
AVRO: Final = "AVRO"
Document = dict[str, Any]
_MAX_NUMBER: Final = 2**31 - 1
_CONFIG_FIELDS: Final = (
    "alias", "normalize", "validateFields", "validateRules", "compatibilityLevel", "compatibilityPolicy",
    "compatibilityGroup", "defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet",
)  # fmt: skip


class Record(NamedTuple):
    """A record to append. A value of None is a tombstone."""

    key: bytes
    value: bytes | None


class UnreadableRecord(Exception):
    """A record of `_schemas` that is in no known format. Readers skip it."""


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A version of a subject. `subject` is qualified by its context, unless that is the default one."""

    subject: str
    version: int
    id: int
    schema: str
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: Document | None = None
    rule_set: Document | None = None
    guid: str = ""
    deleted: bool = False

    @property
    def content(self) -> Document:
        """The fields that make up the schema itself, as responses name them."""
        found: Document = {} if self.schema_type == AVRO else {"schemaType": self.schema_type}
        if self.references:
            found["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version} for each in self.references
            ]
        if self.metadata is not None:
            found["metadata"] = self.metadata
        if self.rule_set is not None:
            found["ruleSet"] = self.rule_set
        found["schema"] = self.schema
        return found


def content_guid(
    schema: str,
    schema_type: str = AVRO,
    references: tuple[Reference, ...] = (),
    metadata: Document | None = None,
    rule_set: Document | None = None,
) -> str:
    """The GUID of a schema, which is the same in all contexts and registries: the MD5 of its content."""
    digest = hashlib.md5(schema.encode("utf-8", "surrogatepass"), usedforsecurity=False)
    for each in references:
        digest.update(each.name.encode("utf-8", "surrogatepass") + each.subject.encode("utf-8", "surrogatepass"))
        digest.update((each.version & 0xFFFFFFFF).to_bytes(4, "big"))
    for more in (metadata, rule_set):
        if more is not None:
            digest.update(json.dumps(more, sort_keys=True, separators=(",", ":")).encode())
    if schema_type != AVRO:
        digest.update(schema_type.encode())
    text = digest.hexdigest()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# --- subjects and contexts


class QualifiedSubject(NamedTuple):
    """A subject and its context, which starts with a dot. An empty subject means the context itself."""

    context: str
    subject: str

    def __str__(self) -> str:
        return self.subject if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.subject}"

    @property
    def of_context(self) -> str:
        """The name under which settings of the context are kept."""
        return f":{self.context}:"


def parse_subject(text: str) -> QualifiedSubject:
    """`:.context:subject`, or a subject of the default context."""
    if text.startswith(":."):
        context, colon, subject = text[1:].partition(":")
        if colon:
            return QualifiedSubject(context, subject)
    return QualifiedSubject(DEFAULT_CONTEXT, text)


def qualified(text: str, context: str) -> str:
    """A subject as it is stored; one without a context is in the given one."""
    found = parse_subject(text)
    if not text.startswith(":.") and context != DEFAULT_CONTEXT:
        found = QualifiedSubject(context, text)
    return str(found)


# --- encoding


def schema_record(stored: StoredSchema) -> Record:
    """The record of a version, deleted (soft) or not."""
    value: Document = {"subject": stored.subject, "version": stored.version, "id": stored.id}
    if stored.guid:
        value["guid"] = stored.guid
    value |= stored.content
    value["deleted"] = stored.deleted
    return Record(_schema_key(stored.subject, stored.version), _dump(value))


def schema_tombstone(subject: str, version: int) -> Record:
    return Record(_schema_key(subject, version), None)


def _schema_key(subject: str, version: int) -> bytes:
    return _dump({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def delete_subject_record(subject: str, version: int) -> Record:
    """All versions up to `version` are deleted (soft)."""
    return Record(_subject_key("DELETE_SUBJECT", subject), _dump({"subject": subject, "version": version}))


def config_record(subject: str | None, config: Document | None) -> Record:
    """Settings of a subject, a context (`:.name:`) or of all (None); no settings remove it."""
    value = None if config is None else _dump({"subject": subject, **config})
    return Record(_subject_key("CONFIG", subject), value)


def mode_record(subject: str | None, mode: str | None) -> Record:
    value = None if mode is None else _dump({"subject": subject, "mode": mode})
    return Record(_subject_key("MODE", subject), value)


def context_record(context: str, *, exists: bool = True) -> Record:
    key = {"keytype": "CONTEXT", "tenant": "default", "context": context, "magic": 0}
    return Record(_dump(key), _dump({"tenant": "default", "context": context}) if exists else None)


def noop_record(leader: str) -> Record:
    """What a new leader writes first, to be sure that it has read everything before it. Other readers skip it."""
    return Record(_dump({"keytype": "NOOP", "magic": 0}), _dump({"leader": leader}))


def _subject_key(kind: str, subject: str | None) -> bytes:
    return _dump({"keytype": kind, "subject": subject, "magic": 0})


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


# --- decoding


class SchemaKey(NamedTuple):
    subject: str
    version: int


class SubjectKey(NamedTuple):
    """CONFIG, MODE, DELETE_SUBJECT, CLEAR_SUBJECT: a kind and a subject."""

    kind: str
    subject: str | None


class ContextKey(NamedTuple):
    context: str


def decode_key(key: bytes | None) -> SchemaKey | SubjectKey | ContextKey | None:
    """What a record is about; None for a NOOP. UnreadableRecord."""
    found = _parsed(key)
    kind = found.get("keytype")
    if kind == "NOOP":
        return None
    subject = found.get("subject")
    if kind == "SCHEMA":
        return SchemaKey(_stored_subject(subject), _number(found, "version", 1))
    if kind in ("CONFIG", "MODE"):
        return SubjectKey(kind, _stored_subject(subject) if subject else None)
    if kind in ("DELETE_SUBJECT", "CLEAR_SUBJECT"):
        return SubjectKey(kind, _stored_subject(subject))
    if kind == "CONTEXT" and isinstance(found.get("context"), str):
        return ContextKey(found["context"])
    raise UnreadableRecord(f"unknown keytype {kind!r}")


def decode_schema(value: bytes, key: SchemaKey) -> StoredSchema:
    """The version of a SCHEMA record. UnreadableRecord."""
    found = _parsed(value)
    schema, kind = found.get("schema"), found.get("schemaType") or AVRO
    if not isinstance(schema, str) or not isinstance(kind, str):
        raise UnreadableRecord("the schema is not text")
    references = tuple(_reference(each) for each in found.get("references") or ())
    metadata, rule_set = _document(found, "metadata"), _document(found, "ruleSet")
    guid = found.get("guid")
    return StoredSchema(
        subject=key.subject,
        version=key.version,
        id=_number(found, "id", 0),
        schema=schema,
        schema_type=kind,
        references=references,
        metadata=metadata,
        rule_set=rule_set,
        guid=guid if isinstance(guid, str) and guid else content_guid(schema, kind, references, metadata, rule_set),
        deleted=found.get("deleted") is True,
    )


def decode_config(value: bytes) -> Document:
    """The settings of a CONFIG record, without fields that are null or not known."""
    found = _parsed(value)
    return {name: found[name] for name in _CONFIG_FIELDS if found.get(name) is not None}


def decode_mode(value: bytes) -> str:
    mode = _parsed(value).get("mode")
    if not isinstance(mode, str):
        raise UnreadableRecord(f"the mode is {mode!r}")
    return mode


def decode_leader(value: bytes | None) -> str | None:
    """The address that a NOOP record names; other registries leave it empty."""
    found = _parsed(value).get("leader") if value else None
    return found if isinstance(found, str) else None


def decode_delete_subject(value: bytes) -> int:
    """The last version that is deleted."""
    return _number(_parsed(value), "version", 0)


def _parsed(data: bytes | None) -> Document:
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnreadableRecord("not a JSON object")
    return found


def _stored_subject(subject: object) -> str:
    if not isinstance(subject, str) or not subject:
        raise UnreadableRecord(f"the subject is {subject!r}")
    parsed = parse_subject(subject)
    # Settings of the default context are those of all.
    return subject if not parsed.subject else str(parsed)


def _number(found: Document, name: str, least: int) -> int:
    value = found.get(name)
    if type(value) is not int or not least <= value <= _MAX_NUMBER:
        raise UnreadableRecord(f"{name} is {value!r}")
    return value


def _document(found: Document, name: str) -> Document | None:
    value = found.get(name)
    return value if isinstance(value, dict) else None


def _reference(found: object) -> Reference:
    if not isinstance(found, dict):
        raise UnreadableRecord("a reference is not an object")
    name, subject = found.get("name"), found.get("subject")
    if not isinstance(name, str) or not isinstance(subject, str):
        raise UnreadableRecord("a reference has no name or no subject")
    return Reference(name, subject, _number(found, "version", -1))
