"""What is to be done to the tree, and the cluster as it is then. Pure."""

from __future__ import annotations

from typing import NamedTuple

from penstock.cluster.image import ClusterImage
from penstock.cluster.tree import Operation


class Decision(NamedTuple):
    """Operations that belong together (all or none), and the image that holds once they are done."""

    operations: tuple[Operation, ...]
    image: ClusterImage
