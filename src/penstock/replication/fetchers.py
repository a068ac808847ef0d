"""Following everything that this broker follows.

Noun: the fetchers of a broker, one for each broker that leads something that is followed here.

Rule: a partition is with the fetcher of its leader, and with no other. Who is told to follow begins a new course, even
if nothing changed; a fetcher that has nothing left to follow goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from penstock.log.errors import LogFailed
from penstock.log.flush import GroupCommit
from penstock.replication.fetch_course import Course, Followed, Pause
from penstock.replication.fetch_request import FetcherSettings, FetchFigures, Outside
from penstock.replication.fetcher import Fetcher
from penstock.replication.links import Links
from penstock.replication.throttle import Throttle
from penstock.wire.types import Message

__all__ = ["FetchFigures", "FetcherSettings", "Fetchers", "Followed", "Pause"]

Key = tuple[str, int]


class Fetchers:
    """`broker_epoch` is asked with every request; `failed` is told of a partition whose log the disk failed."""

    def __init__(
        self,
        me: int,
        broker_epoch: Callable[[], int],
        links: Links,
        commits: GroupCommit,
        loop: asyncio.AbstractEventLoop,
        settings: FetcherSettings | None = None,
        throttle: Throttle | None = None,
        failed: Callable[[Followed, LogFailed], None] = lambda partition, failure: None,
    ) -> None:
        self.figures = FetchFigures()
        self._me = me
        self._outside = Outside(
            me, broker_epoch, links, commits, loop, settings or FetcherSettings(), throttle, self.figures, failed
        )
        self._fetchers: dict[int, Fetcher] = {}
        self._courses: dict[Key, tuple[Fetcher, Course]] = {}
        self._ending: dict[asyncio.Future[Message], None] = {}
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # --- what to follow

    def follow(self, partitions: Iterable[Followed]) -> None:
        """Follow each from its leader, in its epoch. Whoever has no leader, or is led here, is not followed."""
        if self._is_closed:
            raise RuntimeError("the fetchers are closed: nothing can be followed any more")
        for partition in partitions:
            self._leave((partition.topic, partition.index))
            leader = partition.leader
            if leader < 0 or leader == self._me:
                continue
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = Fetcher(leader, self._outside)
            self._courses[partition.topic, partition.index] = fetcher, fetcher.follow(partition)
        self._sweep()

    def unfollow(self, keys: Iterable[Key]) -> None:
        """Follow these no more; who is not followed is passed over."""
        for key in keys:
            self._leave(key)
        self._sweep()

    async def close(self) -> None:
        """Follow nothing any more; when this returns nothing is asked or appended."""
        self._is_closed = True
        self._courses.clear()
        for fetcher in self._fetchers.values():
            self._stop(fetcher)
        self._fetchers.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _leave(self, key: Key) -> None:
        found = self._courses.pop(key, None)
        if found is not None:
            fetcher, course = found
            fetcher.unfollow(course)

    def _sweep(self) -> None:
        for leader, fetcher in tuple(self._fetchers.items()):
            if fetcher.is_idle:
                self._stop(self._fetchers.pop(leader))

    def _stop(self, fetcher: Fetcher) -> None:
        for task in fetcher.stop():
            self._ending[task] = None
            task.add_done_callback(lambda ended: self._ending.pop(ended, None))

    # --- figures

    @property
    def leaders(self) -> list[int]:
        """The brokers that something is followed from."""
        return list(self._fetchers)

    def lags(self) -> dict[Key, int]:
        """How many records each partition is behind its leader's watermark, where the leader has told it."""
        return {key: course.lag for key, (_, course) in self._courses.items() if course.lag is not None}

    def pauses(self) -> dict[Key, Pause]:
        """The partitions that are not asked for at the moment, and why."""
        found = {key: course.pause for key, (_, course) in self._courses.items()}
        return {key: pause for key, pause in found.items() if pause is not Pause.NONE}
