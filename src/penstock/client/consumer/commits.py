"""Committed offsets: how far the group is said to have read.

Rule: commits go out one after the other, in the order in which they were asked for, since of two under way at once the
older might arrive last. What the group's coordinator says about the member in its answer is told to the membership,
unless the member has joined anew since: then it is about a place that the member no longer has. Only news is committed
by itself.

A commit that waits for its turn while one of its partitions is taken away is sent as the member that asked for it, and
so rejected. As the member of a later generation it would be accepted, and take back what the new owner has committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.client.consumer.errors import CommitFailed
from penstock.client.consumer.membership import Membership
from penstock.client.consumer.positions import Place
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import ConfigError, GroupError, PenstockError, TimedOut
from penstock.client.offset_stores.base import NO_MEMBER, OffsetAndMetadata, OffsetStore
from penstock.client.offset_stores.base import Membership as Committer
from penstock.runtime.clock import Clock
from penstock.wire.error_codes import ErrorCode

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Told = Callable[[Offsets, BaseException | None], object]

_log = logging.getLogger(__name__)
_GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)


class _Pending:
    """A commit that was asked for. `turn` is done when it may be sent."""

    __slots__ = ("committer", "is_outdated", "offsets", "turn")

    def __init__(self, offsets: Offsets, committer: Committer) -> None:
        self.offsets = offsets
        self.committer = committer
        self.is_outdated = False  # whether the member has lost one of the partitions since
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Row:
    """Commits in the order of the calls, not of when their tasks first run. The first has its turn until it leaves."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def __iter__(self) -> Iterator[_Pending]:
        return iter(self._pending)

    def enter(self, pending: _Pending) -> _Pending:
        self._pending.append(pending)
        self._call()
        return pending

    def leave(self, pending: _Pending) -> None:
        self._pending.remove(pending)
        self._call()

    def _call(self) -> None:
        if self._pending and not self._pending[0].turn.done():
            self._pending[0].turn.set_result(None)


class Commits:
    def __init__(
        self, store: OffsetStore, settings: ConsumerSettings, clock: Clock, on_refusal: Callable[[], None]
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._on_refusal = on_refusal
        self._row = _Row()
        self._saved: dict[TopicPartition, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.count = self.failures = 0
        self.membership: Membership | None = None
        """As whom offsets are committed; None outside of a group's generations."""

    def forget(self, partition: TopicPartition) -> None:
        """The partition went away: what is committed for it is another member's doing from now on."""
        self._saved.pop(partition, None)
        for pending in self._row:
            pending.is_outdated = pending.is_outdated or partition in pending.offsets

    async def drain(self) -> None:
        """Until those that nobody waits for are through."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self.drain()

    def consumed(self, places: Iterable[Place]) -> dict[TopicPartition, OffsetAndMetadata]:
        """How far the user got, where that is news."""
        return {
            place.partition: OffsetAndMetadata(place.position, place.epoch, "")
            for place in places
            if place.position >= 0 and place.has_position and self._saved.get(place.partition) != place.position
        }

    @property
    def committer(self) -> Committer:
        membership = self.membership
        if membership is None:
            return NO_MEMBER
        return Committer(membership.generation, membership.member_id, self._settings.group_instance_id)

    def _group_id(self) -> str:
        if self._settings.group_id is None:
            raise ConfigError("there is nowhere to commit to", hint="Give the consumer a group_id")
        return self._settings.group_id

    async def commit(self, offsets: Offsets, timeout_ms: float) -> None:
        group_id = self._group_id()
        if not offsets:
            return
        pending = self._row.enter(_Pending(offsets, self.committer))
        try:
            await self._commit(group_id, pending, timeout_ms)
        finally:
            self._row.leave(pending)

    async def _commit(self, group_id: str, pending: _Pending, timeout_ms: float) -> None:
        offsets = pending.offsets
        committer = NO_MEMBER
        self.failures += 1  # until it has succeeded
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await pending.turn
                committer = pending.committer if pending.is_outdated else self.committer
                await self._store.save(group_id, offsets, committer)
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            raise TimedOut(
                f"the offsets of group {group_id} were not committed within {timeout_ms:.0f} ms",
                hint="They may or may not be; see whether the brokers are up",
            ) from None
        except GroupError as error:
            if error.code not in _GONE:
                raise
            if self.membership is not None and committer == self.committer:
                self.membership.commit_refused(error.code, self._clock.monotonic_ms())
                self._on_refusal()
            raise CommitFailed(group_id, error.message, error.code) from error
        self.failures -= 1
        self.count += 1
        for partition, saved in offsets.items():
            self._saved[partition] = saved.offset

    def commit_soon(
        self,
        offsets: Offsets,
        done: Told | None = None,
    ) -> None:
        """Commit without waiting; `done` is told the outcome, on the loop's thread."""
        if not offsets:
            return
        pending = self._row.enter(_Pending(dict(offsets), self.committer))

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._row.leave(pending)

        task = asyncio.ensure_future(self._commit_quietly(pending, done))
        self._tasks.add(task)
        task.add_done_callback(over)

    async def _commit_quietly(
        self,
        pending: _Pending,
        done: Told | None,
    ) -> None:
        failure: BaseException | None = None
        try:
            await self._commit(self._group_id(), pending, self._settings.default_api_timeout_ms)
        except PenstockError as error:
            failure = error
            _log.warning("offsets were not committed: %s", error)
        if done is not None:
            try:
                done(pending.offsets, failure)
            except Exception:  # noqa: BLE001 - the user's function must not end the loop's work
                _log.exception("the function that was to hear of a commit failed")

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        group_id = self._group_id()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._store.load(group_id, list(partitions))
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            raise TimedOut(f"the offsets of group {group_id} were not there within {timeout_ms:.0f} ms") from None
