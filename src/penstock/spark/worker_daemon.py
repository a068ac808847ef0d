"""Spark's daemon of Python workers, without tracebacks of what is no failure.

    spark.python.daemon.module = penstock.spark.worker_daemon

A query that is stopped or started again, and a task that needs no more rows, close the pipe to their workers. That such
a worker can write no more is the end that it should have, and Spark's own daemon prints a traceback of it. Whatever
else happens to a worker is reported as ever. Nothing else is imported here: workers are forks of this process. The
workers that plan a query's sources are not among them: for those Spark always starts its own daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark import daemon

_ENDED: Final = 1


def quiet(worker: Callable[..., int]) -> Callable[..., int]:
    """The worker of a connection, which ends with that."""

    def work(*given: Any) -> int:
        try:
            return worker(*given)
        except (BrokenPipeError, ConnectionResetError):
            return _ENDED

    return work


if __name__ == "__main__":
    setattr(daemon, "worker", quiet(daemon.worker))  # noqa: B010 - it is a module's function
    daemon.manager()
