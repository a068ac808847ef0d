"""The metadata of a cluster, in the hands of its controller: so far, of the only broker there is.

Noun: `ClusterMetadata`, which holds the image, decides what is asked for (`topics`, `configs`, `elections`), stores it
in the tree, and tells listeners.

Rule: one change at a time: decide on the image, store, let those prepare who must, replace the image, tell. The image
is never ahead of the tree, and behind it only while a change is being stored and prepared; when it is not known whether
a change was stored, everything is read again. Every change checks that the controller's epoch is still the one that
this broker was elected with. Cancelling whoever asked for a change does not cancel the change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from penstock.cluster import paths
from penstock.cluster.assignment import Load, load_of
from penstock.cluster.configs import ConfigEdit, ConfigRules, ResourceKind, edit_config, replace_config
from penstock.cluster.decision import Decision
from penstock.cluster.elections import elect_all
from penstock.cluster.errors import (
    BrokerIdInUse,
    ClusterError,
    ClusterIdMismatch,
    DataTooLarge,
    InvalidRequest,
    MetadataUnavailable,
    NodeExists,
    NotStarted,
    Refusal,
    TreeBusy,
    TreeDiskFull,
    TreeError,
    UnknownTopicId,
)
from penstock.cluster.image import NO_STATE, ClusterImage, TopicImage
from penstock.cluster.layout import (
    BrokerRegistration,
    decode_cluster_id,
    decode_controller_epoch,
    encode_broker,
    encode_cluster_id,
    encode_controller,
    encode_controller_epoch,
)
from penstock.cluster.loading import load_image
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.topics import NewTopic, Placement, TopicDefaults, add_partitions, create_topic, delete_topic
from penstock.cluster.tree import Check, Create, Delete, Operation, Set, Tree, ensure_path, find
from penstock.log.folders.metadata_files import encode_id
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random

logger = logging.getLogger(__name__)

Listener = Callable[[ClusterImage, ClusterImage], None]
Preparation = Callable[[ClusterImage, ClusterImage], Awaitable[None]]
T = TypeVar("T")

_OPERATIONS_AT_ONCE = 1000


class TopicOutcome(NamedTuple):
    """What came of a change of a topic: the topic as it is then, or was before its deletion; or why there is none."""

    name: str
    topic: TopicImage | None = None
    refusal: Refusal | None = None


class NewPartitions(NamedTuple):
    """A topic is to have `total` partitions; `assignments` are the replicas of the new ones."""

    topic: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None


class ConfigChange(NamedTuple):
    """Some edits, or a whole new set in `replacement`."""

    kind: ResourceKind
    name: str
    edits: Sequence[ConfigEdit] = ()
    replacement: Mapping[str, str | None] | None = None


class ConfigOutcome(NamedTuple):
    kind: ResourceKind
    name: str
    refusal: Refusal | None = None


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
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._random = random
        self._rules = rules
        self._broker_id = broker_id
        self._defaults = defaults
        self._image = ClusterImage()
        self._epoch_version: int | None = None  # of the controller epoch's node; None until elected
        self._in_doubt = False
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listeners: list[Listener] = []
        self._preparations: list[Preparation] = []
        self._producer_ids = ProducerIds(tree, broker_id)

    @property
    def image(self) -> ClusterImage:
        return self._image

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the image before and after each change, before whoever asked is answered."""
        self._listeners.append(listener)

        def cancel() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return cancel

    def prepare(self, preparation: Preparation) -> Callable[[], None]:
        """Await `preparation` with the image before and after each change that was stored, before anybody sees it."""
        self._preparations.append(preparation)

        def cancel() -> None:
            if preparation in self._preparations:
                self._preparations.remove(preparation)

        return cancel

    async def start(self, registration: BrokerRegistration, *, cluster_id: str | None = None) -> ClusterImage:
        """Register, become the controller, lead what can be led; the image then.

        `cluster_id` is what the data folders say, if they do: a new tree takes it over, and one of another cluster is
        a ClusterIdMismatch. BrokerIdInUse, LayoutError, TreeError.
        """
        for path in paths.PERSISTENT:
            await ensure_path(self._tree, path)
        await self._settle_cluster_id(cluster_id)
        try:
            await self._tree.create(paths.broker(self._broker_id), encode_broker(registration), ephemeral=True)
        except NodeExists as error:
            raise BrokerIdInUse(self._broker_id) from error
        await self._become_controller()
        image = await load_image(self._tree)
        image = await self._finish_deletions(image)
        image = await self._elect(image)
        self._replace_image(image)
        return image

    async def close(self) -> None:
        """Return when the changes under way are done; take no more."""
        self._epoch_version = None
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def create_topics(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[TopicOutcome]:
        """An outcome for each, in order."""
        twice = _repeated([topic.name for topic in wanted])
        placement = Placement(self._random, self._load())

        def decide(image: ClusterImage, topic: NewTopic) -> Decision:
            _refuse_repeated(topic.name, twice)
            topic_id = self._random.uuid_bytes()
            return create_topic(image, topic, topic_id, placement, self._rules, self._defaults)

        results = await self._change_each(wanted, decide, validate_only)
        return [_topic_outcome(topic.name, result) for topic, result in zip(wanted, results, strict=True)]

    async def create_partitions(
        self, wanted: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """An outcome for each, in order."""
        twice = _repeated([item.topic for item in wanted])
        placement = Placement(self._random, self._load())

        def decide(image: ClusterImage, item: NewPartitions) -> Decision:
            _refuse_repeated(item.topic, twice)
            return add_partitions(image, item.topic, item.total, placement, item.assignments)

        results = await self._change_each(wanted, decide, validate_only)
        return [_topic_outcome(item.topic, result) for item, result in zip(wanted, results, strict=True)]

    async def delete_topics(self, names: Sequence[str | bytes]) -> list[TopicOutcome]:
        """By name or by id; an outcome for each, in order, with the topic that is no more."""

        def decide(image: ClusterImage, wanted: str | bytes) -> Decision:
            if isinstance(wanted, str):
                return delete_topic(image, wanted)
            topic = image.topic_by_id(wanted)
            if topic is None:
                raise UnknownTopicId(f"there is no topic with the id {wanted.hex()}")
            return delete_topic(image, topic.name)

        results = await self._change_each(names, decide)
        return [_deletion_outcome(wanted, result) for wanted, result in zip(names, results, strict=True)]

    async def alter_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> list[ConfigOutcome]:
        """An outcome for each, in order."""
        twice = _repeated([(change.kind, change.name) for change in changes])

        def decide(image: ClusterImage, change: ConfigChange) -> Decision:
            _refuse_repeated((change.kind, change.name), twice)
            if change.replacement is not None:
                return replace_config(image, change.kind, change.name, change.replacement, self._rules)
            return edit_config(image, change.kind, change.name, change.edits, self._rules)

        results = await self._change_each(changes, decide, validate_only)
        return [
            ConfigOutcome(change.kind, change.name, result if isinstance(result, Refusal) else None)
            for change, result in zip(changes, results, strict=True)
        ]

    async def allocate_producer_id(self) -> int:
        """A producer id that nobody had before. ProducerIdsExhausted, TreeError."""
        return await self._producer_ids.allocate()

    # Changes.

    async def _change_each(
        self, items: Sequence[T], decide: Callable[[ClusterImage, T], Decision], validate_only: bool = False
    ) -> list[_Result]:
        """Decide and store one after another; a task of its own, which whoever waits for it does not take along."""
        if self._epoch_version is None:
            raise NotStarted

        async def change_all() -> list[_Result]:
            async with self._changing:
                image = self._image
                results: list[_Result] = []
                for item in items:
                    try:
                        before = image if validate_only else await self._current_image()
                        decision = decide(before, item)
                        if not validate_only:
                            await self._store(decision)
                    except Refusal as refusal:
                        results.append(refusal)
                        continue
                    image = decision.image
                    results.append(_Images(before, image))
                return results

        task = asyncio.get_running_loop().create_task(change_all())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _current_image(self) -> ClusterImage:
        """The image, read again if the tree may have got ahead of it."""
        if self._in_doubt:
            try:
                image = await load_image(self._tree)
            except ClusterError as error:
                raise MetadataUnavailable(str(error)) from error
            self._in_doubt = False
            await self._advance(image)
        return self._image

    async def _store(self, decision: Decision) -> None:
        if self._epoch_version is None:
            raise MetadataUnavailable("the broker is stopping")
        try:
            await self._tree.multi((Check(paths.CONTROLLER_EPOCH, self._epoch_version), *decision.operations))
        except TreeError as error:
            logger.warning("a change of the metadata was not stored: %s", error)
            self._in_doubt = not isinstance(error, (TreeBusy, TreeDiskFull, DataTooLarge))
            raise MetadataUnavailable(str(error)) from error
        await self._advance(decision.image)

    async def _advance(self, image: ClusterImage) -> None:
        for preparation in list(self._preparations):
            try:
                await preparation(self._image, image)
            except Exception:
                logger.exception("a preparation for a change of the cluster's metadata failed")
        self._replace_image(image)

    def _replace_image(self, image: ClusterImage) -> None:
        before, self._image = self._image, image
        for listener in list(self._listeners):
            try:
                listener(before, image)
            except Exception:
                # The change is stored: the others hear of it, and whoever asked is told so.
                logger.exception("a listener to the cluster's metadata failed")

    def _load(self) -> Load | None:
        """What all partitions weigh; of no interest as long as there is nobody else to carry them."""
        if len(self._image.brokers) < 2:
            return None
        topics = self._image.topics.values()
        return load_of(partition.replicas for topic in topics for partition in topic.partitions)

    # The start.

    async def _settle_cluster_id(self, wanted: str | None) -> None:
        node = await find(self._tree, paths.CLUSTER_ID)
        if node is None:
            cluster_id = encode_id(self._random.uuid_bytes()) if wanted is None else wanted
            await self._tree.create(paths.CLUSTER_ID, encode_cluster_id(cluster_id))
            return
        found = decode_cluster_id(node.data)
        if wanted is not None and found != wanted:
            raise ClusterIdMismatch(wanted, found)

    async def _become_controller(self) -> None:
        node = await find(self._tree, paths.CONTROLLER_EPOCH)
        claim = Create(paths.CONTROLLER, encode_controller(self._broker_id, self._clock.now_ms()), ephemeral=True)
        if node is None:
            await self._tree.multi((claim, Create(paths.CONTROLLER_EPOCH, encode_controller_epoch(1))))
            self._epoch_version = 0
            return
        data = encode_controller_epoch(decode_controller_epoch(node.data) + 1)
        await self._tree.multi((claim, Set(paths.CONTROLLER_EPOCH, data, node.version)))
        self._epoch_version = node.version + 1

    async def _finish_deletions(self, image: ClusterImage) -> ClusterImage:
        """Delete what was marked for it and is there still."""
        for name in await self._tree.children(paths.DELETE_TOPICS):
            operations: tuple[Operation, ...] = (Delete(paths.deletion(name)),)
            if name in image.topics:
                decision = delete_topic(image, name)
                operations, image = decision.operations + operations, decision.image
            await self._tree.multi(operations)
        return image

    async def _elect(self, image: ClusterImage) -> ClusterImage:
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.state_version == NO_STATE:
                    await ensure_path(self._tree, paths.partition(topic.name, index))
        decision = elect_all(image, {self._broker_id})
        for start in range(0, len(decision.operations), _OPERATIONS_AT_ONCE):
            await self._tree.multi(decision.operations[start : start + _OPERATIONS_AT_ONCE])
        return decision.image


class _Images(NamedTuple):
    """The image on which a change was decided, and the one after it."""

    before: ClusterImage
    after: ClusterImage


_Result = _Images | Refusal


def _topic_outcome(name: str, result: _Result) -> TopicOutcome:
    if isinstance(result, Refusal):
        return TopicOutcome(name, refusal=result)
    return TopicOutcome(name, result.after.topics[name])


def _deletion_outcome(wanted: str | bytes, result: _Result) -> TopicOutcome:
    if isinstance(result, Refusal):
        return TopicOutcome(wanted if isinstance(wanted, str) else "", refusal=result)
    topic = result.before.topics[wanted] if isinstance(wanted, str) else result.before.topic_by_id(wanted)
    return TopicOutcome("" if topic is None else topic.name, topic)


def _repeated(keys: Sequence[Hashable]) -> frozenset[Hashable]:
    return frozenset(key for key, count in Counter(keys).items() if count > 1)


def _refuse_repeated(key: Hashable, repeated: frozenset[Hashable]) -> None:
    if key in repeated:
        raise InvalidRequest("the request names the same thing twice")
