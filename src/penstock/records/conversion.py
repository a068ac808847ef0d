"""Records from one format (magic) to another: what old clients send becomes batches, what they fetch becomes
message sets again.

Rule: the log holds magic 2 only, so records are converted at the edge, for each old client that asks, and
never between new ones. What the older format cannot say is dropped: headers, the leader epoch, the producer's
identity, control batches, and in magic 0 the time. What both can say is kept: keys, values, nulls, codecs,
timestamps with their type, and offsets with the gaps that compaction left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.records.batch import append_time_of, encode_batch, payload_of
from penstock.records.compression import Codec
from penstock.records.errors import CorruptBatch, TooLarge, UnsupportedCodec, UnsupportedMagic
from penstock.records.kernel import BatchHeader, decode_records, scan
from penstock.records.legacy import (
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    Allowance,
    LegacyMessage,
    MessageGroup,
    decode_groups,
    encode_message_set,
)

if TYPE_CHECKING:
    from penstock.records.twin import Buffer

_OFFSET_AND_SIZE = Struct(">qi")
_MAGIC_AT = 16
_LARGEST_OFFSET = 2**63 - 2  # the offset after it must be an i64 too
_LARGEST_DELTA = 2**31 - 1
_LATEST_MS = 2**62  # differences of two such times fit an i64


def upconvert(
    buffer: Buffer,
    *,
    limit: int,
    append_time_ms: int | None = None,
    keep_offsets: bool = False,
    allow_partial: bool = False,
) -> bytes:
    """A message set of magic 0 or 1 as batches: one for each wrapper, one for each run of messages without.

    Offsets count up from 0, since a log assigns its own, or are kept. `append_time_ms` stamps all records.
    Example: two messages and a gzip wrapper of three become a batch of 0, 1 and a gzip batch of 2, 3, 4.
    """
    return _up(buffer, Allowance(limit), append_time_ms, keep_offsets, allow_partial)


def downconvert(buffer: Buffer, magic: int, *, limit: int, from_offset: int = 0) -> bytes:
    """The whole batches at the start of `buffer` as a message set of magic 0 or 1, from `from_offset` on.

    A batch cut off by the end of the buffer is left out. Conversion stops before a batch that would grow past
    `limit` in all, or that no old client can read (zstd): the client fetches on from there. If nothing was
    converted before that batch, `TooLarge` or `UnsupportedCodec` is raised.
    The result may be empty though batches were there: control ones, or emptied by compaction.
    """
    _require_magic(magic, (0, 1))
    out: list[bytes] = []
    try:
        for message_set in _down(buffer, magic, Allowance(limit), from_offset):
            out.append(message_set)  # noqa: PERF402 - what came before an error must be kept
    except (TooLarge, UnsupportedCodec):
        if not out:
            raise
    return b"".join(out)


def convert(buffer: Buffer, magic: int, *, limit: int) -> bytes:
    """Entries of any magic, even mixed, as entries of `magic`; those that have it already stay as they are.

    Offsets are kept. All or nothing: what cannot be converted raises.
    """
    _require_magic(magic, (0, 1, 2))
    allowance = Allowance(limit)
    view = memoryview(buffer)
    out: list[Buffer] = []
    for run in _runs(view):
        entries = view[run.start : run.end]
        if run.magic == magic:
            out.append(entries)
        elif magic == 2:
            out.append(_up(entries, allowance, None, keep_offsets=True))
        elif run.magic == 2:
            out.extend(_down(entries, magic, allowance))
        else:
            out.extend(_across(group, magic) for group in decode_groups(entries, allowance))
    return b"".join(out)


def _require_magic(magic: int, known: tuple[int, ...]) -> None:
    if magic not in known:
        raise UnsupportedMagic(magic)


# --- up -----------------------------------------------------------------------------------------------------


def _up(
    buffer: Buffer,
    allowance: Allowance,
    append_time_ms: int | None,
    keep_offsets: bool,
    allow_partial: bool = False,
) -> bytes:
    out: list[bytearray] = []
    next_offset = 0
    for group in decode_groups(buffer, allowance, allow_partial=allow_partial):
        messages, timestamp_type = group.messages, group.timestamp_type
        if append_time_ms is not None:
            timestamp_type = LOG_APPEND_TIME
            records = [(append_time_ms, m.key, m.value, ()) for m in messages]
        else:
            _check_times(messages)
            records = [(m.timestamp, m.key, m.value, ()) for m in messages]
        offsets = _ascending(messages) if keep_offsets else None
        out.append(
            encode_batch(
                records,
                codec=group.codec,
                base_offset=next_offset,
                offsets=offsets,
                timestamp_type=timestamp_type,
            )
        )
        next_offset += len(messages)
    return b"".join(out)


def _check_times(messages: Sequence[LegacyMessage]) -> None:
    for message in messages:
        if not NO_TIMESTAMP <= message.timestamp <= _LATEST_MS:
            raise CorruptBatch(f"timestamp {message.timestamp} of the message at offset {message.offset}")


def _ascending(messages: Sequence[LegacyMessage]) -> list[int]:
    """The messages' offsets, if they are such as one batch can hold."""
    offsets = [message.offset for message in messages]
    if any(later <= earlier for earlier, later in pairwise(offsets)):
        raise CorruptBatch(f"offsets from {offsets[0]} to {offsets[-1]} do not ascend")
    if offsets[0] < 0 or offsets[-1] > _LARGEST_OFFSET or offsets[-1] - offsets[0] > _LARGEST_DELTA:
        raise CorruptBatch(f"offsets from {offsets[0]} to {offsets[-1]} do not fit one batch")
    return offsets


# --- down ---------------------------------------------------------------------------------------------------


def _down(buffer: Buffer, magic: int, allowance: Allowance, from_offset: int = 0) -> Iterator[bytes]:
    """A message set for each batch that has records from `from_offset` on and is not control."""
    found = scan(buffer)
    for header in found.headers:
        if header.is_control or header.record_count == 0 or header.last_offset < from_offset:
            continue
        if header.codec == Codec.ZSTD:
            raise UnsupportedCodec(f"magic {magic} cannot carry zstd, which the records ask for")
        messages = _messages(buffer, header, allowance, from_offset)
        if messages:
            _ascending(messages)
            yield encode_message_set(messages, magic, codec=header.codec)
    if found.problem not in (None, "incomplete"):
        raise CorruptBatch(str(found.problem), found.end)


def _messages(buffer: Buffer, header: BatchHeader, allowance: Allowance, from_offset: int) -> list[LegacyMessage]:
    try:
        plain, start, end = payload_of(buffer, header, allowance.room)
    except TooLarge:
        raise TooLarge("what the batches decompress to", allowance.limit) from None
    if header.codec != Codec.NONE:
        allowance.room -= end - start
    records = decode_records(
        plain,
        start,
        end,
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        append_time_of(header),
    )
    kind = header.timestamp_type
    return [
        LegacyMessage(record.offset, record.timestamp, kind, record.key, record.value)
        for record in records
        if record.offset >= from_offset
    ]


# --- across -------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    magic: int
    start: int
    end: int


def _runs(view: memoryview) -> Iterator[_Run]:
    """Neighbouring entries of one magic. Batches and messages both begin with offset and size, and have their
    magic at the same byte."""
    position, end = 0, len(view)
    run: _Run | None = None
    while position < end:
        if position + _MAGIC_AT >= end:
            raise CorruptBatch("the records end within a header", position)
        _, size = _OFFSET_AND_SIZE.unpack_from(view, position)
        magic = int.from_bytes(view[position + _MAGIC_AT : position + _MAGIC_AT + 1], "big", signed=True)
        _require_magic(magic, (0, 1, 2))
        stop = position + _OFFSET_AND_SIZE.size + size
        if stop <= position + _MAGIC_AT or stop > end:
            raise CorruptBatch(f"an entry of {size} bytes where {end - position} are left", position)
        if run is None or run.magic != magic:
            if run is not None:
                yield run
            run = _Run(magic, position, stop)
        else:
            run = run._replace(end=stop)
        position = stop
    if run is not None:
        yield run


def _across(group: MessageGroup, magic: int) -> bytes:
    """A group of magic 0 in magic 1, or the other way round."""
    if group.codec is not Codec.NONE:
        _ascending(group.messages)
    return encode_message_set(group.messages, magic, codec=group.codec)
