"""A batch of records, of whatever partitions they are: what `Consumer.batches()` gives.

Rule: it holds bytes until it is asked. `to_arrow` goes from the fetched bytes to Arrow's columns with no Python object
a record; iterating decodes to objects, once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, overload

from penstock.client.consumer.cursor import Decoders, K, Slice, V, records_of, unreadable
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import MissingDependency
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.records import ColumnBuilder, RecordError, append_time_of, payload_of
from penstock.records.columns import to_arrow as columns_to_arrow
from penstock.records.kernel import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow


class RecordBatch(Sequence[ConsumerRecord[K, V]], Generic[K, V]):
    """Records in the order of their partitions. `offsets` is what to commit once all of them are done."""

    def __init__(self, slices: list[Slice], decoders: Decoders[K, V]) -> None:
        self._slices = slices
        self._decoders = decoders
        self._records: list[ConsumerRecord[K, V]] | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        """Those that have records here, in order of appearance."""
        return list(dict.fromkeys(piece.chunk.place.partition for piece in self._slices))

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit when the whole batch is done."""
        return {
            piece.chunk.place.partition: OffsetAndMetadata(piece.until_offset, piece.header.leader_epoch, "")
            for piece in self._slices
        }

    @property
    def records(self) -> list[ConsumerRecord[K, V]]:
        """All of them as objects; raises DeserializationError where a decoder fails and none is to be skipped."""
        if self._records is None:
            records: list[ConsumerRecord[K, V]] = []
            for piece in self._slices:
                records += records_of(piece, self._decoders)
            self._records = records
        return self._records

    def by_partition(self) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        """Its records, decoded, by partition."""
        grouped: dict[TopicPartition, list[ConsumerRecord[K, V]]] = {}
        for record in self.records:
            grouped.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return grouped

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord[K, V]: ...

    @overload
    def __getitem__(self, index: slice) -> list[ConsumerRecord[K, V]]: ...

    def __getitem__(self, index: int | slice) -> ConsumerRecord[K, V] | list[ConsumerRecord[K, V]]:
        return self.records[index]

    def __repr__(self) -> str:
        return f"<RecordBatch of {', '.join(map(str, self.partitions)) or 'nothing'}>"

    def to_arrow(self, *, headers: bool = False) -> pyarrow.RecordBatch:
        """Columns topic (dictionary), partition, offset, timestamp (ms, UTC), key, value (binary) [, headers].

        Keys and values are the bytes as they were sent: decoders are for objects.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise MissingDependency("pyarrow", "to_arrow()") from error
        builder = ColumnBuilder(headers=headers)
        topics: dict[str, int] = {}
        topic_codes, partitions = array("i"), array("i")
        for piece in self._slices:
            rows = _append(builder, piece)
            topic, partition = piece.chunk.place.partition
            topic_codes += array("i", [topics.setdefault(topic, len(topics))]) * rows
            partitions += array("i", [partition]) * rows
        table = columns_to_arrow(builder.finish())
        rows = table.num_rows
        codes = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(topic_codes)])
        named = pa.DictionaryArray.from_arrays(codes, pa.array(list(topics), pa.string()))
        indexes = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(partitions)])
        arrays: list[Any] = [named, indexes, *table.columns]
        return pa.RecordBatch.from_arrays(arrays, names=["topic", "partition", *table.schema.names])


def _append(builder: ColumnBuilder, piece: Slice) -> int:
    chunk, header, from_offset, until_offset = piece
    try:
        plain, start, end = payload_of(chunk.buffer, header)
        return builder.append(
            plain, start, end, header.record_count, header.base_offset, header.base_timestamp,
            append_time_of(header), from_offset, until_offset,
        )  # fmt: skip
    except RecordError as damage:
        raise unreadable(chunk, header, damage) from damage
