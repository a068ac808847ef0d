"""JSON, by msgspec: plain values, or a type that is checked while decoding.

    Json()          # dict, list, str, int, float, bool, None
    Json(View)      # a dataclass, a msgspec.Struct, a TypedDict, list[View], ...

With a type, decoding returns exactly that type or raises an error that names the field. Unknown fields are ignored,
so a writer may be newer than its readers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import msgspec

from penstock.client.errors import ConfigError
from penstock.client.serializers.base import not_decodable, not_encodable

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
    ) -> None: ...

    @overload
    def __init__(
        self,
        type: type[T],
        *,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
    ) -> None: ...

    def __init__(
        self,
        type: Any = None,  # noqa: A002 - the word that users expect
        *,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
    ) -> None:
        self.type = type
        self._record = type if is_record_type(type) else None
        self._encoder = msgspec.json.Encoder(enc_hook=enc_hook)
        try:
            self._decoder = msgspec.json.Decoder(Any if type is None else type, dec_hook=dec_hook)
        except TypeError as error:
            raise ConfigError(f"{self} is not possible: {error}", hint="Use a type that msgspec can decode") from error

    def encode(self, topic: str, value: T | None) -> bytes | None:
        """A value as JSON; raises SerializationError."""
        if value is None:
            return None
        if self._record is not None and not isinstance(value, self._record):
            raise not_encodable(str(self), topic, value, f"it is not a {self._record.__name__}")
        try:
            return self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise not_encodable(str(self), topic, value, error) from error

    def decode(self, topic: str, data: bytes) -> T:
        """The value; raises DeserializationError."""
        try:
            decoded: T = self._decoder.decode(data)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise not_decodable(str(self), topic, data, error) from error
        return decoded

    def __repr__(self) -> str:
        return "Json()" if self.type is None else f"Json({getattr(self.type, '__name__', self.type)})"


def is_record_type(kind: Any) -> bool:
    """Whether it is a dataclass or a msgspec.Struct."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))
