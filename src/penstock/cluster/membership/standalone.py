"""The metadata of a broker: the interface, and its implementation for a cluster of one broker.

`StandaloneMetadata` runs a controller on the broker's own tree. A change is decided on the image and stored; then
preparations are awaited, the image is replaced, listeners are called, and last of all the caller is answered. Neither
preparations nor listeners can prevent a change. In a cluster, `Membership` implements the same interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from penstock.cluster.controller.configs import ConfigRules
from penstock.cluster.controller.controller import Controller
from penstock.cluster.controller.store import claim_controller
from penstock.cluster.controller.topics import TopicDefaults
from penstock.cluster.entity_configs import Settings
from penstock.cluster.errors import BrokerIdInUse, MetadataUnavailable, NodeExists, NotController, NotStarted, TreeError
from penstock.cluster.image import ClusterImage
from penstock.cluster.image_propagation import Cancel, ImageHolder, Listener, Preparation
from penstock.cluster.membership.registration import (
    ProducerIds,
    find_cluster_secret,
    initialize_tree,
    store_initial_users,
)
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import BrokerRegistration, encode_broker
from penstock.cluster.tree.tree import Tree
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random
from penstock.security.broker_proof import ClusterSecret


class Metadata(Protocol):
    """The cluster's metadata as a broker has it."""

    @property
    def image(self) -> ClusterImage: ...

    @property
    def controller(self) -> Controller | None:
        """None unless this broker is the controller."""

    def require_controller(self) -> Controller:
        """ClusterError unless this broker is the controller."""

    def listen(self, listener: Listener) -> Cancel:
        """Call `listener` with the image before and after each change, before the change is answered."""

    def prepare(self, preparation: Preparation) -> Cancel:
        """Await `preparation` with the image before and after each change, before the change is visible."""

    @property
    def secret(self) -> ClusterSecret:
        """The secret with which brokers of this cluster prove themselves."""

    async def allocate_producer_id(self) -> int:
        """A producer id that was never used. ProducerIdsExhausted, TreeError."""

    async def close(self) -> None: ...


class StandaloneMetadata(ImageHolder):
    """The metadata of a cluster of one broker. `start` it, then use it; the caller closes the tree."""

    def __init__(
        self,
        tree: Tree,
        clock: Clock,
        random: Random,
        rules: ConfigRules,
        *,
        broker_id: int,
        defaults: TopicDefaults = TopicDefaults(),  # noqa: B008 - immutable
        initial_users: Mapping[str, Settings] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.controller: Controller | None = None
        self.secret: ClusterSecret
        self._tree = tree
        self._clock = clock
        self._random = random
        self._rules = rules
        self._broker_id = broker_id
        self._defaults = defaults
        self._initial_users = initial_users
        self._producer_ids = ProducerIds(tree, broker_id)

    async def start(self, registration: BrokerRegistration, *, cluster_id: str | None = None) -> ClusterImage:
        """Register, become the controller, elect leaders; returns the image.

        `cluster_id` is what the data folders say, if they do: a new tree takes it over, and a tree of another cluster
        raises ClusterIdMismatch. BrokerIdInUse, LayoutError, TreeError.
        """
        await initialize_tree(self._tree, self._random, cluster_id)
        self.secret = await find_cluster_secret(self._tree, self._random)
        await store_initial_users(self._tree, self._initial_users)
        try:
            await self._tree.create(layout.broker_path(self._broker_id), encode_broker(registration), ephemeral=True)
        except NodeExists as error:
            raise BrokerIdInUse(self._broker_id) from error
        claim = await claim_controller(self._tree, self._broker_id, self._clock)
        if claim is None:
            raise NotController("another session is the controller of this broker's own metadata tree")
        controller = Controller(
            self._tree,
            claim,
            self._random,
            self._rules,
            broker_id=self._broker_id,
            defaults=self._defaults,
            on_image=lambda _, image: self.take_over(image),
            prepare=lambda _, image: self.prepare_for(image),
            deletes_at_once=True,
        )
        try:
            await controller.start()
        except MetadataUnavailable as error:
            if isinstance(error.__cause__, TreeError):
                raise error.__cause__ from None
            raise
        self.controller = controller
        return self.image

    def require_controller(self) -> Controller:
        """NotStarted."""
        if self.controller is None:
            raise NotStarted
        return self.controller

    async def allocate_producer_id(self) -> int:
        return await self._producer_ids.allocate()

    async def close(self) -> None:
        """Accept no further changes, and return when those under way are done."""
        controller, self.controller = self.controller, None
        if controller is not None:
            await controller.resign()
