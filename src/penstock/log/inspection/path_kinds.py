"""What a path given by a person is: a file of a segment, a partition's folder, a data folder.

Names decide, and for a folder the names in it; no file is opened. A folder counts as a log's only by files that a
broker writes there: a name that ends with a number is not enough, since `/etc/dbus-1` has one, too. Everything else is
`OTHER`.
"""

from __future__ import annotations

import re
from enum import StrEnum

from penstock.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    parent_folder,
)
from penstock.log.folders.metadata_files import META_FILE, PARTITION_METADATA_FILE
from penstock.log.producers.snapshot import SNAPSHOT_SUFFIX
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from penstock.log.sweeping import CLEANED, DELETED, SWAP, segment_files
from penstock.log.transaction_index import TRANSACTION_INDEX_SUFFIX
from penstock.runtime.files import Files

UNDER_WAY = (CLEANED, SWAP, DELETED)

_PARTITION_FOLDER = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d{1,10}")
_PARTITION_FILES = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE})
_DATA_FOLDER_FILES = frozenset({META_FILE, RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, CLEANER_FILE})
_DOOMED_FOLDER = re.compile(r".+-\d+\.[0-9a-f]{32}-(delete|future|stray)")


class PathKind(StrEnum):
    LOG = LOG_SUFFIX
    OFFSET_INDEX = INDEX_SUFFIX
    TIME_INDEX = TIME_INDEX_SUFFIX
    TRANSACTION_INDEX = TRANSACTION_INDEX_SUFFIX
    SNAPSHOT = SNAPSHOT_SUFFIX
    PARTITION = "partition folder"
    DATA_FOLDER = "data folder"
    OTHER = "other"


_FILE_KINDS = (
    PathKind.LOG,
    PathKind.OFFSET_INDEX,
    PathKind.TIME_INDEX,
    PathKind.TRANSACTION_INDEX,
    PathKind.SNAPSHOT,
)


def kind_of(files: Files, path: str) -> PathKind:
    """FileNotFoundError if nothing is there."""
    if files.is_folder(path):
        if is_partition_folder(files, path):
            return PathKind.PARTITION
        return PathKind.DATA_FOLDER if is_data_folder(files, path) else PathKind.OTHER
    files.size_of(path)
    suffix = split_name(path)[1]
    return next((kind for kind in _FILE_KINDS if kind == suffix), PathKind.OTHER)


def split_name(path: str) -> tuple[str, str, str]:
    """A file's path without its suffixes, its kind's suffix, and what is under way with it.

    "/t-0/00042.log.swap" gives ("/t-0/00042", ".log", ".swap"), "/t-0/00042.log" ("/t-0/00042", ".log", "").
    """
    under_way = next((suffix for suffix in UNDER_WAY if path.endswith(suffix)), "")
    stem = path.removesuffix(under_way)
    name = stem.rpartition("/")[2]
    suffix = name[name.rfind(".") :] if "." in name else ""
    return stem.removesuffix(suffix), suffix, under_way


def base_offset_of(path: str) -> int | None:
    """The offset in the name of a segment's file; None if there is none."""
    digits = split_name(path)[0].rpartition("/")[2]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None


def is_partition_folder(files: Files, path: str) -> bool:
    """Whether it holds what a partition's folder does, or is an empty one of a data folder."""
    names = files.list_folder(path)
    if segment_files(names) or not _PARTITION_FILES.isdisjoint(names):
        return True
    parent = parent_folder(path)
    is_named = _PARTITION_FOLDER.fullmatch(name_of(path)) is not None
    return is_named and not names and files.is_folder(parent) and _has_marks(files, parent)


def is_data_folder(files: Files, path: str) -> bool:
    """Whether a broker has marked it as its own, or partitions are in it."""
    return _has_marks(files, path) or any(is_partition_folder(files, each) for each in partition_folders(files, path))


def _has_marks(files: Files, path: str) -> bool:
    return not _DATA_FOLDER_FILES.isdisjoint(files.list_folder(path))


def is_doomed_folder(name: str) -> bool:
    """Whether a folder of a data folder is a partition that is being deleted or moved."""
    return _DOOMED_FOLDER.fullmatch(name) is not None


def partition_folders(files: Files, path: str) -> list[str]:
    """The partitions of a data folder, by name."""
    names = sorted(name for name in files.list_folder(path) if _PARTITION_FOLDER.fullmatch(name))
    return [f"{path}/{name}" for name in names if files.is_folder(f"{path}/{name}")]


def log_paths(files: Files, folder: str) -> dict[int, str]:
    """The `.log` files of a partition by base offset, oldest first."""
    found = segment_files(files.list_folder(folder))
    bases = sorted(base for base, suffixes in found.items() if LOG_SUFFIX in suffixes)
    return {base: f"{folder}/{segment_name(base)}{LOG_SUFFIX}" for base in bases}


def log_bytes(files: Files, path: str, kind: PathKind) -> int:
    """How much a verification of it reads, about: for progress."""
    if kind is PathKind.DATA_FOLDER:
        return sum(log_bytes(files, folder, PathKind.PARTITION) for folder in partition_folders(files, path))
    if kind is PathKind.PARTITION:
        return sum(_size(files, log) for log in log_paths(files, path).values())
    if kind in (PathKind.LOG, PathKind.OFFSET_INDEX, PathKind.TIME_INDEX):
        stem, _, under_way = split_name(path)
        return _size(files, stem + LOG_SUFFIX + under_way)
    return 0


def _size(files: Files, path: str) -> int:
    try:
        return files.size_of(path)
    except OSError:  # deleted meanwhile, or told of when it is read
        return 0


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2]
