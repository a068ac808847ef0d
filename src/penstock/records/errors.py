"""What can be wrong with the bytes of a batch. The edge that speaks the protocol turns these into error codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from penstock.records.python_kernel_client import ConsumerRecord


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


class DecodeFailed(RecordError):
    """A decoder could not make sense of a record's key or value; its own exception is the cause.

    `record` is the one that failed, its bytes as they are, and `records` are those before it, decoded.
    """

    def __init__(
        self,
        record: ConsumerRecord[bytes | None, bytes | None],
        field: Literal["key", "value"],
        records: list[ConsumerRecord[Any, Any]],
    ) -> None:
        super().__init__(
            f"the {field} of {record.topic}-{record.partition} at offset {record.offset} cannot be decoded"
        )
        self.record = record
        self.field = field
        self.records = records

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def data(self) -> bytes:
        """The bytes that the decoder was given."""
        return (self.record.key if self.field == "key" else self.record.value) or b""
