"""The state machine of a transactional producer: every event in every state, and what a transaction consists of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.errors import (
    AbortableTransactionError,
    Advice,
    FatalTransactionError,
    InvalidTransactionState,
    PenstockError,
    ProducerFenced,
    TransactionOutcomeUnknown,
    error_for,
)
from penstock.client.producer.producer_batch import ProducerId
from penstock.client.producer.transaction_state import TRANSITIONS, Event, State, TransactionState
from penstock.client.transactions import PreparedTransaction, Verdict
from penstock.wire.protocol import ErrorCode

REASON = PenstockError("the reason")
CALLS = (Event.INITIALIZE, Event.BEGIN, Event.PREPARE, Event.COMMIT, Event.ABORT)

# The shortest way into each state.
WAYS: dict[State, list[Event]] = {
    State.UNINITIALIZED: [],
    State.INITIALIZING: [Event.INITIALIZE],
    State.READY: [Event.INITIALIZE, Event.INITIALIZED],
}
WAYS[State.IN_TRANSACTION] = [*WAYS[State.READY], Event.BEGIN]
WAYS[State.PREPARED] = [*WAYS[State.IN_TRANSACTION], Event.PREPARE]
WAYS[State.COMMITTING] = [*WAYS[State.IN_TRANSACTION], Event.COMMIT]
WAYS[State.ABORTING] = [*WAYS[State.IN_TRANSACTION], Event.ABORT]
WAYS[State.ABORTABLE_ERROR] = [*WAYS[State.IN_TRANSACTION], Event.FAILED]
WAYS[State.UNKNOWN_OUTCOME] = [*WAYS[State.COMMITTING], Event.DOUBT]
WAYS[State.FATAL_ERROR] = [*WAYS[State.IN_TRANSACTION], Event.FATAL]

# What may be called where, said once more in other words than in the table.
ALLOWED: dict[State, str] = {
    State.UNINITIALIZED: "initialize",
    State.INITIALIZING: "",
    State.READY: "begin",
    State.IN_TRANSACTION: "prepare commit abort",
    State.PREPARED: "initialize prepare commit abort",
    State.COMMITTING: "",
    State.ABORTING: "",
    State.ABORTABLE_ERROR: "abort",
    State.UNKNOWN_OUTCOME: "commit",
    State.FATAL_ERROR: "",
}
REJECTED_AS: dict[State, type[PenstockError]] = {
    State.ABORTABLE_ERROR: AbortableTransactionError,
    State.UNKNOWN_OUTCOME: TransactionOutcomeUnknown,
    State.FATAL_ERROR: FatalTransactionError,
}


def at(state: State, error: PenstockError = REASON) -> TransactionState:
    machine = TransactionState("tx")
    for event in WAYS[state]:
        machine.happened(event, error if event in (Event.FAILED, Event.FATAL) else None)
    assert machine.state is state
    return machine


@pytest.mark.parametrize("event", CALLS)
@pytest.mark.parametrize("state", State)
def test_each_call_is_allowed_or_rejected_with_an_error_that_says_what_to_do(state: State, event: Event) -> None:
    machine = at(state)
    if event.name.lower() in ALLOWED[state].split():
        machine.call(event)
        assert machine.state is TRANSITIONS[state][event]
        return
    with pytest.raises(REJECTED_AS.get(state, InvalidTransactionState)) as raised:
        machine.call(event)
    assert machine.state is state
    assert event.value in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize("event", [event for event in Event if event not in CALLS])
@pytest.mark.parametrize("state", State)
def test_each_event_leads_where_the_table_says_or_is_a_bug(state: State, event: Event) -> None:
    machine = at(state)
    if state is State.UNKNOWN_OUTCOME and event is Event.FAILED:
        event = Event.FATAL  # whatever fails after a commit in doubt stops the producer
    if event in TRANSITIONS[state]:
        machine.happened(event, REASON)
        assert machine.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(InvalidTransactionState):
            machine.happened(event)


def test_every_state_can_be_reached_and_left_except_the_fatal_one() -> None:
    assert set(TRANSITIONS) == set(State)
    reached = {following for events in TRANSITIONS.values() for following in events.values()}
    assert reached | {State.UNINITIALIZED} == set(State)
    for state, events in TRANSITIONS.items():
        assert set(events.values()) != {state} or state is State.FATAL_ERROR


@given(st.lists(st.sampled_from(Event)))
def test_what_may_be_committed_is_never_aborted(events: list[Event]) -> None:
    """From the first commit without an answer on, only its confirmation leads on."""
    machine, is_doubtful = at(State.IN_TRANSACTION), False
    for event in events:
        if event not in TRANSITIONS[machine.state]:
            continue
        assert not (is_doubtful and event is Event.ABORT)
        if machine.state is State.COMMITTING and event is Event.DOUBT:
            is_doubtful = True
        elif event is Event.ENDED:
            is_doubtful = False
        machine.happened(event, REASON)


def test_a_commit_that_did_not_happen_leaves_an_earlier_one_in_doubt() -> None:
    machine = at(State.UNKNOWN_OUTCOME)
    machine.call(Event.COMMIT)
    machine.happened(Event.NOT_ENDED)
    assert machine.state is State.UNKNOWN_OUTCOME
    machine.call(Event.COMMIT)
    machine.happened(Event.ENDED)
    assert (machine.state, machine.is_doubtful) == (State.READY, False)


@pytest.mark.parametrize("state", [State.IN_TRANSACTION, State.PREPARED, State.COMMITTING, State.ABORTABLE_ERROR])
@pytest.mark.parametrize(
    ("verdict", "following"),
    [
        (Verdict.ABORT, State.ABORTABLE_ERROR),
        (Verdict.LOST, State.ABORTABLE_ERROR),
        (Verdict.FENCED, State.FATAL_ERROR),
        (Verdict.STOP, State.FATAL_ERROR),
    ],
)
def test_a_failure_leads_where_its_verdict_says(state: State, verdict: Verdict, following: State) -> None:
    machine = at(state)
    machine.failed(verdict, REASON)
    assert (machine.state, machine.is_lost) == (following, verdict is Verdict.LOST)


@pytest.mark.parametrize("state", [State.READY, State.ABORTING, State.UNKNOWN_OUTCOME])
def test_a_late_failure_of_a_batch_changes_nothing(state: State) -> None:
    machine = at(state)
    machine.failed(Verdict.ABORT, REASON)
    assert machine.state is state


def test_the_first_failure_is_the_one_that_is_reported() -> None:
    machine = at(State.ABORTABLE_ERROR)
    machine.failed(Verdict.ABORT, PenstockError("a consequence"))
    assert "the reason" in str(machine.rejection("send()"))
    machine.failed(Verdict.STOP, PenstockError("worse"))
    assert "worse" in str(machine.rejection("send()"))


def test_a_fenced_producer_and_an_unknown_outcome_are_reported_as_such() -> None:
    fenced = error_for(ErrorCode.PRODUCER_FENCED, where="here")
    machine = at(State.FATAL_ERROR, fenced)
    error = machine.rejection("send()")
    assert isinstance(error, ProducerFenced)
    assert error.advice is Advice.STOP
    assert "not known" not in error.hint
    machine.is_doubtful = True
    assert "committed is not known" in machine.rejection("send()").hint


@pytest.mark.parametrize("state", State)
def test_records_are_taken_in_a_transaction_only_and_sent_until_its_end(state: State) -> None:
    machine = at(state)
    assert machine.may_send is (state is State.IN_TRANSACTION)
    assert machine.may_retry is (state in (State.IN_TRANSACTION, State.PREPARED, State.COMMITTING))
    assert machine.is_open is (state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR))


# --- the content of a transaction


def test_in_version_2_a_partition_needs_no_permission() -> None:
    machine = at(State.IN_TRANSACTION)
    machine.version = 2
    before, may_send, after = machine.is_empty, machine.admits("t", 0), machine.is_empty
    assert (before, may_send, after) == (True, True, False)
    assert not machine.to_add()


def test_in_version_1_a_partition_waits_until_the_coordinator_knows_it() -> None:
    machine = at(State.IN_TRANSACTION)
    assert not machine.admits("t", 0)
    assert not machine.admits("t", 1)
    assert machine.is_empty
    assert machine.to_add() == {("t", 0), ("t", 1)}
    machine.added(frozenset({("t", 0)}))
    assert machine.admits("t", 0)
    assert not machine.admits("t", 1)
    assert machine.to_add() == {("t", 1)}
    machine.happened(Event.FAILED, REASON)
    assert not machine.admits("t", 0)


def test_the_next_transaction_starts_over() -> None:
    machine = at(State.IN_TRANSACTION)
    machine.added(frozenset({("t", 0)}))
    machine.added_group("g")
    machine.has_gap = machine.is_lost = True
    assert machine.has_group("g")
    machine.call(Event.ABORT)
    machine.happened(Event.ENDED)
    machine.call(Event.BEGIN)
    assert machine.is_empty
    assert not machine.has_group("g")
    assert not machine.admits("t", 0)
    assert not machine.has_gap
    assert not machine.is_lost


def test_a_prepared_transaction_names_id_and_epoch() -> None:
    machine = at(State.IN_TRANSACTION)
    machine.producer, machine.version = ProducerId(7, 3), 2
    assert machine.prepared() == PreparedTransaction("tx", 7, 3, 2, is_empty=True)
    machine.admits("t", 0)
    assert machine.prepared() == PreparedTransaction("tx", 7, 3, 2)
