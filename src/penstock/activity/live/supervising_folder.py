"""The folder of a run: whose it is, and that only one run uses it at a time.

Nouns: `RunFolder`, the folder while a run has it; `Made`, what made the data in it.

Rule: whatever keeps a run from working is told before anything is started, with the way out. A folder belongs to one
cluster and one site: offsets of another cluster, or members of another site, would make nonsense of its tables.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

_LOCK: Final = "lock"
_MADE: Final = "run.json"
OWN: Final = "own broker"


class CannotRun(Exception):
    """Why a run cannot be, and what to do about it."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem} {advice}")
        self.problem = problem
        self.advice = advice


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What the first run in a folder was about."""

    seed: int
    cluster: str
    """The id of the cluster, or that the broker is the folder's own."""
    version: int = 1
    value_format: str = "json"


class RunFolder:
    """Held until it is released, or the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def take(self) -> None:
        """Make it if it is not there. Raises CannotRun."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CannotRun(
                f"{self.path} cannot be written: {error.strerror}.",
                "Choose a folder that this user can write to with --data-dir.",
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 32).decode("ascii", "replace").strip()
            os.close(handle)
            raise CannotRun(
                f"A run uses {self.path} already{f', as process {holder}' if holder else ''}.",
                "Stop it with Ctrl-C, or choose another folder with --data-dir (and other ports).",
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._lock = handle

    def release(self) -> None:
        handle, self._lock = self._lock, None
        if handle is not None:
            os.ftruncate(handle, 0)
            os.close(handle)

    def made(self) -> Made | None:
        """What made it; None if nothing has yet. Raises CannotRun."""
        try:
            text = (self.path / _MADE).read_bytes()
        except FileNotFoundError:
            self._check_fresh()
            return None
        try:
            return msgspec.json.decode(text, type=Made)
        except msgspec.DecodeError as error:
            raise CannotRun(
                f"{self.path / _MADE} cannot be read: {error}.", "Choose another folder with --data-dir, or remove it."
            ) from None

    def _check_fresh(self) -> None:
        if any((self.path / name).exists() for name in ("warehouse", "broker", "meta.properties")):
            raise CannotRun(
                f"{self.path} has data in it that no run of this command made.",
                "Choose another folder with --data-dir.",
            )

    def check(self, seed: int | None, cluster: str, value_format: str = "json") -> Made:
        """What made it, if that goes with what is asked for now. Raises CannotRun."""
        made = self.made()
        if made is None:
            return Made(seed=1 if seed is None else seed, cluster=cluster, value_format=value_format)
        if made.cluster != cluster:
            of = "a broker of its own" if made.cluster == OWN else f"cluster {made.cluster}"
            now = "a broker of its own" if cluster == OWN else f"cluster {cluster}"
            raise CannotRun(
                f"{self.path} has tables of {of}, and this run would use {now}.",
                "Choose another folder with --data-dir, or the --bootstrap-server that it was made with.",
            )
        if value_format != made.value_format:
            raise CannotRun(
                f"{self.path} has events whose values are {made.value_format}, not {value_format}.",
                f"Go on with --value-format {made.value_format}, or choose another folder with --data-dir.",
            )
        if seed is not None and seed != made.seed:
            raise CannotRun(
                f"{self.path} has the activity of the site with seed {made.seed}, not {seed}.",
                "Leave --seed out to go on with it, or choose another folder with --data-dir.",
            )
        return made

    def remember(self, made: Made) -> None:
        """For the runs to come."""
        temporary = self.path / f".{_MADE}"
        temporary.write_bytes(msgspec.json.encode(made))
        os.replace(temporary, self.path / _MADE)
