"""Settings that change while the broker runs, of topics, of brokers, of the cluster.

Each setting is validated alone by the catalogue and together with the others before it is stored; a stored value fits
into every version of DescribeConfigs. A broker's settings are changed through that broker, or through the controller,
which validates those of another broker one by one.

`CLUSTER_WIDE` settings (how many replicas commit, whether a commit waits for the disk, who may be elected) come from
the cluster image alone: the topic's own, then those of all brokers ("<default>"). They cannot be set for one broker:
a controller that counts on two in-sync replicas where a leader commits with one would elect a leader that lacks
records. The first controller of a cluster copies them from its file to "<default>".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.errors import DUPLICATE_IN_REQUEST, NO_ERROR, ApiError, api_error_of, duplicates
from penstock.broker.settings import (
    BrokerSettings,
    InvalidSettings,
    Problem,
    Source,
    check_changeable,
    check_topic_setting,
    check_topic_settings,
    settings_from,
    topic_settings,
)
from penstock.broker.settings.broker_settings import admit
from penstock.broker.settings.catalogue import BROKER_DEFINITIONS, TOPIC_DEFINITIONS
from penstock.broker.settings.config_def import ConfigType, format_value
from penstock.broker.settings.topic_settings import TopicSettings, sound_overrides
from penstock.cluster.controller.configs import ResourceKind, edit_config, replace_config
from penstock.cluster.controller.election import PartitionRules
from penstock.cluster.errors import ApiException, InvalidConfig, InvalidRequest
from penstock.cluster.image import ClusterImage, Settings
from penstock.cluster.membership.standalone import ConfigChange
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import DEFAULT_BROKER

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class SettingsRules:
    """The rules of this version of the broker."""

    def problem(self, kind: ResourceKind, name: str, value: str) -> str | None:
        if kind is ResourceKind.TOPIC:
            return check_topic_setting(name, value)
        reason = check_changeable(name)
        if reason is not None:
            return f"{name}: {reason}"
        admitted = admit(name, value, Source.DYNAMIC_BROKER, "changed")
        return f"{name}: {admitted.reason}" if isinstance(admitted, Problem) else None

    def list_default(self, kind: ResourceKind, name: str) -> str | None:
        definitions = TOPIC_DEFINITIONS if kind is ResourceKind.TOPIC else BROKER_DEFINITIONS
        definition = definitions.get(name)
        if definition is None or definition.type is not ConfigType.LIST:
            return None
        return format_value(definition, definition.default) or ""


logger = logging.getLogger(__name__)

CLUSTER_WIDE: Final = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
)
_REMEMBERED: Final = 4096


class ClusterWideRules:
    """The rules of images; the same for the same image, wherever it is asked."""

    def __init__(self) -> None:
        self._plain = settings_from({})
        self._broker_wide: tuple[Settings, BrokerSettings] = ({}, self._plain)
        self._known: dict[str, tuple[Settings, Settings, PartitionRules]] = {}

    def rules(self, image: ClusterImage, topic: str) -> PartitionRules:
        wide, own = image.broker_config(DEFAULT_BROKER), image.topic_config(topic)
        known = self._known.get(topic)
        if known is not None and known[0] is wide and known[1] is own:
            return known[2]
        settings = topic_settings(self._settings(wide), sound_overrides(own)[0])
        found = PartitionRules(
            settings.min_insync_replicas, settings.unclean_leader_election_enable, settings.log.sync_before_ack
        )
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[topic] = (wide, own, found)
        return found

    def bound(self, settings: TopicSettings, image: ClusterImage, topic: str) -> TopicSettings:
        """A broker's view of a topic's settings, with what all brokers must agree on."""
        rules = self.rules(image, topic)
        return replace(
            settings,
            min_insync_replicas=rules.min_insync_replicas,
            unclean_leader_election_enable=rules.unclean_election,
            log=replace(settings.log, sync_before_ack=rules.syncs_before_ack),
        )

    def _settings(self, wide: Settings) -> BrokerSettings:
        if self._broker_wide[0] is not wide:
            binding = {name: wide[name] for name in CLUSTER_WIDE if name in wide}
            try:
                self._broker_wide = (wide, self._plain.with_changes(dict(binding), cluster_wide=True))
            except InvalidSettings as error:
                logger.error("stored settings of all brokers are not in force: %s", error)
                self._broker_wide = (wide, self._plain)
        return self._broker_wide[1]


def cluster_wide_from_file(settings: BrokerSettings) -> dict[str, str]:
    """What a broker's own file, or its command line, says of these."""
    static = {**settings.layers.file, **settings.layers.command}
    return {name: static[name].text for name in CLUSTER_WIDE if name in static}


def overridden(settings: BrokerSettings, image: ClusterImage) -> Mapping[str, str]:
    """What in a broker's own file is not in force, as the cluster says something else."""
    wide = image.broker_config(DEFAULT_BROKER)
    return {name: text for name, text in cluster_wide_from_file(settings).items() if wide.get(name) != text}


_MAX_VALUE_BYTES: Final = 2**15 - 1


class Resource(NamedTuple):
    """What has settings, as a client names it: the type may be any number."""

    type: int
    name: str


class ConfigRequest(NamedTuple):
    """A resource, and the change that is wanted of it; `change` raises Refusal if it makes no sense."""

    resource: Resource
    change: Callable[[ResourceKind], ConfigChange]


ConfigErrors = dict[Resource, ApiError]


def resource_kind(broker: Broker, resource: Resource, *, of_any_broker: bool = False) -> ResourceKind:
    """The kind of a resource that has settings here, or with `of_any_broker` at another broker. InvalidRequest."""
    if resource.type == ResourceKind.TOPIC:
        return ResourceKind.TOPIC
    if resource.type != ResourceKind.BROKER:
        raise InvalidRequest(f"resources of type {resource.type} have no settings here; topics (2) and brokers (4) do")
    if of_any_broker and _is_any_id(resource.name):
        return ResourceKind.BROKER
    if resource.name and not _is_id(resource.name, broker.node_id):
        raise InvalidRequest(
            f"this is broker {broker.node_id}: it tells and changes its own settings and those of all brokers "
            f"(with an empty name), not those of {resource.name[:60]!r}"
        )
    return ResourceKind.BROKER


def change_configs(
    broker: Broker, asked: Sequence[ConfigRequest], done: Callable[[ConfigErrors], None], *, validate_only: bool
) -> None:
    """Make the changes, and call `done` with what came of each, once for a resource that is named twice."""
    twice = duplicates(item.resource for item in asked)
    explained: ConfigErrors = {item.resource: NO_ERROR for item in asked}

    is_controller = broker.membership_or_none is not None

    async def make() -> None:
        changes: dict[Resource, ConfigChange] = {}
        for item in asked:
            if item.resource in twice:
                explained[item.resource] = DUPLICATE_IN_REQUEST
                continue
            try:
                change = item.change(resource_kind(broker, item.resource, of_any_broker=is_controller))
                _validate(broker, change)
            except ApiException as refusal:
                explained[item.resource] = api_error_of(refusal)
            else:
                changes[item.resource] = change
        outcomes = await broker.cluster.alter_configs(list(changes.values()), validate_only=validate_only)
        for resource, outcome in zip(changes, outcomes, strict=True):
            explained[resource] = api_error_of(outcome.refusal)
        done(explained)

    def fail(error: BaseException) -> None:
        reason = api_error_of(error)
        done(dict.fromkeys(explained, reason))

    broker.spawn(make(), fail)


def _validate(broker: Broker, change: ConfigChange) -> None:
    """Refuse what would contradict the other settings."""
    image, rules = broker.cluster.image, SettingsRules()
    if change.replacement is not None:
        after = replace_config(image, change.kind, change.name, change.replacement, rules).image
    else:
        after = edit_config(image, change.kind, change.name, change.edits, rules).image
    if change.kind is ResourceKind.BROKER and change.name and broker.membership_or_none is not None:
        node = str(int(change.name))
        _reject_for_one_broker(image.broker_config(node), after.broker_config(node))
    if change.kind is ResourceKind.TOPIC:
        _validate_topic(broker, after.topic_config(change.name))
    elif not change.name or _is_id(change.name, broker.node_id):
        node = str(broker.node_id) if change.name else layout.DEFAULT_BROKER
        _validate_broker(broker, after.broker_config(node), cluster_wide=not change.name)
    else:
        _check_sizes(after.broker_config(str(int(change.name))))


def _reject_for_one_broker(before: Settings, after: Settings) -> None:
    """What an earlier version stored may stay, or go."""
    for name in CLUSTER_WIDE:
        if name in after and after[name] != before.get(name):
            raise InvalidConfig(
                f"{name} is the same for all brokers of a cluster, and cannot be set for one: set it for all brokers "
                "(a broker resource with an empty name; penstock configs alter --all-brokers), or for a topic"
            )


def _validate_topic(broker: Broker, after: Settings) -> None:
    _check_sizes(after)
    # What another version stored is no reason to refuse a change of something else.
    sound, _ = sound_overrides(after)
    reasons = check_topic_settings(broker.settings, dict(sound))
    if reasons:
        raise InvalidConfig("\n".join(reasons))


def _validate_broker(broker: Broker, after: Settings, *, cluster_wide: bool) -> None:
    _check_sizes(after)
    changes: dict[str, str | None] = dict.fromkeys(broker.settings.dynamic(cluster_wide=cluster_wide))
    changes.update((name, value) for name, value in after.items() if check_changeable(name) is None)
    try:
        broker.settings.with_changes(changes, cluster_wide=cluster_wide)
    except InvalidSettings as error:
        raise InvalidRequest(str(error)) from error


def _check_sizes(settings: Settings) -> None:
    """Lists can grow by one request after another."""
    for name, value in settings.items():
        size = len(value.encode())
        if size > _MAX_VALUE_BYTES:
            raise InvalidConfig(f"{name}: a value of {size} bytes is too long; at most {_MAX_VALUE_BYTES}")


def _is_any_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _is_id(text: str, node_id: int) -> bool:
    return _is_any_id(text) and int(text) == node_id
