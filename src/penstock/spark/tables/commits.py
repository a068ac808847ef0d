"""What a commit says about itself, so that a table's own log is its only bookkeeping.

Noun: `CommitNote`, the offsets that a commit covers and how many records it took, in the commit's custom metadata; and
application transactions, which Delta keeps for good: where each partition begins and goes on.

    penstock:next:<topic id>:<partition>    the offset with which the next load begins
    penstock:first:<topic id>:<partition>   the first offset that was ever loaded
    penstock:dead                           how many commits had something for the dead letters

Rule: notes are for people and audits, and old ones go when Delta cleans its log; what a load must know to go on is in
the transactions. Topic ids are in them, so a topic that was deleted and made again is another topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.spark.tables.ranges import Span, from_json, to_json, total, union

KEY: Final = "penstock"
DEAD_SEQUENCE: Final = "penstock:dead"
DEAD_APPLIED: Final = "penstock:applied"

LOAD: Final = "load"
BACKFILL: Final = "backfill"
REPLAY: Final = "replay-dead"
COMPACT: Final = "compact"
EVOLVE: Final = "evolve"
EXPIRE: Final = "expire"


def next_id(topic_id: str, partition: int) -> str:
    return f"penstock:next:{topic_id}:{partition}"


def first_id(topic_id: str, partition: int) -> str:
    return f"penstock:first:{topic_id}:{partition}"


@dataclass(frozen=True)
class DataFile:
    """A Parquet file that lies in a table's folder and waits for a commit; or is named by one."""

    path: str
    size: int
    rows: int
    partition_values: Mapping[str, str | None]
    stats: str
    """Delta's statistics, as JSON."""

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path, "size": self.size, "rows": self.rows,
            "partitionValues": dict(self.partition_values), "stats": self.stats,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DataFile:
        return cls(document["path"], document["size"], document["rows"], document["partitionValues"], document["stats"])


@dataclass(frozen=True)
class Counts:
    """What became of the records of some offsets."""

    records: int = 0
    landed: int = 0
    dead: int = 0
    dropped: int = 0
    late: int = 0
    deleted: int = 0
    """Tombstones of an upsert table."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.records + other.records, self.landed + other.landed, self.dead + other.dead,
            self.dropped + other.dropped, self.late + other.late, self.deleted + other.deleted,
        )  # fmt: skip

    @property
    def adds_up(self) -> bool:
        """Every record that was read is somewhere."""
        return self.records == self.landed + self.dead + self.dropped + self.deleted


@dataclass(frozen=True)
class CommitNote:
    """`dead_files` and `dead_replaces` are the dead letters' part of the same commit, carried out right after it."""

    kind: str
    topic: str = ""
    topic_id: str = ""
    spans: Sequence[Span] = ()
    counts: Counts = field(default_factory=Counts)
    dead_sequence: int = 0
    dead_files: Sequence[DataFile] = ()
    dead_replaces: Sequence[Span] = ()

    @property
    def gaps(self) -> int:
        """Offsets of the spans that had no record: transaction markers, or compacted away."""
        return total(union(self.spans)) - self.counts.records

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"kind": self.kind}
        if self.spans:
            document |= {
                "topic": self.topic,
                "topicId": self.topic_id,
                "offsets": to_json(self.spans),
                "counts": {name: value for name, value in vars(self.counts).items() if value},
            }
        if self.dead_sequence:
            document |= {
                "deadSequence": self.dead_sequence,
                "deadFiles": [one.to_json() for one in self.dead_files],
                "deadReplaces": to_json(self.dead_replaces),
            }
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CommitNote:
        return cls(
            kind=document["kind"],
            topic=document.get("topic", ""),
            topic_id=document.get("topicId", ""),
            spans=from_json(document.get("offsets", {})),
            counts=Counts(**document.get("counts", {})),
            dead_sequence=document.get("deadSequence", 0),
            dead_files=[DataFile.from_json(one) for one in document.get("deadFiles", ())],
            dead_replaces=from_json(document.get("deadReplaces", {})),
        )
