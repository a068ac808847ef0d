"""The metadata of a cluster of one broker: a controller on the broker's own tree.

A change is decided on the image and stored; then preparations are awaited, the image is replaced, listeners are called,
and last of all the caller is answered. Neither preparations nor listeners can prevent a change.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cluster.controller.configs import ConfigRules
from penstock.cluster.controller.controller import ConfigChange, ConfigOutcome, Controller, NewPartitions, TopicOutcome
from penstock.cluster.controller.election import PartitionRules, RulesIn
from penstock.cluster.controller.store import claim_controller
from penstock.cluster.controller.topics import NewTopic, TopicDefaults
from penstock.cluster.errors import BrokerIdInUse, MetadataUnavailable, NodeExists, NotController, NotStarted, TreeError
from penstock.cluster.image import ClusterImage
from penstock.cluster.image_propagation import Cancel, ImageHolder, Listener, Preparation
from penstock.cluster.membership.registration import ProducerIds, initialize_tree
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import BrokerRegistration, encode_broker
from penstock.cluster.tree.tree import Tree
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random

__all__ = [
    "ClusterMetadata",
    "ConfigChange",
    "ConfigOutcome",
    "Listener",
    "NewPartitions",
    "Preparation",
    "TopicOutcome",
]


class ClusterMetadata:
    """The metadata of a cluster of one broker. `start` it, then use it; the tree is closed by whoever opened it."""

    def __init__(
        self,
        tree: Tree,
        clock: Clock,
        random: Random,
        rules: ConfigRules,
        *,
        broker_id: int,
        defaults: TopicDefaults = TopicDefaults(),  # noqa: B008 - immutable
        rules_of: RulesIn = lambda _, __: PartitionRules(),
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._random = random
        self._rules = rules
        self._broker_id = broker_id
        self._defaults = defaults
        self._rules_of = rules_of
        self._holder = ImageHolder()
        self._controller: Controller | None = None
        self._producer_ids = ProducerIds(tree, broker_id)

    @property
    def image(self) -> ClusterImage:
        return self._holder.image

    @property
    def controller(self) -> Controller | None:
        """Of this cluster of one, once it has started."""
        return self._controller

    def listen(self, listener: Listener) -> Cancel:
        """Call `listener` with the image before and after each change, before whoever asked is answered."""
        return self._holder.listen(listener)

    def prepare(self, preparation: Preparation) -> Cancel:
        """Await `preparation` with the image before and after each change that was stored, before anybody sees it."""
        return self._holder.prepare(preparation)

    async def start(self, registration: BrokerRegistration, *, cluster_id: str | None = None) -> ClusterImage:
        """Register, become the controller, lead what can be led; the image then.

        `cluster_id` is what the data folders say, if they do: a new tree takes it over, and one of another cluster is
        a ClusterIdMismatch. BrokerIdInUse, LayoutError, TreeError.
        """
        await initialize_tree(self._tree, self._random, cluster_id)
        try:
            await self._tree.create(layout.broker_path(self._broker_id), encode_broker(registration), ephemeral=True)
        except NodeExists as error:
            raise BrokerIdInUse(self._broker_id) from error
        claim = await claim_controller(self._tree, self._broker_id, self._clock)
        if claim is None:
            raise NotController("another session is the controller of a tree that only this broker should have")
        controller = Controller(
            self._tree,
            claim,
            self._random,
            self._rules,
            broker_id=self._broker_id,
            rules_of=self._rules_of,
            defaults=self._defaults,
            on_image=lambda _, image: self._holder.take_over(image),
            prepare=lambda _, image: self._holder.prepare_for(image),
            deletes_at_once=True,
        )
        try:
            await controller.start()
        except MetadataUnavailable as refusal:
            if isinstance(refusal.__cause__, TreeError):
                raise refusal.__cause__ from None
            raise
        self._controller = controller
        return self._holder.image

    async def close(self) -> None:
        """Return when the changes under way are done; take no more."""
        controller, self._controller = self._controller, None
        if controller is not None:
            await controller.resign()

    async def create_topics(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[TopicOutcome]:
        """An outcome for each, in order."""
        return await self._started().create_topics(wanted, validate_only=validate_only)

    async def create_partitions(
        self, wanted: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """An outcome for each, in order."""
        return await self._started().create_partitions(wanted, validate_only=validate_only)

    async def delete_topics(self, names: Sequence[str | bytes]) -> list[TopicOutcome]:
        """By name or by id; an outcome for each, in order, with the topic that is no more."""
        return await self._started().delete_topics(names)

    async def alter_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[ConfigOutcome]:
        """An outcome for each, in order."""
        return await self._started().alter_configs(changes, validate_only=validate_only)

    async def allocate_producer_id(self) -> int:
        """A producer id that nobody had before. ProducerIdsExhausted, TreeError."""
        return await self._producer_ids.allocate()

    def _started(self) -> Controller:
        if self._controller is None:
            raise NotStarted
        return self._controller
