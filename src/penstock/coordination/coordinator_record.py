"""A record of a coordinator's log: its key and its value each start with a version as an int16, as in Kafka.

The version of a key is also its kind. The version of a value is that of its own layout; a record without a value is a
tombstone. What the messages are is said by `group_records` and `transactions.transaction`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.coordination.errors import CoordinationError
from penstock.wire.codec import codec_for
from penstock.wire.errors import WireError
from penstock.wire.types import Buffer, M, Message

_VERSION: Final = struct.Struct(">h")


class CoordinatorRecord(NamedTuple):
    """A record for the log; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


def encode_versioned(message: Message, version: int) -> bytes:
    return _VERSION.pack(version) + codec_for(type(message), version).encode(message)


def version_of(data: Buffer, error: type[CoordinationError]) -> int:
    """Raises `error` if the bytes are too few."""
    if len(data) < _VERSION.size:
        raise error(f"{len(data)} bytes are too short for a version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def decode_versioned(message: type[M], data: Buffer, error: type[CoordinationError]) -> M:
    """Decode by the version that the bytes start with. Raises `error` if they do not fit it."""
    version = version_of(data, error)
    try:
        return codec_for(message, version).decode(data, _VERSION.size)[0]
    except WireError as reason:
        raise error(f"{message.__name__} version {version}: {reason}") from reason
