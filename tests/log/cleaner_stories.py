"""Shared by the tests of the log cleaner: a broker's compacted logs, its cleaner, and a manual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tests.log.compaction_stories import NOW, SMALL, put
from tests.log.directory_stories import TOPIC_ID, open_manager

from penstock.log.compaction.log_cleaner import LogCleaner, RetryPolicy, Throttle
from penstock.log.compaction.record_filter import DEFAULT_MAP_BYTES
from penstock.log.log_dirs.log_manager import LogManager
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.runtime.clock import ManualClock
from penstock.runtime.files import Files
from penstock.runtime.threads import InlineWorkers, ManualWorkers, Outcome, Workers
from penstock.testing.simulated_files import SimulatedFiles

RETRY_POLICY = RetryPolicy(retry_after_ms=1000, retry_after_max_ms=4000, failures_max=3)
ONE, TWO = "/one", "/two"

T = TypeVar("T")


@dataclass
class Broker:
    """A manager and its cleaner, at a time of their own."""

    files: Files
    manager: LogManager
    cleaner: LogCleaner
    clock: ManualClock

    def tick(self, after_ms: int = 0) -> bool:
        self.clock.advance(after_ms)
        return self.cleaner.tick(self.clock.now_ms())

    def create(self, topic: str, settings: LogSettings = SMALL) -> PartitionLog:
        return self.manager.create(topic, 0, TOPIC_ID, settings, self.clock.now_ms())

    def filled(self, topic: str, settings: LogSettings = SMALL, *, rounds: int = 6) -> PartitionLog:
        """A log with four keys, each written `rounds` times, all but the active segment ready to be cleaned."""
        log = self.create(topic, settings)
        write(log, rounds)
        self.settle(log)
        return log

    def settle(self, log: PartitionLog) -> None:
        """Roll, and let everything be replicated, durable and checkpointed, as it is from time to time."""
        if log.active.size:
            log.roll(log.log_end_offset, self.clock.now_ms())
        log.flush()
        log.advance_high_watermark(log.log_end_offset)
        self.manager.checkpoint_tick()

    def cleaned_to(self, topic: str) -> int | None:
        """What the checkpoint says."""
        return self.manager.directory_of(topic, 0).cleaner_offset((topic, 0))


def broker_of(
    files: Files | None = None,
    workers: Workers | None = None,
    *,
    paths: tuple[str, ...] = (ONE,),
    settings: LogSettings = SMALL,
    map_bytes: int = DEFAULT_MAP_BYTES,
    bytes_per_second: float | None = None,
) -> Broker:
    """With a limit, sleeping lets the clock continue."""
    files = SimulatedFiles() if files is None else files
    clock = ManualClock(NOW)
    manager = open_manager(files, paths, settings=settings)
    throttle = None
    if bytes_per_second is not None:
        throttle = Throttle(bytes_per_second, clock, lambda seconds: clock.advance(round(seconds * 1000)))
    cleaner = LogCleaner(
        manager,
        InlineWorkers() if workers is None else workers,
        clock,
        map_bytes=map_bytes,
        throttle=throttle,
        retry_policy=RETRY_POLICY,
    )
    return Broker(files, manager, cleaner, clock)


def slow_broker(files: Files | None = None, *, paths: tuple[str, ...] = (ONE,)) -> tuple[Broker, ManualWorkers]:
    """A cleaner with manual workers, for step-by-step compactions."""
    workers = ManualWorkers()
    return broker_of(files, workers, paths=paths), workers


class LateAnswers:
    """Workers that run the work immediately and answer on request, for changes after the work."""

    def __init__(self) -> None:
        self._answers: deque[Callable[[], None]] = deque()

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        InlineWorkers().run(work, lambda outcome: self._answers.append(partial(done, outcome)))

    def answer(self) -> None:
        self._answers.popleft()()

    def close(self) -> None:
        while self._answers:
            self.answer()


def write(log: PartitionLog, rounds: int, *, first: int = 0, at_ms: int = NOW) -> None:
    """The same four keys in every round, a batch each."""
    for number in range(first, first + rounds):
        for key in range(4):
            put(log, (b"key-%d" % key, b"%d of key %d" % (number, key) + b"." * 30), at_ms=at_ms + number)


def newest(rounds: int) -> dict[bytes, bytes]:
    """What a reader of the log has after this many rounds of `write`."""
    return {b"key-%d" % key: b"%d of key %d" % (rounds - 1, key) + b"." * 30 for key in range(4)}
