"""Batches as the topic wants them compressed (`compression.type`), where their producer did it another way.

Noun: a batch whose records, one blob, are decompressed and compressed again under the header that they had.

Rule: no record is decoded. Offsets, timestamps, producer, sequence and the transactional flag stay; codec, length and
checksum change. Control batches, and batches that have the codec already, stay byte for byte. What comes out is checked
as if it had come from outside: what would be taken for damage when the log is next opened must not be written.

    gzip batch of 10 records, compression.type=zstd:  61 bytes of header | gzip blob  ->  header, codec 4 | zstd blob

Memory and time are bounded: a batch may decompress to sixteen times what the topic takes as a batch (at least 16 MiB,
at most what anybody here decompresses), and one that is stored uncompressed to no more than the topic takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.log.append_checks import check_sizes
from penstock.log.settings import LogSettings
from penstock.records import (
    DEFAULT_DECOMPRESSED_LIMIT,
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    Codec,
    CorruptBatch,
    Scan,
    TooLarge,
    payload_of,
    scan,
)
from penstock.records.compression import compress
from penstock.records.kernel import write_header

_CODEC_BITS: Final = 7
_GROWTH: Final = 16
_LEAST_LIMIT: Final = 16 * 1024 * 1024


def needs_recompression(settings: LogSettings, headers: Sequence[BatchHeader]) -> bool:
    """Whether the topic wants one of the batches compressed another way."""
    codec = settings.compression_codec
    return codec is not None and any(_differs(header, codec) for header in headers)


def recompressed(
    settings: LogSettings, batches: Buffer, found: Scan, payloads: Sequence[tuple[Buffer, int, int]] | None = None
) -> tuple[Buffer, Scan]:
    """The batches with the topic's codec, and what a scan finds in them; both as they were if none has another.

    `payloads` are the batches' records, if somebody has decompressed them already.

    CorruptBatch if a batch cannot be decompressed or holds less than its header says; TooLarge or BatchTooLarge if it
    grows beyond what the topic takes.
    """
    codec = settings.compression_codec
    if codec is None or not any(_differs(header, codec) for header in found.headers):
        return batches, found
    whole = bytearray()
    for number, header in enumerate(found.headers):
        if _differs(header, codec):
            limit = _limit(settings, codec)
            plain, start, end = payload_of(batches, header, limit) if payloads is None else payloads[number]
            if end - start > limit:
                raise TooLarge("what the batch decompresses to", limit)
            whole += _batch(settings, memoryview(plain)[start:end], header, codec)
        else:
            whole += memoryview(batches)[header.position : header.end]
    result = scan(whole)
    if result.problem is not None:
        raise CorruptBatch(result.problem, _original_position(found.headers, result))
    check_sizes(settings, result.headers, result.end)
    return whole, result


def _differs(header: BatchHeader, codec: int) -> bool:
    return header.codec != codec and not header.is_control


def _batch(settings: LogSettings, plain: Buffer, header: BatchHeader, codec: int) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    batch += compress(codec, plain, settings.compression_level)
    write_header(
        batch, header.base_offset, header.leader_epoch, header.attributes & ~_CODEC_BITS | codec,
        header.last_offset_delta, header.base_timestamp, header.max_timestamp, header.producer_id,
        header.producer_epoch, header.base_sequence, header.record_count,
    )  # fmt: skip
    return batch


def _limit(settings: LogSettings, codec: int) -> int:
    if codec == Codec.NONE:
        return max(0, settings.max_message_bytes - HEADER_SIZE)
    return min(max(_GROWTH * settings.max_message_bytes, _LEAST_LIMIT), DEFAULT_DECOMPRESSED_LIMIT)


def _original_position(headers: Sequence[BatchHeader], result: Scan) -> int:
    """Where the batch stood that the scan of the result stopped at: who sent it knows nothing of other positions."""
    return headers[min(len(result.headers), len(headers) - 1)].position
