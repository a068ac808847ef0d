"""Fuzz a broker's listeners.

    python -m tests.hostile.fuzz --requests 500000 --listener SASL_SSL

Exit code 1 if anything was found; `--findings` keeps what was sent to provoke it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.hostile.fuzz.attackers import STATES
from tests.hostile.fuzz.run import Report, Run


def show(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show_report(report: Report) -> None:
    show(report.line)
    show(
        f"  slowest requests of the well-behaved client (ms, ms of the loop, API, after s): {report.client['slowest']}"
    )
    for spent_s, stack in report.broker["slow_stacks"][:3]:
        show(f"  a turn after {spent_s * 1000:.0f} ms of processor time:")
        show("".join(f"    {line}\n" for line in stack.splitlines()[-8:]).rstrip())
    for problem in report.problems:
        show("  PROBLEM " + problem.replace("\n", "\n    "))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description="Fuzz a broker's listeners.")
    listeners = tuple(dict.fromkeys(state.partition(" ")[0] for state in STATES))
    parser.add_argument("--requests", type=int, default=500_000, help="Requests for each state. (default: 500000)")
    parser.add_argument("--listener", choices=listeners, action="append", help="Listener to attack. (default: all)")
    parser.add_argument("--when", choices=("before", "after"), help="Before or after authentication. (default: both)")
    parser.add_argument("--seed", type=int, help="Seed of the run. (default: the time)")
    parser.add_argument("--findings", type=Path, help="Folder for what provoked a finding.")
    parser.add_argument("--json", type=Path, help="File to which the reports are written.")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    states = [
        state
        for state in STATES
        if (not options.listener or state.partition(" ")[0] in options.listener)
        and (options.when is None or state.endswith(options.when))
    ]
    show(f"seed={seed} requests={options.requests} states={len(states)}")
    reports = []
    for state in states:
        reports.append(Run(state, seed, options.requests, options.findings).run(show))
        show_report(reports[-1])
        if options.json is not None:
            options.json.write_text(json.dumps([vars(report) for report in reports], indent=1))
    return 1 if any(report.problems for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
