"""Offset ranges: sets of offsets, written short."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.tables.load_plan import (
    Span,
    covered_twice,
    difference,
    limited,
    overlap,
    spans_from_json,
    spans_to_json,
    split,
    total,
    union,
)

SPANS = st.lists(
    st.builds(
        lambda partition, start, size: Span(partition, start, start + size),
        st.integers(0, 2), st.integers(0, 30), st.integers(0, 12),
    ),
    max_size=8,
)  # fmt: skip


def offsets(spans: list[Span]) -> set[tuple[int, int]]:
    return {(span.partition, offset) for span in spans for offset in range(span.start, span.end)}


@settings(max_examples=150, deadline=None)
@given(SPANS, SPANS)
def test_spans_behave_as_the_sets_that_they_stand_for(one: list[Span], other: list[Span]) -> None:
    assert offsets(union(one)) == offsets(one)
    assert offsets(difference(one, other)) == offsets(one) - offsets(other)
    assert offsets(overlap(one, other)) == offsets(one) & offsets(other)
    assert total(union(one)) == len(offsets(one))
    assert spans_from_json(spans_to_json(one)) == union(one)


@settings(max_examples=150, deadline=None)
@given(SPANS)
def test_what_is_in_two_spans_is_doubled(spans: list[Span]) -> None:
    seen: set[tuple[int, int]] = set()
    twice: set[tuple[int, int]] = set()
    for span in spans:
        twice |= seen & offsets([span])
        seen |= offsets([span])
    assert offsets(covered_twice(spans)) == twice


@settings(max_examples=150, deadline=None)
@given(SPANS, st.integers(1, 20))
def test_splitting_loses_and_doubles_nothing(spans: list[Span], most: int) -> None:
    pieces = split(union(spans), most)
    assert all(0 < piece.size <= most for piece in pieces)
    assert total(pieces) == total(union(spans))
    assert union(pieces) == union(spans)


@settings(max_examples=150, deadline=None)
@given(SPANS, st.integers(1, 20))
def test_a_limit_takes_from_the_beginning_of_every_partition(spans: list[Span], most: int) -> None:
    wanted = union(spans)
    taken = limited(wanted, most)
    assert {(span.partition, span.start) for span in taken} == {(span.partition, span.start) for span in wanted}
    assert all(any(whole.holds(span) for whole in wanted) for span in taken)
    assert total(taken) <= most + len(wanted)
