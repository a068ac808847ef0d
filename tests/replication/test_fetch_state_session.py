"""A follower's half of a fetch session."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.replication.fetch_state import FetchRequestData, FetchSessionHandler

A, B, C = (b"a" * 16, 0), (b"a" * 16, 1), (b"c" * 16, 0)


def opened(*keys: tuple[bytes, int]) -> FetchSessionHandler[str]:
    session: FetchSessionHandler[str] = FetchSessionHandler()
    for key in keys:
        session.wants(key, "first")
    session.take()
    session.accepted(7)
    return session


def test_the_first_request_names_everything_and_the_next_nothing() -> None:
    session: FetchSessionHandler[str] = FetchSessionHandler()
    session.wants(A, "a")
    session.wants(B, "b")
    assert session.take() == FetchRequestData(0, 0, ["a", "b"], [])
    session.accepted(7)
    assert session.take() == FetchRequestData(7, 1, [], [])
    assert session.take() == FetchRequestData(7, 2, [], [])


def test_only_what_changed_is_said() -> None:
    session = opened(A, B)
    session.wants(A, "further")
    session.leaves(B)
    session.wants(C, "new")
    assert session.take() == FetchRequestData(7, 1, ["further", "new"], [B])
    assert not session.has_fresh


def test_who_left_and_came_back_between_two_requests_is_not_forgotten() -> None:
    session = opened(A)
    session.leaves(A)
    session.wants(A, "again")
    assert session.take() == FetchRequestData(7, 1, ["again"], [])


def test_who_came_and_left_between_two_requests_was_never_there() -> None:
    session = opened(A)
    session.wants(B, "b")
    session.leaves(B)
    assert session.take() == FetchRequestData(7, 1, [], [])


def test_after_a_reset_everything_is_said_again() -> None:
    session = opened(A, B)
    session.leaves(B)
    session.reset()
    assert session.take() == FetchRequestData(0, 0, ["first"], [])


def test_a_leader_that_keeps_no_session_is_told_everything_each_time() -> None:
    session: FetchSessionHandler[str] = FetchSessionHandler()
    session.wants(A, "a")
    for _ in range(3):
        assert session.take() == FetchRequestData(0, 0, ["a"], [])
        session.accepted(0)


def test_the_epoch_after_the_last_is_one() -> None:
    session = opened(A)
    session._epoch = 2**31 - 1
    assert [session.take().epoch, session.take().epoch] == [2**31 - 1, 1]


STEPS = st.lists(st.tuples(st.sampled_from(["wants", "leaves", "take", "reset"]), st.sampled_from([A, B, C])))


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_what_the_leader_remembers_is_always_what_is_wanted(steps: list[tuple[str, tuple[bytes, int]]]) -> None:
    session: FetchSessionHandler[tuple[tuple[bytes, int], int]] = FetchSessionHandler()
    wanted: dict[tuple[bytes, int], int] = {}
    leader: dict[tuple[bytes, int], int] = {}
    for number, (what, key) in enumerate([*steps, ("take", A)]):
        if what == "wants":
            wanted[key] = number
            session.wants(key, (key, number))
        elif what == "leaves":
            wanted.pop(key, None)
            session.leaves(key)
        elif what == "reset":
            session.reset()
        else:
            said = session.take()
            if said.is_full:
                leader.clear()
                session.accepted(number + 1)
            # As a leader does it: first what is named, then what is forgotten.
            leader.update(said.named)
            for gone in said.forgotten:
                leader.pop(gone)
            assert leader == wanted
            assert session.is_empty == (not wanted)
