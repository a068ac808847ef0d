"""Noticing that a broker does not answer any more, although ZooKeeper still hears it.

Noun: the `Hearing` of a broker while it is the controller: a question to each of the others now and then.

Rule: whoever leaves three questions in a row without an answer, which takes as long as a session lasts, is taken for
dead, if more than half of all brokers, this one among them, answer. What it led is led by others then; it registers
again at once if it lives, and leads nothing until it hears the controller. A controller whom fewer than half answer is
itself the one that is cut off: it takes itself for dead, so that another is the controller, and does not stand for a
while. Exactly half tell nothing, and nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from penstock.cluster.image import ClusterImage
from penstock.cluster.image_holder import Cancel, Listener
from penstock.replication.links import Link, LinkLost, Links
from penstock.wire.api_keys import ApiKey
from penstock.wire.schemas.api_versions import ApiVersionsRequest

logger = logging.getLogger(__name__)

UNANSWERED: Final = 3
"""Questions in a row. One alone proves nothing: it may be this process that stood still."""
_SPARED_SESSIONS: Final = 5
_VERSION: Final = 3
_QUESTION: Final = ApiVersionsRequest("penstock-controller", "1")


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

    async def take_for_dead(self, broker_id: int, epoch: int) -> None: ...

    async def step_down(self, rest_s: float) -> None: ...


class Hearing:
    """Of one broker, from its joining on."""

    def __init__(self, members: Members, links: Links, session_timeout_ms: int) -> None:
        self._members = members
        self._links = links
        self._session_s = session_timeout_ms / 1000
        self._patience_s = self._session_s / UNANSWERED
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
                        await link.ask(ApiKey.API_VERSIONS, _VERSION, _QUESTION, self._patience_s * 1000)
                except (LinkLost, TimeoutError):
                    if link is not None:
                        link.close()
                        link = None
                    self._unanswered[broker_id] = self._unanswered.get(broker_id, 0) + 1
                    if self._unanswered[broker_id] >= UNANSWERED and await self._is_over(broker_id, epoch):
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
        silent = [each for each, count in self._unanswered.items() if count >= UNANSWERED]
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
        if found is Verdict.DEAD and not self._is_spared(broker_id):
            self._declared_s[broker_id] = asyncio.get_running_loop().time()
            logger.warning(
                "broker %d has not answered the controller for %.1f s: it is taken for dead", broker_id, self._session_s
            )
            await self._members.take_for_dead(broker_id, epoch)
        return False

    def _is_spared(self, broker_id: int) -> bool:
        last_s = self._declared_s.get(broker_id)
        now_s = asyncio.get_running_loop().time()
        return last_s is not None and now_s - last_s < _SPARED_SESSIONS * self._session_s
