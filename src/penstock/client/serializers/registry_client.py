"""A blocking client of a schema registry: Penstock's, Confluent's, or any with the same REST API.

    registry = RegistryClient("http://localhost:8081")
    registered = registry.register("views-value", RegistrySchema('{"type": "string"}'))
    registry.by_id(registered.id)

Schemas do not change, so what was found by id, GUID or content is remembered; the latest version of a subject is for
`latest_ttl_s`. One object serves many threads. A request that fails on its way, or with a status that says so, goes to
the next address, and again after a pause; registering twice does no harm.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.client.errors import ConfigError, RegistryRequestFailed, RegistryUnreachable

if TYPE_CHECKING:
    import ssl as tls
    from http.client import HTTPConnection

# What sends requests is imported when the first is sent: every client imports this module.
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
AVRO: Final = "AVRO"
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_ANSWER_BYTES: Final = 64 * 1024 * 1024
_IDLE_MAX: Final = 8
_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """The name that a schema uses for a version of a subject."""

    name: str
    subject: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class RegistrySchema:
    """A schema to register or compare. `kind` is AVRO, JSON or PROTOBUF."""

    text: str
    kind: str = AVRO
    references: tuple[SchemaReference, ...] = ()
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    rule_set: Mapping[str, Any] | None = field(default=None, hash=False)

    def document(self) -> dict[str, Any]:
        """The schema as the REST API takes it."""
        found: dict[str, Any] = {"schema": self.text}
        if self.kind != AVRO:
            found["schemaType"] = self.kind
        if self.references:
            found["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version} for each in self.references
            ]
        if self.metadata is not None:
            found["metadata"] = dict(self.metadata)
        if self.rule_set is not None:
            found["ruleSet"] = dict(self.rule_set)
        return found


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema in the registry. What the answer did not say is -1 or empty."""

    schema: RegistrySchema
    id: int = -1
    guid: str = ""
    subject: str = ""
    version: int = -1
    deleted: bool = False

    @classmethod
    def of(cls, found: Mapping[str, Any], schema: RegistrySchema | None = None, subject: str = "") -> RegisteredSchema:
        """From a document of the registry, which may leave out what was sent."""
        references = tuple(
            SchemaReference(each["name"], each["subject"], each["version"]) for each in found.get("references") or ()
        )
        text = found.get("schema")
        answered = (
            schema
            if text is None and schema is not None
            else RegistrySchema(
                text or "", found.get("schemaType") or AVRO, references, found.get("metadata"), found.get("ruleSet")
            )
        )
        return cls(
            schema=answered,
            id=found.get("id", -1),
            guid=found.get("guid") or "",
            subject=found.get("subject") or subject,
            version=found.get("version") or -1,
            deleted=found.get("deleted") is True,
        )


class RegistryClient:
    """Asks a registry."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ssl: tls.SSLContext | None = None,
        timeout_s: float = 10.0,
        retries: int = 3,
        cached: int = 1000,
        latest_ttl_s: float = 300.0,
    ) -> None:
        """`url` is one address or several, as a list or separated by commas; `http://user:password@host:port` works.
        ConfigError."""
        texts = [each.strip() for each in url.split(",")] if isinstance(url, str) else list(url)
        self._addresses = [_Address.of(text) for text in texts if text]
        if not self._addresses:
            raise ConfigError(f"the registry's address is {url!r}", hint="Write http://HOST:PORT")
        if token is not None and user is not None:
            raise ConfigError("token and user contradict each other", hint="Give one of them")
        self._headers = {"Accept": CONTENT_TYPE}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        elif user is not None:
            self._headers["Authorization"] = _basic(user, password or "")
        self._ssl = ssl
        self._timeout_s = timeout_s
        self._retries = retries
        self._lock = threading.Lock()
        self._idle: list[tuple[_Address, HTTPConnection]] = []
        self._cache: OrderedDict[Hashable, tuple[RegisteredSchema, float]] = OrderedDict()
        self._cached = cached
        self._latest_ttl_s = latest_ttl_s
        self._preferred = 0
        # A serializer that was given an address owns its client, and nobody closes a serializer.
        weakref.finalize(self, _close_all, self._idle)

    # --- schemas

    def register(self, subject: str, schema: RegistrySchema, *, normalize: bool = False) -> RegisteredSchema:
        """Register a schema under a subject; the same schema is registered once. RegistryRequestFailed (409) if it is
        not compatible with earlier versions."""

        def ask() -> RegisteredSchema:
            path = f"/subjects/{_quoted(subject)}/versions?normalize={_flag(normalize)}"
            return RegisteredSchema.of(self.request("POST", path, schema.document()), schema, subject)

        return self._remembered(("register", subject, schema, normalize), ask)

    def look_up(
        self, subject: str, schema: RegistrySchema, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema:
        """The version of a subject that has this schema."""

        def ask() -> RegisteredSchema:
            path = f"/subjects/{_quoted(subject)}?normalize={_flag(normalize)}&deleted={_flag(deleted)}"
            return RegisteredSchema.of(self.request("POST", path, schema.document()), schema, subject)

        return self._remembered(("look up", subject, schema, normalize, deleted), ask)

    def by_id(self, schema_id: int, *, subject: str = "", format: str = "") -> RegisteredSchema:  # noqa: A002
        """The schema with an id, in the context of the subject."""

        def ask() -> RegisteredSchema:
            path = f"/schemas/ids/{schema_id}?subject={_quoted(subject)}&format={_quoted(format)}"
            return RegisteredSchema.of({"id": schema_id, **self.request("GET", path)})

        return self._remembered(("id", schema_id, subject, format), ask)

    def by_guid(self, guid: str, *, format: str = "") -> RegisteredSchema:  # noqa: A002
        """The schema with a GUID, in any context."""

        def ask() -> RegisteredSchema:
            path = f"/schemas/guids/{_quoted(guid)}?format={_quoted(format)}"
            return RegisteredSchema.of({"guid": guid, **self.request("GET", path)})

        return self._remembered(("guid", guid, format), ask)

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject; remembered for `latest_ttl_s`."""
        return self._remembered(("latest", subject), lambda: self.version(subject, "latest"), ttl_s=self._latest_ttl_s)

    def version(
        self,
        subject: str,
        version: int | str,
        *,
        deleted: bool = False,
        format: str = "",  # noqa: A002
    ) -> RegisteredSchema:
        """A version of a subject; "latest" works too."""
        path = f"/subjects/{_quoted(subject)}/versions/{version}?deleted={_flag(deleted)}&format={_quoted(format)}"
        return RegisteredSchema.of(self.request("GET", path))

    def referenced(self, schema: RegistrySchema) -> dict[str, RegisteredSchema]:
        """What a schema refers to, directly or not, by name, dependencies first."""
        found: dict[str, RegisteredSchema] = {}
        self._add_referenced(schema, found)
        return found

    def _add_referenced(self, schema: RegistrySchema, found: dict[str, RegisteredSchema]) -> None:
        for each in schema.references:
            if each.name not in found:
                key = ("version", each.subject, each.version)
                target = self._remembered(key, lambda each=each: self.version(each.subject, each.version, deleted=True))  # type: ignore[misc]
                self._add_referenced(target.schema, found)
                found[each.name] = target

    # --- requests

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of the answer. RegistryRequestFailed if the registry rejects it,
        RegistryUnreachable if none answers."""
        from http.client import HTTPException

        data = None if body is None else json.dumps(body).encode()
        failure: Exception | None = None
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(_PAUSE_S * 2 ** (attempt - 1))
            for offset in range(len(self._addresses)):
                index = (self._preferred + offset) % len(self._addresses)
                try:
                    answer = self._sent(self._addresses[index], method, path, data)
                except (OSError, HTTPException) as error:
                    failure = error
                    continue
                self._preferred = index
                if answer.status not in _RETRIED or attempt == self._retries:
                    return answer.value(method, path)
                failure = None
                break
        where = ", ".join(str(each) for each in self._addresses)
        raise RegistryUnreachable(f"the schema registry at {where} cannot be reached: {failure}") from failure

    def _sent(self, address: _Address, method: str, path: str, data: bytes | None) -> _Answer:
        from http.client import HTTPException

        headers = dict(self._headers)
        if address.authorization and "Authorization" not in headers:
            headers["Authorization"] = address.authorization
        if data is not None:
            headers["Content-Type"] = CONTENT_TYPE
        connection, is_used = self._taken(address)
        try:
            connection.request(method, address.path + path, body=data, headers=headers)
            response = connection.getresponse()
            content = response.read(_ANSWER_BYTES)
        except (OSError, HTTPException):
            connection.close()
            if not is_used:
                raise
            # The registry may have closed an idle connection meanwhile.
            return self._sent(address, method, path, data)
        except BaseException:
            connection.close()
            raise
        if response.will_close or not response.isclosed():
            connection.close()
        else:
            self._give_back(address, connection)
        return _Answer(response.status, content)

    def _taken(self, address: _Address) -> tuple[HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        import ssl as tls
        from http.client import HTTPConnection, HTTPSConnection

        with self._lock:
            for place, (known, connection) in enumerate(self._idle):
                if known == address:
                    del self._idle[place]
                    return connection, True
        if address.is_tls:
            context = self._ssl or tls.create_default_context()
            return HTTPSConnection(address.host, address.port, timeout=self._timeout_s, context=context), False
        return HTTPConnection(address.host, address.port, timeout=self._timeout_s), False

    def _give_back(self, address: _Address, connection: HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_MAX:
                self._idle.append((address, connection))
                return
        connection.close()

    def close(self) -> None:
        """Close idle connections; the client can still be used."""
        with self._lock:
            _close_all(self._idle)

    # --- memory

    def _remembered(
        self, key: Hashable, ask: Callable[[], RegisteredSchema], ttl_s: float = float("inf")
    ) -> RegisteredSchema:
        now_s = time.monotonic()
        with self._lock:
            found = self._cache.get(key)
            if found is not None and found[1] > now_s:
                self._cache.move_to_end(key)
                return found[0]
        value = ask()
        with self._lock:
            self._cache[key] = value, now_s + ttl_s
            self._cache.move_to_end(key)
            while len(self._cache) > self._cached:
                self._cache.popitem(last=False)
        return value

    def __repr__(self) -> str:
        return f"RegistryClient({', '.join(str(each) for each in self._addresses)!r})"


def _close_all(idle: list[tuple[_Address, HTTPConnection]]) -> None:
    while idle:
        idle.pop()[1].close()


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    port: int | None
    is_tls: bool
    path: str
    authorization: str = field(repr=False, default="")

    @classmethod
    def of(cls, text: str) -> _Address:
        from urllib.parse import unquote, urlsplit

        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"the registry's address {text!r} is not valid: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the registry's address is {text!r}", hint="Write http://HOST:PORT or https://HOST:PORT")
        user = "" if parts.username is None else _basic(unquote(parts.username), unquote(parts.password or ""))
        return cls(parts.hostname, port, parts.scheme == "https", parts.path.rstrip("/"), user)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{'https' if self.is_tls else 'http'}://{host}{port}{self.path}"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content: bytes

    def value(self, method: str, path: str) -> Any:
        try:
            found = json.loads(self.content) if self.content else None
        except ValueError:
            found = None
        if 200 <= self.status < 300:
            return found
        document = found if isinstance(found, dict) else {}
        message = document.get("message") or f"HTTP status {self.status}"
        code = document.get("error_code")
        raise RegistryRequestFailed(
            f"the schema registry rejected {method} {path.partition('?')[0]}: {message}",
            status=self.status,
            error_code=code if isinstance(code, int) else self.status,
        )


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _flag(value: bool) -> str:
    return "true" if value else "false"


Registry = RegistryClient | str | Sequence[str]


def registry_from(given: Registry) -> RegistryClient:
    """The client for an option `registry`: itself, or one for an address."""
    return given if isinstance(given, RegistryClient) else RegistryClient(given)
