"""`make test-peers`: provides the peers, runs the tests that need them, and reports which of them ran.

A peer that cannot be had costs its tests, visibly, and not the run: the exit code is that of the tests that ran. A peer
named by `--demand` must take part: the run fails if one of its tests is skipped for want of it, or if none runs.
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
# One worker unless -n says otherwise: on 2 cores four of them, each with JVMs of its own, took longer and timed out.
WORKERS = ("-n", "0", "--dist", "loadgroup")
# Who demands peers would rather wait for their installation, once, than fail.
DEMANDED_BUDGET_S = 1200.0


def write(text: str) -> None:
    print(text, end="", flush=True)


class Witness:
    """A pytest plugin that records whose tests were selected, whose ran, and which peers a test missed."""

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
    """The peers that are demanded, and the arguments for pytest."""
    parser = argparse.ArgumentParser(prog="make test-peers", add_help=False, allow_abbrev=False)
    parser.add_argument("--demand", default="", metavar="NAME,NAME...")
    options, rest = parser.parse_known_args(list(arguments))
    return [name for name in options.demand.split(",") if name], rest


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """All peer tests, unless a path among the arguments says which."""
    named = any(Path(argument.partition("::")[0]).exists() for argument in arguments if not argument.startswith("-"))
    return ["-m", "peer", *WORKERS, *arguments, *([] if named else [TESTS])]


def closing_line(names: Sequence[str], witness: Witness, reasons: dict[str, str]) -> str:
    """Which peers took part, and why the others did not."""
    shown = ", ".join(name for name in names if name in witness.ran)
    missing = ", ".join(f"{name} ({why(name, witness, reasons)})" for name in names if name not in witness.ran)
    return f"peers that ran: {shown or 'none'}; not run: {missing or 'none'}"


def why(name: str, witness: Witness, reasons: dict[str, str]) -> str:
    """Why a test of this peer, or every one, did not run."""
    if name in witness.missed:
        return reasons.get(name, "a test did not find it")
    unused = "its tests need another one too" if name in witness.selected else "no test of it was selected"
    return reasons.get(name, unused)


def unmet_demands(demanded: Sequence[str], witness: Witness, reasons: dict[str, str]) -> str:
    """The line about demanded peers without which tests were skipped, or of which none ran; empty if there are none."""
    unmet = [name for name in demanded if name not in witness.ran or name in witness.missed]
    if not unmet:
        return ""
    told = ", ".join(f"{name} ({why(name, witness, reasons)})" for name in unmet)
    return f"peers: FAILED, since tests of demanded peers were skipped or not run: {told}"


def main(arguments: Sequence[str]) -> int:
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    from tests.peers.provision import BUDGET_S, PEERS

    names = list(PEERS.table)
    demanded, rest = parse(arguments)
    unknown = [name for name in demanded if name not in names]
    if unknown:
        write(f"peers: --demand names {', '.join(unknown)}, which is not a peer; the peers are {', '.join(names)}\n")
        return WRONG_USAGE
    reasons = PEERS.provide(write, DEMANDED_BUDGET_S if demanded else BUDGET_S)
    witness = Witness()
    code = int(pytest.main(pytest_arguments(rest), plugins=[witness]))
    if reasons and not witness.ran:
        write("peers: NO PEER TEST RAN, since peers are not to be had here: this run says nothing about them.\n")
        code = 0 if code == NO_TESTS else code
    write(closing_line(names, witness, reasons) + "\n")
    unmet = unmet_demands(demanded, witness, reasons)
    if unmet:
        write(unmet + "\n")
        code = code or FAILED
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
