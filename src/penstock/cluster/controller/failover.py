"""What the controller does when brokers join, leave or shut down, and when it takes over.

A broker is identified by its epoch: one that is back under another epoch left and joined, however fast it was. Whether
it may have lost unsynced records follows from its registration and from the last epoch that a controller has handled.
That epoch is stored with the last chunk of the decision, so if a controller fails in between, the next one handles the
broker again. Only partitions of those brokers are looked at; a new controller looks at all of them.

On a controlled shutdown the broker's leaderships move to other in-sync replicas and it leaves every ISR, so nobody
waits for its death to be noticed. Where too few would be in sync without it, or nobody else can lead, it stays and the
partition is reported; the broker asks again. A partition without a second replica is not reported.

`ControllerTasks` run without a request: reread what is in doubt, handle membership changes, complete reassignments,
finish topic deletions and changes that another controller left unfinished. A task is done completely or stays due.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.cluster.controller import transaction
from penstock.cluster.controller.election import (
    Changes,
    PartitionRules,
    PartitionsByBroker,
    RulesIn,
    RulesOf,
    can_lead,
    elect,
    elect_all,
    eligible_after,
    rules_in,
)
from penstock.cluster.controller.reassignment import complete_reassignments
from penstock.cluster.controller.store import ControllerStore, load_brokers, marked_for_deletion
from penstock.cluster.controller.topics import delete_topic
from penstock.cluster.controller.transaction import Decision, TopicPartition
from penstock.cluster.errors import LayoutError, NoNode, StaleBrokerEpoch
from penstock.cluster.image import NO_STATE, ClusterImage, ImageDraft, PartitionImage, TopicImage
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import NO_LEADER, UNKNOWN_EPOCH, BrokerRegistration, encode_broker_epochs
from penstock.cluster.tree.tree import Create, Delete, Operation, Set, Tree, ensure_path


def brokers_changed(
    partitions_by_broker: PartitionsByBroker,
    image: ClusterImage,
    came: Collection[int],
    went: Collection[int],
    uncleanly_stopped: Collection[int],
    rules_of: RulesOf,
    emptied: Collection[int] = (),
) -> Decision:
    """`image` has the brokers that are live now; `came` those that are new or back, `forgetful` those of them that
    did not stop cleanly, `emptied` those whose disk is another one. The operations are independent of one another:
    they may be done in parts.
    """
    changes = Changes(image)
    live = image.brokers.keys()
    for topic, indexes in partitions_by_broker.of({*came, *went}):
        if topic.name in image.deleting:
            continue
        rules = rules_of(topic.name)
        for index in indexes:
            partition = topic.partitions[index]
            after = elect(partition, live, came, image.controller_epoch, rules, uncleanly_stopped, emptied)
            if after is not None:
                changes.put(topic.name, index, after)
    return changes.decision()


def rules_changed(decided: Decision, topics: Iterable[str], rules_of: RulesOf) -> Decision:
    """A decision on settings, and with it what they make of these topics: all or none of it may happen.

    When fewer replicas than before may commit, who left may lack what they commit from now on: it is no longer
    eligible, and must not be from the moment on at which the setting counts. Where anybody may lead from now on,
    somebody does. A leader must not take an ISR from anywhere but the image, in which a setting comes before what was
    decided by it.
    """
    image = decided.image
    changes = Changes(image)
    for name in topics:
        topic = image.topics.get(name)
        if topic is None or name in image.deleting:
            continue
        rules = rules_of(name)
        for index, partition in enumerate(topic.partitions):
            after = elect(partition, image.brokers.keys(), (), image.controller_epoch, rules)
            if after is not None:
                changes.put(name, index, after)
    more = changes.decision()
    return Decision((*decided.operations, *more.operations), more.image, (*decided.unclean, *more.unclean))


def had_unclean_shutdown(registration: BrokerRegistration, known_epoch: int) -> bool:
    """Whether a broker that came may have lost what was not synced: its data folders do not say that the life before
    this one ended in good order. `known_epoch` is that life's, as far as the controller has seen it.
    """
    if registration.clean_epoch == UNKNOWN_EPOCH:
        return True
    return known_epoch not in (UNKNOWN_EPOCH, registration.clean_epoch)


class MembershipChanges(NamedTuple):
    """`image` has the brokers that are there now. Of those that `came`, `forgetful` may have lost what they did not
    sync, and `emptied` everything.
    """

    image: ClusterImage
    came: tuple[int, ...]
    went: tuple[int, ...]
    uncleanly_stopped: tuple[int, ...]
    emptied: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.came or self.went)


def find_membership_changes(
    image: ClusterImage,
    found: Mapping[int, BrokerRegistration],
    handled_epochs: Mapping[int, int],
    unsettled: Iterable[int] = (),
) -> MembershipChanges:
    """What is new in `found`. `dealt_with` are the epochs in the tree; `unsettled` went before, and what follows from
    that is not all stored.
    """
    known = image.brokers
    is_new = {each: each not in known or known[each].epoch != found[each].epoch for each in found}
    came = tuple(each for each in sorted(found) if is_new[each] and handled_epochs.get(each) != found[each].epoch)
    went = {each for each in known if each not in found or is_new[each]}
    staying = frozenset(each for each in image.leaving if each in found and not is_new[each])
    return MembershipChanges(
        replace(image, brokers={each: found[each] for each in sorted(found)}, leaving=staying),
        came,
        tuple(sorted({*went, *unsettled})),
        tuple(each for each in came if had_unclean_shutdown(found[each], handled_epochs.get(each, UNKNOWN_EPOCH))),
        tuple(each for each in came if found[each].is_emptied),
    )


def decide_membership_changes(
    news: MembershipChanges,
    partitions_by_broker: PartitionsByBroker,
    handled_epochs: Mapping[int, int],
    rules_of: RulesOf,
) -> Decision:
    """What follows for the partitions of those brokers."""
    decision = brokers_changed(
        partitions_by_broker, news.image, news.came, news.went, news.uncleanly_stopped, rules_of, news.emptied
    )
    return _with_broker_epochs(decision, news, handled_epochs)


def decide_all(news: MembershipChanges, handled_epochs: Mapping[int, int], rules_of: RulesOf) -> Decision:
    """The same with a look at every partition: somebody else may have left some in between."""
    decision = elect_all(news.image, news.came, rules_of, news.uncleanly_stopped, news.emptied)
    return _with_broker_epochs(decision, news, handled_epochs)


def _with_broker_epochs(decision: Decision, news: MembershipChanges, handled_epochs: Mapping[int, int]) -> Decision:
    if not news.came:
        return decision
    epochs = {**handled_epochs, **{each: news.image.brokers[each].epoch for each in news.came}}
    operation = Set(layout.BROKER_EPOCHS, encode_broker_epochs(epochs))
    return decision._replace(operations=(*decision.operations, operation))


class Shutdown(NamedTuple):
    """What is decided, and which partitions still need the broker."""

    decision: Decision
    remaining: tuple[TopicPartition, ...]


def shut_down(
    partitions_by_broker: PartitionsByBroker,
    broker_id: int,
    broker_epoch: int,
    rules_of: RulesOf,
    *,
    force: bool = False,
) -> Shutdown:
    """On the image of `hosting`. StaleBrokerEpoch if the broker that asks is not the one that is registered."""
    registered = partitions_by_broker.image.brokers.get(broker_id)
    if registered is None or registered.epoch != broker_epoch:
        raise StaleBrokerEpoch(f"broker {broker_id} is not registered under the epoch {broker_epoch}")
    image = partitions_by_broker.image.with_leaving(broker_id)
    changes = Changes(image)
    remaining: list[TopicPartition] = []
    for topic, indexes in partitions_by_broker.of((broker_id,)):
        if topic.name in image.deleting:
            continue
        rules = rules_of(topic.name)
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
    isr = tuple(broker for broker in partition.isr if broker != broker_id)
    enough = rules.enough_in_sync(partition)
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


def has_partitions_without_state(image: ClusterImage) -> bool:
    """Whether a partition that is to stay has no state."""
    return any(_partitions_without_state(image))


async def missing_nodes(tree: Tree, image: ClusterImage) -> tuple[Operation, ...]:
    """What makes the nodes above the states that partitions lack. TreeError."""
    wanted: dict[str, None] = {}
    for topic, index in _partitions_without_state(image):
        wanted[layout.partitions_path(topic.name)] = None
        wanted[layout.partition_path(topic.name, index)] = None
    nodes = await tree.get_many(list(wanted))
    return tuple(Create(path) for path, node in zip(wanted, nodes, strict=True) if node is None)


async def unfinished_deletions(tree: Tree, image: ClusterImage, marked: Iterable[str]) -> Decision:
    """What is left of topics that were being deleted, and would be in the way of the rest. TreeError."""
    operations: list[Operation] = []
    left: list[str] = []
    for name in marked:
        topic = image.topics.get(name)
        if topic is not None:
            operations += await _without_states(tree, topic)
            continue
        if name in image.topic_configs:
            left.append(name)
            operations.append(Delete(layout.topic_config_path(name)))
        operations.append(Delete(layout.deletion_path(name)))
    return Decision(tuple(operations), image.without_topic_configs(left) if left else image)


async def _without_states(tree: Tree, topic: TopicImage) -> list[Operation]:
    """The nodes of partitions that have no state any more, and the one above them if none has."""
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


def _partitions_without_state(image: ClusterImage) -> Iterable[tuple[TopicImage, int]]:
    return (
        (topic, index)
        for topic in image.topics.values()
        if topic.name not in image.deleting
        for index, partition in enumerate(topic.partitions)
        if partition.state_version == NO_STATE
    )


logger = logging.getLogger(__name__)


class ControllerTasks:
    """Of one controller. `deletes_at_once`: nobody is waited for when a topic goes."""

    def __init__(self, store: ControllerStore, rules: RulesIn, *, deletes_at_once: bool) -> None:
        self._store = store
        self._rules = rules
        self._deletes_at_once = deletes_at_once
        self._have_brokers_changed = False
        self._are_moves_due = False
        self._unsettled: set[int] = set()  # brokers that went, and not all that follows from that is stored

    @property
    def are_due(self) -> bool:
        store = self._store
        return bool(
            store.is_in_doubt
            or self._have_brokers_changed
            or self._unsettled
            or self._are_moves_due
            or store.deletions.finished()
        )

    def hear_of_brokers(self) -> None:
        self._have_brokers_changed = True

    def rules(self) -> RulesOf:
        """As the image says now."""
        return rules_in(self._rules, self._store.image)

    async def begin(self) -> None:
        """Take over from whoever was the controller before. Refusal, LayoutError."""
        store = self._store
        with store.reading():
            await ensure_path(store.tree, layout.BROKER_EPOCHS)
        await store.load()
        await self._clear_unfinished_changes()
        news = await self._news()
        decision = decide_all(news, store.broker_epochs, rules_in(self._rules, news.image))
        with store.reading():
            nodes = await missing_nodes(store.tree, news.image)
        await store.store(decision._replace(operations=(*nodes, *decision.operations)))
        self._note_handled(news)
        self._are_moves_due = True
        await self.carry_on()

    async def settle(self) -> None:
        """Whatever comes before everything else. Refusal."""
        store = self._store
        store.require()
        if store.is_in_doubt:
            await store.reread()
            await self._clear_unfinished_changes()
            await self._create_missing_states()
            self._are_moves_due = True
        if self._have_brokers_changed or self._unsettled:
            await self._follow_brokers()

    async def carry_on(self) -> None:
        """Whatever comes after. Refusal."""
        store = self._store
        if self._are_moves_due:
            await store.store(complete_reassignments(store.image, store.partitions_by_broker.moving(), self.rules()))
            self._are_moves_due = False
        if self._deletes_at_once:
            for name in sorted(store.image.deleting):
                gone = delete_topic(store.image, name)
                await store.store(Decision((*gone.operations, Delete(layout.deletion_path(name))), gone.image))
        finished: Sequence[str] = store.deletions.finished()
        while finished:
            finished = await self._finish_deletions(finished)

    async def _finish_deletions(self, finished: Sequence[str]) -> Sequence[str]:
        """The end of some of these topics, stored together; the others."""
        store = self._store
        draft = ImageDraft(store.image)
        operations: list[Operation] = []
        ended: list[str] = []
        left = deque(finished)
        while left and len(operations) < transaction.GROUPED_OPERATIONS:
            name = left.popleft()
            end = store.deletions.finish(draft, name)
            if end is not None:
                operations += end.operations
                ended.append(name)
        await store.store(Decision(tuple(operations), draft.finish()))
        for name in ended:
            logger.info("the topic %s is deleted: nothing of it is left anywhere", name)
        return left

    def isrs_changed(self, partitions: list[TopicPartition]) -> None:
        """Moves of these may have come to their end."""
        image = self._store.image
        found = (image.partition(*key) for key in partitions)
        if any(each is not None and (each.adding or each.removing) for each in found):
            self._are_moves_due = True

    # Brokers.

    async def _follow_brokers(self) -> None:
        store = self._store
        news = await self._news()
        if not news:
            # Where it listens may have changed: not who it is.
            if news.image.brokers != store.image.brokers:
                await store.store(Decision((), news.image))
            return
        _log_membership_changes(news)
        self._unsettled.update(news.went)
        decision = decide_membership_changes(
            news, store.partitions_by_broker, store.broker_epochs, rules_in(self._rules, news.image)
        )
        try:
            await store.store(decision)
        except BaseException:
            self._have_brokers_changed = True
            raise
        self._unsettled.clear()
        self._note_handled(news)
        self._are_moves_due = self._are_moves_due or bool(store.partitions_by_broker.moving())

    async def _news(self) -> MembershipChanges:
        store = self._store
        self._have_brokers_changed = False  # Whatever changes from here on is told again.
        try:
            with store.reading():
                found: dict[int, BrokerRegistration] = await load_brokers(store.tree, _log_unreadable)
        except BaseException:
            self._have_brokers_changed = True
            raise
        return find_membership_changes(store.image, found, store.broker_epochs, self._unsettled)

    def _note_handled(self, news: MembershipChanges) -> None:
        store = self._store
        store.broker_epochs = {**store.broker_epochs, **{each: news.image.brokers[each].epoch for each in news.came}}

    # What somebody left.

    async def _clear_unfinished_changes(self) -> None:
        store = self._store
        with store.reading():
            marked = await marked_for_deletion(store.tree)
            unfinished = await unfinished_deletions(store.tree, store.image, marked)
        await store.store(unfinished)

    async def _create_missing_states(self) -> None:
        store = self._store
        if not has_partitions_without_state(store.image):
            return
        nothing = MembershipChanges(store.image, (), (), (), ())
        decision = decide_all(nothing, store.broker_epochs, self.rules())
        with store.reading():
            nodes = await missing_nodes(store.tree, store.image)
        await store.store(decision._replace(operations=(*nodes, *decision.operations)))


def _log_membership_changes(news: MembershipChanges) -> None:
    for broker_id in news.went:
        logger.info("broker %d went", broker_id)
    for broker_id in news.came:
        disks = ", with other disks" if broker_id in news.emptied else ""
        logger.info("broker %d came, under the epoch %d%s", broker_id, news.image.brokers[broker_id].epoch, disks)


def _log_unreadable(error: LayoutError) -> None:
    logger.error("%s; the broker is taken for one that is not there", error)
