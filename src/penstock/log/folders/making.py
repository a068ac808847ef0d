"""The folders of new partitions.

Rule: a partition is made whole, with its topic's id in it and durable, before its name is; one that could not be made
leaves nothing behind. Making them touches nothing but their own folders, so it may happen beside the event loop, and on
several threads, whose syncs the disk takes together; many that are made together share the sync of the data folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from penstock.log.checkpoints import TopicPartition
from penstock.log.folders.metadata_files import write_topic_id
from penstock.log.folders.names import folder_name
from penstock.log.opening import open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.runtime.files import Files
from penstock.runtime.parallel import in_parallel
from penstock.runtime.workers import Outcome


class NewLog(NamedTuple):
    """A partition that is to be made."""

    key: TopicPartition
    topic_id: bytes | None
    settings: LogSettings


class Made(NamedTuple):
    """What came of it."""

    new: NewLog
    outcome: Outcome[PartitionLog]


def make_all(files: Files, path: str, wanted: Sequence[NewLog], now_ms: int, threads: int = 1) -> list[Made]:
    """Make them in the data folder at `path`, where no such folders are; durable when this returns.

    OSError if the data folder's disk failed at the end: then none is there.
    """

    def make(new: NewLog) -> PartitionLog:
        return _make(files, f"{path}/{folder_name(*new.key)}", new, now_ms)

    made = [Made(new, outcome) for new, outcome in in_parallel(make, wanted, threads)]
    try:
        files.sync_folder(path)
    except OSError:
        for new, outcome in made:
            if outcome.error is None:
                outcome.result().release()
                _unmake(files, f"{path}/{folder_name(*new.key)}")
        raise
    return made


def _make(files: Files, folder: str, new: NewLog, now_ms: int) -> PartitionLog:
    try:
        log = open_log(files, folder, new.settings, clean=False, now_ms=now_ms).log
        if new.topic_id is None:
            files.sync_folder(folder)
        else:
            write_topic_id(files, folder, new.topic_id)  # which syncs the folder
    except OSError:
        _unmake(files, folder)
        raise
    return log


def _unmake(files: Files, folder: str) -> None:
    with contextlib.suppress(OSError):
        files.remove_folder(folder)
