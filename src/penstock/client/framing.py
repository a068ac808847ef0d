"""Frames out of whatever pieces a transport receives.

Noun: the bytes of one connection that have arrived and belong to no finished frame.

Rule: memory follows arrival, never announcement. Small frames are cut out of one receive buffer; a frame that did not
arrive whole gets a bytearray of its own, into which the rest is received without another copy. Up to `at_once_bytes`
it is taken at once, beyond that it at most doubles what has arrived. Growing costs far more than copying, since every
step brings fresh pages (measured: 1 GB/s against 22), so who has reason to trust its peer raises that. Buffers grow
only between two receptions, as the transport may hold a view of them until then.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.wire.errors import FrameTooLarge, NegativeFrame

BUFFER_BYTES: Final = 64 * 1024

_PREFIX: Final = Struct(">i")
_PREFIX_BYTES: Final = _PREFIX.size
AT_ONCE_BYTES: Final = 1024 * 1024

Frame = bytes | memoryview


class FrameReceiver:
    """`get_buffer`, fill some of it, `received(count)`: the frames that this completed. After an error it is lost."""

    __slots__ = ("_buffer", "_end", "_filled", "_frame", "_given", "_size", "_view", "at_once_bytes", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.at_once_bytes = AT_ONCE_BYTES
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0  # of an unfinished length prefix at the front of the buffer
        self._frame: bytearray | None = None
        self._given: memoryview | None = None
        self._size = 0
        self._filled = 0

    @property
    def pending_bytes(self) -> int:
        """How much of an unfinished frame is here, its length included."""
        return self._end if self._frame is None else _PREFIX_BYTES + self._filled

    def first_bytes(self, count: int = 16) -> bytes:
        """The front of the buffer, as far as it was ever filled: for recognising a peer that is no broker."""
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
        """Raises FrameTooLarge or NegativeFrame; frames before it are in the error."""
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
                raise NegativeFrame(size, [bytearray(frame) for frame in frames])
            if size > self.max_frame_bytes:
                raise FrameTooLarge(size, self.max_frame_bytes, [bytearray(frame) for frame in frames])
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
