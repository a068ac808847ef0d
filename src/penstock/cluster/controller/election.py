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
                                 3 joins:  ISR 3, ELR 2, leader 3: it lacks nothing

A preferred election gives the first replica its leadership back if it is alive, in sync and not shutting down. An
unclean election is only for a partition without a leader. A leader requests an ISR for exactly the state that it knows,
by leader epoch and state version. A replica joins only under the broker epoch in which the leader saw it fetch, because
a restarted broker may have lost what made it eligible (KIP-841, KIP-903).

A replica in a failed data folder counts as one on a dead broker until its broker is restarted (KIP-112): it leaves the
ISR unless it is the last member, and may be in the ELR, because the folder may come back with everything. If the folder
comes back empty instead, the broker's registration says which replicas it has kept, and the others are lost.

`Changes` collects changes of partitions into one decision, each conditional on the state it was based on. States with a
new leader are written first, because clients wait for them; assignments last, so no state ever names a broker that is
not a replica. `PartitionsByBroker` makes a broker failure cost what the broker held, not the size of the cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.cluster.controller.configs import MIN_INSYNC
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
from penstock.cluster.tree.layout import DEFAULT_BROKER, NO_LEADER, encode_partition_state, encode_topic
from penstock.cluster.tree.tree import Create, Operation, Set
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResult,
    TopicData,
)

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
ANY_EPOCH: Final = -1
ALTER_PARTITION_VERSION: Final = 3

# A flush policy of the topic's own, or one for all topics: acknowledgements do not wait for a sync.
_TOPIC_FLUSH: Final = ("flush.messages", "flush.ms")
_BROKER_FLUSH: Final = ("log.flush.interval.messages", "log.flush.interval.ms")
RULE_SETTINGS: Final = frozenset({MIN_INSYNC, UNCLEAN_ELECTION, *_TOPIC_FLUSH, *_BROKER_FLUSH})
"""The settings that `partition_rules` reads."""
_INT32_MAX: Final = 2**31 - 1


# --- the settings that decide elections


class PartitionRules(NamedTuple):
    """What the settings of a topic say about its partitions."""

    min_insync_replicas: int = 1
    unclean_election: bool = False
    """Whether a replica that may lack committed records may lead if no other can."""
    syncs_before_ack: bool = True
    """Whether every in-sync replica has what was committed on its disk, however its process ended."""

    def effective_min_isr(self, partition: PartitionImage) -> int:
        """How many replicas must be in sync for a commit: not more than there are."""
        return min(self.min_insync_replicas, len(partition.replicas))


DEFAULT_RULES: Final = PartitionRules()


def partition_rules(image: ClusterImage, topic: str) -> PartitionRules:
    """The topic's own settings in the image, then those of all brokers, then the defaults.

    They come from nowhere else: a controller that counts on two in-sync replicas where a leader commits with one would
    elect a leader that lacks records. A stored value that cannot be read is ignored.
    """
    own, wide = image.topic_config(topic), image.broker_config(DEFAULT_BROKER)
    if not own and not wide:
        return DEFAULT_RULES
    return PartitionRules(
        _positive(own.get(MIN_INSYNC)) or _positive(wide.get(MIN_INSYNC)) or DEFAULT_RULES.min_insync_replicas,
        _first_boolean(own.get(UNCLEAN_ELECTION), wide.get(UNCLEAN_ELECTION)),
        not any(_is_number(own.get(name)) for name in _TOPIC_FLUSH)
        and not any(_is_number(wide.get(name)) for name in _BROKER_FLUSH),
    )


def _is_number(text: str | None) -> bool:
    digits = "" if text is None else text.strip().removeprefix("+")
    return digits.isascii() and digits.isdigit()


def _positive(text: str | None) -> int | None:
    value = int(text) if text is not None and _is_number(text) and len(text) <= 20 else 0
    return value if 0 < value <= _INT32_MAX else None


def _first_boolean(*texts: str | None) -> bool:
    words = (text.strip().lower() for text in texts if text is not None)
    return next((word == "true" for word in words if word in ("true", "false")), DEFAULT_RULES.unclean_election)


# --- elections


def elect(
    partition: PartitionImage,
    live: Collection[int],
    restarted: Collection[int],
    controller_epoch: int,
    rules: PartitionRules = DEFAULT_RULES,
    uncleanly_stopped: Collection[int] = (),
    emptied: Collection[int] = (),
) -> PartitionImage | None:
    """The partition with these brokers `live`; None if nothing changes.

    `restarted` are live brokers that lost their memory. Of these, `uncleanly_stopped` may lack what they acknowledged
    without a sync, and `emptied` may lack everything, because a disk is new.
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
    is_new_epoch = leader != partition.leader or (leader in restarted and leader != NO_LEADER)
    if not is_new_epoch and (isr, elr, recovering) == (partition.isr, partition.elr, partition.recovering):
        return None
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + is_new_epoch,
        isr=isr,
        elr=elr,
        recovering=recovering,
        controller_epoch=controller_epoch,
        state_version=partition.state_version + 1,
    )


def elect_partitions(
    image: ClusterImage,
    partitions: Iterable[tuple[TopicImage, Iterable[int]]],
    restarted: Collection[int] = (),
    uncleanly_stopped: Collection[int] = (),
    emptied: Collection[int] = (),
) -> Decision:
    """Elections for these partitions with the brokers and the settings of `image`.

    The operations are independent of one another, so they may be stored in chunks. For a partition without a state, the
    node above the state must exist.
    """
    changes = Changes(image)
    live: Collection[int] = image.brokers.keys()
    has_failed_folders = any(broker.offline for broker in image.brokers.values())
    for topic, indexes in partitions:
        if topic.name in image.deleting:
            continue
        rules = partition_rules(image, topic.name)
        for index in indexes:
            partition = topic.partitions[index]
            if has_failed_folders:
                live = image.online(topic, index)
            # What an unclean stop did to a replica in a failed data folder is asked when the folder is back.
            unclean = [broker for broker in uncleanly_stopped if broker in live]
            lost = [each for each in emptied if not image.brokers[each].has_kept(topic.name, topic.topic_id, index)]
            after = elect(partition, live, restarted, image.controller_epoch, rules, unclean, lost)
            if after is not None:
                changes.put(topic.name, index, after)
    return changes.decision()


def all_partitions(image: ClusterImage, topics: Iterable[str] | None = None) -> Iterator[tuple[TopicImage, range]]:
    """Of these topics, or of all, as `elect_partitions` takes them."""
    for name in image.topics if topics is None else topics:
        topic = image.topics.get(name)
        if topic is not None:
            yield topic, range(len(topic.partitions))


def with_elections(decided: Decision, topics: Iterable[str]) -> Decision:
    """A decision on settings, together with the elections that follow for these topics.

    When fewer replicas may commit, the ELR may lack what they commit from now on, so it must be empty from the moment
    the setting counts. When unclean elections become allowed, a partition without a leader gets one. If this takes
    several chunks, the setting comes last: a replica that counts for less than it could is harmless, the opposite is
    not.
    """
    elected = elect_partitions(decided.image, all_partitions(decided.image, topics))
    return Decision((*elected.operations, *decided.operations), elected.image, (*decided.unclean, *elected.unclean))


def with_elections_by_rules(before: ClusterImage, decided: Decision, topics: Iterable[str]) -> Decision:
    """A decision on settings, with the elections for those of these topics whose rules it changes."""
    affected = [name for name in topics if partition_rules(before, name) != partition_rules(decided.image, name)]
    return with_elections(decided, affected) if affected else decided


def is_lost(partition: PartitionImage) -> bool:
    """Whether no replica is known to have everything committed: only an unclean election helps.

    The ISR then holds those that had it last.
    """
    return partition.leader == NO_LEADER and partition.recovering


def eligible_after(partition: PartitionImage, isr: tuple[int, ...], rules: PartitionRules) -> tuple[int, ...]:
    """The ELR of a partition whose ISR becomes this."""
    return _eligible(partition, isr, rules, ())


def _eligible(
    partition: PartitionImage, isr: tuple[int, ...], rules: PartitionRules, unsafe: Collection[int]
) -> tuple[int, ...]:
    """The replicas that left the ISR when too few were in sync to commit anything more."""
    if len(isr) >= rules.effective_min_isr(partition):
        return ()
    return tuple(
        broker
        for broker in partition.replicas
        if broker not in isr and broker not in unsafe and (broker in partition.isr or broker in partition.elr)
    )


def _first_leader(partition: PartitionImage, live: Collection[int], controller_epoch: int) -> PartitionImage | None:
    isr = tuple(broker for broker in partition.replicas if broker in live)
    if not isr:
        return None
    return replace(
        partition, leader=isr[0], leader_epoch=0, isr=isr, controller_epoch=controller_epoch, state_version=0
    )


def _unclean_leader(
    partition: PartitionImage, live: Collection[int], emptied: Collection[int], rules: PartitionRules
) -> int:
    if rules.unclean_election:
        filled = _first(partition.replicas, [broker for broker in live if broker not in emptied])
        return _first(partition.replicas, live) if filled == NO_LEADER else filled
    if is_lost(partition) or partition.elr or any(each in emptied or each not in live for each in partition.isr):
        return NO_LEADER
    # They may have lost unsynced records, which the topic allows, and no other replica has more.
    return _first(partition.replicas, partition.isr)


def _remembered(
    partition: PartitionImage, elr: tuple[int, ...], unsafe: Collection[int]
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """ISR, ELR and whether everything is lost, of a partition without a leader: the brokers that must return.

    A broker that lost its disk must not count as in sync the next time it joins.
    """
    awaited = tuple(broker for broker in partition.isr if broker not in unsafe)
    if awaited:
        return awaited, _less(elr, awaited), False
    return (elr, (), False) if elr else (partition.isr, (), True)


def _less(brokers: tuple[int, ...], without: Collection[int]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in without)


def _first(replicas: Sequence[int], among: Iterable[int]) -> int:
    wanted = set(among)
    return next((broker for broker in replicas if broker in wanted), NO_LEADER)


# --- elections on request


class ElectionKind(IntEnum):
    """The values are those of the protocol."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectionResult(NamedTuple):
    """`errors` says why some partitions stay as they are."""

    decision: Decision
    errors: dict[TopicPartition, ApiException]


class PreferredLeaders(NamedTuple):
    """How many partitions prefer a broker as leader, and which of them another broker leads although it could."""

    total: int
    elsewhere: list[TopicPartition]

    @property
    def imbalance_percent(self) -> float:
        return 100 * len(self.elsewhere) / self.total if self.total else 0.0


def elect_leaders(image: ClusterImage, wanted: Iterable[TopicPartition], kind: ElectionKind) -> ElectionResult:
    changes = Changes(image)
    errors: dict[TopicPartition, ApiException] = {}
    for topic, index in wanted:
        try:
            partition = changes.partition(topic, index)
            if partition is None:
                raise UnknownTopic(f"topic {topic[:300]!r} has no partition {index}")
            online = image.online(image.topics[topic], index)
            if kind is ElectionKind.PREFERRED:
                after = _preferred(image, partition, online)
            else:
                after = _unclean(image, topic, partition, online)
            changes.put(topic, index, after)
        except ApiException as error:
            errors[topic, index] = error.with_traceback(None)
    return ElectionResult(changes.decision(), errors)


def preferred_leaders(partitions_by_broker: PartitionsByBroker, broker_id: int) -> PreferredLeaders:
    """Count the preferred leaders of one broker, so that the caller can let others run between two brokers."""
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
    """Whether leadership may move to this broker although the partition has a leader."""
    is_staying = broker_id in image.brokers and broker_id not in image.shutting_down
    return is_staying and broker_id in partition.isr and not is_lost(partition)


def _preferred(image: ClusterImage, partition: PartitionImage, online: Collection[int]) -> PartitionImage:
    broker_id = partition.replicas[0]
    if partition.leader == broker_id:
        raise ElectionNotNeeded(f"broker {broker_id} already leads the partition")
    if broker_id not in online or not can_lead(image, partition, broker_id):
        raise PreferredLeaderNotAvailable(f"broker {broker_id} {_obstacle(image, partition, broker_id, online)}")
    return replace(partition, leader=broker_id, leader_epoch=partition.leader_epoch + 1)


def _obstacle(image: ClusterImage, partition: PartitionImage, broker_id: int, online: Collection[int]) -> str:
    if broker_id not in online or broker_id not in image.brokers:
        return "is not alive"
    if broker_id in image.shutting_down:
        return "is shutting down"
    return (
        f"is not in sync: the ISR is {sorted(partition.isr)}" if broker_id not in partition.isr else "lost its records"
    )


def _unclean(image: ClusterImage, topic: str, partition: PartitionImage, online: Collection[int]) -> PartitionImage:
    if image.live_leader(partition) != NO_LEADER:
        raise ElectionNotNeeded(f"broker {partition.leader} leads the partition")
    rules = partition_rules(image, topic)._replace(unclean_election=True)
    after = elect(partition, online, (), image.controller_epoch, rules)
    if after is None or after.leader == NO_LEADER:
        raise EligibleLeadersNotAvailable(f"none of the replicas {partition.replicas} is alive")
    return after


# --- ISR changes (AlterPartition)


@dataclass(frozen=True, slots=True)
class IsrRequest:
    """A leader `broker` asks for an ISR; `isr_epochs` are the broker epochs of its members, or ANY_EPOCH."""

    topic: str
    partition: int
    broker: int
    broker_epoch: int
    leader_epoch: int
    state_version: int
    isr: tuple[int, ...]
    isr_epochs: tuple[int, ...]


IsrAnswer = ErrorCode | PartitionImage
"""The partition with the ISR that was asked for, or why it does not have it."""


def alter_isr(changes: Changes, request: IsrRequest) -> ErrorCode | None:
    """Put the ISR that a leader asks for, or return why not."""
    partition = changes.partition(request.topic, request.partition)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asking = changes.image.brokers.get(request.broker)
    if asking is None or asking.epoch != request.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    online = changes.image.online(changes.image.topics[request.topic], request.partition)
    error = _isr_error(partition, request, changes.image, online)
    if error is not None:
        return error
    isr = tuple(broker for broker in partition.replicas if broker in request.isr)
    if set(isr) != set(partition.isr):
        elr = eligible_after(partition, isr, partition_rules(changes.image, request.topic))
        changes.put(request.topic, request.partition, replace(partition, isr=isr, elr=elr, recovering=False))
    return None


def _isr_error(
    partition: PartitionImage, request: IsrRequest, image: ClusterImage, online: Collection[int]
) -> ErrorCode | None:
    if request.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.leader_epoch > partition.leader_epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if partition.leader != request.broker:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if request.state_version != partition.state_version:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = set(request.isr)
    if request.broker not in members or not members <= set(partition.replicas) or len(members) != len(request.isr):
        return ErrorCode.INVALID_REQUEST
    if len(request.isr_epochs) != len(request.isr):
        return ErrorCode.INVALID_REQUEST
    for broker, epoch in zip(request.isr, request.isr_epochs, strict=True):
        registered = image.brokers.get(broker)
        is_other = registered is not None and epoch not in (ANY_EPOCH, registered.epoch)
        # A member of the ISR may have died just now: the controller notices that by itself.
        joins = broker not in partition.isr
        if is_other or (joins and (broker not in online or broker in image.shutting_down)):
            return ErrorCode.INELIGIBLE_REPLICA
    return None


def alter_partition_request(
    broker_id: int, broker_epoch: int, requests: Sequence[IsrRequest], image: ClusterImage
) -> AlterPartitionRequest:
    """The message for these requests; topics that are not in the image are left out."""
    topics: dict[bytes, TopicData] = {}
    for request in requests:
        if request.topic not in image.topics:
            continue
        topic_id = image.topics[request.topic].topic_id
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = TopicData(topic_id=topic_id, partitions=[])
        topic.partitions.append(
            PartitionData(
                partition_index=request.partition,
                leader_epoch=request.leader_epoch,
                new_isr_with_epochs=[
                    BrokerState(broker_id=member, broker_epoch=ANY_EPOCH if epoch < 0 else epoch)
                    for member, epoch in zip(request.isr, request.isr_epochs, strict=True)
                ],
                partition_epoch=request.state_version,
            )
        )
    return AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, topics=list(topics.values()))


def isr_answers(
    requests: Sequence[IsrRequest], response: AlterPartitionResponse, image: ClusterImage
) -> list[IsrAnswer]:
    """The controller's answer to each request; a partition that the response does not name is unknown to it."""
    found = {
        (image.names_by_id.get(topic.topic_id, ""), item.partition_index): item
        for topic in response.topics
        for item in topic.partitions
    }
    return [_isr_answer(request, found.get((request.topic, request.partition)), image) for request in requests]


def _isr_answer(request: IsrRequest, item: PartitionDataResult | None, image: ClusterImage) -> IsrAnswer:
    known = image.partition(request.topic, request.partition)
    if item is None or known is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if item.error_code:
        return next((code for code in ErrorCode if code == item.error_code), ErrorCode.UNKNOWN_SERVER_ERROR)
    return replace(
        known,
        leader=item.leader_id,
        leader_epoch=item.leader_epoch,
        isr=tuple(item.isr),
        state_version=item.partition_epoch,
        recovering=bool(item.leader_recovery_state),
    )


# --- changes of partitions as a decision


class Changes:
    """Changes on one image. `partition` finds what was put before."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._after: dict[str, dict[int, PartitionImage]] = {}

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        """The partition with the changes so far; None if it does not exist or its topic is being deleted."""
        if topic in self.image.deleting:
            return None
        changed = self._after.get(topic, {}).get(index)
        return self.image.partition(topic, index) if changed is None else changed

    def put(self, topic: str, index: int, after: PartitionImage) -> None:
        """Replace an existing partition; version and controller epoch of its state are set here."""
        before = self.image.topics[topic].partitions[index]
        epoch, version = before.controller_epoch, before.state_version
        if not _is_same_state(before, after):
            epoch, version = self.image.controller_epoch, version + 1
        if (after.controller_epoch, after.state_version) != (epoch, version):
            after = replace(after, controller_epoch=epoch, state_version=version)
        changed = self._after.setdefault(topic, {})
        if after == before:
            changed.pop(index, None)
        else:
            changed[index] = after

    def decision(self) -> Decision:
        new_leaders: list[Operation] = []
        others: list[Operation] = []
        assignments: list[Operation] = []
        unclean: list[TopicPartition] = []
        topics: list[TopicImage] = []
        for topic, after in self._topics():
            topics.append(topic)
            before = self.image.topics[topic.name]
            if any(before.partitions[index].assignment != item.assignment for index, item in after.items()):
                assignments.append(_write_assignment(topic))
            for index, item in after.items():
                was = before.partitions[index]
                if item.state_version != was.state_version:
                    operations = new_leaders if item.leader != was.leader else others
                    operations.append(_write_state(topic.name, index, was, item))
                if _is_unclean(was, item):
                    unclean.append((topic.name, index))
        image = self.image.with_topics(topics) if topics else self.image
        return Decision((*new_leaders, *others, *assignments), image, tuple(unclean))

    def _topics(self) -> Iterator[tuple[TopicImage, dict[int, PartitionImage]]]:
        for name, changed in self._after.items():
            if changed:
                topic = self.image.topics[name]
                partitions = list(topic.partitions)
                for index, after in changed.items():
                    partitions[index] = after
                yield replace(topic, partitions=tuple(partitions)), changed


def _is_same_state(one: PartitionImage, other: PartitionImage) -> bool:
    """Whether leader, epoch, ISR and ELR are the same, and both have a state or neither has."""
    return (
        one.leader == other.leader
        and one.leader_epoch == other.leader_epoch
        and one.isr == other.isr
        and one.elr == other.elr
        and one.recovering == other.recovering
        and (one.state_version == NO_STATE) == (other.state_version == NO_STATE)
    )


def _is_unclean(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether the new leader may lack committed records."""
    if before.state_version == NO_STATE or after.leader in (NO_LEADER, before.leader):
        return False
    return after.leader not in before.isr and after.leader not in before.elr


def _write_state(topic: str, index: int, before: PartitionImage, after: PartitionImage) -> Operation:
    """Conditional on the state before."""
    path, data = layout.partition_state_path(topic, index), encode_partition_state(after.state)
    return Create(path, data) if before.state_version == NO_STATE else Set(path, data, before.state_version)


def _write_assignment(topic: TopicImage) -> Operation:
    topic_id = None if topic.topic_id == NO_ID else topic.topic_id
    return Set(layout.topic_path(topic.name), encode_topic(topic_id, [item.assignment for item in topic.partitions]))


class PartitionsByBroker:
    """An index of one image at a time; `follow` moves it to the next."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self._held: defaultdict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
        self._moving: dict[str, tuple[int, ...]] = {}
        for topic in image.topics.values():
            self._add(topic)

    def of(self, brokers: Iterable[int]) -> Iterator[tuple[TopicImage, list[int]]]:
        """The topics of which these brokers hold partitions, each with the indexes of those, in order."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        for broker in brokers:
            for name, indexes in self._held.get(broker, {}).items():
                found[name].update(indexes)
        for name in sorted(found):
            yield self.image.topics[name], sorted(found[name])

    def moving(self) -> list[TopicPartition]:
        """The partitions that are being reassigned, in order."""
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
