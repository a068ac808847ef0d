"""Frames: the stream of a connection, cut into messages by the four-byte length in front of each.

    decoder = FrameDecoder(max_size=100 << 20)
    for frame in decoder.feed(received): ...

A frame is a `bytearray` of its own, since whoever appends its records patches them in place; the bytes are
copied once, from what was received into the frame. A length beyond the limit is refused as soon as it can
be read, and memory grows with the bytes that arrive, not with the length announced.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.wire.errors import FrameTooLarge, NegativeFrame
from penstock.wire.types import Buffer

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
