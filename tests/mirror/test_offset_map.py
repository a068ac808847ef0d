"""Translated offsets: exact within runs that are kept, never beyond what was read."""

from __future__ import annotations

import random

from penstock.mirror.offset_map import OffsetMap


def test_offsets_within_and_behind_runs() -> None:
    found = OffsetMap([(5, 0, 10), (20, 12, 5)])
    assert found.translate(4) is None
    assert [found.translate(offset) for offset in (5, 14, 15, 19, 20, 24, 25, 99)] == [0, 9, 10, 10, 12, 16, 17, 17]
    assert OffsetMap().translate(0) is None


def test_consecutive_records_are_one_run() -> None:
    found = OffsetMap()
    found.add(0, 0, 10)
    found.add(10, 10, 5)
    found.add(15, 16, 1)
    assert found.runs == [(0, 0, 15), (15, 16, 1)]


def test_a_group_never_misses_a_record() -> None:
    """Whatever was thinned out, a translation is at or before the exact one."""
    chance = random.Random(3)
    found, exact, source, target = OffsetMap(), {}, 0, 0
    for _ in range(2000):
        source += chance.choice((0, 0, 1, 7))
        count = chance.randint(1, 5)
        for index in range(count):
            exact[source + index] = target + index
        found.add(source, target, count)
        source, target = source + count, target + count + 1
    assert len(found.runs) <= 64
    for offset, place in exact.items():
        translated = found.translate(offset)
        assert translated is not None
        assert translated <= place
    newest = max(exact)
    assert found.translate(newest) == exact[newest]
    assert found.translate(newest + 1) == exact[newest] + 1
