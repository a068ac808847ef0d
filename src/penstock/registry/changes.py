"""Decisions of the leader: each takes the store and a request, and returns the records to append, or raises.

    plan = plan_registration(store, subject, request)      what has to be parsed and compared, elsewhere
    change = register(store, subject, request, text)       text: the schema as it is stored
    append change.records; when they are replayed, answer change.result

Nothing here changes the store: it follows from the records once they are in the log. Parsing and comparing schemas is
left to the caller, because it takes time. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.registry.errors import (
    RegistryError,
    context_not_empty,
    invalid_compatibility,
    invalid_mode,
    invalid_schema,
    invalid_subject,
    no_subject_config,
    no_subject_mode,
    not_permitted,
    reference_exists,
    subject_not_found,
    subject_not_soft_deleted,
    subject_soft_deleted,
    version_not_found,
    version_not_soft_deleted,
    version_soft_deleted,
)
from penstock.registry.formats import Compatibility, Reference, ReferencedSchema
from penstock.registry.records import (
    AVRO,
    DEFAULT_CONTEXT,
    Document,
    Record,
    StoredSchema,
    config_record,
    content_guid,
    context_record,
    delete_subject_record,
    mode_record,
    parse_subject,
    qualified,
    schema_record,
    schema_tombstone,
)
from penstock.registry.store import Deleted, Store

T = TypeVar("T")
LEVELS: Final[tuple[Compatibility, ...]] = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
_RESERVED: Final = frozenset({"__GLOBAL", "__EMPTY"})


class Change(NamedTuple, Generic[T]):
    """Records to append, all or none, and the result once they are replayed."""

    records: tuple[Record, ...]
    result: T


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A schema that somebody wants to register, look up or compare."""

    schema: str
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: Document | None = None
    rule_set: Document | None = None
    id: int | None = None
    version: int | None = None


class SchemaSource(NamedTuple):
    """What a parser needs."""

    schema_type: str
    schema: str
    references: tuple[ReferencedSchema, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A schema and the versions that it has to be compatible with, oldest first."""

    new: SchemaSource
    earlier: tuple[SchemaSource, ...]
    level: Compatibility


# --- subjects


def check_subject(subject: str) -> None:
    """RegistryError for a name that no subject can have."""
    name = parse_subject(subject)
    is_control = any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in subject)
    is_surrogate = any(0xD800 <= ord(letter) < 0xE000 for letter in subject)
    if not name.subject or is_control or is_surrogate or name.subject in _RESERVED or name.context in _RESERVED:
        raise invalid_subject(subject)


def check_writable(store: Store, subject: str | None) -> None:
    mode = store.effective_mode(subject)
    if mode.startswith("READONLY"):
        where = "The registry" if subject is None else f"Subject {subject}"
        raise not_permitted(f"{where} is in read-only mode")


# --- registration


def source_of(store: Store, schema: SchemaRequest | StoredSchema, context: str) -> SchemaSource:
    """What has to be parsed for a schema. RegistryError if a reference does not exist."""
    return SchemaSource(schema.schema_type, schema.schema, store.resolved(schema.references, context))


def with_defaults(store: Store, subject: str, request: SchemaRequest) -> SchemaRequest:
    """The request with metadata and rules of the previous version and of the subject's settings.

    Given ones win over the previous version's, `override*` over both, `default*` fill what is missing. References to
    the latest version get its number.
    """
    config, previous = store.effective_config(subject), store.latest(subject)
    metadata = request.metadata if request.metadata is not None or previous is None else previous.metadata
    rule_set = request.rule_set if request.rule_set is not None or previous is None else previous.rule_set
    return replace(
        request,
        references=_numbered(store, request.references, parse_subject(subject).context),
        metadata=_merged(config.get("defaultMetadata"), metadata, config.get("overrideMetadata")),
        rule_set=_merged(config.get("defaultRuleSet"), rule_set, config.get("overrideRuleSet")),
    )


def _numbered(store: Store, references: Iterable[Reference], context: str) -> tuple[Reference, ...]:
    found = []
    for each in references:
        latest = store.latest(qualified(each.subject, context)) if each.version == -1 else None
        found.append(each if latest is None else Reference(each.name, each.subject, latest.version))
    return tuple(found)


def _merged(*documents: Document | None) -> Document | None:
    given = [each for each in documents if each is not None]
    if len(given) < 2:
        return given[0] if given else None
    found: Document = {}
    for each in given:
        for name, value in each.items():
            old = found.get(name)
            found[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return found


def comparison(store: Store, subject: str, request: SchemaRequest, versions: Iterable[StoredSchema]) -> Comparison:
    """What a schema has to be compared with, by the level of the subject."""
    config, context = store.effective_config(subject), parse_subject(subject).context
    group = config.get("compatibilityGroup")
    same_group = [
        each for each in versions if not group or _property(each.metadata, group) == _property(request.metadata, group)
    ]
    level = config["compatibilityLevel"]
    if level == "NONE":
        same_group = []
    elif not level.endswith("_TRANSITIVE"):
        same_group = same_group[-1:]
    sources = tuple(source_of(store, each, parse_subject(each.subject).context) for each in same_group)
    return Comparison(source_of(store, request, context), sources, level)


def _property(metadata: Document | None, name: str) -> object:
    properties = (metadata or {}).get("properties")
    return properties.get(name) if isinstance(properties, dict) else None


def check_registration(store: Store, subject: str, request: SchemaRequest) -> bool:
    """Whether the schema has to be compatible with earlier ones. RegistryError if it cannot be registered now."""
    check_subject(subject)
    check_writable(store, subject)
    is_import = store.effective_mode(subject) == "IMPORT"
    if is_import and request.id is None:
        raise not_permitted(f"Subject {subject} is in import mode")
    if request.id is not None and not is_import:
        raise not_permitted(f"Subject {subject} is not in import mode")
    return not is_import


def register(store: Store, subject: str, request: SchemaRequest, text: str) -> Change[StoredSchema]:
    """Register a schema that is valid and compatible. `text` is what is stored."""
    context = parse_subject(subject).context
    guid = content_guid(text, request.schema_type, request.references, request.metadata, request.rule_set)
    known = store.same_in_subject(subject, guid)
    if known is not None and (request.id in (None, known.id)) and request.version in (None, -1, known.version):
        return Change((), known)
    schema_id = store.id_of(context, guid) if request.id is None else request.id
    if schema_id is None:
        schema_id = store.max_id(context) + 1
    elif request.id is not None and any(
        each.guid != guid for each in store.users_of(context, schema_id, Deleted.INCLUDE)
    ):
        raise not_permitted(f"Overwrite new schema with id {schema_id} is not permitted.")
    stored = StoredSchema(
        subject=subject,
        version=_version_for(store, subject, request),
        id=schema_id,
        schema=text,
        schema_type=request.schema_type,
        references=request.references,
        metadata=request.metadata,
        rule_set=request.rule_set,
        guid=guid,
    )
    records = [schema_record(stored)]
    if context != DEFAULT_CONTEXT and context not in store.contexts():
        records.insert(0, context_record(context))
    return Change(tuple(records), stored)


def _version_for(store: Store, subject: str, request: SchemaRequest) -> int:
    following = store.next_version(subject)
    if request.version in (None, 0, -1):
        return following
    version = int(request.version or 0)
    if request.id is None and version != following:
        raise invalid_schema("Version is not one more than previous version")
    return version


# --- deletion


def delete_subject(store: Store, subject: str, *, permanent: bool) -> Change[list[int]]:
    """Delete all versions: hide them, or, once they are hidden, remove them for ever."""
    check_writable(store, subject)
    everything = store.versions(subject, Deleted.INCLUDE)
    if not everything:
        raise subject_not_found(subject)
    visible = [each for each in everything if not each.deleted]
    if permanent and visible:
        raise subject_not_soft_deleted(subject)
    if not permanent and not visible:
        raise subject_soft_deleted(subject)
    chosen = everything if permanent else visible
    for each in chosen:
        _check_unreferenced(store, each, permanent=permanent)
    numbers = [each.version for each in chosen]
    if permanent:
        return Change(tuple(schema_tombstone(subject, number) for number in numbers), numbers)
    return Change((delete_subject_record(subject, numbers[-1]), *_settings_removed(store, subject)), numbers)


def delete_version(store: Store, subject: str, version: int, *, permanent: bool) -> Change[int]:
    """Delete one version; -1 is the latest."""
    check_writable(store, subject)
    if not store.has_subject(subject, Deleted.INCLUDE):
        raise subject_not_found(subject)
    stored = store.version(subject, version, Deleted.HIDE if version == -1 and not permanent else Deleted.INCLUDE)
    if stored is None:
        raise version_not_found(version)
    if permanent and not stored.deleted:
        raise version_not_soft_deleted(subject, stored.version)
    if not permanent and stored.deleted:
        raise version_soft_deleted(subject, stored.version)
    _check_unreferenced(store, stored, permanent=permanent)
    if permanent:
        return Change((schema_tombstone(subject, stored.version),), stored.version)
    records = [schema_record(replace(stored, deleted=True))]
    if len(store.versions(subject)) == 1:
        records += _settings_removed(store, subject)
    return Change(tuple(records), stored.version)


def _check_unreferenced(store: Store, stored: StoredSchema, *, permanent: bool) -> None:
    wanted = Deleted.INCLUDE if permanent else Deleted.HIDE
    if store.referrers(stored.subject, stored.version, wanted):
        raise reference_exists(stored.subject, stored.version)


def _settings_removed(store: Store, subject: str) -> list[Record]:
    """A subject that is gone leaves no settings behind."""
    found = [] if store.mode(subject) is None else [mode_record(subject, None)]
    return found if store.config(subject) is None else [*found, config_record(subject, None)]


# --- settings


def put_config(store: Store, subject: str | None, given: Mapping[str, Any]) -> Change[Document]:
    """Change settings of a subject, a context or all. What is not given stays; null resets."""
    check_writable(store, subject)
    found = dict(store.config(subject) or {})
    changes = dict(given)
    level = changes.pop("compatibility", None) or changes.pop("compatibilityLevel", None)
    changes.pop("compatibilityLevel", None)
    if level is not None:
        changes["compatibilityLevel"] = _level(level)
    for name, value in changes.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return Change((config_record(subject, found),), found)


def _level(value: object) -> str:
    name = value.upper() if isinstance(value, str) else ""
    if name not in LEVELS:
        raise invalid_compatibility(value, LEVELS)
    return name


def delete_config(store: Store, subject: str | None) -> Change[Document]:
    check_writable(store, subject)
    found = store.config(subject)
    if found is None and subject is not None:
        raise no_subject_config(subject)
    return Change((config_record(subject, None),), found or store.effective_config(None))


def put_mode(store: Store, subject: str | None, mode: object, *, force: bool) -> Change[str]:
    """Change the mode of a subject, a context or all."""
    if not isinstance(mode, str) or mode.upper() not in MODES:
        raise invalid_mode(mode, MODES)
    wanted = mode.upper()
    if wanted == "IMPORT" and store.effective_mode(subject) != "IMPORT" and not force and _has_schemas(store, subject):
        raise not_permitted("Cannot import since found existing subjects")
    return Change((mode_record(subject, wanted),), wanted)


def _has_schemas(store: Store, subject: str | None) -> bool:
    if subject is None:
        return bool(store.subjects())
    if not parse_subject(subject).subject:
        return bool(store.subjects(subject))
    return store.has_subject(subject)


def delete_mode(store: Store, subject: str | None) -> Change[str]:
    found = store.mode(subject)
    if found is None and subject is not None:
        raise no_subject_mode(subject)
    return Change((mode_record(subject, None),), found or store.effective_mode(None))


def delete_context(store: Store, context: str) -> Change[None]:
    if context == DEFAULT_CONTEXT:
        raise not_permitted("The default context cannot be deleted")
    if context not in store.contexts():
        raise RegistryError(40401, f"Context '{context}' not found.")
    if not store.is_empty(context):
        raise context_not_empty(context)
    return Change((context_record(context, exists=False),), None)
