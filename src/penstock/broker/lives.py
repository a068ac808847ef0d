"""What a broker's data folders say of its former life.

Noun: `.broker-life`, a small file in each data folder: the broker epoch of the last life that the cluster has seen with
these folders, and whether that life ended in good order.

Rule: a folder without the file is a new one, and the broker says so when it registers, until the cluster has shown it
registered like that; only then is the file written. The files are removed where the logs turn out to have lost what was
durable: that is no different for the cluster. An end in good order is written last of all, and taken back before
anything else is written: so whoever finds it finds everything as it was. Folders that disagree tell of no good end.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.cluster.layout import UNKNOWN_EPOCH
from penstock.log.checkpoints import atomic_write
from penstock.runtime.files import Files

logger = logging.getLogger(__name__)

LIFE_FILE: Final = ".broker-life"
_MAX_BYTES: Final = 4096


class _Life(msgspec.Struct):
    epoch: int
    clean: bool


class FormerLife:
    """`clean_epoch` as `BrokerRegistration` has it. `is_emptied` is looked up when it is asked for: between the reading
    and the registration the logs are opened, and what is found in them may have ended the life of the folders.
    """

    def __init__(self, clean_epoch: int, files: Files, folders: Sequence[str]) -> None:
        self.clean_epoch = clean_epoch
        self._files = files
        self._folders = tuple(folders)

    @property
    def is_emptied(self) -> bool:
        return any(_read(self._files, folder) is None for folder in self._folders)


def read_former_life(files: Files, folders: Sequence[str]) -> FormerLife:
    """Before the folders are opened. A file that cannot be read is one that tells of no good end."""
    found = [_read(files, folder) for folder in folders]
    lives = {(life.epoch, life.clean) for life in found if life is not None}
    clean_epoch = UNKNOWN_EPOCH
    if len(lives) == 1 and None not in found:
        epoch, clean = lives.pop()
        clean_epoch = epoch if clean else UNKNOWN_EPOCH
    return FormerLife(clean_epoch, files, folders)


def forget_life(files: Files, folders: Sequence[str]) -> None:
    """From here on the folders are new ones. OSError."""
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            files.remove(f"{folder}/{LIFE_FILE}")
        files.sync_folder(folder)


def take_back_good_end(files: Files, folders: Sequence[str]) -> None:
    """From here on the folders may change. OSError."""
    for folder in folders:
        life = _read(files, folder)
        if life is not None and life.clean:
            _write(files, folder, _Life(life.epoch, clean=False))


def write_life(files: Files, folders: Sequence[str], epoch: int, *, clean: bool) -> None:
    """OSError."""
    for folder in folders:
        _write(files, folder, _Life(epoch, clean))


def _read(files: Files, folder: str) -> _Life | None:
    path = f"{folder}/{LIFE_FILE}"
    try:
        file = files.open(path, writable=False)
        try:
            data = file.read_at(0, _MAX_BYTES)
        finally:
            file.close()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s cannot be read: %s", path, error)
        return _Life(UNKNOWN_EPOCH, clean=False)
    try:
        return msgspec.json.decode(data, type=_Life)
    except msgspec.MsgspecError as error:
        logger.warning("%s is damaged (%s): the broker's last stop is taken for an unclean one", path, error)
        return _Life(UNKNOWN_EPOCH, clean=False)


def _write(files: Files, folder: str, life: _Life) -> None:
    atomic_write(files, f"{folder}/{LIFE_FILE}", msgspec.json.encode(life))
