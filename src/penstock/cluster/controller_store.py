"""What a controller has in the tree, and the way into it.

Noun: a `ControllerStore`, the image that the tree holds by now, and what follows from it.

Rule: every write checks that the epoch of this controller is still the last, and that its claim has not been ended: a
controller that was replaced or is to be changes nothing, and learns of it by the first write that it tries. The image
is never ahead of the tree; it follows after each part of a decision. When it is not known whether a write was made, its
nodes say so, and it is made again if it was not; if they cannot be read, or tell of somebody else's hand, the store is
in doubt, and everything is read again before anything else is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from penstock.cluster import paths
from penstock.cluster.controller_claim import ControllerClaim
from penstock.cluster.decision import Decision
from penstock.cluster.deletions import Deletions
from penstock.cluster.errors import (
    BadVersion,
    ConnectionLost,
    DataTooLarge,
    LayoutError,
    MetadataUnavailable,
    NoNode,
    NotController,
    Refusal,
    SessionExpired,
    TreeBusy,
    TreeDiskFull,
    TreeError,
    TreeFailed,
)
from penstock.cluster.hosting import Hosting
from penstock.cluster.image import ClusterImage
from penstock.cluster.image_holder import Listener, Preparation
from penstock.cluster.loading import load_broker_epochs, load_unmanned
from penstock.cluster.parts import in_parts
from penstock.cluster.tree import ANY_VERSION, Check, Create, Delete, Node, Operation, Set, Tree

logger = logging.getLogger(__name__)

_CLAIM: Final = (paths.CONTROLLER_EPOCH, paths.CONTROLLER)
_TRIES: Final = 3  # of a write that is known not to have been made, as the connection broke


async def prepare_nothing(_: ClusterImage, __: ClusterImage) -> None:
    """For whoever is not waited for."""


class ControllerStore:
    """Of one claim. Used by one change at a time. `on_lost` is called once, when the claim is found to be lost."""

    def __init__(
        self,
        tree: Tree,
        claim: ControllerClaim,
        broker_id: int,
        on_image: Listener,
        prepare: Preparation,
        on_lost: Callable[[], None],
    ) -> None:
        self.tree = tree
        self.image = ClusterImage()
        self.hosting = Hosting(self.image)
        self.deletions = Deletions(self.image)
        self.broker_epochs: dict[int, int] = {}
        self.is_in_doubt = False
        self.lost: Refusal | None = None
        """Why nothing is changed any more."""
        self._claim = claim
        self._broker_id = broker_id
        self._on_image = on_image
        self._prepare = prepare
        self._on_lost = on_lost
        self._shown: ClusterImage | None = None

    def require(self) -> None:
        """Refusal once the claim is lost."""
        if self.lost is not None:
            raise self.lost.with_traceback(None)

    def lose(self, reason: Refusal) -> None:
        if self.lost is None:
            self.lost = reason
            self._on_lost()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What the tree raises here is a Refusal there."""
        try:
            yield
        except TreeError as error:
            raise self._failed(error) from error

    async def load(self) -> None:
        """Read everything but the brokers, which stay those of the image. MetadataUnavailable, LayoutError."""
        with self.reading():
            await self._catch_up()
            found = await load_unmanned(self.tree)
            self.broker_epochs = await load_broker_epochs(self.tree)
        self.is_in_doubt = False
        known = self.image
        self._follow(
            replace(found, brokers=known.brokers, leaving=known.leaving).with_controller(
                self._broker_id, self._claim.epoch
            )
        )

    async def show(self) -> None:
        """Let everybody see the image from now on."""
        if self._shown is None:
            self._shown = ClusterImage()
            await self._advance(self.image)

    async def store(self, decision: Decision) -> None:
        """In parts, if it is large: those that were stored when a Refusal is raised stay."""
        if not decision.operations and decision.image is self.image:
            return
        for part in in_parts(self.image, decision):
            self.require()
            if part.operations:
                await self._write(part.operations)
            await self._advance(part.image)
        for topic, index in decision.unclean:
            logger.error("partition %d of %s is led by a broker that may lack committed records", index, topic)

    async def reread(self) -> None:
        """Read again what may differ from the image. MetadataUnavailable."""
        try:
            await self.load()
        except LayoutError as error:
            raise MetadataUnavailable(str(error)) from error
        if self._shown is not None:
            await self._advance(self.image)

    async def give_up(self) -> None:
        """Let another be the controller at once."""
        operations = (Check(paths.CONTROLLER_EPOCH, self._claim.epoch_version), Delete(paths.CONTROLLER))
        try:
            await self.tree.multi(operations)
        except TreeError as error:
            logger.debug("the claim was not given back, and ends with the session: %s", error)

    # The way of a change.

    async def _write(self, operations: Sequence[Operation]) -> None:
        fenced = (
            Check(paths.CONTROLLER_EPOCH, self._claim.epoch_version),
            Check(paths.CONTROLLER, ANY_VERSION),
            *operations,
        )
        for tries_left in reversed(range(_TRIES)):
            try:
                await self.tree.multi(fenced)
            except ConnectionLost as error:
                if await self._has_happened(operations):
                    return
                if not tries_left or self.is_in_doubt:
                    raise MetadataUnavailable(str(error)) from error
            except TreeError as error:
                raise self._failed(error) from error
            else:
                return

    def _failed(self, error: TreeError) -> Refusal:
        """What a failure means for the claim and for the image, and what whoever asked is told."""
        is_replaced = isinstance(error, BadVersion | NoNode) and error.path in _CLAIM
        if is_replaced or isinstance(error, SessionExpired):
            logger.warning("this broker is the controller no more: %s", error)
            self.lose(NotController(f"this broker is the controller no more: {error}"))
            return NotController(str(error))
        refusal = MetadataUnavailable(str(error))
        logger.warning("the metadata was not stored or read: %s", error)
        if isinstance(error, TreeFailed):
            self.lose(refusal)
            self.lost = refusal  # and not that the session is over, which was heard on the way
        elif not isinstance(error, TreeBusy | TreeDiskFull | DataTooLarge):
            self.is_in_doubt = True
        return refusal

    async def _has_happened(self, operations: Sequence[Operation]) -> bool:
        """Whether a write was made that nobody answered: all of it is there, or nothing."""
        with self.reading():
            await self._catch_up()
            nodes = await self.tree.get_many([operation.path for operation in operations])
        found = [_is_done(operation, node) for operation, node in zip(operations, nodes, strict=True)]
        self.is_in_doubt = any(found) and not all(found)
        return all(found)

    async def _catch_up(self) -> None:
        """See everything that was written before now: a server that is behind may answer reads, but not this."""
        await self.tree.multi((Check(paths.CONTROLLER_EPOCH, self._claim.epoch_version),))

    async def _advance(self, image: ClusterImage) -> None:
        if self._shown is not None:
            await self._prepare(self._shown, image)
        self._follow(image)
        if self._shown is not None:
            before, self._shown = self._shown, image
            self._on_image(before, image)

    def _follow(self, image: ClusterImage) -> None:
        self.image = image
        self.hosting.follow(image)
        self.deletions.follow(image)


def _is_done(operation: Operation, node: Node | None) -> bool:
    match operation:
        case Delete():
            return node is None
        case Create(_, data):
            return node is not None and node.data == data
        case Set(_, data, version):
            return node is not None and node.data == data and version in (ANY_VERSION, node.version - 1)
        case Check():
            return True
