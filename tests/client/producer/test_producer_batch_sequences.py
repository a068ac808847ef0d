"""Sequence numbers of batches: without a gap within an epoch, from 0 in the next."""

from __future__ import annotations

import pytest

from penstock.client.producer.producer_batch import (
    MAX_EPOCH,
    SEQUENCES,
    Numbers,
    PartitionSequences,
    ProducerId,
    advance,
)


def test_batches_are_numbered_one_after_the_other() -> None:
    sequences = PartitionSequences()
    sequences.adopt(ProducerId(7, 0))
    assert sequences.take(10) == Numbers(7, 0, 0)
    assert sequences.take(5) == Numbers(7, 0, 10)
    assert sequences.take(1) == Numbers(7, 0, 15)


def test_sequences_go_around_after_the_last() -> None:
    assert advance(SEQUENCES - 1, 1) == 0
    assert advance(SEQUENCES - 2, 5) == 3


def test_a_reset_begins_the_next_epoch_at_zero() -> None:
    sequences = PartitionSequences()
    sequences.adopt(ProducerId(7, 0))
    sequences.take(10)
    sequences.mark_gap()
    assert sequences.reset()
    assert not sequences.needs_reset
    assert sequences.take(1) == Numbers(7, 1, 0)


def test_after_the_last_epoch_a_new_id_is_needed() -> None:
    sequences = PartitionSequences()
    sequences.adopt(ProducerId(7, MAX_EPOCH))
    sequences.mark_gap()
    assert not sequences.reset()
    sequences.adopt(ProducerId(8, 0))
    assert sequences.take(1) == Numbers(8, 0, 0)


def test_a_partition_that_never_had_numbers_has_no_gap() -> None:
    sequences = PartitionSequences()
    sequences.mark_gap()
    assert not sequences.needs_reset
    with pytest.raises(ValueError, match="producer id"):
        sequences.take(1)


def test_the_next_epoch_of_a_transactional_producer_begins_at_zero_and_is_known_to_the_broker() -> None:
    sequences = PartitionSequences()
    sequences.adopt(ProducerId(7, 0))
    sequences.stored(sequences.take(10), now_ms=0.0)
    sequences.move_to(ProducerId(7, 0))
    assert sequences.take(1) == Numbers(7, 0, 10)
    sequences.move_to(ProducerId(7, 1))
    assert sequences.take(1) == Numbers(7, 1, 0)
    assert not sequences.may_be_unknown(1.0)
    sequences.move_to(ProducerId(8, 0))
    assert sequences.may_be_unknown(1.0)


def test_a_gap_ends_with_the_transaction_that_had_it() -> None:
    sequences = PartitionSequences()
    sequences.adopt(ProducerId(7, 0))
    sequences.take(10)
    sequences.mark_gap()
    sequences.move_to(ProducerId(7, 1))
    assert not sequences.needs_reset
