"""Where a log is damaged: bytes that were durable once are not what was written.

Noun: a `LogDamage`, the place at which the sound part of a log ends, and what the log does about it.

Rule: nothing that was durable is taken away on its own. What a start finds among the batches that it walks ends the log
there: what is before is served, what is behind stays in its files, and nothing is appended over it. What a reader finds
is passed over by everybody else, and noted in the folder for the next start. Only a replica that the cluster counts as
one that lost its data (`is_told`) cuts the damage off, when its leader has answered it, and copies the rest anew. Where
there is no other replica somebody has to decide: a file `accept-loss` in the folder lets the next start cut.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.log.checkpoints import atomic_write
from penstock.log.errors import DamagedLog
from penstock.log.segment import LOG_SUFFIX
from penstock.runtime.files import Files

logger = logging.getLogger(__name__)

NOTE: Final = ".damaged"
ACCEPT: Final = "accept-loss"
_BASE_DIGITS: Final = 20
_NOTE_BYTES_MAX: Final = 4096


@dataclass(slots=True)
class LogDamage:
    """`ends_log`: the log ends here for everybody, and its files go on; else the log goes on behind, and only who reads
    this place is refused, or there is nothing behind, and something was.
    """

    base_offset: int
    position: int
    path: str
    reason: str
    ends_log: bool = False
    is_told: bool = False

    def error(self) -> DamagedLog:
        return DamagedLog(self.path, self.position, self.reason)

    @classmethod
    def of(cls, error: DamagedLog) -> LogDamage | None:
        """None if that is no file of a log's segment."""
        name = error.path.rpartition("/")[2]
        base = name.removesuffix(LOG_SUFFIX)
        if base == name or len(base) != _BASE_DIGITS or not base.isdigit():
            return None
        return cls(int(base), error.position, error.path, error.reason)


class _Note(msgspec.Struct):
    file: str
    position: int
    reason: str


def write_note(files: Files, folder: str, damage: LogDamage) -> None:
    """For the next start. Where it cannot be written, whoever reads there finds the damage again."""
    note = _Note(damage.path.rpartition("/")[2], damage.position, damage.reason[:1000])
    with contextlib.suppress(OSError):
        atomic_write(files, f"{folder}/{NOTE}", msgspec.json.encode(note))


def read_note(files: Files, folder: str) -> LogDamage | None:
    """What an earlier process found; None if it found nothing, or if what it found is gone."""
    path = f"{folder}/{NOTE}"
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        data = file.read_at(0, _NOTE_BYTES_MAX)
    finally:
        file.close()
    try:
        note = msgspec.json.decode(data, type=_Note)
    except msgspec.MsgspecError as error:
        logger.warning("%s cannot be read (%s): readers find the damage again", path, error)
        return None
    damage = LogDamage.of(DamagedLog(f"{folder}/{note.file}", note.position, note.reason))
    if damage is None or not files.exists(damage.path) or files.size_of(damage.path) < damage.position:
        forget_note(files, folder)
        return None
    return damage


def forget_note(files: Files, folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.remove(f"{folder}/{NOTE}")


def is_accepted(files: Files, folder: str) -> bool:
    """Whether somebody decided to go on without what is damaged, and behind."""
    return files.exists(f"{folder}/{ACCEPT}")


def forget_acceptance(files: Files, folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.remove(f"{folder}/{ACCEPT}")
