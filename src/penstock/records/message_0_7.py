"""Messages of Kafka 0.7, before there were offsets, keys and timestamps inside of them.

    log entry   length i32, then a message of that length
    magic 0     magic i8 = 0, CRC-32 u32 of the payload, payload
    magic 1     magic i8 = 1, attributes i8, CRC-32 u32 of the payload, payload

The lowest two bits of the attributes are the codec: 0 none, 1 gzip, 2 snappy. A compressed payload is a set of log
entries. Everything is big-endian. A message is identified by the byte position of its entry in the log.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from penstock.records.compression import decompress
from penstock.records.errors import RecordError
from penstock.records.types import Buffer

LENGTH_BYTES: Final = 4
SMALLEST_MESSAGE: Final = 5
_CODECS: Final = (0, 1, 2)
_CODEC_MASK: Final = 0x03
_DEEPEST: Final = 3
DECOMPRESSED_LIMIT: Final = 256 * 1024 * 1024


class DamagedMessage(RecordError):
    """Bytes that are not a message of Kafka 0.7; the text says why."""


def entry_length(data: Buffer) -> int:
    """The length of the message after these four bytes; it may be nonsense."""
    length: int = struct.unpack_from(">i", data)[0]
    return length


def payloads(message: Buffer, limit: int = DECOMPRESSED_LIMIT) -> list[bytes]:
    """The payloads of a message: one, or those of the set that it holds compressed. DamagedMessage.

    `limit` bounds what a compressed message decompresses to.
    """
    return _payloads(memoryview(message), limit, 0)


def _payloads(message: memoryview, limit: int, depth: int) -> list[bytes]:
    codec, payload = _opened(message)
    if codec == 0:
        return [bytes(payload)]
    if depth == _DEEPEST:
        raise DamagedMessage(f"compressed messages are nested more than {_DEEPEST} deep")
    try:
        content = decompress(codec, payload, limit)
    except RecordError as error:
        raise DamagedMessage(f"it cannot be decompressed: {error}") from error
    found: list[bytes] = []
    for inner in _split(memoryview(content)):
        found += _payloads(inner, limit, depth + 1)
    return found


def _opened(message: memoryview) -> tuple[int, memoryview]:
    """Codec and payload of a message whose checksum is right."""
    if len(message) < SMALLEST_MESSAGE:
        raise DamagedMessage(f"a message of {len(message)} bytes; the smallest has {SMALLEST_MESSAGE}")
    magic, codec, header = message[0], 0, 5
    if magic == 1:
        codec, header = message[1] & _CODEC_MASK, 6
        if len(message) < header:
            raise DamagedMessage(f"a message of {len(message)} bytes with magic 1; the smallest has {header}")
        if codec not in _CODECS:
            raise DamagedMessage(f"unknown codec {codec}")
    elif magic != 0:
        raise DamagedMessage(f"unknown message format (magic) {magic}; Kafka 0.7 has 0 and 1")
    payload = message[header:]
    stored = struct.unpack_from(">I", message, header - 4)[0]
    computed = zlib.crc32(payload)
    if stored != computed:
        raise DamagedMessage(f"the checksum is {stored:#010x}, not {computed:#010x}")
    return codec, payload


def _split(content: memoryview) -> list[memoryview]:
    found, at = [], 0
    while at < len(content):
        length = entry_length(content[at : at + LENGTH_BYTES]) if len(content) - at >= LENGTH_BYTES else -1
        begin = at + LENGTH_BYTES
        if not SMALLEST_MESSAGE <= length <= len(content) - begin:
            raise DamagedMessage(f"the compressed set ends with an incomplete message, at byte {at} of {len(content)}")
        found.append(content[begin : begin + length])
        at = begin + length
    return found
