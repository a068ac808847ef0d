"""The log cleaner: compacts the logs that are due, one after another, beside the event loop.

Noun: the cleaner of a broker, and the round that it is at, if any.

    tick ──> candidates ──> begin ──> prepare (a worker) ──> install ──> prepare ... ──> the checkpoint says how far
                                          └── an error, a cut, a stop: the log is as it was, or rewritten in part

Rule: one round at a time, so one map of keys and one group's worth of room are all it takes. Whatever happens to the
log meanwhile wins: a round whose log was cut, deleted, failed or let go of by its settings ends, and nothing is held
against the log. The checkpoint is written last and only for a log that is still the same: too low costs work, too
high would leave repetitions for ever.

Workers for this should be the cleaner's own: a round takes minutes, and a throttled one sleeps in its thread. To stop:
`close` this, then those workers, then the manager. What a hard stop leaves half done, the next start sweeps away.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from penstock.log.checkpoints import TopicPartition
from penstock.log.compaction.candidates import Candidates, Patience, Watched
from penstock.log.compaction.errors import CompactionCancelled, CompactionOvertaken
from penstock.log.compaction.filtering import DEFAULT_MAP_BYTES
from penstock.log.compaction.rounds import CleanedGroup, Compaction, CompactionResult
from penstock.log.compaction.throttle import Throttle
from penstock.log.errors import LogError
from penstock.log.folders.manager import LogManager
from penstock.log.partition_log import PartitionLog
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT
from penstock.runtime.clock import Clock
from penstock.runtime.workers import Outcome, Workers, WorkersError

logger = logging.getLogger(__name__)

# What is read at once, between two questions whether to go on.
_PIECE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CleanerFigures:
    """What the cleaner did since it began. Bytes and records are those of complete rounds."""

    rounds: int = 0
    cancelled: int = 0  # also those that were overtaken
    failed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    last_duration_ms: float = 0.0
    max_duration_ms: float = 0.0
    last_map_share: float = 0.0  # of the room for keys, how much the last round took
    max_dirty_ratio: float = 0.0  # now, of all logs that compact
    max_overdue_ms: int = 0  # now: how long records wait beyond max.compaction.lag.ms
    last_run_ms: int | None = None  # when it last looked for something to do


class _Round:
    """A compaction under way."""

    def __init__(
        self, watched: Watched, compaction: Compaction, piece_bytes: float, throttle: Throttle | None, start_ms: float
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
        """Asked by the worker too, so nothing here is more than a look at a few attributes."""
        return not self.is_stopped and self.watched.is_there

    def prepare(self) -> CleanedGroup | None:
        """In the worker's thread."""
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
    """Call `tick` every few seconds, on the thread that owns the logs; `close` it."""

    def __init__(
        self,
        manager: LogManager,
        workers: Workers,
        clock: Clock,
        *,
        map_bytes: int = DEFAULT_MAP_BYTES,
        throttle: Throttle | None = None,
        patience: Patience | None = None,
        decompressed_limit: int = DEFAULT_DECOMPRESSED_LIMIT,
    ) -> None:
        if map_bytes < 1:
            raise ValueError(f"{map_bytes} bytes hold no key")
        self._manager = manager
        self._workers = workers
        self._clock = clock
        self._map_bytes = map_bytes
        self._throttle = throttle
        self._patience = Patience() if patience is None else patience
        self._decompressed_limit = decompressed_limit
        self._candidates = Candidates(manager, self._patience)
        self._round: _Round | None = None
        self._figures = CleanerFigures()
        self._closed = False

    # --- what it is at

    @property
    def cleaning(self) -> TopicPartition | None:
        """The partition that is being compacted."""
        return None if self._round is None else self._round.watched.key

    def is_cleaning(self, log: PartitionLog) -> bool:
        """Whether a round over this log is under way: for `LogManager.retention_tick`, which lets it be then."""
        return self._round is not None and self._round.log is log

    @property
    def figures(self) -> CleanerFigures:
        candidates = self._candidates
        return replace(
            self._figures, max_dirty_ratio=candidates.max_dirty_ratio, max_overdue_ms=candidates.max_overdue_ms
        )

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """Partition: why, of the logs that are not compacted any more."""
        watched = self._candidates.watched
        return {key: each.uncleanable for key, each in watched.items() if each.uncleanable is not None}

    @property
    def uncleanable_bytes(self) -> int:
        return sum(each.log.size for each in self._candidates.watched.values() if each.uncleanable is not None)

    # --- begin and stop

    def tick(self, now_ms: int) -> bool:
        """Begin a round if one is due and none is under way; whether one is under way now."""
        if self._closed:
            return False
        self._figures = replace(self._figures, last_run_ms=now_ms)
        self._candidates.look(now_ms)
        if self._round is None:
            self._run(now_ms)
        return self._round is not None

    def cancel(self, log: PartitionLog) -> bool:
        """End the round over this log soon; whether there is one. Call it before the log is cut or deleted.

        It is noticed without that too, but the worker may have to read on for a while first.
        """
        if self._round is None or self._round.log is not log:
            return False
        self._round.is_stopped = True
        return True

    def close(self) -> None:
        """Begin nothing more. A round under way ends within a megabyte; closing the workers waits for that."""
        self._closed = True
        if self._round is not None:
            self._round.is_stopped = True

    # --- rounds

    def _run(self, now_ms: int, *, after_another: bool = False) -> None:
        """Round after round, until one must be waited for or was cancelled, or none is due."""
        while not self._closed:
            watched = self._candidates.next(now_ms)
            if watched is None:
                if not after_another:
                    return
                # A log may be due again at once: the map of keys was too small for all of it.
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

    def _begin(self, watched: Watched, now_ms: int) -> _Round | None:
        decision, log = watched.decision, watched.log
        if decision is None:
            return None
        try:
            with watched.directory.disk():
                compaction = Compaction.begin(
                    log, decision, now_ms, map_bytes=self._map_bytes, decompressed_limit=self._decompressed_limit
                )
        except LogError as error:
            watched.blame(error, now_ms, self._patience)
            return None
        piece_bytes = mean_piece_bytes(log.table.sizes[: decision.segment_count])
        self._round = _Round(watched, compaction, piece_bytes, self._throttle, self._clock.monotonic_ms())
        return self._round

    def _advance(self, current: _Round) -> bool:
        """Go on for as long as there are answers; whether the round is over, and another may begin.

        Workers may answer at once. That is why this is a loop: a large log has more groups than a stack has frames.
        """
        may_go_on = False
        while self._round is current:
            if current.answer is None:
                self._ask(current)
            outcome, current.answer = current.answer, None
            if outcome is None:
                return False
            may_go_on = self._take(current, outcome)
        return may_go_on

    def _ask(self, current: _Round) -> None:
        current.is_asking = True
        try:
            self._workers.run(current.prepare, partial(self._answered, current))
        except WorkersError as error:
            self._end(current)
            self._figures = replace(self._figures, cancelled=self._figures.cancelled + 1)
            logger.warning("%s: the compaction was not started: %s", current.log.folder, error)
        finally:
            current.is_asking = False

    def _answered(self, current: _Round, outcome: Outcome[CleanedGroup | None]) -> None:
        current.answer = outcome
        if not current.is_asking and self._advance(current):
            self._run(self._clock.now_ms(), after_another=True)

    def _take(self, current: _Round, outcome: Outcome[CleanedGroup | None]) -> bool:
        """Put in place what was prepared; whether the round is over, and another may begin."""
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
        current.watched.praise()
        return True

    def _checkpoint(self, current: _Round) -> CompactionResult:
        result = current.compaction.result
        if result is None or not current.compaction.is_current(current.log):
            raise CompactionOvertaken(current.log.folder, "the log was cut")
        current.watched.directory.set_cleaner_offset(current.watched.key, result.first_dirty_offset)
        return result

    def _end(self, current: _Round) -> None:
        self._round = None
        current.compaction.discard()

    def _end_badly(self, current: _Round, error: BaseException) -> bool:
        self._end(current)
        if current.log.failure is not None:
            self._manager.report_failure(*current.watched.key)
        # Of a log that changed under its hands, a round may say anything.
        if not current.is_wanted or not current.compaction.is_current(current.log):
            self._figures = replace(self._figures, cancelled=self._figures.cancelled + 1)
            logger.info("%s", error)
            return False
        self._figures = replace(self._figures, failed=self._figures.failed + 1)
        current.watched.blame(error, self._clock.now_ms(), self._patience)
        return True

    def _count(self, current: _Round, result: CompactionResult) -> None:
        before, tally = self._figures, result.tally
        duration_ms = self._clock.monotonic_ms() - current.start_ms
        self._figures = replace(
            before,
            rounds=before.rounds + 1,
            bytes_before=before.bytes_before + tally.bytes_before,
            bytes_after=before.bytes_after + tally.bytes_after,
            records_before=before.records_before + tally.records_before,
            records_after=before.records_after + tally.records_after,
            last_duration_ms=duration_ms,
            max_duration_ms=max(before.max_duration_ms, duration_ms),
            last_map_share=result.map_bytes / self._map_bytes,
        )
        logger.info(
            "%s was compacted up to offset %d: %d bytes became %d, %d segments became %d, in %d ms",
            current.log.folder,
            result.first_dirty_offset,
            tally.bytes_before,
            tally.bytes_after,
            result.segments_before,
            result.segments_after,
            duration_ms,
        )


def mean_piece_bytes(sizes: Sequence[int]) -> float:
    """How much is read, on average, between two questions whether to go on, of segments of these sizes.

    They are asked after each megabyte and at the end of each segment. Of 3 MiB and 512 KiB: 896 KiB.
    """
    pieces = sum(-(-size // _PIECE_BYTES) for size in sizes)
    return sum(sizes) / pieces if pieces else 0.0
