"""Java: a JDK of the machine, from JAVA_HOME or the path, or Debian's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cached_property
from pathlib import Path

from tests.peers.installing import CACHE, Budget, NotAvailable, install_from_debian

_VERSION = re.compile(r'version "(\d+)([^"]*)"')
_ANSWER_S = 30


class Jdk:
    """A `java` that is new enough and can compile: a runtime alone cannot."""

    source = "JDK of this machine"

    def __init__(self, oldest: int, debian_package: str) -> None:
        self.oldest = oldest
        self.debian_package = debian_package

    @property
    def version(self) -> str:
        return self._known[0] if self._known else f"{self.oldest} or newer"

    def find(self) -> Path | None:
        return self._known[1] if self._known else None

    def install(self, budget: Budget) -> None:
        install_from_debian(self.debian_package, CACHE / "java" / "install.log", budget)
        self.__dict__.pop("_known", None)
        if self._known is None:
            raise NotAvailable(f"{self.debian_package} is not a JDK of version {self.oldest} or newer")

    @cached_property
    def _known(self) -> tuple[str, Path] | None:
        home = os.environ.get("JAVA_HOME")
        candidates = [Path(home, "bin", "java")] if home else []
        on_path = shutil.which("java")
        if on_path is not None:
            candidates.append(Path(on_path))
        for java in candidates:
            version = self._version(java)
            if version is not None:
                return version, java
        return None

    def _version(self, java: Path) -> str | None:
        """What it says its version is, if it will do."""
        try:
            said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S)
            modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=_ANSWER_S)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = _VERSION.search(said.stderr)
        if match is None or int(match[1]) < self.oldest or "jdk.compiler" not in modules.stdout:
            return None
        return match[1] + match[2]
