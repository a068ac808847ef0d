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
# For isinstance, which is several times slower with a union.
BUFFERS: Final = (bytes, bytearray, memoryview)


class Region(Protocol):
    """Bytes that are not copied, such as a range of a file. The codec needs only their number."""

    @property
    def size(self) -> int: ...


Chunk: TypeAlias = bytes | bytearray | memoryview | Region


class Primitive(NamedTuple):
    """The encoding of a value. `code` is its `struct` format, empty if the length varies."""

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
    """The versions in which a field is in the tagged section, and its tag.

    Without `versions`, the field exists only in these.
    """

    tag: int
    range: VersionRange


class Ignorable(NamedTuple):
    """The field may be dropped in versions that do not have it."""


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
# Raw bytes instead of uuid.UUID: ids are compared and hashed far more often than shown.
Uuid: TypeAlias = Annotated[bytes, Primitive("uuid", "16s", 16)]
# Decoded as a view of the frame. A view to encode must have format "B".
Records: TypeAlias = Annotated[bytes | bytearray | memoryview | Region | None, Primitive("records")]

BOOL: Final = Primitive("bool", "?", 1)
FLOAT64: Final = Primitive("float64", "d", 8)
STRING: Final = Primitive("string")
BYTES: Final = Primitive("bytes")

NO_UUID: Final = bytes(16)

EMPTY: Any = msgspec.field(default_factory=list)
"""The default of an array: a new empty list for each message."""


class Schema:
    """The versions of a message, and its flexible versions (compact lengths, tagged fields)."""

    __slots__ = ("flexible", "versions")

    def __init__(self, versions: str, *, flexible: str = "none") -> None:
        self.versions = VersionRange.parse(versions)
        self.flexible = VersionRange.parse(flexible)


class Message(msgspec.Struct, gc=False, kw_only=True):
    """A request, a response, or a struct nested in one. Top-level messages override `SCHEMA`.

    `unknown_tags` keeps tagged fields that the schema does not have, so that re-encoding loses nothing. Messages are
    trees without cycles, so the garbage collector does not track them.
    """

    SCHEMA: ClassVar[Schema] = Schema("none")

    unknown_tags: dict[int, bytes] | None = None


class Value(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """An immutable nested struct: one instance can be the default of many messages."""

    unknown_tags: dict[int, bytes] | None = None


M = TypeVar("M", bound=Message)
