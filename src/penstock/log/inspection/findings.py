"""What a verification finds, and what to do about it.

Noun: a finding is one place in one file: what is wrong there, how far it reaches, and what to do next.

Rule: `damage` is bytes that are not what was written, `format` is data that is whole but not of the format that the
log holds, and a `note` is worth knowing and no fault. A report is sound when it holds nothing but notes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.records import DEFAULT_DECOMPRESSED_LIMIT, CorruptBatch, RecordError


class Severity(StrEnum):
    DAMAGE = "damage"
    FORMAT = "format"
    NOTE = "note"


class Kind(StrEnum):
    """What a finding is about, for programs."""

    BATCH = "batch"
    RECORDS = "records"
    OFFSETS = "offsets"
    LEADER_EPOCH = "leader-epoch"
    MAGIC = "magic"
    OFFSET_INDEX = "offset-index"
    TIME_INDEX = "time-index"
    TRANSACTION_INDEX = "transaction-index"
    SNAPSHOT = "snapshot"
    CHECKPOINT = "checkpoint"
    GAP = "gap"
    LEFTOVER = "leftover"
    UNREADABLE = "unreadable"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Finding:
    """`position` and `size` in bytes of the file; `offset` the first that is concerned; `resumes` the offset at which
    the log is sound again, if it is.
    """

    severity: Severity
    kind: Kind
    path: str
    reason: str
    advice: str = ""
    position: int | None = None
    size: int | None = None
    offset: int | None = None
    resumes: int | None = None


@dataclass(slots=True)
class Tally:
    """How much was looked at, and how much of it was sound."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    sound_bytes: int = 0
    first_offset: int | None = None
    next_offset: int | None = None


@dataclass(slots=True)
class Report:
    """What was found in one partition, one file, or in a data folder beside its partitions."""

    path: str
    findings: list[Finding] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def is_sound(self) -> bool:
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Options:
    """`deep`: decode every record, decompressing up to `limit_bytes` a batch. `on_bytes` hears of progress; `pause`
    lets a moment pass for a write that is under way.
    """

    deep: bool = False
    limit_bytes: int = DEFAULT_DECOMPRESSED_LIMIT
    on_bytes: Callable[[int], None] | None = None
    pause: Callable[[], None] | None = None


def unreadable(path: str, error: OSError) -> Finding:
    """What the disk or the operating system refuses; a file that has gone is no fault of its folder."""
    if isinstance(error, FileNotFoundError):
        return Finding(Severity.NOTE, Kind.CHANGED, path, "removed while the folder was read")
    advice = "Run it as the broker's user." if isinstance(error, PermissionError) else "The disk may be failing."
    return Finding(Severity.DAMAGE, Kind.UNREADABLE, path, error.strerror or str(error), advice)


def reason_of(error: RecordError) -> str:
    """What is wrong with a batch's records, without the place, which the caller knows better."""
    return error.reason if isinstance(error, CorruptBatch) else str(error)


REPLACE_FOLDER = "With replicas: stop the broker, delete the partition's folder, start it: it is copied anew."


def batch_advice(*, is_last_segment: bool, at_end: bool, offset: int, resumes: int | None) -> str:
    """What to do about a damaged stretch of a log."""
    if is_last_segment:
        again = "If a broker is writing here, verify once more. " if at_end else ""
        behind = "" if resumes is None else ", and what is behind it goes too"
        return f"{again}The broker cuts the log here at its next unclean start{behind}. {REPLACE_FOLDER}"
    around = "" if resumes is None else f" Without: read up to offset {offset} and go on from {resumes}."
    return f"Who reads from offset {offset} gets an error. {REPLACE_FOLDER}{around}"


def order_advice(*, is_last_segment: bool) -> str:
    """What to do about offsets or leader epochs that fall: checksums do not cover these."""
    cut = "The broker cuts the log here at its next unclean start. " if is_last_segment else ""
    return f"{cut}One of the two neighbours was damaged or written twice. {REPLACE_FOLDER}"


INDEX_ADVICE = (
    "No record is lost. If a broker is at work here, verify once more; else stop it and delete this index: it is "
    "rebuilt from the log."
)
TRANSACTION_INDEX_ADVICE = (
    "Readers of committed records may see aborted ones. Stop the broker, delete this file and the folder's .snapshot "
    "files: all are rebuilt from the log at the next start."
)
MAGIC_ADVICE = (
    "This is not damage: older Kafka wrote it. Penstock keeps magic 2 only, and would cut it off: do not start a "
    "broker on it. `penstock log dump --records` shows it; to keep it, copy it with a consumer and a producer."
)
