"""What one fetch brought of one partition, made ready to be handed out. No record is touched here.

Noun: a `Chunk`: the bytes, and the headers of those of their batches that the reader may see.

Rule: only headers are read. Control batches are passed over; for readers of committed records so are the batches of
transactions that were aborted, which the broker lists and whose ends the log marks. Message sets of old brokers are
turned into batches first. A batch that is cut off at the end is left for the next fetch; one that is damaged ends the
chunk, and is an error if nothing comes before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from penstock.client.consumer.positions import NO_EPOCH, Place
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT, BatchHeader, Buffer, CorruptBatch, scan
from penstock.records.control import decode_marker
from penstock.records.conversion import upconvert

_OFFSET_AND_SIZE: Final = Struct(">qi")
_MAGIC_AT: Final = 16

Aborted = tuple[int, int]
"""Producer id and first offset of an aborted transaction."""


class Chunk:
    """Batches of one partition, from `from_offset` on."""

    __slots__ = ("buffer", "epoch", "from_offset", "headers", "next_offset", "place", "size", "version")

    def __init__(
        self, place: Place, buffer: Buffer, headers: list[BatchHeader], from_offset: int, next_offset: int, epoch: int
    ) -> None:
        self.place = place
        self.version = place.version
        self.buffer = buffer
        self.headers = headers
        self.from_offset = from_offset
        self.next_offset = next_offset
        self.epoch = epoch
        self.size = len(buffer)

    @property
    def is_stale(self) -> bool:
        """Fetched before the user went elsewhere, or before the partition went away."""
        return self.version != self.place.version

    def __repr__(self) -> str:
        return f"<Chunk {self.place.partition} {self.from_offset}..{self.next_offset - 1}, {self.size} bytes>"


class AbortedTransactions:
    """Which batches of a fetched run belong to transactions that were aborted."""

    __slots__ = ("_open", "_rest")

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._rest = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, buffer: Buffer, header: BatchHeader) -> bool:
        """To be asked for every batch, in order."""
        while self._rest and self._rest[-1][1] <= header.last_offset:
            self._open.add(self._rest.pop()[0])
        if header.is_control:
            if header.producer_id in self._open:
                marker = decode_marker(buffer, header)
                if marker is not None and not marker.is_commit:
                    self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def chunk_of(
    place: Place,
    records: Buffer,
    aborted: Iterable[Aborted] = (),
    *,
    limit: int = DEFAULT_DECOMPRESSED_LIMIT,
    verify: bool = True,
) -> Chunk | None:
    """The chunk, or None where not one whole batch arrived; raises CorruptBatch if the first one is damaged."""
    from_offset = place.fetch_offset
    buffer = as_batches(records, limit)
    found = scan(buffer, verify=verify)
    if not found.headers:
        if found.problem not in (None, "incomplete"):
            raise CorruptBatch(found.problem, found.end)
        return None
    transactions = AbortedTransactions(aborted)
    visible: list[BatchHeader] = []
    next_offset, epoch = from_offset, NO_EPOCH
    for header in found.headers:
        hidden = transactions.hides(buffer, header)
        if header.next_offset <= from_offset:
            continue
        if not hidden:
            visible.append(header)
        next_offset, epoch = header.next_offset, header.leader_epoch
    return Chunk(place, buffer, visible, from_offset, next_offset, epoch)


def as_batches(records: Buffer, limit: int) -> Buffer:
    """The same records as batches: unchanged, unless there are message sets of magic 0 or 1 among them."""
    if len(records) <= _MAGIC_AT or records[_MAGIC_AT] == 2:
        return records
    parts: list[Buffer] = []
    position, end = 0, len(records)
    view = memoryview(records)
    while position < end:
        start, is_new = position, _is_batch(view, position)
        while position < end and _is_batch(view, position) == is_new:
            position = _after(view, position)
        part = view[start : min(position, end)]
        parts.append(part if is_new else upconvert(part, limit=limit, keep_offsets=True, allow_partial=True))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _is_batch(view: memoryview, position: int) -> bool:
    """Whether a batch of magic 2 begins here. Too few bytes to tell are the tail of a message set that was cut."""
    return position + _MAGIC_AT < len(view) and view[position + _MAGIC_AT] == 2


def _after(view: memoryview, position: int) -> int:
    if position + _OFFSET_AND_SIZE.size > len(view):
        return len(view)
    size = _OFFSET_AND_SIZE.unpack_from(view, position)[1]
    # A size that makes no sense leads to the end: whoever reads the part says what is wrong.
    return position + _OFFSET_AND_SIZE.size + size if size > 0 else len(view)
