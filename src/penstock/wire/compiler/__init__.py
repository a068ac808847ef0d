"""From a message class to two functions: what reads and what writes it in one version.

`codec_for(ProduceRequest, 9)` compiles on first use and keeps the result for good: the set of messages and
versions is small and fixed by the source, whatever arrives from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from penstock.wire.compiler.decoder import emit_decode, holds_records
from penstock.wire.compiler.encoder import emit_encode
from penstock.wire.compiler.plan import layout
from penstock.wire.errors import EncodeError
from penstock.wire.types import BUFFERS, Buffer, Chunk, M, Message

__all__ = ["Codec", "codec_for"]


M_co = TypeVar("M_co", bound=Message, covariant=True)


class Decode(Protocol[M_co]):
    """An emitted decode function."""

    def __call__(self, buffer: Buffer, position: int = 0, /) -> tuple[M_co, int]: ...


class Codec(Generic[M]):
    """Reads and writes one message class in one version.

    - `decode(buffer, position=0)` answers with the message and the position after it; what follows is the
      caller's. Records are views of `buffer`, everything else is copied out of it.
    - `encode(message)` answers with bytes.
    - `encode_chunks(message)` answers with a list whose items are to be sent one after the other. Records of
      at least 1 KiB, and regions, are items of their own; they are not copied, so they must not change until
      they are sent.
    - `decode_slices(buffer, position, most_elements)` and `encode_slices(message)` are generators for long messages.
      They yield after every thousand elements or so, and return what `decode` and `encode_chunks` would.
      TooManyElements as soon as a message announces more than `most_elements` in all its arrays.
    """

    __slots__ = (
        "_decode_slices", "_encode_slices", "_struct", "decode", "decode_source", "encode", "encode_chunks",
        "encode_source", "message", "version",
    )  # fmt: skip

    decode: Decode[M]
    encode: Callable[[M], bytes]
    encode_chunks: Callable[[M], list[Chunk]]

    def __init__(self, message: type[M], version: int) -> None:
        self._struct = struct = layout(message, version)
        self._decode_slices: Callable[..., Generator[None, None, tuple[M, int]]] | None = None
        self._encode_slices: Callable[..., Generator[None, None, list[Chunk]]] | None = None
        self.message = message
        self.version = version
        self.decode, self.decode_source = emit_decode(struct, version)
        write, self.encode_source = emit_encode(struct, version)
        if holds_records(struct):
            self.encode_chunks = write
            self.encode = _joined(write)
        else:
            self.encode = write
            self.encode_chunks = lambda message: [write(message)]

    def decode_slices(self, buffer: Buffer, position: int, most_elements: int) -> Generator[None, None, tuple[M, int]]:
        if self._decode_slices is None:
            self._decode_slices, _ = emit_decode(self._struct, self.version, sliced=True)
        return self._decode_slices(buffer, position, most_elements)

    def encode_slices(self, message: M) -> Generator[None, None, list[Chunk]]:
        if self._encode_slices is None:
            self._encode_slices, _ = emit_encode(self._struct, self.version, sliced=True)
        return self._encode_slices(message)


def _joined(write: Callable[[Any], list[Chunk]]) -> Callable[[Any], bytes]:
    def encode(message: Any) -> bytes:
        chunks = write(message)
        if not all(isinstance(chunk, BUFFERS) for chunk in chunks):
            raise EncodeError("a message with regions of a file can only be written as chunks")
        return b"".join(cast("list[bytes]", chunks))

    return encode


_codecs: Final[dict[tuple[type[Message], int], Codec[Any]]] = {}


def codec_for(message: type[M], version: int) -> Codec[M]:
    """The codec of a message class in a version; raises UnknownVersion where the schema has none."""
    codec = _codecs.get((message, version))
    if codec is None:
        codec = _codecs[message, version] = Codec(message, version)
    return cast("Codec[M]", codec)
