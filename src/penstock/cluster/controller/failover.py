"""What the controller does when brokers join, leave or shut down, and when it takes over.

A broker is identified by its epoch: one that is back under another epoch left and joined, however fast it was. Whether
it may have lost unsynced records follows from its registration and from the last epoch that a controller has handled.
That epoch is stored with the last chunk of the decision, so if a controller fails in between, the next one handles the
broker again. Only partitions of those brokers are looked at; a new controller looks at all of them. A broker whose data
folder has failed lists its offline replicas in its registration and leaves a notification, as in Kafka (KIP-112).

On a controlled shutdown the broker's leaderships move to other in-sync replicas and it leaves every ISR, before its
stop is noticed. Where too few would be in sync without it, or no other replica can lead, it stays and the partition is
reported; the broker asks again. A partition without a second replica is not reported.

`ControllerTasks` run without a request: reread what is in doubt, handle membership changes, complete reassignments,
finish topic deletions and changes that another controller left unfinished, and serve what tools request by writing
into the tree. A task is done completely or stays due.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster.controller.acls import follow_changes
from penstock.cluster.controller.election import (
    Changes,
    PartitionRules,
    PartitionsByBroker,
    all_partitions,
    can_lead,
    elect_partitions,
    eligible_after,
    partition_rules,
)
from penstock.cluster.controller.reassignment import (
    complete_reassignments,
)
from penstock.cluster.controller.store import ControllerStore, load_brokers, marked_for_deletion
from penstock.cluster.controller.topics import delete_topic, nodes_above_state
from penstock.cluster.controller.transaction import GROUPED_OPERATIONS, Decision, TopicPartition
from penstock.cluster.controller.tree_requests import TreeRequests
from penstock.cluster.errors import LayoutError, NoNode, StaleBrokerEpoch
from penstock.cluster.image import NO_STATE, ClusterImage, ImageDraft, PartitionImage, TopicImage
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import (
    NO_LEADER,
    UNKNOWN_EPOCH,
    BrokerRegistration,
    encode_broker_epochs,
)
from penstock.cluster.tree.tree import Create, Delete, Operation, Set, Tree, ensure_path

logger = logging.getLogger(__name__)


# --- brokers that join and leave


class MembershipChanges(NamedTuple):
    """`image` has the brokers that are registered now. Of those that `joined`, `uncleanly_stopped` may have lost
    unsynced records, and `emptied` everything that their registration does not list as kept. `changed` stayed, but have
    other replicas in failed data folders.
    """

    image: ClusterImage
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    uncleanly_stopped: tuple[int, ...] = ()
    emptied: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.joined or self.left or self.changed)


def find_membership_changes(
    image: ClusterImage,
    found: Mapping[int, BrokerRegistration],
    handled_epochs: Mapping[int, int],
    unsettled: Iterable[int] = (),
) -> MembershipChanges:
    """Compare the registrations `found` with the image. `handled_epochs` are those in the tree; `unsettled` brokers
    left before, and what follows from that is not stored completely.
    """
    known = image.brokers
    is_new = {each: each not in known or known[each].epoch != found[each].epoch for each in found}
    joined = tuple(each for each in sorted(found) if is_new[each] and handled_epochs.get(each) != found[each].epoch)
    left = {each for each in known if each not in found or is_new[each]}
    shutting_down = frozenset(each for each in image.shutting_down if each in found and not is_new[each])
    return MembershipChanges(
        replace(image, brokers={each: found[each] for each in sorted(found)}, shutting_down=shutting_down),
        joined,
        tuple(sorted({*left, *unsettled})),
        tuple(each for each in joined if had_unclean_shutdown(found[each], handled_epochs.get(each, UNKNOWN_EPOCH))),
        tuple(each for each in joined if found[each].is_emptied),
        tuple(each for each in sorted(found) if not is_new[each] and found[each].offline != known[each].offline),
    )


def had_unclean_shutdown(registration: BrokerRegistration, known_epoch: int) -> bool:
    """Whether a broker that joined may have lost unsynced records: its data folders do not say that its previous epoch
    ended cleanly. `known_epoch` is the previous epoch as far as controllers have seen it: they may have missed some
    while sessions ended one after the other.
    """
    clean_epoch, since = registration.clean_epoch, registration.clean_since
    if clean_epoch == UNKNOWN_EPOCH or known_epoch == UNKNOWN_EPOCH:
        return clean_epoch == UNKNOWN_EPOCH
    return not (clean_epoch if since == UNKNOWN_EPOCH else since) <= known_epoch <= clean_epoch


def decide_membership_changes(
    changes: MembershipChanges,
    partitions: Iterable[tuple[TopicImage, Iterable[int]]],
    handled_epochs: Mapping[int, int],
) -> Decision:
    """Elections for `partitions`: those of the brokers that changed, or all of them."""
    decision = elect_partitions(changes.image, partitions, changes.joined, changes.uncleanly_stopped, changes.emptied)
    if not changes.joined:
        return decision
    epochs = {**handled_epochs, **{each: changes.image.brokers[each].epoch for each in changes.joined}}
    operation = Set(layout.BROKER_EPOCHS, encode_broker_epochs(epochs))
    return decision._replace(operations=(*decision.operations, operation))


# --- controlled shutdown


class Shutdown(NamedTuple):
    """`remaining` are the partitions that still need the broker."""

    decision: Decision
    remaining: tuple[TopicPartition, ...]


def shut_down(
    partitions_by_broker: PartitionsByBroker, broker_id: int, broker_epoch: int, *, force: bool = False
) -> Shutdown:
    """StaleBrokerEpoch if the broker is not registered under this epoch."""
    registered = partitions_by_broker.image.brokers.get(broker_id)
    if registered is None or registered.epoch != broker_epoch:
        raise StaleBrokerEpoch(f"broker {broker_id} is not registered under epoch {broker_epoch}")
    image = partitions_by_broker.image.with_shutting_down(broker_id)
    changes = Changes(image)
    remaining: list[TopicPartition] = []
    for topic, indexes in partitions_by_broker.of((broker_id,)):
        if topic.name in image.deleting:
            continue
        rules = partition_rules(image, topic.name)
        for index in indexes:
            partition = topic.partitions[index]
            if broker_id not in partition.isr or len(partition.replicas) == 1:
                continue
            after = _without(image, partition, broker_id, rules, force)
            if after is None:
                remaining.append((topic.name, index))
            else:
                changes.put(topic.name, index, after)
    return Shutdown(changes.decision(), tuple(remaining))


def _without(
    image: ClusterImage, partition: PartitionImage, broker_id: int, rules: PartitionRules, force: bool
) -> PartitionImage | None:
    """The partition without this broker in its ISR; None if it needs the broker."""
    isr = tuple(broker for broker in partition.isr if broker != broker_id)
    enough = rules.effective_min_isr(partition)
    if not isr or (len(isr) < enough <= len(partition.isr) and not force):
        return None
    leader = partition.leader
    if leader == broker_id:
        leader = next(
            (broker for broker in partition.replicas if broker in isr and can_lead(image, partition, broker)), NO_LEADER
        )
        if leader == NO_LEADER:
            return None
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        isr=isr,
        elr=eligible_after(partition, isr, rules),
    )


# --- changes that another controller left unfinished


def partitions_without_state(image: ClusterImage) -> Iterable[tuple[TopicImage, int]]:
    """Partitions without a stored state, of topics that are not being deleted."""
    return (
        (topic, index)
        for topic in image.topics.values()
        if topic.name not in image.deleting
        for index, partition in enumerate(topic.partitions)
        if partition.state_version == NO_STATE
    )


async def missing_nodes(tree: Tree, image: ClusterImage) -> tuple[Operation, ...]:
    """Operations that create the nodes above missing partition states. TreeError."""
    wanted: dict[str, bytes] = {}
    for topic, index in partitions_without_state(image):
        wanted |= nodes_above_state(topic, index)
    nodes = await tree.get_many(list(wanted))
    return tuple(Create(*each) for each, node in zip(wanted.items(), nodes, strict=True) if node is None)


async def unfinished_deletions(tree: Tree, image: ClusterImage, marked: Iterable[str]) -> Decision:
    """Remove what is left of topics whose deletion has begun, where it would be in the way of the rest. TreeError."""
    operations: list[Operation] = []
    left: list[str] = []
    for name in marked:
        topic = image.topics.get(name)
        if topic is not None:
            operations += await _delete_nodes_without_state(tree, topic)
            continue
        if await tree.exists(layout.topic_path(name)):
            continue  # a tool has created and marked it since the image was read
        if name in image.topic_configs:
            left.append(name)
            operations.append(Delete(layout.topic_config_path(name)))
        operations.append(Delete(layout.deletion_path(name)))
    return Decision(tuple(operations), image.without_topic_configs(left) if left else image)


async def _delete_nodes_without_state(tree: Tree, topic: TopicImage) -> list[Operation]:
    """Delete the nodes of partitions that no longer have a state, and the node above if none has."""
    stateless = {str(index) for index, each in enumerate(topic.partitions) if each.state_version == NO_STATE}
    if not stateless:
        return []
    try:
        children = await tree.children(layout.partitions_path(topic.name))
    except NoNode:
        return []
    operations: list[Operation] = [
        Delete(f"{layout.partitions_path(topic.name)}/{child}") for child in children if child in stateless
    ]
    if len(stateless) == len(topic.partitions) and len(operations) == len(children):
        operations.append(Delete(layout.partitions_path(topic.name)))
    return operations


# --- tasks


class ControllerTasks:
    """The tasks of one controller. With `deletes_at_once`, no broker's report is awaited when a topic is deleted."""

    def __init__(self, store: ControllerStore, requests: TreeRequests, *, deletes_at_once: bool) -> None:
        self._store = store
        self.requests = requests
        self._deletes_at_once = deletes_at_once
        self._have_brokers_changed = False
        self._are_moves_due = False
        self._are_acls_due = False
        self._are_log_dir_events_due = False
        self._acl_changes: frozenset[str] = frozenset()  # notifications whose changes are in the image
        self._unsettled: set[int] = set()  # brokers that left, and what follows from that is not stored completely

    @property
    def are_due(self) -> bool:
        store = self._store
        return bool(
            store.is_in_doubt
            or self._have_brokers_changed
            or self._are_log_dir_events_due
            or self._unsettled
            or self._are_moves_due
            or self.requests.due
            or self._are_acls_due
            or (store.deletions.awaiting and store.deletions.finished())
        )

    def brokers_changed(self) -> None:
        self._have_brokers_changed = True

    def log_dirs_changed(self) -> None:
        """A broker reports that a data folder has failed."""
        self._are_log_dir_events_due = True

    def moves_changed(self) -> None:
        self._are_moves_due = True

    def acls_changed(self) -> None:
        """A tool has written ACLs to the tree."""
        self._are_acls_due = True

    def isrs_changed(self, partitions: Iterable[TopicPartition]) -> None:
        """Moves of these partitions may be complete."""
        image = self._store.image
        found = (image.partition(*key) for key in partitions)
        if any(each is not None and (each.adding or each.removing) for each in found):
            self._are_moves_due = True

    async def begin(self) -> None:
        """Take over from the previous controller. ApiException, LayoutError."""
        store = self._store
        with store.reading():
            await ensure_path(store.tree, layout.BROKER_EPOCHS)
        await store.load()
        await self._clear_unfinished_changes()
        await self.requests.assign_ids()
        changes = await self._find_changes()
        await self._elect_all(changes)
        self._note_handled(changes)
        self._are_moves_due = True
        self.requests.took_over()
        await self.carry_on()
        # Leaders are elected: the rest can wait until the image is shown.
        self.requests.image_loaded()

    async def settle(self) -> None:
        """The tasks that come before any other change. ApiException."""
        store = self._store
        store.require()
        if store.is_in_doubt:
            await store.reread()
            await self._clear_unfinished_changes()
            await self.requests.assign_ids()
            self.requests.image_loaded()
            if any(partitions_without_state(store.image)):
                await self._elect_all(MembershipChanges(store.image))
            self._are_moves_due = True
        if self._are_log_dir_events_due:
            await self._take_log_dir_events()
        if self._have_brokers_changed or self._unsettled:
            await self._follow_brokers()

    async def carry_on(self) -> None:
        """The tasks that can wait. ApiException."""
        store = self._store
        if self.requests.due:
            await self.requests.serve()
        if self._are_acls_due:
            await self._follow_acls()
        if self._are_moves_due:
            await store.store(complete_reassignments(store.image, store.partitions_by_broker.moving()))
            self._are_moves_due = False
        if self._deletes_at_once:
            for name in sorted(store.image.deleting):
                deleted = delete_topic(store.image, name)
                await store.store(Decision((*deleted.operations, Delete(layout.deletion_path(name))), deleted.image))
        finished: Sequence[str] = store.deletions.finished() if store.deletions.awaiting else ()
        while finished:
            finished = await self._finish_deletions(finished)
        if self.requests.moves:
            await self.requests.update_moves()

    # Brokers.

    async def _follow_brokers(self) -> None:
        store = self._store
        changes = await self._find_changes()
        if not changes:
            # The same brokers, perhaps with other addresses.
            if changes.image.brokers != store.image.brokers:
                await store.store(Decision((), changes.image))
            return
        _log_membership_changes(changes)
        self._unsettled.update(changes.left, changes.changed)
        partitions = store.partitions_by_broker.of({*changes.joined, *changes.left, *changes.changed})
        decision = decide_membership_changes(changes, partitions, store.broker_epochs)
        try:
            await store.store(decision)
        except BaseException:
            self._have_brokers_changed = True
            raise
        self._unsettled.clear()
        self._note_handled(changes)
        self._are_moves_due = self._are_moves_due or bool(store.partitions_by_broker.moving())

    async def _take_log_dir_events(self) -> None:
        """Remove the notifications; which replicas are offline is in the registrations, which are read afterwards."""
        tree = self._store.tree
        self._are_log_dir_events_due = False  # before the read: later events set it again
        try:
            with self._store.reading(), contextlib.suppress(NoNode):
                for name in await tree.children(layout.LOG_DIR_EVENTS):
                    self._have_brokers_changed = True
                    with contextlib.suppress(NoNode):
                        await tree.delete(f"{layout.LOG_DIR_EVENTS}/{name}")
        except BaseException:
            self._are_log_dir_events_due = True
            raise

    async def _find_changes(self) -> MembershipChanges:
        store = self._store
        self._have_brokers_changed = False  # before the read: later changes set it again
        try:
            with store.reading():
                found: dict[int, BrokerRegistration] = await load_brokers(store.tree, _log_unreadable)
        except BaseException:
            self._have_brokers_changed = True
            raise
        return find_membership_changes(store.image, found, store.broker_epochs, self._unsettled)

    def _note_handled(self, changes: MembershipChanges) -> None:
        store, brokers = self._store, changes.image.brokers
        store.broker_epochs = {**store.broker_epochs, **{each: brokers[each].epoch for each in changes.joined}}

    # Unfinished changes.

    async def _clear_unfinished_changes(self) -> None:
        store = self._store
        with store.reading():
            marked = await marked_for_deletion(store.tree)
            unfinished = await unfinished_deletions(store.tree, store.image, marked)
        await store.store(unfinished)

    async def _elect_all(self, changes: MembershipChanges) -> None:
        """Elections for every partition, also for those without a state."""
        store = self._store
        decision = decide_membership_changes(changes, all_partitions(changes.image), store.broker_epochs)
        with store.reading():
            nodes = await missing_nodes(store.tree, changes.image)
        await store.store(decision._replace(operations=(*nodes, *decision.operations)))

    async def _finish_deletions(self, finished: Sequence[str]) -> Sequence[str]:
        """Finish some of these topics in one transaction; returns the others."""
        store = self._store
        draft = ImageDraft(store.image)
        operations: list[Operation] = []
        deleted: list[str] = []
        rest = deque(finished)
        while rest and len(operations) < GROUPED_OPERATIONS:
            name = rest.popleft()
            end = store.deletions.finish(draft, name)
            if end is not None:
                operations += end.operations
                deleted.append(name)
        await store.store(Decision(tuple(operations), draft.finish()))
        for name in deleted:
            logger.info("topic deleted: topic=%s", name)
        return rest

    # ACLs.

    async def _follow_acls(self) -> None:
        self._are_acls_due = False  # before the read: later changes set it again
        try:
            self._acl_changes = await follow_changes(self._store, self._acl_changes)
        except BaseException:
            self._are_acls_due = True
            raise


def _log_membership_changes(changes: MembershipChanges) -> None:
    for broker_id in changes.left:
        if broker_id in changes.joined or broker_id not in changes.image.brokers:
            logger.info("broker left: broker=%d", broker_id)
    for broker_id in changes.changed:
        offline = sum(len(each.partitions) for each in changes.image.brokers[broker_id].offline.values())
        logger.warning("replicas in failed data folders: broker=%d offline=%d", broker_id, offline)
    for broker_id in changes.joined:
        logger.info(
            "broker joined: broker=%d epoch=%d clean_shutdown=%s new_disk=%s",
            broker_id,
            changes.image.brokers[broker_id].epoch,
            broker_id not in changes.uncleanly_stopped,
            broker_id in changes.emptied,
        )


def _log_unreadable(error: LayoutError) -> None:
    logger.error("broker registration ignored: path=%s reason=%s", error.path, error.reason)
