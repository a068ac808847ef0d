"""What can be wrong with the bytes of a batch. The edge that speaks the protocol turns these into error codes."""

from __future__ import annotations


class RecordError(Exception):
    """The bytes given as records cannot be taken as such."""


class CorruptBatch(RecordError):
    """A checksum, length or count contradicts the bytes: damage, or a sender that lies."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason} (batch at byte {position})")
        self.reason = reason
        self.position = position


class UnsupportedMagic(RecordError):
    """A format version that this code does not read."""

    def __init__(self, magic: int) -> None:
        super().__init__(f"record format (magic) {magic} is not known; 0, 1 and 2 are")
        self.magic = magic


class UnsupportedCodec(RecordError):
    """A compression codec that does not exist, or that the record format at hand cannot carry."""


class TooLarge(RecordError):
    """More bytes than the limit that the caller set: a batch, or what a compressed one would grow to."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{what} exceeds the limit of {limit} bytes")
        self.limit = limit
