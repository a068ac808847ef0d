"""The file of an embedded metadata tree: what every change left, one record a change.

    header   "PENSTREE", format version (u16), salt (16 bytes), where the first nodes end (u64), checksum (u32)
    record   marker (4 bytes), length (u32), sequence (u64), checksum (u32), then `length` bytes: MessagePack, a list
             of [path, data or nil, version, created], nil for a node that went; ["", nil, number] says that nodes may
             have been created with all numbers up to that one. Format version 1 had no `created`

Noun: a journal that begins with all nodes as they were when it was made (records of many nodes) and goes on with one
record a change.

Rule: a record is synced before the next one is written, so only the last can be torn. It is cut off, with a warning;
a bad record with a good one behind it, or among the first nodes, was good once, and is damage: DamagedTree. The
checksums (CRC32C) cover the file's salt, so that neither old bytes of a reused disk block nor a value made to look
like a record passes for one. The file is replaced whole, by a rename, when changes outweigh what they left.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import crc32c
import msgspec

from penstock.cluster.errors import DamagedTree, DataTooLarge, TreeDiskFull, TreeError, TreeFailed
from penstock.cluster.tree_state import StoredNode, TreeState
from penstock.log.checkpoints import parent_folder
from penstock.log.errors import is_disk_full
from penstock.runtime.files import File, Files
from penstock.runtime.randomness import Random

logger = logging.getLogger(__name__)

MAX_RECORD_BYTES: Final = 64 * 1024 * 1024

_MAGIC = b"PENSTREE"
_FORMAT_VERSION = 2
_FORMATS_READ = (1, 2)
_SALT_BYTES = 16
_HEADER = struct.Struct(f">8sH{_SALT_BYTES}sQI")
_CHECKSUM = struct.Struct(">I")
_MARKER = b"\xf1\x0e\xd5\x1a"
_RECORD = struct.Struct(">4sIQI")
_COVERED = struct.Struct(">IQ")
_SNAPSHOT_RECORD_BYTES = 1024 * 1024
_TEMPORARY_SUFFIX = ".tmp"


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a change left of a node."""

    path: str
    data: bytes | None
    version: int
    created: int = 0


_NO_PATH = ""
_ENTRIES = msgspec.msgpack.Decoder(list[Entry])


def reservation(number: int) -> Entry:
    """Says that nodes may have been created with all numbers up to this one, whether they are still there or not."""
    return Entry(_NO_PATH, None, number)


class Loaded(NamedTuple):
    journal: Journal
    state: TreeState


class Journal:
    """An open journal file. Methods block; one at a time."""

    def __init__(self, path: str, file: File, salt: bytes, size: int, snapshot_bytes: int, sequence: int) -> None:
        self._path = path
        self._file = file
        self._salt = salt
        self.size = size
        self.snapshot_bytes = snapshot_bytes  # how much of it was there when it was made
        self.sequence = sequence  # of the next record

    def append(self, entries: list[Entry]) -> None:
        """Return when the change is durable.

        TreeDiskFull, DataTooLarge: the journal is as before. TreeFailed: nobody knows what it holds.
        """
        record = self._record(entries)
        try:
            self._write(record)
            self._file.sync()
        except OSError as error:
            # Not the text of the error: it has the name that the file had when it was made.
            raise TreeFailed(self._path, error.strerror or str(error)) from error
        self.size += len(record)
        self.sequence += 1

    def _write(self, record: bytes) -> None:
        try:
            self._file.write_at(self.size, record)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._file.truncate(self.size)
            raise TreeDiskFull(self._path) from error

    def close(self) -> None:
        self._file.close()

    def write_nodes(self, nodes: Iterable[tuple[str, StoredNode]], reserved: int) -> None:
        """Begin with these nodes; they count once the file is synced and has its name. OSError."""
        for entries in _chunks(nodes, reserved):
            record = self._record(entries)
            self._file.write_at(self.size, record)
            self.size += len(record)
            self.sequence += 1
        self.snapshot_bytes = self.size
        head = _HEADER.pack(_MAGIC, _FORMAT_VERSION, self._salt, self.size, 0)[: -_CHECKSUM.size]
        self._file.write_at(0, head + _CHECKSUM.pack(crc32c.crc32c(head)))
        self._file.sync()

    def _record(self, entries: list[Entry]) -> bytes:
        payload = msgspec.msgpack.encode(entries)
        if len(payload) > MAX_RECORD_BYTES:
            raise DataTooLarge("a change of the tree", len(payload), MAX_RECORD_BYTES)
        checksum = _checksum(self._salt, len(payload), self.sequence, payload)
        return _RECORD.pack(_MARKER, len(payload), self.sequence, checksum) + payload


def create_journal(
    files: Files, path: str, random: Random, nodes: Iterable[tuple[str, StoredNode]], reserved: int, sequence: int
) -> Journal:
    """A new journal of these nodes in the place of the one at `path`, if any. OSError: the old one is as it was.

    Nodes may have been created with all numbers up to `reserved`.
    Which of the two a power loss leaves is open until `settle_name`.
    """
    temporary = path + _TEMPORARY_SUFFIX
    file = files.open(temporary, create=True)
    try:
        # A crash may have left a longer one.
        file.truncate(0)
        journal = Journal(path, file, random.random_bytes(_SALT_BYTES), _HEADER.size, 0, sequence)
        journal.write_nodes(nodes, reserved)
        files.rename(temporary, path)
    except BaseException:
        file.close()
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    return journal


def settle_name(files: Files, path: str) -> None:
    """Make the name of a new journal durable."""
    files.sync_folder(parent_folder(path))


def remove_unfinished(files: Files, path: str) -> None:
    """Remove what a crash left of a new journal."""
    with contextlib.suppress(FileNotFoundError):
        files.remove(path + _TEMPORARY_SUFFIX)


def _chunks(nodes: Iterable[tuple[str, StoredNode]], reserved: int) -> Iterator[list[Entry]]:
    chunk = [reservation(reserved)] if reserved else []
    size = 0
    for path, node in nodes:
        chunk.append(Entry(path, node.data, node.version, node.created))
        size += len(path) + len(node.data)
        if size >= _SNAPSHOT_RECORD_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def open_journal(files: Files, path: str) -> Loaded | None:
    """The journal at `path` and the tree that it tells of; None if there is none. DamagedTree, OSError.

    A torn record at its end is cut off.
    """
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return _load(file, path)
    except BaseException:
        file.close()
        raise


def _load(file: File, path: str) -> Loaded:
    salt, snapshot_bytes = _read_header(file, path)
    size = file.size()
    position = _HEADER.size
    sequence: int | None = None
    nodes: dict[str, StoredNode] = {}
    last_created = 0
    while position < max(size, snapshot_bytes):
        found = _read_record(file, position, size, salt, sequence)
        if found is None:
            if position < snapshot_bytes:
                raise DamagedTree(path, position, "a bad record among those that the file began with")
            _cut_torn_tail(file, path, position, size, salt)
            break
        number, payload = found
        try:
            last_created = max(last_created, _replay(nodes, _ENTRIES.decode(payload)))
        except msgspec.MsgspecError as error:
            raise DamagedTree(path, position, f"record {number} is not a list of nodes: {error}") from error
        sequence = number + 1
        position += _RECORD.size + len(payload)
    try:
        state = TreeState.of(nodes.items(), last_created)
    except TreeError as error:
        raise DamagedTree(path, 0, str(error)) from error
    return Loaded(Journal(path, file, salt, position, snapshot_bytes, sequence or 0), state)


def _read_header(file: File, path: str) -> tuple[bytes, int]:
    raw = file.read_at(0, _HEADER.size)
    if len(raw) < _HEADER.size:
        raise DamagedTree(path, 0, f"{len(raw)} bytes are less than a header")
    magic, version, salt, snapshot_bytes, checksum = _HEADER.unpack(raw)
    if magic != _MAGIC or checksum != crc32c.crc32c(raw[: -_CHECKSUM.size]):
        raise DamagedTree(path, 0, "the header is not that of a metadata journal")
    if version not in _FORMATS_READ:
        raise DamagedTree(path, 0, f"format version {version} is not known, {_FORMAT_VERSION} is")
    return bytes(salt), int(snapshot_bytes)


def _read_record(file: File, position: int, size: int, salt: bytes, expected: int | None) -> tuple[int, bytes] | None:
    """Sequence and payload of the record at `position`, None if there is no good one."""
    raw = file.read_at(position, _RECORD.size)
    if len(raw) < _RECORD.size:
        return None
    marker, length, sequence, checksum = _RECORD.unpack(raw)
    if marker != _MARKER or length > min(MAX_RECORD_BYTES, size - position - _RECORD.size):
        return None
    if expected is not None and sequence != expected:
        return None
    payload = file.read_at(position + _RECORD.size, length)
    if _checksum(salt, length, sequence, payload) != checksum:
        return None
    return sequence, payload


def _cut_torn_tail(file: File, path: str, position: int, size: int, salt: bytes) -> None:
    tail = file.read_at(position, size - position)
    found = tail.find(_MARKER, 1)
    while found >= 0:
        if _read_record(file, position + found, size, salt, None) is not None:
            raise DamagedTree(path, position, f"a bad record, with a good one at byte {position + found}")
        found = tail.find(_MARKER, found + 1)
    logger.warning("%s: the last %d bytes are a change that was cut short, and are removed", path, size - position)
    file.truncate(position)


def _replay(nodes: dict[str, StoredNode], entries: list[Entry]) -> int:
    """The greatest number that these say a node may have been created with."""
    last_created = 0
    for entry in entries:
        if entry.path == _NO_PATH:
            last_created = max(last_created, entry.version)
        elif entry.data is None:
            nodes.pop(entry.path, None)
        else:
            nodes[entry.path] = StoredNode(entry.data, entry.version, None, entry.created)
            last_created = max(last_created, entry.created)
    return last_created


def _checksum(salt: bytes, length: int, sequence: int, payload: bytes) -> int:
    return crc32c.crc32c(payload, crc32c.crc32c(salt + _COVERED.pack(length, sequence)))
