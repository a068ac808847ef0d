"""Which log is to be compacted next.

Noun: a watched log, one that compacts, with what is remembered of it from tick to tick: its plan, and what went wrong.

Theory: a plan changes when a segment is sealed, decided or removed, when settings do, and at moments that the plan
itself tells (a lag is over). Appends change none of that. So a log is looked at by comparing a few numbers, and is
planned anew, which may open files, only when one of them is another.

Rule: those that waited too long come first, then those with the most to gain. Trouble with a log is its own: it waits,
longer each time, and after too much of it, or damage, is left alone as uncleanable until it is cut or made anew.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.log.checkpoints import TopicPartition
from penstock.log.compaction.plan import LogFacts, Plan, plan
from penstock.log.compaction.rounds import facts_of
from penstock.log.errors import DamagedLog, DiskFull, LogError, TooManyOpenFiles, is_process_limit
from penstock.log.folders.directory import LogDirectory
from penstock.log.folders.errors import DirectoryOffline, is_partitions_own
from penstock.log.folders.manager import LogManager
from penstock.log.partition_log import PartitionLog
from penstock.log.segment_table import SegmentTable
from penstock.log.settings import NEVER, LogSettings

logger = logging.getLogger(__name__)

_PLANS_MAX: Final = 1000


class Patience(NamedTuple):
    """How often and after how long a log that made trouble is tried again."""

    retry_after_ms: int = 15_000
    retry_after_max_ms: int = 30 * 60_000
    failures_max: int = 3


class _Inputs(NamedTuple):
    """All that a plan depends on but time. Tables are compared by identity: they do not change."""

    table: SegmentTable
    settings: LogSettings
    first_dirty_offset: int | None
    start_offset: int
    decided_segments: int


@dataclass(slots=True)
class Watched:
    """A log that compacts."""

    key: TopicPartition
    directory: LogDirectory
    log: PartitionLog
    generation: int
    decision: Plan | None = None
    inputs: _Inputs | None = None
    planned_ms: int = 0
    replan_ms: int = 0  # from when on time alone may have changed the plan
    not_before_ms: int = 0
    setbacks: int = 0
    failures: int = 0
    uncleanable: str | None = None  # why

    @property
    def is_there(self) -> bool:
        """Whether it still is what its folder holds under this name, all of it, and online."""
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
        """See anew what there is to do. LogError if the log cannot be read for it."""
        with self.directory.disk():
            try:
                facts = facts_of(self.log)
                first_dirty = self.directory.cleaner_offset(self.key)
                decision = plan(facts, self.log.settings, first_dirty, now_ms)
                self.replan_ms = changes_at_ms(facts, self.log.settings, decision)
            except OSError as error:
                if is_partitions_own(error):
                    raise LogError(str(error)) from error
                raise
        # After the facts, which may have completed the table.
        self.inputs, self.decision, self.planned_ms = self._inputs(), decision, now_ms
        return decision

    def overdue_ms(self, now_ms: int) -> int:
        """As in its plan, which may be an old one: what was overdue then is more so now."""
        if self.decision is None or self.decision.overdue_ms == 0:
            return 0
        return self.decision.overdue_ms + max(0, now_ms - self.planned_ms)

    def urgency(self, now_ms: int) -> tuple[int, float]:
        return self.overdue_ms(now_ms), 0.0 if self.decision is None else self.decision.dirty_ratio

    def blame(self, error: BaseException, now_ms: int, patience: Patience) -> None:
        """It could not be planned or compacted: later, or never again."""
        self.setbacks += 1
        # A bound on the exponent: the number would outgrow any use of it.
        wait_ms = min(patience.retry_after_ms << min(self.setbacks - 1, 30), patience.retry_after_max_ms)
        self.not_before_ms = now_ms + wait_ms
        if not _is_passing(error):
            self.failures += 1
        if isinstance(error, DamagedLog) or self.failures >= patience.failures_max:
            self.uncleanable = str(error) or type(error).__name__
            logger.error("%s is not compacted any more: %s", self.log.folder, self.uncleanable)
        else:
            logger.warning("%s: compaction is tried again in %d ms: %s", self.log.folder, wait_ms, error)

    def praise(self) -> None:
        """A round came to its end: what went wrong before does not count any more."""
        self.setbacks = self.failures = self.not_before_ms = 0
        self.decision = None


def _is_passing(error: BaseException) -> bool:
    """Whether it says nothing of the log: somebody may make room on the disk, or close files."""
    cause = error.__cause__
    return isinstance(error, DiskFull | TooManyOpenFiles) or (isinstance(cause, OSError) and is_process_limit(cause))


def changes_at_ms(facts: LogFacts, settings: LogSettings, decision: Plan) -> int:
    """From when on there would be another plan, though nothing happens to the log.

    A segment whose newest record is of 5,000, with min.compaction.lag.ms=1000 and nothing else in the way: 6,000.
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
    """The logs that compact, of all folders that are online."""

    def __init__(self, manager: LogManager, patience: Patience, *, plans_max: int = _PLANS_MAX) -> None:
        self._manager = manager
        self._patience = patience
        self._plans_max = plans_max  # at once: the event loop waits for it
        self._watched: dict[TopicPartition, Watched] = {}
        self._queue: list[Watched] = []  # the best one last
        self.max_dirty_ratio = 0.0
        self.max_overdue_ms = 0

    @property
    def watched(self) -> Mapping[TopicPartition, Watched]:
        return self._watched

    def next(self, now_ms: int) -> Watched | None:
        """The most urgent of those that the last look found due, if it still is; None if there are no more."""
        while self._queue:
            watched = self._queue.pop()
            if not watched.is_there or (watched.needs_plan(now_ms) and not self._planned(watched, now_ms)):
                continue
            if watched.may_run(now_ms):
                return watched
        return None

    def look(self, now_ms: int) -> None:
        """Go over all logs, and put those that are due in order."""
        before, self._watched = self._watched, {}
        plans_left = self._plans_max
        for key, directory, log in self._compacting():
            watched = before.get(key)
            if watched is None or watched.log is not log or watched.generation != log.generation:
                watched = Watched(key, directory, log, log.generation)
            self._watched[key] = watched
            if watched.uncleanable is not None or now_ms < watched.not_before_ms or not watched.needs_plan(now_ms):
                continue
            if plans_left > 0:
                plans_left -= 1
                self._planned(watched, now_ms)
        self._line_up(now_ms)

    def _line_up(self, now_ms: int) -> None:
        most_ratio, most_overdue_ms = 0.0, 0
        due: list[Watched] = []
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

    def _planned(self, watched: Watched, now_ms: int) -> bool:
        try:
            watched.make_plan(now_ms)
        except DirectoryOffline:
            return False
        except LogError as error:
            watched.decision = None
            watched.blame(error, now_ms, self._patience)
            return False
        return True
