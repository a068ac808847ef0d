"""Bringing back what a log knows of its producers and leader epochs: a snapshot, then the batches after it.

Rule: batches in the log are the truth; a snapshot only saves reading them. One that is damaged is passed over for an
older one, and without any the log is read from its start. Only headers are read, but for transaction markers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from penstock.log.errors import DamagedLog
from penstock.log.leader_epochs import LeaderEpochs
from penstock.log.producers.snapshot import SnapshotError, decode_snapshot, snapshot_name, snapshot_offset
from penstock.log.producers.state import ProducerStates
from penstock.log.segment import Segment
from penstock.log.segment_mark import BEGUN_SUFFIX, SegmentMark, decode_mark
from penstock.log.segment_recovery import Marked
from penstock.log.transaction_index import AbortedTransaction, TransactionIndex, TransactionIndexError, entry_of
from penstock.log.walk import Place, Run
from penstock.records import scan
from penstock.records.control import EndMarker, decode_marker
from penstock.runtime.files import Files


def load_newest_snapshot(files: Files, folder: str, end_offset: int, producers: ProducerStates) -> int | None:
    """Fill `producers` from the newest sound snapshot at or before `end_offset`; its offset, or None.

    Snapshots beyond the end are of batches that are gone: they are removed.
    """
    if _load(files, f"{folder}/{snapshot_name(end_offset)}", producers):
        return end_offset
    offsets = sorted((o for o in map(snapshot_offset, files.list_folder(folder)) if o is not None), reverse=True)
    for offset in offsets:
        path = f"{folder}/{snapshot_name(offset)}"
        if offset > end_offset:
            with contextlib.suppress(FileNotFoundError):
                files.remove(path)
        elif _load(files, path, producers):
            return offset
    producers.clear()
    return None


def newest_mark(files: Files, folder: str, base_offset: int, end_offset: int) -> Marked | None:
    """The newest mark of the segment that begins at `base_offset`, up to `end_offset`; damaged ones are passed over."""
    offsets = (offset for offset in map(snapshot_offset, files.list_folder(folder)) if offset is not None)
    for offset in sorted((o for o in offsets if base_offset < o <= end_offset), reverse=True):
        mark = mark_at(files, folder, offset)
        if mark is not None and mark.base_offset == base_offset:
            return Marked(offset, mark)
    return None


def mark_at(files: Files, folder: str, offset: int) -> SegmentMark | None:
    """The mark in the snapshot of that offset; None if it has none, or is damaged."""
    data = _read(files, f"{folder}/{snapshot_name(offset)}")
    try:
        return None if data is None else decode_mark(decode_snapshot(data).mark)
    except SnapshotError:
        return None


def remove_snapshots(files: Files, folder: str, *, keep: Collection[int] = ()) -> None:
    """Remove the snapshots, but for those of the offsets in `keep`, and those that were never finished."""
    for name in files.list_folder(folder):
        offset = snapshot_offset(name.removesuffix(BEGUN_SUFFIX))
        if offset is not None and (offset not in keep or name.endswith(BEGUN_SUFFIX)):
            files.remove(f"{folder}/{name}")


def _load(files: Files, path: str, producers: ProducerStates) -> bool:
    data = _read(files, path)
    try:
        if data is not None:
            producers.load_snapshot(data)
    except SnapshotError:
        return False
    return data is not None


def _read(files: Files, path: str) -> bytes | None:
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def replay(segment: Segment, from_offset: int, producers: ProducerStates, epochs: LeaderEpochs, now_ms: int) -> None:
    """Apply the segment's batches from `from_offset` on, and index its aborted transactions anew."""
    first = segment.locate(from_offset)
    aborted: list[AbortedTransaction] = []
    latest_epoch = epochs.latest_epoch
    for run in () if first is None else _runs(segment, first.position):
        for header in run.headers:
            if header.leader_epoch > latest_epoch:
                epochs.assign(header.leader_epoch, header.base_offset)
                latest_epoch = header.leader_epoch
            if header.producer_id < 0:
                continue
            marker = None
            if header.is_control:
                marker = _marker(segment, Place(run.position + header.position, header))
            completed = producers.apply(header, header.base_offset, now_ms=now_ms, marker=marker)
            if completed is not None and completed.is_aborted:
                aborted.append(entry_of(completed))
    _index_aborted(segment.aborted, from_offset, aborted)


def _runs(segment: Segment, start: int) -> Iterable[Run]:
    """The batches from position `start` on: as recovery has just seen them, or read."""
    walked, segment.walked = segment.walked, None
    if not walked or walked[0].position > start:
        return segment.runs(start)
    found: list[Run] = []
    for run in walked:
        if run.position >= start:
            found.append(run)
        elif run.position + run.headers[-1].position >= start:
            found.append(Run(run.position, [each for each in run.headers if run.position + each.position >= start]))
    return found


def _index_aborted(index: TransactionIndex, from_offset: int, aborted: list[AbortedTransaction]) -> None:
    """Let the index say this from `from_offset` on. One that does already stays untouched: nobody would recover it."""
    try:
        if [entry for entry in index.entries() if entry.last_offset >= from_offset] == aborted:
            return
    except TransactionIndexError:
        index.cut_damaged_tail()
    index.truncate_to(from_offset)
    for entry in aborted:
        index.append(entry)
    index.flush()


def _marker(segment: Segment, place: Place) -> EndMarker | None:
    data = segment.file.read_at(place.position, place.header.size)
    found = scan(data, most=1)
    if not found.headers:
        raise DamagedLog(segment.path, place.position, found.problem or "a control batch is cut off")
    return decode_marker(data, found.headers[0])
