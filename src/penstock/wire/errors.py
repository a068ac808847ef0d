"""What can be wrong on the wire.

Everything this package raises is a `WireError`: bytes that cannot be read (`DecodeError`), a message that
cannot be written (`EncodeError`), a frame that must not be taken in (`FrameError`), or an API and version
that nobody here knows. The edge that holds the socket decides between an answer and a closed connection;
errors that could still be answered carry the correlation id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

# Small frames are copies; a large one is a view of the memory that it was received into.
Frame: TypeAlias = bytes | memoryview


class WireError(Exception):
    """The peer, or our own caller, broke the protocol."""


class DecodeError(WireError):
    """The bytes given are not a message of the version they claim to be."""


class Truncated(DecodeError):
    """The message ends before its fields do, or announces more elements than the bytes left could hold."""


class TooManyElements(DecodeError):
    """More array elements, or tagged fields, than the reader is willing to build."""


class InvalidLength(DecodeError):
    """A length that no sender may write: below -1, too long for its type, or contradicting its content."""


class InvalidUtf8(DecodeError):
    """A string field holds bytes that are not UTF-8."""


class UnexpectedNull(DecodeError):
    """Null where this version of the schema requires a value."""

    def __init__(self, field: str) -> None:
        super().__init__(f"{field} is null, which this version does not allow")
        self.field = field


class EncodeError(WireError):
    """A value that does not fit its field: of another type, out of range, or null where it must not be."""


class FieldNotInVersion(EncodeError):
    """A value other than the default would be lost, since the version to write has no such field."""

    def __init__(self, message: str, field: str, version: int) -> None:
        super().__init__(f"{message} version {version} cannot carry {field}")
        self.message = message
        self.field = field
        self.version = version


class SchemaError(WireError):
    """A message class whose annotations are no schema: a mistake in the source, not in the data."""


class UnknownApi(WireError):
    """An API key without a schema here."""

    def __init__(self, api_key: int, api_version: int | None = None, correlation_id: int | None = None) -> None:
        super().__init__(f"API key {api_key} is not known")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


class UnknownVersion(WireError):
    """A known message or API, asked for in a version outside its range."""

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
        super().__init__(f"{name} version {version} is not known; {lowest} to {highest} are")
        self.version = version
        self.lowest = lowest
        self.highest = highest
        self.api_key = api_key
        self.correlation_id = correlation_id


class FrameError(WireError):
    """A length prefix that must not be followed; nothing after it on the connection can be trusted.

    `frames` holds what was complete before it, in the same piece of the stream.
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
    """A frame longer than the receiver is willing to hold."""

    def __init__(self, size: int, limit: int, frames: Sequence[Frame]) -> None:
        super().__init__(f"frame of {size} bytes exceeds the limit of {limit}", size, frames)
        self.limit = limit
