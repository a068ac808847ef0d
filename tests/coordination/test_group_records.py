"""The bytes of `__consumer_offsets`, written out by hand from Kafka's schemas."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination.coordinator_record import CoordinatorRecord
from penstock.coordination.errors import BadGroupRecord
from penstock.coordination.group_records import (
    NO_TIME,
    CommittedOffset,
    GroupRecord,
    OffsetRecord,
    SavedGroup,
    SavedMember,
    UnknownRecord,
    decode_record,
    encode_record,
)


def text(value: str | None) -> bytes:
    raw = (value or "").encode()
    return struct.pack(">h", -1 if value is None else len(raw)) + raw


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


OFFSET_KEY = struct.pack(">h", 1) + text("billing") + text("clicks") + struct.pack(">i", 7)
GROUP_KEY = struct.pack(">h", 2) + text("billing")

MEMBER = SavedMember("app-1", "rack-7", "app", "/10.0.0.7", 60_000, 10_000, b"sub", b"assigned")
GROUP = SavedGroup("consumer", 4, "range", "app-1", 1_700_000_000_000, (MEMBER,))


def member_bytes(version: int) -> bytes:
    parts = [text("app-1")]
    if version >= 3:
        parts.append(text("rack-7"))
    parts += [text("app"), text("/10.0.0.7")]
    if version >= 1:
        parts.append(struct.pack(">i", 60_000))
    return b"".join([*parts, struct.pack(">i", 10_000), blob(b"sub"), blob(b"assigned")])


def group_bytes(version: int) -> bytes:
    head = struct.pack(">h", version) + text("consumer") + struct.pack(">i", 4) + text("range") + text("app-1")
    since = struct.pack(">q", 1_700_000_000_000) if version >= 2 else b""
    return head + since + struct.pack(">i", 1) + member_bytes(version)


def test_offset_is_written_in_version_3() -> None:
    record = OffsetRecord("billing", "clicks", 7, CommittedOffset(42, 5, "note", 1_700_000_000_000))
    value = struct.pack(">hqi", 3, 42, 5) + text("note") + struct.pack(">q", 1_700_000_000_000)
    assert encode_record(record) == CoordinatorRecord(OFFSET_KEY, value)
    assert decode_record(OFFSET_KEY, value) == record


def test_offset_with_a_time_of_expiry_is_written_in_version_1() -> None:
    record = OffsetRecord("billing", "clicks", 7, CommittedOffset(42, -1, "note", 1_000, 2_000))
    value = struct.pack(">hq", 1, 42) + text("note") + struct.pack(">qq", 1_000, 2_000)
    assert encode_record(record) == CoordinatorRecord(OFFSET_KEY, value)
    assert decode_record(OFFSET_KEY, value) == record


@pytest.mark.parametrize(("key_version", "value_version"), [(0, 0), (1, 0), (1, 2), (0, 2)])
def test_older_offsets_are_read(key_version: int, value_version: int) -> None:
    key = struct.pack(">h", key_version) + OFFSET_KEY[2:]
    value = struct.pack(">hq", value_version, 42) + text("") + struct.pack(">q", 1_000)
    assert decode_record(key, value) == OffsetRecord("billing", "clicks", 7, CommittedOffset(42, -1, "", 1_000))


def test_flexible_version_of_an_offset_is_read() -> None:
    value = struct.pack(">hqi", 4, 42, 5) + b"\x05note" + struct.pack(">q", 1_000) + b"\x00"
    assert decode_record(OFFSET_KEY, value) == OffsetRecord(
        "billing", "clicks", 7, CommittedOffset(42, 5, "note", 1_000)
    )


def test_group_is_written_in_version_3() -> None:
    assert encode_record(GroupRecord("billing", GROUP)) == CoordinatorRecord(GROUP_KEY, group_bytes(3))
    assert decode_record(GROUP_KEY, group_bytes(3)) == GroupRecord("billing", GROUP)


def test_empty_group_has_neither_protocol_nor_leader() -> None:
    empty = SavedGroup("consumer", 5, None, None, 1_000, ())
    value = struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 5) + text(None) + text(None)
    value += struct.pack(">qi", 1_000, 0)
    assert encode_record(GroupRecord("billing", empty)).value == value
    assert decode_record(GROUP_KEY, value) == GroupRecord("billing", empty)


def test_old_group_records_are_read_with_defaults() -> None:
    no_instance = MEMBER._replace(instance_id=None)
    expected = {
        2: GROUP._replace(members=(no_instance,)),
        1: GROUP._replace(members=(no_instance,), since_ms=NO_TIME),
        0: GROUP._replace(members=(no_instance._replace(rebalance_timeout_ms=10_000),), since_ms=NO_TIME),
    }
    for version, group in expected.items():
        assert decode_record(GROUP_KEY, group_bytes(version)) == GroupRecord("billing", group), version


def test_no_value_is_a_tombstone() -> None:
    assert encode_record(OffsetRecord("billing", "clicks", 7, None)) == CoordinatorRecord(OFFSET_KEY, None)
    assert decode_record(OFFSET_KEY, None) == OffsetRecord("billing", "clicks", 7, None)
    assert encode_record(GroupRecord("billing", None)) == CoordinatorRecord(GROUP_KEY, None)
    assert decode_record(GROUP_KEY, None) == GroupRecord("billing", None)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (struct.pack(">h", 3) + text("billing"), struct.pack(">h", 0), UnknownRecord(3, 0)),
        (struct.pack(">h", 5) + b"anything", None, UnknownRecord(5, None)),
        (struct.pack(">h", -1), None, UnknownRecord(-1, None)),
        (OFFSET_KEY, struct.pack(">h", 99) + b"anything", UnknownRecord(1, 99)),
        (GROUP_KEY, struct.pack(">h", 99) + b"anything", UnknownRecord(2, 99)),
    ],
)
def test_unknown_version_is_an_answer(key: bytes, value: bytes | None, expected: UnknownRecord) -> None:
    assert decode_record(key, value) == expected


def test_every_truncation_is_an_error() -> None:
    for key, value in (
        (GROUP_KEY, group_bytes(3)),
        (OFFSET_KEY, struct.pack(">hqi", 3, 42, 5) + text("note") + struct.pack(">q", 1_000)),
    ):
        for size in range(len(key)):
            with pytest.raises(BadGroupRecord):
                decode_record(key[:size], value)
        for size in range(len(value)):
            with pytest.raises(BadGroupRecord):
                decode_record(key, value[:size])
    with pytest.raises(BadGroupRecord):
        decode_record(None, b"")


def test_hostile_count_of_members_takes_no_memory() -> None:
    value = group_bytes(3)[: -len(member_bytes(3)) - 4] + struct.pack(">i", 2**31 - 1)
    with pytest.raises(BadGroupRecord):
        decode_record(GROUP_KEY, value)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_nonsense_is_a_typed_error_or_an_answer(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(BadGroupRecord):
        decode_record(key, value)
