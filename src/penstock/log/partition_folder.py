"""File names in a partition's folder, and completing what a crash interrupted.

A segment's files are `<base offset, 20 digits><.log|.index|.timeindex|.txnindex>`, with a second suffix meanwhile:

    .cleaned   compaction is writing it: worthless after a crash
    .swap      compaction finished it, durably: it replaces the segments it was made from
    .deleted   no longer part of the log, waiting for removal
    .spare     the empty segment of a log that is being emptied: worthless after a crash

Renaming `.log.cleaned` to `.log.swap` commits a compaction; from then on `complete_swap` reaches the same end wherever
a crash stopped it. Other files in the folder are left alone.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Final

from penstock.log.file_records import walk_headers
from penstock.log.index import TRANSACTION_INDEX_SUFFIX
from penstock.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_name,
)
from penstock.runtime.files import Files

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DELETED: Final = ".deleted"
SPARE: Final = ".spare"

_NAME: Final = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex)(\.cleaned|\.swap|\.deleted|\.spare)?")


def segment_files(names: Iterable[str]) -> dict[int, set[str]]:
    """The suffixes of each segment's files, by base offset. Files with a second suffix do not count."""
    found: dict[int, set[str]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None and match[3] is None:
            found.setdefault(int(match[1]), set()).add(match[2])
    return found


def recover_folder(files: Files, folder: str) -> None:
    """Remove files that a crash left, and complete swaps."""
    swaps: set[int] = set()
    changed = False
    for name in files.list_folder(folder):
        match = _NAME.fullmatch(name)
        if match is None or match[3] is None:
            continue
        changed = True
        if match[3] == SWAP:
            swaps.add(int(match[1]))
        else:
            files.remove(f"{folder}/{name}")
    for base in sorted(swaps):
        bases = segment_files(files.list_folder(folder))
        end = _end_of_swap(files, folder, base)
        complete_swap(files, folder, base, [other for other in bases if base < other < end])
    if changed:
        files.sync_folder(folder)


def _end_of_swap(files: Files, folder: str, base: int) -> int:
    path = f"{folder}/{segment_name(base)}{LOG_SUFFIX}{SWAP}"
    if not files.exists(path):
        return base
    file = files.open(path, writable=False)
    try:
        end = base
        for place in walk_headers(file, 0, file.size()):
            if isinstance(place, str):
                break
            end = place.header.next_offset
        return end
    finally:
        file.close()


def begin_swap(files: Files, folder: str, base: int) -> None:
    """Commit a `.cleaned` segment, whose files are synced: from here on it replaces its sources."""
    stem = f"{folder}/{segment_name(base)}"
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        files.rename(stem + suffix + CLEANED, stem + suffix + SWAP)
    files.sync_folder(folder)


def complete_swap(files: Files, folder: str, base: int, replaced: Iterable[int]) -> None:
    """Remove the segments that a `.swap` segment replaces, and rename it over the one of its own name."""
    for other in sorted(replaced):
        Segment(files, folder, other).remove()
    stem = f"{folder}/{segment_name(base)}"
    had_log = files.exists(stem + LOG_SUFFIX + SWAP)
    if had_log:
        with contextlib.suppress(FileNotFoundError):
            files.remove(stem + TRANSACTION_INDEX_SUFFIX)
        files.rename(stem + LOG_SUFFIX + SWAP, stem + LOG_SUFFIX)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        if files.exists(stem + suffix + SWAP):
            files.rename(stem + suffix + SWAP, stem + suffix)
        elif had_log:  # a crash came before the new index was renamed: the old one is for other bytes
            with contextlib.suppress(FileNotFoundError):
                files.remove(stem + suffix)
    files.sync_folder(folder)
