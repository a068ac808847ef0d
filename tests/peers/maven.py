"""Jars from Maven, by their coordinates, with their dependencies.

A set of jars is complete once its list is written, as the last step of an installation, so that an interrupted one is
never used.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from tests.peers.installing import CACHE, Budget, install_from_debian, run_installer

_LIST = "jars.txt"
_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId>
  <artifactId>{name}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = "    <dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>"


class Jars:
    """The jars of some coordinates (group:artifact:version) in a folder of the cache."""

    source = "jars from Maven"

    def __init__(self, name: str, version: str, coordinates: tuple[str, ...], cache: Path = CACHE) -> None:
        self.name = name
        self.version = version
        self.coordinates = coordinates
        self.folder = cache / name

    def find(self) -> Path | None:
        try:
            listed = (self.folder / _LIST).read_text().splitlines()
        except OSError:
            return None
        wanted = list(self.coordinates)
        jars = listed[len(wanted) :]
        there = listed[: len(wanted)] == wanted and jars and all((self.folder / "jars" / jar).exists() for jar in jars)
        return self.folder / "jars" if there else None

    def install(self, budget: Budget) -> None:
        log = self.folder / "install.log"
        if shutil.which("mvn") is None:
            install_from_debian("maven", log, budget)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "pom.xml").write_text(self._pom())
        with tempfile.TemporaryDirectory(dir=self.folder) as fresh:
            jars = Path(fresh, "jars")
            command = ["mvn", "-B", "-f", str(self.folder / "pom.xml"), "dependency:copy-dependencies"]
            run_installer([*command, f"-DoutputDirectory={jars}", "-DincludeScope=runtime"], log, budget)
            names = sorted(jar.name for jar in jars.glob("*.jar"))
            shutil.rmtree(self.folder / "jars", ignore_errors=True)
            jars.rename(self.folder / "jars")
        (self.folder / _LIST).write_text("\n".join([*self.coordinates, *names]) + "\n")

    def _pom(self) -> str:
        parts = [[escape(part) for part in coordinate.split(":")] for coordinate in self.coordinates]
        return _POM.format(name=self.name, dependencies="\n".join(_DEPENDENCY.format(*part) for part in parts))
