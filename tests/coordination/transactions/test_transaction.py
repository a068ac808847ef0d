"""States, transitions and records of a transactional id."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordination.errors import BadTransactionRecord, ImpossibleTransition
from penstock.coordination.transactions.transaction import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TRANSITIONS,
    Transaction,
    TransactionRecord,
    TransactionState,
    add_partitions,
    begin_producer,
    complete,
    decide,
    decode_record,
    encode_record,
    keep_prepared,
    rotate_producer,
)

ONGOING = Transaction(
    producer_id=7,
    epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({("views", 0), ("views", 2), ("clicks", 1)}),
    start_ms=1_000,
    update_ms=1_200,
    version=2,
)


def test_states_have_kafkas_names() -> None:
    assert [state.label for state in TransactionState] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    ]  # fmt: skip


def test_a_transaction_of_version_2_ends_in_the_next_epoch() -> None:
    decided = decide(ONGOING, 2_000, commit=True, version=2, bump=True)
    assert (decided.state, decided.epoch, decided.partitions) == (
        TransactionState.PREPARE_COMMIT,
        4,
        ONGOING.partitions,
    )
    assert decided.successor == (7, 4)
    completed = complete(decided, 2_100)
    assert (completed.state, completed.epoch, completed.partitions) == (
        TransactionState.COMPLETE_COMMIT,
        4,
        frozenset(),
    )


def test_a_transaction_of_version_1_ends_in_its_own_epoch() -> None:
    decided = decide(ONGOING, 2_000, commit=False, version=1, bump=False)
    assert (decided.state, decided.epoch) == (TransactionState.PREPARE_ABORT, 3)


def test_the_last_epoch_ends_one_above_it_and_continues_under_another_id() -> None:
    """KAFKA-18660: the epoch must not overflow, and the marker must still be newer than the data."""
    last = Transaction(producer_id=7, epoch=LAST_EPOCH, timeout_ms=1, state=TransactionState.ONGOING, start_ms=5)
    decided = decide(last, 10, commit=True, version=2, bump=True, next_producer_id=8)
    assert (decided.producer_id, decided.epoch, decided.successor) == (7, 2**15 - 1, (8, 0))
    completed = complete(decided, 11)
    assert (completed.producer_id, completed.epoch, completed.previous_producer_id) == (8, 0, 7)
    assert completed.next_producer_id == NO_PRODUCER_ID


def test_a_producer_that_starts_gets_the_next_epoch_or_a_new_id() -> None:
    new = Transaction(producer_id=7, timeout_ms=1)
    assert begin_producer(new, 5, 10).epoch == 0
    assert begin_producer(begin_producer(new, 5, 10), 6, 11).epoch == 1
    rotated = rotate_producer(Transaction(producer_id=7, epoch=LAST_EPOCH, timeout_ms=1), 9, 5, 10)
    assert (rotated.producer_id, rotated.epoch, rotated.previous_producer_id) == (9, 0, 7)


def test_a_prepared_transaction_is_ended_by_the_producer_that_keeps_it() -> None:
    kept = keep_prepared(ONGOING, 60_000, 2_000)
    assert (kept.epoch, kept.next_epoch, kept.ending_epoch) == (3, 4, 4)
    assert (kept.partitions, kept.start_ms) == (ONGOING.partitions, ONGOING.start_ms)
    decided = decide(kept, 2_100, commit=True, version=2, bump=True)
    # Above the epoch of the data (3) and of its new owner (4).
    assert (decided.epoch, decided.next_epoch, decided.successor) == (5, NO_EPOCH, (7, 5))


def test_partitions_of_the_last_transaction_do_not_join_the_next() -> None:
    completed = complete(decide(ONGOING, 2_000, commit=True, version=2, bump=True), 2_100)
    begun = add_partitions(completed, [("other", 0)], 2, 3_000)
    assert (begun.partitions, begun.start_ms, begun.state) == (
        frozenset({("other", 0)}),
        3_000,
        TransactionState.ONGOING,
    )
    grown = add_partitions(begun, [("other", 1)], 2, 4_000)
    assert (grown.partitions, grown.start_ms) == (frozenset({("other", 0), ("other", 1)}), 3_000)


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_a_decision_cannot_be_changed(state: TransactionState) -> None:
    decided = Transaction(producer_id=7, epoch=3, timeout_ms=1, state=state)
    with pytest.raises(ImpossibleTransition, match="cannot go from"):
        add_partitions(decided, [("views", 0)], 2, 5)
    with pytest.raises(ImpossibleTransition, match="cannot go from"):
        begin_producer(decided, 1, 5)
    with pytest.raises(ImpossibleTransition, match="cannot go from"):
        decide(decided, 5, commit=True, version=1, bump=False)


stored = st.builds(
    Transaction,
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(-1, 2**15 - 1),
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from(sorted(TRANSITIONS)),
    partitions=st.frozensets(st.tuples(st.text(max_size=20), st.integers(0, 2**31 - 1)), max_size=5),
    start_ms=st.integers(-1, 2**63 - 1),
    update_ms=st.integers(-1, 2**63 - 1),
    version=st.integers(0, 2),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    next_epoch=st.integers(-1, 2**15 - 1),
)


@given(st.text(max_size=30), stored)
def test_records_are_read_as_they_were_written(transactional_id: str, transaction: Transaction) -> None:
    if transaction.state is TransactionState.EMPTY:
        transaction = (
            begin_producer(transaction, transaction.timeout_ms, 5) if transaction.epoch < LAST_EPOCH else ONGOING
        )
    record = TransactionRecord(transactional_id, transaction)
    assert decode_record(*encode_record(record)) == record


def test_a_forgotten_id_is_a_tombstone() -> None:
    key, value = encode_record(TransactionRecord("t", None))
    assert value is None
    assert decode_record(key, value) == TransactionRecord("t", None)


def test_bytes_are_kafkas() -> None:
    """Key version 0; value version 1 with producer id, epoch, timeout, status, partitions, two times and tags."""
    key, value = encode_record(TransactionRecord("t", ONGOING))
    assert key == b"\x00\x00" + b"\x00\x01t"
    assert value is not None
    assert struct.unpack_from(">hqhib", value) == (1, 7, 3, 60_000, 1)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"", "no key"),
        (b"\x00", None, "too short"),
        (b"\x00\x00\x00\x09t", None, "TransactionLogKey"),
        (b"\x00\x00\x00\x01t", b"\x00\x01\x00", "TransactionLogValue"),
        (b"\x00\x00\x00\x01t", b"\x00\x00" + struct.pack(">qhibiqq", 1, 0, 1, 99, 0, 0, 0), "99 is not a state"),
        (b"\x00\x00\x00\x01t", b"\x00\x00" + struct.pack(">qhibiqq", 1, 0, 1, 7, 0, 0, 0), "never stored"),
    ],
)
def test_damaged_records_are_rejected(key: bytes | None, value: bytes | None, reason: str) -> None:
    with pytest.raises(BadTransactionRecord, match=reason):
        decode_record(key, value)


def test_records_of_unknown_versions_are_skipped() -> None:
    assert decode_record(b"\x00\x09abc", b"\x00\x01") is None
    assert decode_record(b"\x00\x00\x00\x01t", b"\x00\x09abc") is None
