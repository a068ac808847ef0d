"""The log cleaner: picks the log to compact next and runs its job on a worker, one at a time.

    tick -> candidates -> begin -> prepare (worker) -> install -> prepare ... -> checkpoint

Logs past max.compaction.lag.ms come first, then those with the highest dirty ratio. A plan is recomputed only when a
segment is sealed, decided or removed, when settings change, or when a lag expires. Errors belong to one log: it is
retried later, with growing delays, and after three failures or damage it is marked uncleanable. Whatever happens to the
log meanwhile wins over the job. The cleaner checkpoint is written last: too low costs work, too high would leave
duplicates forever.

The cleaner needs its own workers: a job takes minutes, and the throttle (bytes read and written per second) sleeps in
the worker's thread. To stop: `close` this, then its workers, then the log manager.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from penstock.log.checkpoints import TopicPartition
from penstock.log.compaction.job import CleanedGroup, Compaction, CompactionResult, LogFacts, Plan, facts_of, plan
from penstock.log.compaction.record_filter import DEFAULT_MAP_BYTES
from penstock.log.errors import (
    CompactionCancelled,
    CompactionOvertaken,
    DamagedLog,
    DirectoryOffline,
    DiskFull,
    LogError,
    TooManyOpenFiles,
    is_partition_error,
    is_process_limit,
)
from penstock.log.log_dirs.log_directory import LogDirectory
from penstock.log.log_dirs.log_manager import LogManager
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import SegmentTable
from penstock.log.settings import NEVER, LogSettings
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT
from penstock.runtime.clock import Clock
from penstock.runtime.threads import Outcome, Workers, WorkersError

logger = logging.getLogger(__name__)

_SLEEP_MS: Final = 100.0
_PLANS_MAX: Final = 1000
_PIECE_BYTES: Final = 1024 * 1024  # read between two checks whether to continue


class Throttle:
    """Limits work to `bytes_per_second` on average. `sleep` takes seconds and blocks the calling thread."""

    def __init__(self, bytes_per_second: float, clock: Clock, sleep: Callable[[float], None]) -> None:
        if not bytes_per_second > 0:
            raise ValueError(f"bytes_per_second is {bytes_per_second}; it must be above 0")
        self._bytes_per_ms = bytes_per_second / 1000
        self._clock = clock
        self._sleep = sleep
        self._paid_at_ms = float("-inf")

    def charge(self, size_bytes: float) -> None:
        """Account for bytes that were read or written."""
        now_ms = self._clock.monotonic_ms()
        self._paid_at_ms = max(self._paid_at_ms, now_ms) + size_bytes / self._bytes_per_ms

    def wait(self, is_stopped: Callable[[], bool]) -> None:
        """Sleep until the rate is kept, or until `is_stopped`."""
        while (left_ms := self._paid_at_ms - self._clock.monotonic_ms()) > 0 and not is_stopped():
            self._sleep(min(left_ms, _SLEEP_MS) / 1000)


# ---------------------------------------------------------------------------------------------------------- candidates


class RetryPolicy(NamedTuple):
    """How often and after how long a failed log is tried again."""

    retry_after_ms: int = 15_000
    retry_after_max_ms: int = 30 * 60_000
    failures_max: int = 3


class _Inputs(NamedTuple):
    """Everything that a plan depends on except time. Tables are immutable and compared by identity."""

    table: SegmentTable
    settings: LogSettings
    first_dirty_offset: int | None
    start_offset: int
    decided_segments: int


@dataclass(slots=True)
class LogToClean:
    """A compacted log and its plan."""

    key: TopicPartition
    directory: LogDirectory
    log: PartitionLog
    generation: int
    decision: Plan | None = None
    inputs: _Inputs | None = None
    planned_ms: int = 0
    replan_ms: int = 0  # when time alone may change the plan
    not_before_ms: int = 0
    setbacks: int = 0
    failures: int = 0
    uncleanable: str | None = None  # why

    @property
    def is_there(self) -> bool:
        """Whether the directory still has this log, online, not truncated since, and compacted."""
        hosted = self.directory.hosted.get(self.key)
        return (
            hosted is not None
            and hosted.log is self.log
            and self.log.failure is None
            and self.log.generation == self.generation
            and self.log.settings.compacts
        )

    def may_run(self, now_ms: int) -> bool:
        due = self.decision is not None and self.decision.is_due
        return due and self.uncleanable is None and now_ms >= self.not_before_ms

    def needs_plan(self, now_ms: int) -> bool:
        return self.decision is None or now_ms >= self.replan_ms or self._inputs() != self.inputs

    def _inputs(self) -> _Inputs:
        log = self.log
        table = log.table
        decided = min(log.last_stable_offset, log.checkpointed_offset)
        count = len(table) + 1 if log.active.base_offset <= decided else bisect_right(table.bases, decided)
        return _Inputs(table, log.settings, self.directory.cleaner_offset(self.key), log.log_start_offset, count)

    def make_plan(self, now_ms: int) -> Plan:
        """Compute the plan. LogError if the log cannot be read."""
        with self.directory.disk():
            try:
                facts = facts_of(self.log)
                first_dirty = self.directory.cleaner_offset(self.key)
                decision = plan(facts, self.log.settings, first_dirty, now_ms)
                self.replan_ms = changes_at_ms(facts, self.log.settings, decision)
            except OSError as error:
                if is_partition_error(error):
                    raise LogError(str(error)) from error
                raise
        # After `facts_of`, which may have completed the table.
        self.inputs, self.decision, self.planned_ms = self._inputs(), decision, now_ms
        return decision

    def overdue_ms(self, now_ms: int) -> int:
        """How long the log is overdue: by the plan, plus the time since it was made."""
        if self.decision is None or self.decision.overdue_ms == 0:
            return 0
        return self.decision.overdue_ms + max(0, now_ms - self.planned_ms)

    def urgency(self, now_ms: int) -> tuple[int, float]:
        return self.overdue_ms(now_ms), 0.0 if self.decision is None else self.decision.dirty_ratio

    def record_failure(self, error: BaseException, now_ms: int, retry_policy: RetryPolicy) -> None:
        """Planning or compacting failed: retry later, or mark the log uncleanable."""
        self.setbacks += 1
        # The exponent is bounded, or the number would grow without limit.
        wait_ms = min(retry_policy.retry_after_ms << min(self.setbacks - 1, 30), retry_policy.retry_after_max_ms)
        self.not_before_ms = now_ms + wait_ms
        if not _is_temporary(error):
            self.failures += 1
        if isinstance(error, DamagedLog) or self.failures >= retry_policy.failures_max:
            self.uncleanable = str(error) or type(error).__name__
            logger.error("log marked uncleanable: folder=%s error=%s", self.log.folder, self.uncleanable)
        else:
            logger.warning("compaction failed: folder=%s retry_in_ms=%d error=%s", self.log.folder, wait_ms, error)

    def record_success(self) -> None:
        """A compaction succeeded: earlier failures no longer count."""
        self.setbacks = self.failures = self.not_before_ms = 0
        self.decision = None


def _is_temporary(error: BaseException) -> bool:
    """Whether the error may go away by itself: a full disk, too many open files."""
    cause = error.__cause__
    return isinstance(error, DiskFull | TooManyOpenFiles) or (isinstance(cause, OSError) and is_process_limit(cause))


def changes_at_ms(facts: LogFacts, settings: LogSettings, decision: Plan) -> int:
    """When the plan changes although the log does not.

    A segment whose newest record has timestamp 5,000, with min.compaction.lag.ms=1000: 6,000.
    """
    at_ms = NEVER
    if decision.segment_count < facts.segments_below(min(facts.last_stable_offset, facts.checkpointed_offset)):
        at_ms = facts.times.newest_ms(decision.segment_count) + settings.min_compaction_lag_ms
    if settings.max_compaction_lag_ms < NEVER and decision.overdue_ms == 0:
        dirty = range(decision.first_dirty_segment, decision.segment_count)
        known = [stamp for stamp in map(facts.times.first_ms, dirty) if stamp > 0]
        if known:
            at_ms = min(at_ms, min(known) + settings.max_compaction_lag_ms + 1)
    return at_ms


class Candidates:
    """The compacted logs of all online directories, and those that are due."""

    def __init__(self, manager: LogManager, retry_policy: RetryPolicy, *, plans_max: int = _PLANS_MAX) -> None:
        self._manager = manager
        self._retry_policy = retry_policy
        self._plans_max = plans_max  # per look, which runs on the event loop
        self._watched: dict[TopicPartition, LogToClean] = {}
        self._queue: list[LogToClean] = []  # the most urgent last
        self.max_dirty_ratio = 0.0
        self.max_overdue_ms = 0

    @property
    def watched(self) -> Mapping[TopicPartition, LogToClean]:
        return self._watched

    def next(self, now_ms: int) -> LogToClean | None:
        """The most urgent log that is due; None if there is none."""
        while self._queue:
            watched = self._queue.pop()
            if not watched.is_there or (watched.needs_plan(now_ms) and not self._planned(watched, now_ms)):
                continue
            if watched.may_run(now_ms):
                return watched
        return None

    def look(self, now_ms: int) -> None:
        """Plan all logs and sort those that are due."""
        before, self._watched = self._watched, {}
        plans_left = self._plans_max
        for key, directory, log in self._compacting():
            watched = before.get(key)
            if watched is None or watched.log is not log or watched.generation != log.generation:
                watched = LogToClean(key, directory, log, log.generation)
            self._watched[key] = watched
            if watched.uncleanable is not None or now_ms < watched.not_before_ms or not watched.needs_plan(now_ms):
                continue
            if plans_left > 0:
                plans_left -= 1
                self._planned(watched, now_ms)
        self._line_up(now_ms)

    def _line_up(self, now_ms: int) -> None:
        most_ratio, most_overdue_ms = 0.0, 0
        due: list[LogToClean] = []
        for watched in self._watched.values():
            decision = watched.decision
            if decision is None:
                continue
            most_ratio = max(most_ratio, decision.dirty_ratio)
            if decision.overdue_ms:
                most_overdue_ms = max(most_overdue_ms, watched.overdue_ms(now_ms))
            if decision.is_due and watched.may_run(now_ms):
                due.append(watched)
        self.max_dirty_ratio, self.max_overdue_ms = most_ratio, most_overdue_ms
        self._queue = sorted(due, key=lambda watched: watched.urgency(now_ms))

    def _compacting(self) -> Iterator[tuple[TopicPartition, LogDirectory, PartitionLog]]:
        for directory in self._manager.directories:
            for key, hosted in list(directory.hosted.items()):
                if directory.failure is not None:
                    break
                if hosted.log.settings.compacts and hosted.log.failure is None and not hosted.is_moving:
                    yield key, directory, hosted.log

    def _planned(self, watched: LogToClean, now_ms: int) -> bool:
        try:
            watched.make_plan(now_ms)
        except DirectoryOffline:
            return False
        except LogError as error:
            watched.decision = None
            watched.record_failure(error, now_ms, self._retry_policy)
            return False
        return True


# --------------------------------------------------------------------------------------------------------- log cleaner


@dataclass(frozen=True, slots=True)
class CleanerMetrics:
    """What the cleaner did since it started. Bytes and records are those of complete compactions."""

    rounds: int = 0
    cancelled: int = 0  # including those that had to start over
    failed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    last_duration_ms: float = 0.0
    max_duration_ms: float = 0.0
    last_map_share: float = 0.0  # of the offset map that the last compaction used
    max_dirty_ratio: float = 0.0  # now, over all compacted logs
    max_overdue_ms: int = 0  # now: how long records have waited beyond max.compaction.lag.ms
    last_run_ms: int | None = None  # the last tick


class _Round:
    """A running compaction."""

    def __init__(
        self,
        watched: LogToClean,
        compaction: Compaction,
        piece_bytes: float,
        throttle: Throttle | None,
        start_ms: float,
    ) -> None:
        self.watched = watched
        self.log = watched.log
        self.compaction = compaction
        self.start_ms = start_ms
        self.is_stopped = False
        self.is_asking = False
        self.answer: Outcome[CleanedGroup | None] | None = None
        self._piece_bytes = piece_bytes
        self._throttle = throttle

    @property
    def is_wanted(self) -> bool:
        """Whether to continue. The worker calls it too, so it only reads a few attributes."""
        return not self.is_stopped and self.watched.is_there

    def prepare(self) -> CleanedGroup | None:
        """On the worker's thread."""
        group = self.compaction.prepare(self._after_piece)
        if group is not None and self._throttle is not None:
            self._throttle.charge(group.row.size)
        return group

    def _after_piece(self) -> bool:
        if self._throttle is not None:
            self._throttle.charge(self._piece_bytes)
            self._throttle.wait(lambda: not self.is_wanted)
        return not self.is_wanted


class LogCleaner:
    """Call `tick` every few seconds on the thread that owns the logs, and `close` it."""

    def __init__(
        self,
        manager: LogManager,
        workers: Workers,
        clock: Clock,
        *,
        map_bytes: int = DEFAULT_MAP_BYTES,
        throttle: Throttle | None = None,
        retry_policy: RetryPolicy | None = None,
        decompressed_limit: int = DEFAULT_DECOMPRESSED_LIMIT,
    ) -> None:
        if map_bytes < 1:
            raise ValueError(f"map_bytes is {map_bytes}; it must be at least 1")
        self._manager = manager
        self._workers = workers
        self._clock = clock
        self.map_bytes = map_bytes
        self.throttle = throttle
        """Both can be replaced; a round that is under way keeps its own."""
        self._retry_policy = RetryPolicy() if retry_policy is None else retry_policy
        self._decompressed_limit = decompressed_limit
        self._candidates = Candidates(manager, self._retry_policy)
        self._round: _Round | None = None
        self._metrics = CleanerMetrics()
        self._closed = False

    # --- state

    @property
    def cleaning(self) -> TopicPartition | None:
        """The partition that is being compacted."""
        return None if self._round is None else self._round.watched.key

    def is_cleaning(self, log: PartitionLog) -> bool:
        """Whether this log is being compacted; `LogManager.retention_tick` then skips it."""
        return self._round is not None and self._round.log is log

    @property
    def metrics(self) -> CleanerMetrics:
        candidates = self._candidates
        return replace(
            self._metrics, max_dirty_ratio=candidates.max_dirty_ratio, max_overdue_ms=candidates.max_overdue_ms
        )

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """Why logs are uncleanable, by partition."""
        watched = self._candidates.watched
        return {key: each.uncleanable for key, each in watched.items() if each.uncleanable is not None}

    @property
    def uncleanable_bytes(self) -> int:
        return sum(each.log.size for each in self._candidates.watched.values() if each.uncleanable is not None)

    # --- control

    def tick(self, now_ms: int) -> bool:
        """Start a compaction if one is due and none is running; whether one is running now."""
        if self._closed:
            return False
        self._metrics = replace(self._metrics, last_run_ms=now_ms)
        self._candidates.look(now_ms)
        if self._round is None:
            self._run(now_ms)
        return self._round is not None

    def cancel(self, log: PartitionLog) -> bool:
        """Stop the compaction of this log soon; False if there is none. Call it before truncating or deleting the log.

        The worker would notice by itself, but may read on for a while first.
        """
        if self._round is None or self._round.log is not log:
            return False
        self._round.is_stopped = True
        return True

    def close(self) -> None:
        """Stop. A running compaction ends within a megabyte; closing the workers waits for that."""
        self._closed = True
        if self._round is not None:
            self._round.is_stopped = True

    # --- rounds

    def _run(self, now_ms: int, *, after_another: bool = False) -> None:
        """Run compactions until one must be waited for or was cancelled, or none is due."""
        while not self._closed:
            watched = self._candidates.next(now_ms)
            if watched is None:
                if not after_another:
                    return
                # A log may be due again immediately, if its keys did not fit the offset map.
                self._candidates.look(now_ms)
                after_another = False
                continue
            started = self._begin(watched, now_ms)
            if started is None:
                continue
            if not self._advance(started):
                return
            after_another = True
            now_ms = self._clock.now_ms()

    def _begin(self, watched: LogToClean, now_ms: int) -> _Round | None:
        decision, log = watched.decision, watched.log
        if decision is None:
            return None
        try:
            with watched.directory.disk():
                compaction = Compaction.begin(
                    log, decision, now_ms, map_bytes=self.map_bytes, decompressed_limit=self._decompressed_limit
                )
        except LogError as error:
            watched.record_failure(error, now_ms, self._retry_policy)
            return None
        piece_bytes = mean_piece_bytes(log.table.sizes[: decision.segment_count])
        self._round = _Round(watched, compaction, piece_bytes, self.throttle, self._clock.monotonic_ms())
        return self._round

    def _advance(self, current: _Round) -> bool:
        """Continue while there are results; whether the compaction is over and another may start.

        Workers may answer immediately, so this is a loop: a large log has more groups than the stack has frames.
        """
        may_continue = False
        while self._round is current:
            if current.answer is None:
                self._ask(current)
            outcome, current.answer = current.answer, None
            if outcome is None:
                return False
            may_continue = self._take(current, outcome)
        return may_continue

    def _ask(self, current: _Round) -> None:
        current.is_asking = True
        try:
            self._workers.run(current.prepare, partial(self._answered, current))
        except WorkersError as error:
            self._end(current)
            self._metrics = replace(self._metrics, cancelled=self._metrics.cancelled + 1)
            logger.warning("compaction not started: folder=%s error=%s", current.log.folder, error)
        finally:
            current.is_asking = False

    def _answered(self, current: _Round, outcome: Outcome[CleanedGroup | None]) -> None:
        current.answer = outcome
        if not current.is_asking and self._advance(current):
            self._run(self._clock.now_ms(), after_another=True)

    def _take(self, current: _Round, outcome: Outcome[CleanedGroup | None]) -> bool:
        """Install what was prepared; whether the compaction is over and another may start."""
        if outcome.error is not None:
            return self._end_badly(current, outcome.error)
        try:
            if not current.is_wanted:
                raise CompactionCancelled(current.log.folder)
            group = outcome.result()
            if group is not None:
                current.compaction.install(current.log, group)
                return False
            result = self._checkpoint(current)
        except (LogError, OSError) as error:
            return self._end_badly(current, error)
        self._end(current)
        self._count(current, result)
        current.watched.record_success()
        return True

    def _checkpoint(self, current: _Round) -> CompactionResult:
        result = current.compaction.result
        if result is None or not current.compaction.is_current(current.log):
            raise CompactionOvertaken(current.log.folder, "the log was truncated")
        current.watched.directory.set_cleaner_offset(current.watched.key, result.first_dirty_offset)
        return result

    def _end(self, current: _Round) -> None:
        self._round = None
        current.compaction.discard()

    def _end_badly(self, current: _Round, error: BaseException) -> bool:
        self._end(current)
        if current.log.failure is not None:
            self._manager.report_failure(*current.watched.key)
        # If the log changed meanwhile, the error means nothing.
        if not current.is_wanted or not current.compaction.is_current(current.log):
            self._metrics = replace(self._metrics, cancelled=self._metrics.cancelled + 1)
            logger.info("compaction cancelled: folder=%s reason=%s", current.log.folder, error)
            return False
        self._metrics = replace(self._metrics, failed=self._metrics.failed + 1)
        current.watched.record_failure(error, self._clock.now_ms(), self._retry_policy)
        return True

    def _count(self, current: _Round, result: CompactionResult) -> None:
        before, stats = self._metrics, result.stats
        duration_ms = self._clock.monotonic_ms() - current.start_ms
        self._metrics = replace(
            before,
            rounds=before.rounds + 1,
            bytes_before=before.bytes_before + stats.bytes_before,
            bytes_after=before.bytes_after + stats.bytes_after,
            records_before=before.records_before + stats.records_before,
            records_after=before.records_after + stats.records_after,
            last_duration_ms=duration_ms,
            max_duration_ms=max(before.max_duration_ms, duration_ms),
            last_map_share=result.map_bytes / self.map_bytes,
        )
        logger.info(
            "log compacted: folder=%s end_offset=%d bytes_before=%d bytes_after=%d segments_before=%d "
            "segments_after=%d duration_ms=%d",
            current.log.folder,
            result.first_dirty_offset,
            stats.bytes_before,
            stats.bytes_after,
            result.segments_before,
            result.segments_after,
            duration_ms,
        )


def mean_piece_bytes(sizes: Sequence[int]) -> float:
    """The average number of bytes read between two checks whether to continue, for segments of these sizes.

    The checks are after each megabyte and at the end of each segment. For 3 MiB and 512 KiB: 896 KiB.
    """
    pieces = sum(-(-size // _PIECE_BYTES) for size in sizes)
    return sum(sizes) / pieces if pieces else 0.0
