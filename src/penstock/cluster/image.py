"""The cluster as it is known at one moment: brokers, topics, partitions, settings. Pure, immutable.

Noun: a `ClusterImage`. Whoever answers a request takes the image once and sees one moment; whoever follows the cluster
is given the image before and after, and their `diff`.

Rule: an image never changes; `with_...` gives a new one that shares all that is the same, so that a comparison by
identity tells what is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar, cast

from penstock.cluster.layout import NO_LEADER, BrokerRegistration, Endpoint, Replicas

NO_ID: Final = bytes(16)
NO_CONTROLLER: Final = -1
NO_STATE: Final = -1

Settings = Mapping[str, str]

_NOTHING: Final[Settings] = {}


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition. `state_version` is that of its state's node, NO_STATE as long as it has none.

    `elr` are the replicas that are no longer in sync and yet hold all that was ever committed: nothing was committed
    since they left, as too few were in sync.
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
    def assignment(self) -> Replicas:
        return Replicas(self.replicas, self.adding, self.removing)


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `topic_id` is NO_ID for one that was made before there were ids."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]

    @property
    def replication_factor(self) -> int:
        """That of partition 0, as everybody tells it; a topic without partitions has 0."""
        return len(self.partitions[0].replicas) if self.partitions else 0

    def partition(self, index: int) -> PartitionImage | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None

    def with_partition(self, index: int, partition: PartitionImage) -> TopicImage:
        return replace(self, partitions=(*self.partitions[:index], partition, *self.partitions[index + 1 :]))

    def with_partitions(self, more: Iterable[PartitionImage]) -> TopicImage:
        """With these after those that it has."""
        return replace(self, partitions=(*self.partitions, *more))


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything that is known of a cluster. `brokers` are the live ones, those that stop in good order included."""

    cluster_id: str = ""
    controller_id: int = NO_CONTROLLER
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_configs: Mapping[str, Settings] = field(default_factory=dict)  # of topics that have a node for them
    broker_configs: Mapping[str, Settings] = field(default_factory=dict)  # by broker id as text, or "<default>"
    leaving: frozenset[int] = frozenset()  # live brokers that are about to stop: they shall not lead, nor join an ISR
    deleting: frozenset[str] = frozenset()  # topics that are there until the last replica of them is gone
    # Both follow from the topics; the second by the name with "_" for ".".
    names_by_id: Mapping[bytes, str] = field(default_factory=dict, compare=False)
    names_by_metric: Mapping[str, str] = field(default_factory=dict, compare=False)

    # Lookups.

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.names_by_id.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self.topics.get(topic)
        return None if found is None else found.partition(index)

    def topic_config(self, name: str) -> Settings:
        """What the topic sets for itself."""
        return self.topic_configs.get(name, _NOTHING)

    def broker_config(self, name: str) -> Settings:
        return self.broker_configs.get(name, _NOTHING)

    def colliding_topic(self, name: str) -> str | None:
        """A topic whose name differs from `name` only in "." and "_", which metrics cannot tell apart."""
        found = self.names_by_metric.get(metric_name(name))
        return None if found == name else found

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self.brokers

    def live_leader(self, partition: PartitionImage) -> int:
        """The leader if it is alive, else NO_LEADER."""
        return partition.leader if partition.leader in self.brokers else NO_LEADER

    def offline_replicas(self, partition: PartitionImage) -> tuple[int, ...]:
        """The replicas whose brokers are not there."""
        return tuple(broker_id for broker_id in partition.replicas if broker_id not in self.brokers)

    def endpoint(self, broker_id: int, listener: str) -> Endpoint | None:
        """Where a broker is reached by clients that came by a listener of this name."""
        broker = self.brokers.get(broker_id)
        if broker is None:
            return None
        return next((endpoint for endpoint in broker.endpoints if endpoint.listener == listener), None)

    # Changes.

    def with_topic(self, topic: TopicImage) -> ClusterImage:
        """With this topic, new or in the place of the one of its name."""
        return self.with_topics((topic,))

    def with_topics(self, topics: Iterable[TopicImage]) -> ClusterImage:
        """With these topics. Only what is changed is copied: most often a topic stays under its name and id."""
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
        """Without the topic and its settings; the same if there is none."""
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
        """With these topics on their way out, those of them that are there."""
        return replace(self, deleting=self.deleting.union(name for name in names if name in self.topics))

    def with_topic_config(self, name: str, settings: Settings) -> ClusterImage:
        return replace(self, topic_configs={**self.topic_configs, name: dict(settings)})

    def without_topic_configs(self, names: Collection[str]) -> ClusterImage:
        return replace(self, topic_configs=_without(self.topic_configs, names))

    def with_broker_config(self, name: str, settings: Settings) -> ClusterImage:
        return replace(self, broker_configs={**self.broker_configs, name: dict(settings)})

    def with_broker(self, broker: BrokerRegistration) -> ClusterImage:
        """With the broker as it registered now: whatever it was about to do in its former life is over."""
        return replace(
            self, brokers={**self.brokers, broker.broker_id: broker}, leaving=self.leaving - {broker.broker_id}
        )

    def without_broker(self, broker_id: int) -> ClusterImage:
        return replace(self, brokers=_without(self.brokers, (broker_id,)), leaving=self.leaving - {broker_id})

    def with_leaving(self, broker_id: int) -> ClusterImage:
        return replace(self, leaving=self.leaving | {broker_id})

    def with_controller(self, controller_id: int, epoch: int) -> ClusterImage:
        return replace(self, controller_id=controller_id, controller_epoch=epoch)


class ImageDraft(ClusterImage):
    """An image under construction: changes of topics and of their settings are made in place.

    A change of many topics costs what it changes, and not a copy of the cluster for each topic. `finish` gives the
    image; the draft is not used any more then, and nobody keeps an image that a draft gave in between.
    """

    __slots__ = ("_base",)
    _base: ClusterImage

    def __init__(self, base: ClusterImage) -> None:
        for each in fields(ClusterImage):
            object.__setattr__(self, each.name, getattr(base, each.name))
        object.__setattr__(self, "_base", base)

    def finish(self) -> ClusterImage:
        """The same image as before if nothing was changed; what was not changed is shared with it."""
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

    def _own(self, field_name: str) -> dict[Any, Any]:
        """A mapping of the draft's own, copied from the image before the first change."""
        mapping = getattr(self, field_name)
        if mapping is getattr(self._base, field_name):
            mapping = dict(mapping)
            object.__setattr__(self, field_name, mapping)
        return cast(dict[Any, Any], mapping)


@dataclass(frozen=True, slots=True)
class ImageDiff:
    """What is different; a topic that was deleted and made again is both removed and added."""

    topics_added: Mapping[str, TopicImage]
    topics_removed: Mapping[str, TopicImage]
    topics_changed: Mapping[str, tuple[TopicImage, TopicImage]]
    topic_configs_changed: frozenset[str]  # by name: set, changed, or gone with the topic
    broker_configs_changed: frozenset[str]
    brokers_added: frozenset[int]
    brokers_removed: frozenset[int]
    brokers_changed: frozenset[int]
    controller_changed: bool
    roles_changed: bool = False  # brokers that are about to stop, topics that are on their way out

    def __bool__(self) -> bool:
        return self != NO_DIFFERENCE


_NO_NAMES: Final[frozenset[str]] = frozenset()
_NO_BROKERS: Final[frozenset[int]] = frozenset()

NO_DIFFERENCE: Final = ImageDiff(
    {}, {}, {}, _NO_NAMES, _NO_NAMES, _NO_BROKERS, _NO_BROKERS, _NO_BROKERS, controller_changed=False
)

Key = TypeVar("Key")
Value = TypeVar("Value")


def diff(old: ClusterImage, new: ClusterImage) -> ImageDiff:
    """What is different in `new`. Costs nothing for the parts that the two share."""
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
        (old.leaving, old.deleting) != (new.leaving, new.deleting),
    )


def metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def _different(old: Mapping[Key, Value], new: Mapping[Key, Value]) -> list[Key]:
    """The keys under which the two differ, in the order of their appearance."""
    if old is new:
        return []
    found = [key for key, value in old.items() if (other := new.get(key)) is not value and other != value]
    found += [key for key in new if key not in old]
    return found


def _without(mapping: Mapping[Key, Value], keys: Collection[Key]) -> Mapping[Key, Value]:
    """The same if it has none of them."""
    if not any(key in mapping for key in keys):
        return mapping
    return {item: value for item, value in mapping.items() if item not in keys}
