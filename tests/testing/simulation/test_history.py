"""What is wrong with a run is found, and what a topic that does not sync may lose is not held against it."""

from __future__ import annotations

from penstock.client.cluster_metadata import TopicPartition
from penstock.testing.simulation.history import History, Sent, commit_findings, final_commits, findings, unseen_records

PARTITION = TopicPartition("quick", 0)


def stored(*numbers: int) -> tuple[History, dict[TopicPartition, list[tuple[int, bytes]]]]:
    """One writer's records, in this order in the log."""
    history = History()
    names = [Sent("writer", PARTITION, number) for number in numbers]
    history.sent |= set(names)
    return history, {PARTITION: [(offset, name.value(4)) for offset, name in enumerate(names)]}


def test_records_of_a_writer_in_another_order_are_found() -> None:
    history, log = stored(0, 3, 1, 2)
    assert findings(history, log) == [
        "quick-0: at 2 is writer:quick:0:1, after number 3 of the same writer",
        "quick-0: at 3 is writer:quick:0:2, after number 3 of the same writer",
    ]


def test_what_was_acknowledged_before_a_loss_is_excused_and_counted_and_what_came_after_it_is_judged() -> None:
    history, log = stored(0)
    first, second = Sent("writer", PARTITION, 1), Sent("writer", PARTITION, 2)
    history.sent.add(first)
    history.acknowledge(first, 1)
    assert "quick-0: writer:quick:0:1 was acknowledged at 1 and is lost" in findings(history, log)
    history.lost(PARTITION, 2)
    assert findings(history, log) == []
    history.sent.add(second)
    history.acknowledge(second, 1)
    assert "quick-0: writer:quick:0:2 was acknowledged at 1 and is lost" in findings(history, log)
    assert (history.acknowledgements, history.excused_records) == (2, 1)


def test_records_read_before_a_loss_may_be_gone_and_later_ones_may_not() -> None:
    history, log = stored(0)
    history.record_read("reader", PARTITION, 1, Sent("writer", PARTITION, 1).value(0), expected=None)
    history.lost(PARTITION, 2)
    assert findings(history, log) == []
    history.record_read("reader", PARTITION, 1, Sent("writer", PARTITION, 2).value(0), expected=2)
    assert findings(history, log) == ["quick-0: writer:quick:0:2 was read at 1, where now None is"]


def test_a_reader_need_not_see_what_is_written_in_place_of_what_it_had_read_before_a_loss() -> None:
    history = History()
    for number in range(3):
        history.record_read("reader", PARTITION, number, Sent("writer", PARTITION, number).value(0), expected=number)
    history.lost(PARTITION, 3)
    history.acknowledge(Sent("writer", PARTITION, 8), 2)
    assert not list(unseen_records(history))
    history.acknowledge(Sent("writer", PARTITION, 9), 3)
    assert [offset for _, offset, _, _ in unseen_records(history)] == [3]


def test_an_answer_that_was_under_way_when_the_records_were_lost_is_excused() -> None:
    history, log = stored(0)
    late, later = Sent("writer", PARTITION, 5), Sent("writer", PARTITION, 6)
    history.sent |= {late, later}
    history.lost(PARTITION, 6)
    history.acknowledge(late, 5)
    history.record_read("reader", PARTITION, 5, late.value(0), expected=None)
    assert findings(history, log) == []
    assert (history.acknowledgements, history.excused_records) == (1, 1)
    assert history.losses[PARTITION].read_end == 6
    history.acknowledge(later, 6)  # more than was lost: it was stored since
    assert "quick-0: writer:quick:0:6 was acknowledged at 6 and is lost" in findings(history, log)


def test_after_a_loss_the_order_of_what_was_under_way_is_excused_and_of_nothing_else() -> None:
    history, log = stored(3, 1, 6, 5, 5)
    history.sent -= {Sent("writer", PARTITION, number) for number in (5, 6)}
    history.lost(PARTITION, 5)
    history.sent |= {Sent("writer", PARTITION, number) for number in (5, 6)}
    assert findings(history, log) == [
        "quick-0: at 3 is writer:quick:0:5, after number 6 of the same writer",
        "quick-0: writer:quick:0:5 is stored twice, at 3 and at 4",
    ]


def test_a_reader_never_gets_less_than_was_committed_when_it_asked() -> None:
    history = History()
    history.commit_acknowledged([(PARTITION, 5)])
    least = dict(history.committed)
    history.commit_acknowledged([(PARTITION, 9)])
    history.committed_offsets_read(least, {PARTITION: 5})
    assert not history.anomalies
    history.committed_offsets_read(history.committed, {PARTITION: 5})
    history.committed_offsets_read(history.committed, {})
    assert history.anomalies == [
        "quick-0: the commit of 9 was acknowledged, but a reader gets 5",
        "quick-0: the commit of 9 was acknowledged, but a reader gets None",
    ]


def test_a_commit_that_goes_back_does_not_lower_what_readers_must_get() -> None:
    history = History()
    history.commit_acknowledged([(PARTITION, 9)])
    history.commit_acknowledged([(PARTITION, 4)])
    history.committed_offsets_read(history.committed, {PARTITION: 4})
    assert history.anomalies == ["quick-0: the commit of 9 was acknowledged, but a reader gets 4"]


def test_a_commit_below_what_was_committed_when_it_was_sent_is_not_accepted() -> None:
    history = History()
    before = dict(history.committed)
    history.commit_acknowledged([(PARTITION, 9)])
    history.commit_acknowledged([(PARTITION, 4)], before)
    assert not history.anomalies
    history.commit_acknowledged([(PARTITION, 4)], history.committed)
    assert history.anomalies == ["quick-0: the commit of 4 was accepted, although 9 was committed before"]


def test_a_commit_of_the_first_offset_is_judged_where_nothing_was_lost() -> None:
    history = History()
    history.commit_acknowledged([(PARTITION, 0)])
    history.committed_offsets_read(history.committed, {})
    assert history.anomalies == ["quick-0: the commit of 0 was acknowledged, but a reader gets None"]
    assert (history.commits, history.excused_commits) == (1, 0)


def read_before_a_loss(end: int) -> History:
    """A group has read and committed up to `end` when the log is lost."""
    history = History()
    read(history, 0, end)
    history.commit_acknowledged([(PARTITION, end)])
    history.lost(PARTITION, end + 3)
    return history


def read(history: History, first: int, end: int, *, number: int = 0) -> None:
    for offset in range(first, end):
        value = Sent("writer", PARTITION, number + offset).value(0)
        history.record_read("reader", PARTITION, offset, value, None if offset == first else offset)


def test_commits_within_what_was_read_of_a_lost_log_are_excused_and_counted() -> None:
    history = History()
    other = TopicPartition("journal", 0)
    read(history, 0, 5)
    history.commit_acknowledged([(PARTITION, 5), (other, 5)])
    history.lost(PARTITION, 5)
    history.commit_acknowledged([(PARTITION, 2)], {PARTITION: 5})
    history.committed_offsets_read({PARTITION: 5, other: 5}, {PARTITION: 2, other: 5})
    assert not history.anomalies
    assert (history.commits, history.excused_commits) == (3, 2)


def test_commits_of_what_was_read_after_a_loss_are_judged() -> None:
    history = read_before_a_loss(5)
    history.commit_acknowledged([(PARTITION, 9)])
    history.committed_offsets_read(history.committed, {PARTITION: 6})
    history.commit_acknowledged([(PARTITION, 3)], history.committed)
    assert history.anomalies == [
        "quick-0: the commit of 9 was acknowledged, but a reader gets 6",
        "quick-0: the commit of 3 was accepted, although 9 was committed before",
    ]
    assert (history.commits, history.excused_commits) == (3, 1)


def test_a_reader_in_the_lost_part_may_go_back_and_none_may_skip_or_go_back_from_above_it() -> None:
    history = read_before_a_loss(5)
    history.record_read("reader", PARTITION, 2, Sent("writer", PARTITION, 20).value(0), expected=5)
    assert not history.anomalies
    assert (history.reads, history.excused_reads) == (6, 1)
    history.record_read("reader", PARTITION, 4, Sent("writer", PARTITION, 22).value(0), expected=3)
    history.record_read("reader", PARTITION, 5, Sent("writer", PARTITION, 23).value(0), expected=6)
    assert history.anomalies == ["reader skipped from 3 to 4 of quick-0", "reader went back from 6 to 5 of quick-0"]
    assert history.excused_reads == 1


def test_a_member_may_start_in_the_lost_part_and_not_above_it() -> None:
    history = read_before_a_loss(5)
    history.started_reading("one", PARTITION, 0, committed=5)  # whose offset the new log does not have
    history.started_reading("two", PARTITION, 5, committed=0)  # an offset that was committed before the loss
    assert not history.anomalies
    assert (history.starts, history.excused_starts) == (2, 2)
    history.started_reading("two", PARTITION, 6, committed=0)
    history.started_reading("two", PARTITION, 3, committed=7)
    assert history.anomalies == [
        "two starts quick-0 at 6, but the group has read up to 0",
        "two starts quick-0 at 3, but 7 was committed",
    ]
    assert (history.starts, history.excused_starts) == (4, 3)


def test_the_last_commit_is_judged_if_something_was_read_behind_the_lost_part() -> None:
    history = read_before_a_loss(5)
    history.acknowledge(Sent("writer", PARTITION, 21), 4)
    log = {PARTITION: [(offset, b"") for offset in range(7)]}
    assert commit_findings(history, log, {PARTITION: 2}) == []
    assert (history.final_commits, history.excused_final_commits) == (1, 1)
    history.acknowledge(Sent("writer", PARTITION, 22), 5)
    assert commit_findings(history, log, {PARTITION: 6}) == []
    assert commit_findings(history, log, {PARTITION: 5}) == [
        "quick-0: 5 is committed, but everything from 6 to 7 was read"
    ]
    assert (history.final_commits, history.excused_final_commits) == (3, 1)


def test_the_end_of_what_was_acknowledged_is_to_be_committed_unless_readers_may_be_behind_a_loss() -> None:
    history = read_before_a_loss(5)
    history.acknowledge(Sent("writer", PARTITION, 21), 4)
    assert final_commits(history) == {}
    history.acknowledge(Sent("writer", PARTITION, 22), 5)
    assert final_commits(history) == {PARTITION: 6}


def test_a_member_begins_where_the_group_has_committed_and_leaves_nothing_out() -> None:
    history = History()
    history.record_read("one", PARTITION, 0, Sent("writer", PARTITION, 0).value(0), expected=None)
    history.started_reading("two", PARTITION, 1, committed=1)
    assert not history.anomalies
    history.started_reading("two", PARTITION, 0, committed=1)
    history.started_reading("two", PARTITION, 3, committed=1)
    assert history.anomalies == [
        "two starts quick-0 at 0, but 1 was committed",
        "two starts quick-0 at 3, but the group has read up to 1",
    ]
