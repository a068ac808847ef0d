"""Encoder, Decoder and Serializer protocols; `Bytes`, `Text`, and serializers made of functions.

Any object with these methods works; there is no base class. Wherever a client takes a serializer it also takes a
function of one argument, as kafka-python and aiokafka do. None means "no value" (a tombstone in a compacted topic),
stays None, and is never passed to a decoder. Failures raise SerializationError or DeserializationError with the topic
and the cause.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from penstock.client.errors import ConfigError, DeserializationError, MissingDependency, SerializationError

T = TypeVar("T")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

_SHOWN_BYTES = 24


class Encoder(Protocol[In_contra]):
    """Turns values of a topic into bytes."""

    def encode(self, topic: str, value: In_contra) -> bytes | None: ...


class Decoder(Protocol[Out_co]):
    """Turns bytes of a topic into values."""

    def decode(self, topic: str, data: bytes) -> Out_co: ...


@runtime_checkable
class HeaderEncoder(Encoder[In_contra], Protocol[In_contra]):
    """An encoder that adds headers to the record. Producers call this instead of `encode`."""

    def encode_with_headers(self, topic: str, value: In_contra) -> tuple[bytes | None, Sequence[tuple[str, bytes]]]: ...


@runtime_checkable
class HeaderDecoder(Decoder[Out_co], Protocol[Out_co]):
    """A decoder that looks at the headers of the record. Consumers call this instead of `decode`."""

    def decode_with_headers(self, topic: str, data: bytes, headers: Sequence[tuple[str, bytes | None]]) -> Out_co: ...


AnyEncoder = Encoder[In_contra] | Callable[[In_contra], bytes | None]
AnyDecoder = Decoder[Out_co] | Callable[[bytes], Out_co]


class Serializer(Encoder[T], Decoder[T], Protocol[T]):
    """Encodes and decodes."""


def load_optional(module: str, package: str, extra: str, purpose: str) -> ModuleType:
    """A module of an optional package; raises MissingDependency."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(package, purpose, extra, error) from error


def not_encodable(serializer: str, topic: str, value: object, why: object, hint: str = "") -> SerializationError:
    return SerializationError(
        f"{serializer} cannot encode a {type(value).__name__} for topic {topic}: {why}",
        topic=topic,
        hint=hint or f"Send a value that {serializer} accepts, or use another serializer",
    )


def not_decodable(serializer: str, topic: str, data: bytes, why: object, hint: str = "") -> DeserializationError:
    shown = data[:_SHOWN_BYTES].hex() + ("..." if len(data) > _SHOWN_BYTES else "")
    return DeserializationError(
        f"{serializer} cannot decode {len(data)} bytes ({shown}) of topic {topic}: {why}",
        topic=topic,
        data=data,
        hint=hint or "The record was written with another serializer, or in another version of its format",
    )


class Bytes:
    """Bytes as they are; accepts any object with a buffer."""

    def encode(self, topic: str, value: bytes | bytearray | memoryview | None) -> bytes | None:
        """The bytes of a value; raises SerializationError."""
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise not_encodable("Bytes", topic, value, "it is not bytes", "Encode it first, or use Text() or Json()")

    def decode(self, topic: str, data: bytes) -> bytes:
        """The same bytes."""
        return data

    def __repr__(self) -> str:
        return "Bytes()"


class Text:
    """Text in an encoding, by default UTF-8."""

    def __init__(self, encoding: str = "utf-8") -> None:
        try:
            "".encode(encoding)
        except LookupError as error:
            raise ConfigError(f"Text: {error}", hint="Use a name from Python's list of standard encodings") from error
        self.encoding = encoding

    def encode(self, topic: str, value: str | None) -> bytes | None:
        """The bytes of a string; raises SerializationError."""
        if value is None:
            return None
        if not isinstance(value, str):
            raise not_encodable("Text", topic, value, "it is not a str")
        try:
            return value.encode(self.encoding)
        except UnicodeError as error:
            raise not_encodable("Text", topic, value, error) from error

    def decode(self, topic: str, data: bytes) -> str:
        """The text; raises DeserializationError."""
        try:
            return str(data, self.encoding)
        except UnicodeError as error:
            raise not_decodable("Text", topic, data, error) from error

    def __repr__(self) -> str:
        return f"Text({self.encoding!r})"


class _EncodingFunction(Generic[T]):
    def __init__(self, encode: Callable[[T], bytes]) -> None:
        self._encode = encode

    def encode(self, topic: str, value: T | None) -> bytes | None:
        if value is None:
            return None
        try:
            data: Any = self._encode(value)
        except Exception as error:
            raise not_encodable(repr(self), topic, value, f"{type(error).__name__}: {error}") from error
        if not isinstance(data, bytes):
            raise not_encodable(repr(self), topic, value, f"the function returned a {type(data).__name__}, not bytes")
        return data

    def __repr__(self) -> str:
        return _name_of(self._encode)


class _DecodingFunction(Generic[T]):
    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode

    def decode(self, topic: str, data: bytes) -> T:
        try:
            return self._decode(data)
        except Exception as error:
            raise not_decodable(repr(self), topic, data, f"{type(error).__name__}: {error}") from error

    def __repr__(self) -> str:
        return _name_of(self._decode)


class _Callables(_EncodingFunction[T], _DecodingFunction[T]):
    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        _EncodingFunction.__init__(self, encode)
        _DecodingFunction.__init__(self, decode)

    def __repr__(self) -> str:
        return f"from_callables({_name_of(self._encode)}, {_name_of(self._decode)})"


def from_callables(encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> Serializer[T]:
    """A serializer made of two functions: `from_callables(pickle.dumps, pickle.loads)`. None is not passed to them."""
    return _Callables(encode, decode)


def encoder_from(given: Any, option: str) -> Encoder[Any] | None:
    """The encoder for an option of a producer: an object with `encode`, or a function of the value."""
    if given is None or (hasattr(given, "encode") and not isinstance(given, (type, str))):
        return cast("Encoder[Any] | None", _for_field(given, option))
    _check_function(given, option, "encode", "a serializer, such as Json(), or a function from a value to bytes")
    return _EncodingFunction(given)


def decoder_from(given: Any, option: str) -> Decoder[Any] | None:
    """The decoder for an option of a consumer: an object with `decode`, or a function of the bytes."""
    if given is None or (hasattr(given, "decode") and not isinstance(given, (type, bytes, bytearray))):
        return cast("Decoder[Any] | None", _for_field(given, option))
    _check_function(given, option, "decode", "a serializer, such as Json(), or a function from bytes to a value")
    return _DecodingFunction(given)


def _for_field(given: Any, option: str) -> Any:
    """Serializers with a registry have another subject for keys than for values, and other methods."""
    bound = getattr(given, "for_field", None)
    return given if bound is None else bound(option)


def _check_function(given: object, option: str, method: str, wanted: str) -> None:
    if isinstance(given, type) and hasattr(given, method):
        raise ConfigError(f"{option} is the class {given.__name__}", hint=f"Give an instance: {given.__name__}()")
    if not callable(given):
        raise ConfigError(f"{option} is {given!r}", hint=f"Give {wanted}")


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", repr(function)))
