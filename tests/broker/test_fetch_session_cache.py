"""Who gets a session when they are scarce, and who gives way."""

from __future__ import annotations

import pytest
from tests.broker.fetch_session_stories import EVICTION_MS, Broker, fetch, reported

from penstock.broker import fetch_session
from penstock.broker.fetch_session import FetchSessions
from penstock.runtime.randomness import SeededRandom


class Dice(SeededRandom):
    """Returns the given numbers."""

    def __init__(self, *throws: int) -> None:
        super().__init__(0)
        self.throws = list(throws)
        self.below = self._throw

    def _throw(self, bound: int, /) -> int:
        assert bound == 2**31 - 1
        return self.throws.pop(0)


def test_ids_are_positive_fit_the_wire_and_are_not_given_twice() -> None:
    broker = Broker(random=Dice(0, 0, 0, 2**31 - 2))
    first, second = broker.open("a-0"), broker.open("a-0")
    assert (first, second) == (1, 2**31 - 1)


def test_without_a_free_slot_a_client_is_served_without_a_session() -> None:
    broker = Broker(slots=2)
    sessions = [broker.open("a-0"), broker.open("a-0")]
    response = broker.round(fetch("a-0 a-1"))
    assert (response.session_id, response.error_code, reported(response)) == (0, 0, "a-0 a-1")
    assert all(broker.lives(session) for session in sessions)
    assert broker.sessions.evictions == 0


def test_without_slots_there_are_no_sessions() -> None:
    broker = Broker(slots=0)
    assert broker.open("a-0") == broker.open("a-0", privileged=True) == 0


def test_a_slot_that_was_given_back_is_free() -> None:
    broker = Broker(slots=1)
    session = broker.open("a-0")
    assert broker.open("a-0") == 0
    assert broker.sessions.close_session(session)
    assert broker.open("a-0") > 0


def test_a_full_fetch_exchanges_its_session_for_a_new_one_however_full_it_is() -> None:
    broker = Broker(slots=1)
    session = broker.open("a-0")
    assert broker.round(fetch("a-0", session=session)).session_id not in (0, session)
    assert broker.sessions.evictions == 0


def test_a_session_unused_for_longer_than_the_eviction_time_is_evicted() -> None:
    broker = Broker(slots=1, now_ms=1000)
    session = broker.open("a-0 a-1")
    broker.now_ms += EVICTION_MS
    assert broker.open("b-0") == 0
    broker.now_ms += 1
    assert broker.open("b-0") > 0
    assert not broker.lives(session)
    assert (broker.sessions.count, broker.sessions.partitions_cached, broker.sessions.evictions) == (1, 1, 1)


def test_a_session_in_use_is_kept_and_the_idle_one_is_evicted() -> None:
    broker = Broker(slots=2)
    used, idle = broker.open("a-0"), broker.open("a-0 a-1")
    broker.now_ms += EVICTION_MS
    broker.round(fetch(session=used, epoch=1))
    broker.now_ms += 1
    assert broker.open("b-0") > 0
    assert broker.lives(used, epoch=2)
    assert not broker.lives(idle)


def test_an_idle_session_is_evicted_before_a_smaller_one() -> None:
    broker = Broker(slots=2)
    idle, small = broker.open("a-0 a-1"), broker.open("a-0")
    broker.now_ms += EVICTION_MS + 1
    broker.round(fetch(session=small, epoch=1))
    assert broker.open("b-0 b-1 b-2") > 0
    assert broker.lives(small, epoch=2)
    assert not broker.lives(idle)


def test_only_as_many_idle_sessions_go_as_slots_are_needed() -> None:
    broker = Broker(slots=3)
    for _ in range(3):
        broker.open("a-0")
    broker.now_ms += EVICTION_MS + 1
    broker.open("b-0")
    assert (broker.sessions.count, broker.sessions.evictions) == (3, 1)


def test_a_follower_takes_the_place_of_the_smallest_consumer_however_new_or_large() -> None:
    broker = Broker(slots=3)
    large, small, follower = broker.open("a-0 a-1 a-2"), broker.open("a-0 a-1"), broker.open("a-0", privileged=True)
    assert broker.open("b-0", privileged=True) > 0
    assert not broker.lives(small)
    assert broker.open("b-1", privileged=True) > 0
    assert not broker.lives(large)
    assert broker.lives(follower, privileged=True)
    assert broker.open("b-0 b-1 b-2", privileged=True) == 0, "only followers are left, and they are new"


def aged(broker: Broker, *sessions: int, privileged: bool = False) -> None:
    """Let the sessions become old, though not unused."""
    for epoch in (1, 2):
        broker.now_ms += EVICTION_MS // 2 + 1
        for session in sessions:
            assert broker.lives(session, epoch=epoch, privileged=privileged)


def test_a_larger_follower_takes_the_place_of_a_smaller_old_one() -> None:
    broker = Broker(slots=2)
    wide, narrow = broker.open("a-0 a-1 a-2", privileged=True), broker.open("a-0", privileged=True)
    aged(broker, wide, narrow, privileged=True)
    assert broker.open("b-0", privileged=True) == 0, "it is not larger"
    assert broker.open("b-0 b-1", privileged=True) > 0
    assert not broker.lives(narrow, epoch=3, privileged=True)
    assert broker.lives(wide, epoch=3, privileged=True)


def test_a_consumer_never_takes_the_place_of_a_follower_in_use() -> None:
    broker = Broker(slots=1)
    follower = broker.open("a-0", privileged=True)
    aged(broker, follower, privileged=True)
    assert broker.open("b-0 b-1 b-2") == 0
    broker.now_ms += EVICTION_MS + 1
    assert broker.open("b-0") > 0, "it is not used any more"


def test_a_larger_consumer_takes_the_place_of_the_smallest_old_one() -> None:
    broker = Broker(slots=3)
    wide, narrow = broker.open("a-0 a-1 a-2"), broker.open("a-0 a-1")
    aged(broker, wide, narrow)
    new = broker.open("a-0")
    assert broker.open("b-0 b-1") == 0, "no larger than the smallest old one, and the new one is protected"
    assert broker.open("b-0 b-1 b-2") > 0
    assert not broker.lives(narrow, epoch=3)
    assert broker.lives(wide, epoch=3)
    assert broker.lives(new)


def test_a_session_is_protected_for_just_as_long_as_the_eviction_time() -> None:
    broker = Broker(slots=1)
    session = broker.open("a-0")
    broker.now_ms += EVICTION_MS
    assert broker.lives(session)
    assert broker.open("b-0 b-1") == 0
    broker.now_ms += 1
    assert broker.open("b-0 b-1") > 0


@pytest.mark.parametrize("privileged", [False, True])
@pytest.mark.parametrize("when", ["new", "old", "known to be old"])
def test_a_session_that_ended_cannot_give_way(when: str, privileged: bool) -> None:
    broker = Broker(slots=2)
    other, gone = broker.open("a-0 a-1", privileged=True), broker.open("a-0", privileged=privileged)
    if when == "new":
        broker.sessions.close_session(gone)
        aged(broker, other, privileged=True)
    else:
        aged(broker, other, privileged=True)
        assert broker.lives(gone, privileged=privileged)
        if when == "known to be old":
            assert broker.open("b-0") == 0
        broker.sessions.close_session(gone)
    assert broker.open("b-0 b-1", privileged=privileged) > 0
    assert broker.open("c-0 c-1") == 0
    assert broker.open("c-0 c-1", privileged=True) > (-1 if privileged else 0)


def test_what_counts_is_the_size_that_a_session_has_grown_or_shrunk_to() -> None:
    broker = Broker(slots=2)
    grown, shrunk = broker.open("a-0"), broker.open("a-0 a-1 a-2")
    aged(broker, grown, shrunk)
    assert broker.open("b-0") == 0
    broker.round(fetch("a-1 a-2 a-3", session=grown, epoch=3))
    broker.round(fetch(session=shrunk, epoch=3, forget="a-0 a-1"))
    assert broker.sessions.partitions_cached == 5
    assert broker.open("b-0 b-1") > 0
    assert broker.lives(grown, epoch=4)
    assert not broker.lives(shrunk, epoch=4)
    assert broker.open("c-0", privileged=True) > 0
    assert broker.sessions.partitions_cached == 5
    assert broker.lives(grown, epoch=5)


def test_the_counts_follow_the_sessions() -> None:
    broker = Broker(slots=2)
    session = broker.open("a-0 a-1")
    broker.open("a-0", privileged=True)
    broker.round(fetch("a-1 a-2", session=session, epoch=1, forget="a-0"))
    sessions = broker.sessions
    assert (sessions.count, sessions.partitions_cached, sessions.evictions) == (2, 3, 0)
    broker.open("c-0", privileged=True)
    assert (sessions.count, sessions.partitions_cached, sessions.evictions) == (2, 2, 1)


# However wide the requests.


def test_consumers_get_no_session_beyond_the_partitions_that_may_be_kept() -> None:
    broker = Broker(max_partitions=3)
    first = broker.open("a-0 a-1")
    response = broker.round(fetch("a-0 a-1"))
    assert (response.session_id, reported(response)) == (0, "a-0 a-1")
    assert broker.open("a-0") > 0
    assert broker.lives(first)
    assert broker.sessions.partitions_cached == 3


def test_followers_have_a_limit_of_their_own_whatever_consumers_hold() -> None:
    broker = Broker(max_partitions=3)
    assert broker.open("a-0 a-1 a-2") > 0
    follower = broker.open("a-0 a-1", privileged=True)
    response = broker.round(fetch("a-3", session=follower, epoch=1), privileged=True)
    assert (response.session_id, broker.sessions.partitions_cached) == (follower, 6)
    assert broker.open("a-0") == 0
    assert broker.open("a-0", privileged=True) == 0
    response = broker.round(fetch("a-4", session=follower, epoch=2), privileged=True)
    assert (response.error_code, broker.sessions.partitions_cached) == (70, 3)


def test_a_session_is_not_wider_than_a_request_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "MAX_SIZE", 3)
    broker = Broker()
    assert broker.open("a-0 a-1 a-2 a-3") == 0
    session = broker.open("a-0 a-1 a-2")
    assert broker.round(fetch("a-3", session=session, epoch=1)).error_code == 70
    assert broker.sessions.count == 0


def test_a_client_that_adds_too_much_has_to_start_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "MAX_CHANGE", 2)
    broker = Broker()
    session = broker.open("a-0")
    assert broker.round(fetch("a-1 a-2", session=session, epoch=1)).error_code == 0
    assert broker.round(fetch("a-3 a-4 a-5", session=session, epoch=2)).error_code == 70
    assert broker.sessions.count == 0
    assert broker.open("a-0 a-1 a-2 a-3 a-4 a-5") > 0


def test_unused_sessions_make_room_for_as_many_partitions_as_are_needed() -> None:
    broker = Broker(max_partitions=4)
    sessions = [broker.open("a-0") for _ in range(4)]
    broker.now_ms += EVICTION_MS + 1
    assert broker.open("b-0 b-1") > 0
    assert [broker.lives(session) for session in sessions] == [False, False, True, True]


def test_a_session_that_is_too_large_evicts_no_other() -> None:
    broker = Broker(max_partitions=2)
    session = broker.open("a-0")
    broker.now_ms += EVICTION_MS + 1
    assert broker.open("b-0 b-1 b-2") == 0
    assert broker.lives(session)


def test_a_session_that_grows_too_wide_is_ended_and_its_client_served_without_one() -> None:
    broker = Broker(max_partitions=3)
    session = broker.open("a-0 a-1")
    assert broker.round(fetch("a-2", session=session, epoch=1)).error_code == 0
    assert broker.round(fetch("a-3", session=session, epoch=2)).error_code == 70
    assert (broker.sessions.count, broker.sessions.partitions_cached) == (0, 0)
    response = broker.round(fetch("a-0 a-1 a-2 a-3"))
    assert (response.session_id, reported(response)) == (0, "a-0 a-1 a-2 a-3")


def test_a_consumer_that_is_over_the_limit_because_of_others_may_still_change_what_it_reads() -> None:
    broker = Broker(max_partitions=2)
    session = broker.open("a-0 a-1")
    broker.open("f-0 f-1", privileged=True)
    assert broker.round(fetch("a-0", session=session, epoch=1, offset=9)).session_id == session
    assert broker.round(fetch("a-2", session=session, epoch=2, forget="a-1")).session_id == session


@pytest.mark.parametrize(("slots", "eviction_ms", "max_partitions"), [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_negative_limits_are_rejected(slots: int, eviction_ms: int, max_partitions: int) -> None:
    with pytest.raises(ValueError, match="negative limit"):
        FetchSessions(slots, eviction_ms, SeededRandom(0), max_partitions=max_partitions)
