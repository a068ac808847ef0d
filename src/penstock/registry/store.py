"""What the registry knows: the state that follows from the records of `_schemas`, and the questions about it.

    store.replay(key, value)     for every record, in the order of the log

Only `replay` changes a store. Decisions are in `changes.py`; they return records, which count once they are in the log
and replayed. Pure: no I/O, no clock. Subjects are qualified (`:.context:subject`) unless they are in the default
context. An id belongs to one schema of a context: the same schema has the same id under all subjects there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from penstock.registry.errors import invalid_schema, invalid_version
from penstock.registry.formats import Reference, ReferencedSchema
from penstock.registry.records import (
    DEFAULT_CONTEXT,
    GLOBAL_CONTEXT,
    ContextKey,
    Document,
    SchemaKey,
    StoredSchema,
    SubjectKey,
    UnreadableRecord,
    decode_config,
    decode_delete_subject,
    decode_key,
    decode_leader,
    decode_mode,
    decode_schema,
    parse_subject,
    qualified,
)

DEFAULT_LEVEL: Final = "BACKWARD"
DEFAULT_MODE: Final = "READWRITE"
READONLY_OVERRIDE: Final = "READONLY_OVERRIDE"
ALL_CONTEXTS: Final = ":*:"
LATEST: Final = "latest"
V = TypeVar("V")
_MAX_VERSION: Final = 2**31 - 1
_MAX_REFERENCES: Final = 1000


class Deleted(Enum):
    """Which versions a question is about."""

    HIDE = "hide"
    INCLUDE = "include"
    ONLY = "only"

    @classmethod
    def of(cls, *, deleted: bool, only: bool = False) -> Deleted:
        return cls.ONLY if only else cls.INCLUDE if deleted else cls.HIDE

    def shows(self, stored: StoredSchema) -> bool:
        return self is Deleted.INCLUDE or stored.deleted == (self is Deleted.ONLY)


class SubjectVersion(NamedTuple):
    subject: str
    version: int


@dataclass(slots=True)
class _Context:
    """The ids of a context."""

    users: dict[int, dict[SubjectVersion, None]] = field(default_factory=dict)
    """Id to the versions that have it."""
    by_guid: dict[str, int] = field(default_factory=dict)
    max_id: int = 0


class Store:
    """The registry's state."""

    def __init__(self) -> None:
        self._subjects: dict[str, dict[int, StoredSchema]] = {}
        self._contexts: dict[str, _Context] = {DEFAULT_CONTEXT: _Context()}
        self._guids: dict[str, dict[str, int]] = {}  # to contexts and the id there
        self._referrers: dict[SubjectVersion, dict[SubjectVersion, None]] = {}
        self._configs: dict[str | None, Document] = {}
        self._modes: dict[str | None, str] = {}
        self.leader: str | None = None
        """The address of the last leader."""
        self.unreadable = 0
        """Records that were skipped."""

    # --- replay

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record of the log. UnreadableRecord for one in no known format, which changes nothing."""
        try:
            self._replay(key, value)
        except UnreadableRecord:
            self.unreadable += 1
            raise

    def _replay(self, key: bytes | None, value: bytes | None) -> None:
        about = decode_key(key)
        if isinstance(about, SchemaKey):
            self._replay_schema(about, value)
        elif isinstance(about, ContextKey):
            self._replay_context(about.context, exists=value is not None)
        elif isinstance(about, SubjectKey):
            self._replay_subject(about, value)
        else:
            self.leader = decode_leader(value)

    def _replay_schema(self, key: SchemaKey, value: bytes | None) -> None:
        stored = None if value is None else decode_schema(value, key)
        self._remove(key.subject, key.version)
        if stored is not None:
            self._add(stored)

    def _replay_subject(self, key: SubjectKey, value: bytes | None) -> None:
        if key.kind == "CONFIG":
            config = None if value is None else decode_config(value)
            _put(self._configs, _setting_name(key.subject), config)
        elif key.kind == "MODE":
            _put(self._modes, _setting_name(key.subject), None if value is None else decode_mode(value))
        elif value is not None and key.subject is not None:
            versions = self._subjects.get(key.subject, {})
            if key.kind == "DELETE_SUBJECT":
                last = decode_delete_subject(value)
                for number in [number for number in versions if number <= last]:
                    versions[number] = replace(versions[number], deleted=True)
            else:
                for number in [number for number, stored in versions.items() if stored.deleted]:
                    self._remove(key.subject, number)

    def _replay_context(self, context: str, *, exists: bool) -> None:
        if exists:
            self._contexts.setdefault(context, _Context())
        elif context != DEFAULT_CONTEXT and not self._contexts.get(context, _Context()).users:
            self._contexts.pop(context, None)

    def _add(self, stored: StoredSchema) -> None:
        name = parse_subject(stored.subject)
        place = SubjectVersion(stored.subject, stored.version)
        context = self._contexts.setdefault(name.context, _Context())
        self._subjects.setdefault(stored.subject, {})[stored.version] = stored
        context.users.setdefault(stored.id, {})[place] = None
        context.by_guid.setdefault(stored.guid, stored.id)
        context.max_id = max(context.max_id, stored.id)
        self._guids.setdefault(stored.guid, {}).setdefault(name.context, stored.id)
        for reference in stored.references:
            target = SubjectVersion(qualified(reference.subject, name.context), reference.version)
            self._referrers.setdefault(target, {})[place] = None

    def _remove(self, subject: str, version: int) -> None:
        versions = self._subjects.get(subject, {})
        stored = versions.pop(version, None)
        if stored is None:
            return
        if not versions:
            del self._subjects[subject]
        place = SubjectVersion(subject, version)
        for reference in stored.references:
            target = SubjectVersion(qualified(reference.subject, parse_subject(subject).context), reference.version)
            referrers = self._referrers.get(target, {})
            referrers.pop(place, None)
            if not referrers:
                self._referrers.pop(target, None)
        self._forget_id(parse_subject(subject).context, stored, place)

    def _forget_id(self, name: str, stored: StoredSchema, place: SubjectVersion) -> None:
        context = self._contexts[name]
        users = context.users[stored.id]
        del users[place]
        if users:
            return
        del context.users[stored.id]
        if context.by_guid.get(stored.guid) == stored.id:
            del context.by_guid[stored.guid]
            contexts = self._guids[stored.guid]
            contexts.pop(name, None)
            if not contexts:
                del self._guids[stored.guid]

    # --- subjects and versions

    def subjects(self, prefix: str = ALL_CONTEXTS, deleted: Deleted = Deleted.HIDE) -> list[str]:
        """The subjects whose qualified name starts with the prefix, sorted. `:*:` looks in all contexts."""
        return sorted(
            subject
            for subject, versions in self._subjects.items()
            if _matches(subject, prefix) and self._shows_subject(versions.values(), deleted)
        )

    @staticmethod
    def _shows_subject(versions: Iterable[StoredSchema], deleted: Deleted) -> bool:
        """A subject counts as deleted only if all its versions are."""
        if deleted is Deleted.INCLUDE:
            return True
        return all(each.deleted for each in versions) == (deleted is Deleted.ONLY)

    def versions(self, subject: str, deleted: Deleted = Deleted.HIDE) -> list[StoredSchema]:
        """The versions of a subject, in order."""
        found = self._subjects.get(subject, {})
        return [found[number] for number in sorted(found) if deleted.shows(found[number])]

    def has_subject(self, subject: str, deleted: Deleted = Deleted.HIDE) -> bool:
        return any(deleted.shows(each) for each in self._subjects.get(subject, {}).values())

    def version(self, subject: str, version: int, deleted: Deleted = Deleted.HIDE) -> StoredSchema | None:
        """A version; -1 is the latest."""
        if version == -1:
            return self.latest(subject, deleted)
        found = self._subjects.get(subject, {}).get(version)
        return found if found is not None and deleted.shows(found) else None

    def latest(self, subject: str, deleted: Deleted = Deleted.HIDE) -> StoredSchema | None:
        return next(reversed(self.versions(subject, deleted)), None)

    def next_version(self, subject: str) -> int:
        return max(self._subjects.get(subject, ()), default=0) + 1

    def schemas(self, prefix: str, deleted: Deleted, *, latest_only: bool) -> Iterator[StoredSchema]:
        """Versions of all subjects with that prefix, by subject and version."""
        for subject in sorted(name for name in self._subjects if _matches(name, prefix)):
            found = self.versions(subject, deleted)
            yield from found[-1:] if latest_only else found

    def same_in_subject(self, subject: str, guid: str, deleted: Deleted = Deleted.HIDE) -> StoredSchema | None:
        """The latest version of a subject that has this content."""
        found = self.versions(subject, deleted)
        return next((each for each in reversed(found) if each.guid == guid), None)

    # --- ids and GUIDs

    def id_of(self, context: str, guid: str) -> int | None:
        """The id that a schema has in a context."""
        found = self._contexts.get(context)
        return None if found is None else found.by_guid.get(guid)

    def max_id(self, context: str) -> int:
        found = self._contexts.get(context)
        return 0 if found is None else found.max_id

    def users_of(self, context: str, schema_id: int, deleted: Deleted = Deleted.HIDE) -> list[StoredSchema]:
        """The versions with an id."""
        found = self._contexts.get(context)
        users = () if found is None else found.users.get(schema_id, {})
        versions = [self._subjects[each.subject][each.version] for each in users]
        return sorted((each for each in versions if deleted.shows(each)), key=lambda each: (each.subject, each.version))

    def by_id(self, schema_id: int, subject: str = "") -> StoredSchema | None:
        """The schema with an id, in the context of `subject`. Deleted (soft) schemas can be read too.

        With a subject of the default context that does not have the id there, other contexts are searched.
        """
        name = parse_subject(subject)
        users = self.users_of(name.context, schema_id, Deleted.INCLUDE)
        if name.subject:
            users = [each for each in users if each.subject == str(name)] or users
        if users or not name.subject or name.context != DEFAULT_CONTEXT:
            return next(iter(users), None)
        others = (self.users_of(context, schema_id, Deleted.INCLUDE) for context in sorted(self._contexts))
        found = (each for users in others for each in users if parse_subject(each.subject).subject == name.subject)
        return next(found, None)

    def by_guid(self, guid: str) -> StoredSchema | None:
        """The schema with a GUID, in any context."""
        for context, schema_id in sorted(self._guids.get(guid.lower(), {}).items()):
            users = self.users_of(context, schema_id, Deleted.INCLUDE)
            return next((each for each in users if each.guid == guid.lower()), users[0] if users else None)
        return None

    def ids_of_guid(self, guid: str) -> list[tuple[str, int]]:
        """(context, id) of a GUID."""
        return sorted(self._guids.get(guid.lower(), {}).items())

    # --- references

    def referrers(self, subject: str, version: int, deleted: Deleted = Deleted.HIDE) -> list[StoredSchema]:
        """The versions that refer to one."""
        places = self._referrers.get(SubjectVersion(subject, version), {})
        found = [self._subjects[each.subject][each.version] for each in places]
        return [each for each in found if deleted.shows(each)]

    def resolved(self, references: Iterable[Reference], context: str) -> tuple[ReferencedSchema, ...]:
        """The schemas that references name and those that they refer to, dependencies first. RegistryError."""
        found: dict[str, ReferencedSchema] = {}
        self._resolve(references, context, found, set())
        return tuple(found.values())

    def _resolve(
        self,
        references: Iterable[Reference],
        context: str,
        found: dict[str, ReferencedSchema],
        open_names: set[SubjectVersion],
    ) -> None:
        for reference in references:
            subject = qualified(reference.subject, context)
            stored = self.version(subject, reference.version, Deleted.INCLUDE)
            if stored is None or (reference.version == -1 and stored.deleted):
                raise invalid_schema(
                    f"No schema reference found for subject '{reference.subject}' and version {reference.version}"
                )
            place = SubjectVersion(stored.subject, stored.version)
            if reference.name in found or place in open_names:
                continue
            if len(found) + len(open_names) >= _MAX_REFERENCES:
                raise invalid_schema(f"more than {_MAX_REFERENCES} references")
            open_names.add(place)
            self._resolve(stored.references, parse_subject(stored.subject).context, found, open_names)
            open_names.discard(place)
            found[reference.name] = ReferencedSchema(reference.name, stored.schema)

    # --- settings

    def config(self, subject: str | None) -> Document | None:
        """What is configured for exactly this subject, context or all (None)."""
        return self._configs.get(_setting_name(subject))

    def mode(self, subject: str | None) -> str | None:
        return self._modes.get(_setting_name(subject))

    def effective_config(self, subject: str | None) -> Document:
        """The settings that apply to a subject: its own, else its context's, else those of all."""
        found: Document = {"compatibilityLevel": DEFAULT_LEVEL}
        for name in reversed(_scopes(subject)):
            found |= {key: value for key, value in (self._configs.get(name) or {}).items() if key != "alias"}
        own = self.config(subject) or {}
        return found | ({"alias": own["alias"]} if "alias" in own else {})

    def effective_mode(self, subject: str | None) -> str:
        if self._modes.get(None) == READONLY_OVERRIDE:
            return READONLY_OVERRIDE
        return next((self._modes[name] for name in _scopes(subject) if name in self._modes), DEFAULT_MODE)

    def unaliased(self, subject: str) -> str:
        """The subject that an alias stands for, or the subject itself."""
        alias = (self._configs.get(subject) or {}).get("alias")
        if not isinstance(alias, str) or not alias or self.has_subject(subject, Deleted.INCLUDE):
            return subject
        return qualified(alias, parse_subject(subject).context)

    def contexts(self) -> list[str]:
        return sorted(self._contexts)

    def is_empty(self, context: str) -> bool:
        found = self._contexts.get(context)
        return found is None or not found.users


def version_number(text: str) -> int:
    """The number of a version; -1 is the latest. RegistryError."""
    if text == LATEST:
        return -1
    try:
        number = int(text) if text.isascii() and len(text) < 12 else 0
    except ValueError:
        number = 0
    if number == -1 or 1 <= number <= _MAX_VERSION:
        return number
    raise invalid_version(text)


def _scopes(subject: str | None) -> list[str | None]:
    """Where settings of a subject may be, the nearest first."""
    if subject is None:
        return [None]
    name = parse_subject(subject)
    found: list[str | None] = [] if not name.subject else [str(name)]
    if name.context != DEFAULT_CONTEXT:
        found.append(name.of_context)
    return [*found, GLOBAL_CONTEXT, None]


def _setting_name(subject: str | None) -> str | None:
    """Settings of the default context are those of all."""
    return None if subject in (None, "", f":{DEFAULT_CONTEXT}:") else subject


def _put(settings: dict[str | None, V], name: str | None, value: V | None) -> None:
    if value is None:
        settings.pop(name, None)
    else:
        settings[name] = value


def _matches(subject: str, prefix: str) -> bool:
    if prefix.startswith(ALL_CONTEXTS):
        return parse_subject(subject).subject.startswith(prefix.removeprefix(ALL_CONTEXTS))
    wanted, name = parse_subject(prefix), parse_subject(subject)
    return name.context == wanted.context and name.subject.startswith(wanted.subject)
