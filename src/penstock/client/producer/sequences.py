"""The numbers by which a broker tells a batch that is new from one that it has: producer id, epoch, sequence.

Rule: within (producer id, epoch) the batches of a partition carry sequences without a gap, so that a broker which has
some of them refuses anything that does not follow. A batch that was given numbers keeps them through all retries: the
broker recognises it, and nothing is stored twice. Sequences count records, and go around after 2**31 - 1.

When a gap is certain (a batch with numbers has failed for good, or the broker has forgotten the producer), the
partition starts anew: one epoch higher, from sequence 0. That is done only when none of its batches is on its way any
more, else one that was stored might be sent again under new numbers. A broker compares epochs partition by partition,
so each partition has its own, and a gap in one never disturbs another. After the last epoch a new id is needed.

A broker that does not know the producer takes any sequence for its first one, also if it has just refused the batch
before that: too few replicas were in sync, say, and then enough. So as long as nothing is known to be stored under an
id and epoch, one batch is on its way at a time.

    sent 0-9, 10-19, 20-29; the first is refused for good    -> the others are out of order, and come back
    all answered: epoch 1; what were 10-19 and 20-29 go as 0-9 and 10-19
"""

from __future__ import annotations

from typing import Final, NamedTuple

SEQUENCES: Final = 2**31
MAX_EPOCH: Final = 2**15 - 1
NO_SEQUENCE: Final = -1
_KNOWN_FOR_MS: Final = 3_600_000.0
"""Brokers forget a producer that writes nothing for long: by default a day, but that is a setting."""


class ProducerId(NamedTuple):
    """What InitProducerId gives."""

    id: int
    epoch: int


class Numbers(NamedTuple):
    """What a batch carries."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


UNNUMBERED: Final = Numbers(-1, -1, NO_SEQUENCE)


def advance(sequence: int, count: int) -> int:
    """The sequence `count` records further on: advance(2**31 - 1, 1) is 0."""
    return (sequence + count) % SEQUENCES


class PartitionSequences:
    """The numbers of one partition."""

    __slots__ = ("_known_until_ms", "needs_reset", "next_sequence", "owner")

    def __init__(self) -> None:
        self.owner: ProducerId | None = None
        self.next_sequence = 0
        self.needs_reset = False
        self._known_until_ms = 0.0

    def adopt(self, producer: ProducerId) -> None:
        """Begins under an id that this partition has not used yet, at sequence 0."""
        self.owner = producer
        self.next_sequence = 0
        self.needs_reset = False
        self._known_until_ms = 0.0

    def is_strange(self, now_ms: float) -> bool:
        """Whether the broker may not know the owner."""
        return self.owner is not None and now_ms >= self._known_until_ms

    def stored(self, numbers: Numbers, now_ms: float) -> None:
        """A broker has the batch with these numbers."""
        if self.owner == (numbers.producer_id, numbers.producer_epoch):
            self._known_until_ms = now_ms + _KNOWN_FOR_MS

    def take(self, count: int) -> Numbers:
        """The numbers of the next batch, of `count` records."""
        if self.owner is None:
            raise ValueError("numbers were asked for before there was a producer id")
        numbers = Numbers(self.owner.id, self.owner.epoch, self.next_sequence)
        self.next_sequence = advance(self.next_sequence, count)
        return numbers

    def mark_gap(self) -> None:
        """Numbers that were given out will never be stored; nothing new may go before a reset."""
        self.needs_reset = self.owner is not None

    def reset(self) -> bool:
        """Starts anew in the next epoch; False if there is none left: a new producer id must be adopted."""
        if self.owner is None or self.owner.epoch >= MAX_EPOCH:
            return False
        self.adopt(ProducerId(self.owner.id, self.owner.epoch + 1))
        return True
