"""What is in a data folder.

Rule: a partition is a folder that has a partition's name and looks like one inside (a topic id, segments, or nothing
yet). Files and folders of others are left alone and named once, so that whoever put them there by mistake hears of it.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from penstock.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from penstock.log.folder_names import is_doomed_name, parse_folder_name
from penstock.log.metadata_files import META_FILE, PARTITION_METADATA_FILE
from penstock.log.segment_table import MANIFEST_NAME
from penstock.log.sweeping import segment_files
from penstock.runtime.files import Files

logger = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
CLEAN_MARKER: Final = ".kafka_cleanshutdown"

_OWN_FILES: Final = frozenset(
    (LOCK_FILE, CLEAN_MARKER, META_FILE, RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, CLEANER_FILE)
)
_BEGUN_SUFFIX: Final = ".tmp"
_FOREIGN_NAMED: Final = 5


class Listing(NamedTuple):
    """The names in a data folder, sorted out; each sorted."""

    partitions: list[TopicPartition]
    doomed: list[str]
    foreign: list[str]


def list_directory(files: Files, path: str) -> Listing:
    found = Listing([], [], [])
    for name in sorted(files.list_folder(path)):
        if name.removesuffix(_BEGUN_SUFFIX) in _OWN_FILES:
            continue
        key = parse_folder_name(name)
        if key is not None and _is_partition(files, f"{path}/{name}"):
            found.partitions.append(key)
        elif is_doomed_name(name) and files.is_folder(f"{path}/{name}"):
            found.doomed.append(name)
        else:
            found.foreign.append(name)
    found.partitions.sort()
    if found.foreign:
        named = ", ".join(found.foreign[:_FOREIGN_NAMED])
        more = " and more" if len(found.foreign) > _FOREIGN_NAMED else ""
        logger.warning("%s holds what is no partition and is left alone: %s%s", path, named, more)
    return found


def _is_partition(files: Files, folder: str) -> bool:
    if files.exists(f"{folder}/{PARTITION_METADATA_FILE}"):
        return True
    if not files.is_folder(folder):
        return False
    names = files.list_folder(folder)
    return not names or MANIFEST_NAME in names or bool(segment_files(names))
