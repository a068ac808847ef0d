"""Comparing the results of two kernels, without their classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def plain(value: Any) -> Any:
    """A result without the classes of the kernel that it came from."""
    kind = type(value).__name__
    if kind == "Record":
        return ("Record", value.offset, value.timestamp, value.key, value.value, value.headers, repr(value))
    if kind == "ConsumerRecord":
        return ("ConsumerRecord", *(getattr(value, name) for name in CONSUMER_RECORD_FIELDS), repr(value))
    if kind == "BatchHeader":
        return ("BatchHeader", *(getattr(value, name) for name in HEADER_FIELDS), repr(value))
    if kind == "Scan":
        return ("Scan", plain(value.headers), value.end, value.problem, value.needed)
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    return value


HEADER_FIELDS = (
    "position", "size", "base_offset", "leader_epoch", "crc", "attributes", "last_offset_delta", "base_timestamp",
    "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count", "end", "last_offset",
    "next_offset", "codec", "timestamp_type", "is_transactional", "is_control", "has_delete_horizon",
    "last_sequence",
)  # fmt: skip


CONSUMER_RECORD_FIELDS = (
    "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch",
)  # fmt: skip


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """What a call came to: its result, or its exception's type and words."""
    try:
        return ("returned", plain(call(*args, **kwargs)))
    except OverflowError as error:  # raised by C's conversions, in words of its own
        return ("raised", type(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, both have to raise it
        return ("raised", type(error), str(error))
