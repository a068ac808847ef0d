"""Protocol Buffers: messages of one class, which protoc generated."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from penstock.client.errors import ConfigError
from penstock.client.serializers.base import load_optional, not_decodable, not_encodable


class _Message(Protocol):
    """The part of a generated class that is used here."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802 - Google's name


M = TypeVar("M", bound=_Message)


class Protobuf(Generic[M]):
    """Messages of a generated class, without a frame around them."""

    def __init__(self, message_class: type[M]) -> None:
        library = load_optional("google.protobuf.message", "protobuf", "protobuf", "the Protobuf serializer")
        given: Any = message_class
        if not (isinstance(given, type) and issubclass(given, library.Message)):
            raise ConfigError(
                f"Protobuf: {message_class!r} is not a generated message class",
                hint="Give the class from the *_pb2 module that protoc wrote",
            )
        self.message_class = message_class
        self._class: Any = given
        self._encode_error: type[Exception] = library.EncodeError
        self._decode_error: type[Exception] = library.DecodeError

    def encode(self, topic: str, value: M | None) -> bytes | None:
        """A message as bytes; raises SerializationError."""
        if value is None:
            return None
        if not isinstance(value, self.message_class):
            raise not_encodable(str(self), topic, value, f"it is not a {self.message_class.__name__}")
        try:
            return value.SerializeToString()
        except (self._encode_error, ValueError) as error:
            raise not_encodable(str(self), topic, value, error) from error

    def decode(self, topic: str, data: bytes) -> M:
        """The message; raises DeserializationError."""
        try:
            decoded: M = self._class.FromString(data)
        except self._decode_error as error:
            raise not_decodable(str(self), topic, data, error) from error
        return decoded

    def __repr__(self) -> str:
        return f"Protobuf({self.message_class.__name__})"
