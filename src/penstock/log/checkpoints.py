"""Small files that must survive a crash: checkpoints in Kafka's text format, and the note of a failed sync.

A checkpoint is a version line "0", a line with the number of rows, then one row per line, values separated by a space:
`topic partition offset` (recovery point, high watermark, log start, cleaner) or `epoch startOffset` (leader epochs). It
is replaced as a whole: written to a temporary file, synced, renamed, folder synced. Anything else is `CheckpointError`.
Only one writer per path at a time, because the temporary file has a fixed name.

After a failed sync the kernel treats the pages as clean: readers see bytes that are on no disk, and the next sync
succeeds without them. `.sync-failed` tells the next process to rewrite what may not be durable into new files. It is
not synced itself: a power loss also removes the bytes that it warns about.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from penstock.log.errors import LogError
from penstock.runtime.files import Buffer, Files

RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE: Final = "replication-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
CLEANER_FILE: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
SYNC_FAILED_FILE: Final = ".sync-failed"

# 100,000 partitions with the longest topic names take 28 MB.
MAX_CHECKPOINT_BYTES: Final = 64 * 1024 * 1024

# Every row is a topic without a space and two numbers that are not negative.
_OFFSET_LINES: Final = re.compile(r"(?:[^\s]+ [0-9]+ [0-9]+(?:\n|\Z))*")
_VERSION: Final = "0"
_TEMPORARY_SUFFIX: Final = ".tmp"
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_PIECE_BYTES: Final = 1024 * 1024

TopicPartition: TypeAlias = tuple[str, int]


class CheckpointError(LogError):
    """The content of a checkpoint file contradicts its format."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"checkpoint {path}: {reason}")
        self.path = path
        self.reason = reason


def parent_folder(path: str) -> str:
    """The folder that holds `path`: "/data/t-0/x" is in "/data/t-0", "/x" in "/", "x" in "."."""
    folder, slash, _ = path.rpartition("/")
    return folder or slash or "."


def make_durable_folder(files: Files, folder: str) -> None:
    """Create a folder and its parents, each name durable in the folder above."""
    missing: list[str] = []
    level = folder
    while not files.exists(level) and parent_folder(level) != level:
        missing.append(level)
        level = parent_folder(level)
    files.make_folder(folder)
    for made in reversed(missing):
        files.sync_folder(parent_folder(made))


def atomic_write(files: Files, path: str, data: Buffer, *, sync: bool = True) -> None:
    """Replace the file at `path`. Readers, now or after a crash, see either the old or the new content.

    Without `sync` that holds if the process is killed, not if power fails.
    """
    temporary = path + _TEMPORARY_SUFFIX
    try:
        file = files.open(temporary, create=True)
        try:
            # A crash may have left a longer file.
            file.truncate(0)
            file.write_at(0, data)
            if sync:
                file.sync()
        finally:
            file.close()
        files.rename(temporary, path)
    except OSError:
        # On a full disk the half-written file would hold the last free bytes.
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    if sync:
        files.sync_folder(parent_folder(path))


def read_file(files: Files, path: str, max_bytes: int | None = None) -> bytes | None:
    """The content of a file, or its first `max_bytes`; None if it does not exist."""
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size() if max_bytes is None else max_bytes)
    finally:
        file.close()


# --------------------------------------------------------------------------------------------------------- checkpoints


def write_checkpoint(files: Files, path: str, rows: Iterable[Sequence[str | int]]) -> None:
    """Replace the checkpoint at `path`. CheckpointError for rows that could not be read back."""
    lines = []
    for row in rows:
        values = [str(value) for value in row]
        line = " ".join(values)
        if line.split() != values or not values or any(isinstance(value, int) and value < 0 for value in row):
            raise CheckpointError(path, f"row {row!r} has an empty or negative value, or a value with a space")
        lines.append(line)
    _write_lines(files, path, lines)


def _write_lines(files: Files, path: str, lines: Sequence[str]) -> None:
    data = "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise CheckpointError(path, f"{len(data)} bytes would exceed the limit of {MAX_CHECKPOINT_BYTES}")
    atomic_write(files, path, data)


def read_checkpoint(files: Files, path: str) -> list[list[str]]:
    """The rows of the checkpoint at `path`, each split into its values. FileNotFoundError, CheckpointError.

    An empty file has no rows: Kafka creates such files before it first writes them.
    """
    file = files.open(path, writable=False)
    try:
        size = file.size()
        if size > MAX_CHECKPOINT_BYTES:
            raise CheckpointError(path, f"{size} bytes exceed the limit of {MAX_CHECKPOINT_BYTES}")
        data = file.read_at(0, size)
    finally:
        file.close()
    return _parse(path, data) if data else []


def _parse(path: str, data: bytes) -> list[list[str]]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(path, "not UTF-8 text") from error
    lines = text.split("\n")
    if lines.pop() != "":
        raise CheckpointError(path, "the last line is incomplete")
    if lines[0] != _VERSION:
        raise CheckpointError(path, f"unknown version {lines[0][:40]!r}, expected {_VERSION!r}")
    if len(lines) < 2:
        raise CheckpointError(path, "the number of rows is missing")
    announced = _number(path, lines[1], _INT32_MAX)
    rows = [line.split() for line in lines[2:]]
    if len(rows) != announced:
        raise CheckpointError(path, f"{announced} rows announced, {len(rows)} found")
    return rows


def _number(path: str, text: str, maximum: int) -> int:
    # int() alone would accept "1_0", "+1" and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise CheckpointError(path, f"{text[:40]!r} is not a number")
    number = int(text)
    if number > maximum:
        raise CheckpointError(path, f"{number} exceeds {maximum}")
    return number


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint of `topic partition offset` rows."""
    # A broker with 10,000 partitions writes two of these every few seconds, on its event loop.
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    if _OFFSET_LINES.fullmatch("\n".join(lines)) is None:
        write_checkpoint(files, path, ((topic, partition, offset) for (topic, partition), offset in offsets.items()))
    else:
        _write_lines(files, path, lines)


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """The offset of each (topic, partition) of a checkpoint. FileNotFoundError, CheckpointError."""
    offsets: dict[TopicPartition, int] = {}
    for row in read_checkpoint(files, path):
        if len(row) != 3:
            raise CheckpointError(path, f"row of {len(row)} values, expected topic, partition and offset")
        key = (row[0], _number(path, row[1], _INT32_MAX))
        if key in offsets:
            raise CheckpointError(path, f"two rows for {key[0]}-{key[1]}")
        offsets[key] = _number(path, row[2], _INT64_MAX)
    return offsets


def write_epochs(files: Files, path: str, epochs: Iterable[tuple[int, int]]) -> None:
    """Replace a checkpoint of `epoch startOffset` rows."""
    write_checkpoint(files, path, epochs)


def read_epochs(files: Files, path: str) -> list[tuple[int, int]]:
    """The (epoch, start offset) pairs of a checkpoint, both ascending. FileNotFoundError, CheckpointError."""
    epochs: list[tuple[int, int]] = []
    for row in read_checkpoint(files, path):
        if len(row) != 2:
            raise CheckpointError(path, f"row of {len(row)} values, expected epoch and start offset")
        epoch, start_offset = _number(path, row[0], _INT32_MAX), _number(path, row[1], _INT64_MAX)
        if epochs and (epoch <= epochs[-1][0] or start_offset <= epochs[-1][1]):
            raise CheckpointError(path, f"{(epoch, start_offset)} follows {epochs[-1]}")
        epochs.append((epoch, start_offset))
    return epochs


# -------------------------------------------------------------------------------------------------------- failed syncs


def note_failed_sync(files: Files, folder: str) -> None:
    """Note a failed sync. Nothing more can be done on a disk that accepts no new file."""
    with contextlib.suppress(OSError):
        files.open(f"{folder}/{SYNC_FAILED_FILE}", create=True).close()


def has_failed_sync(files: Files, folder: str) -> bool:
    return files.exists(f"{folder}/{SYNC_FAILED_FILE}")


def forget_failed_sync(files: Files, folder: str) -> None:
    """Remove the note: everything is durable."""
    with contextlib.suppress(FileNotFoundError):
        files.remove(f"{folder}/{SYNC_FAILED_FILE}")


def rewrite_file(files: Files, path: str, temporary: str) -> None:
    """Replace the file at `path` by a synced copy; its name is not yet durable. On OSError it is as it was."""
    source = files.open(path, writable=False)
    target = None
    try:
        target = files.open(temporary, create=True)
        target.truncate(0)  # a crash may have left a longer file
        position = 0
        while piece := source.read_at(position, _PIECE_BYTES):
            target.write_at(position, piece)
            position += len(piece)
        target.sync()
        files.rename(temporary, path)
    finally:
        source.close()
        if target is not None:
            target.close()
