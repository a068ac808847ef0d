"""Noticing at once that a process has died.

Noun: a `Vigil` over brokers: the controller watches all others, the others watch the controller, each by a connection
that carries nothing and breaks when the process at its other end is gone.

Rule: dead is who broke the connection and then refuses another one: its machine answers, and nobody listens there any
more. Its registration is taken away, and with it what it held, without waiting for the end of its session. Silence
proves nothing: a machine that does not answer, or a process that stands still, has the time of its session. Who is
declared dead and is not learns it from the tree, and registers again; it is not declared dead once more for a while. A
process that was started since is another one, and is: who is killed twice in a row is noticed at once both times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.broker.membership import Membership
from penstock.client.addresses import Address
from penstock.cluster.image import ClusterImage

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_CONNECT_TIMEOUT_S: Final = 3.0
_REFUSALS: Final = 2
_BETWEEN_REFUSALS_S: Final = 0.02


class _Declared(NamedTuple):
    """When a broker was declared dead, and when it says that it was started: a registration anew keeps that."""

    at_s: float
    started_ms: int | None


class Vigil:
    """Of one broker, from its joining on."""

    def __init__(
        self, membership: Membership, address_of: Callable[[int], Address | None], session_timeout_ms: int
    ) -> None:
        self._membership = membership
        self._address_of = address_of
        self._spared_s = 5 * session_timeout_ms / 1000
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
                await _until_broken(address)
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
        if last is not None and now_s - last.at_s < self._spared_s and last.started_ms == started_ms:
            logger.info("broker %d refuses connections again; its session will tell", broker_id)
            return
        self._declared[broker_id] = _Declared(now_s, started_ms)
        how = "has closed its connections and refuses others" if was_open else "refuses connections"
        if broker_id in self._membership.image.leaving:
            logger.info("broker %d at %s %s: it has stopped", broker_id, address, how)
        else:
            logger.warning("broker %d at %s %s: it is taken for dead", broker_id, address, how)
        await self._membership.take_for_dead(broker_id, epoch)


async def _until_broken(address: Address) -> None:
    """Connect, and return when the connection is over. OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        transport, protocol = await loop.create_connection(lambda: _Silence(loop), address.host, address.port)
    try:
        await protocol.over
    finally:
        with contextlib.suppress(Exception):
            transport.abort()


class _Silence(asyncio.Protocol):
    """Says nothing, and hears when the other side is gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over: asyncio.Future[Any] = loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)
