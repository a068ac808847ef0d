"""Files of a table made anew: without some offsets, or many small ones as one.

Rule: a backfill replaces exactly its offsets. A file that lies inside them goes; one that reaches beyond is written
again without them, and both happen in the commit that brings the new rows. Nobody sees the table in between.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.tables.commits import DataFile
from penstock.spark.tables.delta import LiveFile
from penstock.spark.tables.ranges import Span, union
from penstock.spark.tables.storage import PartWriter, Storage


@dataclass(frozen=True)
class RewriteTask:
    """Files of one folder into one file, without some offsets; it travels to an executor."""

    storage: Storage
    files: tuple[LiveFile, ...]
    without: tuple[Span, ...] = ()
    schema: pa.Schema | None = None
    """What the new file has; None for that of the (single) old one."""


def plan_removal(files: Iterable[LiveFile], spans: Sequence[Span]) -> tuple[list[LiveFile], list[LiveFile]]:
    """Files that lie inside the spans, and files that may reach beyond."""
    wanted = union(spans)
    inside: list[LiveFile] = []
    across: list[LiveFile] = []
    for file in files:
        if not any(file.may_meet(span) for span in wanted):
            continue
        whole = file.span
        if whole is not None and any(span.holds(whole) for span in wanted):
            inside.append(file)
        else:
            across.append(file)
    return inside, across


def run_rewrite(task: RewriteTask) -> DataFile | None:
    """The new file; None if nothing is left of the old ones."""
    values: Mapping[str, str | None] = task.files[0].partition_values
    writer: PartWriter | None = None
    try:
        for rows in _tables(task):
            if not rows.num_rows:
                continue
            if writer is None:
                writer = PartWriter(task.storage, "", values, rows.schema.remove_metadata())
            writer.write(rows)
        return None if writer is None else writer.close()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise


def run_pickled(task: bytes) -> bytes:
    return pickle.dumps(run_rewrite(pickle.loads(task)))


def _tables(task: RewriteTask) -> Iterable[pa.Table]:
    filesystem, root = task.storage.filesystem()
    for file in task.files:
        with pq.ParquetFile(filesystem.open_input_file(f"{root}/{file.path}")) as parquet:
            for group in range(parquet.num_row_groups):
                rows = parquet.read_row_group(group)
                if task.without:
                    rows = rows.filter(pc.invert(_in_spans(rows, task.without)))
                yield rows if task.schema is None else conformed(rows, task.schema)


def _in_spans(rows: pa.Table, spans: Iterable[Span]) -> Any:
    partitions, offsets = rows.column("_partition"), rows.column("_offset")
    found: Any = pa.repeat(pa.scalar(False), rows.num_rows)
    for span in spans:
        within = pc.and_(pc.greater_equal(offsets, span.start), pc.less(offsets, span.end))
        found = pc.or_(found, pc.and_(pc.equal(partitions, span.partition), within))
    return found


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of a later schema: what they do not have is null."""
    arrays = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)
