"""The mark that a sync has failed in a folder, for the process that comes after this one.

After a sync that failed the kernel takes the pages for clean: readers go on seeing bytes that are on no disk, and the
next sync succeeds without them. A process that is started again on the same machine would believe them.

Noun: an empty file `.sync-failed` in the folder.

Rule: it is made where the error shows and not synced, for it need not outlast the page cache: a machine that loses
power loses the bytes that nobody should believe, too. Whoever finds it writes all that it cannot vouch for to new
files, and removes it then. Not in place: among that may be bytes that are durable, and power lost in the middle would
spoil them.
"""

from __future__ import annotations

import contextlib
from typing import Final

from penstock.runtime.files import Files

MARK: Final = ".sync-failed"
_PIECE_BYTES: Final = 1024 * 1024


def note_failed_sync(files: Files, folder: str) -> None:
    """Leave the mark; on a disk that takes no more names there is nothing to be done."""
    with contextlib.suppress(OSError):
        files.open(f"{folder}/{MARK}", create=True).close()


def has_failed_sync(files: Files, folder: str) -> bool:
    return files.exists(f"{folder}/{MARK}")


def forget_failed_sync(files: Files, folder: str) -> None:
    """All that was doubtful is durable."""
    with contextlib.suppress(FileNotFoundError):
        files.remove(f"{folder}/{MARK}")


def write_anew(files: Files, path: str, temporary: str) -> None:
    """Give the file at `path` its own bytes in a new file, durably but for its name. OSError: it is as it was."""
    source = files.open(path, writable=False)
    target = None
    try:
        target = files.open(temporary, create=True)
        target.truncate(0)  # a crash may have left one
        position = 0
        while piece := source.read_at(position, _PIECE_BYTES):
            target.write_at(position, piece)
            position += len(piece)
        target.sync()
        files.rename(temporary, path)
    finally:
        source.close()
        if target is not None:
            target.close()
