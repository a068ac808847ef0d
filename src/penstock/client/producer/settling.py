"""What an answer does to a batch and to its partition.

Rule: `settle` is called once for each batch of a request that was answered or will never be; it changes the accumulator
(the batch waits again, is halved, leaves a gap in its partition's numbers) and returns how the batch ends, if it does.
No I/O: what has to be told to anybody is in the result.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from penstock.client.backoff import backoff_ms
from penstock.client.errors import BatchRejected, PenstockError, error_for
from penstock.client.producer.accumulator import Accumulator
from penstock.client.producer.answers import Answer
from penstock.client.producer.batches import ProducerBatch
from penstock.client.producer.outcomes import Decision, Verdict, decide, decide_unanswered
from penstock.client.producer.splitting import split
from penstock.client.producer.stamps import Stamps
from penstock.runtime.randomness import Random
from penstock.wire.error_codes import ErrorCode

_log = logging.getLogger("penstock.producer")


class Acknowledged(NamedTuple):
    base_offset: int
    stamps: Stamps | int


class Settled(NamedTuple):
    """`end` is how the batch ends, None if it goes on; `refresh` says that its leader may have moved."""

    end: Acknowledged | Exception | None = None
    refresh: bool = False


_ONLY_LATE = Settled()
_TOO_EARLY = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Settlement:
    """Acts on answers; under the accumulator's lock."""

    def __init__(self, accumulator: Accumulator, random: Random) -> None:
        self._accumulator = accumulator
        self._settings = accumulator.settings
        self._random = random

    def settle(self, batch: ProducerBatch, answer: Answer | BaseException, now_ms: float) -> Settled:
        """`answer` is what the broker says of the batch, or why it says nothing."""
        batch.queue.answered(batch)
        self._accumulator.touch(batch.queue)
        if batch.is_done:
            return _ONLY_LATE  # given up meanwhile; its partition waited for this
        decision = self._decide(batch, answer)
        if decision.gap:
            batch.queue.sequences.mark_gap()
        if decision.is_settled:
            batch.is_uncertain = False
        if isinstance(answer, Answer) and decision.verdict is Verdict.ACKNOWLEDGE:
            batch.queue.sequences.stored(batch.numbers, now_ms)
            return Settled(Acknowledged(answer.base_offset, batch.stamps_for(answer.append_time_ms)))
        error = batch.last_error = _error_of(batch, answer)
        if decision.verdict is Verdict.AGAIN:
            # One that only came too early waits for its turn, not for time to pass.
            is_early = isinstance(answer, Answer) and answer.code is _TOO_EARLY and not decision.gap
            self._accumulator.again(batch, now_ms if is_early else now_ms + self.backoff_ms(batch.attempts))
            _log.debug("%s-%d: attempt %d failed: %s", batch.topic, batch.partition, batch.attempts, error)
        elif decision.verdict is Verdict.SPLIT:
            self._accumulator.replace(batch, split(batch))
        else:
            return Settled(error, decision.refresh)
        return Settled(None, decision.refresh)

    def backoff_ms(self, failures: int) -> float:
        """How long to wait after this many failures in a row."""
        settings = self._settings
        return backoff_ms(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms, self._random)

    def _decide(self, batch: ProducerBatch, answer: Answer | BaseException) -> Decision:
        may_retry = batch.attempts <= self._settings.retries
        if isinstance(answer, Answer):
            is_oldest = batch.queue.is_oldest(batch)
            return decide(
                answer.code,
                count=batch.count,
                is_numbered=batch.is_numbered,
                is_oldest=is_oldest,
                may_retry=may_retry,
                is_recognisable=batch.is_recognisable,
            )
        batch.is_uncertain = batch.is_numbered
        retriable = isinstance(answer, PenstockError) and answer.retriable
        return decide_unanswered(is_retriable=retriable, is_numbered=batch.is_numbered, may_retry=may_retry)


def _error_of(batch: ProducerBatch, answer: Answer | BaseException) -> Exception:
    if isinstance(answer, Answer):
        where = f"{batch.topic}-{batch.partition} on broker {batch.node}"
        if answer.record_errors:
            return BatchRejected(answer.code, answer.record_errors, where=where)
        return error_for(answer.code, where=where, detail=answer.message)
    if isinstance(answer, Exception):
        return answer
    return PenstockError(f"the request with {batch.topic}-{batch.partition} was cancelled")
