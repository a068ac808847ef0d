"""The open connections of a client.

Noun: a link, the way to one node for one purpose (its lane). Rule: a link has at most one connection; whoever asks
while it is being opened shares the opening; after a failure it is not tried again before its backoff is over. Lanes
keep apart what would wait behind each other: a broker answers in order, so a heartbeat must not stand behind a long
poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from penstock.client.addresses import Address
from penstock.client.backoff import Backoff
from penstock.client.connection import Connection
from penstock.client.errors import ClosedError, NotConnected, PenstockError
from penstock.client.opening import Way, open_connection
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random

T = TypeVar("T")

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_MS = 1_000
_GONE = "the broker has left the cluster or changed its address"


class LinkKey(NamedTuple):
    node_id: int
    lane: str


class _Link:
    __slots__ = ("address", "backoff", "connection", "opening")

    def __init__(self, address: Address, backoff: Backoff) -> None:
        self.address = address
        self.backoff = backoff
        self.connection: Connection | None = None
        self.opening: asyncio.Task[Connection] | None = None


class Links:
    """All links of one client."""

    def __init__(
        self, way: Way, clock: Clock, random: Random, retry_backoff_ms: float, retry_backoff_max_ms: float
    ) -> None:
        self._way = way
        self._clock = clock
        self._random = random
        self._backoff_ms = retry_backoff_ms
        self._backoff_max_ms = retry_backoff_max_ms
        self._links: dict[LinkKey, _Link] = {}
        self._old: set[Address] = set()
        self._closed = False
        self.on_silence: Callable[[int], None] = _unheard
        """Called with the id of a node that leaves requests unanswered, again and again while it does."""

    def connections(self, lane: str | None = None) -> Iterator[tuple[LinkKey, Connection]]:
        """Those that are open."""
        for key, link in self._links.items():
            if link.connection is not None and not link.connection.closed and lane in (None, key.lane):
                yield key, link.connection

    @property
    def count(self) -> int:
        """How many are open; from any thread."""
        links = list(self._links.values())
        return sum(link.connection is not None and not link.connection.closed for link in links)

    def waits(self, key: LinkKey) -> bool:
        """Whether the link failed and its backoff is not over."""
        link = self._links.get(key)
        return link is not None and link.backoff.remaining_ms(self._clock.monotonic_ms()) > 0

    def adopt(self, key: LinkKey, address: Address, connection: Connection) -> None:
        """Use a connection that was opened elsewhere."""
        self._drop(key)
        link = self._links[key] = _Link(address, self._new_backoff())
        self._use(key, link, connection)

    def _use(self, key: LinkKey, link: _Link, connection: Connection) -> None:
        link.connection = connection
        connection.on_silence = lambda: self.on_silence(key.node_id)
        if connection.era is None:
            self._old.discard(link.address)
        else:
            self._old.add(link.address)

    async def get(self, key: LinkKey, address: Address) -> Connection:
        """The connection of a link, opened if need be; raises diagnosis.Unusable."""
        link = self._links.get(key)
        if link is not None and link.address == address:
            connection = link.connection
            if connection is not None and not connection.closed:
                return connection
        else:
            self._drop(key)
            if self._closed:
                raise ClosedError("the client is closed")
            link = self._links[key] = _Link(address, self._new_backoff())
        if link.opening is None:
            if self._closed:
                raise ClosedError("the client is closed")
            link.opening = asyncio.ensure_future(self._open(key, link))
            link.opening.add_done_callback(_heard)
        try:
            return await shared(link.opening)
        except ClosedError:
            if self._closed:
                raise
        return self._instead(key, address)

    def _instead(self, key: LinkKey, address: Address) -> Connection:
        """What there is in the place of a link that was dropped while it was opened."""
        link = self._links.get(key)
        connection = link.connection if link is not None and link.address == address else None
        if connection is None or connection.closed:
            raise NotConnected(str(address), _GONE)
        return connection

    async def _open(self, key: LinkKey, link: _Link) -> Connection:
        try:
            wait_ms = link.backoff.remaining_ms(self._clock.monotonic_ms())
            if wait_ms:
                await asyncio.sleep(wait_ms / 1000)
            try:
                connection = await open_connection(link.address, self._way, maybe_old=link.address in self._old)
            except PenstockError as error:
                link.backoff.failed(self._clock.monotonic_ms())
                _log.debug("cannot open a connection: %s", error)
                raise
            link.backoff.succeeded()
            self._use(key, link, connection)
            return connection
        finally:
            link.opening = None

    def keep_only(self, addresses: dict[int, Address]) -> None:
        """Close links to nodes that are gone or have moved."""
        for key, link in list(self._links.items()):
            if addresses.get(key.node_id) != link.address:
                self._drop(key)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._backoff_ms, self._backoff_max_ms, self._random)

    def _drop(self, key: LinkKey) -> None:
        link = self._links.pop(key, None)
        if link is None:
            return
        if link.opening is not None:
            link.opening.cancel()
        if link.connection is not None:
            link.connection.close(_GONE)

    async def close(self) -> None:
        self._closed = True
        links, self._links = list(self._links.values()), {}
        openings = [link.opening for link in links if link.opening is not None]
        for opening in openings:
            opening.cancel()
        if openings:
            await asyncio.wait(openings)
        connections = [link.connection for link in links if link.connection is not None]
        for connection in connections:
            connection.close("the client was closed")
        await asyncio.gather(*(connection.wait_closed(_CLOSE_TIMEOUT_MS) for connection in connections))


def _unheard(_: int) -> None:
    """Until somebody looks after the nodes."""


def _heard(task: asyncio.Task[Connection]) -> None:
    """Whoever wanted the result may have gone; its failure must not be reported as unheard."""
    if not task.cancelled():
        task.exception()


async def shared(task: asyncio.Task[T]) -> T:
    """The result of a task that others wait for too: our being cancelled does not cancel it, its being cancelled is
    no cancellation of ours."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        own = asyncio.current_task()
        if task.cancelled() and not (own is not None and own.cancelling()):
            raise ClosedError("the client was closed meanwhile") from None
        raise


async def first_of(
    makers: Sequence[Callable[[], Awaitable[T]]], *, stagger_ms: float, discard: Callable[[T], object] | None = None
) -> tuple[int, T] | list[PenstockError]:
    """The first that succeeds, and which; or why each failed. The next is begun when one fails, or after a while.

    What succeeds too late is given to `discard`.
    """
    running: dict[asyncio.Future[T], int] = {}
    failures: dict[int, PenstockError] = {}
    begun = 0
    try:
        while begun < len(makers) or running:
            if begun < len(makers):
                running[asyncio.ensure_future(makers[begun]())] = begun
                begun += 1
            timeout = stagger_ms / 1000 if begun < len(makers) else None
            done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                number = running.pop(future)
                try:
                    return number, future.result()
                except PenstockError as error:
                    failures[number] = error
        return [failures[number] for number in sorted(failures)]
    finally:
        late = list(running)
        for future in late:
            future.cancel()
        if late:
            await asyncio.wait(late)
        for future in late:
            if not future.cancelled() and future.exception() is None and discard is not None:
                discard(future.result())
