"""The checks of fault runs: planted violations are found, and allowed behaviour is not reported."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from benchmarks.faults.checks import Stored, check_client, check_contents
from benchmarks.faults.load import (
    VALUE_BYTES,
    Acked,
    Assigned,
    ClientError,
    Committed,
    Event,
    Failed,
    Journal,
    Read,
    Sent,
    Tail,
    identity_of,
    parse,
    value_of,
)

# --- the log by itself


def _contents(*records: tuple[str, int]) -> dict[int, list[Stored]]:
    return {0: [Stored(offset, sender, number) for offset, (sender, number) in enumerate(records)]}


def test_records_of_two_senders_each_in_order_are_good() -> None:
    assert check_contents(_contents(("a.0", 0), ("b.0", 0), ("a.0", 1), ("b.0", 1))).is_good


def test_a_number_that_is_missing_is_not_the_logs_fault() -> None:
    assert check_contents(_contents(("a.0", 0), ("a.0", 2))).is_good


def test_record_that_is_stored_twice_is_a_duplicate() -> None:
    assert check_contents(_contents(("a.0", 0), ("a.0", 1), ("a.0", 1))).wrong == {"duplicate": 1}


def test_a_record_after_its_successor_is_out_of_order() -> None:
    found = check_contents(_contents(("a.0", 0), ("a.0", 2), ("a.0", 1)))
    assert found.wrong == {"out of order": 1}
    assert found.examples["out of order"] == ["a.0 1 at 0/2, after 2"]


def test_a_hole_in_the_offsets_is_found() -> None:
    assert check_contents({0: [Stored(0, "a.0", 0), Stored(2, "a.0", 1)]}).wrong == {"offset out of line": 1}


# --- what a producer was error


def _sent(number: int) -> Sent:
    return Sent(0, number, "a.0", 1.0)


def _acked(number: int, offset: int) -> Acked:
    return Acked(0, number, "a.0", offset, 1.0, 1.0)


def _delivered(number: int, offset: int) -> list[Event]:
    return [_sent(number), _acked(number, offset)]


def _reads(*offsets: int, member: int = 0) -> list[Event]:
    return [Read(member, 0, offset, "a.0", offset, 1.0) for offset in offsets]


_TWO = _contents(("a.0", 0), ("a.0", 1))


def test_an_acknowledged_record_that_is_gone_is_lost() -> None:
    found = check_client([*_delivered(0, 0), *_delivered(1, 1), *_delivered(2, 2), *_reads(0, 1)], _TWO)
    assert found.wrong == {"acknowledged, then lost": 1}
    assert (found.handed_over, found.acked, found.failed, found.unresolved) == (3, 3, 0, 0)


def test_an_acknowledged_record_at_another_place_is_found_unless_the_broker_did_not_say_where() -> None:
    assert check_client([*_delivered(0, 1), *_reads(0, 1)], _TWO).wrong == {"acknowledged at another offset": 1}
    assert check_client([*_delivered(0, -1), *_reads(0, 1)], _TWO).is_good


def test_a_record_that_failed_may_be_there_or_not() -> None:
    events: list[Event] = [Failed(0, number, "a.0", 1.0, 2.0, "timed out") for number in (1, 2)]
    found = check_client([_sent(1), _sent(2), *events, *_reads(0, 1)], _TWO)
    assert found.is_good
    assert found.failures == Counter({"timed out": 2})
    assert (found.handed_over, found.acked, found.failed, found.unresolved) == (2, 0, 2, 0)


def test_a_send_that_never_resolves_is_found_whether_its_record_is_there_or_not() -> None:
    found = check_client([*_delivered(0, 0), _sent(1), _sent(2), *_reads(0, 1)], _TWO)
    assert found.wrong == {"never resolved": 2}
    assert (found.handed_over, found.acked, found.failed, found.unresolved) == (3, 1, 0, 2)
    assert found.examples["never resolved"][0] == "a.0 1 for partition 0, sent at 1.000 s"


def test_a_send_has_one_outcome_and_an_outcome_has_a_send() -> None:
    failed = Failed(0, 1, "a.0", 1.0, 2.0, "timed out")
    assert check_client([*_delivered(1, 1), failed, *_reads(0, 1)], _TWO).wrong == {"resolved twice": 1}
    assert check_client([_acked(1, 1), *_reads(0, 1)], _TWO).wrong == {"resolved, but never sent": 1}


# --- what a group was given


def test_record_that_the_group_never_read_is_found() -> None:
    assert check_client(_reads(0), _TWO).wrong == {"never read by the group": 1}


def test_a_record_that_was_read_and_is_gone_is_found() -> None:
    assert check_client(_reads(0, 1, 2), _TWO).wrong == {"read, then gone": 1}


def test_a_record_that_was_read_where_another_one_is_now_is_found() -> None:
    found = check_client([Read(0, 0, 0, "b.0", 7, 1.0), *_reads(1)], _TWO)
    assert found.wrong == {"read, then another one is there": 1}


def test_what_is_read_again_after_a_rebalance_is_counted_and_not_wrong() -> None:
    found = check_client([*_reads(0, 1), Assigned(0, 2.0, (0,)), *_reads(0, 1)], _TWO)
    assert found.is_good
    assert found.read_again == 2


def test_going_back_and_skipping_without_a_rebalance_are_wrong() -> None:
    three = _contents(("a.0", 0), ("a.0", 1), ("a.0", 2))
    assert check_client(_reads(0, 1, 0, 1, 2), three).wrong == {"read again without a rebalance": 1}
    assert check_client([*_reads(0, 2), *_reads(1, member=1)], three).wrong == {"skipped in reading": 1}


# --- commits of a group


def _committed(offset: int, member: int = 0) -> Committed:
    return Committed(member, 1.0, ((0, offset),))


_FOUR = _contents(*(("a.0", number) for number in range(4)))
_FIRST = [Assigned(0, 1.0, (0,)), *_reads(0, 1, 2)]


def test_a_partition_that_another_member_reads_from_below_a_commit_is_found() -> None:
    events = [*_FIRST, _committed(2), Assigned(1, 2.0, (0,)), *_reads(1, 2, 3, member=1)]
    found = check_client(events, _FOUR)
    assert found.wrong == {"started below an acknowledged commit": 1}
    assert found.examples["started below an acknowledged commit"] == ["member 1, partition 0: at 1, 2 was committed"]


def test_a_reader_that_is_assigned_its_partition_again_may_not_start_below_a_commit_either() -> None:
    events = [*_FIRST, _committed(3), _committed(1), Assigned(0, 2.0, (0,)), *_reads(2, 3)]
    assert check_client(events, _FOUR).wrong == {"started below an acknowledged commit": 1}


def test_a_client_that_repeats_commits_takes_back_its_own_and_no_others() -> None:
    back = [*_FIRST, _committed(3), _committed(1)]
    events = [*back, Assigned(1, 2.0, (0,)), *_reads(1, 2, 3, member=1)]
    found = check_client(events, _FOUR, {0: 1}, takes_back=True)
    assert (found.is_good, found.taken_back) == (True, 1)
    assert check_client(events, _FOUR, {0: 0}, takes_back=True).wrong == {"committed, then lost": 1}
    below = [*back, Assigned(1, 2.0, (0,)), *_reads(0, 1, 2, 3, member=1)]
    assert check_client(below, _FOUR, takes_back=True).wrong == {"started below an acknowledged commit": 1}
    others = [*_FIRST, _committed(3), _committed(1, member=1), Assigned(1, 2.0, (0,)), *_reads(1, 2, 3, member=1)]
    assert check_client(others, _FOUR, takes_back=True).wrong == {"started below an acknowledged commit": 1}


def test_what_is_read_again_from_the_commit_on_is_allowed_and_counted() -> None:
    found = check_client([*_FIRST, _committed(1), Assigned(1, 2.0, (0,)), *_reads(1, 2, 3, member=1)], _FOUR)
    assert found.is_good
    assert (found.read_again, found.commits, found.starts) == (2, 1, 2)


def test_a_commit_that_is_acknowledged_after_the_assignment_does_not_bind_it() -> None:
    found = check_client([*_FIRST, Assigned(1, 2.0, (0,)), _committed(3), *_reads(1, 2, 3, member=1)], _FOUR)
    assert found.is_good


def test_commits_of_one_partition_do_not_bind_another() -> None:
    contents = {0: _FOUR[0], 1: [Stored(0, "a.0", 0)]}
    events = [*_FIRST, *_reads(3), _committed(4), Assigned(1, 2.0, (1,)), Read(1, 1, 0, "a.0", 0, 2.0)]
    assert check_client(events, contents).is_good


def test_a_committed_offset_that_is_lost_in_the_end_is_found() -> None:
    events = [*_FIRST, *_reads(3), _committed(4)]
    assert check_client(events, _FOUR, {0: 4}).is_good
    assert check_client(events, _FOUR, {0: 3}).wrong == {"committed, then lost": 1}
    found = check_client(events, _FOUR, {})
    assert found.examples["committed, then lost"] == ["partition 0: 4 was acknowledged, nothing is committed"]


def test_errors_reported_to_readers_are_counted_by_their_text() -> None:
    found = check_client([*_reads(0, 1), ClientError(0, 1.0, "no"), ClientError(1, 2.0, "no")], _TWO)
    assert found.errors == Counter({"no": 2})


# --- the journal


def test_every_event_comes_back_from_the_journal_as_it_was_written(tmp_path: Path) -> None:
    journal, tail = Journal(tmp_path / "j"), Tail(tmp_path / "j")
    assert tail.more() == [], "nothing is written yet"
    acked, failed = Acked(1, 2, "a.0", 3, 4.5, 5.5), Failed(1, 3, "a.0", 4.5, 6.0, "two lines")
    sent = Sent(1, 2, "a.0", 4.5)
    journal.sent(sent)
    journal.acked(acked)
    journal.failed(failed._replace(text="two\nlines"))
    journal.read(1, 0, 9, value_of("b.0", 0, 4))
    journal.assigned(1, [2, 0])
    journal.assigned(1, [])
    journal.error(0, "")
    journal.committed(1, {2: 7, 0: 5})
    journal.committed(1, {})
    journal.close()
    handed, first, second, read, some, none, error, committed = tail.more()
    assert (handed, first, second) == (sent, acked, failed)
    assert isinstance(committed, Committed)
    assert (committed.member, committed.offsets) == (1, ((0, 5), (2, 7)))
    assert isinstance(read, Read)
    assert read[:5] == (1, 0, 9, "b.0", 4)
    assert isinstance(some, Assigned)
    assert isinstance(none, Assigned)
    assert (some.partitions, none.partitions) == ((0, 2), ())
    assert isinstance(error, ClientError)
    assert error.text == "(no text)"


def test_a_line_counts_when_its_end_is_there(tmp_path: Path) -> None:
    path = tmp_path / "j"
    tail = Tail(path)
    path.write_text("e 0 1.0 first\ne 0 2.0 sec")
    assert tail.more() == [ClientError(0, 1.0, "first")]
    with path.open("a") as file:
        file.write("ond\n")
    assert tail.more() == [ClientError(0, 2.0, "second")]
    assert len(tail.events) == 2


def test_a_record_in_another_partition_than_its_own_is_reported(tmp_path: Path) -> None:
    journal, tail = Journal(tmp_path / "j"), Tail(tmp_path / "j")
    journal.read(0, 1, 5, value_of("a.0", 0, 4))
    journal.close()
    error = tail.more()[0]
    assert isinstance(error, ClientError)
    assert error.text == "a record for partition 0 is in partition 1 at 5"


def test_line_that_is_not_an_event_is_rejected() -> None:
    with pytest.raises(ValueError, match="is not an event"):
        parse("x 0 1.0 what")


def test_a_value_says_who_sent_it_and_has_its_size() -> None:
    value = value_of("penstock.0", 3, 12_345)
    assert len(value) == VALUE_BYTES
    assert identity_of(value) == ("penstock.0", 3, 12_345)
