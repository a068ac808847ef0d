"""Which partition a record goes to."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.client.errors import ConfigError
from penstock.client.producer.accumulator import checked, next_sticky, partition_of_key
from penstock.records.kernel import murmur2
from penstock.runtime.randomness import SeededRandom


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_go_where_javas_client_sends_them(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0x7FFFFFFF
    assert partition_of_key(key, 7) == (java & 0x7FFFFFFF) % 7


def test_records_without_a_key_move_on_and_spread_evenly() -> None:
    random, current = SeededRandom(3), -1
    seen: Counter[int] = Counter()
    for _ in range(6_000):
        following = next_sticky(current, [0, 1, 2, 3, 4, 5], random)
        assert following != current
        seen[following] += 1
        current = following
    assert min(seen.values()) > 800
    assert next_sticky(4, [4], random) == 4


def test_a_partition_that_does_not_exist_is_rejected() -> None:
    assert checked(2, 3, "the partition", "views") == 2
    with pytest.raises(ConfigError, match="views has partitions 0 to 2"):
        checked(3, 3, "the partition", "views")
    with pytest.raises(TypeError, match="must be an int"):
        checked("1", 3, "the partition", "views")
