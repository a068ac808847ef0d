"""Errors of the wire protocol, all of them `WireError`.

Bytes that cannot be read (`DecodeError`), a message that cannot be written (`EncodeError`), a frame length that is
rejected (`FrameError`), or an unknown API or version. Errors that could still be answered carry the correlation id; the
code that holds the socket decides between a response and closing the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

# Small frames are copies; a large one is a view of the memory that it was received into.
Frame: TypeAlias = bytes | memoryview


class WireError(Exception):
    """Base of the errors."""


class DecodeError(WireError):
    """The bytes are not a message of the given version."""


class Truncated(DecodeError):
    """The message ends before its fields do, or announces more elements than the bytes left can hold."""


class TooManyElements(DecodeError):
    """More array elements or tagged fields than the reader accepts."""


class InvalidLength(DecodeError):
    """An invalid length: below -1, too long for its type, or contradicting its content."""


class InvalidUtf8(DecodeError):
    """A string is not UTF-8."""


class UnexpectedNull(DecodeError):
    """Null where this version of the schema requires a value."""

    def __init__(self, field: str) -> None:
        super().__init__(f"{field} is null, which this version does not allow")
        self.field = field


class EncodeError(WireError):
    """A value that does not fit its field: wrong type, out of range, or null where that is not allowed."""


class FieldNotInVersion(EncodeError):
    """A value would be lost, because the version has no such field."""

    def __init__(self, message: str, field: str, version: int) -> None:
        super().__init__(f"{message} version {version} does not have the field {field}")
        self.message = message
        self.field = field
        self.version = version


class SchemaError(WireError):
    """A message class with invalid annotations: an error in the source, not in the data."""


class UnknownApi(WireError):
    """An API key without a schema."""

    def __init__(self, api_key: int, api_version: int | None = None, correlation_id: int | None = None) -> None:
        super().__init__(f"unknown API key {api_key}")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


class UnknownVersion(WireError):
    """A version outside the range of a message or API."""

    def __init__(
        self,
        name: str,
        version: int,
        lowest: int,
        highest: int,
        *,
        api_key: int | None = None,
        correlation_id: int | None = None,
    ) -> None:
        super().__init__(f"unknown version {version} of {name}; known are {lowest} to {highest}")
        self.version = version
        self.lowest = lowest
        self.highest = highest
        self.api_key = api_key
        self.correlation_id = correlation_id


class FrameError(WireError):
    """An invalid length prefix. Nothing after it on the connection can be used.

    `frames` are the complete frames before it in the same piece of the stream.
    """

    def __init__(self, reason: str, size: int, frames: Sequence[Frame]) -> None:
        super().__init__(reason)
        self.size = size
        self.frames = frames


class NegativeFrame(FrameError):
    """A frame of negative length."""

    def __init__(self, size: int, frames: Sequence[Frame]) -> None:
        super().__init__(f"frame length {size} is negative", size, frames)


class FrameTooLarge(FrameError):
    """A frame above the limit."""

    def __init__(self, size: int, limit: int, frames: Sequence[Frame]) -> None:
        super().__init__(f"frame of {size} bytes exceeds the limit of {limit}", size, frames)
        self.limit = limit
