"""Verification of a partition's folder, one of its files, or a whole log directory.

Nothing is changed or locked, so a broker may be running. Indexes are opened before their log, because a broker writes
them in the opposite order. Everything is read to its end: damage in one place does not hide damage in another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from penstock.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    CheckpointError,
    parent_folder,
    read_epochs,
    read_offsets,
)
from penstock.log.inspection.log_files import (
    PathKind,
    ReadOnlyFiles,
    base_offset_of,
    first_offset,
    is_inactive_folder,
    name_of,
    partition_folders,
    split_name,
)
from penstock.log.inspection.segment_check import (
    Finding,
    Kind,
    Options,
    Report,
    SegmentCheck,
    Severity,
    unreadable,
    verify_aborted,
)
from penstock.log.partition_folder import CLEANED, DELETED, SPARE, SWAP, segment_files
from penstock.log.producer_state import ProducerSnapshot, SnapshotError, decode_snapshot, snapshot_offset
from penstock.log.segment import LOG_SUFFIX, segment_name
from penstock.runtime.files import Files

MAX_SNAPSHOT_BYTES: Final = 256 * 1024 * 1024

_OFFSET_CHECKPOINTS: Final = (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, CLEANER_FILE)


_LEFTOVERS: Final = {
    CLEANED: "unfinished compaction: removed at the next unclean start",
    SWAP: "finished compaction that is not in place yet: completed at the next unclean start",
    DELETED: "deleted, waiting for removal",
    SPARE: "empty segment of a log that was being emptied: removed at the next unclean start",
}


def verify(files: Files, path: str, kind: PathKind, options: Options) -> Iterator[Report]:
    """A report for each partition at the path, or for the file."""
    if kind is PathKind.LOG_DIRECTORY:
        yield from verify_log_directory(files, path, options)
    elif kind is PathKind.PARTITION:
        yield verify_partition(files, path, options)
    else:
        yield verify_file(ReadOnlyFiles(files), path, kind, options)


def verify_file(files: Files, path: str, kind: PathKind, options: Options) -> Report:
    """Verify one file: a `.log` with its indexes, or an index with its log."""
    report = Report(path)
    stem, _, suffix = split_name(path)
    log = stem + LOG_SUFFIX + suffix
    base_offset = base_offset_of(path)
    if base_offset is None and files.exists(log):
        with closing(files.open(log)) as file:
            base_offset = first_offset(file)
    if kind is PathKind.SNAPSHOT:
        report.findings += verify_snapshot(files, path)
    elif kind is PathKind.TRANSACTION_INDEX:
        report.findings += verify_aborted(files, path, base_offset or 0, None)
    elif kind is PathKind.LOG or files.exists(log):
        check = SegmentCheck(files, parent_folder(path), options, report.tally)
        found = check.run(base_offset or 0, is_last=True, stem=stem, suffix=suffix, expects_indexes=False)
        report.findings += [finding for finding in found if kind is PathKind.LOG or finding.path == path]
    else:
        report.findings.append(_leftover(path, "its log is missing, so there is nothing to compare it with"))
    return report


def verify_partition(files: Files, folder: str, options: Options) -> Report:
    """Verify a partition's folder."""
    report = Report(folder)
    try:
        for finding in _partition(ReadOnlyFiles(files), folder, options, report):
            report.findings.append(finding)
    except OSError as error:  # the folder itself: deleted meanwhile, or not readable
        report.findings.append(unreadable(folder, error))
    return report


def verify_log_directory(files: Files, path: str, options: Options) -> Iterator[Report]:
    """A report for each partition, then one for the other files."""
    for folder in partition_folders(files, path):
        yield verify_partition(files, folder, options)
    beside = Report(path)
    beside.findings += _beside(ReadOnlyFiles(files), path)
    yield beside


def _partition(files: Files, folder: str, options: Options, report: Report) -> Iterator[Finding]:
    names = sorted(files.list_folder(folder))
    found = segment_files(names)
    bases = sorted(base for base, suffixes in found.items() if LOG_SUFFIX in suffixes)
    check = SegmentCheck(files, folder, options, report.tally)
    for base in bases:
        yield from check.run(base, is_last=base == bases[-1])
    for base, suffixes in sorted(found.items()):
        if LOG_SUFFIX not in suffixes:
            for suffix in sorted(suffixes):
                yield _leftover(f"{folder}/{segment_name(base)}{suffix}", "index without a log: removed at startup")
    for name in names:
        yield from _companion(files, folder, name, report.tally.next_offset)


def _companion(files: Files, folder: str, name: str, next_offset: int | None) -> Iterator[Finding]:
    path = f"{folder}/{name}"
    for suffix, meaning in _LEFTOVERS.items():
        if name.endswith(suffix) and segment_files([name.removesuffix(suffix)]):
            yield _leftover(path, meaning)
    offset = snapshot_offset(name)
    if offset is not None:
        yield from verify_snapshot(files, path)
        if next_offset is not None and offset > next_offset:
            yield _leftover(path, f"snapshot beyond the log's end at {next_offset}: removed at startup")
    elif name == LEADER_EPOCH_FILE:
        yield from verify_epochs(files, path)


def _leftover(path: str, reason: str) -> Finding:
    return Finding(Severity.NOTE, Kind.LEFTOVER, path, reason)


def read_snapshot(files: Files, path: str) -> ProducerSnapshot:
    """The producer snapshot in a file. SnapshotError if it is damaged."""
    with closing(files.open(path, writable=False)) as file:
        size = file.size()
        if size > MAX_SNAPSHOT_BYTES:
            raise SnapshotError(f"{size} bytes exceed the limit of {MAX_SNAPSHOT_BYTES}")
        return decode_snapshot(file.read_at(0, size))


def verify_snapshot(files: Files, path: str) -> Iterator[Finding]:
    """Check that a producer snapshot can be read."""
    advice = "Nothing is lost and nothing to do: the broker uses an older snapshot, or reads the log."
    try:
        read_snapshot(files, path)
    except SnapshotError as error:
        yield Finding(Severity.DAMAGE, Kind.SNAPSHOT, path, str(error), advice, offset=snapshot_offset(name_of(path)))
    except OSError as error:
        yield unreadable(path, error)


def verify_epochs(files: Files, path: str) -> Iterator[Finding]:
    """Check that a partition's leader epochs can be read."""
    advice = "Nothing is lost and nothing to do: the broker rebuilds it from the log at its next start."
    try:
        read_epochs(files, path)
    except CheckpointError as error:
        yield Finding(Severity.DAMAGE, Kind.CHECKPOINT, path, error.reason, advice)
    except OSError as error:
        yield unreadable(path, error)


def _beside(files: Files, path: str) -> Iterator[Finding]:
    advice = "Nothing to do: the broker uses safe defaults, takes longer to start, and writes it again."
    for name in sorted(files.list_folder(path)):
        inside = f"{path}/{name}"
        if name in _OFFSET_CHECKPOINTS:
            try:
                read_offsets(files, inside)
            except CheckpointError as error:
                yield Finding(Severity.DAMAGE, Kind.CHECKPOINT, inside, error.reason, advice)
            except OSError as error:
                yield unreadable(inside, error)
        elif is_inactive_folder(name):
            yield _leftover(inside, "partition that is being deleted or moved; not verified")
