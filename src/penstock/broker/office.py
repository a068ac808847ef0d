"""The controller's office, while this broker holds it.

Noun: an `Office`: a `Controller` that decides, and a `Publisher` that tells every broker, this one too.

Rule: what is decided is published at once, in the order of deciding. An office that hears of a later one closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from penstock.cluster.configs import ConfigRules, ResourceKind
from penstock.cluster.controller import Controller
from penstock.cluster.controller_claim import ControllerClaim
from penstock.cluster.image import ClusterImage
from penstock.cluster.image_updates import ImageAck, ImageUpdate, ack_of, request_of
from penstock.cluster.outcomes import ConfigChange
from penstock.cluster.partition_rules import RulesIn
from penstock.cluster.paths import DEFAULT_BROKER
from penstock.cluster.publishing import Publisher
from penstock.cluster.topics import TopicDefaults
from penstock.cluster.tree import Tree
from penstock.replication.links import Link, LinkLost, Links
from penstock.runtime.randomness import Random
from penstock.wire.api_keys import ApiKey
from penstock.wire.schemas.push_image import PushImageResponse

logger = logging.getLogger(__name__)

_PUSH_TIMEOUT_MS: Final = 5_000
_REACH_POLL_S: Final = 0.005

Take = Callable[[ImageUpdate], Awaitable[ImageAck]]


class Equipment(NamedTuple):
    """What an office needs, whoever holds it."""

    random: Random
    rules: ConfigRules
    rules_of: RulesIn
    defaults: TopicDefaults
    binding: Mapping[str, str]
    """What holds for all brokers of a cluster for which nobody has said anything yet."""
    links: Links


class Office:
    """Of one claim. `open` it, `close` it; `closed` is set when its claim is found to be lost."""

    def __init__(self, broker_id: int, tree: Tree, claim: ControllerClaim, equipment: Equipment, take: Take) -> None:
        self._broker_id = broker_id
        self._equipment = equipment
        self._take = take
        self._links: dict[int, Link] = {}
        self.closed = asyncio.Event()
        self.controller = Controller(
            tree,
            claim,
            equipment.random,
            equipment.rules,
            broker_id=broker_id,
            rules_of=equipment.rules_of,
            defaults=equipment.defaults,
            on_image=self._on_image,
            on_lost=self.closed.set,
        )
        self.publisher = Publisher(self._send, on_removed=self.controller.report_removed, on_stale=self.controller.lost)

    async def open(self) -> None:
        """ClusterError if the claim is lost before that."""
        image = await self.controller.start()
        logger.info("broker %d is the controller, in epoch %d", self._broker_id, self.controller.epoch)
        if DEFAULT_BROKER not in image.broker_configs:
            change = ConfigChange(ResourceKind.BROKER, "", replacement=dict(self._equipment.binding))
            (outcome,) = await self.controller.alter_configs([change])
            if outcome.refusal is not None:
                logger.error("what the brokers are to agree on was not stored: %s", outcome.refusal)

    async def close(self, *, give_up: bool = False) -> None:
        """Decide and publish nothing any more. With `give_up` another may take over at once."""
        self.closed.set()
        # First, and without waiting: whoever closes an office may be in a hurry himself, and cancelled in the middle.
        self.publisher.stop()
        try:
            await self.controller.resign(give_up=give_up)
            await self.publisher.close()
        finally:
            for link in self._links.values():
                link.close()
            self._links.clear()

    async def reach_all(self, within_s: float) -> None:
        """Wait until every broker has the latest image, or the time is over: who asked for a change finds it then."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        while self.publisher.behind() and loop.time() < deadline_s and not self.closed.is_set():
            await asyncio.sleep(_REACH_POLL_S)

    def _on_image(self, _: ClusterImage, image: ClusterImage) -> None:
        self.publisher.publish(image)
        for broker_id in [each for each in self._links if each not in image.brokers]:
            self._links.pop(broker_id).close()

    async def _send(self, broker_id: int, update: ImageUpdate) -> ImageAck:
        if broker_id == self._broker_id:
            return await self._take(update)
        link = self._links.get(broker_id)
        if link is None:
            link = self._links[broker_id] = self._equipment.links.to(broker_id)
        try:
            answer = await link.ask(ApiKey.PUSH_IMAGE, 0, request_of(update), _PUSH_TIMEOUT_MS)
        except LinkLost:
            if self._links.get(broker_id) is link:
                del self._links[broker_id]
            link.close()
            raise
        if not isinstance(answer, PushImageResponse):
            raise LinkLost(f"broker {broker_id} answered something else")
        return ack_of(answer)
