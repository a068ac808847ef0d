"""The requesting half of a fetch session: alone, and against the broker's half."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.fetch_session import FetchContext, FetchSessions
from penstock.runtime.randomness import SeededRandom
from penstock.wire.fetch_session import (
    LAST_VERSION_WITH_NAMES,
    SESSION_ERRORS,
    FetchOutcome,
    FetchSession,
    PartitionFetch,
    SessionRequest,
    enlarged,
    fetch_request,
    outcome_of,
    without_session,
)
from penstock.wire.protocol import ErrorCode, request_codec
from penstock.wire.schemas.fetch import EpochEndOffset, FetchRequest, PartitionData

Key = tuple[str, int]
A, B, C = ("a", 0), ("a", 1), ("c", 0)
KEYS: list[Key] = [A, B, C, ("c", 7)]


def opened(*keys: Key) -> FetchSession[Key, str]:
    session: FetchSession[Key, str] = FetchSession()
    for key in keys:
        session.want(key, "first")
    session.accepted(session.next_request(), 7)
    return session


# --------------------------------------------------------------------------------------------------- sessions


def test_the_first_request_names_everything_and_the_next_nothing() -> None:
    session: FetchSession[Key, str] = FetchSession()
    session.want(A, "a")
    session.want(B, "b")
    first = session.next_request()
    assert first == SessionRequest(0, 0, {A: "a", B: "b"}, [])
    session.accepted(first, 7)
    assert session.next_request() == SessionRequest(7, 1, {}, [])
    assert session.next_request() == SessionRequest(7, 2, {}, [])


def test_only_changes_are_named() -> None:
    session = opened(A, B)
    session.want(A, "further")
    session.forget(B)
    session.want(C, "new")
    assert session.next_request() == SessionRequest(7, 1, {A: "further", C: "new"}, [B])
    assert not session.has_changes


def test_a_partition_that_is_forgotten_and_wanted_again_is_not_forgotten() -> None:
    session = opened(A)
    session.forget(A)
    session.want(A, "again")
    assert session.next_request() == SessionRequest(7, 1, {A: "again"}, [])


def test_a_partition_that_is_wanted_and_forgotten_between_two_requests_is_not_mentioned() -> None:
    session = opened(A)
    session.want(B, "b")
    session.forget(B)
    assert session.next_request() == SessionRequest(7, 1, {}, [])


def test_after_a_reset_everything_is_named_again() -> None:
    session = opened(A, B)
    session.forget(B)
    session.reset()
    assert session.next_request() == SessionRequest(0, 0, {A: "first"}, [], 1)


def test_a_broker_without_sessions_gets_full_requests_in_the_order_of_the_plan() -> None:
    session: FetchSession[Key, str] = FetchSession()
    for plan in ({A: "1", B: "1"}, {B: "1", A: "2"}):
        session.want_exactly(plan)
        request = session.next_request()
        assert (request.epoch, list(request.named.items())) == (0, list(plan.items()))
        session.accepted(request, 0)


def test_a_response_to_a_request_from_before_a_reset_is_ignored() -> None:
    session = opened(A)
    before = session.next_request()
    session.reset()
    session.accepted(before, 99)
    assert not session.is_open


def test_another_session_id_than_the_one_in_use_resets_the_session() -> None:
    session = opened(A)
    session.accepted(session.next_request(), 8)
    assert session.next_request().is_full


def test_the_epoch_after_the_last_is_one() -> None:
    session = opened(A)
    session._epoch = 2**31 - 1
    assert [session.next_request().epoch, session.next_request().epoch] == [2**31 - 1, 1]


# --------------------------------------------------------------------------------------------------- both halves


class Conversation:
    """Our requesting half and the broker's half, with at most two requests in flight.

    The invariant: whatever request the broker accepts, it reads exactly what is wanted at the time of sending.
    """

    def __init__(self, slots: int, *, is_follower: bool) -> None:
        self.session: FetchSession[Key, PartitionFetch] = FetchSession()
        self.wanted: dict[Key, PartitionFetch] = {}
        self.broker = FetchSessions(slots, 10, SeededRandom(1), max_partitions=6)
        self.others = FetchSession[Key, PartitionFetch]()
        self.is_follower = is_follower
        self.now_ms = 0
        self.in_flight: list[tuple[SessionRequest[Key, PartitionFetch], FetchContext]] = []

    def want(self, key: Key, offset: int) -> None:
        self.wanted[key] = PartitionFetch(offset, 100)
        self.session.want(key, self.wanted[key])

    def forget(self, key: Key) -> None:
        self.wanted.pop(key, None)
        self.session.forget(key)

    def plan(self, plan: dict[Key, int]) -> None:
        self.wanted = {key: PartitionFetch(offset, 100) for key, offset in plan.items()}
        self.session.want_exactly(self.wanted)

    def send(self, fate: str) -> None:
        if self.session.is_empty or (self.in_flight and not self.session.is_open) or len(self.in_flight) > 1:
            return
        request = self.session.next_request()
        if fate == "lost":
            self.disconnect()
            return
        context = self.begin(request)
        if context.error == 0:
            read = {(topic, one.partition): PartitionFetch(one.fetch_offset, 100) for topic, one in context.partitions}
            assert read == self.wanted
        self.in_flight.append((request, context))

    def begin(self, request: SessionRequest[Key, PartitionFetch]) -> FetchContext:
        message = fetch_request(request, version=LAST_VERSION_WITH_NAMES, max_bytes=1000)
        codec = request_codec(1, LAST_VERSION_WITH_NAMES)
        carried, _ = codec.decode(codec.encode(message))
        assert isinstance(carried, FetchRequest)
        return self.broker.begin(carried, LAST_VERSION_WITH_NAMES, self.now_ms, privileged=self.is_follower)

    def respond(self, watermark: int) -> None:
        """The oldest request is answered; the client does what consumer and follower do."""
        if not self.in_flight:
            return
        request, context = self.in_flight.pop(0)
        response = context.answer(
            (topic, PartitionData(partition_index=one.partition, high_watermark=watermark))
            for topic, one in (() if context.is_superseded else context.partitions)
        )
        if response.error_code in SESSION_ERRORS:
            is_superseded = self.in_flight and response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            if self.session.is_current(request) and not is_superseded:
                self.session.reset()
        else:
            self.session.accepted(request, response.session_id)

    def disconnect(self) -> None:
        self.in_flight.clear()
        self.session.reset()

    def compete(self, size: int) -> None:
        """Another client opens a session, which may evict ours."""
        for number in range(size):
            self.others.want(("other", number), PartitionFetch(0, 100))
        context = self.begin(self.others.next_request())
        context.answer((topic, PartitionData(partition_index=one.partition)) for topic, one in context.partitions)


STEPS = st.one_of(
    st.tuples(st.just("want"), st.sampled_from(KEYS), st.integers(0, 3)),
    st.tuples(st.just("forget"), st.sampled_from(KEYS)),
    st.tuples(st.just("plan"), st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3))),
    st.tuples(st.just("send"), st.sampled_from(["well", "well", "well", "lost"])),
    st.tuples(st.just("send"), st.just("well")),
    st.tuples(st.just("respond"), st.integers(0, 3)),
    st.tuples(st.just("respond"), st.integers(0, 3)),
    st.tuples(st.just("disconnect")),
    st.tuples(st.just("compete"), st.integers(1, 3)),
    st.tuples(st.just("wait"), st.sampled_from([1, 20])),
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2), st.booleans(), st.lists(STEPS, max_size=60))
def test_the_broker_always_reads_what_is_wanted(slots: int, is_follower: bool, steps: list[Any]) -> None:
    conversation = Conversation(slots, is_follower=is_follower)
    for what, *arguments in steps:
        if what == "wait":
            conversation.now_ms += arguments[0]
        else:
            getattr(conversation, what)(*arguments)
    # However it went, undisturbed exchanges open a session if the broker keeps any; old ones can be evicted by then.
    conversation.disconnect()
    conversation.now_ms += 100
    conversation.want(A, 1)
    for _ in range(3):
        conversation.send("well")
        conversation.respond(9)
    assert conversation.session.is_open == (slots > 0)


# --------------------------------------------------------------------------------------------------- messages


def test_partitions_are_grouped_by_topic_name_or_id() -> None:
    wanted = {A: PartitionFetch(1, 2), C: PartitionFetch(3, 4), B: PartitionFetch(5, 6)}
    named = fetch_request(without_session(wanted), version=12, max_bytes=9)
    grouped = [(topic.topic, [each.partition for each in topic.partitions]) for topic in named.topics]
    assert grouped == [("a", [0, 1]), ("c", [0])]
    said = SessionRequest(7, 3, {(b"i" * 16, 4): PartitionFetch(1, 2)}, [(b"j" * 16, 5)])
    by_id = fetch_request(said, version=17, max_bytes=9)
    assert [(topic.topic_id, topic.partitions[0].partition) for topic in by_id.topics] == [(b"i" * 16, 4)]
    assert [(topic.topic_id, topic.partitions) for topic in by_id.forgotten_topics_data] == [(b"j" * 16, [5])]
    assert (by_id.session_id, by_id.session_epoch) == (7, 3)


@pytest.mark.parametrize("version", range(13))
def test_a_request_without_a_session_can_be_encoded_in_every_version_with_names(version: int) -> None:
    wanted = {A: PartitionFetch(5, 10, 3, 2, 1)}
    request = fetch_request(without_session(wanted), version=version, max_bytes=9, rack_id="r")
    decoded, _ = request_codec(1, version).decode(request_codec(1, version).encode(request))
    assert isinstance(decoded, FetchRequest)
    (partition,) = decoded.topics[0].partitions
    assert (partition.fetch_offset, partition.partition_max_bytes) == (5, 10)
    assert partition.last_fetched_epoch == (2 if version >= 12 else -1)


def test_every_response_has_one_outcome() -> None:
    diverging = EpochEndOffset(epoch=1, end_offset=5)
    outcomes = {
        FetchOutcome.RECORDS: PartitionData(records=b"x"),
        FetchOutcome.EMPTY: PartitionData(records=b""),
        FetchOutcome.REDIRECTED: PartitionData(preferred_read_replica=2),
        FetchOutcome.DIVERGED: PartitionData(diverging_epoch=diverging),
        FetchOutcome.OUT_OF_RANGE: PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, records=b"x"),
        FetchOutcome.NOT_LEADER: PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        FetchOutcome.RETRY: PartitionData(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH),
        FetchOutcome.FATAL: PartitionData(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    }
    assert {outcome: outcome_of(data) for outcome, data in outcomes.items()} == {each: each for each in FetchOutcome}


def test_a_fetch_is_enlarged_up_to_the_limit() -> None:
    assert (enlarged(10, 15), enlarged(15, 15)) == (15, None)
    assert enlarged(2**30) == 2**31 - 1
