"""Message sets (magic 0 and 1), which clients older than 0.11 use, and conversion between them and batches.

    message: offset i64, size i32 (of what follows), crc32 u32 (of what follows), magic i8, attributes i8,
             [timestamp i64: magic 1], key (i32 length or -1 for null, bytes), value (same)

Attributes: bits 0-2 the codec, bit 3 (magic 1) set if the broker set the timestamp. A message with a codec is a wrapper
whose value is a compressed message set.

- In a wrapper of magic 0 offsets are absolute. In magic 1 they are relative, and the wrapper has the absolute offset of
  its last message: a wrapper at 12 around 0, 1, 4 holds 8, 9, 12. A magic 1 wrapper at offset 0 comes from a producer
  that did not set it; its inner offsets stand.
- A wrapper's timestamp type applies to its messages; if the broker set it, so does its timestamp.

The log holds magic 2 only; conversion happens at the edge, for each old client. What the older format cannot express is
dropped: headers, leader epoch, producer id, control batches, and in magic 0 the timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from penstock.records.batch import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    append_time_of,
    encode_batch,
    payload_of,
)
from penstock.records.compression import Codec, compress, decompress
from penstock.records.errors import CorruptBatch, TooLarge, UnsupportedCodec, UnsupportedMagic
from penstock.records.kernel import BatchHeader, decode_records, scan

if TYPE_CHECKING:
    from penstock.records.types import Buffer


MAX_DEPTH: Final = 3

_CODEC_MASK: Final = 0x07
_APPEND_TIME_BIT: Final = 0x08
_LARGEST_SIZE: Final = 2**31 - 1

_PREFIX: Final = Struct(">qiIbb")  # offset, size, crc, magic, attributes
_OFFSET_AND_SIZE: Final = Struct(">qi")
_CRC_START: Final = _OFFSET_AND_SIZE.size + 4
_SMALLEST_SIZE: Final = (14, 22)  # by magic, without key and value
_I64: Final = Struct(">q")
_I32: Final = Struct(">i")
_HEAD: Final = (Struct(">bb"), Struct(">bbq"))  # by magic
_HEADER: Final = Struct(">qiI")


_MAGIC_AT: Final = 16
_LARGEST_OFFSET: Final = 2**63 - 2  # the next offset must be an i64 too
_LARGEST_DELTA: Final = 2**31 - 1
_LATEST_MS: Final = 2**62  # differences of two such times fit an i64


class LegacyMessage(NamedTuple):
    """A message. `timestamp` is -1 in magic 0."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None


class MessageGroup(NamedTuple):
    """Messages that become one batch: those of a wrapper, or adjacent ones without, with equal values of these."""

    magic: int
    codec: Codec
    timestamp_type: int
    messages: list[LegacyMessage]


class _Entry(NamedTuple):
    position: int
    magic: int
    codec: Codec
    message: LegacyMessage


class DecompressionBudget:
    """How many bytes an operation may decompress, over all wrappers."""

    __slots__ = ("limit", "room")

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"limit is {limit}; it must be 0 or more")
        self.limit = limit
        self.room = limit

    def decompress(self, codec: Codec, data: Buffer, magic: int) -> bytes:
        """Decompress within what is left of the budget."""
        try:
            plain = decompress(codec, data, self.room, magic=magic)
        except TooLarge:
            raise TooLarge("what the messages decompress to", self.limit) from None
        self.room -= len(plain)
        return plain


def decode_message_set(
    buffer: Buffer, *, limit: int, max_depth: int = MAX_DEPTH, allow_partial: bool = False
) -> list[LegacyMessage]:
    """The messages of a set, with wrappers replaced by their messages. Checksums are verified.

    With `allow_partial` an incomplete message at the end is ignored, as fetch responses have them.
    """
    groups = decode_groups(buffer, DecompressionBudget(limit), max_depth=max_depth, allow_partial=allow_partial)
    return [message for group in groups for message in group.messages]


def decode_groups(
    buffer: Buffer, budget: DecompressionBudget, *, max_depth: int = MAX_DEPTH, allow_partial: bool = False
) -> Iterator[MessageGroup]:
    """The messages of a set, grouped into batches: see `MessageGroup`."""
    plain: MessageGroup | None = None
    for entry in _entries(bytes(buffer), allow_partial):
        message = entry.message
        if entry.codec is Codec.NONE:
            if plain is None or not _belongs(message, entry.magic, plain):
                if plain is not None:
                    yield plain
                plain = MessageGroup(entry.magic, Codec.NONE, message.timestamp_type, [])
            plain.messages.append(message)
            continue
        if plain is not None:
            yield plain
            plain = None
        messages = _unwrap(entry, budget, max_depth)
        yield MessageGroup(entry.magic, entry.codec, message.timestamp_type, messages)
    if plain is not None:
        yield plain


def _belongs(message: LegacyMessage, magic: int, group: MessageGroup) -> bool:
    if magic != group.magic or message.timestamp_type != group.timestamp_type:
        return False
    return group.timestamp_type == CREATE_TIME or message.timestamp == group.messages[0].timestamp


def _entries(data: bytes, allow_partial: bool) -> Iterator[_Entry]:
    """The messages of one set, checked but not unwrapped."""
    view = memoryview(data)
    position, end = 0, len(data)
    while position < end:
        size = 0
        stop = position + _OFFSET_AND_SIZE.size
        if stop <= end:
            size = _OFFSET_AND_SIZE.unpack_from(data, position)[1]
            if size < _SMALLEST_SIZE[0]:
                raise CorruptBatch(f"message size {size} is below {_SMALLEST_SIZE[0]}", position)
            stop += size
        if stop > end:
            if allow_partial:
                return
            raise CorruptBatch("the message set ends within a message", position)
        offset, _, crc, magic, attributes = _PREFIX.unpack_from(data, position)
        if magic not in (0, 1):
            raise (UnsupportedMagic(magic) if magic != 2 else CorruptBatch("batch inside a message set", position))
        if size < _SMALLEST_SIZE[magic]:
            raise CorruptBatch(f"message size {size} is below {_SMALLEST_SIZE[magic]}", position)
        if crc32(view[position + _CRC_START : stop]) != crc:
            raise CorruptBatch("message checksum does not match", position)
        yield _entry(data, position, stop, offset, magic, attributes)
        position = stop


def _entry(data: bytes, position: int, stop: int, offset: int, magic: int, attributes: int) -> _Entry:
    body = position + _PREFIX.size
    timestamp, timestamp_type = NO_TIMESTAMP, CREATE_TIME
    if magic == 1:
        (timestamp,) = _I64.unpack_from(data, body)
        timestamp_type = LOG_APPEND_TIME if attributes & _APPEND_TIME_BIT else CREATE_TIME
        body += 8
    key, body = _sized(data, body, stop - 4, position)
    value, body = _sized(data, body, stop, position)
    if body != stop:
        raise CorruptBatch(f"{stop - body} bytes follow a message's value", position)
    try:
        codec = Codec(attributes & _CODEC_MASK)
    except ValueError:
        raise UnsupportedCodec(f"unknown compression codec {attributes & _CODEC_MASK}") from None
    return _Entry(position, magic, codec, LegacyMessage(offset, timestamp, timestamp_type, key, value))


def _sized(data: bytes, start: int, stop: int, position: int) -> tuple[bytes | None, int]:
    (size,) = _I32.unpack_from(data, start)
    start += 4
    if size == -1:
        return None, start
    if size < 0 or start + size > stop:
        raise CorruptBatch(f"key or value of {size} bytes, {stop - start} are left", position)
    return data[start : start + size], start + size


def _unwrap(wrapper: _Entry, budget: DecompressionBudget, depth: int) -> list[LegacyMessage]:
    """The messages inside a wrapper, with absolute offsets and the wrapper's timestamp type."""
    if depth <= 0:
        raise CorruptBatch("wrappers are nested too deeply", wrapper.position)
    if wrapper.message.value is None:
        raise CorruptBatch("compressed message without a value", wrapper.position)
    inner: list[LegacyMessage] = []
    try:
        plain = budget.decompress(wrapper.codec, wrapper.message.value, wrapper.magic)
        for entry in _entries(plain, allow_partial=False):
            if entry.magic != wrapper.magic:
                raise CorruptBatch(f"magic {entry.magic} inside magic {wrapper.magic}")
            if entry.codec is Codec.NONE:
                inner.append(entry.message)
            else:
                inner += _unwrap(entry, budget, depth - 1)
    except CorruptBatch as error:
        raise CorruptBatch(f"in a compressed message: {error.reason}", wrapper.position) from None
    if not inner:
        raise CorruptBatch("compressed message without messages", wrapper.position)
    return inner if wrapper.magic == 0 else _placed(inner, wrapper)


def _placed(inner: list[LegacyMessage], wrapper: _Entry) -> list[LegacyMessage]:
    offset, stamp, timestamp_type, _, _ = wrapper.message
    base = 0
    if offset:
        relative = [message.offset for message in inner]
        last = relative[-1]
        if min(relative) < 0 or max(relative) > last or last > offset:
            raise CorruptBatch(f"offsets inside a message at {offset} do not end with it", wrapper.position)
        base = offset - last
    if timestamp_type == LOG_APPEND_TIME:
        return [LegacyMessage(base + m.offset, stamp, timestamp_type, m.key, m.value) for m in inner]
    return [LegacyMessage(base + m.offset, m.timestamp, timestamp_type, m.key, m.value) for m in inner]


def encode_message_set(
    messages: Sequence[LegacyMessage],
    magic: int,
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    append_time_ms: int | None = None,
) -> bytes:
    """A set of the messages, or of one wrapper around them if there is a codec.

    `append_time_ms` is set on all of them (magic 1). Messages in a wrapper of magic 1 must have the same timestamp type
    and ascending offsets.
    """
    if magic not in (0, 1):
        raise UnsupportedMagic(magic)
    if not messages:
        return b""
    if append_time_ms is not None:
        messages = [m._replace(timestamp=append_time_ms, timestamp_type=LOG_APPEND_TIME) for m in messages]
    if codec == Codec.NONE:
        return b"".join([_message(m, magic) for m in messages])
    return _wrapper(messages, magic, codec, level)


def _wrapper(messages: Sequence[LegacyMessage], magic: int, codec: int, level: int | None) -> bytes:
    first, last = messages[0], messages[-1]
    base = 0
    if magic == 1:
        if any(m.timestamp_type != first.timestamp_type for m in messages):
            raise ValueError("the messages of a wrapper must have the same timestamp type")
        if any(m.offset < first.offset or m.offset > last.offset for m in messages):
            raise ValueError("the offsets in a wrapper must be between those of its first and last message")
        base = first.offset
    inner = b"".join([_message(m, magic, base) for m in messages])
    packed = compress(codec, inner, level, magic=magic)
    newest_ms = max(m.timestamp for m in messages)
    return _message(LegacyMessage(last.offset, newest_ms, first.timestamp_type, None, packed), magic, 0, codec)


def _message(message: LegacyMessage, magic: int, base_offset: int = 0, codec: int = Codec.NONE) -> bytes:
    offset, timestamp, timestamp_type, key, value = message
    if magic == 0:
        head = _HEAD[0].pack(magic, codec)
    else:
        head = _HEAD[1].pack(magic, codec | timestamp_type * _APPEND_TIME_BIT, timestamp)
    size = _SMALLEST_SIZE[magic] + len(key or b"") + len(value or b"")
    if size > _LARGEST_SIZE:
        raise TooLarge("a message", _LARGEST_SIZE)
    key_size = _I32.pack(-1 if key is None else len(key))
    value_size = _I32.pack(-1 if value is None else len(value))
    body = b"".join((head, key_size, key or b"", value_size, value or b""))
    return _HEADER.pack(offset - base_offset, size, crc32(body)) + body


# ---------------------------------------------------------------------------------------------------------- conversion


def upconvert(
    buffer: Buffer,
    *,
    limit: int,
    append_time_ms: int | None = None,
    keep_offsets: bool = False,
    allow_partial: bool = False,
) -> bytes:
    """A message set of magic 0 or 1 as batches: one per wrapper, one per run of messages without.

    Offsets count from 0, since a log assigns its own, or are kept. `append_time_ms` is set on all records. Two messages
    and a gzip wrapper of three become a batch of 0, 1 and a gzip batch of 2, 3, 4.
    """
    return _up(buffer, DecompressionBudget(limit), append_time_ms, keep_offsets, allow_partial)


def downconvert(buffer: Buffer, magic: int, *, limit: int, from_offset: int = 0) -> bytes:
    """The complete batches at the start of `buffer` as a message set of magic 0 or 1, from `from_offset`.

    An incomplete batch at the end is ignored. Conversion stops before a batch that exceeds `limit` in total, or that no
    old client can read (zstd): the client continues to fetch there. If nothing was converted before it, `TooLarge` or
    `UnsupportedCodec` is raised. The result may be empty: control batches, and batches emptied by compaction, are left
    out.
    """
    _require_magic(magic, (0, 1))
    out: list[bytes] = []
    try:
        for message_set in _down(buffer, magic, DecompressionBudget(limit), from_offset):
            out.append(message_set)  # noqa: PERF402 - what came before an error must be kept
    except (TooLarge, UnsupportedCodec):
        if not out:
            raise
    return b"".join(out)


def convert(buffer: Buffer, magic: int, *, limit: int) -> bytes:
    """Entries of any magic, even mixed, as entries of `magic`. Those that have it stay as they are.

    Offsets are kept. Raises if an entry cannot be converted.
    """
    _require_magic(magic, (0, 1, 2))
    budget = DecompressionBudget(limit)
    view = memoryview(buffer)
    out: list[Buffer] = []
    for run in _runs(view):
        entries = view[run.start : run.end]
        if run.magic == magic:
            out.append(entries)
        elif magic == 2:
            out.append(_up(entries, budget, None, keep_offsets=True))
        elif run.magic == 2:
            out.extend(_down(entries, magic, budget))
        else:
            out.extend(_across(group, magic) for group in decode_groups(entries, budget))
    return b"".join(out)


def _require_magic(magic: int, known: tuple[int, ...]) -> None:
    if magic not in known:
        raise UnsupportedMagic(magic)


# --- to magic 2


def _up(
    buffer: Buffer,
    budget: DecompressionBudget,
    append_time_ms: int | None,
    keep_offsets: bool,
    allow_partial: bool = False,
) -> bytes:
    out: list[bytearray] = []
    next_offset = 0
    for group in decode_groups(buffer, budget, allow_partial=allow_partial):
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
            raise CorruptBatch(f"invalid timestamp {message.timestamp} of the message at offset {message.offset}")


def _ascending(messages: Sequence[LegacyMessage]) -> list[int]:
    """The offsets of messages, checked to fit one batch."""
    offsets = [message.offset for message in messages]
    if any(later <= earlier for earlier, later in pairwise(offsets)):
        raise CorruptBatch(f"offsets from {offsets[0]} to {offsets[-1]} do not ascend")
    if offsets[0] < 0 or offsets[-1] > _LARGEST_OFFSET or offsets[-1] - offsets[0] > _LARGEST_DELTA:
        raise CorruptBatch(f"offsets from {offsets[0]} to {offsets[-1]} do not fit one batch")
    return offsets


# --- from magic 2


def _down(buffer: Buffer, magic: int, budget: DecompressionBudget, from_offset: int = 0) -> Iterator[bytes]:
    """A message set for each data batch that has records from `from_offset`."""
    found = scan(buffer)
    for header in found.headers:
        if header.is_control or header.record_count == 0 or header.last_offset < from_offset:
            continue
        if header.codec == Codec.ZSTD:
            raise UnsupportedCodec(f"magic {magic} does not support zstd, which the records use")
        messages = _messages(buffer, header, budget, from_offset)
        if messages:
            _ascending(messages)
            yield encode_message_set(messages, magic, codec=header.codec)
    if found.problem not in (None, "incomplete"):
        raise CorruptBatch(str(found.problem), found.end)


def _messages(
    buffer: Buffer, header: BatchHeader, budget: DecompressionBudget, from_offset: int
) -> list[LegacyMessage]:
    try:
        plain, start, end = payload_of(buffer, header, budget.room)
    except TooLarge:
        raise TooLarge("what the batches decompress to", budget.limit) from None
    if header.codec != Codec.NONE:
        budget.room -= end - start
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


# --- between magic 0 and 1


class _Run(NamedTuple):
    magic: int
    start: int
    end: int


def _runs(view: memoryview) -> Iterator[_Run]:
    """Adjacent entries of the same magic. Batches and messages both start with offset and size, and have their magic at
    the same byte."""
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
            raise CorruptBatch(f"entry of {size} bytes, {end - position} are left", position)
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
    """A group of magic 0 as magic 1, or the reverse."""
    if group.codec is not Codec.NONE:
        _ascending(group.messages)
    return encode_message_set(group.messages, magic, codec=group.codec)
