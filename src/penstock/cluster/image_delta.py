"""What is different between two images, as an object and as bytes. Pure.

Noun: an `ImageDelta`. `apply_delta(old, make_delta(old, new)) == new`; a whole image is the delta from the empty one.

Rule: what is not different is not in it, and is the same object in the image after it; a delta that does not fit the
image it is applied to is a DeltaMismatch, bytes that are none are a DamagedDelta. The bytes are MessagePack: a version,
then arrays; a partition's row ends where only defaults follow, and leaves out an ISR that has every replica in order.
A reader ignores what a newer writer adds at the end of an array.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import msgspec

from penstock.cluster.errors import DamagedDelta, DeltaMismatch
from penstock.cluster.image import ClusterImage, PartitionImage, Settings, TopicImage, diff
from penstock.cluster.layout import BrokerRegistration, Endpoint

FORMAT_VERSION: Final = 1

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class TopicDelta:
    """A topic that is new, or of which some partitions are; it has `count` partitions after it."""

    name: str
    topic_id: bytes
    count: int
    partitions: Mapping[int, PartitionImage]


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """None stands for what stays as it was. A topic made anew under its name is both gone and there."""

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
    leaving: frozenset[int] | None = None
    deleting: frozenset[str] | None = None


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
        leaving=None if old.leaving == new.leaving else new.leaving,
        deleting=None if old.deleting == new.deleting else new.deleting,
    )


def apply_delta(image: ClusterImage, delta: ImageDelta) -> ClusterImage:
    """DeltaMismatch."""
    for name in delta.topics_gone:
        if name not in image.topics:
            raise DeltaMismatch(f"it ends the topic {name!r}, which is not there")
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
        leaving=image.leaving if delta.leaving is None else delta.leaving,
        deleting=image.deleting if delta.deleting is None else delta.deleting,
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
        raise DeltaMismatch(f"it changes the topic {delta.name!r} of another id than the one that is there")
    known = () if before is None else before.partitions
    # Each partition that is not there is in the delta: so nobody's number makes this longer than what arrived.
    if len(known) + len(delta.partitions) < delta.count:
        raise DeltaMismatch(f"it lacks some of the {delta.count} partitions of {delta.name!r}")
    partitions: list[PartitionImage | None] = [*known[: delta.count], *[None] * (delta.count - len(known))]
    for index, partition in delta.partitions.items():
        if not 0 <= index < delta.count:
            raise DeltaMismatch(f"partition {index} of {delta.name!r} is beyond its {delta.count}")
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
    """The same object if nothing changed."""
    removed = set(gone)
    if not changed and not removed:
        return mapping
    return {**{key: value for key, value in mapping.items() if key not in removed}, **changed}


# --- bytes


class _Row(msgspec.Struct, array_like=True):
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


class _Topic(msgspec.Struct, array_like=True):
    name: str
    topic_id: bytes
    count: int
    indexes: list[int] | None  # None: all, in order
    rows: list[_Row]


class _Broker(msgspec.Struct, array_like=True):
    broker_id: int
    endpoints: list[tuple[str, str, str, int]]
    rack: str | None
    timestamp_ms: int
    features: dict[str, dict[str, int]]
    epoch: int
    clean_epoch: int
    is_emptied: bool


class _Delta(msgspec.Struct, array_like=True):
    version: int
    cluster_id: str | None
    controller: tuple[int, int] | None
    brokers: list[_Broker]
    brokers_gone: tuple[int, ...]
    topics: list[_Topic]
    topics_gone: tuple[str, ...]
    topic_configs: dict[str, dict[str, str]]
    topic_configs_gone: tuple[str, ...]
    broker_configs: dict[str, dict[str, str]]
    broker_configs_gone: tuple[str, ...]
    leaving: list[int] | None
    deleting: list[str] | None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Delta)
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
            None if delta.leaving is None else sorted(delta.leaving),
            None if delta.deleting is None else sorted(delta.deleting),
        ]
    )


def decode_delta(data: bytes) -> ImageDelta:
    """DamagedDelta."""
    try:
        found = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise DamagedDelta(str(error)) from error
    if found.version != FORMAT_VERSION:
        raise DamagedDelta(f"version {found.version} is not known; this broker reads version {FORMAT_VERSION}")
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
        None if found.leaving is None else frozenset(found.leaving),
        None if found.deleting is None else frozenset(found.deleting),
    )


def _sorted(configs: Mapping[str, Settings]) -> dict[str, dict[str, str]]:
    return {name: dict(sorted(configs[name].items())) for name in sorted(configs)}


def _broker_row(broker: BrokerRegistration) -> list[Any]:
    return [
        broker.broker_id, [tuple(endpoint) for endpoint in broker.endpoints], broker.rack, broker.timestamp_ms,
        broker.features, broker.epoch, broker.clean_epoch, broker.is_emptied,
    ]  # fmt: skip


def _broker(row: _Broker) -> BrokerRegistration:
    endpoints = tuple(Endpoint(*endpoint) for endpoint in row.endpoints)
    return BrokerRegistration(
        row.broker_id, endpoints, row.rack, row.timestamp_ms, row.features, row.epoch, row.clean_epoch, row.is_emptied
    )


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


def _topic(row: _Topic) -> TopicDelta:
    indexes = range(len(row.rows)) if row.indexes is None else row.indexes
    if len(indexes) != len(row.rows):
        raise DamagedDelta(f"{len(row.rows)} partitions of {row.name!r} with {len(indexes)} numbers")
    partitions = {index: _partition(item) for index, item in zip(indexes, row.rows, strict=True)}
    return TopicDelta(row.name, row.topic_id, row.count, partitions)


def _partition(row: _Row) -> PartitionImage:
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
