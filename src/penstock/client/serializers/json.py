"""JSON, by msgspec: plain values, or a type that is checked while decoding.

    Json()          # dict, list, str, int, float, bool, None
    Json(View)      # a dataclass, a msgspec.Struct, a TypedDict, list[View], ...
    Json(View, registry="http://localhost:8081")   # its JSON Schema is registered under topic-value

With a type, decoding returns exactly that type or raises an error that names the field. Unknown fields are ignored,
so a writer may be newer than its readers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

import msgspec

from penstock.client.errors import ConfigError
from penstock.client.serializers.base import not_decodable, not_encodable
from penstock.client.serializers.framed import Field, Framed, RegistryOptions, Strategy, SubjectName
from penstock.client.serializers.registry_client import RegisteredSchema, Registry, RegistrySchema

T = TypeVar("T")


class Json(Generic[T]):
    """JSON, of any value or of one type. The hooks are msgspec's, for types that it does not support."""

    @overload
    def __init__(
        self: Json[Any],
        type: None = None,
        *,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
        registry: Registry | None = None,
        schema: str | Mapping[str, Any] | None = None,
        framing: str = "prefix",
        auto_register: bool = True,
        use_latest: bool = False,
        normalize: bool = False,
        subject: Strategy | SubjectName = "topic",
    ) -> None: ...

    @overload
    def __init__(
        self,
        type: type[T],
        *,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
        registry: Registry | None = None,
        schema: str | Mapping[str, Any] | None = None,
        framing: str = "prefix",
        auto_register: bool = True,
        use_latest: bool = False,
        normalize: bool = False,
        subject: Strategy | SubjectName = "topic",
    ) -> None: ...

    def __init__(
        self,
        type: Any = None,  # noqa: A002 - the word that users expect
        *,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
        registry: Registry | None = None,
        schema: str | Mapping[str, Any] | None = None,
        framing: str = "prefix",
        auto_register: bool = True,
        use_latest: bool = False,
        normalize: bool = False,
        subject: Strategy | SubjectName = "topic",
    ) -> None:
        """With `registry`, an address or a `RegistryClient`, the JSON Schema of the type, or `schema`, is registered
        there, and each value carries its id; see `RegistryOptions`."""
        self.type = type
        self._record = type if is_record_type(type) else None
        self._encoder = msgspec.json.Encoder(enc_hook=enc_hook)
        try:
            self._decoder = msgspec.json.Decoder(Any if type is None else type, dec_hook=dec_hook)
        except TypeError as error:
            raise ConfigError(f"{self} is not possible: {error}", hint="Use a type that msgspec can decode") from error
        self._options = RegistryOptions.of(
            "Json",
            registry,
            auto_register=auto_register,
            use_latest=use_latest,
            normalize=normalize,
            framing=framing,
            subject=subject,
        )
        if schema is not None and self._options is None:
            raise ConfigError("Json: schema needs a registry", hint="Pass registry=")
        self._writer = None if self._options is None else _writer_of(type, schema)
        self._with_registry: Framed[T] | None = None if self._options is None else self.for_field("value")

    def for_field(self, field: Field) -> Any:
        """The serializer for keys or values; clients call this."""
        return self if self._options is None else Framed(_JsonCodec(self), self._options, field)

    def prepare(self, topic: str) -> None:
        """Ask the registry now for what the first value for a topic would ask."""
        if self._with_registry is not None:
            self._with_registry.prepare(topic)

    def encode(self, topic: str, value: T | None) -> bytes | None:
        """A value as JSON; raises SerializationError."""
        if value is None:
            return None
        if self._with_registry is not None:
            return self._with_registry.encode(topic, value)
        return self._written(topic, value)

    def _written(self, topic: str, value: T) -> bytes:
        if self._record is not None and not isinstance(value, self._record):
            raise not_encodable(str(self), topic, value, f"it is not a {self._record.__name__}")
        try:
            return self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise not_encodable(str(self), topic, value, error) from error

    def decode(self, topic: str, data: bytes) -> T:
        """The value; raises DeserializationError."""
        if self._with_registry is not None:
            return self._with_registry.decode(topic, data)
        return self._read(topic, data)

    def _read(self, topic: str, data: bytes) -> T:
        try:
            decoded: T = self._decoder.decode(data)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise not_decodable(str(self), topic, data, error) from error
        return decoded

    def __repr__(self) -> str:
        return "Json()" if self.type is None else f"Json({getattr(self.type, '__name__', self.type)})"


class _JsonCodec(Generic[T]):
    """JSON as `Framed` uses it. Values are checked by their type, not by the schema."""

    name = "Json"
    kind = "JSON"
    indexes = b""

    def __init__(self, serializer: Json[T]) -> None:
        self._json = serializer

    def writer(self, register: object) -> tuple[RegistrySchema, str] | None:
        return self._json._writer

    def encode_payload(self, topic: str, value: T, written: RegisteredSchema | None) -> bytes:
        return self._json._written(topic, value)

    def decode_payload(self, topic: str, data: bytes, written: RegisteredSchema) -> T:
        if written.schema.kind != self.kind:
            raise not_decodable(self.name, topic, data, f"schema {written.id} is of type {written.schema.kind}")
        return self._json._read(topic, data)

    def skip_indexes(self, data: bytes, position: int) -> int:
        return position


def _writer_of(kind: Any, schema: str | Mapping[str, Any] | None) -> tuple[RegistrySchema, str] | None:
    """The schema to register and its title; None if neither a type nor a schema is given. ConfigError."""
    if schema is None and kind is None:
        return None
    try:
        document = json.loads(schema) if isinstance(schema, str) else schema or msgspec.json.schema(kind)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"Json: there is no JSON Schema of {kind}: {error}", hint="Pass schema=") from error
    title = document.get("title") if isinstance(document, Mapping) else None
    name = title if isinstance(title, str) else str(getattr(kind, "__name__", ""))
    return RegistrySchema(json.dumps(document), "JSON"), name


def is_record_type(kind: Any) -> bool:
    """Whether it is a dataclass or a msgspec.Struct."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))
