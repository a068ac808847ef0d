"""What passes from the loop to the user: chunks, duties and errors.

Noun: the one place that both threads of the blocking face touch. Rule: the loop puts and the user takes, under one
lock; the user looks at `attention`, a plain flag, as often as once a record, and at nothing else until it is set or
there is nothing left to hand out. `wake` is called, outside of the lock, whenever there is something new.

A duty is what only the user's side can do: stop handing out partitions, and call the user's functions. The loop waits
for it, so that partitions are let go only when their user has let them go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Literal

from penstock.client.consumer.chunks import Chunk
from penstock.client.consumer.errors import NoOffset
from penstock.client.consumer.fetch_plan import Budget
from penstock.client.consumer.positions import Place
from penstock.client.consumer.types import TopicPartition

Kind = Literal["assign", "revoke", "lose"]


class Duty:
    """One thing to do on the user's side; `finish` tells the loop."""

    __slots__ = ("finish", "kind", "partitions", "places")

    def __init__(
        self,
        kind: Kind,
        partitions: frozenset[TopicPartition],
        places: list[Place],
        finish: Callable[[], object],
    ) -> None:
        self.kind = kind
        self.partitions = partitions
        self.places = places
        self.finish = finish


def _nobody() -> None:
    pass


class Handover:
    """Between the loop that fetches and whoever reads."""

    def __init__(self, budget: Budget, *, on_room: Callable[[], object] = _nobody) -> None:
        self.attention = False
        self.closed = False
        self.polled = 0
        """Counts the user's visits: the loop sees by it that somebody still reads."""
        self.budget = budget
        self.wake: Callable[[], None] = _nobody
        self._on_room = on_room
        self._lock = Lock()
        self._chunks: deque[Chunk] = deque()
        self._duties: deque[Duty] = deque()
        self._errors: deque[BaseException] = deque()
        self._commit_due = False

    # The loop's side

    def put(self, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.append(chunk)
            chunk.place.fetched(chunk.next_offset, chunk.epoch, chunk.size)
            self.budget.add(chunk.size)
        self.wake()

    def post(self, duty: Duty) -> None:
        with self._lock:
            self._duties.append(duty)
            self.attention = True
        self.wake()

    def fail(self, error: BaseException) -> None:
        """Raised by the user's next call."""
        with self._lock:
            self._errors.append(error)
            self.attention = True
        self.wake()

    def sought(self, partitions: Iterable[TopicPartition]) -> None:
        """The user said where to go on: that nobody had said so is no error any more, if it was not raised yet."""
        found = frozenset(partitions)
        with self._lock:
            for error in self._errors:
                if isinstance(error, NoOffset):
                    error.unsought -= found
            self._errors = deque(each for each in self._errors if not isinstance(each, NoOffset) or each.unsought)

    def ask_for_commit(self) -> None:
        """The interval of automatic commits is over: the user's side says how far it got."""
        with self._lock:
            self._commit_due = True
            self.attention = True
        self.wake()

    def look_here(self) -> None:
        """Something changed under the user's hands: what it holds may be stale."""
        self.attention = True
        self.wake()

    def close(self) -> None:
        with self._lock:
            self.closed = self.attention = True
            self._chunks.clear()
        self.wake()

    def drop_stale(self) -> None:
        with self._lock:
            fresh = deque(chunk for chunk in self._chunks if not chunk.is_stale)
            self.budget.release(sum(c.size for c in self._chunks) - sum(c.size for c in fresh))
            self._chunks = fresh

    # The user's side

    def take(self) -> Chunk | None:
        """The next chunk of a partition that is not paused."""
        taken: Chunk | None = None
        released = False
        with self._lock:
            self.polled += 1
            for _ in range(len(self._chunks)):
                chunk = self._chunks[0]
                if chunk.is_stale:
                    self._chunks.popleft()
                    self.budget.release(chunk.size)
                    released = True
                elif chunk.place.paused:
                    self._chunks.rotate(-1)
                else:
                    self._chunks.popleft()
                    self.budget.release(chunk.size)
                    chunk.place.buffered_bytes -= chunk.size
                    taken = chunk
                    break
        if taken is not None or released:
            self._on_room()
        return taken

    def give_back(self, chunk: Chunk) -> None:
        """A chunk that was taken and not read to its end, since its partition was paused."""
        with self._lock:
            self._chunks.appendleft(chunk)
            chunk.place.buffered_bytes += chunk.size
            self.budget.add(chunk.size)

    def has_chunks(self) -> bool:
        with self._lock:
            return any(not chunk.place.paused and not chunk.is_stale for chunk in self._chunks)

    def attend(self) -> tuple[list[Duty], BaseException | None, bool]:
        """Duties, an error to raise, and whether offsets are to be committed; the flag is down again."""
        with self._lock:
            self.polled += 1
            duties = list(self._duties)
            self._duties.clear()
            error = self._errors.popleft() if self._errors else None
            commit_due, self._commit_due = self._commit_due, False
            self.attention = bool(self._errors) or self.closed
        return duties, error, commit_due

    def put_back(self, duties: Iterable[Duty]) -> None:
        """Duties that were taken and not carried out, since one before them raised."""
        with self._lock:
            self._duties.extendleft(reversed(list(duties)))
            self.attention = bool(self._duties) or self.attention
