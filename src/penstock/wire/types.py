"""The types in which a message is declared: a typed class that is also its schema.

    class PartitionProduceData(Message):
        index: Int32 = 0
        records: Records = None

    class ProduceRequest(Message):
        SCHEMA: ClassVar[Schema] = Schema("0-13", flexible="9+")
        transactional_id: Annotated[str | None, versions("3+")] = None

One class has the fields of all versions, in wire order, with Kafka's defaults. `str`, `bytes`, `bool` and `float` stand
for themselves, `X | None` is nullable, `list[X]` an array, another `Message` a struct. `Annotated` adds `versions`,
`nullable` versions, `tagged`, and `ignorable`: the value may be dropped in versions that cannot carry it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from penstock.wire.protocol import VersionRange

Buffer: TypeAlias = bytes | bytearray | memoryview
# For isinstance, which takes several times as long with a union.
BUFFERS: Final = (bytes, bytearray, memoryview)


class Region(Protocol):
    """Bytes that stay where they are, such as a range of a file: the codec needs their number only."""

    @property
    def size(self) -> int: ...


Chunk: TypeAlias = bytes | bytearray | memoryview | Region


class Primitive(NamedTuple):
    """How one value lies on the wire. `code` is its `struct` format, empty where the length varies."""

    name: str
    code: str = ""
    size: int = 0


class Versions(NamedTuple):
    """The versions in which a field exists."""

    range: VersionRange


class Nullable(NamedTuple):
    """The versions in which a field may be null."""

    range: VersionRange


class Tagged(NamedTuple):
    """The versions in which a field lies in the tagged section, and its number there.

    Without `versions` beside it, these are the versions in which the field exists at all.
    """

    tag: int
    range: VersionRange


class Ignorable(NamedTuple):
    """A field that may silently be left out of a version without it."""


def versions(text: str) -> Versions:
    return Versions(VersionRange.parse(text))


def nullable(text: str) -> Nullable:
    return Nullable(VersionRange.parse(text))


def tagged(tag: int, text: str) -> Tagged:
    return Tagged(tag, VersionRange.parse(text))


ignorable: Final = Ignorable()

Int8: TypeAlias = Annotated[int, Primitive("int8", "b", 1)]
Int16: TypeAlias = Annotated[int, Primitive("int16", "h", 2)]
Int32: TypeAlias = Annotated[int, Primitive("int32", "i", 4)]
Int64: TypeAlias = Annotated[int, Primitive("int64", "q", 8)]
UInt16: TypeAlias = Annotated[int, Primitive("uint16", "H", 2)]
UInt32: TypeAlias = Annotated[int, Primitive("uint32", "I", 4)]
UVarInt: TypeAlias = Annotated[int, Primitive("uvarint")]
UVarLong: TypeAlias = Annotated[int, Primitive("uvarlong")]
# Raw bytes instead of uuid.UUID: an id is compared and hashed far more often than it is shown.
Uuid: TypeAlias = Annotated[bytes, Primitive("uuid", "16s", 16)]
# Decoded as a view of the frame. A view given to be encoded must be one of single bytes.
Records: TypeAlias = Annotated[bytes | bytearray | memoryview | Region | None, Primitive("records")]

BOOL: Final = Primitive("bool", "?", 1)
FLOAT64: Final = Primitive("float64", "d", 8)
STRING: Final = Primitive("string")
BYTES: Final = Primitive("bytes")

NO_UUID: Final = bytes(16)

EMPTY: Any = msgspec.field(default_factory=list)
"""The default of an array: a new empty list for each message."""


class Schema:
    """The versions a message exists in, and those written with compact lengths and tagged fields."""

    __slots__ = ("flexible", "versions")

    def __init__(self, versions: str, *, flexible: str = "none") -> None:
        self.versions = VersionRange.parse(versions)
        self.flexible = VersionRange.parse(flexible)


class Message(msgspec.Struct, gc=False, kw_only=True):
    """A request, a response, or a struct nested in one. Top-level messages override `SCHEMA`.

    `unknown_tags` keeps tagged fields that the schema does not name, so that re-encoding loses nothing.
    Messages are trees, never cycles, which lets them stay out of the garbage collector's sight.
    """

    SCHEMA: ClassVar[Schema] = Schema("none")

    unknown_tags: dict[int, bytes] | None = None


class Value(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """A nested struct that never changes: a single instance can be the default in any number of messages."""

    unknown_tags: dict[int, bytes] | None = None


M = TypeVar("M", bound=Message)
