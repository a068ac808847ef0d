"""An operator's own retention policy: `log.retention.policy.class=module:name`.

The name is a class, or a function, that is called with a `PartitionRetention` and returns an object with the method
`expired(segments, log, now_ms)`: how many of the oldest segments may go. It is imported when settings are read, so a
wrong name stops the start. It runs inside the broker, so it is taken from the settings file and the command line only.

A policy is not trusted with the data. If it raises or returns something else than a number, nothing expires and the
broker's log says why. It runs on the event loop; one that takes longer than 50 ms is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from penstock.config_def import InvalidValue, shown
from penstock.log.retention import LogView, PartitionRetention, PolicyFactory, RetentionPolicy, SegmentInfo
from penstock.plugin import UnusableName, load_callable

logger = logging.getLogger(__name__)

_SLOW_S: Final = 0.05


def load_retention_class(text: str | None) -> PolicyFactory | None:
    """The factory of policies that a setting names; None if it names none. InvalidValue."""
    if text is None:
        return None
    try:
        factory = load_callable(text)
    except UnusableName as error:
        raise InvalidValue(str(error)) from error
    if isinstance(factory, type) and not callable(getattr(factory, "expired", None)):
        raise InvalidValue(f"class {shown(text)} has no method expired(segments, log, now_ms)")
    return GuardedPolicies(text, factory)


class GuardedPolicies:
    """Makes the operator's policies, each behind a guard."""

    def __init__(
        self,
        name: str,
        make: Callable[[PartitionRetention], RetentionPolicy],
        seconds: Callable[[], float] = perf_counter,
    ) -> None:
        self.name = name
        self._make = make
        self._seconds = seconds

    def __call__(self, partition: PartitionRetention) -> RetentionPolicy:
        return _Guarded(self, partition)

    def ask(self, partition: PartitionRetention, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
        """The answer of the policy; 0 if it fails."""
        where = f"{partition.topic}-{partition.partition}"
        begin_s = self._seconds()
        try:
            count: object = self._make(partition).expired(segments, log, now_ms)
        except Exception:
            logger.exception("retention policy failed, nothing is deleted: policy=%s partition=%s", self.name, where)
            return 0
        took_s = self._seconds() - begin_s
        if took_s > _SLOW_S:
            logger.warning(
                "retention policy is slow and delays requests: policy=%s partition=%s ms=%.0f",
                self.name, where, took_s * 1000,
            )  # fmt: skip
        if not isinstance(count, int) or isinstance(count, bool):
            logger.error(
                "retention policy returned no number, nothing is deleted: policy=%s partition=%s returned=%r",
                self.name, where, count,
            )  # fmt: skip
            return 0
        return count


class _Guarded:
    def __init__(self, policies: GuardedPolicies, partition: PartitionRetention) -> None:
        self._policies = policies
        self._partition = partition

    def expired(self, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
        return self._policies.ask(self._partition, segments, log, now_ms)
