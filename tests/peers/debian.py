"""A program from a package of Debian, or from wherever the machine has it."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cached_property
from pathlib import Path

from tests.peers.installing import CACHE, Budget, install_from_debian

_VERSION = re.compile(r"(?:[Vv]ersion:?|^[A-Za-z]+) v?(\d[\w.]*)")
_ANSWER_S = 30


class DebianProgram:
    """A program on the path that tells its version when it is asked with `version_flag`."""

    source = "program of this machine"

    def __init__(self, program: str, debian_package: str, version_flag: str) -> None:
        self.program = program
        self.debian_package = debian_package
        self.version_flag = version_flag

    @property
    def version(self) -> str:
        return self._said_version or "of Debian"

    def find(self) -> Path | None:
        path = shutil.which(self.program)
        return None if path is None else Path(path)

    def install(self, budget: Budget) -> None:
        install_from_debian(self.debian_package, CACHE / self.program / "install.log", budget)
        self.__dict__.pop("_said_version", None)

    @cached_property
    def _said_version(self) -> str | None:
        path = self.find()
        if path is None:
            return None
        try:
            said = subprocess.run([path, self.version_flag], capture_output=True, text=True, timeout=_ANSWER_S)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = _VERSION.search(said.stdout + said.stderr)
        return match[1] if match else "of unknown version"
