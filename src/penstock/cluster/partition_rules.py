"""What a topic's settings demand of the controller. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.cluster.image import ClusterImage, PartitionImage


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
