"""What a leader has just refused of producers that its log does not know.

Noun: `Refusals`, of one partition in one leader epoch: for each such producer the first sequence that was refused.

Rule: a log takes any sequence for the first one of a producer that it does not know, since what it knew of it may be
gone. A producer sends its next batches before the first is answered. If too few replicas are in sync for the first, and
then enough for the second, the second would be stored, the first be out of order for good, and both be sent again under
other numbers: one of them would be there twice. So what was refused is remembered for a while: until it has come again,
what follows it is out of order, and a client that numbers its batches sends them again in order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.log.producers.errors import OutOfOrderSequence
from penstock.log.producers.state import ProducerStates
from penstock.records import Buffer, scan

_REMEMBERED_MS: Final = 60_000
_MOST: Final = 1_000


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    until_ms: int


class Refusals:
    def __init__(self) -> None:
        self._first: dict[int, _Refused] = {}
        self._until_ms = 0  # then all is forgotten

    def __len__(self) -> int:
        return len(self._first)

    def add(self, records: Buffer, producers: ProducerStates, now_ms: int) -> None:
        """These records were refused, for a reason that may pass."""
        for header in scan(records).headers[:1]:
            producer, known = header.producer_id, self._first.get(header.producer_id)
            if producer < 0 or header.base_sequence < 0 or producers.get(producer) is not None:
                continue
            if known is not None and known.epoch == header.producer_epoch and known.sequence <= header.base_sequence:
                continue
            self._make_room(now_ms)
            self._until_ms = now_ms + _REMEMBERED_MS
            self._first[producer] = _Refused(header.producer_epoch, header.base_sequence, self._until_ms)

    def check(self, records: Buffer, producers: ProducerStates, now_ms: int) -> None:
        """OutOfOrderSequence for what follows something that was refused. What is not, and is stored, is forgotten."""
        if now_ms >= self._until_ms:
            self._first.clear()  # nobody looks any more, until something else is refused
            return
        for header in scan(records).headers[:1]:
            refused = self._first.get(header.producer_id)
            if refused is None:
                return
            is_over = now_ms >= refused.until_ms or producers.get(header.producer_id) is not None
            if not is_over and header.producer_epoch == refused.epoch and header.base_sequence > refused.sequence:
                raise OutOfOrderSequence(
                    header.producer_id, header.producer_epoch, header.base_sequence, refused.sequence
                )
            del self._first[header.producer_id]

    def _make_room(self, now_ms: int) -> None:
        if len(self._first) < _MOST:
            return
        self._first = {producer: one for producer, one in self._first.items() if now_ms < one.until_ms}
        while len(self._first) >= _MOST:
            del self._first[next(iter(self._first))]
