"""Periodic tasks: retention, flushes, checkpoints, expiry, compaction.

Each task runs on the event loop at its own interval. What goes through all logs has steps, and each step has a turn of
the loop. An interval that is a function is read before each run, so that a changed setting takes effect. An error in
one task stops neither the others nor its own next run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.broker.request import Services
    from penstock.broker.settings import BrokerSettings
    from penstock.log.compaction.log_cleaner import LogCleaner
    from penstock.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_FLUSH_TICK_MS: Final = 1_000
_REMOVAL_TICK_MS: Final = 1_000
_RETRY_MS: Final = 1_000
_MOVES_MS: Final = 50
_MIN_CHECKPOINT_MS: Final = 100


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]
Interval = int | Callable[[], int]


class BackgroundTasks:
    """Tasks that repeat until closed."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._timers: dict[str, Timer] = {}
        self._closed = False

    def every(self, name: str, interval: Interval, task: Callable[[], object]) -> None:
        """Run `task` after each interval. If it returns an iterator, this is its steps."""

        def schedule() -> None:
            interval_ms = interval if isinstance(interval, int) else interval()
            self._timers[name] = self._call_later(interval_ms / 1000, run)

        def run() -> None:
            advance(None)

        def advance(steps: Iterator[object] | None) -> None:
            if self._closed:
                return
            try:
                if steps is None:
                    begun = task()
                    steps = begun if isinstance(begun, Iterator) else iter(())
                next(steps)
            except StopIteration:
                schedule()
            except Exception:
                logger.exception("background task failed, retrying: task=%s", name)
                schedule()
            else:
                self._timers[name] = self._call_later(0, partial(advance, steps))

        schedule()

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


def add_log_tasks(tasks: BackgroundTasks, services: Services, cleaner: LogCleaner) -> None:
    """The tasks on a broker's logs."""
    logs, now_ms = services.replicas.logs, services.clock.now_ms
    settings = services.settings
    tasks.every(
        "retention", settings.log_retention_check_interval_ms, lambda: apply_retention(services, cleaner.is_cleaning)
    )
    tasks.every("removal", _REMOVAL_TICK_MS, lambda: logs.removal_tick(now_ms()))
    tasks.every("flush", _FLUSH_TICK_MS, lambda: logs.flush_steps(now_ms()))
    tasks.every("background flush", _FLUSH_TICK_MS, lambda: logs.background_flush_tick(now_ms()))
    tasks.every("checkpoint", checkpoint_interval_ms(settings), logs.checkpoint_steps)
    tasks.every("partitions without room", _RETRY_MS, lambda: services.replicas.retry(services.cluster.image))
    tasks.every(
        "moves between data folders", _MOVES_MS, lambda: logs.moves.tick(now_ms()) if logs.moves.moving else None
    )
    tasks.every(
        "producer expiry",
        settings.producer_id_expiration_check_interval_ms,
        lambda: logs.producer_expiry_steps(now_ms()),
    )
    if settings.log_cleaner_enable:
        tasks.every("cleaner", lambda: services.settings.log_cleaner_backoff_ms, lambda: cleaner.tick(now_ms()))


def checkpoint_interval_ms(settings: BrokerSettings) -> int:
    """High watermarks, recovery points and log starts are written together, at the shortest of their intervals."""
    shortest_ms = min(
        settings.replica_high_watermark_checkpoint_interval_ms,
        settings.log_flush_offset_checkpoint_interval_ms,
        settings.log_flush_start_offset_checkpoint_interval_ms,
    )
    return max(_MIN_CHECKPOINT_MS, shortest_ms)


def apply_retention(services: Services, is_cleaning: Callable[[PartitionLog], bool]) -> Iterator[None]:
    """Enforce retention, in steps of some logs."""
    for _ in services.replicas.logs.retention_steps(services.clock.now_ms(), is_cleaning):
        services.sessions.invalidate()  # logs may start later now
        yield
