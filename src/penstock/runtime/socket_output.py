"""Answers into a socket.

Noun: the queue of chunks that one connection has still to send: buffers, and regions of files.

Rule: neighbours leave in one `sendmsg`. A large region goes by `sendfile`, in steps, so that one reader of much does
not hold up the loop; a small one is read when its turn comes, which costs less than a system call of its own. A region
takes no memory while it waits, and holds its file until the last byte has left.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.runtime.files import Buffer, File
from penstock.runtime.network import Chunk, FileRegion, NetworkError

BUFFERS: Final = (bytes, bytearray, memoryview)
# What one connection may send before the others have their turn.
TURN_BYTES: Final = 1024 * 1024

# Measured on loopback: below this a read and a shared sendmsg take less time than a sendfile.
_SMALL_REGION_BYTES: Final = 16 * 1024
# Regions of files without a descriptor are read in pieces of this size.
_PIECE_BYTES: Final = 256 * 1024
_IOV_MAX: Final = max(16, min(1024, os.sysconf("SC_IOV_MAX")))
# Linux only: without it the head of an answer would leave as a packet of its own.
_MSG_MORE: Final[int] = getattr(socket, "MSG_MORE", 0)


class FileTooShort(NetworkError):
    """A file ends before the region that was promised."""

    def __init__(self, path: str, missing_bytes: int) -> None:
        super().__init__(f"{path} ends {missing_bytes} bytes before the end of the region to send")
        self.path = path
        self.missing_bytes = missing_bytes


class _Rest(NamedTuple):
    """What is left of a region."""

    file: File
    position: int
    size: int


def size_of(chunks: Sequence[Chunk]) -> int:
    """Bytes on the wire."""
    total = 0
    for chunk in chunks:
        total += len(chunk) if isinstance(chunk, BUFFERS) else chunk.size
    return total


class Output:
    """The queue, and the socket that it drains into."""

    __slots__ = ("_descriptor", "_sock", "queue")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._descriptor = sock.fileno()
        self.queue: deque[Chunk] = deque()

    def flush(self) -> int:
        """Send until the queue is empty, the socket full or the turn over; how many bytes went.

        Raises the OSError of the socket or of a file, or FileTooShort: nothing more can be sent then.
        """
        queue = self.queue
        total = 0
        while queue and total < TURN_BYTES:
            head = queue[0]
            if isinstance(head, BUFFERS) or head.size <= _SMALL_REGION_BYTES:
                sent, offered = self._send_batch(TURN_BYTES - total)
            else:
                sent, offered = self._send_region(head, TURN_BYTES - total)
            total += sent
            if sent < offered:
                break
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
                chunk = _read(chunk, chunk.size)
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
        """A step of a sendfile; (bytes sent, bytes offered)."""
        file, position, size = region.file, region.position, region.size
        offered = min(size, max_bytes)
        try:
            descriptor = file.fileno()
        except OSError:
            # No descriptor: a simulated disk, or a closed file, which the read will tell.
            offered = min(offered, _PIECE_BYTES)
            self._advance(region, offered, _read(region, offered))
            return self._send_batch(offered)
        try:
            sent = os.sendfile(self._descriptor, descriptor, position, offered)
        except BlockingIOError:
            return 0, offered
        if sent == 0:
            raise FileTooShort(file.path, size)
        self._advance(region, sent, None)
        return sent, offered

    def _advance(self, region: FileRegion, count: int, piece: bytes | None) -> None:
        queue = self.queue
        del queue[0]
        if count < region.size:
            queue.appendleft(_Rest(region.file, region.position + count, region.size - count))
        if piece is not None:
            queue.appendleft(piece)


def _read(region: FileRegion, size: int) -> bytes:
    data = region.file.read_at(region.position, size)
    if len(data) < size:
        raise FileTooShort(region.file.path, region.size - len(data))
    return data
