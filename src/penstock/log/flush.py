"""Making a log's bytes durable, many waiters at a time.

Noun: a flush is a list of files (and perhaps the folder) whose sync makes everything below an offset durable.
Group commit: whoever waits for an offset while a flush runs shares the next one, so the number of syncs is bounded by
the disk, not by the number of requests.

Rule: a flush is prepared and completed on the thread that owns the log, and only `run` happens elsewhere. A sync that
fails says nothing about what is on the disk, so the log goes offline: it is never tried again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.log.checkpoints import parent_folder
from penstock.log.errors import DiskFull, LogError, LogFailed, RecordsTruncated, TooManyOpenFiles, is_process_limit
from penstock.log.prompt_sync import PromptSync
from penstock.log.segment_mark import Marker
from penstock.log.sync_failures import note_failed_sync
from penstock.runtime.files import File, Files
from penstock.runtime.open_files import OPEN_FILES
from penstock.runtime.workers import Outcome, Workers, WorkersError

_RUNNING_MAX = 32


class Flush:
    """What to sync, and what is durable then."""

    __slots__ = ("end_offset", "files", "folder", "folder_changes", "generation", "marker", "sealed", "targets")

    def __init__(
        self,
        files: Files,
        end_offset: int,
        generation: int,
        targets: list[File],
        folder: str | None,
        sealed: frozenset[int],
        folder_changes: int,
        marker: Marker | None = None,
    ) -> None:
        self.files = files
        self.end_offset = end_offset
        self.generation = generation
        self.targets = targets
        self.folder = folder
        self.sealed = sealed  # base offsets of the sealed segments that it covers
        self.folder_changes = folder_changes  # how often the folder's names had changed by then
        self.marker = marker

    def run(self) -> None:
        try:
            for file in self.targets:
                file.sync()
            if self.folder is not None:
                self.files.sync_folder(self.folder)
        except OSError as error:
            if is_process_limit(error):
                raise TooManyOpenFiles(parent_folder(self.targets[0].path)) from error
            note_failed_sync(self.files, parent_folder(self.targets[0].path))
            raise
        if self.marker is not None:
            self.marker.write()  # last: it tells of what is durable


class Flushable(Protocol):
    """What group commit needs of a log."""

    @property
    def flushed_offset(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def unflushed_bytes(self) -> int: ...

    def was_cut(self, offset: int, generation: int) -> bool:
        """Whether a truncation after `generation` took anything below `offset`."""

    def prepare_flush(self) -> Flush | None: ...

    def complete_flush(self, flush: Flush) -> None: ...

    def fail(self, error: BaseException) -> LogFailed: ...


Done = Callable[[LogError | None], None]


class _Waiter(NamedTuple):
    offset: int
    generation: int  # a truncation since then may have taken the records, and others may have their offsets
    done: Done


class GroupCommit:
    """Calls back when a log is durable up to an offset; at most one flush a log runs at a time."""

    def __init__(self, workers: Workers, prompt: PromptSync | None = None) -> None:
        self._workers = workers
        self._prompt = prompt
        self._waiting: dict[Flushable, deque[_Waiter]] = {}
        self._running: set[Flushable] = set()
        self._held: dict[Flushable, Callable[[], None]] = {}
        self._queued: dict[Flushable, None] = {}  # their turn comes when fewer run

    def when_durable(self, log: Flushable, offset: int, done: Done, *, is_urgent: bool = True) -> None:
        """Call `done` (None, or why it cannot be) once everything below `offset` is durable.

        What is not urgent, as nobody waits for it, keeps nobody waiting either: it goes to another thread.
        """
        if log.flushed_offset >= offset:
            done(None)
            return
        self._waiting.setdefault(log, deque()).append(_Waiter(offset, log.generation, done))
        if log not in self._running and log not in self._held and log not in self._queued:
            prompt = self._prompt
            if prompt is not None and is_urgent and prompt.may(log.unflushed_bytes):
                # Not before the turn's end: others may come to wait for the same sync.
                self._running.add(log)
                prompt.later(lambda: self._start_after_turn(log, prompt.here))
            else:
                self._start(log)

    def pending(self, log: Flushable) -> int:
        return len(self._waiting.get(log, ()))

    def hold(self, log: Flushable, ready: Callable[[], None]) -> None:
        """Begin no flush of a log until `resume`; call `ready` once none is under way, perhaps at once."""
        self._held[log] = ready
        if log not in self._running:
            ready()

    def resume(self, log: Flushable) -> None:
        """Flush again; whoever came to wait meanwhile is served."""
        self._held.pop(log, None)
        if log in self._waiting and log not in self._running:
            self._start(log)

    def _start_after_turn(self, log: Flushable, here: Workers) -> None:
        self._running.discard(log)
        if log in self._held:
            self._held[log]()
            return
        is_alone = len(self._waiting) == 1 and len(self._waiting.get(log, ())) == 1 and not self._running
        self._start(log, here if is_alone else None)
        if self._queued:
            self._start_queued()

    def _start(self, log: Flushable, workers: Workers | None = None) -> None:
        if len(self._running) >= self._running_max:
            self._queued[log] = None
            return
        try:
            flush = log.prepare_flush()
        except (DiskFull, TooManyOpenFiles) as error:
            self._answer_all(log, error)
            return
        except (LogError, OSError) as error:
            self._answer_all(log, log.fail(error))
            return
        if flush is None:
            # Nothing is left to sync: somebody else did it, or truncation took away what was waited for.
            for waiter in self._waiting.pop(log, ()):
                is_cut = waiter.offset > log.flushed_offset or log.was_cut(waiter.offset, waiter.generation)
                waiter.done(RecordsTruncated(waiter.offset) if is_cut else None)
            return
        self._running.add(log)
        try:
            (workers or self._workers).run(flush.run, lambda outcome: self._finish(log, flush, outcome))
        except WorkersError as error:
            self._running.discard(log)
            self._answer_all(log, LogError(f"the flush was not started: {error}"))

    @property
    def _running_max(self) -> int:
        """A flush holds about four files open once it is prepared, and the disk gains nothing from many at once."""
        return min(_RUNNING_MAX, max(2, OPEN_FILES.most // 8))

    def _start_queued(self) -> None:
        while self._queued and len(self._running) < self._running_max:
            log = next(iter(self._queued))
            del self._queued[log]
            if log in self._waiting and log not in self._held:
                self._start(log)

    def _finish(self, log: Flushable, flush: Flush, outcome: Outcome[None]) -> None:
        self._running.discard(log)
        if self._queued:
            self._start_queued()
        if outcome.error is not None:
            error = outcome.error
            self._answer_all(log, error if isinstance(error, TooManyOpenFiles) else log.fail(error))
            if log in self._held:
                self._held[log]()
            return
        log.complete_flush(flush)
        waiting = self._waiting.pop(log, ())
        answers: list[tuple[Done, LogError | None]] = []
        still: deque[_Waiter] = deque()
        for waiter in waiting:
            if log.was_cut(waiter.offset, waiter.generation):
                answers.append((waiter.done, RecordsTruncated(waiter.offset)))
            elif waiter.offset <= log.flushed_offset:
                answers.append((waiter.done, None))
            else:
                still.append(waiter)
        if still:
            self._waiting[log] = still
        if self._prompt is not None:
            self._prompt.served(len(waiting))
        for done, refusal in answers:
            done(refusal)
        if log in self._held:
            self._held[log]()
        elif log in self._waiting and log not in self._running:
            self._start(log)

    def _answer_all(self, log: Flushable, error: LogError) -> None:
        for waiter in self._waiting.pop(log, ()):
            waiter.done(error)
