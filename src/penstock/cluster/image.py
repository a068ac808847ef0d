"""The cluster at one moment (brokers, topics, partitions, settings), and the difference between two images. Pure.

A `ClusterImage` never changes. `with_...` returns a new image that shares everything that stays the same, so `diff`
costs only what differs. A request takes the image once and sees one moment. `ImageDraft` collects changes of many
topics and settings without copying the cluster for each.

An `ImageDelta` is the difference as an object and as bytes: `apply_delta(old, make_delta(old, new)) == new`; a whole
image is the delta from the empty one. The bytes are MessagePack: a version, then arrays. A partition row ends where
only defaults follow and leaves out an ISR that contains every replica in order. Readers ignore fields that a newer
writer adds at the end of an array. A delta for another image raises DeltaMismatch, unreadable bytes raise DamagedDelta.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from penstock.cluster.entity_configs import NO_ENTITY_CONFIGS, Entity, EntityConfigs
from penstock.cluster.errors import DamagedDelta, DeltaMismatch
from penstock.cluster.tree.layout import (
    NO_LEADER,
    BrokerRegistration,
    Endpoint,
    PartitionAssignment,
    PartitionState,
    ReplicaSet,
    TopicReplicas,
)
from penstock.security.acls import (
    NO_ACLS,
    AclEntry,
    Acls,
    Entries,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

NO_ID: Final = bytes(16)
NO_CONTROLLER: Final = -1
NO_STATE: Final = -1
FORMAT_VERSION: Final = 1

Settings = Mapping[str, str]
Key = TypeVar("Key")
Value = TypeVar("Value")

_NOTHING: Final[Settings] = {}
_NO_NAMES: Final[frozenset[str]] = frozenset()
_NO_BROKERS: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition. `state_version` is the version of its state's node, NO_STATE if it has none.

    `elr` are the replicas that left the ISR and still have everything committed: since they left, too few were in sync
    to commit more.
    """

    replicas: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    controller_epoch: int = 0
    recovering: bool = False
    state_version: int = NO_STATE
    elr: tuple[int, ...] = ()

    @property
    def assignment(self) -> PartitionAssignment:
        return PartitionAssignment(self.replicas, self.adding, self.removing)

    @property
    def state(self) -> PartitionState:
        """The state as the tree stores it."""
        return PartitionState(
            self.leader, self.leader_epoch, self.isr, self.controller_epoch, self.recovering, self.elr
        )


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `topic_id` is NO_ID if it was created before topics had ids."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]

    @property
    def replication_factor(self) -> int:
        """The replication factor of partition 0; 0 for a topic without partitions."""
        return len(self.partitions[0].replicas) if self.partitions else 0

    def partition(self, index: int) -> PartitionImage | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None

    def with_partitions(self, more: Iterable[PartitionImage]) -> TopicImage:
        """A copy with these partitions appended."""
        return replace(self, partitions=(*self.partitions, *more))


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything that is known about a cluster. `brokers` are the live ones, including those that shut down."""

    cluster_id: str = ""
    controller_id: int = NO_CONTROLLER
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_configs: Mapping[str, Settings] = field(default_factory=dict)  # of topics that have a node for them
    broker_configs: Mapping[str, Settings] = field(default_factory=dict)  # by broker id as text, or "<default>"
    shutting_down: frozenset[int] = frozenset()  # live brokers that must not be elected, nor join an ISR
    deleting: frozenset[str] = frozenset()  # topics that exist until their last replica is deleted
    acls: Acls = NO_ACLS
    entities: EntityConfigs = NO_ENTITY_CONFIGS  # settings of users, client ids and addresses
    # Both follow from the topics; the keys of the second have "_" for ".".
    names_by_id: Mapping[bytes, str] = field(default_factory=dict, compare=False)
    names_by_metric: Mapping[str, str] = field(default_factory=dict, compare=False)

    # --- lookups

    @property
    def users(self) -> Mapping[str, Settings]:
        """The credentials and quotas of users, by name."""
        return self.entities.users

    @property
    def clients(self) -> Mapping[str, Settings]:
        return self.entities.clients

    @property
    def user_clients(self) -> Mapping[tuple[str, str], Settings]:
        return self.entities.user_clients

    @property
    def ips(self) -> Mapping[str, Settings]:
        return self.entities.ips

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.names_by_id.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self.topics.get(topic)
        return None if found is None else found.partition(index)

    def topic_config(self, name: str) -> Settings:
        """The topic's own settings."""
        return self.topic_configs.get(name, _NOTHING)

    def broker_config(self, name: str) -> Settings:
        return self.broker_configs.get(name, _NOTHING)

    def colliding_topic(self, name: str) -> str | None:
        """Another topic whose name differs only in "." and "_", which metrics cannot tell apart."""
        found = self.names_by_metric.get(metric_name(name))
        return None if found == name else found

    def live_leader(self, partition: PartitionImage) -> int:
        """The leader if it is alive, else NO_LEADER."""
        return partition.leader if partition.leader in self.brokers else NO_LEADER

    def offline_replicas(self, topic: TopicImage, index: int) -> tuple[int, ...]:
        """The replicas whose brokers are not alive, or have them in a failed data folder."""
        return tuple(each for each in topic.partitions[index].replicas if not self.is_online(each, topic, index))

    def is_online(self, broker_id: int, topic: TopicImage, index: int) -> bool:
        """Whether a broker is alive and its replica of the partition, if it has one, is not in a failed data folder."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not (broker.offline and broker.is_offline(topic.name, topic.topic_id, index))

    def online(self, topic: TopicImage, index: int) -> Collection[int]:
        """The live brokers whose replica of the partition, if they have one, is not in a failed data folder."""
        if not any(broker.offline for broker in self.brokers.values()):
            return self.brokers.keys()
        return frozenset(each for each in self.brokers if self.is_online(each, topic, index))

    def endpoint(self, broker_id: int, listener: str) -> Endpoint | None:
        """The address that a broker advertises for this listener."""
        broker = self.brokers.get(broker_id)
        if broker is None:
            return None
        return next((endpoint for endpoint in broker.endpoints if endpoint.listener == listener), None)

    # --- changes

    def with_topic(self, topic: TopicImage) -> ClusterImage:
        """A copy with this topic added or replaced."""
        return self.with_topics((topic,))

    def with_topics(self, topics: Iterable[TopicImage]) -> ClusterImage:
        """A copy with these topics added or replaced. The indexes are copied only if names or ids change."""
        all_topics = dict(self.topics)
        by_id: dict[bytes, str] | None = None
        by_metric: dict[str, str] | None = None
        for topic in topics:
            before = all_topics.get(topic.name)
            all_topics[topic.name] = topic
            if before is not None and before.topic_id == topic.topic_id:
                continue
            by_id = dict(self.names_by_id) if by_id is None else by_id
            by_metric = dict(self.names_by_metric) if by_metric is None else by_metric
            if before is not None:
                by_id.pop(before.topic_id, None)
            by_metric[metric_name(topic.name)] = topic.name
            if topic.topic_id != NO_ID:
                by_id[topic.topic_id] = topic.name
        return replace(
            self,
            topics=all_topics,
            names_by_id=self.names_by_id if by_id is None else by_id,
            names_by_metric=self.names_by_metric if by_metric is None else by_metric,
        )

    def without_topic(self, name: str) -> ClusterImage:
        """Without the topic and its settings; the same image if it does not exist."""
        return self.without_topics((name,))

    def without_topics(self, names: Collection[str]) -> ClusterImage:
        gone = {name: self.topics[name] for name in names if name in self.topics}
        if not gone:
            return self
        by_metric = {metric_name(name): name for name in gone}
        return replace(
            self,
            topics=_without(self.topics, gone),
            topic_configs=_without(self.topic_configs, gone),
            deleting=self.deleting.difference(gone),
            names_by_id=_without(self.names_by_id, {topic.topic_id for topic in gone.values()}),
            names_by_metric={key: name for key, name in self.names_by_metric.items() if by_metric.get(key) != name},
        )

    def with_deleting(self, names: Iterable[str]) -> ClusterImage:
        """A copy with these topics, as far as they exist, marked for deletion."""
        return replace(self, deleting=self.deleting.union(name for name in names if name in self.topics))

    def with_topic_config(self, name: str, settings: Settings) -> ClusterImage:
        return replace(self, topic_configs={**self.topic_configs, name: dict(settings)})

    def without_topic_configs(self, names: Collection[str]) -> ClusterImage:
        return replace(self, topic_configs=_without(self.topic_configs, names))

    def with_broker_config(self, name: str, settings: Settings) -> ClusterImage:
        return replace(self, broker_configs={**self.broker_configs, name: dict(settings)})

    def with_acls(self, acls: Acls) -> ClusterImage:
        return replace(self, acls=acls)

    def with_entities(self, entities: EntityConfigs) -> ClusterImage:
        return replace(self, entities=entities)

    def with_broker(self, broker: BrokerRegistration) -> ClusterImage:
        """A copy with the broker as it registered now; a shutdown of its previous epoch is over."""
        brokers = {**self.brokers, broker.broker_id: broker}
        return replace(self, brokers=brokers, shutting_down=self.shutting_down - {broker.broker_id})

    def without_broker(self, broker_id: int) -> ClusterImage:
        brokers = _without(self.brokers, (broker_id,))
        return replace(self, brokers=brokers, shutting_down=self.shutting_down - {broker_id})

    def with_shutting_down(self, broker_id: int) -> ClusterImage:
        return replace(self, shutting_down=self.shutting_down | {broker_id})

    def with_controller(self, controller_id: int, epoch: int) -> ClusterImage:
        return replace(self, controller_id=controller_id, controller_epoch=epoch)


class ImageDraft(ClusterImage):
    """An image under construction: topics and settings are changed in place.

    Changing many topics costs what changes, not a copy of the cluster for each. `finish` returns the image; after that
    the draft must not be used.
    """

    __slots__ = ("_base",)
    _base: ClusterImage

    def __init__(self, base: ClusterImage) -> None:
        for each in fields(ClusterImage):
            object.__setattr__(self, each.name, getattr(base, each.name))
        object.__setattr__(self, "_base", base)

    def finish(self) -> ClusterImage:
        """The base image itself if nothing changed; otherwise unchanged parts are shared with it."""
        values = {each.name: getattr(self, each.name) for each in fields(ClusterImage)}
        if all(value is getattr(self._base, name) for name, value in values.items()):
            return self._base
        return ClusterImage(**values)

    def with_topics(self, topics: Iterable[TopicImage]) -> ImageDraft:
        all_topics = self._own("topics")
        for topic in topics:
            before = all_topics.get(topic.name)
            all_topics[topic.name] = topic
            if before is not None and before.topic_id == topic.topic_id:
                continue
            by_id = self._own("names_by_id")
            if before is not None:
                by_id.pop(before.topic_id, None)
            if topic.topic_id != NO_ID:
                by_id[topic.topic_id] = topic.name
            self._own("names_by_metric")[metric_name(topic.name)] = topic.name
        return self

    def without_topics(self, names: Collection[str]) -> ImageDraft:
        for name in names:
            topic = self.topics.get(name)
            if topic is None:
                continue
            del self._own("topics")[name]
            if topic.topic_id in self.names_by_id:
                del self._own("names_by_id")[topic.topic_id]
            if self.names_by_metric.get(metric_name(name)) == name:
                del self._own("names_by_metric")[metric_name(name)]
            if name in self.topic_configs:
                del self._own("topic_configs")[name]
            if name in self.deleting:
                object.__setattr__(self, "deleting", self.deleting - {name})
        return self

    def with_deleting(self, names: Iterable[str]) -> ImageDraft:
        marked = self.deleting.union(name for name in names if name in self.topics)
        object.__setattr__(self, "deleting", marked)
        return self

    def with_topic_config(self, name: str, settings: Settings) -> ImageDraft:
        self._own("topic_configs")[name] = dict(settings)
        return self

    def with_broker_config(self, name: str, settings: Settings) -> ImageDraft:
        self._own("broker_configs")[name] = dict(settings)
        return self

    def _own(self, field_name: str) -> dict[Any, Any]:
        """The draft's own mapping, copied from the base before the first change."""
        mapping = getattr(self, field_name)
        if mapping is getattr(self._base, field_name):
            mapping = dict(mapping)
            object.__setattr__(self, field_name, mapping)
        return cast(dict[Any, Any], mapping)


@dataclass(frozen=True, slots=True)
class ImageDiff:
    """The difference between two images; a topic that was deleted and created again is both removed and added."""

    topics_added: Mapping[str, TopicImage]
    topics_removed: Mapping[str, TopicImage]
    topics_changed: Mapping[str, tuple[TopicImage, TopicImage]]
    topic_configs_changed: frozenset[str]  # by name: set, changed, or deleted with the topic
    broker_configs_changed: frozenset[str]
    brokers_added: frozenset[int]
    brokers_removed: frozenset[int]
    brokers_changed: frozenset[int]
    controller_changed: bool
    roles_changed: bool = False  # brokers that shut down, topics that are being deleted
    acls_changed: bool = False
    entities_changed: bool = False

    def __bool__(self) -> bool:
        return self != NO_DIFFERENCE


NO_DIFFERENCE: Final = ImageDiff(
    {}, {}, {}, _NO_NAMES, _NO_NAMES, _NO_BROKERS, _NO_BROKERS, _NO_BROKERS, controller_changed=False
)


_last_diff: tuple[ClusterImage, ClusterImage, ImageDiff] | None = None


def diff(old: ClusterImage, new: ClusterImage) -> ImageDiff:
    """The difference to `new`. Shared parts cost nothing.

    Every part of a broker asks for the difference between the same two images, and mappings that are not shared are
    compared key by key. So the last answer is kept.
    """
    global _last_diff
    known = _last_diff
    if known is not None and known[0] is old and known[1] is new:
        return known[2]
    found = _diff(old, new)
    if type(old) is type(new) is ClusterImage:  # a draft changes
        _last_diff = (old, new, found)
    return found


def _diff(old: ClusterImage, new: ClusterImage) -> ImageDiff:
    added: dict[str, TopicImage] = {}
    removed: dict[str, TopicImage] = {}
    changed: dict[str, tuple[TopicImage, TopicImage]] = {}
    for name in _different(old.topics, new.topics):
        before, after = old.topics.get(name), new.topics.get(name)
        if before is not None and after is not None and before.topic_id == after.topic_id:
            changed[name] = (before, after)
            continue
        if before is not None:
            removed[name] = before
        if after is not None:
            added[name] = after
    brokers = _different(old.brokers, new.brokers)
    return ImageDiff(
        added,
        removed,
        changed,
        frozenset(_different(old.topic_configs, new.topic_configs)),
        frozenset(_different(old.broker_configs, new.broker_configs)),
        frozenset(broker for broker in brokers if broker not in old.brokers),
        frozenset(broker for broker in brokers if broker not in new.brokers),
        frozenset(broker for broker in brokers if broker in old.brokers and broker in new.brokers),
        (old.controller_id, old.controller_epoch) != (new.controller_id, new.controller_epoch),
        (old.shutting_down, old.deleting) != (new.shutting_down, new.deleting),
        old.acls is not new.acls and old.acls != new.acls,
        old.entities is not new.entities and old.entities != new.entities,
    )


def metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def _different(old: Mapping[Key, Value], new: Mapping[Key, Value]) -> list[Key]:
    """The keys under which the two differ, in order of appearance."""
    if old is new:
        return []
    found = [key for key, value in old.items() if (other := new.get(key)) is not value and other != value]
    found += [key for key in new if key not in old]
    return found


def _without(mapping: Mapping[Key, Value], keys: Collection[Key]) -> Mapping[Key, Value]:
    """The same mapping if it has none of the keys."""
    if not any(key in mapping for key in keys):
        return mapping
    return {item: value for item, value in mapping.items() if item not in keys}


# --- deltas


@dataclass(frozen=True, slots=True)
class TopicDelta:
    """A topic that is new or has changed partitions; it has `count` partitions afterwards."""

    name: str
    topic_id: bytes
    count: int
    partitions: Mapping[int, PartitionImage]


class AclsDelta(NamedTuple):
    """The entries of patterns that changed, none for those that are gone; and whether ACLs cannot be read."""

    changed: Mapping[ResourcePattern, Entries]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """None means unchanged. A topic that was deleted and created again is in `topics_gone` and in `topics`."""

    cluster_id: str | None = None
    controller: tuple[int, int] | None = None  # id and epoch
    brokers: tuple[BrokerRegistration, ...] = ()
    brokers_gone: tuple[int, ...] = ()
    topics: tuple[TopicDelta, ...] = ()
    topics_gone: tuple[str, ...] = ()
    topic_configs: Mapping[str, Settings] = field(default_factory=dict)
    topic_configs_gone: tuple[str, ...] = ()
    broker_configs: Mapping[str, Settings] = field(default_factory=dict)
    broker_configs_gone: tuple[str, ...] = ()
    shutting_down: frozenset[int] | None = None
    deleting: frozenset[str] | None = None
    acls: AclsDelta | None = None
    entities: Mapping[Entity, Settings | None] = field(default_factory=dict)


def make_delta(old: ClusterImage, new: ClusterImage) -> ImageDelta:
    change = diff(old, new)
    topics = [_whole(topic) for topic in change.topics_added.values()]
    topics += [_part(before, after) for before, after in change.topics_changed.values()]
    return ImageDelta(
        cluster_id=None if old.cluster_id == new.cluster_id else new.cluster_id,
        controller=(new.controller_id, new.controller_epoch) if change.controller_changed else None,
        brokers=tuple(new.brokers[broker] for broker in sorted(change.brokers_added | change.brokers_changed)),
        brokers_gone=tuple(sorted(change.brokers_removed)),
        topics=tuple(topics),
        topics_gone=tuple(change.topics_removed),
        topic_configs=_present(new.topic_configs, change.topic_configs_changed),
        topic_configs_gone=_gone(new.topic_configs, change.topic_configs_changed),
        broker_configs=_present(new.broker_configs, change.broker_configs_changed),
        broker_configs_gone=_gone(new.broker_configs, change.broker_configs_changed),
        shutting_down=None if old.shutting_down == new.shutting_down else new.shutting_down,
        deleting=None if old.deleting == new.deleting else new.deleting,
        acls=_acls_delta(old.acls, new.acls) if change.acls_changed else None,
        entities=old.entities.changes_to(new.entities) if change.entities_changed else {},
    )


def _acls_delta(old: Acls, new: Acls) -> AclsDelta:
    changed = _different(old.by_pattern, new.by_pattern)
    return AclsDelta({pattern: new.entries(pattern) for pattern in changed}, new.problem)


def apply_delta(image: ClusterImage, delta: ImageDelta) -> ClusterImage:
    """DeltaMismatch."""
    for name in delta.topics_gone:
        if name not in image.topics:
            raise DeltaMismatch(f"it deletes topic {name!r}, which does not exist")
    after = image.without_topics(delta.topics_gone)
    if delta.topics:
        after = after.with_topics([_applied(after, topic) for topic in delta.topics])
    controller_id, controller_epoch = delta.controller or (image.controller_id, image.controller_epoch)
    return replace(
        after,
        cluster_id=image.cluster_id if delta.cluster_id is None else delta.cluster_id,
        controller_id=controller_id,
        controller_epoch=controller_epoch,
        brokers=_merged(image.brokers, {each.broker_id: each for each in delta.brokers}, delta.brokers_gone),
        topic_configs=_merged(image.topic_configs, delta.topic_configs, delta.topic_configs_gone),
        broker_configs=_merged(image.broker_configs, delta.broker_configs, delta.broker_configs_gone),
        shutting_down=image.shutting_down if delta.shutting_down is None else delta.shutting_down,
        deleting=image.deleting if delta.deleting is None else delta.deleting,
        acls=image.acls if delta.acls is None else image.acls.with_entries(*delta.acls),
        entities=image.entities.with_changes(delta.entities) if delta.entities else image.entities,
    )


def _whole(topic: TopicImage) -> TopicDelta:
    return TopicDelta(topic.name, topic.topic_id, len(topic.partitions), dict(enumerate(topic.partitions)))


def _part(before: TopicImage, after: TopicImage) -> TopicDelta:
    known = before.partitions
    changed = {
        index: partition
        for index, partition in enumerate(after.partitions)
        if index >= len(known) or (known[index] is not partition and known[index] != partition)
    }
    return TopicDelta(after.name, after.topic_id, len(after.partitions), changed)


def _applied(image: ClusterImage, delta: TopicDelta) -> TopicImage:
    before = image.topics.get(delta.name)
    if before is not None and before.topic_id != delta.topic_id:
        raise DeltaMismatch(f"it changes a topic {delta.name!r} with another id")
    known = () if before is None else before.partitions
    # Missing partitions must be in the delta, so a large count cannot allocate more than arrived.
    if len(known) + len(delta.partitions) < delta.count:
        raise DeltaMismatch(f"it lacks some of the {delta.count} partitions of {delta.name!r}")
    partitions: list[PartitionImage | None] = [*known[: delta.count], *[None] * (delta.count - len(known))]
    for index, partition in delta.partitions.items():
        if not 0 <= index < delta.count:
            raise DeltaMismatch(f"partition {index} of {delta.name!r} is not below {delta.count}")
        partitions[index] = partition
    found = tuple(partition for partition in partitions if partition is not None)
    if len(found) < delta.count:
        raise DeltaMismatch(f"it lacks some of the {delta.count} partitions of {delta.name!r}")
    return TopicImage(delta.name, delta.topic_id, found)


def _present(mapping: Mapping[Key, Value], keys: Iterable[Key]) -> dict[Key, Value]:
    return {key: mapping[key] for key in keys if key in mapping}


def _gone(mapping: Mapping[str, Value], keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(key for key in keys if key not in mapping))


def _merged(mapping: Mapping[Key, Value], changed: Mapping[Key, Value], gone: Iterable[Key]) -> Mapping[Key, Value]:
    """The same mapping if nothing changed."""
    removed = set(gone)
    if not changed and not removed:
        return mapping
    return {**{key: value for key, value in mapping.items() if key not in removed}, **changed}


# --- bytes


class _PartitionRow(msgspec.Struct, array_like=True):
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    state_version: int
    controller_epoch: int
    isr: tuple[int, ...] | None = None  # None: every replica, in order
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: bool = False


class _TopicRow(msgspec.Struct, array_like=True):
    name: str
    topic_id: bytes
    count: int
    indexes: list[int] | None  # None: all, in order
    rows: list[_PartitionRow]


class _BrokerRow(msgspec.Struct, array_like=True):
    broker_id: int
    endpoints: list[tuple[str, str, str, int]]
    rack: str | None
    timestamp_ms: int
    features: dict[str, dict[str, int]]
    epoch: int
    clean_epoch: int
    is_emptied: bool
    clean_since: int
    kept: dict[str, tuple[bytes, list[int]]] = {}
    offline: dict[str, tuple[bytes, list[int]]] = {}


class _AclsRow(msgspec.Struct, array_like=True):
    # Type, name and pattern type of a resource, and its entries.
    changed: list[tuple[ResourceType, str, PatternType, list[tuple[str, str, Operation, Permission]]]]
    problem: str | None = None


class _DeltaRow(msgspec.Struct, array_like=True):
    version: int
    cluster_id: str | None
    controller: tuple[int, int] | None
    brokers: list[_BrokerRow]
    brokers_gone: tuple[int, ...]
    topics: list[_TopicRow]
    topics_gone: tuple[str, ...]
    topic_configs: dict[str, dict[str, str]]
    topic_configs_gone: tuple[str, ...]
    broker_configs: dict[str, dict[str, str]]
    broker_configs_gone: tuple[str, ...]
    shutting_down: list[int] | None
    deleting: list[str] | None
    acls: _AclsRow | None = None
    entities: list[tuple[str | None, str | None, str | None, dict[str, str] | None]] = []


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_DeltaRow)
_ROW_DEFAULTS: Final[tuple[Any, ...]] = (None, (), (), (), False)
_ROW_LENGTH: Final = 5


def encode_delta(delta: ImageDelta) -> bytes:
    """The same delta gives the same bytes."""
    return _ENCODER.encode(
        [
            FORMAT_VERSION,
            delta.cluster_id,
            delta.controller,
            [_broker_row(broker) for broker in delta.brokers],
            delta.brokers_gone,
            [_topic_row(topic) for topic in delta.topics],
            delta.topics_gone,
            _sorted(delta.topic_configs),
            delta.topic_configs_gone,
            _sorted(delta.broker_configs),
            delta.broker_configs_gone,
            None if delta.shutting_down is None else sorted(delta.shutting_down),
            None if delta.deleting is None else sorted(delta.deleting),
            None if delta.acls is None else _acls_row(delta.acls),
            [[*entity, delta.entities[entity]] for entity in sorted(delta.entities, key=lambda each: each.path)],
        ]
    )


def decode_delta(data: bytes) -> ImageDelta:
    """DamagedDelta."""
    try:
        found = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise DamagedDelta(str(error)) from error
    if found.version != FORMAT_VERSION:
        raise DamagedDelta(f"unknown version {found.version}; this broker reads version {FORMAT_VERSION}")
    return ImageDelta(
        found.cluster_id,
        found.controller,
        tuple(_broker(row) for row in found.brokers),
        found.brokers_gone,
        tuple(_topic(row) for row in found.topics),
        found.topics_gone,
        found.topic_configs,
        found.topic_configs_gone,
        found.broker_configs,
        found.broker_configs_gone,
        None if found.shutting_down is None else frozenset(found.shutting_down),
        None if found.deleting is None else frozenset(found.deleting),
        None if found.acls is None else _acls(found.acls),
        {Entity(*names): settings for *names, settings in found.entities},
    )


def _sorted(configs: Mapping[str, Settings]) -> dict[str, dict[str, str]]:
    return {name: dict(sorted(configs[name].items())) for name in sorted(configs)}


def _acls_row(delta: AclsDelta) -> list[Any]:
    changed = [[*pattern, sorted(delta.changed[pattern])] for pattern in sorted(delta.changed)]
    return [changed, delta.problem]


def _acls(row: _AclsRow) -> AclsDelta:
    changed = {
        ResourcePattern(kind, name, pattern_type): frozenset(AclEntry(*entry) for entry in entries)
        for kind, name, pattern_type, entries in row.changed
    }
    return AclsDelta(changed, row.problem)


def _broker_row(broker: BrokerRegistration) -> list[Any]:
    return [
        broker.broker_id, [tuple(endpoint) for endpoint in broker.endpoints], broker.rack, broker.timestamp_ms,
        broker.features, broker.epoch, broker.clean_epoch, broker.is_emptied, broker.clean_since,
        _replicas_row(broker.kept), _replicas_row(broker.offline),
    ]  # fmt: skip


def _replicas_row(replicas: ReplicaSet) -> dict[str, tuple[bytes, list[int]]]:
    return {topic: (found.topic_id, sorted(found.partitions)) for topic, found in sorted(replicas.items())}


def _replicas(row: Mapping[str, tuple[bytes, list[int]]]) -> ReplicaSet:
    return {topic: TopicReplicas(topic_id, frozenset(indexes)) for topic, (topic_id, indexes) in row.items()}


def _broker(row: _BrokerRow) -> BrokerRegistration:
    endpoints = tuple(Endpoint(*endpoint) for endpoint in row.endpoints)
    return BrokerRegistration(
        row.broker_id, endpoints, row.rack, row.timestamp_ms, row.features, row.epoch, row.clean_epoch, row.is_emptied,
        row.clean_since, _replicas(row.kept), _replicas(row.offline),
    )  # fmt: skip


def _topic_row(topic: TopicDelta) -> list[Any]:
    indexes = sorted(topic.partitions)
    rows = [_partition_row(topic.partitions[index]) for index in indexes]
    is_whole = len(indexes) == topic.count
    return [topic.name, topic.topic_id, topic.count, None if is_whole else indexes, rows]


def _partition_row(item: PartitionImage) -> list[Any]:
    isr = None if item.isr == item.replicas else item.isr
    row = [item.replicas, item.leader, item.leader_epoch, item.state_version, item.controller_epoch]
    if isr is None and not item.elr and not item.adding and not item.removing and not item.recovering:
        return row
    row += (isr, item.elr, item.adding, item.removing, item.recovering)
    while len(row) > _ROW_LENGTH and row[-1] == _ROW_DEFAULTS[len(row) - _ROW_LENGTH - 1]:
        row.pop()
    return row


def _topic(row: _TopicRow) -> TopicDelta:
    indexes = range(len(row.rows)) if row.indexes is None else row.indexes
    if len(indexes) != len(row.rows):
        raise DamagedDelta(f"{len(row.rows)} partitions of {row.name!r} with {len(indexes)} indexes")
    partitions = {index: _partition(item) for index, item in zip(indexes, row.rows, strict=True)}
    return TopicDelta(row.name, row.topic_id, row.count, partitions)


def _partition(row: _PartitionRow) -> PartitionImage:
    return PartitionImage(
        row.replicas,
        row.leader,
        row.leader_epoch,
        row.replicas if row.isr is None else row.isr,
        row.adding,
        row.removing,
        row.controller_epoch,
        row.recovering,
        row.state_version,
        row.elr,
    )
