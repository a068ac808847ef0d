"""`make test-peers`: provides the peers, runs the tests that need them, and reports which of them ran.

Tests of a peer that is not available are skipped with the reason; the exit code is that of the tests that ran. A peer
named by `--demand` is required: the run fails if one of its tests is skipped because it is missing, or if none runs.
All other arguments are pytest's, e.g. `make test-peers ARGS="-k wire"`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/peers"
FAILED = int(pytest.ExitCode.TESTS_FAILED)
WRONG_USAGE = int(pytest.ExitCode.USAGE_ERROR)
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
# One worker unless -n is given: on 2 cores four workers, each with its own JVMs, took longer and timed out.
WORKERS = ("-n", "0", "--dist", "loadgroup")
# Required peers get more time for their installation.
DEMANDED_BUDGET_S = 1200.0


def write(text: str) -> None:
    print(text, end="", flush=True)


class Witness:
    """A pytest plugin that records the peers of selected tests, of tests that ran, and the missing ones."""

    def __init__(self) -> None:
        self.selected: set[str] = set()
        self.ran: set[str] = set()
        self.missed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        peers = {str(value) for key, value in report.user_properties if key == "peer"}
        self.selected |= peers
        self.missed |= {str(value) for key, value in report.user_properties if key == "missing peer"}
        if report.when == "call" and not report.skipped:
            self.ran |= peers


def parse(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The required peers, and the arguments for pytest."""
    parser = argparse.ArgumentParser(prog="make test-peers", add_help=False, allow_abbrev=False)
    parser.add_argument("--demand", default="", metavar="NAME,NAME...")
    options, rest = parser.parse_known_args(list(arguments))
    return [name for name in options.demand.split(",") if name], rest


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """All peer tests, unless the arguments name a path."""
    named = any(Path(argument.partition("::")[0]).exists() for argument in arguments if not argument.startswith("-"))
    return ["-m", "peer", *WORKERS, *arguments, *([] if named else [TESTS])]


def closing_line(names: Sequence[str], witness: Witness, reasons: dict[str, str]) -> str:
    """Which peers ran, and why the others did not."""
    shown = ", ".join(name for name in names if name in witness.ran)
    missing = ", ".join(f"{name} ({why(name, witness, reasons)})" for name in names if name not in witness.ran)
    return f"peers that ran: {shown or 'none'}; not run: {missing or 'none'}"


def why(name: str, witness: Witness, reasons: dict[str, str]) -> str:
    """Why tests of this peer did not run."""
    if name in witness.missed:
        return reasons.get(name, "not found by a test")
    unused = "its tests need another peer too" if name in witness.selected else "no test of it was selected"
    return reasons.get(name, unused)


def unmet_demands(demanded: Sequence[str], witness: Witness, reasons: dict[str, str]) -> str:
    """The line about required peers that are missing; empty if there are none."""
    unmet = [name for name in demanded if name not in witness.ran or name in witness.missed]
    if not unmet:
        return ""
    missing = ", ".join(f"{name} ({why(name, witness, reasons)})" for name in unmet)
    return f"peers: FAILED, tests of required peers were skipped or did not run: {missing}"


def main(arguments: Sequence[str]) -> int:
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    from tests.peers.provision import BUDGET_S, PEERS

    names = list(PEERS.table)
    demanded, rest = parse(arguments)
    unknown = [name for name in demanded if name not in names]
    if unknown:
        write(f"peers: unknown peers in --demand: {', '.join(unknown)}; the peers are {', '.join(names)}\n")
        return WRONG_USAGE
    reasons = PEERS.provide(write, DEMANDED_BUDGET_S if demanded else BUDGET_S)
    witness = Witness()
    code = int(pytest.main(pytest_arguments(rest), plugins=[witness]))
    if reasons and not witness.ran:
        write("peers: NO PEER TEST RAN, because no peer is available here.\n")
        code = 0 if code == NO_TESTS else code
    write(closing_line(names, witness, reasons) + "\n")
    unmet = unmet_demands(demanded, witness, reasons)
    if unmet:
        write(unmet + "\n")
        code = code or FAILED
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
