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
    """A pytest plugin that sees whose tests were selected, and whose were run."""

    def __init__(self) -> None:
        self.selected: set[str] = set()
        self.ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        peers = {str(value) for key, value in report.user_properties if key == "peer"}
        self.selected |= peers
        if report.when == "call" and not report.skipped:
            self.ran |= peers


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """All peer tests, unless a path among the arguments says which."""
    named = any(Path(argument.partition("::")[0]).exists() for argument in arguments if not argument.startswith("-"))
    return ["-m", "peer", *arguments, *([] if named else [TESTS])]


def closing_line(names: Sequence[str], witness: Witness, reasons: dict[str, str]) -> str:
    """Which peers took part, and why the others did not."""

    def why(name: str) -> str:
        unused = "its tests need another one too" if name in witness.selected else "no test of it was selected"
        return reasons.get(name, unused)

    shown = ", ".join(name for name in names if name in witness.ran)
    missing = ", ".join(f"{name} ({why(name)})" for name in names if name not in witness.ran)
    return f"peers that ran: {shown or 'none'}; not run: {missing or 'none'}"


def main(arguments: Sequence[str]) -> int:
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    from tests.peers.provision import PEERS

    reasons = PEERS.provide(write)
    witness = Witness()
    code = int(pytest.main(pytest_arguments(arguments), plugins=[witness]))
    names = list(PEERS.table)
    if reasons and not witness.ran:
        write("peers: NO PEER TEST RAN, since peers are not to be had here: this run says nothing about them.\n")
        code = 0 if code == NO_TESTS else code
    write(closing_line(names, witness, reasons) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
