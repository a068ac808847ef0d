"""What tasks tell the driver about their writes, and what the driver makes of it.

Noun: a task's receipt, and the sum of a batch's receipts.

Rule: a write is named by its query and its batch (`BatchKey`), which are the same however often Spark runs the batch
again, and never by the task attempt, which is not. A task promises in its receipt that everything it was given is
acknowledged; the driver's commit is the one moment at which a batch counts as a whole. Today records are visible when
they are acknowledged, so commit has only to see that no receipt is missing; a transactional sink ends its transactions
there, under the same key, and can tell from the key that a batch has been committed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from penstock.client.errors import PenstockError


class BatchKey(NamedTuple):
    """A query's batch; of a batch write, which has neither, both are None."""

    query_id: str | None
    batch_id: int | None

    def __str__(self) -> str:
        return "the write" if self.query_id is None else f"batch {self.batch_id} of query {self.query_id}"


class StoredRange(NamedTuple):
    """Offsets `start` to `end` (exclusive) of a partition hold records of this write, perhaps among others'."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class TaskReceipt(WriterCommitMessage):
    """One task's share: all of its records are acknowledged."""

    key: BatchKey
    task: int
    attempt: int
    records: int
    stored: tuple[StoredRange, ...]


@dataclass(frozen=True)
class BatchReceipt:
    """A whole batch."""

    key: BatchKey
    records: int
    stored: tuple[StoredRange, ...]


class IncompleteWrite(PenstockError):
    """The driver was asked to commit what not all tasks have written."""


def joined(messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> BatchReceipt:
    """The receipt of a batch. Raises IncompleteWrite when one is missing or is of another batch."""
    receipts = [message for message in messages if isinstance(message, TaskReceipt)]
    missing = len(messages) - len(receipts)
    keys = {receipt.key for receipt in receipts}
    key = next(iter(keys)) if keys else BatchKey(None, batch_id)
    if missing:
        raise IncompleteWrite(f"{missing} of {len(messages)} tasks have not said that their records are stored")
    if len(keys) > 1:
        raise IncompleteWrite(f"tasks have written for different batches: {', '.join(sorted(map(str, keys)))}")
    if batch_id is not None and key.batch_id not in (None, batch_id):
        raise IncompleteWrite(f"batch {batch_id} is to be committed, but tasks have written {key}")
    ranges = merged(stored for receipt in receipts for stored in receipt.stored)
    return BatchReceipt(key, sum(receipt.records for receipt in receipts), ranges)


def left_behind(messages: Sequence[WriterCommitMessage | None]) -> tuple[StoredRange, ...]:
    """What an aborted batch has left in the log, as far as tasks could still tell."""
    receipts = [message for message in messages if isinstance(message, TaskReceipt)]
    return merged(stored for receipt in receipts for stored in receipt.stored)


def merged(ranges: Iterable[StoredRange]) -> tuple[StoredRange, ...]:
    """One range a partition: from the first offset to past the last."""
    found: dict[tuple[str, int], StoredRange] = {}
    for each in ranges:
        place = (each.topic, each.partition)
        known = found.get(place, each)
        found[place] = StoredRange(*place, min(known.start, each.start), max(known.end, each.end))
    return tuple(found[place] for place in sorted(found))
