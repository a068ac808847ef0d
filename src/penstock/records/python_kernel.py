"""The kernel in pure Python: same names, same results, same errors as the compiled one, many times slower.

It runs where nothing can be compiled, and it is the reference that property tests compare the compiled kernel with.
`_kernel.pyx` documents the layout of the bytes. Each part has its counterpart there: `python_kernel_batch.py` and
`_kernel_batch.pxi`, and so on.
"""

from penstock.records.python_kernel_batch import (
    BatchHeader,
    Scan,
    assign_offsets,
    scan,
    stamp_append_time,
    stamp_create_time,
    write_header,
)
from penstock.records.python_kernel_client import (
    BatchBuilder,
    Callbacks,
    ConsumerRecord,
    Lane,
    Moment,
    Ticket,
    TopicLanes,
    decode_consumer_records,
    encode_columns,
    lanes_first,
    run_callbacks,
    uncollected,
)
from penstock.records.python_kernel_columns import (
    ColumnBuilder,
    ColumnRows,
    murmur2,
    partition_rows,
)
from penstock.records.python_kernel_records import (
    RECORD_OUT_OF_PLACE,
    RECORD_OUT_OF_TIME,
    RECORD_WITHOUT_KEY,
    UNREADABLE_RECORD,
    Record,
    count_null_keys,
    decode_records,
    encode_records,
    filter_records,
    index_keys,
    validate_records,
)

__all__ = [
    "RECORD_OUT_OF_PLACE",
    "RECORD_OUT_OF_TIME",
    "RECORD_WITHOUT_KEY",
    "UNREADABLE_RECORD",
    "BatchBuilder",
    "BatchHeader",
    "Callbacks",
    "ColumnBuilder",
    "ColumnRows",
    "ConsumerRecord",
    "Lane",
    "Moment",
    "Record",
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
    "lanes_first",
    "murmur2",
    "partition_rows",
    "run_callbacks",
    "scan",
    "stamp_append_time",
    "stamp_create_time",
    "uncollected",
    "validate_records",
    "write_header",
]
