"""What a campaign of many seeds has shown: printed at its end, kept in a file, and a section of the documentation.

The section is generated from the file, which has the commit and the date of the run, so its figures are never older
than what it says.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.testing.simulation.run import Report

RECORDS: Final = "acknowledged records"
COMMITS: Final = "committed offsets"
READS: Final = "reads"
STARTS: Final = "starts of members"
FINAL_COMMITS: Final = "last committed offsets"
CHECKS: Final = "checks of invariants"
_EXCUSABLE: Final = (RECORDS, COMMITS, READS, STARTS, FINAL_COMMITS)
_BEGINS: Final = "<!-- campaign: written by `python -m penstock.testing.simulation --keep` -->"
_ENDS: Final = "<!-- end of campaign -->"
_COLUMNS: Final = 2
_SOURCES: Final = (".py", ".pyx", ".pxi")
_NOT_SIMULATED: Final = frozenset({"activity", "cli", "console", "mirror", "registry", "spark"})
"""Packages that no run loads: changing them changes no seed."""
_FAILURES_LISTED: Final = 20


@dataclass(slots=True)
class Summary:
    """The sums over all reports."""

    seeds: int = 0
    failures: list[int] = field(default_factory=list)
    virtual_s: float = 0.0
    judged: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)

    def take(self, report: Report) -> None:
        self.seeds += 1
        self.virtual_s += report.virtual_s
        self.faults += report.faults
        self.changes += report.changes
        excused = {
            RECORDS: report.excused,
            COMMITS: report.excused_commits,
            READS: report.excused_reads,
            STARTS: report.excused_starts,
            FINAL_COMMITS: report.excused_final_commits,
        }
        totals = {
            RECORDS: report.acknowledged,
            COMMITS: report.commits,
            READS: report.read,
            STARTS: report.starts,
            FINAL_COMMITS: report.final_commits,
        }
        self.excused += Counter(excused)
        self.judged += Counter({kind: total - excused[kind] for kind, total in totals.items()})
        self.judged[CHECKS] += report.checks
        if report.problem:
            self.failures.append(report.seed)

    def lines(self, took_s: float) -> list[str]:
        """To print."""
        return [
            f"{self.seeds} seeds, {len(self.failures)} failed: {self.virtual_s / 3600:.2f} simulated hours in "
            f"{took_s:.1f} s ({self.virtual_s / took_s:.0f} times as fast)",
            f"judged: {listed(self.judged)}",
            "excused: " + ", ".join(_part(kind, self.judged[kind], self.excused[kind]) for kind in _EXCUSABLE),
            f"faults, {self.faults.total()}: {listed(self.faults)}",
            *([f"changes: {listed(self.changes)}"] if self.changes else []),
        ]

    def as_json(self, first_seed: int, brokers: int, took_s: float) -> dict[str, Any]:
        """To keep."""
        return {
            "first_seed": first_seed,
            "seeds": self.seeds,
            "brokers": brokers,
            **origin(),
            "took_s": round(took_s, 1),
            "simulated_s": round(self.virtual_s, 1),
            "failures": self.failures,
            "judged": dict(sorted(self.judged.items())),
            "excused": {kind: self.excused[kind] for kind in sorted(_EXCUSABLE)},
            "faults": dict(self.faults.most_common()),
            "changes": dict(sorted(self.changes.items())),
        }


def _part(kind: str, judged: int, excused: int) -> str:
    return f"{excused:,} {kind} ({100 * excused / max(1, excused + judged):.2g} %)"


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def origin() -> dict[str, Any]:
    """Where figures come from: commit, whether the sources differ from it, date, and a digest of the sources."""
    return {
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "is_dirty": bool(_git("status", "--porcelain", "--", ":/src")),
        "date": datetime.now(UTC).date().isoformat(),
        "code": code_digest(),
    }


def code_digest() -> str:
    """Of the sources that a seed's run depends on."""
    root, digest = Path(penstock.__file__).parent, hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in _SOURCES):
        name, content = path.relative_to(root), path.read_bytes()
        if name.parts[0] not in _NOT_SIMULATED:
            digest.update(f"{name.as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


# --- the kept file and its section


def keep(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def read_kept(path: Path) -> dict[str, Any] | None:
    return dict(json.loads(path.read_text())) if path.exists() else None


def section(content: Mapping[str, Any] | None) -> str:
    """What the documentation says about the kept campaign."""
    if content is None:
        return "No campaign is kept."
    judged, excused = Counter(content["judged"]), Counter(content["excused"])
    last = content["first_seed"] + content["seeds"] - 1
    dirty = " with changes" if content["is_dirty"] else ""
    failures = content["failures"]
    shown = ", ".join(map(str, failures[:_FAILURES_LISTED])) + (", …" if len(failures) > _FAILURES_LISTED else "")
    faults: Mapping[str, int] = content["faults"]
    return "\n".join(
        [
            f"The kept campaign ran {content['seeds']:,} seeds ({content['first_seed']} to {last}) with "
            f"{content['brokers']} brokers on {content['date']} at commit `{content['commit'][:10]}`{dirty}: "
            f"{content['simulated_s'] / 3600:.1f} simulated hours in {content['took_s'] / 60:.0f} minutes. "
            + (f"{len(failures)} seeds failed: {shown}." if failures else "No seed failed."),
            "",
            "| what | judged | excused |",
            "|---|---:|---:|",
            *(
                f"| {kind} | {judged[kind]:,} | {_percentage(judged[kind], excused[kind]) if kind in excused else ''} |"
                for kind in (*_EXCUSABLE, CHECKS)
            ),
            "",
            f"{sum(faults.values()):,} faults:",
            "",
            *_in_columns([(f"`{kind}`", f"{count:,}") for kind, count in faults.items()]),
        ]
    )


def _percentage(judged: int, excused: int) -> str:
    return f"{excused:,} ({100 * excused / max(1, excused + judged):.2g} %)"


def _in_columns(cells: list[tuple[str, str]]) -> list[str]:
    rows = [cells[start : start + _COLUMNS] for start in range(0, len(cells), _COLUMNS)]
    padded = [[*row, *[("", "")] * (_COLUMNS - len(row))] for row in rows]
    return [
        "| " + " | | ".join(["fault | times"] * _COLUMNS) + " |",
        "|" + "---|" * (3 * _COLUMNS - 1),
        *("| " + " | | ".join(f"{kind} | {count}" for kind, count in row) + " |" for row in padded),
    ]


def with_section(document: str, content: Mapping[str, Any] | None) -> str:
    """The document with the section between its two markers. Raises ValueError without markers."""
    return with_block(document, _BEGINS, section(content), _ENDS)


def with_block(document: str, begins: str, text: str, ends: str) -> str:
    """The document with other text between two markers. Raises ValueError without markers."""
    before, found, rest = document.partition(begins)
    _, closed, after = rest.partition(ends)
    if not found or not closed:
        raise ValueError(f"the document has no place for this; mark it with {begins} and {ends}")
    return f"{before}{begins}\n{text}\n{ends}{after}"
