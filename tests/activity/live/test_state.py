"""Records, offsets and statuses in, snapshots out."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from tests.activity.live.runs import NOW_MS

from penstock.activity.live import state
from penstock.activity.live.progress import TITLES, StartProgress
from penstock.activity.live.state import SAMPLES, Board, Snapshot
from penstock.activity.live.usage import Usage
from penstock.activity.pipelines.engine.status import PipelineStatus, QueryStatus


def put(board: Board, topic: str, key: str, **columns: Any) -> None:
    board.record(topic, key.encode(), json.dumps(columns).encode())


def alert(board: Board, start: int, state_name: str = "continued", *, opened: int = 0, **columns: Any) -> None:
    row = {
        "start": start, "server": "server-7", "kind": "latency", "state": state_name, "severity": "critical",
        "value": 600.0, "usual": 75.0, "opened": opened, "message": "slow", **columns,
    }  # fmt: skip
    put(board, "alerts", f"{start}:server-7:latency", **row)


def test_a_row_replaces_that_of_its_key_and_a_record_without_a_value_takes_it_away() -> None:
    board = Board(NOW_MS)
    put(board, "ranking", "1", rank=1, item=10, score=3.0)
    put(board, "ranking", "2", rank=2, item=11, score=2.0)
    put(board, "ranking", "1", rank=1, item=12, score=4.0)
    assert [one.item for one in board.snapshot(NOW_MS).ranking] == [12, 11]
    board.record("ranking", b"2", None)
    assert [one.item for one in board.snapshot(NOW_MS).ranking] == [12]


def test_undecodable_records_are_counted_and_other_topics_ignored() -> None:
    board = Board(NOW_MS)
    board.record("suspects", b"x", b"not json")
    put(board, "suspects", "y", kind="member")
    put(board, "reports", "z", anything=1)
    snapshot = board.snapshot(NOW_MS)
    assert (snapshot.unreadable, snapshot.suspects) == (2, [])


def test_alerts_of_one_opening_are_one_incident_until_it_is_closed() -> None:
    board = Board(NOW_MS)
    for start in (0, 5_000, 10_000):
        alert(board, start, "opened" if start == 0 else "continued", value=500.0 + start)
    (incident,) = board.snapshot(NOW_MS).incidents
    assert (incident.is_open, incident.opened, incident.until, incident.worst) == (True, 0, 15_000, 10_500.0)
    alert(board, 15_000, "closed", severity="none", value=80.0, message="well")
    (incident,) = board.snapshot(NOW_MS).incidents
    assert (incident.is_open, incident.until, incident.severity, incident.message) == (
        False,
        15_000,
        "critical",
        "slow",
    )


def test_an_incident_of_which_nothing_more_is_heard_ends_while_windows_continue() -> None:
    board = Board(NOW_MS)
    alert(board, 0, "opened")
    put(board, "server_windows", "a", start=30_000, server="server-1", p95_ms=70.0)
    assert board.snapshot(NOW_MS).open_incidents
    put(board, "server_windows", "b", start=60_000, server="server-1", p95_ms=70.0)
    assert not board.snapshot(NOW_MS).open_incidents


def test_rates_are_over_the_last_seconds_and_a_topic_that_is_new_has_none() -> None:
    board = Board(NOW_MS)
    for second in range(10):
        board.offsets(NOW_MS + second * 1000, {"views": 100 * second})
    board.offsets(NOW_MS + 10_000, {"views": 1000, "votes": 70})
    views, votes = board.snapshot(NOW_MS).topics
    assert (views.rate, views.total, votes.rate, votes.total) == (100.0, 1000, 0.0, 70)


def test_terms_are_shown_once_with_their_best_minute_and_old_ones_are_not() -> None:
    board = Board(NOW_MS)
    for minute, keyword, score in (
        (600_000, "desk", 2.0),
        (660_000, "desk", 9.0),
        (720_000, "desk", 4.0),
        (1, "old", 99.0),
    ):
        put(
            board,
            "rising",
            f"{minute}:{keyword}",
            minute=minute,
            user_group="all",
            keyword=keyword,
            searches=5,
            score=score,
        )
    assert [(one.keyword, one.minute) for one in board.snapshot(NOW_MS).rising] == [("desk", 660_000)]


def test_a_feed_is_decoded_when_it_is_asked_for_and_members_with_most_in_theirs_come_first() -> None:
    board = Board(NOW_MS)
    entry = {"time_ms": 5, "author": 2, "kind": "post", "id": 1, "item": 3, "text": "hello", "relevance": 1.0}
    for member in (4, 5, 4):
        put(board, "feed", str(member), member=member, newest=5, entries=[entry])
    board.record("feed", b"6", b"[]")
    long = {**entry, "text": '"author":' * 50}
    put(board, "feed", "7", member=7, newest=5, entries=[long])
    put(board, "feed", "8", member=8, newest=5, entries=[entry, entry])
    assert board.snapshot(NOW_MS).members[0] == 8, "two entries are more than one long one"
    board.record("feed", b"7", None)
    board.record("feed", b"8", None)
    assert board.snapshot(NOW_MS).members == [4, 5, 6]
    assert [one.text for one in board.feed(4).entries] == ["hello"]
    assert board.feed(99).entries == []
    assert board.feed(6).entries == []
    assert board.snapshot(NOW_MS).unreadable == 1


def test_however_much_comes_what_is_kept_has_a_bound() -> None:
    board = Board(NOW_MS)
    board.generating_since_ms, board.phase = NOW_MS, state.RUNNING
    for number in range(6_000):
        put(board, "feed", str(number), member=number)
        put(
            board,
            "suspects",
            str(number),
            kind="member",
            actor="1",
            verdict="crawler",
            score=1,
            first_seen=0,
            last_seen=0,
        )
    for number in range(SAMPLES + 50):
        board.snapshot(NOW_MS + number * 1000)
    snapshot = board.snapshot(NOW_MS)
    assert (snapshot.members_total, len(snapshot.members)) == (5_000, 40)
    assert (snapshot.suspects_total, len(snapshot.suspects)) == (2_000, 100)
    assert len(snapshot.samples) == SAMPLES
    assert len(board.samples()) == SAMPLES + 51


def test_a_pipeline_whose_process_is_gone_is_reported_and_one_of_an_earlier_run_is_not() -> None:
    board = Board(NOW_MS)
    rows = QueryStatus(name="rows", state="running", lag=7, batch_ms=5)
    gone = PipelineStatus(name="feed", state="running", pid=1, host="elsewhere", updated_ms=NOW_MS, queries=[rows])
    earlier = PipelineStatus(name="search", state="stopped", updated_ms=NOW_MS - 1, queries=[rows])
    board.statuses([gone, earlier])
    board.usages({"broker": Usage(pid=1, memory_bytes=5, cores=0.123, processes=1)})
    snapshot = board.snapshot(NOW_MS)
    (query,) = snapshot.queries
    assert (query.pipeline, query.state, snapshot.lag) == ("feed", "gone", 7)
    assert snapshot.processes[0].cores == 0.12


def steps_of(snapshot: Snapshot) -> dict[str, str]:
    return {} if snapshot.start is None else {step.name: step.state for step in snapshot.start.steps}


def test_the_steps_of_a_start_are_done_by_what_is_observed() -> None:
    start = StartProgress(tuple(TITLES))
    board = Board(NOW_MS, start=start, queries=2)
    assert set(steps_of(board.snapshot(NOW_MS + 100)).values()) == {"running", "waiting"}

    board.has_cluster = True
    assert steps_of(board.snapshot(NOW_MS + 900))["broker"] == "done"

    for second in (1, 2):
        board.offsets(NOW_MS + second * 1_000, {"views": 100 * second})
    assert steps_of(board.snapshot(NOW_MS + 2_000))["site"] == "done"

    before = PipelineStatus(name="feed", updated_ms=NOW_MS - 1, queries=[QueryStatus(name="feed_entries")])
    board.statuses([before])
    assert steps_of(board.snapshot(NOW_MS + 3_000))["spark"] == "running", "that is of an earlier run"
    now = PipelineStatus(name="feed", pid=os.getpid(), host=socket.gethostname(), updated_ms=NOW_MS + 3_500)
    board.statuses([now])
    assert steps_of(board.snapshot(NOW_MS + 3_600))["spark"] == "done"

    queries = [QueryStatus(name="feed_entries"), QueryStatus(name="more")]
    now.queries = queries[:1]
    board.statuses([now])
    snapshot = board.snapshot(NOW_MS + 4_100)
    assert snapshot.start is not None
    assert [step.note for step in snapshot.start.steps if step.name == "queries"] == ["1 of 2"]
    now.queries = queries
    board.statuses([now])
    assert steps_of(board.snapshot(NOW_MS + 4_200)) == {**dict.fromkeys(TITLES, "done"), "results": "running"}

    put(board, "server_windows", "a", start=NOW_MS, server="server-1", p95_ms=70.0)
    assert board.snapshot(NOW_MS + 5_000).start is None, "it has started"
    assert start.ended_ms["results"] == 5_000


def test_a_run_that_stops_while_it_starts_shows_no_steps() -> None:
    board = Board(NOW_MS, start=StartProgress(tuple(TITLES)), queries=1)
    board.phase = state.STOPPING
    assert board.snapshot(NOW_MS + 100).start is None


def test_the_charts_grow_while_spark_starts() -> None:
    board = Board(NOW_MS, start=StartProgress(tuple(TITLES)), queries=1)
    assert not board.snapshot(NOW_MS).samples
    board.generating_since_ms = NOW_MS
    board.offsets(NOW_MS, {"views": 5})
    assert board.snapshot(NOW_MS + 1_000).samples[0].rates == {"views": 0.0}
