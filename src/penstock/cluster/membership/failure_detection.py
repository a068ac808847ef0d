"""Failure detectors: by broken connections and by probes.

`ConnectionFailureDetector` notices a dead process at once. The controller holds an idle connection to every broker, and
every broker one to the controller. A broker is dead if its connection breaks and new ones are refused: the machine
answers and nothing listens. Its registration is removed without waiting for its session. Silence proves nothing here.

`ProbeFailureDetector` notices a broker that no longer answers although its ZooKeeper session lives. A broker that
misses three probes in a row, which takes one session timeout, is declared dead, provided a majority of brokers still
answers. A controller that fewer than half answer is itself cut off: it resigns and does not run again for a while. With
exactly half nothing is done.

A broker that was declared dead and is alive registers again. It is not declared dead again for five session timeouts,
unless its process was restarted since.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol

from penstock.cluster.broker_links import Link, LinkLost, Links
from penstock.cluster.image import ClusterImage
from penstock.cluster.image_propagation import Cancel, Listener
from penstock.cluster.tree.layout import Endpoint
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.api_versions import ApiVersionsRequest

logger = logging.getLogger(__name__)

MAX_MISSED_PROBES: Final = 3
"""In a row. A single missed probe proves nothing: this process may have stood still."""
_GRACE_SESSIONS: Final = 5

_PROBE: Final = ApiVersionsRequest("penstock-controller", "1")
_PROBE_VERSION: Final = 3

_REFUSED_MAX: Final = 2
_REFUSED_RETRY_S: Final = 0.02
_RECONNECT_S: Final = 0.5
_CONNECT_TIMEOUT_S: Final = 3.0


class Members(Protocol):
    """What a detector needs of the broker's membership."""

    @property
    def broker_id(self) -> int: ...

    @property
    def image(self) -> ClusterImage: ...

    def listen(self, listener: Listener) -> Cancel: ...

    async def declare_dead(self, broker_id: int, epoch: int) -> None: ...

    async def step_down(self, rest_s: float) -> None: ...


class _Declared(NamedTuple):
    """When a broker was declared dead, and when its process was started; registering again does not change that."""

    at_s: float
    started_ms: int | None


class _FailureDetector(ABC):
    """Watches other brokers from `start` to `close`: one task for each broker epoch in the image."""

    def __init__(self, members: Members, session_timeout_ms: int) -> None:
        self._members = members
        self._session_s = session_timeout_ms / 1000
        self._watches: dict[int, tuple[tuple[int, ...], asyncio.Task[None]]] = {}  # by broker id, with `_targets`' key
        self._declared: dict[int, _Declared] = {}
        self._cancel: Cancel | None = None

    def start(self) -> None:
        self._cancel = self._members.listen(lambda _, image: self._follow(image))
        self._follow(self._members.image)

    async def close(self) -> None:
        if self._cancel is not None:
            self._cancel()
        tasks = [task for _, task in self._watches.values()]
        self._watches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, image: ClusterImage) -> None:
        targets = self._targets(image)
        for broker_id in [each for each, (key, _) in self._watches.items() if targets.get(each) != key]:
            self._watches.pop(broker_id)[1].cancel()
            self._forget(broker_id)
        loop = asyncio.get_running_loop()
        for broker_id, key in targets.items():
            if broker_id not in self._watches:
                self._watches[broker_id] = key, loop.create_task(self._watch(broker_id, key[-1]))

    @abstractmethod
    def _targets(self, image: ClusterImage) -> dict[int, tuple[int, ...]]:
        """The brokers to watch, each with a key that ends with its epoch; another key starts another watch."""

    @abstractmethod
    async def _watch(self, broker_id: int, epoch: int) -> None:
        """Watch one broker epoch until cancelled."""

    def _forget(self, broker_id: int) -> None:  # noqa: B027 - only one of the two keeps anything
        """The broker is not watched any more, or under another key."""

    async def _declare_dead(self, broker_id: int, epoch: int, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        image = self._members.image
        registration = image.brokers.get(broker_id)
        started_ms = None if registration is None else registration.timestamp_ms
        last = self._declared.get(broker_id)
        if last is not None and last.started_ms == started_ms and now_s - last.at_s < _GRACE_SESSIONS * self._session_s:
            logger.info("broker not declared dead again: broker=%d reason=%s", broker_id, reason)
            return
        self._declared[broker_id] = _Declared(now_s, started_ms)
        if broker_id in image.shutting_down:
            logger.info("broker stopped: broker=%d reason=%s", broker_id, reason)
        else:
            logger.warning("broker declared dead: broker=%d epoch=%d reason=%s", broker_id, epoch, reason)
        await self._members.declare_dead(broker_id, epoch)


# --- by connections


class ConnectionFailureDetector(_FailureDetector):
    """Runs on every broker of a cluster. `endpoint_of` is where a broker listens to brokers."""

    def __init__(
        self,
        members: Members,
        endpoint_of: Callable[[int], Endpoint | None],
        session_timeout_ms: int,
        wait_until_closed: Callable[[Endpoint], Awaitable[None]] | None = None,
    ) -> None:
        """`wait_until_closed` connects to listeners that expect more than a connection; OSError as sockets have it."""
        super().__init__(members, session_timeout_ms)
        self._endpoint_of = endpoint_of
        self._wait_until_closed = wait_until_closed or _wait_until_closed

    def _targets(self, image: ClusterImage) -> dict[int, tuple[int, ...]]:
        me = self._members.broker_id
        return {
            broker_id: (registration.epoch,)
            for broker_id, registration in image.brokers.items()
            if broker_id != me and image.controller_id in (me, broker_id)
        }

    async def _watch(self, broker_id: int, epoch: int) -> None:
        refused = 0
        was_open = False
        while True:
            endpoint = self._endpoint_of(broker_id)
            if endpoint is None:
                return
            try:
                await self._wait_until_closed(endpoint)
            except ConnectionRefusedError:
                refused += 1
                if refused >= _REFUSED_MAX:
                    how = "closed its connections and refuses new ones" if was_open else "refuses connections"
                    await self._declare_dead(broker_id, epoch, f"{endpoint} {how}")
                    return
                await asyncio.sleep(_REFUSED_RETRY_S)
            except (OSError, TimeoutError):
                refused = 0
                await asyncio.sleep(_RECONNECT_S)
            else:
                refused = 0
                was_open = True


async def _wait_until_closed(endpoint: Endpoint) -> None:
    """Connect, and return when the connection is closed. OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        transport, protocol = await loop.create_connection(lambda: _IdleConnection(loop), endpoint.host, endpoint.port)
    try:
        await protocol.closed
    finally:
        with contextlib.suppress(Exception):
            transport.abort()


class _IdleConnection(asyncio.Protocol):
    """Sends nothing, and notices when the other side closes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.closed: asyncio.Future[Any] = loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


# --- by probes


class Verdict(Enum):
    WAIT = auto()
    DEAD = auto()
    """Brokers that do not answer are dead."""
    CUT_OFF = auto()
    """The controller itself is cut off."""


def verdict(brokers: int, answering: int, silent: int) -> Verdict:
    """The verdict for counts of brokers. They include the controller, which answers itself.

    3 with 2 answering, 1 silent: DEAD. 3 with 1 and 2: CUT_OFF. 2 with 1 and 1: WAIT. 3 with 1 and 1: WAIT, because the
    third has missed a probe or two and may be about to fall silent as well.
    """
    if 2 * answering > brokers:
        return Verdict.DEAD
    return Verdict.CUT_OFF if 2 * (brokers - silent) < brokers else Verdict.WAIT


class ProbeFailureDetector(_FailureDetector):
    """Runs on every broker of a cluster, and probes the others while this one is the controller."""

    def __init__(self, members: Members, links: Links, session_timeout_ms: int) -> None:
        super().__init__(members, session_timeout_ms)
        self._links = links
        self._interval_s = self._session_s / MAX_MISSED_PROBES
        self._missed: dict[int, int] = {}

    def _targets(self, image: ClusterImage) -> dict[int, tuple[int, ...]]:
        me = self._members.broker_id
        if image.controller_id != me:
            return {}
        return {each: (image.controller_epoch, found.epoch) for each, found in image.brokers.items() if each != me}

    def _forget(self, broker_id: int) -> None:
        self._missed.pop(broker_id, None)

    async def _watch(self, broker_id: int, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        link: Link | None = None
        try:
            while True:
                started_s = loop.time()
                try:
                    link = link or self._links.to(broker_id)
                    async with asyncio.timeout(self._interval_s):
                        await link.ask(ApiKey.API_VERSIONS, _PROBE_VERSION, _PROBE, self._interval_s * 1000)
                except (LinkLost, TimeoutError):
                    if link is not None:
                        link.close()
                        link = None
                    self._missed[broker_id] = self._missed.get(broker_id, 0) + 1
                    if self._missed[broker_id] >= MAX_MISSED_PROBES and await self._is_cut_off(broker_id, epoch):
                        return
                else:
                    self._missed[broker_id] = 0
                await asyncio.sleep(max(0.0, started_s + self._interval_s - loop.time()))
        finally:
            if link is not None:
                with contextlib.suppress(Exception):
                    link.close()

    async def _is_cut_off(self, broker_id: int, epoch: int) -> bool:
        """Act on a broker that does not answer; returns whether this broker has stepped down instead."""
        silent = sorted(each for each, missed in self._missed.items() if missed >= MAX_MISSED_PROBES)
        answering = sum(1 for each in self._watches if self._missed.get(each, 1) == 0)
        found = verdict(len(self._watches) + 1, answering + 1, len(silent))
        if found is Verdict.CUT_OFF:
            logger.warning("controller cut off, stepping down: silent_brokers=%s for_s=%.1f", silent, self._session_s)
            await self._members.step_down(self._session_s)
            return True
        if found is Verdict.DEAD:
            await self._declare_dead(broker_id, epoch, f"no answer for {self._session_s:.1f} s")
        return False
