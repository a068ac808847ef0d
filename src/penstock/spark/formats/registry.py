"""What `penstock.decode` asks a schema registry for: the reader's schema once, the writers' when they are met.

The driver finds the reader's schema when a query starts and puts it into the spec, so all tasks of a query agree on
it. Each worker process has one client for each registry, which remembers schemas by id and GUID for good, and for a
while that there is none. A record whose schema is unknown does not match; a registry that does not answer is no
property of a record: the task fails, and Spark tries it again.
"""

from __future__ import annotations

import base64
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from penstock.client.errors import (
    ConfigError,
    DeserializationError,
    RegistryError,
    RegistryRequestFailed,
)
from penstock.client.serializers.base import load_optional
from penstock.client.serializers.registry_client import RegisteredSchema, RegistryClient
from penstock.security.credentials import CredentialsError, resolve
from penstock.spark.errors import one_line

_log = logging.getLogger("penstock.spark")

HEADER: Final = "__value_schema_id"
KINDS: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
_OPTION: Final = "penstock.decode.registry"
_REFERENCES: Final = ("file:", "env:")
_UNKNOWN_TTL_S: Final = 30.0
_UNKNOWN_MAX: Final = 10_000
_CLIENTS: Final = 16


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """A registry, and how to log in. Secrets may be `file:/path` or `env:NAME`, which each process follows."""

    url: str
    subject: str = ""
    """The subject whose context has the ids, "" for the default context."""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    authorities: str = field(default="", repr=False)
    """Certificates (PEM) of the authority of an HTTPS registry."""


class ReaderSchema(NamedTuple):
    """A schema as a spec has it: the text of an Avro schema, the columns of a JSON Schema as Spark's schema JSON, or
    the name of a Protobuf message and its descriptors."""

    id: int
    text: str
    descriptors: bytes = b""


def registry_access(
    url: str, subject: str = "", *, user: str = "", password: str = "", token: str = "", ca: str = ""
) -> RegistryAccess:
    """Checks settings and reads the file `ca`, which executors may not have. ConfigError."""
    for each in url.split(","):
        try:
            has_login = "@" in urlsplit(each.strip()).netloc
        except ValueError:
            has_login = False
        if has_login:
            hint = f"Set {_OPTION}.user and {_OPTION}.password; plans show addresses"
            raise ConfigError("the registry's address contains a login", hint=hint)
    RegistryClient(url)
    if token and (user or password):
        raise ConfigError(f"{_OPTION}.token and a user contradict each other", hint="Set one of them")
    if bool(user) != bool(password):
        raise ConfigError(f"{_OPTION}.user and {_OPTION}.password belong together", hint="Set both")
    for name, secret in (("password", password), ("token", token)):
        if secret and not secret.startswith(_REFERENCES):
            _warn_of(name)
    return RegistryAccess(url, subject, user, password, token, _authorities(ca))


def _authorities(path: str) -> str:
    import ssl

    if not path:
        return ""
    place = path.removeprefix("file:")
    try:
        text = Path(place).expanduser().read_text(encoding="ascii")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        hint = "Give a PEM file of certificates; it must exist on the driver"
        raise ConfigError(f"cannot use {_OPTION}.ca {place}: {one_line(error)}", hint=hint) from None
    return text


@functools.cache
def _warn_of(name: str) -> None:
    """Log a warning, once per process: options are parsed for every batch."""
    _log.warning(
        "secret as plain text in an option, which Spark keeps with the query: option=%s.%s. Write file:/path or "
        "env:NAME, which executors follow", _OPTION, name,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- one client per worker


class WorkerRegistry(RegistryClient):
    """A client that remembers for a while what the registry does not have, and looks in the context of one subject."""

    def __init__(self, access: RegistryAccess) -> None:
        import ssl

        try:
            password, token = resolve(access.password), resolve(access.token)
        except CredentialsError as error:
            raise ConfigError(
                f"the registry's login: {error}", hint="Executors need it as well as the driver"
            ) from None
        super().__init__(
            access.url,
            user=access.user or None,
            password=password or None,
            token=token or None,
            ssl=ssl.create_default_context(cadata=access.authorities) if access.authorities else None,
        )
        self._subject = access.subject
        self._unknown: dict[int | str, tuple[RegistryRequestFailed, float]] = {}
        self._unknown_lock = threading.Lock()

    def by_id(self, schema_id: int, *, subject: str = "", format: str = "") -> RegisteredSchema:  # noqa: A002
        ask = functools.partial(super().by_id, schema_id, subject=self._subject, format=format)
        return self._unless_unknown(schema_id, ask)

    def by_guid(self, guid: str, *, format: str = "") -> RegisteredSchema:  # noqa: A002
        return self._unless_unknown(guid, functools.partial(super().by_guid, guid, format=format))

    def _unless_unknown(self, reference: int | str, ask: Callable[[], RegisteredSchema]) -> RegisteredSchema:
        known = self._unknown.get(reference)
        if known is not None and known[1] > time.monotonic():
            raise known[0]
        try:
            return ask()
        except RegistryRequestFailed as error:
            if is_unknown(error):
                with self._unknown_lock:
                    if len(self._unknown) >= _UNKNOWN_MAX:
                        self._unknown.clear()
                    self._unknown[reference] = error, time.monotonic() + _UNKNOWN_TTL_S
            raise


@functools.lru_cache(maxsize=_CLIENTS)
def client_of(access: RegistryAccess) -> WorkerRegistry:
    """The client of this process. ConfigError."""
    return WorkerRegistry(access)


def is_unknown(error: BaseException) -> bool:
    """Whether the registry answered that there is no such schema, subject or version."""
    return isinstance(error, RegistryRequestFailed) and error.status == 404


# ---------------------------------------------------------------------------------------------- values of writers


def framed_reader(serializer: Any) -> Callable[[bytes, bytes | None], Any]:
    """Reads a value and its header, if there is one, with a serializer of the client that has a registry.

    Raises Undecodable; RegistryError if the registry does not answer or rejects the login.
    """
    from penstock.spark.formats.decoder import Undecodable, undecodable

    framed = serializer.for_field("value")

    def read(data: bytes, header: bytes | None) -> Any:
        try:
            return framed.decode_with_headers("", data, () if header is None else ((HEADER, header),))
        except DeserializationError as error:
            cause = error.__cause__
            if cause is not None and is_unknown(cause):
                raise Undecodable(f"its schema is unknown: {one_line(cause)}") from None
            if isinstance(cause, RegistryError):
                raise cause from None
            raise undecodable(error) from None

    return read


# ---------------------------------------------------------------------------------------------- the reader's schema


def reader_schema(name: str, access: RegistryAccess, message: str = "", schema_id: int = -1) -> ReaderSchema:
    """The latest version of the subject, or the schema with an id, for a format. ConfigError, RegistryError."""
    if not access.subject:
        hint = "Set penstock.decode.subject, or give a schema: only a query over one topic has a subject of its own"
        raise ConfigError("no subject is known to take the schema from", hint=hint)
    client = client_of(access)
    wanted = {"protobuf": "serialized", "avro": "resolved"}.get(name, "")
    try:
        if schema_id >= 0:
            found = client.by_id(schema_id, format=wanted)
        else:
            found = client.version(access.subject, "latest", format=wanted)
    except RegistryRequestFailed as error:
        if not is_unknown(error):
            raise
        hint = "Register it, set penstock.decode.subject, or give a schema"
        raise ConfigError(f"the registry has no schema for {access.subject}: {one_line(error)}", hint=hint) from None
    if found.schema.kind != KINDS[name]:
        hint = f'Write penstock.decode = "{found.schema.kind.lower()}"'
        raise ConfigError(
            f"the schema of {access.subject} is of type {found.schema.kind}, not {KINDS[name]}", hint=hint
        )
    if name == "avro":
        return ReaderSchema(found.id, found.schema.text)
    if name == "json":
        return _json_schema(client, found, access.subject)
    return _protobuf_schema(client, found, message)


def _json_schema(client: RegistryClient, found: RegisteredSchema, subject: str) -> ReaderSchema:
    from penstock.spark.formats.json_schema import struct_of_json_schema

    references = {name: each.schema.text for name, each in client.referenced(found.schema).items()}
    return ReaderSchema(found.id, struct_of_json_schema(found.schema.text, references, subject).json())


def _protobuf_schema(client: RegistryClient, found: RegisteredSchema, message: str) -> ReaderSchema:
    pb2: Any = load_optional("google.protobuf.descriptor_pb2", "protobuf", "protobuf", "decoding Protobuf")
    files: dict[str, Any] = {}

    def add(name: str, registered: RegisteredSchema) -> Any:
        for each in registered.schema.references:
            if each.name not in files:
                target = client.version(each.subject, each.version, deleted=True, format="serialized")
                # Its own name need not be the one under which it is imported.
                add(each.name, target).name = each.name
        try:
            file = pb2.FileDescriptorProto.FromString(base64.b64decode(registered.schema.text, validate=True))
        except Exception as error:  # noqa: BLE001 - the library raises errors of every kind
            hint = "Give a file of descriptors and a message instead"
            raise ConfigError(
                f"the registry does not return {name} as a descriptor: {one_line(error)}", hint=hint
            ) from None
        files[name] = file
        return file

    top = add("", found)
    top.name = top.name or "schema.proto"
    if not message and not top.message_type:
        raise ConfigError("the Protobuf schema has no message", hint="Set penstock.decode.message")
    first = f"{top.package}.{top.message_type[0].name}".lstrip(".") if top.message_type else ""
    descriptors = pb2.FileDescriptorSet(file=files.values()).SerializeToString(deterministic=True)
    return ReaderSchema(found.id, message or first, descriptors)


def subject_of(topics: Sequence[str]) -> str:
    """The subject of the values of a query's topics; "" if there is not exactly one topic."""
    return f"{topics[0]}-value" if len(topics) == 1 else ""
