"""`make test-peers`: has the peers, runs the tests that need them, and says which of them ran.

Rule: a peer that is not to be had costs its tests, visibly, and not the run: the exit code is that of the tests which
could run. Arguments are pytest's, e.g. `make test-peers ARGS="-k wire"`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/peers"
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)


def write(text: str) -> None:
    print(text, end="", flush=True)


class Witness:
    """A pytest plugin that sees whose tests were run."""

    def __init__(self) -> None:
        self.ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self.ran.update(str(value) for key, value in report.user_properties if key == "peer")


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """All peer tests, unless a path among the arguments says which."""
    named = any(Path(argument.partition("::")[0]).exists() for argument in arguments if not argument.startswith("-"))
    return ["-m", "peer", *arguments, *([] if named else [TESTS])]


def closing_line(names: Sequence[str], ran: set[str], reasons: dict[str, str]) -> str:
    """Which peers took part, and why the others did not."""
    missing = [f"{name} ({reasons.get(name, 'no test of it was selected')})" for name in names if name not in ran]
    shown = ", ".join(name for name in names if name in ran) or "none"
    return f"peers that ran: {shown}; not run: {', '.join(missing) or 'none'}"


def main(arguments: Sequence[str]) -> int:
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    from tests.peers.provision import PEERS

    reasons = PEERS.provide(write)
    witness = Witness()
    code = int(pytest.main(pytest_arguments(arguments), plugins=[witness]))
    names = list(PEERS.table)
    if len(reasons) == len(names):
        write("peers: NOT ONE PEER IS TO BE HAD HERE. NO PEER TEST RAN; this says nothing about compatibility.\n")
        code = 0 if code == NO_TESTS else code
    write(closing_line(names, witness.ran, reasons) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
