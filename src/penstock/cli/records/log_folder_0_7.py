"""The data folders of a Kafka 0.7 broker: which partitions they hold, and the messages of each.

A partition is a folder `topic-partition` (early versions: `topic_partition`) of files `<position>.kafka`. A file is
named by the position of its first byte in the log of the partition, so the files of a partition follow each other
without gaps. Messages are read from any position at which one begins.

Damage is reported, never fatal. A message with a wrong checksum is left out; its length leads to the next one. If a
length makes no sense, or a message is cut short, the rest of that file cannot be read, and the next file follows. The
end of the last file is often cut short: the broker was writing, or was killed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from penstock.records.message_0_7 import LENGTH_BYTES, SMALLEST_MESSAGE, DamagedMessage, entry_length, payloads

_FOLDER: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})[-_](?P<partition>[0-9]{1,9})")
_FILE: Final = re.compile(r"([0-9]{1,20})\.kafka")
_BUFFER_BYTES: Final = 1024 * 1024


class Entry(NamedTuple):
    """A log entry: where it begins and ends, and the payloads of its message or compressed set."""

    position: int
    next_position: int
    payloads: list[bytes]
    file_ms: int
    """Last change of its file, in milliseconds since 1970. Messages of 0.7 have no time of their own."""


class Damage(NamedTuple):
    """Bytes of a log that cannot be read."""

    file: str
    position: int
    size_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.size_bytes} bytes at position {self.position}: {self.reason}"


class LogFile(NamedTuple):
    """One file of a partition."""

    path: Path
    position: int
    size_bytes: int
    modified_ms: int

    @property
    def end(self) -> int:
        return self.position + self.size_bytes


@dataclass(frozen=True, slots=True)
class OldPartition:
    """A partition of a 0.7 broker."""

    folder: Path
    topic: str
    partition: int
    files: tuple[LogFile, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def first_position(self) -> int:
        return self.files[0].position if self.files else 0

    @property
    def end_position(self) -> int:
        return self.files[-1].end if self.files else 0

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def read(self, start: int | None = None) -> Iterator[Entry | Damage]:
        """The entries from a position on, at which one begins; by default all of them."""
        expected = self.first_position if start is None else start
        if expected < self.first_position:
            size = self.first_position - expected
            yield Damage(self.name, expected, size, "the files that held them were deleted")
            expected = self.first_position
        for file in self.files:
            if file.end <= expected and file.size_bytes:
                continue
            if file.position > expected:
                size = file.position - expected
                yield Damage(file.path.name, expected, size, "missing between this file and the one before")
            yield from _read_file(file, max(expected, file.position))
            expected = max(expected, file.end)


def find_partitions(folders: Sequence[Path]) -> tuple[list[OldPartition], list[Path]]:
    """The partitions in these data folders, by topic and partition, and sub-folders that are none. OSError."""
    found: list[OldPartition] = []
    others: list[Path] = []
    for folder in folders:
        for path in sorted(each for each in folder.iterdir() if each.is_dir()):
            match = _FOLDER.fullmatch(path.name)
            files = _files(path)
            if match is None or not files:
                others.append(path)
            else:
                found.append(OldPartition(path, match["topic"], int(match["partition"]), files))
    found.sort(key=lambda each: (each.topic, each.partition))
    return found, others


def _files(folder: Path) -> tuple[LogFile, ...]:
    found = []
    for path in folder.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None:
            status = path.stat()
            found.append(LogFile(path, int(match[1]), status.st_size, status.st_mtime_ns // 1_000_000))
    return tuple(sorted(found, key=lambda file: file.position))


def _read_file(file: LogFile, start: int) -> Iterator[Entry | Damage]:
    with open(file.path, "rb", buffering=_BUFFER_BYTES) as stream:
        size = os.fstat(stream.fileno()).st_size  # a running broker may have appended
        at = start - file.position
        stream.seek(at)
        while at < size:
            position = file.position + at
            message, reason = _next_message(stream, size - at)
            if message is None:
                yield Damage(file.path.name, position, size - at, reason)
                return
            at += LENGTH_BYTES + len(message)
            try:
                contents = payloads(message)
            except DamagedMessage as error:
                yield Damage(file.path.name, position, LENGTH_BYTES + len(message), str(error))
                continue
            yield Entry(position, file.position + at, contents, file.modified_ms)


def _next_message(stream: BinaryIO, left: int) -> tuple[bytes | None, str]:
    """The next message; None with the reason if the rest of the file cannot be read."""
    if left < LENGTH_BYTES:
        return None, "cut short in the length of a message"
    head = stream.read(LENGTH_BYTES)
    length = entry_length(head) if len(head) == LENGTH_BYTES else 0
    if length > left - LENGTH_BYTES:
        return None, f"cut short: a message of {length} bytes, of which {left - LENGTH_BYTES} are there"
    if length < SMALLEST_MESSAGE:
        what = "zeros" if length == 0 else f"a length of {length}"
        return None, f"{what} instead of a message; nothing after it can be read"
    message = stream.read(length)
    if len(message) < length:
        return None, "cut short while it was read"
    return message, ""
