"""Chooses the kernel: the compiled one, or the pure-Python one where it was not built.

Import these names from here. The two kernels differ only in speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

KERNEL: Literal["compiled", "python"]

if TYPE_CHECKING:
    from penstock.records import python_kernel as _chosen

    KERNEL = "python"
else:
    try:
        from penstock.records import _kernel as _chosen

        KERNEL = "compiled"
    except ImportError:
        from penstock.records import python_kernel as _chosen

        KERNEL = "python"

BatchBuilder = _chosen.BatchBuilder
BatchHeader = _chosen.BatchHeader
Callbacks = _chosen.Callbacks
ColumnBuilder = _chosen.ColumnBuilder
ColumnRows = _chosen.ColumnRows
ConsumerRecord = _chosen.ConsumerRecord
Lane = _chosen.Lane
Moment = _chosen.Moment
RECORD_OUT_OF_PLACE = _chosen.RECORD_OUT_OF_PLACE
RECORD_OUT_OF_TIME = _chosen.RECORD_OUT_OF_TIME
RECORD_WITHOUT_KEY = _chosen.RECORD_WITHOUT_KEY
Record = _chosen.Record
Scan = _chosen.Scan
Ticket = _chosen.Ticket
TopicLanes = _chosen.TopicLanes
UNREADABLE_RECORD = _chosen.UNREADABLE_RECORD
assign_offsets = _chosen.assign_offsets
count_null_keys = _chosen.count_null_keys
decode_consumer_records = _chosen.decode_consumer_records
decode_records = _chosen.decode_records
encode_columns = _chosen.encode_columns
encode_records = _chosen.encode_records
filter_records = _chosen.filter_records
index_keys = _chosen.index_keys
lanes_first = _chosen.lanes_first
murmur2 = _chosen.murmur2
partition_rows = _chosen.partition_rows
run_callbacks = _chosen.run_callbacks
scan = _chosen.scan
stamp_append_time = _chosen.stamp_append_time
stamp_create_time = _chosen.stamp_create_time
uncollected = _chosen.uncollected
validate_records = _chosen.validate_records
write_header = _chosen.write_header
