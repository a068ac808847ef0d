"""Errors in the bytes of batches and records. The broker turns them into protocol error codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from penstock.records.python_kernel_client import ConsumerRecord


class RecordError(Exception):
    """Base of the errors."""


class CorruptBatch(RecordError):
    """A checksum, length or count contradicts the bytes: damage, or an invalid sender."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason} (batch at byte {position})")
        self.reason = reason
        self.position = position


class UnsupportedMagic(RecordError):
    """An unknown record format version."""

    def __init__(self, magic: int) -> None:
        super().__init__(f"unknown record format (magic) {magic}; known are 0, 1 and 2")
        self.magic = magic


class UnsupportedCodec(RecordError):
    """An unknown compression codec, or one that the record format does not support."""


class TooLarge(RecordError):
    """A batch, compressed or decompressed, exceeds the caller's limit."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{what} exceeds the limit of {limit} bytes")
        self.limit = limit


class DecodeFailed(RecordError):
    """A decoder failed on a record's key or value; its exception is the cause.

    `record` is the record that failed, with raw bytes; `records` are the decoded ones before it.
    """

    def __init__(
        self,
        record: ConsumerRecord[bytes | None, bytes | None],
        field: Literal["key", "value"],
        records: list[ConsumerRecord[Any, Any]],
    ) -> None:
        super().__init__(f"cannot decode the {field} of {record.topic}-{record.partition} at offset {record.offset}")
        self.record = record
        self.field = field
        self.records = records

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def data(self) -> bytes:
        """The bytes that were to be decoded."""
        return (self.record.key if self.field == "key" else self.record.value) or b""
