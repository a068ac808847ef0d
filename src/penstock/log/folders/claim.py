"""Making a data folder ours: lock it, check its owner, take its clean marker, see what is in it.

Noun: a claim, which is the lock and what was found under it.

Rule: nothing is written before the lock is held and the owner is known to be us, and nothing but that before the clean
marker is gone. A partition is a folder that has a partition's name and looks like one inside (a topic id, segments, or
nothing yet). Files and folders of others are left alone and named once, so that whoever put them there hears of it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
    make_durable_folder,
)
from penstock.log.errors import FolderInUse
from penstock.log.folders.errors import DirectoryOffline
from penstock.log.folders.metadata_files import META_FILE, NO_OWNER, PARTITION_METADATA_FILE, read_meta, write_meta
from penstock.log.folders.names import (
    is_doomed_name,
    is_stray_name,
    parse_folder_name,
    parse_future_name,
    parse_ready_name,
)
from penstock.log.folders.offsets import DirectoryCheckpoints
from penstock.log.segment_table import MANIFEST_NAME
from penstock.log.sweeping import segment_files
from penstock.runtime.files import Files, Lock
from penstock.runtime.randomness import Random

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
    futures: list[TopicPartition]
    ready: list[TopicPartition]


class Claim(NamedTuple):
    """A data folder that is ours until the lock is released."""

    path: str
    lock: Lock
    directory_id: bytes
    was_clean: bool
    checkpoints: DirectoryCheckpoints
    listing: Listing


def claim_directory(files: Files, path: str, *, node_id: int, cluster_id: str, random: Random) -> Claim:
    """Claim the folder at `path`, which is made if it is missing.

    DirectoryOffline if the disk does not let us; FolderInUse, WrongOwner and MetadataFileError say what to do.
    """
    path = path.rstrip("/") or "/"
    try:
        make_durable_folder(files, path)
        lock = _take_lock(files, path)
        try:
            meta = read_meta(files, path)
            claimed = (meta or NO_OWNER).claimed_by(path, node_id, cluster_id)
            directory_id = claimed.directory_id or random.uuid_bytes()
            listing = list_directory(files, path)
            was_clean = _take_clean_marker(files, path)
            checkpoints = DirectoryCheckpoints(files, path)
            checkpoints.load()
            if claimed.directory_id is None or claimed != meta:
                write_meta(files, path, replace(claimed, directory_id=directory_id))
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise DirectoryOffline(path, str(error)) from error
    return Claim(path, lock, directory_id, was_clean, checkpoints, listing)


def _take_lock(files: Files, path: str) -> Lock:
    try:
        return files.lock(f"{path}/{LOCK_FILE}")
    except BlockingIOError as error:
        raise FolderInUse(path, error.strerror or "locked by another holder") from error


def _take_clean_marker(files: Files, path: str) -> bool:
    try:
        files.remove(f"{path}/{CLEAN_MARKER}")
    except FileNotFoundError:
        return False
    files.sync_folder(path)
    return True


def list_directory(files: Files, path: str) -> Listing:
    found = Listing([], [], [], [], [])
    for name in sorted(files.list_folder(path)):
        # What is hidden (a broker keeps its metadata so) is nobody's mistake.
        if name.removesuffix(_BEGUN_SUFFIX) in _OWN_FILES or name.startswith("."):
            continue
        key = parse_folder_name(name)
        future, ready = parse_future_name(name), parse_ready_name(name)
        if key is not None and _is_partition(files, f"{path}/{name}"):
            found.partitions.append(key)
        elif is_doomed_name(name) and files.is_folder(f"{path}/{name}"):
            found.doomed.append(name)
        elif future is not None and files.is_folder(f"{path}/{name}"):
            found.futures.append(future)
        elif ready is not None and files.is_folder(f"{path}/{name}"):
            found.ready.append(ready)
        elif is_stray_name(name):
            logger.info("%s/%s was set aside at an earlier start", path, name)
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
    names = set(files.list_folder(folder)) - {PARTITION_METADATA_FILE + _BEGUN_SUFFIX}
    return not names or MANIFEST_NAME in names or bool(segment_files(names))
