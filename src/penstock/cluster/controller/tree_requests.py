"""What Kafka's tools up to 3.9 request by writing into the tree, and how the controller serves it.

    /brokers/topics/<topic>             create a topic, or add partitions, by writing its document
    /admin/delete_topics/<topic>        delete a topic
    /admin/reassign_partitions          move partitions; the document shrinks with each move and is deleted at the end
    /admin/preferred_replica_election   elect preferred leaders; the document is deleted
    /config/changes/<notification>      settings of a topic, broker, user, client id or address have changed

The controller's own writes are recognized by comparison: what the tree holds is what the image says. Every write is in
the same transaction as the end of its request, or leaves the request in place, so the next controller continues where
this one was replaced. A request that cannot be understood is logged and deleted, because tools wait for it; a topic's
document is replaced by what the controller knows. As in Kafka, a document only adds partitions: what it says about
existing ones is not followed. Topics get an id, which tools before Kafka 2.8 neither write nor keep; it is also stored
in the node above the partitions, which tools do not touch.

A topic's node is watched first and read then, so no change is missed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.cluster.controller.election import (
    ElectionKind,
    elect_leaders,
    elect_partitions,
    with_elections_by_rules,
)
from penstock.cluster.controller.entity_configs import reload_entities
from penstock.cluster.controller.reassignment import alter_reassignments, remaining_moves, store_requested_moves
from penstock.cluster.controller.store import ControllerStore, load_topics
from penstock.cluster.controller.topics import nodes_above_state
from penstock.cluster.controller.transaction import GROUPED_OPERATIONS, Decision, TopicPartition
from penstock.cluster.errors import ApiException, LayoutError, NoNode
from penstock.cluster.image import NO_ID, NO_STATE, ClusterImage, PartitionImage, TopicImage
from penstock.cluster.topic_names import check_topic_name
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import (
    PREFERRED_ELECTION,
    REASSIGN_PARTITIONS,
    TopicAssignment,
    decode_config,
    decode_config_change,
    decode_preferred_election,
    decode_reassignment,
    decode_topic,
    decode_topic_id,
    encode_topic,
    encode_topic_id,
)
from penstock.cluster.tree.tree import Create, Delete, Event, EventKind, Node, Operation, Set, Tree

logger = logging.getLogger(__name__)

_ADMIN_REQUESTS: Final = (REASSIGN_PARTITIONS, PREFERRED_ELECTION)
_NODES_AT_ONCE: Final = 100

NewId = Callable[[], bytes]


class Requests(Enum):
    """Kinds of requests, in the order in which they are served."""

    TOPICS = auto()  # nodes under /brokers/topics came or went
    DOCUMENTS = auto()  # documents of topics changed
    DELETIONS = auto()
    ADMIN = auto()
    SETTINGS = auto()


# --- documents of topics


def follow_document(known: TopicImage, found: TopicAssignment | None) -> TopicImage:
    """The topic with the partitions that its document adds. `found` is None if the document cannot be understood."""
    added = () if found is None else found.partitions[len(known.partitions) :]
    if not added:
        return known
    return known.with_partitions(
        PartitionImage(each.replicas, adding=each.adding, removing=each.removing) for each in added
    )


def is_stored(topic: TopicImage, found: TopicAssignment | None) -> bool:
    """Whether the document says what the image says."""
    if found is None or (found.topic_id or NO_ID) != topic.topic_id:
        return False
    return found.partitions == tuple(partition.assignment for partition in topic.partitions)


def topics_without_id(image: ClusterImage) -> list[TopicImage]:
    """Topics without an id, which tools have created. Topics with a leader are left out: to brokers, a topic with
    another id is another topic.
    """
    return [
        topic
        for topic in image.topics.values()
        if topic.topic_id == NO_ID
        and topic.name not in image.deleting
        and all(partition.state_version == NO_STATE for partition in topic.partitions)
    ]


def with_topic_ids(image: ClusterImage, nodes: Mapping[str, Node], new_id: NewId) -> Decision:
    """Ids for the topics of these nodes, as far as they say what the image says."""
    created: list[TopicImage] = []
    operations: list[Operation] = []
    for topic in topics_without_id(image):
        node = nodes.get(topic.name)
        if node is not None and is_stored(topic, _decoded(topic.name, node)):
            created.append(replace(topic, topic_id=new_id()))
            operations.append(_write(created[-1], node.version))
    return Decision(tuple(operations), image.with_topics(created) if created else image)


def _decoded(name: str, node: Node) -> TopicAssignment | None:
    try:
        return decode_topic(name, node.data)
    except LayoutError:
        return None


def decide_topic(image: ClusterImage, topic: TopicImage, version: int, existing: Mapping[str, bytes]) -> Decision:
    """Store a topic that a tool has created or changed, and elect leaders for partitions without a state.

    `version` is that of the document; `existing` are the nodes above such states that exist, with their data.
    """
    after = image.with_topic(topic)
    without_state = _without_state(topic)
    elected = elect_partitions(after, [(topic, without_state)])
    above: list[Operation] = []
    for path, data in nodes_above_state(topic, *without_state).items():
        if path not in existing:
            above.append(Create(path, data))
        elif data and existing[path] != data:
            above.append(Set(path, data))
    return Decision((_write(topic, version), *above, *elected.operations), elected.image, elected.unclean)


def _without_state(topic: TopicImage) -> list[int]:
    return [index for index, each in enumerate(topic.partitions) if each.state_version == NO_STATE]


def _write(topic: TopicImage, version: int) -> Operation:
    topic_id = None if topic.topic_id == NO_ID else topic.topic_id
    document = encode_topic(topic_id, [each.assignment for each in topic.partitions])
    return Set(layout.topic_path(topic.name), document, version)


# --- serving


class ChangedSettings(NamedTuple):
    """What notifications under /config/changes name."""

    topics: frozenset[str]
    brokers: frozenset[str]
    others: bool


def changed_settings(nodes: Mapping[str, bytes]) -> ChangedSettings:
    """Whose settings have changed. `nodes` are the notifications by path; one that cannot be understood counts as one
    for users, client ids and addresses, which are all read again.
    """
    topics: set[str] = set()
    brokers: set[str] = set()
    others = False
    for path, data in nodes.items():
        try:
            kind, _, name = decode_config_change(path, data).partition("/")
        except LayoutError as error:
            logger.warning("change of settings not understood: path=%s reason=%s", path, error.reason)
            kind = name = ""
        if kind == "topics" and check_topic_name(name) is None:
            topics.add(name)
        elif kind == "brokers" and (name == layout.DEFAULT_BROKER or (name.isascii() and name.isdigit())):
            brokers.add(name)
        else:
            others = True
    return ChangedSettings(frozenset(topics), frozenset(brokers), others)


class TreeRequests:
    """The requests in one controller's tree. `wake` is called when some are due.

    Without `follows_topics` only the nodes under /admin and /config are served: the tree of a single broker is a file.
    """

    def __init__(
        self,
        store: ControllerStore,
        new_id: NewId,
        wake: Callable[[], None],
        *,
        follows_topics: bool,
        deletes_topics: bool,
    ) -> None:
        self.due: set[Requests] = set()
        self.moves: dict[TopicPartition, tuple[int, ...]] = {}
        """The moves that the document of old tools lists."""
        self._store = store
        self._new_id = new_id
        self._wake = wake
        self._follows_topics = follows_topics
        self._deletes_topics = deletes_topics
        self._watched: set[str] = set()
        self._changed: dict[str, None] = {}  # topics to watch again and to compare
        self._rejected: set[str] = set()  # nodes that are not topics; logged once

    def watch(self, tree: Tree) -> list[Callable[[], None]]:
        """Returns the functions that end it."""
        watched = [(path, Requests.ADMIN) for path in _ADMIN_REQUESTS]
        watched.append((layout.CONFIG_CHANGES, Requests.SETTINGS))
        if self._follows_topics:
            watched += ((layout.TOPICS, Requests.TOPICS), (layout.DELETE_TOPICS, Requests.DELETIONS))
        return [tree.watch(path, lambda _, kind=kind: self._due(kind)) for path, kind in watched]  # type: ignore[misc]

    def _due(self, kind: Requests) -> None:
        self.due.add(kind)
        self._wake()

    def image_loaded(self) -> None:
        """The image was read from the tree: nodes that are not watched yet are compared with it, and notifications of
        changes that it has are deleted.
        """
        self.due.add(Requests.SETTINGS)
        if self._follows_topics:
            self.due |= {Requests.TOPICS, Requests.DELETIONS}

    def took_over(self) -> None:
        """Serve what was requested before this controller was there."""
        self.due.add(Requests.ADMIN)

    async def assign_ids(self) -> None:
        """Assign ids to topics that were created while there was no controller."""
        store = self._store
        while names := [topic.name for topic in topics_without_id(store.image)]:
            with store.reading():
                found = await store.tree.get_many([layout.topic_path(name) for name in names])
            nodes = {name: node for name, node in zip(names, found, strict=True) if node is not None}
            await store.store(with_topic_ids(store.image, nodes, self._new_id))
            if topics_without_id(store.image):
                await store.reread()  # a document was changed meanwhile

    async def serve(self) -> None:
        """All that are due. ApiException: those that are not served completely stay due."""
        for kind, work in (
            (Requests.TOPICS, self._find_topics),
            (Requests.DOCUMENTS, self._compare_topics),
            (Requests.DELETIONS, self._mark_deletions),
            (Requests.ADMIN, self._serve_admin_requests),
            (Requests.SETTINGS, self._follow_settings),
        ):
            if kind in self.due:
                self.due.discard(kind)  # before the read: later changes set it again
                try:
                    await work()
                except BaseException:
                    self.due.add(kind)
                    raise

    # Topics.

    async def _find_topics(self) -> None:
        names = await self._children(layout.TOPICS)
        self._watched.intersection_update(names)
        self._rejected.intersection_update(names)
        self._changed |= dict.fromkeys(name for name in names if name not in self._watched)
        gone = self._store.image.topics.keys() - set(names)
        if gone:
            for name in sorted(gone):
                logger.warning("topic node deleted by hand, deleting its replicas: topic=%s", name)
            self._store.is_in_doubt = True
        if self._changed:
            self.due.add(Requests.DOCUMENTS)

    async def _compare_topics(self) -> None:
        """Watch the nodes of changed topics, and follow their documents."""
        while self._changed:
            names = list(self._changed)[:_NODES_AT_ONCE]
            for name in names:
                del self._changed[name]
            self._watched.update(names)
            try:
                await self._compare_some(names)
            except BaseException:
                self._changed |= dict.fromkeys(names)
                raise

    async def _compare_some(self, names: Sequence[str]) -> None:
        store = self._store
        paths = [layout.topic_path(name) for name in names]
        with store.reading():
            store.tree.watch_once(paths, self._topic_event)
            nodes = await store.tree.get_many([*paths, *map(layout.partitions_path, names)])
        for name, node, above in zip(names, nodes[: len(names)], nodes[len(names) :], strict=True):
            if node is None:
                self._watched.discard(name)
            else:
                await self._compare(name, node)
                await self._keep_id(name, above)

    def _topic_event(self, event: Event) -> None:
        name = event.path.rpartition("/")[2]
        self._watched.discard(name)
        if event.kind is not EventKind.DELETED:  # a deletion is noticed above
            self._changed[name] = None
            self._due(Requests.DOCUMENTS)

    async def _compare(self, name: str, node: Node) -> None:
        image = self._store.image
        known = image.topics.get(name)
        problem = check_topic_name(name)
        found: TopicAssignment | None = None
        try:
            found = decode_topic(name, node.data)
        except LayoutError as error:
            problem = problem or str(error)
        if known is None:
            if problem is not None or found is None:
                self._reject(name, problem)
            else:
                await self._create(name, found, node.version)
        elif name not in image.deleting and not is_stored(known, found):
            if found is not None and found.topic_id not in (None, known.topic_id):
                self._store.is_in_doubt = True  # another topic of the same name
                return
            await self._change(known, found, node.version)

    async def _keep_id(self, name: str, above: Node | None) -> None:
        """Store the id of a topic whose node above its partitions is older than this rule."""
        topic = self._store.image.topics.get(name)
        if above is None or topic is None or topic.topic_id == NO_ID or name in self._store.image.deleting:
            return
        if decode_topic_id(above.data) != topic.topic_id:
            path, data = layout.partitions_path(name), encode_topic_id(topic.topic_id)
            await self._store.store(Decision((Set(path, data, above.version),), self._store.image))

    def _reject(self, name: str, problem: str | None) -> None:
        if name not in self._rejected:
            self._rejected.add(name)
            logger.error("node is not a topic, it is ignored: path=%s reason=%s", layout.topic_path(name), problem)

    async def _create(self, name: str, found: TopicAssignment, version: int) -> None:
        store = self._store
        try:
            with store.reading():
                (loaded,) = await load_topics(store.tree, [(name, found)])
        except LayoutError as error:
            self._reject(name, str(error))
            return
        await self._load_settings([name], [])
        topic = loaded if loaded.topic_id != NO_ID else replace(loaded, topic_id=self._new_id())
        await store.store(decide_topic(store.image, topic, version, await self._existing(topic)))
        logger.info("topic created through the tree: topic=%s partitions=%d", name, len(topic.partitions))

    async def _change(self, known: TopicImage, found: TopicAssignment | None, version: int) -> None:
        store = self._store
        topic = follow_document(known, found)
        await store.store(decide_topic(store.image, topic, version, await self._existing(topic)))
        if len(topic.partitions) > len(known.partitions):
            logger.info("partitions added through the tree: topic=%s partitions=%d", topic.name, len(topic.partitions))
        else:
            logger.warning("document of a topic was changed, restoring it: topic=%s", topic.name)

    async def _existing(self, topic: TopicImage) -> dict[str, bytes]:
        """The nodes above missing states that exist."""
        wanted = list(nodes_above_state(topic, *_without_state(topic)))
        with self._store.reading():
            nodes = await self._store.tree.get_many(wanted)
        return {path: node.data for path, node in zip(wanted, nodes, strict=True) if node is not None}

    async def _mark_deletions(self) -> None:
        store = self._store
        names = [name for name in await self._children(layout.DELETE_TOPICS) if name not in store.image.deleting]
        unknown = [name for name in names if name not in store.image.topics]
        if unknown:
            with store.reading():
                nodes = await store.tree.get_many([layout.topic_path(name) for name in unknown])
            created = [name for name, node in zip(unknown, nodes, strict=True) if node is not None]
            self._changed |= dict.fromkeys(created)
            await self._compare_topics()
        wanted = [name for name in names if name in store.image.topics] if self._deletes_topics else []
        rejected = [name for name in names if name not in wanted]
        for name in rejected:
            reason = "it does not exist" if self._deletes_topics else "delete.topic.enable=false"
            logger.warning("topic not deleted: topic=%s reason=%s", name, reason)
        operations = tuple(Delete(layout.deletion_path(name)) for name in rejected)
        if names:
            after = store.image.with_deleting(wanted) if wanted else store.image
            await store.store(Decision(operations, after))

    # Moves and elections.

    async def _serve_admin_requests(self) -> None:
        with self._store.reading():
            moves, election = await self._store.tree.get_many(_ADMIN_REQUESTS)
        if moves is not None:
            await self._start_moves(moves.data)
        else:
            self.moves = {}
        if election is not None:
            await self._elect_preferred(election.data)

    async def _elect_preferred(self, document: bytes) -> None:
        store = self._store
        try:
            wanted = decode_preferred_election(document)
        except LayoutError as error:
            await self._discard(PREFERRED_ELECTION, error)
            return
        decision, errors = elect_leaders(store.image, wanted, ElectionKind.PREFERRED)
        await store.store(decision._replace(operations=(*decision.operations, Delete(PREFERRED_ELECTION))))
        _log_errors("preferred leader not elected", errors)

    async def _start_moves(self, document: bytes) -> None:
        try:
            requested = decode_reassignment(document)
        except LayoutError as error:
            await self._discard(REASSIGN_PARTITIONS, error)
            return
        if requested == self.moves and requested:
            return  # written by this controller
        decision, errors = alter_reassignments(self._store.image, requested)
        await self._store.store(decision)
        _log_errors("partition not reassigned", errors)
        self.moves = requested
        if not requested:
            await self._store.store(Decision((Delete(REASSIGN_PARTITIONS),), self._store.image))

    async def update_moves(self) -> None:
        """Remove moves that have ended from the document."""
        remaining = remaining_moves(self._store.image, self.moves)
        if remaining != self.moves:
            await self._store.store(Decision((store_requested_moves(remaining),), self._store.image))
            self.moves = remaining

    async def _discard(self, path: str, error: LayoutError) -> None:
        logger.error("admin request discarded: path=%s reason=%s", path, error.reason)
        await self._store.store(Decision((Delete(path),), self._store.image))

    # Settings.

    async def _follow_settings(self) -> None:
        store = self._store
        names = await self._children(layout.CONFIG_CHANGES)
        paths = [f"{layout.CONFIG_CHANGES}/{name}" for name in names]
        with store.reading():
            nodes = await store.tree.get_many(paths)
        found = {path: node.data for path, node in zip(paths, nodes, strict=True) if node is not None}
        changed = changed_settings(found)
        if changed.others:
            await reload_entities(store)
        await self._load_settings(sorted(changed.topics), sorted(changed.brokers))
        gone = list(found)
        while gone:
            some, gone = gone[:GROUPED_OPERATIONS], gone[GROUPED_OPERATIONS:]
            await store.store(Decision(tuple(Delete(path) for path in some), store.image))

    async def _load_settings(self, topics: Sequence[str], brokers: Sequence[str]) -> None:
        """Read the settings of these again. Those that cannot be understood stay as they are."""
        store = self._store
        paths = [*map(layout.topic_config_path, topics), *map(layout.broker_config_path, brokers)]
        with store.reading():
            nodes = await store.tree.get_many(paths)
        before = image = store.image
        for path, node in zip(paths, nodes, strict=True):
            image = _with_settings(image, path, node)
        if image == before:
            return
        names: Iterable[str] = image.topics if brokers else topics
        await store.store(with_elections_by_rules(before, Decision((), image), names))

    async def _children(self, folder: str) -> list[str]:
        with self._store.reading():
            try:
                return await self._store.tree.children(folder)
            except NoNode:
                return []


def _with_settings(image: ClusterImage, path: str, node: Node | None) -> ClusterImage:
    folder, _, name = path.rpartition("/")
    is_topic = folder == layout.TOPIC_CONFIGS
    known = image.topic_configs if is_topic else image.broker_configs
    try:
        settings = None if node is None else decode_config(path, node.data)
    except LayoutError as error:
        logger.error("settings not understood, keeping the previous ones: path=%s reason=%s", path, error.reason)
        return image
    if settings == known.get(name):
        return image
    logger.info("settings changed through the tree: path=%s", path)
    if settings is None:
        others = {key: value for key, value in known.items() if key != name}
        return replace(image, topic_configs=others) if is_topic else replace(image, broker_configs=others)
    return image.with_topic_config(name, settings) if is_topic else image.with_broker_config(name, settings)


def _log_errors(event: str, errors: Mapping[TopicPartition, ApiException]) -> None:
    for (topic, index), error in errors.items():
        logger.warning("%s: partition=%s-%d error=%s", event, topic, index, error)
