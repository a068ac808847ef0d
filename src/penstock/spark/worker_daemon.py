"""Spark's daemon of Python workers, without tracebacks of closed pipes.

    spark.python.daemon.module = penstock.spark.worker_daemon

Spark closes the pipe of a worker when a query stops or a task needs no further rows, and its own daemon prints a
traceback for each. Here such a worker ends quietly; every other failure is reported as usual. Nothing else is
imported: workers are forks of this process. Workers that plan a query's sources are not covered: Spark starts its own
daemon for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark import daemon

_ENDED: Final = 1


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """Wraps a worker so that it ends quietly when its pipe is closed."""

    def work(*given: Any) -> int:
        try:
            return worker(*given)
        except (BrokenPipeError, ConnectionResetError):
            return _ENDED

    return work


if __name__ == "__main__":
    setattr(daemon, "worker", quiet(daemon.worker))  # noqa: B010 - mypy rejects assigning to a module's function
    daemon.manager()
