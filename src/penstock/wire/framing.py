"""Frames (i32 length, bytes) and the headers of requests and responses.

`FrameReceiver` cuts what a client receives into frames; a server's side is `penstock.runtime.socket_io`. A length above
the limit is rejected as soon as it is read, and memory grows with arrival, not with the announced length.

A response header has only the correlation id, so the reader must remember
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
    Frame,
    FrameTooLarge,
    InvalidLength,
    InvalidUtf8,
    NegativeFrame,
    Truncated,
    UnknownApi,
)
from penstock.wire.protocol import APIS, Api, find_api, request_codec, response_codec
from penstock.wire.types import BUFFERS, Buffer, Chunk, Message

# Small frames are cut out of one buffer of this size.
BUFFER_BYTES: Final = 64 * 1024
# What a peer can make a receiver allocate by announcing it; beyond, memory at most doubles with arrival.
AT_ONCE_BYTES: Final = 1024 * 1024

_PREFIX: Final = Struct(">i")
_PREFIX_BYTES: Final = _PREFIX.size
_FIXED: Final = Struct(">hhi")
_REQUEST: Final = Struct(">ihhih")
_REQUEST_WITHOUT_CLIENT: Final = Struct(">ihhi")
_RESPONSE: Final = Struct(">ii")
_FLEXIBLE_RESPONSE: Final = Struct(">iix")
_LENGTH: Final = Struct(">h")
_CORRELATION: Final = Struct(">i")
_LONGEST_FRAME: Final = 0x7FFFFFFF

# API and request header version, by key and version. Only existing ones are kept, so the size is bounded.
_known: Final[dict[tuple[int, int], tuple[Api, int]]] = {}
# Whether the header of a response is flexible, by key and version.
_flexible: Final[dict[tuple[int, int], bool]] = {}


# -------------------------------------------------------------------------------------------------------------- frames


class FrameReceiver:
    """Cuts a stream into frames: receive into `get_buffer()`, then `received(count)` returns the completed frames.

    A small frame is copied out of a shared buffer. A larger one is received into its own memory, allocated up to
    `at_once_bytes` at once and at most doubled after that: growing in steps runs at 1 GB/s, allocating at once at
    22 GB/s. After an error the stream is lost, and so is the receiver.
    """

    __slots__ = ("_end", "_filled", "_frame", "_given", "_size", "_view", "at_once_bytes", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.at_once_bytes = AT_ONCE_BYTES
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._end = 0  # of an incomplete length prefix at the front of the buffer
        self._frame: bytearray | None = None
        self._given: memoryview | None = None
        self._size = 0
        self._filled = 0

    @property
    def pending_bytes(self) -> int:
        """How much of an incomplete frame has arrived, its length prefix included."""
        return self._end if self._frame is None else _PREFIX_BYTES + self._filled

    def first_bytes(self, count: int = 16) -> bytes:
        """The front of the buffer, to recognise the protocol of a peer that is not a broker."""
        return bytes(self._view[:count])

    def get_buffer(self) -> memoryview:
        """Where to receive next."""
        frame = self._frame
        if frame is None:
            return self._view[self._end :]
        filled = self._filled
        if filled == len(frame):
            if self._given is not None:
                self._given.release()
            frame += bytes(min(self._size - filled, filled))
        self._given = memoryview(frame)[filled:]
        return self._given

    def received(self, count: int) -> list[Frame]:
        """The frames that `count` more bytes complete. Raises FrameTooLarge or NegativeFrame."""
        frame = self._frame
        if frame is not None:
            self._filled += count
            if self._filled < self._size:
                return []
            self._frame = self._given = None
            return [memoryview(frame)]
        return self._cut(self._end + count)

    def _cut(self, end: int) -> list[Frame]:
        view = self._view
        frames: list[Frame] = []
        position = 0
        self._end = 0
        while end - position >= _PREFIX_BYTES:
            (size,) = _PREFIX.unpack_from(view, position)
            if size < 0:
                raise NegativeFrame(size, frames)
            if size > self.max_frame_bytes:
                raise FrameTooLarge(size, self.max_frame_bytes, frames)
            start = position + _PREFIX_BYTES
            after = start + size
            if after > end:
                self._open(size, view[start:end])
                return frames
            frames.append(bytes(view[start:after]))
            position = after
        if position < end:
            rest = bytes(view[position:end])
            view[: len(rest)] = rest
            self._end = len(rest)
        return frames

    def _open(self, size: int, arrived: memoryview) -> None:
        count = len(arrived)
        frame = bytearray(min(size, max(self.at_once_bytes, count)))
        frame[:count] = arrived
        self._frame, self._size, self._filled = frame, size, count


# ------------------------------------------------------------------------------------------------------------- headers


class RequestHeader(NamedTuple):
    """The header of a request. `client_id` is None if it is null or the header has none."""

    api: Api
    api_version: int
    correlation_id: int
    client_id: str | None
    unknown_tags: dict[int, bytes] | None = None


class ResponseHeader(NamedTuple):
    """The header of a response."""

    correlation_id: int
    unknown_tags: dict[int, bytes] | None = None


def decode_request(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header of a request, and the position of its body.

    Raises UnknownApi or UnknownVersion, with the correlation id, if the body has no schema.
    """
    if len(frame) < _FIXED.size:
        raise Truncated(f"request of {len(frame)} bytes is shorter than its header")
    api_key, version, correlation_id = _FIXED.unpack_from(frame)
    known = _known.get((api_key, version))
    if known is None:
        known = _look_up(api_key, version, correlation_id)
    api, header_version = known
    position = _FIXED.size
    if header_version == 0:
        return RequestHeader(api, version, correlation_id, None), position
    client_id, position = _client_id(frame, position)
    if header_version == 1:
        return RequestHeader(api, version, correlation_id, client_id), position
    tags, position = _tags(frame, position)
    return RequestHeader(api, version, correlation_id, client_id, tags), position


def _look_up(api_key: int, version: int, correlation_id: int) -> tuple[Api, int]:
    api = APIS.get(api_key)
    if api is None:
        raise UnknownApi(api_key, version, correlation_id)
    api.check(version, correlation_id)
    known = _known[api_key, version] = api, api.request_header_version(version)
    return known


def _is_flexible(api_key: int, version: int) -> bool:
    """Whether the header of a response is flexible. UnknownApi."""
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
        raise Truncated(f"response of {len(frame)} bytes is shorter than its header")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    if not _is_flexible(api_key, version):
        return ResponseHeader(correlation_id), _CORRELATION.size
    tags, position = _tags(frame, _CORRELATION.size)
    return ResponseHeader(correlation_id, tags), position


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Chunk]:
    """A request with its length prefix, as chunks to send one after the other."""
    chunks = request_codec(api_key, version).encode_chunks(message)
    _, header_version = _known.get((api_key, version)) or _look_up(api_key, version, correlation_id)
    if header_version == 0:
        size = _sized(chunks, _FIXED.size)
        return _with_header(_packed(_REQUEST_WITHOUT_CLIENT, size, api_key, version, correlation_id), chunks)
    try:
        client = b"" if client_id is None else client_id.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(f"the client id cannot be encoded as UTF-8: {error.reason}") from None
    if len(client) > primitives.LONGEST_STRING:
        raise EncodeError(f"client id of {len(client)} bytes exceeds {primitives.LONGEST_STRING}")
    length = -1 if client_id is None else len(client)
    end = b"\0" if header_version == 2 else b""
    size = _sized(chunks, _FIXED.size + _LENGTH.size + len(client) + len(end))
    return _with_header(_packed(_REQUEST, size, api_key, version, correlation_id, length) + client + end, chunks)


def encode_response(api_key: int, version: int, correlation_id: int, message: Message) -> list[Chunk]:
    """A response with its length prefix, as chunks to send one after the other."""
    chunks = response_codec(api_key, version).encode_chunks(message)
    if _is_flexible(api_key, version):
        return _with_header(_packed(_FLEXIBLE_RESPONSE, _sized(chunks, 5), correlation_id), chunks)
    return _with_header(_packed(_RESPONSE, _sized(chunks, 4), correlation_id), chunks)


def frame_response(api_key: int, version: int, correlation_id: int, chunks: list[Chunk]) -> list[Chunk]:
    """A response with its length prefix, from the chunks of its body. The list is reused."""
    layout = _FLEXIBLE_RESPONSE if _is_flexible(api_key, version) else _RESPONSE
    return _with_header(_packed(layout, _sized(chunks, layout.size - 4), correlation_id), chunks)


def chunk_size(chunk: Chunk) -> int:
    return len(chunk) if isinstance(chunk, BUFFERS) else chunk.size


def _packed(layout: Struct, *numbers: int) -> bytes:
    try:
        return layout.pack(*numbers)
    except struct_error as error:
        raise EncodeError(f"cannot encode a header: {error}") from None


def _sized(chunks: list[Chunk], header_bytes: int) -> int:
    size = header_bytes
    for chunk in chunks:
        size += chunk_size(chunk)
    if size > _LONGEST_FRAME:
        raise EncodeError(f"frame of {size} bytes exceeds the maximum of {_LONGEST_FRAME}")
    return size


def _with_header(head: bytes, chunks: list[Chunk]) -> list[Chunk]:
    """Join header and first chunk, which is small: one chunk less to send."""
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
            raise Truncated("the request ends inside its client id")
        return str(frame[position:end], "utf-8"), end
    except struct_error:
        raise Truncated("the request ends inside its header") from None
    except UnicodeDecodeError as error:
        raise InvalidUtf8(f"the client id is not UTF-8 ({error.reason})") from None


def _tags(frame: Buffer, position: int) -> tuple[dict[int, bytes] | None, int]:
    try:
        first = frame[position]
        if not first:
            return None, position + 1
        return primitives.read_tags(frame, position + 1, first)
    except IndexError:
        raise Truncated("the message ends inside its header") from None
