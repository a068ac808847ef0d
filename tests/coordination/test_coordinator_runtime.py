"""The partition of a group, as every Kafka computes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination.coordinator_runtime import partition_for_key


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98_629_247),
        # The hash of Java's favourite collision, and the string whose hash is the most negative number.
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),
        # Outside of the basic plane a character is two units.
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_hash_is_javas(group_id: str, java_hash: int) -> None:
    assert partition_for_key(group_id, 2**31) == java_hash & 0x7FFFFFFF
    assert partition_for_key(group_id, 50) == (java_hash & 0x7FFFFFFF) % 50


@given(st.text(), st.integers(1, 1000))
def test_every_name_has_a_partition(group_id: str, partitions: int) -> None:
    assert 0 <= partition_for_key(group_id, partitions) < partitions
