"""Packages from npm, by name and version, in a folder of the cache.

Scripts of packages are not run, so packages must not need a compiler. A set is complete once its list is written, as
the last step of an installation.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.peers.installing import CACHE, Budget, install_from_debian, run_installer

_LIST = "packages.txt"


class NpmPackages:
    """The folder that holds `node_modules` with the packages (name@version)."""

    source = "packages from npm"

    def __init__(self, name: str, version: str, packages: tuple[str, ...], cache: Path = CACHE) -> None:
        self.version = version
        self.packages = packages
        self.folder = cache / name

    def find(self) -> Path | None:
        try:
            listed = (self.folder / _LIST).read_text().splitlines()
        except OSError:
            return None
        folders = (self.folder / "node_modules" / package.rpartition("@")[0] for package in self.packages)
        there = listed == list(self.packages) and all(folder.is_dir() for folder in folders)
        return self.folder if there and shutil.which("node") is not None else None

    def install(self, budget: Budget) -> None:
        log = self.folder / "install.log"
        for program, package in (("node", "nodejs"), ("npm", "npm")):
            if shutil.which(program) is None:
                install_from_debian(package, log, budget)
        (self.folder / _LIST).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "node_modules", ignore_errors=True)
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(self.folder)]
        run_installer(["npm", "install", *flags, *self.packages], log, budget)
        (self.folder / _LIST).write_text("\n".join(self.packages) + "\n")
