"""Frames (i32 length, bytes) and the headers of requests and responses.

A frame is its own `bytearray`, because its records are patched in place. A length above the limit is rejected as soon
as it is read, and memory grows with arrival. A response header has only the correlation id, so the reader must remember
the request. In request header 2 the client id keeps its i16 length although the header is flexible: a broker must read
it before it knows whether it supports the version.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from penstock.wire import primitives
from penstock.wire.errors import (
    EncodeError,
    FrameTooLarge,
    InvalidLength,
    InvalidUtf8,
    NegativeFrame,
    Truncated,
    UnknownApi,
)
from penstock.wire.protocol import APIS, Api, find_api, request_codec, response_codec
from penstock.wire.types import BUFFERS, Buffer, Chunk, Message

PREFIX_BYTES: Final = 4
DEFAULT_MAX_SIZE: Final = 100 * 1024 * 1024

_PREFIX: Final = Struct(">i")


class FrameDecoder:
    """Collects whatever pieces arrive; after an error it refuses all that follows, as the stream is lost."""

    __slots__ = ("_frame", "_max_size", "_missing", "_prefix", "_refusal")

    def __init__(self, max_size: int = DEFAULT_MAX_SIZE) -> None:
        self._max_size = max_size
        self._prefix = bytearray()
        self._frame: bytearray | None = None
        self._missing = 0
        self._refusal: NegativeFrame | FrameTooLarge | None = None

    @property
    def pending(self) -> int:
        """Bytes held of a frame that is not complete, its length prefix included."""
        return len(self._prefix) + (PREFIX_BYTES + len(self._frame) if self._frame is not None else 0)

    @property
    def missing(self) -> int:
        """How many bytes the frame that is under way still needs; 0 while its length is not known."""
        return self._missing if self._frame is not None else 0

    def feed(self, data: Buffer) -> list[bytearray]:
        """Takes the next bytes of the stream, and answers with the frames that they complete.

        Raises a FrameError at once when a length must be refused; the frames completed before it are in the
        error's `frames`.
        """
        if self._refusal is not None:
            raise self._refusal
        frames: list[bytearray] = []
        view = memoryview(data)
        position, end = 0, len(view)
        while position < end:
            if self._frame is None and not self._prefix and end - position >= PREFIX_BYTES:
                (size,) = _PREFIX.unpack_from(view, position)
                after = position + PREFIX_BYTES + size
                if 0 <= size <= self._max_size and after <= end:
                    frames.append(bytearray(view[position + PREFIX_BYTES : after]))
                    position = after
                    continue
            position = self._take(view, position, end, frames)
        return frames

    def _take(self, view: memoryview, position: int, end: int, frames: list[bytearray]) -> int:
        """Goes on with a frame of which only a part has arrived; answers with the position reached."""
        if self._frame is None:
            after = min(end, position + PREFIX_BYTES - len(self._prefix))
            self._prefix += view[position:after]
            position = after
            if len(self._prefix) < PREFIX_BYTES:
                return position
            self._open(frames)
        frame = self._frame
        if frame is None:
            return position
        taken = min(self._missing, end - position)
        frame += view[position : position + taken]
        self._missing -= taken
        if not self._missing:
            frames.append(frame)
            self._frame = None
        return position + taken

    def _open(self, frames: list[bytearray]) -> None:
        (size,) = _PREFIX.unpack(self._prefix)
        self._prefix.clear()
        if size < 0:
            self._refusal = NegativeFrame(size, frames)
        elif size > self._max_size:
            self._refusal = FrameTooLarge(size, self._max_size, frames)
        if self._refusal is not None:
            raise self._refusal
        self._frame, self._missing = bytearray(), size


_FIXED: Final = Struct(">hhi")
_REQUEST: Final = Struct(">ihhih")
_REQUEST_WITHOUT_CLIENT: Final = Struct(">ihhi")
_RESPONSE: Final = Struct(">ii")
_FLEXIBLE_RESPONSE: Final = Struct(">iix")
_LENGTH: Final = Struct(">h")
_CORRELATION: Final = Struct(">i")
_LONGEST_FRAME: Final = 0x7FFFFFFF

# API and request header version, by key and version: only what exists is kept, so its size is bounded.
_known: Final[dict[tuple[int, int], tuple[Api, int]]] = {}
# Whether the header of a response is flexible, likewise.
_flexible: Final[dict[tuple[int, int], bool]] = {}


class RequestHeader(NamedTuple):
    """Who asks for what. `client_id` is None where the header has none or says null."""

    api: Api
    api_version: int
    correlation_id: int
    client_id: str | None
    unknown_tags: dict[int, bytes] | None = None


class ResponseHeader(NamedTuple):
    correlation_id: int
    unknown_tags: dict[int, bytes] | None = None


def decode_request(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header of a request, and the position of its body.

    Raises UnknownApi or UnknownVersion, with the correlation id, if there is no schema for the body.
    """
    if len(frame) < _FIXED.size:
        raise Truncated(f"a request of {len(frame)} bytes has no room for its header")
    api_key, version, correlation_id = _FIXED.unpack_from(frame)
    known = _known.get((api_key, version))
    if known is None:
        known = _learn(api_key, version, correlation_id)
    api, header_version = known
    position = _FIXED.size
    if header_version == 0:
        return RequestHeader(api, version, correlation_id, None), position
    client_id, position = _client_id(frame, position)
    if header_version == 1:
        return RequestHeader(api, version, correlation_id, client_id), position
    tags, position = _tags(frame, position)
    return RequestHeader(api, version, correlation_id, client_id, tags), position


def _learn(api_key: int, version: int, correlation_id: int) -> tuple[Api, int]:
    api = APIS.get(api_key)
    if api is None:
        raise UnknownApi(api_key, version, correlation_id)
    api.check(version, correlation_id)
    known = _known[api_key, version] = api, api.request_header_version(version)
    return known


def _is_flexible(api_key: int, version: int) -> bool:
    """Of a response; UnknownApi."""
    flexible = _flexible.get((api_key, version))
    if flexible is None:
        api = find_api(api_key)
        flexible = api.response_header_version(version) > 0
        if version in api.versions:
            _flexible[api_key, version] = flexible
    return flexible


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[ResponseHeader, int]:
    """The header of the response to a request of this API and version, and the position of its body."""
    if len(frame) < _CORRELATION.size:
        raise Truncated(f"a response of {len(frame)} bytes has no room for its header")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    if not _is_flexible(api_key, version):
        return ResponseHeader(correlation_id), _CORRELATION.size
    tags, position = _tags(frame, _CORRELATION.size)
    return ResponseHeader(correlation_id, tags), position


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Chunk]:
    """A whole request, its length prefix included, as chunks to be sent one after the other."""
    chunks = request_codec(api_key, version).encode_chunks(message)
    _, header_version = _known.get((api_key, version)) or _learn(api_key, version, correlation_id)
    if header_version == 0:
        size = _sized(chunks, _FIXED.size)
        return _with_header(_packed(_REQUEST_WITHOUT_CLIENT, size, api_key, version, correlation_id), chunks)
    try:
        client = b"" if client_id is None else client_id.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"the client id is no text: {error.reason}") from None
    if len(client) > primitives.LONGEST_STRING:
        raise EncodeError(f"a client id of {len(client)} bytes is too long")
    length = -1 if client_id is None else len(client)
    end = b"\0" if header_version == 2 else b""
    size = _sized(chunks, _FIXED.size + _LENGTH.size + len(client) + len(end))
    return _with_header(_packed(_REQUEST, size, api_key, version, correlation_id, length) + client + end, chunks)


def encode_response(api_key: int, version: int, correlation_id: int, message: Message) -> list[Chunk]:
    """A whole response, its length prefix included, as chunks to be sent one after the other."""
    chunks = response_codec(api_key, version).encode_chunks(message)
    if _is_flexible(api_key, version):
        return _with_header(_packed(_FLEXIBLE_RESPONSE, _sized(chunks, 5), correlation_id), chunks)
    return _with_header(_packed(_RESPONSE, _sized(chunks, 4), correlation_id), chunks)


def frame_response(api_key: int, version: int, correlation_id: int, chunks: list[Chunk]) -> list[Chunk]:
    """A whole response, from the chunks of its body; the list becomes part of the result."""
    layout = _FLEXIBLE_RESPONSE if _is_flexible(api_key, version) else _RESPONSE
    return _with_header(_packed(layout, _sized(chunks, layout.size - 4), correlation_id), chunks)


def chunk_size(chunk: Chunk) -> int:
    return len(chunk) if isinstance(chunk, BUFFERS) else chunk.size


def _packed(layout: Struct, *numbers: int) -> bytes:
    try:
        return layout.pack(*numbers)
    except struct_error as error:
        raise EncodeError(f"a header cannot be written: {error}") from None


def _sized(chunks: list[Chunk], header_bytes: int) -> int:
    size = header_bytes
    for chunk in chunks:
        size += chunk_size(chunk)
    if size > _LONGEST_FRAME:
        raise EncodeError(f"a frame of {size} bytes exceeds what its length prefix can say")
    return size


def _with_header(head: bytes, chunks: list[Chunk]) -> list[Chunk]:
    """Header and first chunk become one: a copy of what is small anyway, and one chunk less to send."""
    if chunks and type(chunks[0]) is bytes:
        chunks[0] = head + chunks[0]
    else:
        chunks.insert(0, head)
    return chunks


def _client_id(frame: Buffer, position: int) -> tuple[str | None, int]:
    try:
        (length,) = _LENGTH.unpack_from(frame, position)
        position += _LENGTH.size
        end = position + length
        if length == -1:
            return None, position
        if length < 0:
            raise InvalidLength(f"the client id has length {length}")
        if end > len(frame):
            raise Truncated("a request ends inside its client id")
        return str(frame[position:end], "utf-8"), end
    except struct_error:
        raise Truncated("a request ends inside its header") from None
    except UnicodeDecodeError as error:
        raise InvalidUtf8(f"the client id is not UTF-8 ({error.reason})") from None


def _tags(frame: Buffer, position: int) -> tuple[dict[int, bytes] | None, int]:
    try:
        first = frame[position]
        if not first:
            return None, position + 1
        return primitives.read_tags(frame, position + 1, first)
    except IndexError:
        raise Truncated("a message ends inside its header") from None
