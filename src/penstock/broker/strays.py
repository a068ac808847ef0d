"""Partitions on disk that the cluster does not know: left by a deletion that a crash cut short, or by lost metadata.

Rule: nobody but the operator can tell the one from the other, so nothing is removed. Each is named once, with its path.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from penstock.cluster.image import ClusterImage
from penstock.log.folders.directory import Hosted
from penstock.log.folders.manager import LogManager

logger = logging.getLogger(__name__)


def strays(logs: LogManager, image: ClusterImage) -> Iterator[tuple[Hosted, str]]:
    """The partitions that are open but not in the image, with the reason."""
    for hosted in logs.logs():
        topic = image.topics.get(hosted.topic)
        if topic is None:
            yield hosted, "there is no such topic"
        elif hosted.partition >= len(topic.partitions):
            yield hosted, f"the topic has {len(topic.partitions)} partitions"
        elif hosted.topic_id is not None and hosted.topic_id != topic.topic_id:
            yield hosted, f"it is of an earlier topic of this name, {hosted.topic_id.hex()}"


def warn_of_strays(logs: LogManager, image: ClusterImage) -> int:
    """Name all strays in the log; how many."""
    count = 0
    for hosted, reason in strays(logs, image):
        count += 1
        logger.warning(
            "%s: a partition that the cluster does not know (%s). It is left as it is; a topic that is created by this "
            "name would go on with its records. Move the folder away while the broker is stopped if it is not wanted",
            hosted.log.folder,
            reason,
        )
    return count
