"""Run simulated clusters under faults, one run per seed.

A failing seed is printed with its fault schedule, the last lines of its trace, and the command that runs it again.
Runs are independent of each other and spread over processes. PYTHONHASHSEED is fixed, because a run must not depend on
the order of sets. A single broker has its own metadata tree; brokers in a cluster share one, and a spare broker may
join them.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from penstock.testing.simulation.campaign import (
    Campaign,
    Tally,
    Verdict,
    is_measured,
    read_results,
    save_results,
    with_table,
)
from penstock.testing.simulation.faults import InvalidSchedule, parse_schedule
from penstock.testing.simulation.mutations import MUTATIONS, UnknownMutation, mutated
from penstock.testing.simulation.run import Plan, Report, simulate
from penstock.testing.simulation.summary import Summary, keep, origin, with_section

_MANY: Final = 200
_SHORT_INTERVAL_S: Final = 2.0
_LONG_INTERVAL_S: Final = 10.0


class Progress:
    """Progress of a campaign. `now_s` is monotonic."""

    def __init__(self, total: int, now_s: float) -> None:
        self._total = total
        self._began_s = self._printed_s = now_s
        self._every_s = _LONG_INTERVAL_S if total > _MANY else _SHORT_INTERVAL_S

    def took_s(self, now_s: float) -> float:
        return now_s - self._began_s

    def line(self, done: int, failed: int, now_s: float, wall_s: float) -> str | None:
        """A line to print now, or None. `wall_s` is the wall-clock time, for the estimated end."""
        if done < 1 or now_s - self._printed_s < self._every_s:
            return None
        self._printed_s = now_s
        seeds_per_s = done / max(self.took_s(now_s), 1e-9)
        left_s = (self._total - done) / seeds_per_s
        end = time.strftime("%H:%M:%S", time.localtime(wall_s + left_s))
        return (
            f"{done} of {self._total} seeds, {failed} failed, {_duration(self.took_s(now_s))}: "
            f"{seeds_per_s:.2f} seeds/s, {_duration(left_s)} left, until about {end}"
        )


def _duration(seconds: float) -> str:
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest_s} s" if minutes else f"{rest_s} s"


_BROKERS: Final = 3
_HASH_SEED: Final = "PYTHONHASHSEED"
_FAILURES_SHOWN: Final = 5
_STOPPED: Final = 128 + signal.SIGINT
# New processes take over after this many seeds. A run that ends early leaves objects behind that the garbage collector
# cannot see, such as records that are waited for, and they would add up.
_SEEDS_PER_PROCESS: Final = 500


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if os.environ.get(_HASH_SEED) != "0":
        # The order of sets is fixed when the interpreter starts.
        command = [sys.executable, "-m", "penstock.testing.simulation", *(arguments or sys.argv[1:])]
        with _interrupts_ignored():
            return subprocess.run(command, env={**os.environ, _HASH_SEED: "0"}, check=False).returncode
    if options.mutations is not None:
        return _measure_mutations(options)
    mutation = MUTATIONS.get(options.mutation)
    try:
        schedule = None if options.schedule is None else tuple(parse_schedule(options.schedule))
    except InvalidSchedule as error:
        return _usage_error(str(error))
    brokers = options.brokers or (_BROKERS if mutation is None else mutation.brokers)
    plan = Plan(brokers=brokers, schedule=schedule)
    is_partial = options.seed is not None or schedule is not None or mutation is not None
    if options.keep is not None and is_partial:
        return _usage_error("--keep is for a campaign: without --seed, --schedule and --mutation")
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    return _Run(options, plan).run(_run_all(seeds, plan, options), len(seeds))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.simulation", description=(__doc__ or "").strip())
    parser.add_argument("--seeds", type=_positive, default=100, help="number of seeds to run (100)")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument(
        "--brokers", type=_brokers, help=f"1, or at least 3 ({_BROKERS}, or as many as the mutation needs)"
    )
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="parallel processes")
    parser.add_argument("--lines", type=_positive, default=60, help="lines of a failing seed's trace (60)")
    parser.add_argument(
        "--schedule", help="use these faults instead of drawn ones: '4.0 power broker-0 for 1.5 | 6 reset broker-0'"
    )
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="switch a safeguard off: some seeds must fail")
    parser.add_argument(
        "--mutations", nargs="*", metavar="NAME", help="count the seeds that catch each of these mutations, or all"
    )
    parser.add_argument(
        "--until-caught", type=_positive, metavar="N", help="with --mutations: stop when N seeds caught one"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="with --mutations: file for the results (JSON), written after each mutation",
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        choices=("same", "any"),
        const="same",
        help="with --results: leave out the mutations that FILE has for as many seeds, of the same code or of any code",
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep the result of these seeds in this file (JSON)")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="with --results or --keep: document to put the result into"
    )
    return parser


def _measure_mutations(options: argparse.Namespace) -> int:
    names: list[str] = options.mutations or list(MUTATIONS)
    unknown = [name for name in names if name not in MUTATIONS]
    if unknown:
        return _usage_error(str(UnknownMutation(unknown[0])))
    if options.resume and options.results is None:
        return _usage_error("--resume needs the --results of the campaign that it continues")
    seeds, here = range(options.first, options.first + options.seeds), origin()
    found = {} if options.results is None else read_results(options.results)
    if options.resume:
        code = here["code"] if options.resume == "same" else None
        measured = [name for name in names if is_measured(found.get(name), seeds, options.until_caught, code)]
        names = [name for name in names if name not in measured]
        _print(f"{len(measured)} mutations are measured already, {len(names)} are left")
    tallies: list[Tally] = []
    status = 0
    try:
        for tally in Campaign(seeds, jobs=options.jobs, until_caught=options.until_caught).run(names):
            _print(str(tally))
            tallies.append(tally)
            if options.results is not None:
                found = save_results(options.results, [tally], **here)
    except KeyboardInterrupt:
        _print(f"stopped; {len(names) - len(tallies)} mutations not measured")
        status = _STOPPED
    if options.table is not None:
        options.table.write_text(with_table(options.table.read_text(), found))
    failed = [tally.name for tally in tallies if tally.is_rare or tally.of(Verdict.BROKEN)]
    _print(
        f"{len(tallies) - len(failed)} of {len(tallies)} mutations caught; not caught: {', '.join(failed) or 'none'}"
    )
    return status or (1 if failed else 0)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _brokers(text: str) -> int:
    number = _positive(text)
    if number == 2:
        raise argparse.ArgumentTypeError("partitions have three replicas, which 2 brokers cannot hold")
    return number


def _run_all(seeds: Sequence[int], plan: Plan, options: argparse.Namespace) -> Iterator[Report]:
    run = partial(run_one, plan=plan, lines=options.lines, mutation=options.mutation)
    if options.jobs == 1 or len(seeds) == 1:
        yield from map(run, seeds)
        return
    for start in range(0, len(seeds), _SEEDS_PER_PROCESS):
        batch = seeds[start : start + _SEEDS_PER_PROCESS]
        pool = ProcessPoolExecutor(
            min(options.jobs, len(batch)), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
        )
        try:
            yield from pool.map(run, batch)
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C reaches the whole process group; the main process ends the run."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run_one(seed: int, *, plan: Plan, lines: int, mutation: str | None) -> Report:
    """Run in a worker process."""
    with mutated(mutation) if mutation else nullcontext():
        return simulate(seed, plan, lines=lines)


class _Run:
    """Takes the reports of all runs, shows progress and failures, and prints and keeps the result."""

    def __init__(self, options: argparse.Namespace, plan: Plan) -> None:
        self._options = options
        self._plan = plan
        self._summary = Summary()

    def run(self, reports: Iterable[Report], total: int) -> int:
        progress, summary = Progress(total, time.monotonic()), self._summary
        was_stopped = False
        try:
            for report in reports:
                summary.take(report)
                if report.problem and len(summary.failures) <= _FAILURES_SHOWN:
                    self._print_failure(report)
                line = progress.line(summary.seeds, len(summary.failures), time.monotonic(), time.time())
                if line is not None:
                    _print(line)
        except KeyboardInterrupt:
            was_stopped = True
            _print(f"stopped; {total - summary.seeds} seeds not run")
        took_s = max(progress.took_s(time.monotonic()), 1e-9)
        _print("\n".join(summary.lines(took_s)))
        mutation = self._options.mutation
        if mutation is not None:
            _print(f"{mutation}: {'caught' if summary.failures else 'NOT caught'}")
            return 0 if summary.failures else 1
        self._keep(took_s, was_stopped)
        if was_stopped:
            return _STOPPED
        return 1 if summary.failures else 0

    def _keep(self, took_s: float, was_stopped: bool) -> None:
        path: Path | None = self._options.keep
        if path is None:
            return
        if was_stopped:
            _print(f"not kept in {path}, because the campaign is not complete")
            return
        content = self._summary.as_json(self._options.first, self._plan.brokers, took_s)
        keep(path, content)
        table: Path | None = self._options.table
        if table is not None:
            table.write_text(with_section(table.read_text(), content))

    def _print_failure(self, report: Report) -> None:
        options = f"--mutation {self._options.mutation} " if self._options.mutation else ""
        options += f"--brokers {self._plan.brokers} "
        if self._plan.schedule is not None:
            options += f"--schedule '{report.schedule}' "
        _print("\n".join(report.last_lines))
        _print(f"seed {report.seed} FAILED: {report.problem}")
        _print(f"  trace {report.trace_hash}; faults: {report.schedule or 'none'}")
        _print(f"  repeat: python -m penstock.testing.simulation {options}--seed {report.seed}")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _usage_error(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 2


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may have set it to be ignored
    sys.exit(main())
