"""What a leader accepts from a client: whole batches whose every record any consumer can read.

The checks are those of Kafka's LogValidator: checksum, sizes, one record per offset, offset deltas 0, 1, 2, consistent
lengths, a payload that decompresses, timestamps near the broker's clock, keys where the topic is compacted. A batch is
accepted or rejected as a whole; the error names the records at fault. Followers only verify checksums. Where
`compression.type` asks for another codec, the payload is recompressed without decoding records (at most 16 times
max.message.bytes, at least 16 MiB), and the result is checked as if it came from outside.

A megabyte of gzip may hold a gigabyte, so a request has a `Budget`. Small batches are validated on the event loop; for
larger ones `LongValidation` is raised and the caller validates on another thread. `validate` touches no log object.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from penstock.log.errors import AppendTooLarge, BatchTooLarge, InvalidBatch, InvalidTimestamp
from penstock.log.settings import LogSettings
from penstock.records import (
    DEFAULT_DECOMPRESSED_LIMIT,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    Codec,
    CorruptBatch,
    Payload,
    Scan,
    TooLarge,
    payload_of,
    scan,
)
from penstock.records.batch import pooled_payload_of
from penstock.records.compression import compress, release
from penstock.records.kernel import (
    RECORD_OUT_OF_PLACE,
    RECORD_OUT_OF_TIME,
    RECORD_WITHOUT_KEY,
    stamp_create_time,
    validate_records,
    write_header,
)

LOOP_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one request that are validated on the event loop: at 10 ns per record of 7 bytes, 6 ms."""
LOOP_PACKED_BYTES: Final = 64 * 1024
"""A larger compressed batch is not decompressed on the event loop."""
LOOP_PLAIN_BYTES: Final = 256 * 1024
"""Decompressed size of a batch that is validated on the event loop: 1 ms of gzip."""
LOOP_REQUEST_PLAIN_BYTES: Final = 1024 * 1024
"""Decompressed size of all batches of one request that are validated on the event loop."""
LOOP_RECOMPRESSED_BYTES: Final = 16 * 1024
"""Larger requests are not recompressed on the event loop."""
LOOP_SCHEMA_BYTES: Final = 32 * 1024
"""Bytes of one request whose schema ids are checked on the event loop: 5 ms for the smallest records."""
RECORD_ERRORS: Final = 1_000
"""Invalid records named in one response; a request of a megabyte could have a million of them."""

_LENGTH: Final = Struct(">i")
_LENGTH_POSITION: Final = 8
_LENGTH_END: Final = 12
_ATTRIBUTES_POSITION: Final = 22
_CODEC_BITS: Final = 7
_APPEND_TIME_BIT: Final = 8
_UNUSUAL_BITS: Final = _APPEND_TIME_BIT | 32  # control batches
_INT64_MAX: Final = 2**63 - 1
_ANY_TIME: Final = -_INT64_MAX - 1, _INT64_MAX
# A recompressed batch may decompress to this many times max.message.bytes, and at least to _LEAST_LIMIT.
_GROWTH: Final = 16
_LEAST_LIMIT: Final = 16 * 1024 * 1024


class LongValidation(Exception):
    """Validation would block the event loop: do it on another thread."""


class Budget:
    """What one request may use, on the event loop and in total."""

    # Attributes of the class until something is used: most requests are small.
    loop_bytes = LOOP_BYTES
    loop_plain_bytes = LOOP_REQUEST_PLAIN_BYTES
    loop_schema_bytes = LOOP_SCHEMA_BYTES
    decompressed_bytes = DEFAULT_DECOMPRESSED_LIMIT
    record_errors = RECORD_ERRORS


class Validated:
    """Batches that a log may append, and their scan. The buffer may be changed in place."""

    __slots__ = ("batches", "found")

    def __init__(self, batches: Buffer, found: Scan) -> None:
        self.batches = batches
        self.found = found


def validate(
    settings: LogSettings, batches: Buffer, now_ms: int, budget: Budget | None = None, *, on_loop: bool = False
) -> Validated:
    """A client's batches, checked, compressed with the topic's codec, in a writable buffer.

    CorruptBatch for bytes that are not whole batches, InvalidBatch for batches that this log does not accept, TooLarge
    for batches that decompress to more than the budget has left, LongValidation only if `on_loop`.
    """
    budget = Budget() if budget is None else budget
    size = len(batches)
    if on_loop:
        _spend_on_loop(budget, batches)
    found = scan(batches)
    headers = found.headers
    if found.problem is not None or not headers:
        raise CorruptBatch(found.problem or "no batch found", found.end)
    check_sizes(settings, headers, size)
    if not isinstance(batches, memoryview) or batches.readonly:
        batches = writable(batches)
    is_stamped = settings.message_timestamp_append_time
    earliest, latest = _ANY_TIME if is_stamped else _timestamps(settings, now_ms)
    needs_keys = settings.compacts
    recompresses = settings.compression_codec is not None and needs_recompression(settings, headers)
    if recompresses and on_loop and size > LOOP_RECOMPRESSED_BYTES:
        raise LongValidation
    plain: Buffer
    payloads: list[tuple[Buffer, int, int]] = []
    first = 0  # the index of the batch's first record in the request
    for header in headers:
        attributes, count = header.attributes, header.record_count
        if attributes & _UNUSUAL_BITS or count != header.last_offset_delta + 1 or len(headers) > 1:
            _check_header(header, is_stamped, len(headers))
        if attributes & _CODEC_BITS:
            plain, start, end = _unpacked(batches, header, budget, on_loop)
        else:
            plain, start, end = batches, header.position + HEADER_SIZE, header.position + header.size
        try:
            newest, faults = validate_records(
                plain, start, end, count, header.base_timestamp, earliest, latest, needs_keys, budget.record_errors
            )
        except CorruptBatch as error:
            raise InvalidBatch(error.reason) from None
        if faults:
            budget.record_errors = max(0, budget.record_errors - len(faults))
            raise _error_of(faults, first, header, earliest, latest)
        if (newest != header.max_timestamp or attributes & _APPEND_TIME_BIT) and not is_stamped:
            # Retention and lookups by time use the header.
            stamp_create_time(batches, header, newest)
        if recompresses:
            payloads.append((plain, start, end))
        elif attributes & _CODEC_BITS:
            release(plain)
        first += count
    if recompresses:
        batches, found = recompressed(settings, batches, found, payloads)
        release(*(plain for plain, _, _ in payloads))
    return Validated(batches, found)


def _spend_on_loop(budget: Budget, batches: Buffer) -> None:
    size = len(batches)
    if size > budget.loop_bytes:
        raise LongValidation
    if size > LOOP_PACKED_BYTES and batches[_ATTRIBUTES_POSITION] & _CODEC_BITS:
        # Another thread will decompress it, and compute the checksum: here that would be done twice.
        (length,) = _LENGTH.unpack_from(batches, _LENGTH_POSITION)
        if length + _LENGTH_END > LOOP_PACKED_BYTES:
            raise LongValidation
    budget.loop_bytes -= size


def check_sizes(settings: LogSettings, headers: Sequence[BatchHeader], total: int) -> None:
    limit = settings.max_message_bytes
    for header in headers:
        if header.size > limit:
            raise BatchTooLarge(header.size, limit)
    if total > settings.segment_bytes:
        raise AppendTooLarge(total, settings.segment_bytes)


def writable(batches: Buffer) -> bytearray | memoryview:
    """The same bytes in a buffer that offsets can be written into."""
    if isinstance(batches, memoryview) and not batches.readonly:
        return batches
    return batches if isinstance(batches, bytearray) else bytearray(batches)


def _timestamps(settings: LogSettings, now_ms: int) -> tuple[int, int]:
    """The earliest and the latest allowed timestamp."""
    latest = now_ms + settings.message_timestamp_after_max_ms
    return now_ms - settings.message_timestamp_before_max_ms, latest if latest < _INT64_MAX else _INT64_MAX


def _check_header(header: BatchHeader, is_stamped: bool, batches: int) -> None:
    if header.is_control:
        raise InvalidBatch("clients may not write control batches")
    if header.record_count == 0 or header.record_count != header.last_offset_delta + 1:
        raise InvalidBatch(
            f"a batch of {header.record_count} records may not span {header.last_offset_delta + 1} offsets"
        )
    if header.producer_id >= 0 and batches > 1:
        raise InvalidBatch("an idempotent producer may send only one batch per partition and request")
    if is_stamped and header.timestamp_type == LOG_APPEND_TIME:
        raise InvalidTimestamp("only a broker may set the timestamp type LogAppendTime")


def _unpacked(batches: Buffer, header: BatchHeader, budget: Budget, on_loop: bool) -> Payload:
    """The records of a compressed batch. Their size is deducted from the budget."""
    limit = budget.decompressed_bytes
    if on_loop:
        if header.size > LOOP_PACKED_BYTES or not budget.loop_plain_bytes:
            raise LongValidation
        limit = min(limit, budget.loop_plain_bytes, LOOP_PLAIN_BYTES)
    try:
        payload = pooled_payload_of(batches, header, limit)
    except TooLarge:
        if limit < budget.decompressed_bytes:
            budget.loop_plain_bytes -= limit
            raise LongValidation from None
        budget.decompressed_bytes = 0  # used up: the work was done
        raise
    except CorruptBatch as error:
        # The checksum matches, so sending it again would not help; clients retry after CorruptBatch.
        raise InvalidBatch(f"the batch cannot be decompressed: {error.reason}") from None
    budget.decompressed_bytes -= payload.end
    if on_loop:
        budget.loop_plain_bytes -= payload.end
    return payload


def _error_of(
    faults: Sequence[tuple[int, int]], first: int, header: BatchHeader, earliest: int, latest: int
) -> InvalidBatch:
    reasons = {
        RECORD_WITHOUT_KEY: "a compacted topic accepts only records with a key",
        RECORD_OUT_OF_TIME: f"the timestamp is not between {earliest} and {latest}, as the broker's clock, "
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms require",
        RECORD_OUT_OF_PLACE: "the offset delta is not the record's index in the batch",
    }
    errors = tuple((first + index, reasons.get(problem, "the record does not parse")) for index, problem in faults)
    kind = InvalidTimestamp if any(problem == RECORD_OUT_OF_TIME for _, problem in faults) else InvalidBatch
    index, reason = errors[0]
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return kind(f"record {index} of {header.record_count} is rejected: {reason}{more}", errors)


# ------------------------------------------------------------------------------------------------------- recompression


def needs_recompression(settings: LogSettings, headers: Sequence[BatchHeader]) -> bool:
    """Whether a batch has another codec than compression.type."""
    codec = settings.compression_codec
    return codec is not None and any(_differs(header, codec) for header in headers)


def recompressed(
    settings: LogSettings, batches: Buffer, found: Scan, payloads: Sequence[tuple[Buffer, int, int]] | None = None
) -> tuple[Buffer, Scan]:
    """The batches with the topic's codec and their scan; both unchanged if no batch has another codec.

    `payloads` are the batches' records, if already decompressed. CorruptBatch if a batch cannot be decompressed or
    holds less than its header says; TooLarge or BatchTooLarge if it grows beyond the topic's limits.
    """
    codec = settings.compression_codec
    if codec is None or not any(_differs(header, codec) for header in found.headers):
        return batches, found
    whole = bytearray()
    for number, header in enumerate(found.headers):
        if _differs(header, codec):
            limit = _decompressed_limit(settings, codec)
            plain, start, end = payload_of(batches, header, limit) if payloads is None else payloads[number]
            if end - start > limit:
                raise TooLarge("what the batch decompresses to", limit)
            whole += _recompressed_batch(settings, memoryview(plain)[start:end], header, codec)
        else:
            whole += memoryview(batches)[header.position : header.end]
    result = scan(whole)
    if result.problem is not None:
        raise CorruptBatch(result.problem, _original_position(found.headers, result))
    check_sizes(settings, result.headers, result.end)
    return whole, result


def _differs(header: BatchHeader, codec: int) -> bool:
    return header.codec != codec and not header.is_control


def _recompressed_batch(settings: LogSettings, plain: Buffer, header: BatchHeader, codec: int) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    batch += compress(codec, plain, settings.compression_level)
    write_header(
        batch, header.base_offset, header.leader_epoch, header.attributes & ~_CODEC_BITS | codec,
        header.last_offset_delta, header.base_timestamp, header.max_timestamp, header.producer_id,
        header.producer_epoch, header.base_sequence, header.record_count,
    )  # fmt: skip
    return batch


def _decompressed_limit(settings: LogSettings, codec: int) -> int:
    if codec == Codec.NONE:
        return max(0, settings.max_message_bytes - HEADER_SIZE)
    return min(max(_GROWTH * settings.max_message_bytes, _LEAST_LIMIT), DEFAULT_DECOMPRESSED_LIMIT)


def _original_position(headers: Sequence[BatchHeader], result: Scan) -> int:
    """Where the batch at fault stood in the request, which is the only position that the client knows."""
    return headers[min(len(result.headers), len(headers) - 1)].position
