"""`make test-under-load`: the tests a few times, beside a busy loop on every core, and how each run ended.

A test that judges by time fails here. The command can be another one: `tools/under_load.py --runs 5 -- make test-long`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

_BUSY = "while True: pass"
_COMMAND = ("make", "test")


class Run(NamedTuple):
    """How one run ended. `summary` is the last line of the tests."""

    status: int
    took_s: float
    summary: str

    def __str__(self) -> str:
        how = "passed" if self.status == 0 else f"FAILED ({self.status})"
        return f"{how} in {self.took_s:.0f} s: {self.summary}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    command = options.command or list(_COMMAND)
    runs = []
    with busy_loops(options.loops):
        for number in range(1, options.runs + 1):
            print(f"== run {number} of {options.runs}, beside {options.loops} busy loops", flush=True)
            runs.append(run(command))
    print(f"\n{' '.join(command)}, beside {options.loops} busy loops on {os.cpu_count()} cores:")
    for number, each in enumerate(runs, 1):
        print(f"  run {number} {each}")
    failed = sum(each.status != 0 for each in runs)
    print(f"{len(runs) - failed} of {len(runs)} runs passed")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/under_load.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=_positive, default=3, help="number of runs (3)")
    parser.add_argument(
        "--loops", type=_positive, default=os.cpu_count() or 1, help="number of busy loops (one for each core)"
    )
    parser.add_argument("command", nargs="*", help="the command to run, after -- (make test)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Processes that do nothing but compute."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(command: Sequence[str]) -> Run:
    """Run the command to its end and show what it prints."""
    began_s, last = time.monotonic(), ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.strip() and not line.startswith("make"):  # which adds that it failed
                last = line.strip()
    return Run(process.returncode, time.monotonic() - began_s, last)


if __name__ == "__main__":
    sys.exit(main())
