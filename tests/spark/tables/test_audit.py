"""The sums of an audit."""

from __future__ import annotations

from xml.etree import ElementTree

from penstock.spark.tables.audit import HOUR_MS, Audit, Hour, audit_svg, hour_spans, hour_starts, offsets_not_loaded
from penstock.spark.tables.load_plan import LogState, Span, TableState

NOW_MS = 10 * HOUR_MS + 5


def test_hours_begin_at_the_one_that_holds_the_beginning_and_end_with_now() -> None:
    assert hour_starts(7 * HOUR_MS + 1, NOW_MS) == [7 * HOUR_MS, 8 * HOUR_MS, 9 * HOUR_MS, 10 * HOUR_MS]


def test_an_hour_is_a_range_of_offsets_of_each_partition() -> None:
    state = LogState("t", "", {0: (0, 100), 1: (0, 7)})
    coverage = TableState({0: (20, 90)})
    spans = hour_spans({0: [10, 50], 1: [0, 7]}, state, coverage, 2)
    assert spans == [[Span(0, 20, 50), Span(1, 0, 7)], [Span(0, 50, 100), Span(1, 7, 7)]]
    assert [offsets_not_loaded(one, coverage) for one in spans] == [7, 10]


def test_an_hour_is_complete_when_every_offset_is_accounted_for() -> None:
    assert Hour(0, produced=10, landed=6, dead=2, dropped=1, empty=1).is_complete
    assert not Hour(0, produced=10, landed=9, waiting=1).is_complete
    assert Hour(0, produced=10, landed=8).missing == 2
    assert Hour(0, produced=10, landed=11).surplus == 1


def test_the_watermark_stops_at_the_first_hour_that_is_not_complete() -> None:
    whole, part = Hour(8 * HOUR_MS, 5, 5), Hour(9 * HOUR_MS, 5, 4, waiting=1)
    audit = Audit("t", "t", (whole, part, Hour(10 * HOUR_MS, 1, 1)), NOW_MS)
    assert audit.complete_until_ms == 9 * HOUR_MS
    assert audit.is_sound
    assert Audit("t", "t", (part,), NOW_MS).complete_until_ms is None
    assert Audit("t", "t", (whole, Hour(10 * HOUR_MS, 1, 1)), NOW_MS).complete_until_ms == NOW_MS
    assert not Audit("t", "t", (Hour(0, 5, 4),), NOW_MS).is_sound


def test_the_picture_is_well_formed_and_shows_every_kind() -> None:
    hour = Hour(8 * HOUR_MS, 60, 10, 10, 10, 10, 10)
    text = audit_svg(Audit("a<b", "t&c", (hour, Hour(9 * HOUR_MS, 5, 6), Hour(10 * HOUR_MS)), NOW_MS))
    root = ElementTree.fromstring(text)
    fills = {node.get("fill") for node in root.iter("{http://www.w3.org/2000/svg}rect")}
    assert len(fills) == 8  # seven kinds and the ground
    assert "no complete hour" in text
    assert "no complete hour" in audit_svg(Audit("t", "t", (), NOW_MS))
