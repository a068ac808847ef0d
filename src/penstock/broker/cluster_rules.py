"""What all brokers of a cluster must agree on: how many replicas commit, whether that waits for the disk, who may lead.

Noun: `ClusterRules`, which finds in an image what a topic demands.

Rule: the image alone says it: the topic's own settings, then those changed for all brokers ("<default>"). A controller
that counted on two replicas in sync where a leader commits with one would elect who lacks records. What stands in a
broker's own file, or was changed for one broker only, is not asked; the first controller of a cluster takes what is in
its file over into "<default>".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.broker.settings import BrokerSettings, InvalidSettings, settings_from, topic_settings
from penstock.broker.settings.topic_settings import TopicSettings, sound_overrides
from penstock.cluster.image import ClusterImage, Settings
from penstock.cluster.partition_rules import PartitionRules
from penstock.cluster.paths import DEFAULT_BROKER

logger = logging.getLogger(__name__)

BINDING: Final = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
)
_REMEMBERED: Final = 4096


class ClusterRules:
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
            binding = {name: wide[name] for name in BINDING if name in wide}
            try:
                self._broker_wide = (wide, self._plain.with_changes(dict(binding), cluster_wide=True))
            except InvalidSettings as error:
                logger.error("stored settings of all brokers are not in force: %s", error)
                self._broker_wide = (wide, self._plain)
        return self._broker_wide[1]


def given_binding(settings: BrokerSettings) -> dict[str, str]:
    """What a broker's own file, or its command line, says of these."""
    static = {**settings.layers.file, **settings.layers.command}
    return {name: static[name].text for name in BINDING if name in static}


def overruled(settings: BrokerSettings, image: ClusterImage) -> Mapping[str, str]:
    """What in a broker's own file is not in force, as the cluster says something else."""
    wide = image.broker_config(DEFAULT_BROKER)
    return {name: text for name, text in given_binding(settings).items() if wide.get(name) != text}
