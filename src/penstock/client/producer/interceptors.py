"""Producer interceptors: one method for each stage of a record's path.

    enqueued      a record was added to a batch                       (user's thread)
    batched       a batch was closed: full, or linger_ms has passed   (user's or producer's thread)
    sent          a batch was passed to a connection; again on retry  (producer's thread, as all that follow)
    acknowledged  the broker has stored it
    failed        it will not be retried

Interceptors only observe: what they raise is logged and changes nothing. They see batches; only overriding `enqueued`
costs a Python call per record.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

_log = logging.getLogger("penstock.producer")

Headers = Sequence[tuple[str, bytes | None]]


class EnqueuedRecord(NamedTuple):
    """A record as it was put into its batch, serialized."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class BatchInfo(NamedTuple):
    """A batch. `attempt` counts from 1 when it is sent; `node` is -1 before that."""

    topic: str
    partition: int
    record_count: int
    size_bytes: int
    age_ms: float
    attempt: int
    node: int


class ProducerInterceptor:
    """Override the stages that you want to observe."""

    def enqueued(self, record: EnqueuedRecord) -> None:
        """A record was put into a batch."""

    def batched(self, batch: BatchInfo) -> None:
        """A batch was closed; it accepts no more records."""

    def sent(self, batch: BatchInfo) -> None:
        """A batch was passed to the connection to its leader."""

    def acknowledged(self, batch: BatchInfo, base_offset: int) -> None:
        """The batch is stored, its first record at `base_offset` (-1: unknown)."""

    def failed(self, batch: BatchInfo, error: Exception) -> None:
        """The batch will not be retried; its deliveries raise `error`."""


class Interceptors:
    """All interceptors of a producer, called one after the other."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor] = ()) -> None:
        self._all = tuple(interceptors)
        self._per_record = tuple(
            each for each in self._all if getattr(type(each), "enqueued", None) is not ProducerInterceptor.enqueued
        )
        self.sees_batches = bool(self._all)
        self.sees_records = bool(self._per_record)

    def enqueued(self, record: EnqueuedRecord) -> None:
        for each in self._per_record:
            try:
                each.enqueued(record)
            except Exception:  # noqa: BLE001 - an interceptor only observes
                _log_exception(each, "enqueued")

    def batched(self, batch: BatchInfo) -> None:
        for each in self._all:
            try:
                each.batched(batch)
            except Exception:  # noqa: BLE001 - an interceptor only observes
                _log_exception(each, "batched")

    def sent(self, batch: BatchInfo) -> None:
        for each in self._all:
            try:
                each.sent(batch)
            except Exception:  # noqa: BLE001 - an interceptor only observes
                _log_exception(each, "sent")

    def acknowledged(self, batch: BatchInfo, base_offset: int) -> None:
        for each in self._all:
            try:
                each.acknowledged(batch, base_offset)
            except Exception:  # noqa: BLE001 - an interceptor only observes
                _log_exception(each, "acknowledged")

    def failed(self, batch: BatchInfo, error: Exception) -> None:
        for each in self._all:
            try:
                each.failed(batch, error)
            except Exception:  # noqa: BLE001 - an interceptor only observes
                _log_exception(each, "failed")


def _log_exception(interceptor: object, stage: str) -> None:
    _log.exception("interceptor failed: interceptor=%s method=%s", type(interceptor).__name__, stage)
