"""Frames from a socket, and chunks to it.

Input: memory follows arrival, not the announced length. All connections of a server receive into one buffer of 64 KiB;
a complete frame is copied out once. A larger frame is received into its own bytearray, which grows by at most what has
arrived; `admit` is asked before its first byte is kept. A negative or too large length is rejected immediately.

Output: adjacent buffers leave in one `sendmsg`. Pages of a large file region go to the socket without being copied
(`PageMover`), in steps, so that one reader does not block the loop; one below 16 KiB is read instead, which is cheaper
than its own system call. A waiting region takes no memory and keeps its file open.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from penstock.runtime.files import Buffer, File
from penstock.runtime.network import Chunk, FileRegion, NetworkError, protocol_remark

BUFFER_BYTES: Final = 64 * 1024

_PREFIX: Final = Struct(">i")
_PREFIX_BYTES: Final = _PREFIX.size
# Below this much of a frame, growing by what has arrived would make too many small steps.
_DIRECT_BYTES: Final = 16 * 1024
_STEP_BYTES: Final = 1024 * 1024
_ZEROS: Final = memoryview(bytes(_STEP_BYTES))


BUFFERS: Final = (bytes, bytearray, memoryview)
# A step of a large region, and what a pipe may hold without privileges.
STEP_BYTES: Final = 1024 * 1024
# A connection's turn is over when it has sent this much: one step, whose pages may be cut at both ends.
TURN_BYTES: Final = STEP_BYTES - 64 * 1024
# Up to this size sendfile fills its own pipe once only.
_SENDFILE_BYTES: Final = 64 * 1024

# Measured on loopback: below this a read and a shared sendmsg take less time than a sendfile.
_SMALL_REGION_BYTES: Final = 16 * 1024
# Regions of files without a descriptor are read in pieces of this size.
_PIECE_BYTES: Final = 256 * 1024
_IOV_MAX: Final = max(16, min(1024, os.sysconf("SC_IOV_MAX")))
# Linux only: without it the head of a reply would leave as its own packet.
_MSG_MORE: Final[int] = getattr(socket, "MSG_MORE", 0)


# --------------------------------------------------------------------------------------------------------------- input


class FrameRejected(NetworkError):
    """A frame length that is not allowed. Where the next frame starts is unknown."""

    def __init__(self, size: int, max_frame_bytes: int) -> None:
        self.size = size
        text = f"frame length {size} is negative" if size < 0 else f"frame of {size} bytes exceeds {max_frame_bytes}"
        super().__init__(text + protocol_remark(_PREFIX.pack(size)))


def _always(size: int) -> bool:
    return True


class FrameInput:
    """The frames of one connection: `receive`, then `next_frame` until it returns None.

    Between the two calls the bytes are in the shared buffer: to stop before None, `hold` the rest and continue with
    `unhold`.
    """

    __slots__ = (
        "_admit",
        "_buffer",
        "_data",
        "_end",
        "_filled",
        "_frame",
        "_position",
        "_rest",
        "_size",
        "_sock",
        "admitted_bytes",
        "is_waiting",
        "max_frame_bytes",
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
        """The size of the large frame that was admitted and is not yet complete."""
        self.is_waiting = False
        """Whether the next frame waits for room."""
        self._buffer = buffer
        self.max_frame_bytes = max_frame_bytes
        self._data = buffer
        self._position = 0
        self._end = 0
        self._rest = b""
        self._frame: bytearray | None = None
        self._size = 0
        self._filled = 0

    @property
    def more(self) -> bool:
        """Whether bytes after the last frame have arrived."""
        return self._position < self._end

    @property
    def memory_bytes(self) -> int:
        """Bytes of frames that were not returned yet."""
        return len(self._rest) + (0 if self._frame is None else len(self._frame))

    @property
    def arrived_bytes(self) -> int:
        """Bytes of the incomplete frame that have arrived."""
        return 0 if self._frame is None else self._filled

    def admit(self) -> None:
        """The waiting frame may be received."""
        self.is_waiting = False
        (self.admitted_bytes,) = _PREFIX.unpack_from(self._rest)

    def receive(self) -> int:
        """Receive once; the number of bytes, 0 at the end of the stream. BlockingIOError if there are none, OSError."""
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
        """Receive the rest of an incomplete length prefix."""
        known = len(self._rest)
        count = self._sock.recv_into(self._buffer[known:])
        self._buffer[:known] = self._rest
        self._rest = b""
        self._data, self._position, self._end = self._buffer, 0, known + count
        return count

    def next_frame(self) -> bytearray | None:
        """The next complete frame; None if more must arrive. Raises FrameRejected."""
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
        if not 0 <= size <= self.max_frame_bytes:
            raise FrameRejected(size, self.max_frame_bytes)
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
        """Copy unused bytes out of the shared buffer, which other connections need."""
        if self._position < self._end:
            self._rest = bytes(self._data[self._position : self._end])
        self._data, self._position, self._end = self._buffer, 0, 0

    def unhold(self) -> None:
        """Continue with the held bytes, before receiving more."""
        self._data, self._position, self._end = memoryview(self._rest), 0, len(self._rest)
        self._rest = b""

    def forget(self) -> None:
        self._data = self._buffer
        self._rest, self._frame = b"", None
        self._position = self._end = 0
        self._admit = _always
        self.admitted_bytes = 0
        self.is_waiting = False


# -------------------------------------------------------------------------------------------------------------- output


class FileTooShort(NetworkError):
    """A file ends before the region to send."""

    def __init__(self, path: str, missing_bytes: int) -> None:
        super().__init__(f"{path} ends {missing_bytes} bytes before the end of the region to send")
        self.path = path
        self.missing_bytes = missing_bytes


class _Rest(NamedTuple):
    """The rest of a region."""

    file: File
    position: int
    size: int


def size_of(chunks: Sequence[Chunk]) -> int:
    """Bytes on the wire."""
    total = 0
    for chunk in chunks:
        total += len(chunk) if isinstance(chunk, BUFFERS) else chunk.size
    return total


class PageMover:
    """Moves pages from files to sockets through a pipe, which is empty between two calls.

    `sendfile` does the same through a pipe of 16 pages, and hands 64 KiB at a time to the socket. The peer keeps up
    with that and is woken again and again. Without a pipe of 1 MiB (not Linux, too many of this user) `sendfile` is
    used.
    """

    __slots__ = ("_null", "_read_end", "_write_end", "is_usable")

    def __init__(self) -> None:
        self.is_usable = hasattr(os, "splice")
        """Whether there is a pipe, or will be when one is needed."""
        self._read_end = self._write_end = self._null = -1

    def send(self, target: int, source: int, position: int, count: int) -> tuple[int, int]:
        """Send bytes of a file: how many were sent, and how many were taken from the file, 0 at its end.

        BlockingIOError if the socket takes nothing, OSError.
        """
        if count > _SENDFILE_BYTES and self.is_usable and (self._null >= 0 or self._open()):
            try:
                taken = os.splice(source, self._write_end, count, offset_src=position)
            except OSError:
                pass  # sendfile says what is wrong, or works
            else:
                return (self._empty_into(target, taken), taken) if taken else (0, 0)
        sent = os.sendfile(target, source, position, count)
        return (sent, count) if sent else (0, 0)

    def _empty_into(self, target: int, taken: int) -> int:
        sent = 0
        try:
            sent = os.splice(self._read_end, target, taken, flags=os.SPLICE_F_NONBLOCK)
        finally:
            # No byte may stay: the next call is another connection's.
            if sent < taken and not self._dropped(taken - sent):
                self.close()
        return sent

    def _dropped(self, count: int) -> bool:
        try:
            return os.splice(self._read_end, self._null, count) == count
        except OSError:
            return False

    def _open(self) -> bool:
        try:
            self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self.is_usable = fcntl.fcntl(self._write_end, fcntl.F_SETPIPE_SZ, STEP_BYTES) >= STEP_BYTES
            self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self.is_usable = False
        if not self.is_usable:
            self.close()
        return self.is_usable

    def close(self, _close: Callable[[int], None] = os.close) -> None:
        """Close the pipe. From now on `sendfile` is used."""
        self.is_usable = False
        ends = self._read_end, self._write_end, self._null
        self._read_end = self._write_end = self._null = -1
        for descriptor in ends:
            if descriptor >= 0:
                _close(descriptor)

    def __del__(self) -> None:
        self.close()


class Output:
    """A queue of chunks and the socket that they are sent to."""

    __slots__ = ("_descriptor", "_pages", "_sock", "queue")

    def __init__(self, sock: socket.socket, pages: PageMover) -> None:
        self._sock = sock
        self._pages = pages
        self._descriptor = sock.fileno()
        self.queue: deque[Chunk] = deque()

    def flush(self) -> int:
        """Send until the queue is empty, the socket full or the turn over; the number of bytes sent.

        OSError of the socket or a file, FileTooShort: nothing more can be sent then.
        """
        queue = self.queue
        total = 0
        while queue and total < TURN_BYTES:
            head = queue[0]
            if isinstance(head, BUFFERS) or head.size <= _SMALL_REGION_BYTES:
                sent, offered = self._send_batch(TURN_BYTES - total)
            else:
                sent, offered = self._send_region(head, STEP_BYTES)
            total += sent
            if sent < offered:
                return total
        if queue and _is_small(queue[0]):
            # The end of a reply does not wait for another turn.
            total += self._send_batch(_SMALL_REGION_BYTES)[0]
        return total

    def _send_batch(self, max_bytes: int) -> tuple[int, int]:
        """One sendmsg for as many neighbours as it takes; (bytes sent, bytes offered)."""
        queue = self.queue
        batch: list[Buffer] = []
        offered = 0
        more = 0
        while queue and len(batch) < _IOV_MAX and offered < max_bytes:
            chunk = queue[0]
            if not isinstance(chunk, BUFFERS):
                if chunk.size > _SMALL_REGION_BYTES:
                    more = _MSG_MORE
                    break
                chunk = read_region(chunk, chunk.size)
            del queue[0]
            if len(chunk):
                batch.append(chunk)
                offered += len(chunk)
        if not batch:
            return 0, 0
        try:
            sent = self._sock.sendmsg(batch, (), more)
        except BlockingIOError:
            sent = 0
        if sent < offered:
            self._put_back(batch, sent)
        return sent, offered

    def _put_back(self, batch: list[Buffer], sent: int) -> None:
        for number, chunk in enumerate(batch):
            if sent < len(chunk):
                rest = memoryview(chunk)[sent:] if sent else chunk
                self.queue.extendleft(reversed([rest, *batch[number + 1 :]]))
                return
            sent -= len(chunk)

    def _send_region(self, region: FileRegion, max_bytes: int) -> tuple[int, int]:
        """A step of a large region; (bytes sent, bytes offered)."""
        file, position, size = region.file, region.position, region.size
        offered = min(size, max_bytes)
        try:
            descriptor = file.fileno()
        except OSError:
            # No descriptor: a simulated disk, or a closed file, for which the read raises.
            offered = min(offered, _PIECE_BYTES)
            self._advance(region, offered, read_region(region, offered))
            return self._send_batch(offered)
        try:
            sent, taken = self._pages.send(self._descriptor, descriptor, position, offered)
        except BlockingIOError:
            return 0, offered
        if taken == 0:
            raise FileTooShort(file.path, size)
        if sent:
            self._advance(region, sent, None)
        return sent, taken

    def _advance(self, region: FileRegion, count: int, piece: bytes | None) -> None:
        queue = self.queue
        del queue[0]
        if count < region.size:
            queue.appendleft(_Rest(region.file, region.position + count, region.size - count))
        if piece is not None:
            queue.appendleft(piece)


def _is_small(chunk: Chunk) -> bool:
    return (len(chunk) if isinstance(chunk, BUFFERS) else chunk.size) <= _SMALL_REGION_BYTES


def read_region(region: FileRegion, size: int) -> bytes:
    """The first bytes of a region. OSError, FileTooShort."""
    data = region.file.read_at(region.position, size)
    if len(data) < size:
        raise FileTooShort(region.file.path, region.size - len(data))
    return data
