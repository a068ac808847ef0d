"""Results of benchmarks: what a run measured, kept as `benchmarks/results/<name>.json`.

`docs/benchmarks.md`, its pictures and the README's figures are generated from these files (`make bench ARGS=page`), so
every figure that a reader sees has a file with its commit, date, machine and command. A benchmark uses it like this:

    def main(arguments: Sequence[str] = ()) -> None:
        parser = results.parser("clients", "Our clients beside others.")
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--folder", type=Path, default=CACHE)
        options = parser.parse_args(arguments)
        recording = results.begin("clients", parser, options, arguments, irrelevant=("folder",))
        ...                                          # measure; the load before the run was taken by begin()
        if not kafka_was_there:
            recording.lacks("Apache Kafka 4.3 is not installed")
        recording.keep(rows, notes=["acks=all"])     # prints the tables and writes the file

with a row for each measured quantity:

    Row(
        "send_many, 100 B", "M records/s", Better.HIGHER,
        {"Penstock": Figure.of([4.1, 4.4, 4.2]), "confluent-kafka": Figure.of([1.7, 1.8, 1.8])},
        subject="Penstock", peer="confluent-kafka", goal=3.0, table="Producing, our broker",
    )

The ratio of a row is always subject / peer, also where lower is better; then the goal is an upper bound (0.6: at most
0.6 of the peer's CPU). Without a peer the goal bounds the subject's figure itself. Rows with the same `table` stand in
one table, whose columns are the contenders: keep their names few, and put the method and the size into the work.
Figures are written as they were measured; only the page rounds them. `details` holds what a picture needs beyond the
rows. A benchmark that draws pictures of its own exports a function `pictures(result: Result) -> dict[str, str]`, from
file names under docs/images/benchmarks to SVG; without it the page draws the ratios (`ratio_chart.ratios`).

A run replaces the kept result only if it is complete: default options, every peer present, nothing interrupted. Any
other run is written to the system's temporary folder, unless --keep-result is given; then the page says what it lacks.
A variant that is a result of its own (`faults --kind kafka`) has a file of its own: `variant="kafka"`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks.measured_code import MeasuredCode

ROOT: Final = Path(__file__).resolve().parents[1]
KEPT: Path = ROOT / "benchmarks" / "results"
PARTIAL: Path = Path(tempfile.gettempdir()) / "penstock-benchmarks"
QUIET_LOAD: Final = 0.5
_SETTLE_S, _LOOK_S = 300.0, 2.0
_MEASURED_CODE: Final = ("src", "benchmarks", ":!benchmarks/results")
_RULE: Final = (
    "The result is kept in benchmarks/results/ if the run is complete: default options and every peer present. "
    "Otherwise it is written to the system's temporary folder, unless --keep-result is given."
)
_NUMBERS: Final = re.compile(r"\[\n\s+([-+\d.e,\s]+?)\n\s+\]")
T = TypeVar("T")


class Better(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True)
class Figure:
    """What one contender reached: the median, or the only value, and the rounds that it comes from."""

    value: float
    rounds: tuple[float, ...] = ()

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Figure:
        return cls(statistics.median(rounds), tuple(rounds))


@dataclass(frozen=True)
class Row:
    """One measured quantity of every contender. `better` is None for a quantity that only describes the work."""

    work: str
    unit: str
    better: Better | None
    figures: Mapping[str, Figure]
    subject: str
    peer: str | None = None
    goal: float | None = None
    table: str = ""

    def ratio(self, contender: str | None = None) -> float | None:
        """A contender's figure, by default the subject's, to the peer's; None if one of them was not measured."""
        mine = self.figures.get(self.subject if contender is None else contender)
        theirs = None if self.peer is None else self.figures.get(self.peer)
        if mine is None or theirs is None or theirs.value <= 0:
            return None
        return mine.value / theirs.value

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached; None without a goal or without a figure to compare with it."""
        return None if self.goal is None else self._reaches(self.goal)

    @property
    def is_losing(self) -> bool:
        """Whether the goal is missed or, without a goal, the peer is better."""
        if self.goal is None and self.peer is None:
            return False
        return self._reaches(1.0 if self.goal is None else self.goal) is False

    @property
    def times_better(self) -> float | None:
        """The ratio turned so that more is better, which is how it is drawn."""
        return self.turned(self.ratio())

    def turned(self, ratio: float | None) -> float | None:
        """A ratio of this row as "times better"."""
        if not ratio or ratio <= 0 or self.better is None:
            return None
        return ratio if self.better is Better.HIGHER else 1 / ratio

    def _reaches(self, bound: float) -> bool | None:
        mine = self.figures.get(self.subject)
        figure = self.ratio() if self.peer is not None else None if mine is None else mine.value
        if figure is None or self.better is None:
            return None
        return figure >= bound if self.better is Better.HIGHER else figure <= bound


@dataclass(frozen=True)
class Machine:
    cores: int
    memory_bytes: int
    kernel: str
    python: str

    @classmethod
    def here(cls) -> Machine:
        return cls(
            os.cpu_count() or 1,
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            f"{platform.system()} {platform.release()}",
            platform.python_version(),
        )

    def __str__(self) -> str:
        return f"{self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB, {self.kernel}, Python {self.python}"


@dataclass(frozen=True)
class Result:
    """A kept file. `partial` says what the run lacks, `doubts` what the benchmark itself found odd about it."""

    benchmark: str
    variant: str | None
    command: str
    commit: str
    is_dirty: bool
    date: str
    machine: Machine
    load_before: float
    settings: Mapping[str, Any]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    code: MeasuredCode | None = None
    """None in a result of the time before it was kept."""

    @property
    def name(self) -> str:
        return self.benchmark if self.variant is None else f"{self.benchmark}-{self.variant}"

    @property
    def cautions(self) -> list[str]:
        """Why the figures may be worth less than they seem."""
        found = [f"partial run: {reason}" for reason in self.partial]
        if self.load_before > QUIET_LOAD:
            found.append(f"the machine was busy before the run (load {self.load_before:.1f})")
        if self.is_dirty:
            found.append("measured with uncommitted changes on top of its commit")
        return [*found, *self.doubts]


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """For the options of a benchmark: it has --keep-result, and says in --help when a result is kept."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description, epilog=_RULE)
    made.add_argument("--keep-result", action="store_true", help="keep the result of a partial run as well")
    return made


class Recording:
    """A run under way: what is known before it begins, and what makes it partial."""

    def __init__(self, benchmark: str, variant: str | None, command: str, settings: Mapping[str, Any]) -> None:
        self.benchmark = benchmark
        self.variant = variant
        self.load_before = os.getloadavg()[0]
        self._command = command
        self._settings = dict(settings)
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self._commit, self._is_dirty = checked_out()
        self._measured = MeasuredCode.here(benchmark, ROOT)
        self._partial: list[str] = []
        self._is_kept_anyway = bool(self._settings.pop("keep_result", False))

    @property
    def partial(self) -> tuple[str, ...]:
        """Why the run is not complete."""
        return tuple(self._partial)

    def lacks(self, what: str) -> None:
        """The run lacks something that a complete one has: "Apache Kafka 4.3 is not installed"."""
        self._partial.append(what)

    def keep(
        self,
        rows: Sequence[Row],
        *,
        notes: Sequence[str] = (),
        doubts: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        details: Mapping[str, Any] | None = None,
        is_shown: bool = True,
    ) -> Path:
        """Print the tables and write the file; where it was written. `settings` come on top of the options."""
        if not rows:
            raise ValueError(f"{self.benchmark}: nothing was measured, so there is no result to keep")
        result = Result(
            self.benchmark,
            self.variant,
            self._command,
            self._commit,
            self._is_dirty,
            self._date,
            Machine.here(),
            self.load_before,
            {**self._settings, **(settings or {})},
            tuple(rows),
            tuple(notes),
            self.partial,
            tuple(doubts),
            details or {},
            self._measured,
        )
        if is_shown:
            show(result)
        is_kept = self._is_kept_anyway or not self._partial
        path = (KEPT if is_kept else PARTIAL) / f"{result.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_json(result))
        if is_kept:
            print(
                f"\nkept as {path.parent.parent.name}/{path.parent.name}/{path.name}; `make bench ARGS=page` shows it"
            )
        else:
            print(f"\nnot kept, as the run is partial ({'; '.join(self._partial)}); written to {path}")
        return path


def begin(
    benchmark: str,
    options_parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    arguments: Sequence[str],
    *,
    irrelevant: Collection[str] = (),
    variant: str | None = None,
) -> Recording:
    """Start recording, before anything is measured: takes the date, the commit and the load of the machine.

    A run whose result can be kept first waits until the machine is quiet.
    `irrelevant` names the options that do not change what is measured (`folder`) or that select the variant.
    """
    given = {name: _plain(value) for name, value in vars(options).items() if name not in irrelevant}
    changed = [
        action.option_strings[0] if action.option_strings else action.dest
        for action in options_parser._actions
        if action.dest in given and action.dest != "keep_result" and given[action.dest] != _plain(action.default)
    ]
    if not changed or given.get("keep_result"):
        settle()
    recording = Recording(benchmark, variant, command(benchmark, arguments), given)
    if changed:
        recording.lacks(f"not the default of {', '.join(changed)}")
    return recording


def settle() -> None:
    """Wait until the load is low, for some minutes at most. If it stays, the result says that the machine was busy."""
    until_s = time.monotonic() + _SETTLE_S
    is_announced = False
    while (load := os.getloadavg()[0]) > QUIET_LOAD and time.monotonic() < until_s:
        if not is_announced:
            print(f"load {load:.1f}: waiting up to {_SETTLE_S:.0f} s for {QUIET_LOAD}", flush=True)
            is_announced = True
        time.sleep(_LOOK_S)


def begin_plain(benchmark: str, description: str, arguments: Sequence[str]) -> Recording:
    """Start recording a benchmark that has no options of its own."""
    plain = parser(benchmark, description)
    return begin(benchmark, plain, plain.parse_args(arguments), arguments)


def command(benchmark: str, arguments: Sequence[str]) -> str:
    """What repeats the run."""
    words = shlex.join([benchmark, *arguments])
    return f"make bench ARGS={words}" if not arguments else f'make bench ARGS="{words}"'


def as_json(result: Result) -> str:
    rows = [
        {
            "table": row.table,
            "work": row.work,
            "unit": row.unit,
            "better": row.better,
            "subject": row.subject,
            "peer": row.peer,
            "goal": row.goal,
            "ratio": row.ratio(),
            "is_met": row.is_met,
            "figures": [
                {
                    "contender": contender,
                    "value": figure.value,
                    "ratio": row.ratio(contender),
                    "rounds": list(figure.rounds),
                }
                for contender, figure in row.figures.items()
            ],
        }
        for row in result.rows
    ]
    content = {
        "name": result.name,
        "benchmark": result.benchmark,
        "variant": result.variant,
        "command": result.command,
        "commit": result.commit,
        "is_dirty": result.is_dirty,
        **({} if result.code is None else {"code": asdict(result.code)}),
        "date": result.date,
        "machine": asdict(result.machine),
        "load_before": result.load_before,
        "partial": list(result.partial),
        "doubts": list(result.doubts),
        "settings": dict(result.settings),
        "notes": list(result.notes),
        "rows": rows,
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    # Numbers of a list, and the details, stand on one line each: files stay short, and differences readable.
    text = _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    details = json.dumps(dict(result.details), ensure_ascii=False, allow_nan=False)
    return f'{text[:-2]},\n "details": {details}\n}}\n'


def read(path: Path) -> Result:
    content: dict[str, Any] = json.loads(path.read_text())
    rows = tuple(
        Row(
            row["work"],
            row["unit"],
            None if row["better"] is None else Better(row["better"]),
            {each["contender"]: Figure(each["value"], tuple(each["rounds"])) for each in row["figures"]},
            row["subject"],
            row["peer"],
            row["goal"],
            row["table"],
        )
        for row in content["rows"]
    )
    result = Result(
        content["benchmark"],
        content["variant"],
        content["command"],
        content["commit"],
        content["is_dirty"],
        content["date"],
        Machine(**content["machine"]),
        content["load_before"],
        content["settings"],
        rows,
        tuple(content["notes"]),
        tuple(content["partial"]),
        tuple(content["doubts"]),
        content["details"],
        MeasuredCode.read(content.get("code")),
    )
    if path.stem != result.name:
        raise ValueError(f"{path.name} holds the result of {result.name}")
    return result


def read_all(folder: Path | None = None) -> dict[str, Result]:
    """Every kept result, by its name."""
    return {path.stem: read(path) for path in sorted((folder or KEPT).glob("*.json"))}


def show(result: Result) -> None:
    """Print the tables, the notes and the cautions."""
    for title in dict.fromkeys(row.table for row in result.rows):
        rows = [row for row in result.rows if row.table == title]
        contenders = list(dict.fromkeys(name for row in rows for name in row.figures))
        lines = [_line(row, contenders) for row in rows]
        empty = {column for column in ("ratio", "goal", "met") if all(line[column] is None for line in lines)}
        _print_table(
            title or result.name, [{name: cell for name, cell in line.items() if name not in empty} for line in lines]
        )
    for note in result.notes:
        print(f"  {note}")
    for caution in result.cautions:
        print(f"CAUTION: {caution}")


def shown(figure: float) -> str:
    """Three digits that count."""
    return f"{figure:,.0f}" if abs(figure) >= 100 or figure == int(figure) else f"{figure:.3g}"


def bound(row: Row) -> str | None:
    """The goal as a reader sees it, "≥ 1"; None where there is nothing to compare with it."""
    if row.goal is None or row.is_met is None:
        return None
    return f"{'≥' if row.better is Better.HIGHER else '≤'} {row.goal:,g}"


def _line(row: Row, contenders: Sequence[str]) -> dict[str, Any]:
    line: dict[str, Any] = {"work": f"{row.work}, {row.unit}" if row.unit else row.work}
    for contender in contenders:
        found = row.figures.get(contender)
        line[contender] = None if found is None else shown(found.value)
    ratio = row.ratio()
    line["ratio"] = None if ratio is None else f"{ratio:.2f}"
    line["goal"] = bound(row)
    line["met"] = row.is_met
    return line


def _print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A plain table: the first column to the left, numbers to the right."""
    print(f"\n{title}")
    columns = list(rows[0])
    cells = [columns] + [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for number, line in enumerate(cells):
        text = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        print("  " + "  ".join(text))
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _plain(value: Any) -> Any:
    """An option's value as JSON has it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(each) for each in value]
    return value


def checked_out() -> tuple[str, bool]:
    """The commit that is checked out, and whether the code that is measured differs from it."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain", "--", *_MEASURED_CODE))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def in_turn(contenders: Sequence[T], number: int) -> list[T]:
    """The contenders in the order of a round: each round starts with another one."""
    first = number % len(contenders)
    return [*contenders[first:], *contenders[:first]]
