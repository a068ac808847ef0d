"""Confluent's REST API: one function per endpoint. docs/registry.md has the table.

A function reads path, query and body, calls the service and returns what becomes JSON. Writes that reach an instance
which does not lead are forwarded. Paths arrive percent-encoded (`guard.py`), because subjects may contain slashes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock import __version__
from penstock.registry import changes
from penstock.registry.bodies import ConfigBody, ModeBody, SchemaBody, decoded, schema_document
from penstock.registry.changes import TYPES, Change
from penstock.registry.errors import (
    RegistryError,
    no_subject_config,
    no_subject_mode,
    schema_not_found,
    subject_not_found,
    version_not_found,
)
from penstock.registry.forwarding import FORWARDED, OFFSET, Forwarder
from penstock.registry.leadership import NotLeader
from penstock.registry.records import DEFAULT_CONTEXT, Document, StoredSchema, parse_subject, qualified
from penstock.registry.service import RegistryService
from penstock.registry.settings import RegistrySettings
from penstock.registry.store import ALL_CONTEXTS, Deleted, Store, version_number

T = TypeVar("T")
Handler = Callable[["Call"], Awaitable[Any]]
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPTED: Final = frozenset(
    {CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json", "application/octet-stream"}
)
_SUBJECTS_MAX: Final = 20_000
_SCHEMAS_MAX: Final = 1_000
_LARGE: Final = 64 * 1024

_log = logging.getLogger(__name__)


class Call:
    """A request, and the service that answers it."""

    def __init__(self, request: Request, service: RegistryService, settings: RegistrySettings) -> None:
        self.request = request
        self.service = service
        self.settings = settings
        self._body: bytes | None = None

    @property
    def store(self) -> Store:
        return self.service.store

    @property
    def context(self) -> str:
        """The context of the path, `/contexts/.name/...`; else the default one."""
        found: str = self.request.scope.get("penstock.context", DEFAULT_CONTEXT)
        return found

    def path(self, name: str) -> str:
        return unquote(self.request.path_params[name])

    @property
    def subject(self) -> str:
        return qualified(self.path("subject"), self.context)

    @property
    def scope_subject(self) -> str | None:
        """The subject of settings; None are those of all."""
        if "subject" not in self.request.path_params:
            return None if self.context == DEFAULT_CONTEXT else f":{self.context}:"
        subject = self.path("subject")
        name = parse_subject(subject)
        if not name.subject:
            return None if name.context == DEFAULT_CONTEXT else subject
        changes.check_subject(subject)
        return self.subject

    @property
    def version(self) -> int:
        return version_number(self.path("version"))

    def text(self, name: str, default: str = "") -> str:
        return str(self.request.query_params.get(name, default))

    def flag(self, name: str) -> bool:
        return self.text(name).lower() == "true"

    @property
    def deleted(self) -> Deleted:
        return Deleted.of(deleted=self.flag("deleted"), only=self.flag("deletedOnly"))

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        if not text:
            return default
        try:
            return int(text[:12])
        except ValueError:
            raise RegistryError(400, f"{name} is {text[:40]!r}, which is not a number") from None

    def page(self, found: Sequence[T], most: int) -> Sequence[T]:
        """The part of a list that `offset` and `limit` name."""
        offset, limit = max(self.number("offset", 0), 0), self.number("limit", -1)
        return found[offset : offset + (most if limit < 0 else min(limit, most))]

    async def body(self) -> bytes:
        """The body, within limits. RegistryError."""
        if self._body is not None:
            return self._body
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _ACCEPTED:
            # Browsers send other types for pages of other sites without asking.
            raise RegistryError(415, f"Content-Type {kind[:80]!r} is not supported; use {CONTENT_TYPE}")
        limit, pieces, size = self.settings.body_bytes, [], 0
        async for piece in self.request.stream():
            size += len(piece)
            if size > limit:
                raise RegistryError(413, f"The body exceeds {limit:,} bytes")
            pieces.append(piece)
        self._body = b"".join(pieces)
        return self._body

    async def read(self, kind: type[T]) -> T:
        """The body as this type. RegistryError."""
        data = await self.body()
        return decoded(data, kind) if len(data) < _LARGE else await asyncio.to_thread(decoded, data, kind)

    async def change(self, decide: Callable[[Store], Change[T]]) -> T:
        return await self.service.change(decide)


# --- subjects


async def list_subjects(call: Call) -> Any:
    prefix = call.text("subjectPrefix", ALL_CONTEXTS if call.context == DEFAULT_CONTEXT else "")
    prefix = prefix if prefix.startswith(":") else qualified(prefix, call.context)
    return call.page(call.store.subjects(prefix, call.deleted), _SUBJECTS_MAX)


async def look_up(call: Call) -> Any:
    body = (await call.read(SchemaBody)).request()
    changes.check_subject(call.subject)
    found = await call.service.look_up(
        call.subject, body, normalize=call.flag("normalize"), deleted=call.flag("deleted")
    )
    return schema_document(found, await call.service.formatted(found, call.text("format")))


async def delete_subject(call: Call) -> Any:
    permanent, subject = call.flag("permanent"), call.subject
    return await call.change(lambda store: changes.delete_subject(store, subject, permanent=permanent))


async def list_versions(call: Call) -> Any:
    subject = call.store.unaliased(call.subject)
    found = [each.version for each in call.store.versions(subject, call.deleted)]
    if not found:
        raise subject_not_found(call.subject)
    return call.page(found, _SUBJECTS_MAX)


def _version_of(call: Call, deleted: Deleted) -> StoredSchema:
    changes.check_subject(call.subject)
    number, subject = call.version, call.store.unaliased(call.subject)
    if not call.store.has_subject(subject, deleted):
        raise subject_not_found(call.subject)
    found = call.store.version(subject, number, deleted)
    if found is None:
        raise version_not_found(number)
    return found


async def get_version(call: Call) -> Any:
    found = _version_of(call, call.deleted)
    return schema_document(found, await call.service.formatted(found, call.text("format")))


async def get_version_text(call: Call) -> Any:
    return await _raw(call, _version_of(call, call.deleted))


async def get_referenced_by(call: Call) -> Any:
    found = _version_of(call, Deleted.INCLUDE)
    ids = sorted({each.id for each in call.store.referrers(found.subject, found.version, call.deleted)})
    return call.page(ids, _SUBJECTS_MAX)


async def get_with_metadata(call: Call) -> Any:
    """The latest version whose metadata have these properties."""
    subject = call.store.unaliased(call.subject)
    if not call.store.has_subject(subject, call.deleted):
        raise subject_not_found(call.subject)
    query = call.request.query_params
    wanted = dict(zip(map(unquote, query.getlist("key")), map(unquote, query.getlist("value")), strict=False))
    for each in reversed(call.store.versions(subject, call.deleted)):
        properties = (each.metadata or {}).get("properties") or {}
        if all(properties.get(name) == value for name, value in wanted.items()):
            return schema_document(each, await call.service.formatted(each, call.text("format")))
    raise schema_not_found()


async def register(call: Call) -> Any:
    body = (await call.read(SchemaBody)).request()
    found = await call.service.register(call.subject, body, normalize=call.flag("normalize"))
    document = schema_document(found, await call.service.formatted(found, call.text("format")))
    del document["subject"]
    return document


async def delete_version(call: Call) -> Any:
    permanent, subject, version = call.flag("permanent"), call.subject, call.version
    return await call.change(lambda store: changes.delete_version(store, subject, version, permanent=permanent))


# --- schemas


async def list_schemas(call: Call) -> Any:
    prefix = call.text("subjectPrefix", ALL_CONTEXTS if call.context == DEFAULT_CONTEXT else "")
    prefix = prefix if prefix.startswith(":") else qualified(prefix, call.context)
    found = list(call.store.schemas(prefix, call.deleted, latest_only=call.flag("latestOnly")))
    return [schema_document(each) for each in call.page(found, _SCHEMAS_MAX)]


def _subject_of_id(call: Call) -> str:
    return qualified(call.text("subject"), call.context)


def _by_id(call: Call) -> StoredSchema:
    text = call.path("id")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 11 else None
    if number is None:
        raise RegistryError(404, "HTTP 404 Not Found")
    found = call.store.by_id(number, _subject_of_id(call))
    if found is None:
        raise schema_not_found(number)
    return found


async def get_by_id(call: Call) -> Any:
    found = _by_id(call)
    document = schema_document(found, await call.service.formatted(found, call.text("format")))
    del document["id"]
    document.pop("deleted", None)
    if not call.text("subject"):
        del document["subject"], document["version"]
    if call.flag("fetchMaxId"):
        document["maxId"] = call.store.max_id(parse_subject(found.subject).context)
    return document


async def get_text_by_id(call: Call) -> Any:
    return await _raw(call, _by_id(call))


def _users(call: Call) -> list[StoredSchema]:
    found = _by_id(call)
    return call.store.users_of(parse_subject(found.subject).context, found.id, call.deleted)


async def get_subjects_of_id(call: Call) -> Any:
    return call.page(sorted({each.subject for each in _users(call)}), _SUBJECTS_MAX)


async def get_versions_of_id(call: Call) -> Any:
    found = [{"subject": each.subject, "version": each.version} for each in _users(call)]
    return call.page(found, _SUBJECTS_MAX)


async def get_by_guid(call: Call) -> Any:
    guid = call.path("guid")
    found = call.store.by_guid(guid)
    if found is None:
        raise schema_not_found(guid)
    document = schema_document(found, await call.service.formatted(found, call.text("format")))
    return {name: document[name] for name in document if name not in ("subject", "version", "id", "deleted")}


async def get_ids_of_guid(call: Call) -> Any:
    found = call.store.ids_of_guid(call.path("guid"))
    if not found:
        raise schema_not_found(call.path("guid"))
    return [{"context": context, "id": number} for context, number in found]


async def get_types(_: Call) -> Any:
    return list(TYPES)


async def _raw(call: Call, found: StoredSchema) -> Response:
    """The text of a schema and nothing else."""
    text = await call.service.formatted(found, call.text("format"))
    return Response(text.encode("utf-8", "surrogatepass"), media_type=CONTENT_TYPE)


# --- compatibility


async def check_version(call: Call) -> Any:
    return await _check(call, call.version)


async def check_versions(call: Call) -> Any:
    return await _check(call, None)


async def _check(call: Call, version: int | None) -> Document:
    body = (await call.read(SchemaBody)).request()
    changes.check_subject(call.subject)
    found = await call.service.incompatibilities(call.subject, version, body, normalize=call.flag("normalize"))
    answer: Document = {"is_compatible": not found}
    if call.flag("verbose"):
        answer["messages"] = [
            f"{{errorType:'{each.kind}', description:'{each.message}', additionalInfo:'{each.path}'}}" for each in found
        ]
        if found:
            level = call.store.effective_config(call.subject)["compatibilityLevel"]
            answer["messages"].append(f"{{compatibility: '{level}'}}")
    return answer


# --- settings


async def get_config(call: Call) -> Any:
    subject = call.scope_subject
    found = call.store.config(subject)
    if subject is None or call.flag("defaultToGlobal"):
        return call.store.effective_config(subject)
    if found is None:
        raise no_subject_config(call.path("subject") if "subject" in call.request.path_params else subject)
    return found


async def put_config(call: Call) -> Any:
    given = msgspec.to_builtins(await call.read(ConfigBody))
    subject = call.scope_subject
    await call.change(lambda store: changes.put_config(store, subject, given))
    return given


async def delete_config(call: Call) -> Any:
    subject = call.scope_subject
    return await call.change(lambda store: changes.delete_config(store, subject))


async def get_mode(call: Call) -> Any:
    subject = call.scope_subject
    found = call.store.mode(subject)
    if subject is None or call.flag("defaultToGlobal"):
        found = call.store.effective_mode(subject)
    if found is None:
        raise no_subject_mode(call.path("subject") if "subject" in call.request.path_params else str(subject))
    return {"mode": found}


async def put_mode(call: Call) -> Any:
    mode, subject, force = (await call.read(ModeBody)).mode, call.scope_subject, call.flag("force")
    return {"mode": await call.change(lambda store: changes.put_mode(store, subject, mode, force=force))}


async def delete_mode(call: Call) -> Any:
    subject = call.scope_subject
    return {"mode": await call.change(lambda store: changes.delete_mode(store, subject))}


# --- the rest


async def list_contexts(call: Call) -> Any:
    return call.page(call.store.contexts(), _SUBJECTS_MAX)


async def delete_context(call: Call) -> Any:
    context = call.path("context")
    return await call.change(lambda store: changes.delete_context(store, context))


async def get_root(_: Call) -> Any:
    return {}


async def get_server_version(_: Call) -> Any:
    return {"version": __version__, "commitId": ""}


async def get_cluster_id(call: Call) -> Any:
    clusters = {"kafka-cluster": call.service.cluster_id, "schema-registry-cluster": call.settings.group_id}
    return {"id": "", "scope": {"path": [], "clusters": clusters}}


async def get_leader(call: Call) -> Any:
    return {"leader": call.service.leader, "is_leader": call.service.is_leader, "offset": call.service.offset}


_ENDPOINTS: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("GET", "/", get_root),
    ("GET", "/subjects", list_subjects),
    ("POST", "/subjects/{subject}", look_up),
    ("DELETE", "/subjects/{subject}", delete_subject),
    ("GET", "/subjects/{subject}/metadata", get_with_metadata),
    ("GET", "/subjects/{subject}/versions", list_versions),
    ("POST", "/subjects/{subject}/versions", register),
    ("GET", "/subjects/{subject}/versions/{version}", get_version),
    ("DELETE", "/subjects/{subject}/versions/{version}", delete_version),
    ("GET", "/subjects/{subject}/versions/{version}/schema", get_version_text),
    ("GET", "/subjects/{subject}/versions/{version}/referencedby", get_referenced_by),
    ("GET", "/schemas", list_schemas),
    ("GET", "/schemas/types", get_types),
    ("GET", "/schemas/ids/{id}", get_by_id),
    ("GET", "/schemas/ids/{id}/schema", get_text_by_id),
    ("GET", "/schemas/ids/{id}/subjects", get_subjects_of_id),
    ("GET", "/schemas/ids/{id}/versions", get_versions_of_id),
    ("GET", "/schemas/guids/{guid}", get_by_guid),
    ("GET", "/schemas/guids/{guid}/ids", get_ids_of_guid),
    ("POST", "/compatibility/subjects/{subject}/versions", check_versions),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", check_version),
    ("GET", "/config", get_config),
    ("PUT", "/config", put_config),
    ("DELETE", "/config", delete_config),
    ("GET", "/config/{subject}", get_config),
    ("PUT", "/config/{subject}", put_config),
    ("DELETE", "/config/{subject}", delete_config),
    ("GET", "/mode", get_mode),
    ("PUT", "/mode", put_mode),
    ("DELETE", "/mode", delete_mode),
    ("GET", "/mode/{subject}", get_mode),
    ("PUT", "/mode/{subject}", put_mode),
    ("DELETE", "/mode/{subject}", delete_mode),
    ("GET", "/contexts", list_contexts),
    ("DELETE", "/contexts/{context}", delete_context),
    ("GET", "/v1/metadata/leader", get_leader),
    ("GET", "/v1/metadata/id", get_cluster_id),
    ("GET", "/v1/metadata/version", get_server_version),
)


def endpoints() -> list[tuple[str, str]]:
    """(method, path) of every endpoint, for the table of the documentation."""
    return [(method, path) for method, path, _ in _ENDPOINTS]


class Api:
    """The application of an instance."""

    def __init__(self, service: RegistryService, settings: RegistrySettings, forwarder: Forwarder) -> None:
        self._service = service
        self._settings = settings
        self._forwarder = forwarder

    def application(self) -> Starlette:
        routes = [Route(path, self._endpoint(handler), methods=[method]) for method, path, handler in _ENDPOINTS]
        return Starlette(routes=routes, exception_handlers={HTTPException: _not_served})

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            call = Call(request, self._service, self._settings)
            try:
                return await self._answered(call, handler)
            except RegistryError as error:
                return _error(request, error)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception:  # noqa: BLE001 - a bug in one endpoint must not end the others
                _log.exception("request failed: method=%s path=%s", request.method, request.url.path)
                return _error(request, RegistryError(500, "Internal error; the log of the registry has the reason"))

        return answer

    async def _answered(self, call: Call, handler: Handler) -> Response:
        while True:
            try:
                found = await handler(call)
                break
            except NotLeader:
                # None: this instance has been elected meanwhile.
                if (forwarded := await self._forwarded(call)) is not None:
                    return forwarded
        if isinstance(found, Response):
            return found
        large = isinstance(found, list) and len(found) > _SCHEMAS_MAX // 10
        data = await asyncio.to_thread(_json, found) if large else _json(found)
        headers = {OFFSET: str(self._service.offset)} if FORWARDED in call.request.headers else None
        return Response(data, media_type=_content_type(call.request), headers=headers)

    async def _forwarded(self, call: Call) -> Response | None:
        request = call.request
        body = b"" if request.method == "DELETE" else await call.body()
        answer = await self._forwarder.forward(request.scope, request.headers, body)
        if answer is None:
            return None
        if answer.offset:
            await self._forwarder.caught_up(answer.offset)
        return Response(answer.body, status_code=answer.status, media_type=answer.content_type or CONTENT_TYPE)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _content_type(request: Request) -> str:
    return "application/json" if request.headers.get("accept", "").strip() == "application/json" else CONTENT_TYPE


def _error(request: Request, error: RegistryError) -> Response:
    document = {"error_code": error.code, "message": error.message}
    return Response(_json(document), status_code=error.status, media_type=_content_type(request))


async def _not_served(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = {404: "HTTP 404 Not Found", 405: "HTTP 405 Method Not Allowed"}.get(status, f"HTTP {status}")
    return _error(request, RegistryError(status, text))
