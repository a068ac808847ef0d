"""Frames out of a socket.

Noun: the bytes that have arrived on one connection and were not handed out yet.

Rule: memory follows arrival, never announcement. All connections of a server receive into one buffer; a frame that is
whole in it is copied out, once, into a bytearray of its own. A frame that is larger than the buffer is received
straight into its bytearray, which at each step grows by no more than what has arrived of it; before its first byte is
kept, `admit` is asked whether there is room for it. A length that is negative or above the limit is refused as soon as
its four bytes are there.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from struct import Struct
from typing import Final

from penstock.runtime.network import NetworkError

BUFFER_BYTES: Final = 64 * 1024

_PREFIX: Final = Struct(">i")
_PREFIX_BYTES: Final = _PREFIX.size
# Below this much of a frame, growing by what has arrived would make too many small steps.
_DIRECT_BYTES: Final = 16 * 1024
_STEP_BYTES: Final = 1024 * 1024
_ZEROS: Final = memoryview(bytes(_STEP_BYTES))
# The first bytes of those who have the wrong port, read as a length.
_STRANGERS: Final = (
    (b"\x16\x03", "a TLS handshake"),
    (b"GET ", "an HTTP request"),
    (b"POST", "an HTTP request"),
    (b"HEAD", "an HTTP request"),
    (b"SSH-", "an SSH client"),
)


class FrameRefused(NetworkError):
    """A length that no frame may have. Where the next frame would begin is unknown."""

    def __init__(self, size: int, max_frame_bytes: int) -> None:
        self.size = size
        if size < 0:
            text = f"a frame of {size} bytes was announced"
        else:
            text = f"a frame of {size} bytes was announced; {max_frame_bytes} are allowed"
        prefix = _PREFIX.pack(size)
        for start, name in _STRANGERS:
            if prefix.startswith(start):
                text += f" (this looks like {name})"
        super().__init__(text)


def _always(size: int) -> bool:
    return True


class FrameInput:
    """One connection's side of it: `receive`, then `next_frame` until there is none.

    Between the two calls the bytes lie in the shared buffer: whoever stops asking for frames before None was answered
    must `hold` the rest, and continue with `unhold`.
    """

    __slots__ = (
        "_admit",
        "_buffer",
        "_data",
        "_end",
        "_filled",
        "_frame",
        "_max_frame_bytes",
        "_position",
        "_rest",
        "_size",
        "_sock",
        "admitted_bytes",
        "is_waiting",
    )

    def __init__(
        self,
        sock: socket.socket,
        buffer: memoryview,
        max_frame_bytes: int,
        admit: Callable[[int], bool] = _always,
    ) -> None:
        self._sock = sock
        self._admit = admit
        self.admitted_bytes = 0
        """The size of the large frame that there is room for, which is being received or about to be."""
        self.is_waiting = False
        """Whether there is no room for the next frame yet."""
        self._buffer = buffer
        self._max_frame_bytes = max_frame_bytes
        self._data = buffer
        self._position = 0
        self._end = 0
        self._rest = b""
        self._frame: bytearray | None = None
        self._size = 0
        self._filled = 0

    @property
    def more(self) -> bool:
        """Whether bytes behind the last frame have arrived too."""
        return self._position < self._end

    @property
    def memory_bytes(self) -> int:
        """What is held of frames that were not handed out."""
        return len(self._rest) + (0 if self._frame is None else len(self._frame))

    @property
    def arrived_bytes(self) -> int:
        """What has arrived of the frame that is being received."""
        return 0 if self._frame is None else self._filled

    def admit(self) -> None:
        """There is room for the frame that waits."""
        self.is_waiting = False
        (self.admitted_bytes,) = _PREFIX.unpack_from(self._rest)

    def receive(self) -> int:
        """Receive once; how many bytes came, 0 at the end of the stream. Raises OSError, also when none are there."""
        if self._frame is not None:
            missing = self._size - self._filled
            if missing >= BUFFER_BYTES and self._filled >= _DIRECT_BYTES:
                return self._receive_direct(self._frame, missing)
        elif self._rest:
            return self._receive_behind_rest()
        count = self._sock.recv_into(self._buffer)
        self._data, self._position, self._end = self._buffer, 0, count
        return count

    def _receive_direct(self, frame: bytearray, missing: int) -> int:
        filled = self._filled
        if filled == len(frame):
            frame += _ZEROS[: min(missing, filled, _STEP_BYTES)]
        with memoryview(frame) as whole, whole[filled:] as tail:
            count = self._sock.recv_into(tail)
        self._filled = filled + count
        self._position = self._end = 0
        return count

    def _receive_behind_rest(self) -> int:
        """Receive the rest of a length of which some bytes are there."""
        known = len(self._rest)
        count = self._sock.recv_into(self._buffer[known:])
        self._buffer[:known] = self._rest
        self._rest = b""
        self._data, self._position, self._end = self._buffer, 0, known + count
        return count

    def next_frame(self) -> bytearray | None:
        """The next frame that is whole; None when more must arrive. Raises FrameRefused."""
        if self._frame is not None:
            return self._continued(self._frame)
        position, end = self._position, self._end
        start = position + _PREFIX_BYTES
        if start > end:
            if position < end:
                self._rest = bytes(self._data[position:end])
                self._position = end
            return None
        (size,) = _PREFIX.unpack_from(self._data, position)
        if not 0 <= size <= self._max_frame_bytes:
            raise FrameRefused(size, self._max_frame_bytes)
        after = start + size
        if after <= end:
            self._position = after
            return bytearray(self._data[start:after])
        if size > BUFFER_BYTES and not self.admitted_bytes:
            if not self._admit(size):
                self.is_waiting = True
                return None
            self.admitted_bytes = size
        self._position = end
        self._frame = bytearray(self._data[start:end])
        self._size, self._filled = size, end - start
        return None

    def _continued(self, frame: bytearray) -> bytearray | None:
        missing = self._size - self._filled
        taken = min(missing, self._end - self._position)
        if taken:
            del frame[self._filled :]
            frame += self._data[self._position : self._position + taken]
            self._filled += taken
            self._position += taken
        if taken < missing:
            return None
        self._frame = None
        return frame

    def hold(self) -> None:
        """Keep what was not asked for: the shared buffer is needed by others."""
        if self._position < self._end:
            self._rest = bytes(self._data[self._position : self._end])
        self._data, self._position, self._end = self._buffer, 0, 0

    def unhold(self) -> None:
        """Go on with what was kept, before receiving more."""
        self._data, self._position, self._end = memoryview(self._rest), 0, len(self._rest)
        self._rest = b""

    def forget(self) -> None:
        self._data = self._buffer
        self._rest, self._frame = b"", None
        self._position = self._end = 0
        self._admit = _always
        self.admitted_bytes = 0
        self.is_waiting = False
