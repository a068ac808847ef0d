"""The controller's claim, the image loaded from the tree, and fenced writes.

/controller is created and /controller_epoch raised in one transaction, so an epoch has one controller. Every write
checks the epoch and the claim: a controller that was replaced changes nothing and learns of it from its first write.

The image is never ahead of the tree; it follows after each chunk. If the outcome of a write is unknown, the nodes are
read, and the write is repeated if it was not made (3 tries). If they cannot be read, or show something else, everything
is read again before the next decision.

Nodes that disappear while the image is loaded were deleted and are left out. A document that cannot be understood
raises LayoutError: a cluster with a hole in its metadata would delete what it no longer knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.cluster.controller.election import PartitionsByBroker
from penstock.cluster.controller.topics import Deletions
from penstock.cluster.controller.transaction import Decision, chunked
from penstock.cluster.entity_configs import (
    CLIENTS,
    CONFIG,
    ENTITY_KINDS,
    USERS,
    Entity,
    EntityConfigs,
    entity_at,
)
from penstock.cluster.errors import (
    ApiException,
    BadVersion,
    ConnectionLost,
    DataTooLarge,
    LayoutError,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    NotController,
    SessionExpired,
    TreeBusy,
    TreeDiskFull,
    TreeError,
    TreeFailed,
)
from penstock.cluster.image import NO_CONTROLLER, NO_ID, ClusterImage, PartitionImage, Settings, TopicImage
from penstock.cluster.image_propagation import Listener, Preparation
from penstock.cluster.topic_names import check_topic_name
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import (
    BrokerRegistration,
    PartitionAssignment,
    TopicAssignment,
    decode_acls,
    decode_broker,
    decode_broker_epochs,
    decode_cluster_id,
    decode_config,
    decode_controller,
    decode_controller_epoch,
    decode_partition_state,
    decode_topic,
    decode_topic_id,
    encode_controller,
    encode_controller_epoch,
)
from penstock.cluster.tree.tree import ANY_VERSION, Check, Create, Delete, Node, Operation, Set, Tree, find
from penstock.runtime.clock import Clock
from penstock.security.acls import RESOURCE_TYPES, STORED_PATTERNS, Acls, Entries, ResourcePattern, title_of

logger = logging.getLogger(__name__)

OnUnreadable = Callable[[LayoutError], None]

_CLAIM: Final = (layout.CONTROLLER_EPOCH, layout.CONTROLLER)
_TRIES: Final = 3  # of a write that is known not to have been made, because the connection broke


# --- the claim


class ControllerClaim(NamedTuple):
    """The epoch of this controller, and the version of the epoch's node, which every write checks."""

    epoch: int
    epoch_version: int


async def claim_controller(tree: Tree, broker_id: int, clock: Clock) -> ControllerClaim | None:
    """The claim if this session is the controller now, None if another one is. LayoutError, TreeError."""
    while True:
        node = await find(tree, layout.CONTROLLER_EPOCH)
        epoch = 1 if node is None else decode_controller_epoch(node.data) + 1
        data = encode_controller_epoch(epoch)
        raised: Operation
        if node is None:
            raised, version = Create(layout.CONTROLLER_EPOCH, data), 0
        else:
            raised, version = Set(layout.CONTROLLER_EPOCH, data, node.version), node.version + 1
        claim = Create(layout.CONTROLLER, encode_controller(broker_id, clock.now_ms()), ephemeral=True)
        try:
            await tree.multi((claim, raised))
        except (NodeExists, BadVersion, ConnectionLost):
            holder = await find(tree, layout.CONTROLLER)
            if holder is None:
                continue  # another claim came and went, or the connection broke before anything was made
            return await _claim_of_session(tree) if holder.owner == tree.session_id else None
        return ControllerClaim(epoch, version)


async def _claim_of_session(tree: Tree) -> ControllerClaim:
    """The claim of a session that owns the node already."""
    node = await tree.get(layout.CONTROLLER_EPOCH)
    return ControllerClaim(decode_controller_epoch(node.data), node.version)


# --- loading


async def load_image(tree: Tree) -> ClusterImage:
    """Everything that the tree holds about the cluster. LayoutError, TreeError."""
    image = await load_image_without_brokers(tree)
    return replace(image, brokers=await load_brokers(tree))


async def load_image_without_brokers(tree: Tree) -> ClusterImage:
    """The same without the brokers. LayoutError, TreeError."""
    cluster_id = await find(tree, layout.CLUSTER_ID)
    controller = await find(tree, layout.CONTROLLER)
    epoch = await find(tree, layout.CONTROLLER_EPOCH)
    # Before the settings: a tool that creates a topic writes its settings first.
    topics = await _load_topics(tree)
    image = ClusterImage(
        cluster_id="" if cluster_id is None else decode_cluster_id(cluster_id.data),
        controller_id=NO_CONTROLLER if controller is None else decode_controller(controller.data),
        controller_epoch=0 if epoch is None else decode_controller_epoch(epoch.data),
        topic_configs=await _load_configs(tree, layout.TOPIC_CONFIGS),
        broker_configs=await _load_configs(tree, layout.BROKER_CONFIGS),
        acls=await load_acls(tree),
        entities=await load_entities(tree),
    )
    image = image.with_topics(topics)
    return image.with_deleting(await marked_for_deletion(tree))


async def load_brokers(tree: Tree, unreadable: OnUnreadable | None = None) -> dict[int, BrokerRegistration]:
    """The live brokers, in the order of their ids. TreeError; LayoutError, unless `unreadable` handles it."""
    found: dict[int, BrokerRegistration] = {}
    for name, node in await _nodes_under(tree, layout.BROKER_IDS):
        try:
            if not (name.isascii() and name.isdigit() and len(name) <= 10):
                raise LayoutError(f"{layout.BROKER_IDS}/{name}", "its name is not a broker id")
            found[int(name)] = decode_broker(int(name), node.data, node.created)
        except LayoutError as error:
            if unreadable is None:
                raise
            unreadable(error)
    return dict(sorted(found.items()))


async def load_broker_epochs(tree: Tree) -> dict[int, int]:
    """LayoutError, TreeError."""
    node = await find(tree, layout.BROKER_EPOCHS)
    return {} if node is None else decode_broker_epochs(node.data)


async def marked_for_deletion(tree: Tree) -> list[str]:
    """The topics whose deletion is marked, including those that are deleted already."""
    try:
        return await tree.children(layout.DELETE_TOPICS)
    except NoNode:
        return []


async def load_acls(tree: Tree) -> Acls:
    """All ACLs. Those that cannot be understood are reported as the problem of the rest. TreeError."""
    found: dict[ResourcePattern, Entries] = {}
    problems: list[LayoutError] = []
    for pattern_type in STORED_PATTERNS:
        root, _, _ = layout.acl_folder(RESOURCE_TYPES[0], pattern_type).rpartition("/")
        try:
            present = frozenset(await tree.children(root))
        except NoNode:
            continue
        for kind in RESOURCE_TYPES:
            if title_of(kind) not in present:
                continue
            folder = layout.acl_folder(kind, pattern_type)
            for name, node in await _nodes_under(tree, folder):
                try:
                    entries = decode_acls(f"{folder}/{name}", node.data)
                except LayoutError as error:
                    problems.append(error)
                else:
                    if entries:
                        found[ResourcePattern(kind, name, pattern_type)] = entries
    for problem in problems:
        logger.error(
            "ACLs cannot be read, only super users are served: path=%s reason=%s", problem.path, problem.reason
        )
    return Acls(found, str(problems[0]) if problems else None)


async def load_entities(tree: Tree) -> EntityConfigs:
    """The settings of users, client ids and addresses. A document that cannot be understood counts as missing: its user
    cannot log in. TreeError.
    """
    found = [
        (f"{CONFIG}/{kind}/{name}", node)
        for kind in ENTITY_KINDS
        for name, node in await _nodes_under(tree, f"{CONFIG}/{kind}")
    ]
    folders = [f"{path}/{CLIENTS}" for path, _ in found if path.startswith(f"{CONFIG}/{USERS}/")]
    for folder, present in zip(folders, await tree.get_many(folders), strict=True):
        if present is not None:
            found += [(f"{folder}/{name}", node) for name, node in await _nodes_under(tree, folder)]
    configs: dict[Entity, Settings] = {}
    for path, node in found:
        entity = entity_at(path)
        try:
            if entity is not None:
                configs[entity] = decode_config(path, node.data)
        except LayoutError as error:
            logger.error(
                "settings of a user, client id or address ignored: path=%s reason=%s", path, type(error).__name__
            )
    return EntityConfigs(configs)


async def _load_configs(tree: Tree, folder: str) -> dict[str, Settings]:
    return {name: decode_config(f"{folder}/{name}", node.data) for name, node in await _nodes_under(tree, folder)}


async def _load_topics(tree: Tree) -> list[TopicImage]:
    documents: list[tuple[str, TopicAssignment]] = []
    for name, node in await _nodes_under(tree, layout.TOPICS):
        problem = check_topic_name(name)
        try:
            found = decode_topic(name, node.data)
        except LayoutError as error:
            # No broker has a replica of what never had a partition.
            if await tree.exists(layout.partitions_path(name)):
                raise
            problem = problem or str(error)
        if problem is None:
            documents.append((name, found))
        else:
            logger.error("node is not a topic, it is ignored: path=%s reason=%s", layout.topic_path(name), problem)
    return await load_topics(tree, documents)


async def load_topics(tree: Tree, documents: Sequence[tuple[str, TopicAssignment]]) -> list[TopicImage]:
    """The topics with these documents, with their ids and the states of their partitions. LayoutError, TreeError."""
    without_id = [name for name, topic in documents if topic.topic_id is None]
    kept = await tree.get_many([layout.partitions_path(name) for name in without_id])
    ids = {name: decode_topic_id(node.data) for name, node in zip(without_id, kept, strict=True) if node is not None}
    states = [
        layout.partition_state_path(name, index) for name, topic in documents for index in range(len(topic.partitions))
    ]
    nodes = iter(zip(states, await tree.get_many(states), strict=True))
    return [
        TopicImage(
            name,
            topic.topic_id or ids.get(name) or NO_ID,
            tuple(_partition(replicas, *next(nodes)) for replicas in topic.partitions),
        )
        for name, topic in documents
    ]


def _partition(assignment: PartitionAssignment, path: str, node: Node | None) -> PartitionImage:
    if node is None:
        return PartitionImage(assignment.replicas, adding=assignment.adding, removing=assignment.removing)
    state = decode_partition_state(path, node.data)
    return PartitionImage(
        assignment.replicas,
        state.leader,
        state.leader_epoch,
        state.isr,
        assignment.adding,
        assignment.removing,
        state.controller_epoch,
        state.recovering,
        node.version,
        state.elr,
    )


async def _nodes_under(tree: Tree, folder: str) -> Iterable[tuple[str, Node]]:
    try:
        names = await tree.children(folder)
    except NoNode:
        return []
    nodes = await tree.get_many([f"{folder}/{name}" for name in names])
    return [(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]


# --- fenced writes


async def prepare_nothing(_: ClusterImage, __: ClusterImage) -> None:
    """The preparation for listeners that need none."""


class ControllerStore:
    """The image and the writes of one claim, for one change at a time. `on_lost` is called once, if it is lost."""

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
        self.partitions_by_broker = PartitionsByBroker(self.image)
        self.deletions = Deletions(self.image)
        self.broker_epochs: dict[int, int] = {}
        self.is_in_doubt = False
        self.lost: ApiException | None = None
        """Why nothing can be changed any more."""
        self._claim = claim
        self._broker_id = broker_id
        self._on_image = on_image
        self._prepare = prepare
        self._on_lost = on_lost
        self._shown: ClusterImage | None = None

    def require(self) -> None:
        """ApiException once the claim is lost."""
        if self.lost is not None:
            raise self.lost.with_traceback(None)

    def lose(self, reason: ApiException) -> None:
        if self.lost is None:
            self.lost = reason
            self._on_lost()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turns a TreeError into an ApiException."""
        try:
            yield
        except TreeError as error:
            raise self._failed(error) from error

    async def load(self) -> None:
        """Read everything except the brokers, which stay those of the image. MetadataUnavailable, LayoutError."""
        with self.reading():
            await self._catch_up()
            found = await load_image_without_brokers(self.tree)
            self.broker_epochs = await load_broker_epochs(self.tree)
        self.is_in_doubt = False
        known = self.image
        self._follow(
            replace(found, brokers=known.brokers, shutting_down=known.shutting_down).with_controller(
                self._broker_id, self._claim.epoch
            )
        )

    async def show(self) -> None:
        """Report this image and all later ones."""
        if self._shown is None:
            self._shown = ClusterImage()
            await self._advance(self.image)

    async def store(self, decision: Decision) -> None:
        """In chunks if it is large; those stored before an ApiException stay. MetadataUnavailable, NotController."""
        if not decision.operations and decision.image is self.image:
            return
        for chunk in chunked(self.image, decision):
            self.require()
            if chunk.operations:
                await self._write(chunk.operations)
            await self._advance(chunk.image)
        for topic, index in decision.unclean:
            leader = decision.image.topics[topic].partitions[index].leader
            logger.error(
                "unclean leader election: partition=%s-%d leader=%d; committed records may be lost",
                topic,
                index,
                leader,
            )

    async def reread(self) -> None:
        """Read everything again. MetadataUnavailable."""
        try:
            await self.load()
        except LayoutError as error:
            raise MetadataUnavailable(str(error)) from error
        if self._shown is not None:
            await self._advance(self.image)

    async def give_up(self) -> None:
        """Delete the claim, so that another broker can take over at once."""
        operations = (Check(layout.CONTROLLER_EPOCH, self._claim.epoch_version), Delete(layout.CONTROLLER))
        try:
            await self.tree.multi(operations)
        except TreeError as error:
            logger.debug("controller claim not deleted, it ends with the session: error=%s", error)

    async def _write(self, operations: Sequence[Operation]) -> None:
        fenced = (
            Check(layout.CONTROLLER_EPOCH, self._claim.epoch_version),
            Check(layout.CONTROLLER, ANY_VERSION),
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

    def _failed(self, error: TreeError) -> ApiException:
        """What a failure means for the claim and the image; returns the error for the caller."""
        is_replaced = isinstance(error, BadVersion | NoNode) and error.path in _CLAIM
        if is_replaced or isinstance(error, SessionExpired):
            logger.warning("controller claim lost: broker=%d error=%s", self._broker_id, error)
            self.lose(NotController(f"this broker is no longer the controller: {error}"))
            return NotController(str(error))
        failure = MetadataUnavailable(str(error))
        logger.warning("metadata tree operation failed: error=%s", error)
        if isinstance(error, TreeFailed):
            self.lose(failure)
            self.lost = failure  # not the end of the session, which is reported first
        elif not isinstance(error, TreeBusy | TreeDiskFull | DataTooLarge):
            self.is_in_doubt = True
        return failure

    async def _has_happened(self, operations: Sequence[Operation]) -> bool:
        """Whether a write without an answer was made; a transaction is made completely or not at all."""
        with self.reading():
            await self._catch_up()
            nodes = await self.tree.get_many([operation.path for operation in operations])
        found = [_is_done(operation, node) for operation, node in zip(operations, nodes, strict=True)]
        self.is_in_doubt = any(found) and not all(found)
        return all(found)

    async def _catch_up(self) -> None:
        """Wait until reads show all earlier writes: a server that lags answers reads, but not this."""
        await self.tree.multi((Check(layout.CONTROLLER_EPOCH, self._claim.epoch_version),))

    async def _advance(self, image: ClusterImage) -> None:
        if self._shown is not None:
            await self._prepare(self._shown, image)
        self._follow(image)
        if self._shown is not None:
            before, self._shown = self._shown, image
            self._on_image(before, image)

    def _follow(self, image: ClusterImage) -> None:
        self.image = image
        self.partitions_by_broker.follow(image)
        if image.deleting or self.deletions.awaiting:
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
