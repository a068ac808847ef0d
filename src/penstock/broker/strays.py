"""Partitions on disk that the cluster does not know: left by a deletion or a creation that a crash cut short.

Noun: a stray, which is a partition's folder without a topic, beyond the topic's partitions, or of an earlier topic of
the same name.

Rule: a stray is set aside under another name and not opened, so that a topic that is created by its name
begins empty. It is never opened and never removed, since nobody but the operator can tell what it is worth; each is
named once, with its path. Where no topic at all is known but there are records, it is the metadata that strayed:
the start is refused, and everything is left as it was found, unless the operator says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.cluster import paths
from penstock.cluster.image import ClusterImage
from penstock.cluster.tree import Tree, find
from penstock.log.checkpoints import TopicPartition
from penstock.log.errors import LogError
from penstock.log.folders.manager import LogManager
from penstock.log.folders.metadata_files import MetadataFileError, read_meta
from penstock.log.folders.names import folder_name
from penstock.runtime.files import Files

SET_ASIDE: Final = "set-aside"


class MetadataLost(LogError):
    """There are records, and no topic is known."""

    def __init__(self, folder: str, count: int) -> None:
        holders = f"{folder} holds" if count == 1 else f"{folder} and {count - 1} more partitions hold"
        super().__init__(
            f"the metadata is gone: {holders} records, but the cluster knows no topic at all; put back the metadata "
            f"folder (.metadata in the first of log.dirs), or begin with no topic by --set "
            f"penstock.strays={SET_ASIDE}, which renames the partitions' folders and removes nothing"
        )
        self.folder = folder
        self.count = count


def reason_of(key: TopicPartition, image: ClusterImage) -> str | None:
    """Why the cluster does not know a partition; None if it does."""
    topic = image.topics.get(key[0])
    if topic is None:
        return "there is no such topic"
    if key[1] >= len(topic.partitions):
        return f"the topic has {len(topic.partitions)} partitions"
    return None


def set_strays_aside(logs: LogManager, image: ClusterImage, *, everything: bool = False) -> int:
    """Rename the folders of all strays before the logs are loaded; how many. Those of other topics' ids follow when
    they are: each partition's file must be read for that.

    MetadataLost if no topic is known, but there are records: only with `everything` are they set aside then.
    """
    logs.expect({name: topic.topic_id for name, topic in image.topics.items()})
    found = {key: reason for key in logs.unopened() if (reason := reason_of(key, image)) is not None}
    if found and not image.topics and not everything:
        filled = [key for key in found if logs.has_records(*key)]
        if filled:
            folder = f"{logs.directory_of(*filled[0]).path}/{folder_name(*filled[0])}"
            raise MetadataLost(folder, len(filled))
    logs.set_aside(found)
    return len(found)


async def cluster_id_to_keep(tree: Tree, files: Files, folders: Iterable[str]) -> str | None:
    """Of which cluster the data folders say they are, for a tree that knows of none; None if they do not agree."""
    if await find(tree, paths.CLUSTER_ID) is not None:
        return None
    ids = set()
    for folder in folders:
        try:
            meta = read_meta(files, folder)
        except (OSError, MetadataFileError):
            continue  # whoever opens the folder says what is wrong with it
        if meta is not None and meta.cluster_id is not None:
            ids.add(meta.cluster_id)
    return ids.pop() if len(ids) == 1 else None
