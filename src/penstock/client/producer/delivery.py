"""What `send`, `send_many` and `send_arrow` return: futures over the completions of batches.

A `Delivery` holds its batch and its index there, nothing else. A `BulkDelivery` holds a few spans of batches, however
many records they contain. A record that was sent cannot be taken back: `cancel()` returns False. Callbacks run on the
producer's event loop thread and must not block; there `send` raises BufferFull instead of waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, cast

from penstock.client.producer.producer_batch import Completion, RecordMetadata, wait_for_all
from penstock.records.kernel import Ticket, uncollected


@uncollected
class Delivery(Ticket):
    """The delivery of one record: done when the broker has acknowledged it or it has failed."""

    __slots__ = ()

    def done(self) -> bool:
        """Whether the outcome of the record is known."""
        return self._completion.is_done

    def running(self) -> bool:
        """Whether the outcome of the record is not known yet."""
        return not self._completion.is_done

    def cancel(self) -> bool:
        """False: a record that was sent cannot be withdrawn."""
        return False

    def cancelled(self) -> bool:
        """False: see `cancel`."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The metadata of the stored record; raises its error, or TimeoutError after `timeout` seconds."""
        outcome = self._outcome(timeout)
        if isinstance(outcome, Exception):
            raise outcome.with_traceback(None)  # it is shared: each raise would extend its traceback
        return outcome

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The error of the record, or None; raises TimeoutError after `timeout` seconds."""
        outcome = self._outcome(timeout)
        return outcome if isinstance(outcome, Exception) else None

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(delivery)` when it is done, on the producer's thread; at once if it is."""
        batch = self.batch
        if not batch.callbacks.add(self, callback):
            batch.add_callback(self, callback)

    def to_future(self) -> Future[RecordMetadata]:
        """The same as a `concurrent.futures.Future`."""
        future: Future[RecordMetadata] = Future()
        future.set_running_or_notify_cancel()
        self.add_done_callback(lambda delivery: _resolve(future, delivery._now()))
        return future

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._completion.is_done:
            yield from self._completion.ended().__await__()
        outcome = self._now()
        if isinstance(outcome, Exception):
            raise outcome.with_traceback(None)
        return outcome

    def __repr__(self) -> str:
        where = f"{self._completion.topic}-{self._completion.partition}"
        if not self.done():
            return f"<Delivery to {where}, pending>"
        outcome = self._now()
        if isinstance(outcome, Exception):
            return f"<Delivery to {where}, failed: {outcome}>"
        return f"<Delivery to {outcome.topic}-{outcome.partition}, offset {outcome.offset}>"

    @property
    def _completion(self) -> Completion:
        return cast(Completion, self.batch)

    def _outcome(self, timeout: float | None) -> RecordMetadata | Exception:
        completion = self._completion
        if not completion.is_done and not completion.wait(timeout):
            raise TimeoutError(
                f"the record for {completion.topic}-{completion.partition} was not acknowledged within {timeout} s; "
                "it may still be: the delivery goes on"
            )
        return self._now()

    def _now(self) -> RecordMetadata | Exception:
        return self._completion.outcome_of(self.index)


@dataclass(frozen=True, slots=True)
class Span:
    """`count` records of a batch, from index `first` on; `places` are their indexes among all that were sent."""

    batch: Completion
    first: int
    count: int
    places: Sequence[int]


@dataclass(frozen=True, slots=True)
class Stored:
    """`count` consecutive records of a partition, from `base_offset` on (-1: unknown)."""

    partition: int
    base_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class BulkMetadata:
    """Where many records are stored: `stored` in the order in which they were sent, by partition."""

    topic: str
    count: int
    stored: tuple[Stored, ...]


class BulkDelivery:
    """The delivery of many records: done when each is acknowledged or has failed."""

    __slots__ = ("_spans", "count", "topic")

    def __init__(self, topic: str, spans: Sequence[Span]) -> None:
        self.topic = topic
        self._spans = tuple(spans)
        self.count = sum(span.count for span in spans)

    def __len__(self) -> int:
        return self.count

    def done(self) -> bool:
        return all(span.batch.is_done for span in self._spans)

    def running(self) -> bool:
        return not self.done()

    def cancel(self) -> bool:
        """False: records that were sent cannot be withdrawn."""
        return False

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> BulkMetadata:
        """The metadata of the stored records; raises the error of the first failed record, or TimeoutError."""
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        return self._metadata()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The error of the first failed record, or None if all are stored."""
        if not wait_for_all([span.batch for span in self._spans], timeout):
            raise TimeoutError(f"not all of {self.count} records for {self.topic} were acknowledged within {timeout} s")
        failures = self.failures()
        return failures[0][1] if failures else None

    def failures(self) -> list[tuple[int, Exception]]:
        """The errors of failed records, by their index among those sent."""
        failed: list[tuple[int, Exception]] = []
        for span in self._spans:
            if span.batch.is_done and not _is_stored_whole(span):
                outcomes = (span.batch.outcome_of(span.first + number) for number in range(span.count))
                pairs = zip(span.places, outcomes, strict=True)
                failed += [(place, each) for place, each in pairs if isinstance(each, Exception)]
        return sorted(failed, key=lambda pair: pair[0])

    def add_done_callback(self, callback: Callable[[BulkDelivery], object]) -> None:
        """Call `callback(delivery)` once, when all are done, on the producer's thread; at once if they are."""
        everything = Completion(self.topic, -1)
        everything.when_done(lambda: _ignore(callback(self)))
        if self._spans:
            everything.divide([(n, span.batch, span.first) for n, span in enumerate(self._spans)])
        else:
            everything.acknowledge(-1, -1)

    def to_future(self) -> Future[BulkMetadata]:
        future: Future[BulkMetadata] = Future()
        future.set_running_or_notify_cancel()

        def resolve(delivery: BulkDelivery) -> None:
            _resolve(future, delivery.exception(0) or delivery._metadata())

        self.add_done_callback(resolve)
        return future

    def __await__(self) -> Generator[Any, None, BulkMetadata]:
        for span in self._spans:
            if not span.batch.is_done:
                yield from span.batch.ended().__await__()
        return self.result(0)

    def __repr__(self) -> str:
        return f"<BulkDelivery of {self.count} records to {self.topic}, {'done' if self.done() else 'pending'}>"

    def _metadata(self) -> BulkMetadata:
        stored: list[Stored] = []
        for span in self._spans:
            for part in _stored(span):
                before = stored[-1] if stored else None
                if before and before.partition == part.partition and before.base_offset >= 0 and (
                    before.base_offset + before.count == part.base_offset
                ):  # fmt: skip
                    stored[-1] = replace(before, count=before.count + part.count)
                else:
                    stored.append(part)
        return BulkMetadata(self.topic, self.count, tuple(stored))


def _is_stored_whole(span: Span) -> bool:
    return span.batch.error is None and not span.batch.is_divided


def _stored(span: Span) -> list[Stored]:
    if not span.batch.is_divided:
        base = span.batch.base_offset
        return [Stored(span.batch.partition, base + span.first if base >= 0 else -1, span.count)]
    # Only batches that were too large for the broker come here, so visiting each record is acceptable.
    places = [cast(RecordMetadata, span.batch.outcome_of(span.first + number)) for number in range(span.count)]
    return [Stored(place.partition, place.offset, 1) for place in places]


def _resolve(future: Future[Any], outcome: object) -> None:
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _ignore(_: object) -> None:
    """The return value of callbacks is ignored."""
