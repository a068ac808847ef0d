"""Leader, ISR and ELR of a partition: elections and ISR changes. Pure.

The leader is the first replica that is in sync and alive; else one from the ELR, which left the ISR when it had
everything committed and too few were in sync to commit more (KIP-966); else none, unless the topic allows unclean
elections. The leader epoch rises whenever the leader may have lost unsynced records, so one offset never has two
contents in one epoch. The ISR is never empty: the last members are remembered and one of them must return. A member
that returns with an empty disk is removed; if it was the last, the partition waits for an administrator.

    replicas 1 2 3, min.insync.replicas 2
    ISR 1 2 3, leader 1          1 dies:   ISR 2 3, leader 2
    ISR 2 3                      3 dies:   ISR 2, ELR 3          nothing is committed any more
    ISR 2, ELR 3                 2 dies:   ISR 2, ELR 3, leader none
                                 3 comes:  ISR 3, ELR 2, leader 3: it lacks nothing

A preferred election gives the first replica its leadership back if it is alive, in sync and not shutting down. An
unclean election is only for a partition without a leader. A leader requests an ISR for exactly the state that it knows,
by leader epoch and state version. A replica joins only under the broker epoch in which the leader saw it fetch, because
a restarted broker may have lost what made it eligible (KIP-841, KIP-903).

`Changes` collects changes of partitions into one decision, each conditional on the state it was based on. States with a
new leader are written first, because clients wait for them; assignments last, so no state ever names a broker that is
not a replica. `PartitionsByBroker` makes a broker failure cost what the broker held, not the size of the cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import NamedTuple

from penstock.cluster.controller.topics import state_of
from penstock.cluster.controller.transaction import Decision, TopicPartition
from penstock.cluster.errors import (
    ApiException,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    UnknownTopic,
)
from penstock.cluster.image import NO_ID, NO_STATE, ClusterImage, PartitionImage, TopicImage, diff
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import NO_LEADER, encode_partition_state, encode_topic
from penstock.cluster.tree.tree import Create, Operation, Set


class PartitionRules(NamedTuple):
    """Of a topic: as its settings say, or those of the broker."""

    min_insync_replicas: int = 1
    unclean_election: bool = False
    """Whether a replica that may lack committed records may lead, rather than nobody."""
    syncs_before_ack: bool = True
    """Whether whoever is in sync has on its disk all that was committed, however it ended."""

    def enough_in_sync(self, partition: PartitionImage) -> int:
        """How many must be in sync for anything to be committed: not more than there are."""
        return min(self.min_insync_replicas, len(partition.replicas))


RulesOf = Callable[[str], PartitionRules]
"""By the topic's name."""

RulesIn = Callable[[ClusterImage, str], PartitionRules]
"""By the topic's name, as the settings in an image say: every broker must find the same in the same image."""


def rules_in(rules: RulesIn, image: ClusterImage) -> RulesOf:
    return lambda topic: rules(image, topic)


class PartitionsByBroker:
    """Of one image at a time; `follow` takes it to the next."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._held: defaultdict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
        self._moving: dict[str, tuple[int, ...]] = {}
        for topic in image.topics.values():
            self._add(topic)

    def of(self, brokers: Iterable[int]) -> Iterator[tuple[TopicImage, list[int]]]:
        """The topics that these brokers hold something of, each with the numbers of those partitions, in order."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        for broker in brokers:
            for name, indexes in self._held.get(broker, {}).items():
                found[name].update(indexes)
        for name in sorted(found):
            yield self.image.topics[name], sorted(found[name])

    def moving(self) -> list[TopicPartition]:
        """The partitions that get other replicas, in order."""
        return [(name, index) for name in sorted(self._moving) for index in self._moving[name]]

    def follow(self, image: ClusterImage) -> None:
        change = diff(self.image, image)
        for topic in change.topics_removed.values():
            self._remove(topic)
        for before, after in change.topics_changed.values():
            if not _is_same_assignment(before, after):
                self._remove(before)
                self._add(after)
        for topic in change.topics_added.values():
            self._add(topic)
        self.image = image

    def _add(self, topic: TopicImage) -> None:
        held: defaultdict[int, list[int]] = defaultdict(list)
        moving: list[int] = []
        for index, partition in enumerate(topic.partitions):
            for broker in partition.replicas:
                held[broker].append(index)
            if partition.adding or partition.removing:
                moving.append(index)
        for broker, indexes in held.items():
            self._held[broker][topic.name] = tuple(indexes)
        if moving:
            self._moving[topic.name] = tuple(moving)

    def _remove(self, topic: TopicImage) -> None:
        for broker in {broker for partition in topic.partitions for broker in partition.replicas}:
            self._held[broker].pop(topic.name, None)
        self._moving.pop(topic.name, None)


def _is_same_assignment(one: TopicImage, other: TopicImage) -> bool:
    if len(one.partitions) != len(other.partitions):
        return False
    pairs = zip(one.partitions, other.partitions, strict=True)
    return all(before is after or before.assignment == after.assignment for before, after in pairs)


class Changes:
    """On one image. What was put is what `partition` finds from then on."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._after: dict[str, dict[int, PartitionImage]] = {}

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        """The partition as it is by now; None for one that is not there, or whose topic is on its way out."""
        if topic in self.image.deleting:
            return None
        changed = self._after.get(topic, {}).get(index)
        return self.image.partition(topic, index) if changed is None else changed

    def put(self, topic: str, index: int, after: PartitionImage) -> None:
        """Let an existing partition be this; version and controller epoch of its state are seen to here."""
        before = self.image.topics[topic].partitions[index]
        epoch, version = before.controller_epoch, before.state_version
        if not is_same_state(before, after):
            epoch, version = self.image.controller_epoch, version + 1
        if (after.controller_epoch, after.state_version) != (epoch, version):
            after = replace(after, controller_epoch=epoch, state_version=version)
        changed = self._after.setdefault(topic, {})
        if after == before:
            changed.pop(index, None)
        else:
            changed[index] = after

    def decision(self) -> Decision:
        moved: list[Operation] = []
        others: list[Operation] = []
        assigned: list[Operation] = []
        unclean: list[TopicPartition] = []
        topics: list[TopicImage] = []
        for topic, after in self._topics():
            topics.append(topic)
            before = self.image.topics[topic.name]
            if any(before.partitions[index].assignment != item.assignment for index, item in after.items()):
                assigned.append(stored_assignment(topic))
            for index, item in after.items():
                was = before.partitions[index]
                if item.state_version != was.state_version:
                    (moved if item.leader != was.leader else others).append(stored(topic.name, index, was, item))
                if is_unclean(was, item):
                    unclean.append((topic.name, index))
        image = self.image.with_topics(topics) if topics else self.image
        return Decision((*moved, *others, *assigned), image, tuple(unclean))

    def _topics(self) -> Iterator[tuple[TopicImage, dict[int, PartitionImage]]]:
        for name, changed in self._after.items():
            if changed:
                topic = self.image.topics[name]
                partitions = list(topic.partitions)
                for index, after in changed.items():
                    partitions[index] = after
                yield replace(topic, partitions=tuple(partitions)), changed


def is_same_state(one: PartitionImage, other: PartitionImage) -> bool:
    """Whether leader, epoch, ISR and ELR are the same, and there is a state at all."""
    return (
        one.leader == other.leader
        and one.leader_epoch == other.leader_epoch
        and one.isr == other.isr
        and one.elr == other.elr
        and one.recovering == other.recovering
        and (one.state_version == NO_STATE) == (other.state_version == NO_STATE)
    )


def is_unclean(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether the new leader may lack what was committed."""
    if before.state_version == NO_STATE or after.leader in (NO_LEADER, before.leader):
        return False
    return after.leader not in before.isr and after.leader not in before.elr


def stored(topic: str, index: int, before: PartitionImage, after: PartitionImage) -> Operation:
    """What writes a partition's new state, if it is still as it was."""
    path, data = layout.partition_state_path(topic, index), encode_partition_state(state_of(after))
    return Create(path, data) if before.state_version == NO_STATE else Set(path, data, before.state_version)


def stored_assignment(topic: TopicImage) -> Operation:
    """What writes who holds the partitions of a topic."""
    topic_id = None if topic.topic_id == NO_ID else topic.topic_id
    return Set(layout.topic_path(topic.name), encode_topic(topic_id, [item.assignment for item in topic.partitions]))


_NO_RULES = PartitionRules()


def elect(
    partition: PartitionImage,
    live: Collection[int],
    restarted: Collection[int],
    controller_epoch: int,
    rules: PartitionRules = _NO_RULES,
    uncleanly_stopped: Collection[int] = (),
    emptied: Collection[int] = (),
) -> PartitionImage | None:
    """The partition as it is with these brokers `live`, None if it stays as it is.

    `restarted` are live brokers whose memory of before is gone; `forgetful` those of them whose disk may lack what they
    had told to have, if it was not synced; `emptied` those whose disk may lack everything, as it is another one.
    """
    if partition.state_version == NO_STATE:
        return _first_leader(partition, live, controller_epoch)
    unsafe = emptied if rules.syncs_before_ack else {*uncleanly_stopped, *emptied}
    if is_lost(partition):
        unsafe = {*unsafe, *partition.isr}
    isr = tuple(broker for broker in partition.isr if broker in live and broker not in unsafe)
    elr = _eligible(partition, isr, rules, unsafe)
    leader, recovering = partition.leader, partition.recovering
    if leader not in isr or leader in restarted:
        leader = _first(partition.replicas, isr)
        if leader == NO_LEADER:
            leader = _first(partition.replicas, [broker for broker in elr if broker in live])
        if leader == NO_LEADER:
            leader = _unclean_leader(partition, live, emptied, rules)
        if leader == NO_LEADER:
            isr, elr, recovering = _remembered(partition, elr, unsafe)
        elif leader not in isr:
            isr, elr = (leader,), _less(elr, (leader,))
        if leader != NO_LEADER:
            recovering = False
    is_over = leader != partition.leader or (leader in restarted and leader != NO_LEADER)
    if not is_over and (isr, elr, recovering) == (partition.isr, partition.elr, partition.recovering):
        return None
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + is_over,
        isr=isr,
        elr=elr,
        recovering=recovering,
        controller_epoch=controller_epoch,
        state_version=partition.state_version + 1,
    )


def is_lost(partition: PartitionImage) -> bool:
    """Whether nobody is left who is known to have all that was committed: only an unclean election helps. What the ISR
    has then is who had it last.
    """
    return partition.leader == NO_LEADER and partition.recovering


def _remembered(
    partition: PartitionImage, elr: tuple[int, ...], unsafe: Collection[int]
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """ISR, ELR and whether all is lost, of a partition without a leader: whose return is waited for.

    Who lost its disk must not be taken for one that is in sync when it is seen the next time.
    """
    waited_for = tuple(broker for broker in partition.isr if broker not in unsafe)
    if waited_for:
        return waited_for, _less(elr, waited_for), False
    return (elr, (), False) if elr else (partition.isr, (), True)


def _less(brokers: tuple[int, ...], without: Collection[int]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in without)


def _first(replicas: Sequence[int], among: Iterable[int]) -> int:
    wanted = set(among)
    return next((broker for broker in replicas if broker in wanted), NO_LEADER)


def _eligible(
    partition: PartitionImage, isr: tuple[int, ...], rules: PartitionRules, unsafe: Collection[int]
) -> tuple[int, ...]:
    """Who has all that was committed without being in sync: those who left since too few are."""
    if len(isr) >= rules.enough_in_sync(partition):
        return ()
    return tuple(
        broker
        for broker in partition.replicas
        if broker not in isr and broker not in unsafe and (broker in partition.isr or broker in partition.elr)
    )


def _unclean_leader(
    partition: PartitionImage, live: Collection[int], emptied: Collection[int], rules: PartitionRules
) -> int:
    if rules.unclean_election:
        filled = _first(partition.replicas, [broker for broker in live if broker not in emptied])
        return _first(partition.replicas, live) if filled == NO_LEADER else filled
    if is_lost(partition) or partition.elr or any(each in emptied or each not in live for each in partition.isr):
        return NO_LEADER
    # They may have lost what was not synced, which their topic allows; and nobody has more.
    return _first(partition.replicas, partition.isr)


def eligible_after(partition: PartitionImage, isr: tuple[int, ...], rules: PartitionRules) -> tuple[int, ...]:
    """The ELR of a partition whose ISR becomes this."""
    return _eligible(partition, isr, rules, ())


def _first_leader(partition: PartitionImage, live: Collection[int], controller_epoch: int) -> PartitionImage | None:
    isr = tuple(broker for broker in partition.replicas if broker in live)
    if not isr:
        return None
    return replace(
        partition, leader=isr[0], leader_epoch=0, isr=isr, controller_epoch=controller_epoch, state_version=0
    )


def elect_all(
    image: ClusterImage,
    restarted: Collection[int],
    rules_of: RulesOf = lambda _: _NO_RULES,
    uncleanly_stopped: Collection[int] = (),
    emptied: Collection[int] = (),
) -> Decision:
    """Leaders for all partitions. The operations are independent of one another: they may be done in parts.

    For a partition without a state, the node above the state must be there.
    """
    changes = Changes(image)
    live = image.brokers.keys()
    for topic in image.topics.values():
        if topic.name in image.deleting:
            continue
        rules = rules_of(topic.name)
        for index, partition in enumerate(topic.partitions):
            after = elect(partition, live, restarted, image.controller_epoch, rules, uncleanly_stopped, emptied)
            if after is not None:
                changes.put(topic.name, index, after)
    return changes.decision()


class ElectionKind(IntEnum):
    """By its number in the protocol."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectionResult(NamedTuple):
    """What is decided, and why some partitions stay as they are."""

    decision: Decision
    refusals: dict[TopicPartition, ApiException]


class PreferredLeaders(NamedTuple):
    """What a broker is the preferred leader of, and which of that somebody else leads though it could."""

    total: int
    elsewhere: list[TopicPartition]

    @property
    def imbalance_percent(self) -> float:
        return 100 * len(self.elsewhere) / self.total if self.total else 0.0


def elect_leaders(
    image: ClusterImage, wanted: Iterable[TopicPartition], kind: ElectionKind, rules_of: RulesOf
) -> ElectionResult:
    changes = Changes(image)
    refusals: dict[TopicPartition, ApiException] = {}
    for topic, index in wanted:
        try:
            partition = changes.partition(topic, index)
            if partition is None:
                raise UnknownTopic(f"there is no partition {index} of a topic {topic[:300]!r}")
            if kind is ElectionKind.PREFERRED:
                after = _preferred(image, partition)
            else:
                after = _unclean(image, topic, partition, rules_of)
            changes.put(topic, index, after)
        except ApiException as refusal:
            refusals[topic, index] = refusal
    return ElectionResult(changes.decision(), refusals)


def preferred_leaders(partitions_by_broker: PartitionsByBroker, broker_id: int) -> PreferredLeaders:
    """Of one broker, so that a cluster is looked through in pieces."""
    image = partitions_by_broker.image
    total = 0
    elsewhere: list[TopicPartition] = []
    for topic, indexes in partitions_by_broker.of((broker_id,)):
        for index in indexes:
            partition = topic.partitions[index]
            if partition.replicas[0] != broker_id or topic.name in image.deleting:
                continue
            total += 1
            if partition.leader not in (broker_id, NO_LEADER) and can_lead(image, partition, broker_id):
                elsewhere.append((topic.name, index))
    return PreferredLeaders(total, elsewhere)


def can_lead(image: ClusterImage, partition: PartitionImage, broker_id: int) -> bool:
    """Whether leadership may be given to this broker without need."""
    is_there = broker_id in image.brokers and broker_id not in image.leaving
    return is_there and broker_id in partition.isr and not is_lost(partition)


def led_by(partition: PartitionImage, leader: int) -> PartitionImage:
    """The partition in its next epoch."""
    return replace(partition, leader=leader, leader_epoch=partition.leader_epoch + 1)


def _preferred(image: ClusterImage, partition: PartitionImage) -> PartitionImage:
    broker_id = partition.replicas[0]
    if partition.leader == broker_id:
        raise ElectionNotNeeded(f"broker {broker_id} leads the partition already")
    if not can_lead(image, partition, broker_id):
        raise PreferredLeaderNotAvailable(f"broker {broker_id} is not alive, not in sync, or about to stop")
    return led_by(partition, broker_id)


def _unclean(image: ClusterImage, topic: str, partition: PartitionImage, rules_of: RulesOf) -> PartitionImage:
    if image.live_leader(partition) != NO_LEADER:
        raise ElectionNotNeeded(f"broker {partition.leader} leads the partition")
    rules = rules_of(topic)._replace(unclean_election=True)
    after = elect(partition, image.brokers.keys(), (), image.controller_epoch, rules)
    if after is None or after.leader == NO_LEADER:
        raise EligibleLeadersNotAvailable(f"none of the brokers {partition.replicas} is alive")
    return after


ANY_EPOCH = -1


class AlterPartitionError(Enum):
    """Why an ISR is not what was asked for."""

    UNKNOWN_PARTITION = "there is no such partition"
    NOT_LEADER = "another broker leads the partition"
    FENCED_LEADER_EPOCH = "the partition has been led in a later epoch"
    NEW_LEADER_EPOCH = "the partition has not been led in that epoch"
    INVALID_UPDATE_VERSION = "the partition's state has changed since"
    INELIGIBLE_REPLICA = "somebody in the ISR is not alive, not under that epoch, or about to stop"
    INVALID_REQUEST = "the ISR is empty, is without the leader, or names who is no replica"
    STALE_BROKER_EPOCH = "the one who asks is registered anew since"


@dataclass(frozen=True, slots=True)
class IsrRequest:
    """What the leader `broker` of `broker_epoch` asks for. Members of `isr` have their broker epochs, or ANY_EPOCH."""

    topic: str
    partition: int
    broker: int
    broker_epoch: int
    leader_epoch: int
    state_version: int
    isr: tuple[int, ...]
    isr_epochs: tuple[int, ...]


def alter_isr(
    image: ClusterImage, request: IsrRequest, epochs: Mapping[int, int], rules: PartitionRules
) -> Decision | AlterPartitionError:
    """`epochs` are the live brokers' by id."""
    changes = Changes(image)
    refusal = put_isr(changes, request, epochs, rules)
    return changes.decision() if refusal is None else refusal


def put_isr(
    changes: Changes, request: IsrRequest, epochs: Mapping[int, int], rules: PartitionRules
) -> AlterPartitionError | None:
    """One of several: a leader that loses a follower asks for thousands of ISRs at once."""
    partition = changes.partition(request.topic, request.partition)
    if partition is None:
        return AlterPartitionError.UNKNOWN_PARTITION
    if epochs.get(request.broker) != request.broker_epoch:
        return AlterPartitionError.STALE_BROKER_EPOCH
    refusal = _refusal(partition, request, epochs, changes.image.leaving)
    if refusal is not None:
        return refusal
    isr = tuple(broker for broker in partition.replicas if broker in request.isr)
    if set(isr) != set(partition.isr):
        elr = eligible_after(partition, isr, rules)
        changes.put(request.topic, request.partition, replace(partition, isr=isr, elr=elr, recovering=False))
    return None


def _refusal(
    partition: PartitionImage, request: IsrRequest, epochs: Mapping[int, int], leaving: Collection[int]
) -> AlterPartitionError | None:
    if request.leader_epoch < partition.leader_epoch:
        return AlterPartitionError.FENCED_LEADER_EPOCH
    if request.leader_epoch > partition.leader_epoch:
        return AlterPartitionError.NEW_LEADER_EPOCH
    if partition.leader != request.broker:
        return AlterPartitionError.NOT_LEADER
    if request.state_version != partition.state_version:
        return AlterPartitionError.INVALID_UPDATE_VERSION
    members = set(request.isr)
    if request.broker not in members or not members <= set(partition.replicas) or len(members) != len(request.isr):
        return AlterPartitionError.INVALID_REQUEST
    if len(request.isr_epochs) != len(request.isr):
        return AlterPartitionError.INVALID_REQUEST
    for broker, epoch in zip(request.isr, request.isr_epochs, strict=True):
        # Who is in sync already may have gone just now: the controller hears of that by itself.
        joins = broker not in partition.isr
        if joins and (broker not in epochs or broker in leaving or epoch not in (ANY_EPOCH, epochs[broker])):
            return AlterPartitionError.INELIGIBLE_REPLICA
        if not joins and broker in epochs and epoch not in (ANY_EPOCH, epochs[broker]):
            return AlterPartitionError.INELIGIBLE_REPLICA
    return None
