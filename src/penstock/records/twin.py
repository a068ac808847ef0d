"""The compiled kernel's twin in plain Python: same names, same results, same errors, many times slower.

Rule: it exists so that Penstock runs where nothing can be compiled, and so that the kernel has something to be
compared with. `_kernel.pyx` explains the layout of the bytes; what is said there holds here. Each part of the
kernel has its counterpart: headers, records (encode and decode), columns, compaction, validation; for clients
rows, partitions, producing, lanes, consuming.
"""

from penstock.records.twin_bytes import Buffer, RecordTuple
from penstock.records.twin_columns import BytesColumn, ColumnBuilder, Columns, HeaderColumn
from penstock.records.twin_compaction import count_null_keys, filter_records, index_keys
from penstock.records.twin_consuming import ConsumerRecord, decode_consumer_records
from penstock.records.twin_headers import (
    BatchHeader,
    Scan,
    assign_offsets,
    scan,
    stamp_append_time,
    stamp_create_time,
    write_header,
)
from penstock.records.twin_lanes import Callbacks, Lane, Moment, Ticket, TopicLanes
from penstock.records.twin_partitions import murmur2, partition_rows
from penstock.records.twin_producing import BatchBuilder, encode_columns
from penstock.records.twin_records import Record, decode_records, encode_records
from penstock.records.twin_rows import BytesSource, ColumnRows, HeaderSource, NumberSource
from penstock.records.twin_validation import (
    RECORD_OUT_OF_PLACE,
    RECORD_OUT_OF_TIME,
    RECORD_WITHOUT_KEY,
    UNREADABLE_RECORD,
    validate_records,
)

__all__ = [
    "RECORD_OUT_OF_PLACE",
    "RECORD_OUT_OF_TIME",
    "RECORD_WITHOUT_KEY",
    "UNREADABLE_RECORD",
    "BatchBuilder",
    "BatchHeader",
    "Buffer",
    "BytesColumn",
    "BytesSource",
    "Callbacks",
    "ColumnBuilder",
    "ColumnRows",
    "Columns",
    "ConsumerRecord",
    "HeaderColumn",
    "HeaderSource",
    "Lane",
    "Moment",
    "NumberSource",
    "Record",
    "RecordTuple",
    "Scan",
    "Ticket",
    "TopicLanes",
    "assign_offsets",
    "count_null_keys",
    "decode_consumer_records",
    "decode_records",
    "encode_columns",
    "encode_records",
    "filter_records",
    "index_keys",
    "murmur2",
    "partition_rows",
    "scan",
    "stamp_append_time",
    "stamp_create_time",
    "validate_records",
    "write_header",
]
