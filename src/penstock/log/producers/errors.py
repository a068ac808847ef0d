"""Why a partition refuses a producer's batch.

Rule: each error carries the values that contradict each other; the edge that speaks the protocol turns it
into a wire code.
"""

from __future__ import annotations

from penstock.log.errors import LogError


class ProducerStateError(LogError):
    """A batch that this producer may not write now."""


class OutOfOrderSequence(ProducerStateError):
    """A gap, a reordering, or a repetition of something older than the last five batches."""

    def __init__(self, producer_id: int, epoch: int, sequence: int, expected: int) -> None:
        super().__init__(f"producer {producer_id} epoch {epoch}: sequence {sequence} where {expected} is due")
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = sequence
        self.expected = expected


class MissingSequence(ProducerStateError):
    """A client's batch with a producer id but without a sequence."""

    def __init__(self, producer_id: int, sequence: int) -> None:
        super().__init__(f"producer {producer_id}: sequence {sequence}")
        self.producer_id = producer_id
        self.sequence = sequence


class InvalidProducerEpoch(ProducerStateError):
    """An epoch below the current one (a fenced producer), or none at all."""

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id}: epoch {epoch}, the current one is {current}")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current


class CoordinatorFenced(ProducerStateError):
    """A marker from a transaction coordinator that has a successor."""

    def __init__(self, producer_id: int, coordinator_epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id}: marker of coordinator {coordinator_epoch} < {current}")
        self.producer_id = producer_id
        self.coordinator_epoch = coordinator_epoch
        self.current = current


class NotInTransaction(ProducerStateError):
    """A batch outside of a transaction from a producer that has one open here."""

    def __init__(self, producer_id: int, transaction_first_offset: int) -> None:
        super().__init__(f"producer {producer_id} has a transaction open since offset {transaction_first_offset}")
        self.producer_id = producer_id
        self.transaction_first_offset = transaction_first_offset


class TooManyProducers(ProducerStateError):
    """The limit is reached and every producer has a transaction open, so none may be forgotten."""

    def __init__(self, producer_id: int, limit: int) -> None:
        super().__init__(f"producer {producer_id}: {limit} producers have a transaction open")
        self.producer_id = producer_id
        self.limit = limit
