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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

from penstock.testing.simulation.campaign import Campaign, Tally, Verdict, save_results, with_table
from penstock.testing.simulation.faults import InvalidSchedule, parse_schedule
from penstock.testing.simulation.mutations import MUTATIONS, UnknownMutation, mutated
from penstock.testing.simulation.run import Plan, Report, simulate

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
_RECORDS: Final = "acknowledged records"
_COMMITS: Final = "committed offsets"
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
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    return _Summary(options, plan).run(_run_all(seeds, plan, options), len(seeds))


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
    parser.add_argument("--results", type=Path, metavar="FILE", help="with --mutations: file for the results (JSON)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="with --results: document to put the table into")
    return parser


def _measure_mutations(options: argparse.Namespace) -> int:
    names: list[str] = options.mutations or list(MUTATIONS)
    unknown = [name for name in names if name not in MUTATIONS]
    if unknown:
        return _usage_error(str(UnknownMutation(unknown[0])))
    seeds = range(options.first, options.first + options.seeds)
    tallies: list[Tally] = []
    status = 0
    try:
        for tally in Campaign(seeds, jobs=options.jobs, until_caught=options.until_caught).run(names):
            _print(str(tally))
            tallies.append(tally)
    except KeyboardInterrupt:
        _print(f"stopped; {len(names) - len(tallies)} mutations not measured")
        status = _STOPPED
    if options.results is not None:
        results = save_results(options.results, tallies)
        if options.table is not None:
            options.table.write_text(with_table(options.table.read_text(), results))
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


class _Summary:
    """Collects the reports of all runs and prints the result."""

    def __init__(self, options: argparse.Namespace, plan: Plan) -> None:
        self._mutation: str | None = options.mutation
        self._plan = plan
        self._failures: list[int] = []
        self._faults: Counter[str] = Counter()
        self._changes: Counter[str] = Counter()
        self._virtual_s = 0.0
        self._checked: Counter[str] = Counter()
        self._excused: Counter[str] = Counter()
        self._runs = 0

    def run(self, reports: Iterable[Report], total: int) -> int:
        progress = Progress(total, time.monotonic())
        was_stopped = False
        try:
            for report in reports:
                self._take(report)
                line = progress.line(self._runs, len(self._failures), time.monotonic(), time.time())
                if line is not None:
                    _print(line)
        except KeyboardInterrupt:
            was_stopped = True
            _print(f"stopped; {total - self._runs} seeds not run")
        took_s = max(progress.took_s(time.monotonic()), 1e-9)
        _print(
            f"{self._runs} seeds, {len(self._failures)} failed: {self._virtual_s / 3600:.2f} simulated hours in "
            f"{took_s:.1f} s ({self._virtual_s / took_s:.0f} times as fast)"
        )
        _print(f"judged: {_listed(self._checked)}")
        _print(f"excused: {', '.join(self._part_excused(kind) for kind in (_RECORDS, _COMMITS))}")
        _print(f"faults, {self._faults.total()}: {_listed(self._faults)}")
        if self._changes:
            _print(f"changes: {_listed(self._changes)}")
        if self._mutation is not None:
            _print(f"{self._mutation}: {'caught' if self._failures else 'NOT caught'}")
            return 0 if self._failures else 1
        if was_stopped:
            return _STOPPED
        return 1 if self._failures else 0

    def _take(self, report: Report) -> None:
        self._runs += 1
        self._faults += report.faults
        self._virtual_s += report.virtual_s
        self._changes += report.changes
        self._checked += Counter(
            {
                _RECORDS: report.acknowledged - report.excused,
                _COMMITS: report.commits - report.excused_commits,
                "reads": report.read,
                "checks of invariants": report.checks,
            }
        )
        self._excused += Counter({_RECORDS: report.excused, _COMMITS: report.excused_commits})
        if report.problem:
            self._failures.append(report.seed)
            if len(self._failures) <= _FAILURES_SHOWN:
                self._print_failure(report)

    def _part_excused(self, kind: str) -> str:
        excused = self._excused[kind]
        return f"{excused} {kind} ({100 * excused / max(1, excused + self._checked[kind]):.1f} %)"

    def _print_failure(self, report: Report) -> None:
        options = f"--mutation {self._mutation} " if self._mutation else ""
        options += f"--brokers {self._plan.brokers} "
        if self._plan.schedule is not None:
            options += f"--schedule '{report.schedule}' "
        _print("\n".join(report.last_lines))
        _print(f"seed {report.seed} FAILED: {report.problem}")
        _print(f"  trace {report.trace_hash}; faults: {report.schedule or 'none'}")
        _print(f"  repeat: python -m penstock.testing.simulation {options}--seed {report.seed}")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _usage_error(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 2


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may have set it to be ignored
    sys.exit(main())
