"""What is to be done to the tree, and the cluster as it is then. Pure."""

from __future__ import annotations

from typing import NamedTuple

from penstock.cluster.image import ClusterImage
from penstock.cluster.tree import Operation

TopicPartition = tuple[str, int]


class Decision(NamedTuple):
    """Operations that belong together (all or none), and the image that holds once they are done."""

    operations: tuple[Operation, ...]
    image: ClusterImage
    unclean: tuple[TopicPartition, ...] = ()
    """Partitions led by somebody who may lack committed records: whoever carries this out says so in the log."""
