"""Which offsets a load takes."""

from __future__ import annotations

import pytest

from penstock.spark.errors import DataLost, RangeError, TableDamaged, TopicRecreated
from penstock.spark.tables.load_plan import (
    LogState,
    Span,
    TableState,
    backfill_spans,
    check_exact,
    check_same_topic,
    clipped,
    new_spans,
    parse_offsets,
    table_state_after,
)

LOG = LogState("views", "ab", {0: (40, 900), 1: (0, 10)})
HALF = TableState({0: (0, 700)})


def test_a_load_continues_where_the_table_ends_and_takes_new_partitions_from_their_beginning() -> None:
    assert new_spans(LOG, HALF) == ([Span(0, 700, 900), Span(1, 0, 10)], [])
    assert new_spans(LOG, TableState({0: (0, 900), 1: (0, 10)})) == ([], [])


def test_records_that_were_removed_before_they_were_loaded_end_the_load_or_are_reported() -> None:
    behind = TableState({0: (0, 20), 1: (0, 10)})
    with pytest.raises(DataLost, match="20 to 40 were removed"):
        new_spans(LOG, behind)
    assert new_spans(LOG, behind, skip_lost=True) == ([Span(0, 40, 900)], [Span(0, 20, 40)])


def test_a_log_that_ends_before_the_table_does_is_not_guessed_about() -> None:
    with pytest.raises(DataLost, match="ends at offset 900, but the table covers it up to 950"):
        new_spans(LOG, TableState({0: (0, 950)}))


def test_a_backfill_takes_what_the_table_has_and_leaves_the_rest_to_the_load() -> None:
    assert backfill_spans(LOG, HALF, [Span(0, 500, 900)]) == [Span(0, 500, 700)]
    assert backfill_spans(LOG, HALF, [Span(0, 500, 600)]) == [Span(0, 500, 600)]
    assert backfill_spans(LOG, HALF, [Span(1, 3, 10)]) == []


@pytest.mark.parametrize(
    ("span", "said"),
    [
        (Span(0, 750, 900), "would leave a gap"),
        (Span(0, 20, 600), "no longer in the log"),
        (Span(0, 500, 1000), "ends at offset 900"),
        (Span(7, 0, 1), "no partition 7"),
    ],
)
def test_a_backfill_that_would_leave_a_hole_or_lose_rows_is_rejected(span: Span, said: str) -> None:
    with pytest.raises(RangeError, match=said):
        backfill_spans(LOG, HALF, [span])


def test_a_backfill_before_the_table_s_beginning_must_touch_it() -> None:
    late = TableState({0: (500, 700)})
    assert backfill_spans(LOG, late, [Span(0, 100, 500)]) == [Span(0, 100, 500)]
    with pytest.raises(RangeError, match="would leave a gap"):
        backfill_spans(LOG, late, [Span(0, 100, 400)])


def test_a_commit_moves_both_ends() -> None:
    assert table_state_after(TableState({0: (10, 100)}), [Span(0, 0, 40)]) == {0: (0, 100)}
    assert table_state_after(TableState({0: (10, 100)}), [Span(0, 100, 150), Span(1, 5, 6)]) == {
        0: (10, 150),
        1: (5, 6),
    }


def test_what_tasks_did_must_be_exactly_what_they_were_asked_for() -> None:
    asked = [Span(0, 0, 100)]
    check_exact(asked, [Span(0, 50, 100), Span(0, 0, 50)])
    for done, said in (
        ([Span(0, 0, 50)], "0:50-100 are missing"),
        ([Span(0, 0, 60), Span(0, 50, 100)], "0:50-60 are duplicated"),
        ([Span(0, 0, 100), Span(1, 0, 1)], "1:0-1 are unexpected"),
    ):
        with pytest.raises(TableDamaged, match=said):
            check_exact(asked, done)


def test_an_end_cuts_spans() -> None:
    assert clipped([Span(0, 700, 900), Span(1, 0, 10)], {0: 800}) == [Span(0, 700, 800)]
    assert clipped([Span(0, 700, 900)], {0: 600}) == []


def test_offsets_are_written_by_partition() -> None:
    assert parse_offsets("0:100-200, 1:5", LOG.bounds) == [Span(0, 100, 200), Span(1, 5, 10)]
    for wrong in ("0", "0:", "a:1", "0:9-5", "0:1-2-3", "", "0:99999999999999999999"):
        with pytest.raises(RangeError):
            parse_offsets(wrong, LOG.bounds)


def test_a_topic_that_was_recreated_is_another_topic() -> None:
    check_same_topic(LOG, "ab", "views")
    check_same_topic(LOG, "", "views")
    with pytest.raises(TopicRecreated, match="penstock table drop views"):
        check_same_topic(LOG, "cd", "views")
