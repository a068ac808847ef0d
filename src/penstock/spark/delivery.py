"""This package for executors that do not have it installed: an archive that Spark unpacks beside them.

Rule: Spark's --py-files does not reach the processes of a streaming source, and cannot carry compiled modules. An
archive can: each executor unpacks it into its folder, and PYTHONPATH leads there. It holds penstock and what its
clients need; pyarrow and Spark's own packages are the cluster's, as for any work with Arrow. Python's version and the
kind of machine are the same on both sides. Where the package is installed on every node nothing has to be delivered.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from penstock.client.errors import PenstockError

FOLDER: Final = "penstock-packages"
# What readers and writers import, and nothing of the broker, the console or the tests.
_PACKAGES: Final = (
    "penstock", "pyspark_penstock", "msgspec", "crc32c", "lz4", "cramjam", "zstandard", "kazoo",
)  # fmt: skip
_OPTIONAL: Final = ("fastavro", "google.protobuf")
_LEFT_OUT: Final = frozenset({"__pycache__", "tests", "test", "include"})


class NotDelivered(PenstockError):
    """The archive could not be made."""


def delivery_settings(archive: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Settings by which executors get the archive, added to what is set already."""
    archives = [part for part in (given.get("spark.archives"), f"{archive}#{FOLDER}") if part]
    paths = [part for part in (FOLDER, given.get("spark.executorEnv.PYTHONPATH")) if part]
    return {"spark.archives": ",".join(archives), "spark.executorEnv.PYTHONPATH": ":".join(paths)}


def make_archive(folder: Path) -> Path:
    """The archive, in this folder, named by what is in it. Raises NotDelivered."""
    files = sorted(_files())
    digest = hashlib.sha256()
    for name, path in files:
        stat = path.stat()
        digest.update(f"{name}\0{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    target = folder / f"{FOLDER}-{digest.hexdigest()[:16]}.tar.gz"
    if target.is_file():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Others may be making the same one: whoever is last replaces it by its like.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as own:
            unfinished = Path(own) / target.name
            with tarfile.open(unfinished, "w:gz", compresslevel=1) as archive:
                for name, path in files:
                    archive.add(path, name, recursive=False)
            unfinished.replace(target)
    except OSError as error:
        raise NotDelivered(f"{target} cannot be written: {error.strerror or error}") from None
    return target


def _files() -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        found = list(_files_of(package))
        if not found:
            raise NotDelivered(f"the package {package} is not installed here", hint="pip install penstock")
        yield from found
    for package in _OPTIONAL:
        yield from _files_of(package)
    yield from _metadata()


def _metadata() -> Iterator[tuple[str, Path]]:
    """What the packages say of themselves: some ask for their own version when they are imported."""
    owners = importlib.metadata.packages_distributions()
    roots = {package.partition(".")[0] for package in (*_PACKAGES, *_OPTIONAL)}
    for name in sorted({owner for root in roots for owner in owners.get(root, ())}):
        for file in importlib.metadata.files(name) or ():
            if file.name == "METADATA" and file.parent.name.endswith(".dist-info"):
                yield f"{file.parent.name}/{file.name}", Path(str(file.locate()))


def _files_of(package: str) -> Iterator[tuple[str, Path]]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        return
    inside = package.replace(".", "/")
    if not spec.submodule_search_locations:
        if spec.origin is not None:
            yield Path(spec.origin).name, Path(spec.origin)
        return
    for location in spec.submodule_search_locations:
        for path in Path(location).rglob("*"):
            parts = path.relative_to(location).parts
            if path.is_file() and not _LEFT_OUT.intersection(parts) and path.suffix not in (".pyx", ".pxi", ".c"):
                yield "/".join((inside, *parts)), path
