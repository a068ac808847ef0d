"""Runs installers within a time budget; their output goes to a file, and a failure is one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".peers"

_LEAST_S = 1.0
_REASON_CHARACTERS = 200
_ADDRESS = re.compile(r"\(?\bhttps?://[^\s)\]]+\)?")
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|^\[?(ERROR|WARNING)\]?:? *| *-> \[Help \d+\]|^E: ")
_TELLING = re.compile(r"^E: |\bERROR\b|[Uu]nable to|[Cc]ould not|[Cc]annot|[Ff]ailed|timed out|[Uu]nknown host")


class NotAvailable(Exception):
    """A peer is missing and could not be installed; the text is the reason."""


class Budget:
    """The time that all installations of a run share, so that a silent registry costs it only once."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()


def run_installer(command: Sequence[str], log: Path, budget: Budget) -> None:
    """Runs an installer. Raises NotAvailable with the line of its output that explains the failure."""
    if budget.left_s < _LEAST_S:
        raise NotAvailable(f"{command[0]} was not tried: the installation time budget is used up")
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent,
                timeout=budget.left_s, env=environment,
            )  # fmt: skip
    except OSError as error:
        raise NotAvailable(f"{command[0]} does not run: {error}") from None
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"{command[0]} timed out after {error.timeout:.0f} s") from None
    if done.returncode != 0:
        raise NotAvailable(f"{Path(command[0]).name} failed: {_reason(log)} (its output: {_shown(log)})")


def install_from_debian(package: str, log: Path, budget: Budget) -> None:
    """Runs `apt-get install`, which needs a Debian-based system and root."""
    if shutil.which("apt-get") is None:
        raise NotAvailable(f"install {package} yourself: apt-get is not available")
    if os.geteuid() != 0:
        raise NotAvailable(f"as root: apt-get install {package}")
    install = ["apt-get", "install", "-y", "--no-install-recommends", package]
    try:
        run_installer(install, log, budget)
    except NotAvailable:
        # A fresh machine has no package list yet.
        run_installer(["apt-get", "update"], log, budget)
        run_installer(install, log, budget)


def _reason(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    telling = next((line for line in lines if _TELLING.search(line)), lines[-1] if lines else "no output")
    plain = _ADDRESS.sub("(its registry)", _DECORATION.sub("", telling)).strip()
    return plain if len(plain) <= _REASON_CHARACTERS else plain[:_REASON_CHARACTERS] + "..."


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
