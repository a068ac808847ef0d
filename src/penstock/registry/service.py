"""The operations of the registry, by whichever instance is asked: reads from its store, writes by the leader.

A write is decided on the store under the write lock, appended, replayed, and then answered. An instance that does not
lead raises `NotLeader`; `rest.py` forwards the request. What is long, parsing and comparing, runs on a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from penstock.registry import changes
from penstock.registry.changes import Change, SchemaRequest, SchemaSource
from penstock.registry.errors import RegistryError, schema_not_found, subject_not_found, version_not_found
from penstock.registry.formats import Incompatibility
from penstock.registry.leadership import Leadership, NotLeader
from penstock.registry.parser import SchemaParser
from penstock.registry.records import StoredSchema, content_guid, parse_subject
from penstock.registry.store import Deleted, Store
from penstock.registry.topic import TopicReader

T = TypeVar("T")
_FORMATS: Final = frozenset({"resolved", "serialized"})


class RegistryService:
    """One instance."""

    def __init__(self, reader: TopicReader, leadership: Leadership, parser: SchemaParser, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self._reader = reader
        self._leadership = leadership
        self._parser = parser

    @property
    def store(self) -> Store:
        return self._reader.store

    @property
    def offset(self) -> int:
        """Where the store is in the topic."""
        return self._reader.offset

    @property
    def leader(self) -> str | None:
        """The address of the leader, as far as this instance has read."""
        return self.store.leader

    @property
    def is_leader(self) -> bool:
        return self._leadership.is_leader

    async def wait_for(self, offset: int) -> None:
        await self._reader.wait_for(offset)

    # --- writes

    async def change(self, decide: Callable[[Store], Change[T]]) -> T:
        """Decide, append and replay. NotLeader; RegistryError."""
        self._check_leader()
        async with self._leadership.write_lock:
            return await self._carry_out(decide(self.store))

    async def _carry_out(self, change: Change[T]) -> T:
        self._check_leader()
        if change.records:
            await self._leadership.write(change.records)
        return change.result

    def _check_leader(self) -> None:
        if not self.is_leader:
            raise NotLeader

    async def register(self, subject: str, request: SchemaRequest, *, normalize: bool) -> StoredSchema:
        """Register a schema under a subject, or find it there. NotLeader; RegistryError, 409 if it is incompatible."""
        changes.check_subject(subject)
        known = await self._known(subject, request, normalize=normalize)
        if known is not None:
            return known
        self._check_leader()
        async with self._leadership.write_lock:
            store = self.store
            must_be_compatible = changes.check_registration(store, subject, request)
            wanted = changes.with_defaults(store, subject, request)
            comparison = changes.comparison(store, subject, wanted, store.versions(subject))
            text = await self._text(comparison.new, subject, normalize=normalize)
            if must_be_compatible and comparison.earlier and not self._is_version(subject, wanted, text):
                found = await self._parser.compare(comparison)
                if found:
                    raise _incompatible(subject, found)
            return await self._carry_out(changes.register(store, subject, wanted, text))

    def _is_version(self, subject: str, wanted: SchemaRequest, text: str) -> bool:
        guid = content_guid(text, wanted.schema_type, wanted.references, wanted.metadata, wanted.rule_set)
        return self.store.same_in_subject(subject, guid) is not None

    async def _known(self, subject: str, request: SchemaRequest, *, normalize: bool) -> StoredSchema | None:
        """The version that the request would find. Also parses it before the lock is taken, which takes longest."""
        wanted = changes.with_defaults(self.store, subject, request)
        source = changes.source_of(self.store, wanted, parse_subject(subject).context)
        text = await self._text(source, subject, normalize=normalize)
        if request.id is not None or request.version is not None:
            return None
        guid = content_guid(text, wanted.schema_type, wanted.references, wanted.metadata, wanted.rule_set)
        known = self.store.same_in_subject(subject, guid)
        return known if known is not None or not normalize else await self._same(subject, wanted, text, normalize=True)

    async def _same(
        self,
        subject: str,
        request: SchemaRequest,
        text: str,
        *,
        normalize: bool,
        deleted: Deleted = Deleted.HIDE,
    ) -> StoredSchema | None:
        """The latest version with this text; with `normalize`, one that is the same once both are normalized."""
        for stored in reversed(self.store.versions(subject, deleted)):
            if not _is_same(stored, request):
                continue
            if stored.schema == text:
                return stored
            if normalize:
                source = changes.source_of(self.store, stored, parse_subject(stored.subject).context)
                if await self._text(source, subject, normalize=True, is_new=False) == text:
                    return stored
        return None

    async def _text(self, source: SchemaSource, subject: str, *, normalize: bool, is_new: bool = True) -> str:
        """The text that is stored. New schemas are checked for what older ones may have."""
        wanted = normalize or self.store.effective_config(subject).get("normalize") is True
        return await self._parser.text(source, normalize=wanted, is_new=is_new)

    # --- reads that take time

    async def look_up(self, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool) -> StoredSchema:
        """The version of a subject that has this schema. RegistryError if there is none."""
        wanted_ones = Deleted.of(deleted=deleted)
        subject = self.store.unaliased(subject)
        if not self.store.has_subject(subject, wanted_ones):
            raise subject_not_found(subject)
        request = replace(request, references=changes.with_defaults(self.store, subject, request).references)
        source = changes.source_of(self.store, request, parse_subject(subject).context)
        text = await self._text(source, subject, normalize=normalize, is_new=False)
        found = await self._same(subject, request, text, normalize=normalize, deleted=wanted_ones)
        if found is not None:
            return found
        raise schema_not_found()

    async def incompatibilities(
        self, subject: str, version: int | None, request: SchemaRequest, *, normalize: bool
    ) -> list[Incompatibility]:
        """Why a schema cannot follow a version, or, with None, the versions of the subject; empty if it can."""
        store = self.store
        versions = store.versions(subject)
        if version is not None:
            found = store.version(subject, version)
            if found is None and version != -1:
                raise version_not_found(version) if versions else subject_not_found(subject)
            versions = [] if found is None else [found]
        wanted = changes.with_defaults(store, subject, request)
        comparison = changes.comparison(store, subject, wanted, versions)
        await self._text(comparison.new, subject, normalize=normalize)
        return await self._parser.compare(comparison)

    async def formatted(self, stored: StoredSchema, wanted: str) -> str:
        """The text of a schema in a format: `serialized` and others that its type has, or as it is stored."""
        if wanted not in _FORMATS:
            return stored.schema
        source = changes.source_of(self.store, stored, parse_subject(stored.subject).context)
        return await self._parser.formatted(source, wanted)


def _is_same(stored: StoredSchema, request: SchemaRequest) -> bool:
    return (
        stored.schema_type == request.schema_type
        and stored.references == request.references
        and request.metadata in (None, stored.metadata)
        and request.rule_set in (None, stored.rule_set)
    )


def _incompatible(subject: str, found: list[Incompatibility]) -> RegistryError:
    details = "; ".join(f"{each.kind} at {each.path or '/'}: {each.message}" for each in found[:20])
    return RegistryError(
        409,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: {details}',
    )
