"""The class path of a ZooKeeper: the jars of it that the pyspark package brings along.

Rule: every jar that a server needs is looked for before one is started, by its name without the version, since which
version there is is pyspark's choice. One that is missing is named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final, NamedTuple

from penstock.cluster.zookeeper_errors import ZooKeeperNotStarted

# The server, and what it logs with.
NAMES: Final = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "metrics-core",
    "snappy-java",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
_ADVICE: Final = (
    'pip install "penstock[spark]" brings them; or run a ZooKeeper of your own, and name it in zookeeper.connect'
)


class Jars(NamedTuple):
    paths: tuple[str, ...]
    version: str  # of ZooKeeper

    @property
    def class_path(self) -> str:
        return os.pathsep.join(self.paths)


def find_jars(folder: str | None = None) -> Jars:
    """Those in `folder`, or in the pyspark package of this environment. ZooKeeperNotStarted."""
    where = _pyspark_folder() if folder is None else folder
    try:
        names = os.listdir(where)
    except OSError as error:
        raise ZooKeeperNotStarted(f"no jars in {where}: {error.strerror}", _ADVICE) from None
    found = {name: _newest(name, names) for name in NAMES}
    missing = [name for name, file in found.items() if file is None]
    if missing:
        raise ZooKeeperNotStarted(f"ZooKeeper's jars {', '.join(missing)} are not in {where}", _ADVICE)
    server = found["zookeeper"] or ""
    version = server.removeprefix("zookeeper-").removesuffix(".jar")
    return Jars(tuple(os.path.join(where, file) for file in found.values() if file is not None), version)


def _newest(name: str, files: Iterable[str]) -> str | None:
    pattern = re.compile(rf"{re.escape(name)}-(\d+(?:\.\d+)*)[\w.-]*\.jar")
    versions = [
        (tuple(map(int, match[1].split("."))), file) for file in files if (match := pattern.fullmatch(file)) is not None
    ]
    return max(versions)[1] if versions else None


def _pyspark_folder() -> str:
    try:
        spec = find_spec("pyspark")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ZooKeeperNotStarted("ZooKeeper's jars come with the pyspark package, which is not installed", _ADVICE)
    return os.path.join(spec.submodule_search_locations[0], "jars")
