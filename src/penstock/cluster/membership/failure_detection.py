"""Failure detectors: by broken connections and by probes.

`ConnectionFailureDetector` notices a dead process at once. The controller holds an idle connection to every broker,
and every broker one to the controller. A broker is dead if its connection breaks and new ones are refused: the
machine answers and nothing listens. Its registration is removed without waiting for its session. Silence proves
nothing here.

`ProbeFailureDetector` notices a broker that no longer answers although its ZooKeeper session lives. A broker that
misses three probes in a row, which takes one session timeout, is declared dead, provided a majority of brokers still
answers. A controller that fewer than half answer is itself cut off: it resigns and does not run again for a while.
With exactly half nothing is done.

A broker that was declared dead and is alive registers again. It is not declared dead again for five session timeouts,
unless its process was restarted since.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from penstock.client.addresses import Address
from penstock.cluster.broker_links import Link, LinkLost, Links
from penstock.cluster.image import ClusterImage
from penstock.cluster.image_propagation import Cancel, Listener
from penstock.cluster.membership.broker_lifecycle import Membership
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.api_versions import ApiVersionsRequest

logger = logging.getLogger(__name__)

MAX_MISSED_PROBES: Final = 3
"""Questions in a row. One alone proves nothing: it may be this process that stood still."""
_GRACE_SESSIONS: Final = 5
_VERSION: Final = 3
_PROBE: Final = ApiVersionsRequest("penstock-controller", "1")


class Verdict(Enum):
    WAIT = "nobody can tell"
    DEAD = "who does not answer is gone"
    CUT_OFF = "it is this broker that is cut off"


def verdict(brokers: int, answering: int, silent: int) -> Verdict:
    """Of so many brokers, the controller among them, so many answer, itself included, and so many are silent.

    3 with 2 answering, 1 silent: DEAD. 3 with 1 and 2: CUT_OFF. 2 with 1 and 1: WAIT, and so is 3 with 1 and 1: the
    third has missed a question or two, and may be about to fall silent with the other.
    """
    if 2 * answering > brokers:
        return Verdict.DEAD
    return Verdict.CUT_OFF if 2 * (brokers - silent) < brokers else Verdict.WAIT


class Members(Protocol):
    """What a hearing asks of the broker's membership."""

    @property
    def broker_id(self) -> int: ...

    @property
    def image(self) -> ClusterImage: ...

    def listen(self, listener: Listener) -> Cancel: ...

    async def declare_dead(self, broker_id: int, epoch: int) -> None: ...

    async def step_down(self, rest_s: float) -> None: ...


class ProbeFailureDetector:
    """Of one broker, from its joining on."""

    def __init__(self, members: Members, links: Links, session_timeout_ms: int) -> None:
        self._members = members
        self._links = links
        self._session_s = session_timeout_ms / 1000
        self._patience_s = self._session_s / MAX_MISSED_PROBES
        # By broker: the controller's epoch and its own, and the questions to it.
        self._asked: dict[int, tuple[tuple[int, int], asyncio.Task[None]]] = {}
        self._unanswered: dict[int, int] = {}
        self._declared_s: dict[int, float] = {}
        self._cancel: Callable[[], None] | None = None

    def start(self) -> None:
        self._cancel = self._members.listen(lambda _, image: self._follow(image))
        self._follow(self._members.image)

    async def close(self) -> None:
        if self._cancel is not None:
            self._cancel()
        tasks = [task for _, task in self._asked.values()]
        self._asked.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, image: ClusterImage) -> None:
        me = self._members.broker_id
        others = image.brokers.items() if image.controller_id == me else ()
        controller_epoch = image.controller_epoch
        wanted = {each: (controller_epoch, registration.epoch) for each, registration in others if each != me}
        for broker_id in [each for each, (epochs, _) in self._asked.items() if wanted.get(each) != epochs]:
            self._asked.pop(broker_id)[1].cancel()
            self._unanswered.pop(broker_id, None)
        loop = asyncio.get_running_loop()
        for broker_id, epochs in wanted.items():
            if broker_id not in self._asked:
                self._asked[broker_id] = epochs, loop.create_task(self._ask_on(broker_id, epochs[1]))

    async def _ask_on(self, broker_id: int, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        link: Link | None = None
        try:
            while True:
                began_s = loop.time()
                try:
                    link = link or self._links.to(broker_id)
                    async with asyncio.timeout(self._patience_s):
                        await link.ask(ApiKey.API_VERSIONS, _VERSION, _PROBE, self._patience_s * 1000)
                except (LinkLost, TimeoutError):
                    if link is not None:
                        link.close()
                        link = None
                    self._unanswered[broker_id] = self._unanswered.get(broker_id, 0) + 1
                    if self._unanswered[broker_id] >= MAX_MISSED_PROBES and await self._is_over(broker_id, epoch):
                        return
                else:
                    self._unanswered[broker_id] = 0
                await asyncio.sleep(max(0.0, began_s + self._patience_s - loop.time()))
        finally:
            if link is not None:
                with contextlib.suppress(Exception):
                    link.close()

    async def _is_over(self, broker_id: int, epoch: int) -> bool:
        """Judge, and do what follows; whether there is nothing more to ask, as this broker has given up."""
        silent = [each for each, count in self._unanswered.items() if count >= MAX_MISSED_PROBES]
        answering = sum(1 for each in self._asked if self._unanswered.get(each, 1) == 0)
        found = verdict(len(self._asked) + 1, answering + 1, len(silent))
        if found is Verdict.CUT_OFF:
            logger.warning(
                "brokers %s have not answered the controller for %.1f s: it is cut off, and lets another be it",
                sorted(silent),
                self._session_s,
            )
            await self._members.step_down(self._session_s)
            return True
        if found is Verdict.DEAD and not self._is_in_grace_period(broker_id):
            self._declared_s[broker_id] = asyncio.get_running_loop().time()
            logger.warning(
                "broker %d has not answered the controller for %.1f s: it is taken for dead", broker_id, self._session_s
            )
            await self._members.declare_dead(broker_id, epoch)
        return False

    def _is_in_grace_period(self, broker_id: int) -> bool:
        last_s = self._declared_s.get(broker_id)
        now_s = asyncio.get_running_loop().time()
        return last_s is not None and now_s - last_s < _GRACE_SESSIONS * self._session_s


_RETRY_S: Final = 0.5
_CONNECT_TIMEOUT_S: Final = 3.0
_REFUSALS: Final = 2
_BETWEEN_REFUSALS_S: Final = 0.02


class _Declared(NamedTuple):
    """When a broker was declared dead, and when it says that it was started: a registration anew keeps that."""

    at_s: float
    started_ms: int | None


class ConnectionFailureDetector:
    """Of one broker, from its joining on."""

    def __init__(
        self, membership: Membership, address_of: Callable[[int], Address | None], session_timeout_ms: int
    ) -> None:
        self._membership = membership
        self._address_of = address_of
        self._grace_s = 5 * session_timeout_ms / 1000
        self._watches: dict[int, tuple[int, asyncio.Task[None]]] = {}  # by broker: its epoch, the watch over it
        self._declared: dict[int, _Declared] = {}
        self._cancel: Callable[[], None] | None = None

    def start(self) -> None:
        self._cancel = self._membership.listen(lambda _, image: self._follow(image))
        self._follow(self._membership.image)

    async def close(self) -> None:
        if self._cancel is not None:
            self._cancel()
        tasks = [task for _, task in self._watches.values()]
        self._watches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, image: ClusterImage) -> None:
        me = self._membership.broker_id
        wanted = {
            broker_id: registration.epoch
            for broker_id, registration in image.brokers.items()
            if broker_id != me and (image.controller_id in (me, broker_id))
        }
        for broker_id in [each for each, (epoch, _) in self._watches.items() if wanted.get(each) != epoch]:
            self._watches.pop(broker_id)[1].cancel()
        loop = asyncio.get_running_loop()
        for broker_id, epoch in wanted.items():
            if broker_id not in self._watches:
                self._watches[broker_id] = epoch, loop.create_task(self._watch(broker_id, epoch))

    async def _watch(self, broker_id: int, epoch: int) -> None:
        refused = 0
        was_open = False
        while True:
            address = self._address_of(broker_id)
            if address is None:
                return
            try:
                await _wait_until_closed(address)
            except ConnectionRefusedError:
                refused += 1
                if refused >= _REFUSALS:
                    await self._declare_dead(broker_id, epoch, address, was_open)
                    return
                await asyncio.sleep(_BETWEEN_REFUSALS_S)
            except (OSError, TimeoutError):
                refused = 0
                await asyncio.sleep(_RETRY_S)
            else:
                refused = 0
                was_open = True

    async def _declare_dead(self, broker_id: int, epoch: int, address: Address, was_open: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        registration = self._membership.image.brokers.get(broker_id)
        started_ms = None if registration is None else registration.timestamp_ms
        last = self._declared.get(broker_id)
        if last is not None and now_s - last.at_s < self._grace_s and last.started_ms == started_ms:
            logger.info("broker %d refuses connections again; its session will tell", broker_id)
            return
        self._declared[broker_id] = _Declared(now_s, started_ms)
        how = "has closed its connections and refuses others" if was_open else "refuses connections"
        if broker_id in self._membership.image.leaving:
            logger.info("broker %d at %s %s: it has stopped", broker_id, address, how)
        else:
            logger.warning("broker %d at %s %s: it is taken for dead", broker_id, address, how)
        await self._membership.declare_dead(broker_id, epoch)


async def _wait_until_closed(address: Address) -> None:
    """Connect, and return when the connection is over. OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        transport, protocol = await loop.create_connection(lambda: _IdleConnection(loop), address.host, address.port)
    try:
        await protocol.over
    finally:
        with contextlib.suppress(Exception):
            transport.abort()


class _IdleConnection(asyncio.Protocol):
    """Says nothing, and hears when the other side is gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over: asyncio.Future[Any] = loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)
