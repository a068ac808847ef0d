"""Settings that change while the broker runs, of topics, of brokers, of the cluster.

`DynamicConfig` holds the settings in force: those given at the start, and over them those that the cluster image has
for all brokers ("<default>") and for this one. `SettingsRules` validates one change; `penstock.broker.handlers.configs`
validates it together with the other settings before it is stored.

`CLUSTER_WIDE` settings (how many replicas commit, whether a commit waits for the disk, who may be elected) come from
the cluster image alone: the topic's own, then those of all brokers. They cannot be set for one broker: a controller
that counts on two in-sync replicas where a leader commits with one would elect a leader that lacks records. The first
controller of a cluster copies them from its file to "<default>".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from penstock.broker.settings import (
    BrokerSettings,
    InvalidSettings,
    Problem,
    Source,
    check_changeable,
    check_topic_setting,
    settings_from,
    topic_settings,
)
from penstock.broker.settings.broker_settings import admit
from penstock.broker.settings.catalogue import BROKER_DEFINITIONS, TOPIC_DEFINITIONS
from penstock.broker.settings.config_def import ConfigType, format_value
from penstock.broker.settings.topic_settings import TopicSettings, sound_overrides
from penstock.cluster.controller.configs import ResourceKind
from penstock.cluster.controller.election import PartitionRules
from penstock.cluster.image import ClusterImage, Settings, diff
from penstock.cluster.tree.layout import DEFAULT_BROKER

logger = logging.getLogger(__name__)

CLUSTER_WIDE: Final = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
)
_MAX_CACHED_RULES: Final = 4096
_MAX_CACHED_SETTINGS: Final = 1_024


class DynamicConfig:
    """The settings in force of one broker and of the topics in an image."""

    def __init__(self, given: BrokerSettings, node_id: int) -> None:
        self._given = given
        self.node_id = node_id
        self.settings = given.with_broker_id(node_id)
        self.cluster_wide: ClusterWideRules | None = None
        """Set for a broker in a cluster."""
        self._by_overrides: dict[tuple[tuple[str, str], ...], TopicSettings] = {}
        self._listeners: list[Callable[[BrokerSettings], None]] = []

    def set_node_id(self, node_id: int) -> None:
        """The id that a broker without broker.id was given."""
        self.node_id = node_id
        self.settings = self.settings.with_broker_id(node_id)

    def listen(self, listener: Callable[[BrokerSettings], None]) -> None:
        """Call `listener` with the settings whenever they change."""
        self._listeners.append(listener)

    def apply(self, image: ClusterImage) -> None:
        """Take over the broker settings of an image."""
        settings = self._given
        for name, cluster_wide in ((DEFAULT_BROKER, True), (str(self.node_id), False)):
            changes = image.broker_config(name)
            if not changes:
                continue
            try:
                settings = settings.with_changes(dict(changes), cluster_wide=cluster_wide)
            except InvalidSettings as error:
                logger.error("stored settings ignored: broker=%s error=%s", name, error)
        self.settings = settings.with_broker_id(self.node_id)
        self._by_overrides.clear()
        for listener in self._listeners:
            listener(self.settings)

    def follow(self, old: ClusterImage, new: ClusterImage) -> list[str]:
        """Take over what changed; the topics that exist in both images and may have other settings now."""
        change = diff(old, new)
        changed = set(change.topic_configs_changed)
        if change.broker_configs_changed:
            self.apply(new)
            changed |= set(new.topics)  # a topic inherits what it does not set
        return sorted(name for name in changed if name in new.topics and name not in change.topics_added)

    def topic(self, image: ClusterImage, topic: str) -> TopicSettings:
        """A topic's settings as an image has them; one object for all topics that set the same."""
        own = image.topic_config(topic)
        key = tuple(sorted(own.items()))
        settings = self._by_overrides.get(key)
        if settings is None:
            if len(self._by_overrides) >= _MAX_CACHED_SETTINGS:
                self._by_overrides.clear()
            settings = self._by_overrides[key] = topic_settings(self.settings, own)
        return settings if self.cluster_wide is None else self.cluster_wide.bound(settings, image, topic)


class ClusterWideRules:
    """The cluster-wide settings as rules; the same on every broker for the same image."""

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
        if len(self._known) >= _MAX_CACHED_RULES:
            self._known.clear()
        self._known[topic] = (wide, own, found)
        return found

    def bound(self, settings: TopicSettings, image: ClusterImage, topic: str) -> TopicSettings:
        """A broker's view of a topic's settings, with the cluster-wide ones from the image."""
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
                logger.error("stored settings ignored: broker=%s error=%s", DEFAULT_BROKER, error)
                self._broker_wide = (wide, self._plain)
        return self._broker_wide[1]


def cluster_wide_from_file(settings: BrokerSettings) -> dict[str, str]:
    """The cluster-wide settings in a broker's own file or on its command line."""
    static = {**settings.layers.file, **settings.layers.command}
    return {name: static[name].text for name in CLUSTER_WIDE if name in static}


def overridden(settings: BrokerSettings, image: ClusterImage) -> Mapping[str, str]:
    """The cluster-wide settings of a broker's own file that the cluster overrides."""
    wide = image.broker_config(DEFAULT_BROKER)
    return {name: text for name, text in cluster_wide_from_file(settings).items() if wide.get(name) != text}


class SettingsRules:
    """Validates single settings, for the controller."""

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
