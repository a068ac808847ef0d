"""A load that does not end: what is new, again and again, until it is told to stop.

Rule: every round is an ordinary load, so it can be stopped, killed and started anywhere. What may pass, a broker that
is away or another load of the same table, is told and waited for; what will not pass ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from penstock.client.errors import PenstockError
from penstock.spark.errors import ReadStalled
from penstock.spark.tables.loading import Loader
from penstock.spark.tables.reports import LoadReport

_LONGEST_WAIT_S: Final = 60.0


def follow(
    loader: Loader,
    stop: threading.Event,
    *,
    interval_s: float = 10.0,
    after_round: Callable[[LoadReport], None] | None = None,
    told: Callable[[PenstockError, float], None] | None = None,
) -> None:
    """Load until `stop` is set; it is looked at between commits."""
    failures = 0
    while not stop.is_set():
        try:
            report = loader.load_new(stop=stop)
            failures = 0
            if after_round is not None and report.commits:
                after_round(report)
            stop.wait(interval_s)
        except PenstockError as error:
            # A task that waited for a broker in vain has waited enough, but the next round may find it there.
            if not error.retriable and not isinstance(error, ReadStalled):
                raise
            wait_s = min(_LONGEST_WAIT_S, 2.0**failures)
            failures += 1
            if told is not None:
                told(error, wait_s)
            stop.wait(wait_s)
