"""Which code a benchmark measures, and whether a kept result is of the code as it is now.

A result keeps the paths that its benchmark measures and a digest of the files there. The digest is over names and
contents, so it is the same for a commit and for a folder that holds its files, and it stays when history is rewritten.
Results of the time before that have a commit only, which must be in the history.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_SOURCES: Final = (".py", ".pyx", ".pxi")
_WIRE: Final = ("errors.py", "records", "runtime", "security", "wire")
_LOG: Final = ("log", "records", "runtime")
_CLIENT: Final = (*_WIRE, "client", "properties_file.py")
_BROKER: Final = (
    *(*_WIRE, "broker", "cluster", "config_def.py", "coordination", "log", "plugin.py", "properties_file.py"),
    "replication",
)
_BOTH: Final = tuple(dict.fromkeys((*_BROKER, *_CLIENT)))

_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "peers": _BROKER,
    "replication": _BOTH,
    "faults": (*_BOTH, "cli"),
    "clients": _BOTH,
    "transactions": _BOTH,
    "security": _BOTH,
    "mirror": (*_BOTH, "mirror"),
    "proxy": (*_BOTH, "testing"),
    "console": (*_BOTH, "cli", "console", "registry"),
    "hostile": (*_BROKER, "cli"),
    "spark": (*_BOTH, "activity", "spark"),
    "growth": _BROKER,
    "restart": _BROKER,
    "controller_scale": ("cluster", "runtime"),
    "activity_start": (*_BOTH, "activity", "cli", "spark"),
    "activity_sustained": (*_BOTH, "activity", "spark"),
    "activity_generate": (*_CLIENT, "activity"),
    "activity_verdicts": ("activity",),
    "records_codec": ("records",),
    "wire_codec": ("wire",),
    "log_append": _LOG,
    "log_lookup": _LOG,
    "log_recovery": _LOG,
    "network_echo": ("runtime",),
}
"""Of src/penstock."""
_HELPERS: Final[Mapping[str, tuple[str, ...]]] = {
    "replication": ("faults", "peers"),
    "faults": ("peers",),
    "clients": ("peers",),
    "transactions": ("clients", "peers"),
    "security": ("clients", "peers"),
    "mirror": ("clients", "peers"),
    "proxy": ("clients", "faults"),
    "console": ("clients", "peers"),
    "spark": ("peers",),
    "growth": ("peers",),
}
"""Benchmarks of which another one uses parts."""


@dataclass(frozen=True)
class MeasuredCode:
    """The paths, from the root, and the digest of the files there."""

    paths: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, files: Mapping[str, str], paths: Sequence[str]) -> MeasuredCode:
        lines = "".join(f"{path} {files[path]}\n" for path in sorted(files))
        return cls(tuple(paths), hashlib.sha256(lines.encode()).hexdigest())

    @classmethod
    def here(cls, benchmark: str, root: Path) -> MeasuredCode:
        paths = paths_of(benchmark, root)
        return cls.of(files_here(root, paths), paths)

    @classmethod
    def read(cls, content: Mapping[str, Any] | None) -> MeasuredCode | None:
        return None if content is None else cls(tuple(content["paths"]), content["digest"])


def paths_of(benchmark: str, root: Path) -> tuple[str, ...]:
    """What a benchmark measures and how: packages of src/penstock, its own folder or file, and what it uses."""
    own = [
        f"benchmarks/{name}" if (root / "benchmarks" / name).is_dir() else f"benchmarks/{name}.py"
        for name in (benchmark, *_HELPERS.get(benchmark, ()))
    ]
    return tuple(sorted((*(f"src/penstock/{name}" for name in _PACKAGES[benchmark]), *own)))


def files_here(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """The sources under `paths` and their contents, as git names contents."""
    found = {}
    for start in paths:
        for path in [root / start, *(root / start).rglob("*")]:
            if path.suffix in _SOURCES and path.is_file():
                found[path.relative_to(root).as_posix()] = _blob(path.read_bytes())
    return found


def files_of_commit(root: Path, commit: str, paths: Iterable[str]) -> dict[str, str] | None:
    """The same of a commit; None if the repository does not have it."""
    listing = ["git", "ls-tree", "-r", "-z", commit, "--", *paths]
    try:
        done = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    entries = (line.partition("\t") for line in done.stdout.split("\0") if line)
    return {path: head.split()[2] for head, _, path in entries if path.endswith(_SOURCES)}


def difference(benchmark: str, commit: str, is_dirty: bool, code: MeasuredCode | None, root: Path) -> str | None:
    """How the measured code differs from the code as it is; None if it does not."""
    paths = paths_of(benchmark, root) if code is None else code.paths
    here = files_here(root, paths)
    then = files_of_commit(root, commit, paths)
    if code is None:
        if then is None or is_dirty:
            return "measured on code that is not in this repository"
        code = MeasuredCode.of(then, paths)
    if code == MeasuredCode.of(here, paths):
        return None
    if then is None or is_dirty:
        return "measured on other code than this"
    changed = {path for path in {*here, *then} if here.get(path) != then.get(path)}
    return f"measured on other code than this: files that differ: {len(changed)}"


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
