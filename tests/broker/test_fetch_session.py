"""What a fetch session remembers, what an incremental fetch reads, and what its response may leave out."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from tests.broker.fetch_session_stories import VERSION, Broker, asked, fetch, reported, result

from penstock.broker.fetch_session import FetchSession, ResponseMismatch, requested_partitions
from penstock.wire.protocol import ApiKey, ErrorCode, response_codec
from penstock.wire.schemas.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from penstock.wire.types import Chunk

MAX_EPOCH = 2**31 - 1


class Region(NamedTuple):
    size: int


# Full fetches.


def test_a_fetch_with_epoch_minus_one_is_answered_whole_and_leaves_nothing_behind() -> None:
    broker = Broker()
    response = broker.round(fetch("a-0 a-1 b-0", epoch=-1))
    assert (response.session_id, response.error_code, reported(response)) == (0, 0, "a-0 a-1 b-0")
    assert (broker.sessions.count, broker.sessions.partitions_cached) == (0, 0)


def test_a_version_before_sessions_gets_none_whatever_the_message_holds() -> None:
    broker = Broker()
    response = broker.round(fetch("a-0", session=7, epoch=3), version=6)
    assert (response.session_id, response.error_code, reported(response)) == (0, 0, "a-0")
    assert broker.round(fetch("a-0", epoch=0), version=6).session_id == 0
    assert broker.round(fetch("a-0", epoch=0), version=7).session_id > 0


def test_a_fetch_with_epoch_zero_is_answered_whole_and_opens_a_session() -> None:
    broker = Broker()
    response = broker.round(fetch("a-0 b-0 a-1"))
    assert 0 < response.session_id < 2**31
    assert reported(response) == "a-0 a-1 b-0"
    assert (broker.sessions.count, broker.sessions.partitions_cached) == (1, 3)


def test_the_session_is_opened_by_the_answer_and_not_before() -> None:
    broker = Broker()
    context = broker.begin(fetch("a-0"))
    assert broker.sessions.count == 0
    context.answer([result("a-0")])
    assert broker.sessions.count == 1


def test_a_fetch_of_nothing_takes_no_slot() -> None:
    broker = Broker()
    response = broker.round(fetch(""))
    assert (response.session_id, response.error_code, broker.sessions.count) == (0, 0, 0)


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_full_fetch_ends_the_session_that_it_names(epoch: int) -> None:
    broker = Broker()
    session = broker.open("a-0 a-1")
    response = broker.round(fetch("b-0", session=session, epoch=epoch))
    assert (reported(response), response.error_code) == ("b-0", 0)
    assert response.session_id != session
    assert not broker.lives(session)
    assert broker.sessions.count == broker.sessions.partitions_cached == (1 if epoch == 0 else 0)


def test_a_full_fetch_may_name_a_session_that_no_longer_exists() -> None:
    assert Broker().open("a-0") > 0
    assert Broker().round(fetch("a-0", session=99)).session_id > 0


def test_a_partition_requested_twice_is_read_once_as_requested_last() -> None:
    request = fetch("a-0 b-0", epoch=-1, offset=1)
    request.topics += fetch("a-0", offset=2).topics
    context = Broker().begin(request)
    assert [(topic, partition.fetch_offset) for topic, partition in context.partitions] == [("a", 2), ("b", 1)]


def test_a_response_names_each_topic_once() -> None:
    response = Broker().round(fetch("b-0 a-0 b-1 a-1"))
    assert [topic.topic for topic in response.responses] == ["b", "a"]
    assert reported(response) == "b-0 b-1 a-0 a-1"


@pytest.mark.parametrize("epoch", [-1, 0, 1])
def test_responses_can_be_written(epoch: int) -> None:
    response = Broker().round(fetch("a-0", epoch=epoch))
    codec = response_codec(ApiKey.FETCH, VERSION)
    read, _ = codec.decode(codec.encode(response))
    assert (read.session_id, read.error_code, reported(read)) == (
        response.session_id,
        response.error_code,
        reported(response),
    )


# Requests of a session.


def test_an_unknown_session_is_not_found() -> None:
    broker = Broker()
    session = broker.open("a-0")
    for request in (fetch("a-0", session=session ^ 1, epoch=1), fetch("a-0", session=0, epoch=1)):
        context = broker.begin(request)
        assert context.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert asked(context) == ""
        response = context.answer([])
        assert (response.error_code, response.session_id, reported(response)) == (70, 0, "")


@pytest.mark.parametrize("epoch", [2, MAX_EPOCH, -2, -(2**31)])
def test_a_wrong_epoch_is_rejected_and_changes_nothing(epoch: int) -> None:
    broker = Broker()
    session = broker.open("a-0")
    response = broker.round(fetch("b-0", session=session, epoch=epoch, forget="a-0"))
    assert (response.error_code, reported(response)) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, "")
    assert asked(broker.begin(fetch(session=session, epoch=1))) == "a-0"


def test_each_epoch_is_good_for_one_request() -> None:
    broker = Broker()
    session = broker.open("a-0")
    codes = [broker.round(fetch(session=session, epoch=epoch)).error_code for epoch in (1, 1, 2, 1, 3, 3)]
    assert codes == [0, 71, 0, 71, 0, 71]


def test_after_the_last_epoch_comes_one_since_zero_would_open_a_session() -> None:
    session = FetchSession(5, requested_partitions(fetch("a-0").topics), privileged=False, now_ms=0)
    assert session.epoch == 1
    session.epoch = MAX_EPOCH - 1
    session.advance(0)
    assert session.epoch == MAX_EPOCH
    session.advance(0)
    assert session.epoch == 1


def test_partitions_are_added_changed_and_forgotten() -> None:
    broker = Broker()
    session = broker.open("a-0 a-1 b-0")
    context = broker.begin(fetch("c-0 a-1", session=session, epoch=1, forget="b-0 unknown-4", offset=33))
    assert asked(context) == "a-0 a-1 c-0"
    assert [partition.fetch_offset for _, partition in context.partitions] == [0, 33, 33]
    assert broker.sessions.partitions_cached == 3
    assert reported(context.answer(broker.results(context))) == "c-0"
    assert asked(broker.begin(fetch(session=session, epoch=2))) == "a-0 a-1 c-0"


def test_what_a_request_both_asks_for_and_forgets_is_forgotten() -> None:
    broker = Broker()
    session = broker.open("a-0")
    assert asked(broker.begin(fetch("b-0", session=session, epoch=1, forget="b-0"))) == "a-0"


def test_forgetting_everything_ends_the_session() -> None:
    broker = Broker()
    session = broker.open("a-0 b-0")
    response = broker.round(fetch(session=session, epoch=1, forget="a-0 b-0"))
    assert (response.session_id, response.error_code, reported(response)) == (0, 0, "")
    assert (broker.sessions.count, broker.sessions.partitions_cached) == (0, 0)
    assert not broker.lives(session, epoch=2)


def test_a_forgotten_partition_that_is_added_again_is_reported_again() -> None:
    broker = Broker()
    session = broker.open("a-0 b-0")
    broker.round(fetch(session=session, epoch=1, forget="b-0"))
    assert reported(broker.round(fetch("b-0", session=session, epoch=2))) == "b-0"


def test_a_consumer_can_neither_use_nor_end_the_session_of_a_follower() -> None:
    broker = Broker()
    session = broker.open("a-0", privileged=True)
    assert broker.round(fetch(session=session, epoch=1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    broker.round(fetch("a-0", session=session, epoch=-1))
    broker.round(fetch("a-0", session=session, epoch=0))
    assert broker.round(fetch(session=session, epoch=1), privileged=True).error_code == 0


def test_what_a_client_attaches_to_a_request_is_not_kept() -> None:
    partition = FetchPartition(partition=0, unknown_tags={77: bytes(1000)})
    broker = Broker()
    session = broker.open("b-0")
    broker.round(
        FetchRequest(session_id=session, session_epoch=1, topics=[FetchTopic(topic="a", partitions=[partition])])
    )
    kept = broker.begin(fetch(session=session, epoch=2)).partitions
    assert [entry.unknown_tags for _, entry in kept] == [None, None]


# What an incremental response leaves out.


def test_an_idle_fetch_is_answered_empty_and_keeps_the_session() -> None:
    broker = Broker()
    session = broker.open("a-0 a-1")
    response = broker.round(fetch(session=session, epoch=1))
    assert (response.session_id, response.error_code, response.responses) == (session, 0, [])


@pytest.mark.parametrize("news", [result("a-1", 11), result("a-1", 9), result("a-1", 10, start=3)])
def test_a_moved_watermark_or_log_start_is_reported_once(news: tuple[str, PartitionData]) -> None:
    broker = Broker()
    session = broker.open("a-0 a-1")
    assert reported(broker.round(fetch(session=session, epoch=1), news)) == "a-1"
    assert reported(broker.round(fetch(session=session, epoch=2), news)) == ""


def test_a_follower_that_asks_again_gets_the_offsets_again() -> None:
    broker = Broker()
    session, consumer = broker.open("a-0 a-1", privileged=True), broker.open("a-0 a-1")
    news = result("a-1", 11)
    assert reported(broker.round(fetch("a-1", session=session, epoch=1, offset=9), news, privileged=True)) == "a-1"
    assert reported(broker.round(fetch("a-1", session=session, epoch=2, offset=11), news, privileged=True)) == "a-1"
    assert reported(broker.round(fetch(session=session, epoch=3), news, privileged=True)) == ""
    assert reported(broker.round(fetch("a-1", session=consumer, epoch=1, offset=9), news)) == "a-1"
    assert reported(broker.round(fetch("a-1", session=consumer, epoch=2, offset=11), news)) == ""


def test_a_last_stable_offset_that_moved_alone_is_not_reported() -> None:
    broker = Broker()
    session = broker.open("a-0")
    topic, data = result("a-0")
    data.last_stable_offset = 4
    assert reported(broker.round(fetch(session=session, epoch=1), (topic, data))) == ""


@pytest.mark.parametrize("records", [b"x", bytearray(b"x"), memoryview(b"x"), Region(1)])
def test_records_are_always_sent(records: Chunk) -> None:
    broker = Broker()
    session = broker.open("a-0 a-1")
    topic, data = result("a-1")
    data.records = records
    for epoch in (1, 2):
        assert reported(broker.round(fetch(session=session, epoch=epoch), (topic, data))) == "a-1"


@pytest.mark.parametrize("records", [None, b"", bytearray(), memoryview(b""), Region(0)])
def test_a_partition_without_records_is_not_in_the_response(records: Chunk | None) -> None:
    broker = Broker()
    session = broker.open("a-0")
    topic, data = result("a-0")
    data.records = records
    assert reported(broker.round(fetch(session=session, epoch=1), (topic, data))) == ""


def test_an_error_is_sent_each_time_and_so_is_its_end() -> None:
    broker = Broker()
    session = broker.open("a-0 a-1")
    error = result("a-0", 10, error=ErrorCode.KAFKA_STORAGE_ERROR)
    rounds = [(error,), (error,), (), ()]
    answers = [
        reported(broker.round(fetch(session=session, epoch=epoch), *news)) for epoch, news in enumerate(rounds, 1)
    ]
    assert answers == ["a-0", "a-0", "a-0", ""]


def test_an_error_in_the_full_fetch_is_followed_up() -> None:
    broker = Broker()
    session = broker.round(fetch("a-0 a-1"), result("a-1", -1, error=3)).session_id
    assert reported(broker.round(fetch(session=session, epoch=1), result("a-1", -1))) == "a-1"


def test_a_better_replica_to_read_from_and_a_diverging_log_are_always_sent() -> None:
    broker = Broker()
    session = broker.open("a-0 a-1 a-2")
    elsewhere, diverging = result("a-0"), result("a-2")
    elsewhere[1].preferred_read_replica = 0
    diverging[1].diverging_epoch = EpochEndOffset(epoch=0, end_offset=0)
    for epoch in (1, 2):
        assert reported(broker.round(fetch(session=session, epoch=epoch), elsewhere, diverging)) == "a-0 a-2"


def test_an_added_partition_is_reported_even_if_empty() -> None:
    broker = Broker()
    session = broker.open("a-0")
    empty = result("b-0", -1, start=-1)
    assert reported(broker.round(fetch("b-0", session=session, epoch=1), empty)) == "b-0"
    assert reported(broker.round(fetch(session=session, epoch=2), empty)) == ""


def test_a_changed_position_alone_is_not_reported() -> None:
    broker = Broker()
    session = broker.open("a-0")
    assert reported(broker.round(fetch("a-0", session=session, epoch=1, offset=5))) == ""


def test_unchanged_partitions_can_be_left_out_of_the_results() -> None:
    broker = Broker()
    session = broker.open("a-0 a-1 a-2")
    broker.round(fetch(session=session, epoch=1), result("a-1", 10, error=3))
    context = broker.begin(fetch("b-0", session=session, epoch=2))
    assert context.unchanged("a", 0, 10, 0)
    assert not context.unchanged("a", 0, 11, 0)
    assert not context.unchanged("a", 0, 10, 1)
    assert not context.unchanged("a", 1, 10, 0), "its error is over"
    assert not context.unchanged("b", 0, 10, 0), "it was never reported"
    assert not context.unchanged("nowhere", 0, 10, 0)
    assert reported(context.answer([result("a-2", 12)])) == "a-2"
    following = broker.begin(fetch(session=session, epoch=3))
    assert following.unchanged("a", 0, 10, 0)
    assert not following.unchanged("b", 0, 10, 0), "still not reported"
    assert not broker.begin(fetch("a-0")).unchanged("a", 0, 10, 0), "a full fetch tells all"


# The order of reading.


def test_partitions_that_gave_records_are_read_last() -> None:
    broker = Broker()
    session = broker.open("a-0 a-1 a-2 a-3")
    full_house = [result("a-0", records=b"x"), result("a-2", records=b"x")]
    broker.round(fetch(session=session, epoch=1), *full_house)
    context = broker.begin(fetch(session=session, epoch=2))
    assert asked(context) == "a-1 a-3 a-0 a-2"
    context.answer([result("a-3", records=b"x"), result("a-1", 99), result("a-0", 0, error=1)])
    assert asked(broker.begin(fetch("a-1", session=session, epoch=3, offset=4))) == "a-1 a-0 a-2 a-3"


def test_partitions_with_records_in_the_full_fetch_come_last() -> None:
    broker = Broker()
    session = broker.round(fetch("a-0 a-1 a-2"), result("a-0", records=b"x")).session_id
    assert asked(broker.begin(fetch(session=session, epoch=1))) == "a-1 a-2 a-0"


def test_an_idle_poll_does_not_put_the_partitions_together_again() -> None:
    broker = Broker()
    session = broker.open("a-0 a-1")
    first = broker.begin(fetch(session=session, epoch=1))
    first.answer(broker.results(first))
    second = broker.begin(fetch(session=session, epoch=2))
    assert second.partitions is first.partitions


# A fetch that waits.


def test_a_superseded_fetch_is_answered_empty() -> None:
    broker = Broker()
    session = broker.open("a-0 a-1")
    waiting = broker.begin(fetch(session=session, epoch=1))
    assert broker.round(fetch("b-0", session=session, epoch=2, forget="a-1")).error_code == 0
    assert asked(waiting) == "a-0 a-1"
    response = waiting.answer([result("a-0", 99, records=b"x"), result("a-1")])
    assert (response.error_code, response.session_id, reported(response)) == (71, session, "")
    assert waiting.throttled(5).error_code == 71
    assert reported(broker.round(fetch(session=session, epoch=3), result("a-0", 99))) == "a-0"


def test_a_fetch_whose_session_ended_while_it_waited_is_answered() -> None:
    broker = Broker()
    session = broker.open("a-0")
    waiting = broker.begin(fetch(session=session, epoch=1))
    assert broker.sessions.close_session(session)
    assert not broker.sessions.close_session(session)
    assert reported(waiting.answer([result("a-0", 11)])) == "a-0"
    assert not broker.lives(session, epoch=2)


def test_a_throttled_fetch_does_not_change_the_session() -> None:
    broker = Broker()
    session = broker.open("a-0")
    response = broker.begin(fetch(session=session, epoch=1)).throttled(250)
    assert (response.throttle_time_ms, response.session_id, response.error_code, reported(response)) == (
        250,
        session,
        0,
        "",
    )
    assert reported(broker.round(fetch(session=session, epoch=2), result("a-0", 11))) == "a-0"


def test_a_throttled_full_fetch_opens_no_session() -> None:
    broker = Broker()
    response = broker.begin(fetch("a-0")).throttled(250)
    assert (response.throttle_time_ms, response.session_id, response.error_code) == (250, 0, 0)
    assert broker.sessions.count == 0
    assert broker.begin(fetch(session=9, epoch=9)).throttled(250).error_code == 70


# Answers that do not fit.


@pytest.mark.parametrize("names", ["a-0", "a-0 a-1 a-2", "a-0 a-0", "a-0 a-1 a-1", "a-0 b-1", ""])
@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_full_fetch_needs_one_result_per_partition(names: str, epoch: int) -> None:
    broker = Broker()
    context = broker.begin(fetch("a-0 a-1", epoch=epoch))
    with pytest.raises(ResponseMismatch):
        context.answer([result(name) for name in names.split()])
    assert broker.sessions.count == 0


def test_an_incremental_fetch_rejects_results_for_other_partitions() -> None:
    broker = Broker()
    session = broker.open("a-0")
    with pytest.raises(ResponseMismatch, match="b"):
        broker.begin(fetch(session=session, epoch=1)).answer([result("b-0")])


def test_a_rejected_fetch_takes_no_results() -> None:
    with pytest.raises(ResponseMismatch, match="FETCH_SESSION_ID_NOT_FOUND"):
        Broker().begin(fetch(session=1, epoch=1)).answer([result("a-0")])
