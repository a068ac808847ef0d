"""What a load may take at once, and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.spark.tables.commits import LOAD, CommitNote, Counts
from penstock.spark.tables.ranges import Span, union


@dataclass(frozen=True)
class Limits:
    """How much at once."""

    commit_records: int = 10_000_000
    task_records: int = 1_000_000


@dataclass
class LoadReport:
    """What a load did."""

    counts: Counts = field(default_factory=Counts)
    spans: list[Span] = field(default_factory=list)
    replaced: list[Span] = field(default_factory=list)
    lost: list[Span] = field(default_factory=list)
    added_columns: list[str] = field(default_factory=list)
    commits: int = 0
    version: int = 0

    def absorb(self, note: CommitNote, version: int) -> None:
        self.counts += note.counts
        into = self.spans if note.kind == LOAD else self.replaced
        into[:] = union([*into, *note.spans])
        self.commits += 1
        self.version = version
