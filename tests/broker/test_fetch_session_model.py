"""Fetch sessions held against two others: a model that is slow and plain, and a client by other people.

The model keeps lists and searches them, and decides who gives way by comparing (privileged, size) as one key. The
client is kafka-python's: it trusts every response, and after any sequence of requests its state must be correct.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.consumer.fetcher import FetchSessionHandler
from kafka.structs import TopicPartition
from tests.broker.fetch_session_stories import VERSION

from penstock.broker.fetch_session import FetchContext, FetchSessions
from penstock.runtime.randomness import SeededRandom
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData

Key = tuple[str, int]

KEYS: list[Key] = [(topic, partition) for topic in "ab" for partition in range(2)]
SLOTS = 3
MAX_PARTITIONS = 7
EVICTION_MS = 10


@dataclass
class Facts:
    """How a partition is at the moment."""

    watermark: int = 0
    start: int = 0
    error: int = 0
    records: bytes = b""

    def result(self, key: Key) -> tuple[str, PartitionData]:
        return key[0], PartitionData(
            partition_index=key[1],
            error_code=self.error,
            high_watermark=self.watermark,
            log_start_offset=self.start,
            records=self.records,
        )

    def change(self, how: str) -> None:
        if how == "watermark":
            self.watermark += 1
        elif how == "start":
            self.start += 1
        elif how == "error":
            self.error = 6 - self.error
        else:
            self.records = b"x" if self.records == b"" else b""


def world() -> dict[Key, Facts]:
    return {key: Facts() for key in KEYS}


def answer(context: FetchContext, facts: dict[Key, Facts]) -> Iterator[tuple[str, PartitionData]]:
    for topic, partition in context.partitions:
        yield facts[topic, partition.partition].result((topic, partition.partition))


@dataclass
class Session:
    id: int
    privileged: bool
    created_ms: int
    used_ms: int
    keys: list[Key]
    offsets: dict[Key, int]
    reported: dict[Key, tuple[int, int]]
    epoch: int = 1

    def tell(self, facts: dict[Key, Facts]) -> set[Key]:
        """What is news to the client, which knows it now."""
        news = set()
        for key in list(self.keys):
            fact = facts[key]
            if fact.error:
                self.reported.pop(key, None)
                news.add(key)
                continue
            if self.reported.get(key) != (fact.watermark, fact.start) or fact.records:
                news.add(key)
            self.reported[key] = (fact.watermark, fact.start)
            if fact.records:
                self.keys.remove(key)
                self.keys.append(key)
        return news


@dataclass
class Model:
    now_ms: int = 0
    # Least recently used first.
    sessions: list[Session] = field(default_factory=list)
    evictions: int = 0

    @property
    def partitions(self) -> int:
        return sum(len(session.keys) for session in self.sessions)

    def find(self, session_id: int, privileged: bool) -> Session | None:
        for session in self.sessions:
            if (session.id, session.privileged) == (session_id, privileged):
                return session
        return None

    def evict(self, session: Session) -> None:
        self.sessions.remove(session)
        self.evictions += 1

    def is_too_wide(self, size: int, privileged: bool) -> bool:
        if privileged:
            return sum(len(session.keys) for session in self.sessions if session.privileged) + size > MAX_PARTITIONS
        return self.partitions + size > MAX_PARTITIONS

    def has_room(self, size: int, privileged: bool) -> bool:
        return len(self.sessions) < SLOTS and not self.is_too_wide(size, privileged)

    def make_room(self, size: int, privileged: bool) -> bool:
        if size > MAX_PARTITIONS:
            return False
        while not self.has_room(size, privileged):
            if not self.sessions or self.now_ms - self.sessions[0].used_ms <= EVICTION_MS:
                break
            self.evict(self.sessions[0])
        if self.has_room(size, privileged):
            return True
        if self.is_too_wide(size, privileged):
            return False
        weak = [
            session
            for session in self.sessions
            if (privileged and not session.privileged) or self.now_ms - session.created_ms > EVICTION_MS
        ]
        weakest = min(weak, key=lambda session: (session.privileged, len(session.keys), session.id), default=None)
        if weakest is None or (privileged, size) <= (weakest.privileged, len(weakest.keys)):
            return False
        self.evict(weakest)
        return True


@dataclass
class Fetch:
    which: int
    epoch: str
    keys: list[Key]
    forget: list[Key]
    offset: int
    # For a new session; a session that exists is used by its own kind, unless by an impostor.
    privileged: bool
    impostor: bool

    def request(self, session_id: int, epoch: int) -> FetchRequest:
        return FetchRequest(
            session_id=session_id,
            session_epoch=epoch,
            topics=[
                FetchTopic(topic=topic, partitions=[FetchPartition(partition=partition, fetch_offset=self.offset)])
                for topic, partition in self.keys
            ],
            forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=[index]) for topic, index in self.forget],
        )


class Trial:
    """Sessions and model, side by side."""

    def __init__(self) -> None:
        self.sessions = FetchSessions(SLOTS, EVICTION_MS, SeededRandom(1), max_partitions=MAX_PARTITIONS)
        self.model = Model()
        self.facts = world()
        self.ids = {0: False}

    def fetch(self, step: Fetch) -> None:
        session_id = [*self.ids][-1 - step.which % len(self.ids)]
        if session_id:
            step = replace(step, privileged=self.ids[session_id] != step.impostor)
        session = self.model.find(session_id, step.privileged)
        right = session.epoch if session else 1
        epoch = {"new": 0, "final": -1, "right": right, "wrong": right + 1}[step.epoch]
        context = self.sessions.begin(
            step.request(session_id, epoch), VERSION, self.model.now_ms, privileged=step.privileged
        )
        if epoch in (0, -1):
            self.full(step, context, session, wants_session=epoch == 0)
        else:
            self.incremental(step, context, session, epoch)
        assert self.sessions.count == len(self.model.sessions)
        assert self.sessions.partitions_cached == self.model.partitions
        assert self.sessions.evictions == self.model.evictions

    def full(self, step: Fetch, context: FetchContext, session: Session | None, *, wants_session: bool) -> None:
        if session is not None:
            self.model.sessions.remove(session)
        keys = list(dict.fromkeys(step.keys))
        self.reads(context, keys, dict.fromkeys(keys, step.offset))
        response = context.answer(answer(context, self.facts))
        assert response.error_code == 0
        assert reported(response) == set(keys)
        if not (wants_session and keys and self.model.make_room(len(keys), step.privileged)):
            assert response.session_id == 0
            return
        assert response.session_id > 0
        assert response.session_id not in [other.id for other in self.model.sessions]
        now_ms = self.model.now_ms
        made = Session(response.session_id, step.privileged, now_ms, now_ms, keys, dict.fromkeys(keys, step.offset), {})
        made.tell(self.facts)
        self.model.sessions.append(made)
        self.ids[response.session_id] = step.privileged

    def incremental(self, step: Fetch, context: FetchContext, session: Session | None, epoch: int) -> None:
        if session is None or session.epoch != epoch:
            self.rejected(context, 70 if session is None else 71)
            return
        before = len(session.keys)
        for key in step.keys:
            session.offsets[key] = step.offset
            if key not in session.keys:
                session.keys.append(key)
            if session.privileged:
                session.reported.pop(key, None)  # a follower may have ignored earlier responses before it asked again
        session.keys = [key for key in session.keys if key not in step.forget]
        session.reported = {key: session.reported[key] for key in session.keys if key in session.reported}
        if len(session.keys) > before and self.model.is_too_wide(0, session.privileged):
            self.model.sessions.remove(session)
            self.rejected(context, 70)
            return
        self.model.sessions.remove(session)
        self.reads(context, session.keys, session.offsets)
        news = session.tell(self.facts)
        response = context.answer(answer(context, self.facts))
        assert (response.error_code, reported(response)) == (0, news)
        if not session.keys:
            assert response.session_id == 0
            return
        assert response.session_id == session.id
        session.epoch += 1
        session.used_ms = self.model.now_ms
        self.model.sessions.append(session)

    def rejected(self, context: FetchContext, error: int) -> None:
        assert context.error == error
        response = context.answer(answer(context, self.facts))
        assert (response.error_code, response.session_id, response.responses) == (error, 0, [])

    def reads(self, context: FetchContext, keys: list[Key], offsets: dict[Key, int]) -> None:
        reading = [(topic, partition.partition, partition.fetch_offset) for topic, partition in context.partitions]
        assert reading == [(*key, offsets[key]) for key in keys]


def reported(response: Any) -> set[Key]:
    return {(topic.topic, data.partition_index) for topic in response.responses for data in topic.partitions}


TIMES = st.sampled_from([0, 1, 5, EVICTION_MS, EVICTION_MS + 1])
KEY_LISTS = st.lists(st.sampled_from(KEYS), max_size=5)
CHANGES = st.tuples(st.sampled_from(KEYS), st.sampled_from(["watermark", "start", "error", "error", "records"]))
FETCHES = st.builds(
    Fetch,
    which=st.integers(0, 5),
    epoch=st.sampled_from(["right", "right", "right", "right", "right", "right", "new", "final", "wrong"]),
    keys=st.one_of(st.just([]), KEY_LISTS),
    forget=st.one_of(st.just([]), st.just([]), KEY_LISTS),
    offset=st.integers(0, 9),
    privileged=st.sampled_from([False, False, True]),
    impostor=st.sampled_from([False] * 9 + [True]),
)
OPENINGS = st.builds(
    Fetch,
    which=st.just(-1),
    epoch=st.just("new"),
    keys=KEY_LISTS,
    forget=st.just([]),
    offset=st.integers(0, 9),
    privileged=st.booleans(),
    impostor=st.just(False),
)


def conversations(*steps: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists of any length alike: left to itself, hypothesis makes most of them too short to get anywhere."""
    return st.integers(0, 80).flatmap(lambda size: st.lists(st.one_of(*steps), min_size=size, max_size=size))


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(conversations(FETCHES, FETCHES, FETCHES, OPENINGS, CHANGES, CHANGES, TIMES))
def test_sessions_do_as_the_plain_model_does(steps: list[Fetch | tuple[Key, str] | int]) -> None:
    trial = Trial()
    for step in steps:
        if isinstance(step, int):
            trial.model.now_ms += step
        elif isinstance(step, tuple):
            trial.facts[step[0]].change(step[1])
        else:
            trial.fetch(step)


class Client:
    """kafka-python's side of a session, and what it has come to believe of each partition."""

    def __init__(self) -> None:
        self.handler = FetchSessionHandler(0)
        self.reading: dict[Key, int] = {}
        self.believes: dict[Key, tuple[int, int, int]] = {}

    def request(self) -> FetchRequest:
        data = self.handler.build_next(
            {
                TopicPartition(*key): FetchPartition(partition=key[1], fetch_offset=offset)
                for key, offset in self.reading.items()
            }
        )
        return FetchRequest(
            session_id=data.id,
            session_epoch=data.epoch,
            topics=[FetchTopic(topic=topic.topic, partitions=list(topic.partitions)) for topic in data.to_send],
            forgotten_topics_data=[
                ForgottenTopic(topic=topic.topic, partitions=list(topic.partitions)) for topic in data.to_forget
            ],
        )

    def take(self, response: Any) -> bool:
        if not self.handler.handle_response(response):
            return False
        for topic in response.responses:
            for data in topic.partitions:
                belief = (data.error_code, data.high_watermark, data.log_start_offset)
                self.believes[topic.topic, data.partition_index] = belief
        return True


def poll(sessions: FetchSessions, client: Client, facts: dict[Key, Facts], now_ms: int, fate: str) -> bool:
    """One fetch; whether the client learnt from it."""
    request = client.request()
    if fate == "request lost":
        client.handler.handle_error(None)
        return False
    context = sessions.begin(request, VERSION, now_ms)
    if context.error == 0:
        reading = {(topic, entry.partition): entry.fetch_offset for topic, entry in context.partitions}
        assert reading == client.reading
    response = context.throttled(100) if fate == "throttled" else context.answer(answer(context, facts))
    if fate == "response lost":
        client.handler.handle_error(None)
        return False
    return client.take(response) and fate != "throttled"


STEPS = (
    CHANGES,
    st.tuples(st.integers(0, 1), st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3), min_size=1)),
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["well", "well", "well", "request lost", "response lost", "throttled"]),
    ),
    TIMES,
)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2), conversations(*STEPS))
def test_what_kafka_pythons_client_believes_after_a_fetch_that_went_well_is_so(slots: int, steps: list[Any]) -> None:
    sessions = FetchSessions(slots, EVICTION_MS, SeededRandom(1), max_partitions=MAX_PARTITIONS)
    clients, facts, now_ms = [Client(), Client()], world(), 0
    for client in clients:
        client.reading = dict.fromkeys(KEYS[:3], 0)
    for step in steps:
        if isinstance(step, int):
            now_ms += step
        elif isinstance(step[0], tuple):
            facts[step[0]].change(step[1])
        elif isinstance(step[1], dict):
            clients[step[0]].reading = step[1]
        else:
            client = clients[step[0]]
            if poll(sessions, client, facts, now_ms, step[1]):
                for key in client.reading:
                    fact = facts[key]
                    assert client.believes[key] == (fact.error, fact.watermark, fact.start)
    for client in clients:
        learnt = [poll(sessions, client, facts, now_ms, "well") for _ in range(3)]
        assert learnt[-1], "whatever went wrong, two more fetches put a session right"
