"""Serializers with a schema registry: which schema, under which subject, and where its id is written.

    prefix    byte 0, the id as int32, for Protobuf the message's indexes, then the value
    header    the record header `__value_schema_id` (`__key_schema_id`): byte 1, the GUID, and those indexes

Readers understand both. A serializer such as `Avro(View, registry=...)` describes its schema and turns values into
bytes (`SchemaCodec`); what is here is the same for all three. The first record with a schema asks the registry, which
blocks; in an asyncio program call `prepare(topic)` on a thread before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args
from uuid import UUID

from penstock.client.errors import ConfigError, PenstockError
from penstock.client.serializers.base import not_decodable, not_encodable
from penstock.client.serializers.registry_client import (
    RegisteredSchema,
    RegistryClient,
    RegistrySchema,
    registry_from,
)

T = TypeVar("T")
Field = Literal["key", "value"]
Framing = Literal["prefix", "header"]
Strategy = Literal["topic", "record", "topic_record"]
SubjectName = Callable[[str, Field, str], str]
Headers = Sequence[tuple[str, bytes | None]]

_PREFIX: Final = struct.Struct(">bI")
_BY_ID: Final = 0
_BY_GUID: Final = 1
_GUID_BYTES: Final = 16
_STRATEGIES: Final[dict[str, SubjectName]] = {
    "topic": lambda topic, field, record: f"{topic}-{field}",
    "record": lambda topic, field, record: record,
    "topic_record": lambda topic, field, record: f"{topic}-{record}",
}


class SchemaCodec(Protocol[T]):
    """What a format brings."""

    name: str
    kind: str

    def writer(self, register: Callable[[str, RegistrySchema], RegisteredSchema]) -> tuple[RegistrySchema, str] | None:
        """The schema to write with, and the name of its record; None if only the registry knows it. `register` finds
        or registers a schema that it refers to."""

    def encode_payload(self, topic: str, value: T, written: RegisteredSchema | None) -> bytes:
        """A value in the given schema, or in the writer's own."""

    def decode_payload(self, topic: str, data: bytes, written: RegisteredSchema) -> T:
        """A value that was written with a schema."""

    @property
    def indexes(self) -> bytes:
        """What follows the id: for Protobuf the place of the message."""

    def skip_indexes(self, data: bytes, position: int) -> int:
        """Where the value begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """How a serializer uses its registry.

    `auto_register` registers the schema of the serializer; without it the schema must be there. `use_latest` writes
    with the latest version of the subject. `subject` is "topic", "record", "topic_record", or a function of topic,
    field ("key" or "value") and record name.
    """

    client: RegistryClient
    auto_register: bool = True
    use_latest: bool = False
    normalize: bool = False
    framing: Framing = "prefix"
    subject: Strategy | SubjectName = "topic"

    @classmethod
    def of(cls, serializer: str, registry: Any, **given: Any) -> RegistryOptions | None:
        """The options of a serializer; None without a registry. ConfigError."""
        if registry is None:
            defaults = {"auto_register": True, "use_latest": False, "normalize": False, "subject": "topic"}
            changed = [name for name, value in defaults.items() if given[name] != value]
            if changed:
                raise ConfigError(f"{serializer}: {changed[0]} needs a registry", hint="Pass registry=")
            return None
        framing = given.get("framing") or "prefix"
        if framing not in get_args(Framing):
            raise ConfigError(f"{serializer}: framing {framing!r} is not known", hint="Use 'prefix' or 'header'")
        subject = given.get("subject", "topic")
        if not callable(subject) and subject not in _STRATEGIES:
            raise ConfigError(
                f"{serializer}: subject {subject!r} is not known", hint=f"Use {', '.join(_STRATEGIES)}, or a function"
            )
        return cls(client=registry_from(registry), **{**given, "framing": framing})

    def subject_of(self, topic: str, field: Field, record: str) -> str:
        strategy = self.subject if callable(self.subject) else _STRATEGIES[self.subject]
        return strategy(topic, field, record)


class _Choice(NamedTuple):
    """What a topic is written with."""

    registered: RegisteredSchema
    is_own: bool
    prefix: bytes
    headers: tuple[tuple[str, bytes], ...]


class Framed(Generic[T]):
    """A serializer with a registry, for keys or for values."""

    def __init__(self, codec: SchemaCodec[T], options: RegistryOptions, field: Field) -> None:
        self._codec = codec
        self._options = options
        self._field = field
        self._header = f"__{field}_schema_id"
        self._chosen: dict[str, _Choice] = {}
        self._readable: dict[int | str, RegisteredSchema] = {}

    # --- writing

    def prepare(self, topic: str) -> RegisteredSchema:
        """Ask the registry now for what the first record to a topic would ask. RegistryError."""
        return self._choice(topic).registered

    def encode(self, topic: str, value: T | None) -> bytes | None:
        """Bytes with the id in front; raises SerializationError."""
        if self._options.framing == "header" and value is not None:
            why = "framing='header' writes the id of the schema into a header"
            raise not_encodable(self._codec.name, topic, value, why, "Give the serializer to a producer of Penstock")
        return self.encode_with_headers(topic, value)[0]

    def encode_with_headers(self, topic: str, value: T | None) -> tuple[bytes | None, Sequence[tuple[str, bytes]]]:
        """Bytes, and headers to add; raises SerializationError."""
        if value is None:
            return None, ()
        choice = self._chosen.get(topic)
        if choice is None or self._options.use_latest:
            try:
                choice = self._choice(topic)
            except PenstockError as error:
                raise not_encodable(self._codec.name, topic, value, error.message, error.hint) from error
        payload = self._codec.encode_payload(topic, value, None if choice.is_own else choice.registered)
        return choice.prefix + payload, choice.headers

    def _choice(self, topic: str) -> _Choice:
        options, client = self._options, self._options.client
        own = self._codec.writer(self._registered_reference)
        record = "" if own is None else own[1]
        subject = options.subject_of(topic, self._field, record)
        if not subject:
            raise ConfigError(f"{self._codec.name}: the schema has no name, so there is no subject for topic {topic}")
        if options.use_latest or own is None:
            registered, is_own = client.latest(subject), False
        elif options.auto_register:
            registered, is_own = client.register(subject, own[0], normalize=options.normalize), True
        else:
            registered, is_own = client.look_up(subject, own[0], normalize=options.normalize), True
        chosen = self._chosen[topic] = self._framed(registered, is_own)
        return chosen

    def _framed(self, registered: RegisteredSchema, is_own: bool) -> _Choice:
        indexes = self._codec.indexes
        if self._options.framing == "prefix":
            return _Choice(registered, is_own, _PREFIX.pack(_BY_ID, registered.id) + indexes, ())
        if not registered.guid:
            raise ConfigError(
                "the schema registry knows no GUIDs, which framing='header' writes", hint="Use framing='prefix'"
            )
        header = bytes([_BY_GUID]) + UUID(registered.guid).bytes + indexes
        return _Choice(registered, is_own, b"", ((self._header, header),))

    def _registered_reference(self, subject: str, schema: RegistrySchema) -> RegisteredSchema:
        client, normalize = self._options.client, self._options.normalize
        if self._options.auto_register:
            client.register(subject, schema, normalize=normalize)
        return client.look_up(subject, schema, normalize=normalize)

    # --- reading

    def decode(self, topic: str, data: bytes) -> T:
        """The value of bytes with the id in front; raises DeserializationError."""
        return self.decode_with_headers(topic, data, ())

    def decode_with_headers(self, topic: str, data: bytes, headers: Headers) -> T:
        """The value, by the header if there is one, else by the prefix; raises DeserializationError."""
        frame = next((content for name, content in reversed(headers) if name == self._header and content), None)
        try:
            reference, start = _reference_of(data if frame is None else frame)
            start = self._codec.skip_indexes(data if frame is None else frame, start)
        except (ValueError, IndexError) as error:
            hint = "It may have been written without a registry"
            raise not_decodable(self._codec.name, topic, data, error, hint) from error
        payload = data[start:] if frame is None else data
        return self._codec.decode_payload(topic, payload, self._schema_of(topic, data, reference))

    def _schema_of(self, topic: str, data: bytes, reference: int | str) -> RegisteredSchema:
        found = self._readable.get(reference)
        if found is not None:
            return found
        client = self._options.client
        try:
            if isinstance(reference, int):
                found = client.by_id(reference, subject=self._readers_subject(topic))
            else:
                found = client.by_guid(reference)
        except PenstockError as error:
            why = f"its schema {reference} could not be loaded: {error.message}"
            raise not_decodable(self._codec.name, topic, data, why, error.hint) from error
        if len(self._readable) > _READABLE_MAX:
            self._readable.clear()
        self._readable[reference] = found
        return found

    def _readers_subject(self, topic: str) -> str:
        """The subject whose context has the id; only those of the topic are known before the schema is."""
        return f"{topic}-{self._field}" if self._options.subject == "topic" else ""

    def __repr__(self) -> str:
        return f"{self._codec.name}(registry={self._options.client!r})"


_READABLE_MAX: Final = 1000


def _reference_of(frame: bytes) -> tuple[int | str, int]:
    """The id or the GUID at the begin of a frame, and where it ends. ValueError."""
    if len(frame) >= _PREFIX.size and frame[0] == _BY_ID:
        return int(_PREFIX.unpack_from(frame)[1]), _PREFIX.size
    if len(frame) > _GUID_BYTES and frame[0] == _BY_GUID:
        return str(UUID(bytes=bytes(frame[1 : 1 + _GUID_BYTES]))), 1 + _GUID_BYTES
    raise ValueError("it does not start with the id of a schema")
