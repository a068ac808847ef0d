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
import time
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
    topic_settings,
)
from penstock.broker.settings.broker_settings import admit
from penstock.broker.settings.catalogue import BROKER_DEFINITIONS, TOPIC_DEFINITIONS, TopicSettings
from penstock.cluster.controller.configs import ResourceKind
from penstock.cluster.controller.election import partition_rules
from penstock.cluster.image import ClusterImage, diff
from penstock.cluster.tree.layout import DEFAULT_BROKER
from penstock.config_def import DOUBLE_MAX, ConfigType, format_value
from penstock.log.compaction.log_cleaner import LogCleaner, Throttle
from penstock.runtime.clock import Clock
from penstock.runtime.network import UNBOUNDED, Limits

logger = logging.getLogger(__name__)

CLUSTER_WIDE: Final = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
)
_MAX_CACHED_SETTINGS: Final = 1_024


class DynamicConfig:
    """The settings in force of one broker and of the topics in an image."""

    def __init__(self, given: BrokerSettings, node_id: int) -> None:
        self._given = given
        self.node_id = node_id
        self.settings = given.with_broker_id(node_id)
        self.in_cluster = False
        """Whether cluster-wide settings come from the image alone."""
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
        return with_cluster_wide(settings, image, topic) if self.in_cluster else settings


# --- settings as parts take them


def network_limits(settings: BrokerSettings) -> Limits:
    return Limits(
        max_frame_bytes=settings.socket_request_max_bytes,
        max_request_bytes=settings.queued_max_request_bytes if settings.queued_max_request_bytes > 0 else UNBOUNDED,
        max_connections=settings.max_connections,
        max_connections_per_s=settings.max_connection_creation_rate,
        max_connections_per_address=settings.max_connections_per_ip,
        max_connections_overrides=settings.max_connections_per_ip_overrides,
        idle_ms=max(0, settings.connections_max_idle_ms),
        busy_poll_us=settings.socket_busy_poll_us,
        # With Kafka's default of 50, many clients that connect at once wait for a second. A longer queue is free.
        backlog=max(settings.socket_listen_backlog_size, 1024),
        send_buffer_bytes=settings.socket_send_buffer_bytes,
        receive_buffer_bytes=settings.socket_receive_buffer_bytes,
    )


def configure_cleaner(cleaner: LogCleaner, settings: BrokerSettings, clock: Clock) -> None:
    rate = settings.log_cleaner_io_max_bytes_per_second
    cleaner.map_bytes = settings.log_cleaner_dedupe_buffer_size
    cleaner.throttle = None if rate >= DOUBLE_MAX else Throttle(rate, clock, time.sleep)


# --- settings of the whole cluster


def with_cluster_wide(settings: TopicSettings, image: ClusterImage, topic: str) -> TopicSettings:
    """A broker's view of a topic's settings, with the cluster-wide ones from the image."""
    rules = partition_rules(image, topic)
    return replace(
        settings,
        min_insync_replicas=rules.min_insync_replicas,
        unclean_leader_election_enable=rules.unclean_election,
        log=replace(settings.log, sync_before_ack=rules.syncs_before_ack),
    )


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
