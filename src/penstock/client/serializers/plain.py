"""Serializers without a format: bytes as they are, text, and a pair of functions of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.client.errors import ConfigError
from penstock.client.serializers.base import Serializer, not_decodable, not_encodable

T = TypeVar("T")


class Bytes:
    """Bytes as they are; takes whatever has a buffer."""

    def encode(self, topic: str, value: bytes | bytearray | memoryview | None) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise not_encodable("Bytes", topic, value, "it is not bytes", "Encode it first, or use Text() or Json()")

    def decode(self, topic: str, data: bytes) -> bytes:
        return data

    def __repr__(self) -> str:
        return "Bytes()"


class Text:
    """Text in an encoding, UTF-8 unless told otherwise."""

    def __init__(self, encoding: str = "utf-8") -> None:
        try:
            "".encode(encoding)
        except LookupError as error:
            raise ConfigError(f"Text: {error}", hint="Use a name from Python's list of standard encodings") from error
        self.encoding = encoding

    def encode(self, topic: str, value: str | None) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise not_encodable("Text", topic, value, "it is not a str")
        try:
            return value.encode(self.encoding)
        except UnicodeError as error:
            raise not_encodable("Text", topic, value, error) from error

    def decode(self, topic: str, data: bytes) -> str:
        try:
            return str(data, self.encoding)
        except UnicodeError as error:
            raise not_decodable("Text", topic, data, error) from error

    def __repr__(self) -> str:
        return f"Text({self.encoding!r})"


class _Callables(Generic[T]):
    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self._encode = encode
        self._decode = decode

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

    def decode(self, topic: str, data: bytes) -> T:
        try:
            return self._decode(data)
        except Exception as error:
            raise not_decodable(repr(self), topic, data, f"{type(error).__name__}: {error}") from error

    def __repr__(self) -> str:
        names = (getattr(each, "__qualname__", repr(each)) for each in (self._encode, self._decode))
        return f"from_callables({', '.join(names)})"


def from_callables(encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> Serializer[T]:
    """A serializer of two functions: `from_callables(pickle.dumps, pickle.loads)`; None never reaches them."""
    return _Callables(encode, decode)
