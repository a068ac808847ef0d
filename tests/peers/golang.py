"""A Go program of ours with the modules of its go.mod, built into the cache.

The name of the program has a digest of its sources, so that a changed one is built again.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tests.peers.installing import CACHE, Budget, NotAvailable, run_installer


class GoProgram:
    """The program whose sources are in a folder: its go.mod, go.sum and *.go."""

    source = "modules from Go's proxy"

    def __init__(self, name: str, version: str, sources: Path, cache: Path = CACHE) -> None:
        self.version = version
        self.sources = sources
        self.folder = cache / name

    def find(self) -> Path | None:
        program = self._program()
        return program if program.exists() else None

    def install(self, budget: Budget) -> None:
        if shutil.which("go") is None:
            raise NotAvailable("install Go yourself: the one that Debian has may be too old")
        log = self.folder / "install.log"
        run_installer(["go", "-C", str(self.sources), "build", "-o", str(self._program()), "."], log, budget)

    def _program(self) -> Path:
        state = hashlib.sha256()
        for source in sorted(self.sources.iterdir()):
            if source.suffix in (".go", ".mod", ".sum"):
                state.update(source.name.encode() + source.read_bytes())
        return self.folder / f"program-{state.hexdigest()[:16]}"
