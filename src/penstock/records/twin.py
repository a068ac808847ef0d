"""The compiled kernel's twin in plain Python: same names, same results, same errors, many times slower.

Rule: it exists so that Penstock runs where nothing can be compiled, and so that the kernel has something to be
compared with. `_kernel.pyx` explains the layout of the bytes; what is said there holds here. Each part of the
kernel has its counterpart: headers, records (encode and decode), columns, compaction.
"""

from penstock.records.twin_bytes import Buffer, RecordTuple
from penstock.records.twin_columns import BytesColumn, ColumnBuilder, Columns, HeaderColumn
from penstock.records.twin_compaction import count_null_keys, filter_records, index_keys
from penstock.records.twin_headers import (
    BatchHeader,
    Scan,
    assign_offsets,
    scan,
    stamp_append_time,
    write_header,
)
from penstock.records.twin_records import Record, decode_records, encode_records

__all__ = [
    "BatchHeader",
    "Buffer",
    "BytesColumn",
    "ColumnBuilder",
    "Columns",
    "HeaderColumn",
    "Record",
    "RecordTuple",
    "Scan",
    "assign_offsets",
    "count_null_keys",
    "decode_records",
    "encode_records",
    "filter_records",
    "index_keys",
    "scan",
    "stamp_append_time",
    "write_header",
]
