"""Dead letters, tried again: after the table has grown, its declaration was changed, or the code that reads was mended.

Rule: as with a load, one commit decides. Rows that fit now come into the table and leave the dead letters; the others
stay there as they are. Those that were dropped have no content any more, and stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.client.errors import PenstockError
from penstock.spark.tables import dead_letters
from penstock.spark.tables.commits import DEAD_SEQUENCE, REPLAY, CommitNote, Counts, DataFile
from penstock.spark.tables.loading import Loader, overtaken
from penstock.spark.tables.ranges import Span, difference, union
from penstock.spark.tables.reports import LoadReport
from penstock.spark.tables.storage import Storage
from penstock.spark.tables.tasks import TaskResult, Written

_TASK_ROWS: Final = 100_000
_AS_READ: Final = {
    "key": "_key", "value": "value", "topic": "_topic", "partition": "_partition", "offset": "_offset",
    "timestamp": "_timestamp", "headers": "_headers",
}  # fmt: skip


class Replayed(NamedTuple):
    """How many there were, and how many are in the table now."""

    tried: int
    landed: int
    added_columns: tuple[str, ...] = ()


def replay_dead(loader: Loader) -> Replayed:
    """Try all dead letters that have their content."""
    loader.settle()
    opened = loader.opened
    dead = opened.dead.delta.to_pyarrow_table()
    rows = dead.filter(pc.invert(dead.column("dropped"))).sort_by(
        [("_partition", "ascending"), ("_offset", "ascending")]
    )
    if not rows.num_rows:
        return Replayed(0, 0)
    payloads: dict[Span, bytes] = {}
    for partition in pc.unique(rows.column("_partition")).to_pylist():
        of_partition = rows.filter(pc.equal(rows.column("_partition"), partition))
        for start in range(0, of_partition.num_rows, _TASK_ROWS):
            piece = of_partition.slice(start, _TASK_ROWS)
            offsets = piece.column("_offset")
            payloads[Span(partition, offsets[0].as_py(), offsets[-1].as_py() + 1)] = _stream(piece)
    report = LoadReport()
    loader.expect(rows.num_rows, lambda: int(rows.nbytes))
    results = loader.run(list(payloads), report, payloads)
    stayed = _places(opened.dead.storage, [file for one in results for file in one.dead_files])
    gone = difference(_spans(rows), stayed)
    landed = sum(one.counts.landed + one.counts.deleted for one in results)
    if gone:
        _commit(loader, gone, results)
    else:
        opened.dead.storage.remove_files([file.path for one in results for file in one.dead_files])
    return Replayed(rows.num_rows, landed, tuple(report.added_columns))


def _commit(loader: Loader, gone: Sequence[Span], results: Sequence[TaskResult]) -> CommitNote:
    """Rows that were dead letters into the table, and out of the dead letters."""
    store = loader.opened.store
    number = dead_letters.sequence(store) + 1
    written = Written.of(results)
    loader.opened.dead.storage.remove_files([file.path for file in written.dead_files])
    counts = Counts(records=written.counts.landed + written.counts.deleted,
                    landed=written.counts.landed, deleted=written.counts.deleted)  # fmt: skip
    note = CommitNote(
        REPLAY, loader.opened.table.topic, loader.opened.topic_id, tuple(gone), counts,
        dead_sequence=number, dead_replaces=tuple(gone),
    )  # fmt: skip

    def check() -> None:
        if dead_letters.sequence(store) != number - 1:
            raise overtaken(loader.opened.name)

    try:
        if loader.opened.table.mode == "upsert":
            loader.merge(note, written, {DEAD_SEQUENCE: number}, check)
        else:
            store.commit(note, add=written.files, transactions={DEAD_SEQUENCE: number}, check=check)
    except PenstockError:
        loader.discard(written)
        raise
    loader.settle()
    return note


def _stream(rows: pa.Table) -> bytes:
    """As if it had come from the log."""
    columns: dict[str, Any] = {name: rows.column(ours) for name, ours in _AS_READ.items()}
    columns["timestampType"] = pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
    table = pa.table(columns).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _places(storage: Storage, files: Iterable[DataFile]) -> list[Span]:
    filesystem, root = storage.filesystem()
    spans: list[Span] = []
    for file in files:
        spans += _spans(pq.read_table(f"{root}/{file.path}", filesystem=filesystem, columns=["_partition", "_offset"]))
    return union(spans)


def _spans(rows: pa.Table) -> list[Span]:
    pairs = zip(rows.column("_partition").to_pylist(), rows.column("_offset").to_pylist(), strict=True)
    return union(Span(partition, offset, offset + 1) for partition, offset in pairs)
