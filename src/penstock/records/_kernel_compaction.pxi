# What compaction asks of a batch's records: their keys, and a copy without those that a later record replaced.


def count_null_keys(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count):
    """How many records have no key: a compacted log takes none of those."""
    cdef Py_buffer view
    cdef Cursor cursor
    cdef Parsed parsed
    cdef Py_ssize_t i, nulls = 0
    open_range(buffer, &view, start, end, count, &cursor)
    try:
        for i in range(count):
            if not next_record(&cursor, &parsed):
                raise damaged(i)
            nulls += parsed.key_size < 0
        check_end(&cursor)
    finally:
        PyBuffer_Release(&view)
    return nulls


def index_keys(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, int64_t base_offset, dict newest not None):
    """Note in `newest` (key: offset) the last offset of every key in the batch."""
    cdef Py_buffer view
    cdef Cursor cursor
    cdef Parsed parsed
    cdef Py_ssize_t i
    open_range(buffer, &view, start, end, count, &cursor)
    try:
        for i in range(count):
            if not next_record(&cursor, &parsed):
                raise damaged(i)
            if parsed.key_size >= 0:
                PyDict_SetItem(
                    newest, sized_bytes(parsed.key, parsed.key_size), wrap_add(base_offset, parsed.offset_delta)
                )
        check_end(&cursor)
    finally:
        PyBuffer_Release(&view)


cdef bint is_replaced(Parsed *parsed, int64_t offset, dict newest) except -1:
    """Whether `newest` knows a later record of this one's key."""
    cdef PyObject *latest = PyDict_GetItem(newest, sized_bytes(parsed.key, parsed.key_size))
    return latest != NULL and <int64_t>(<object>latest) > offset


cdef int copy_record(_Writer writer, Parsed *parsed, int64_t timestamp_delta) except -1:
    """The record byte for byte, but for its length, attributes and timestamp delta."""
    cdef uint64_t delta = zigzag(timestamp_delta)
    cdef Py_ssize_t rest = parsed.end - parsed.after_timestamp
    cdef uint8_t *p = writer.reserve(rest + 21)
    p = put_varint(p, zigzag(1 + varint_size(delta) + rest))
    p[0] = 0
    p = put_varint(p + 1, delta)
    memcpy(p, parsed.after_timestamp, <size_t>rest)
    writer.wrote_up_to(p + rest)
    return 0


def filter_records(
    buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, int64_t base_offset, int64_t base_timestamp,
    dict newest not None, bint keep_tombstones, int64_t new_base_timestamp,
):
    """(records kept as a bytearray after 61 free bytes, how many, how many of them tombstones, max timestamp).

    A record stays if no later one of its key is in `newest`; a tombstone (null value) only with `keep_tombstones`;
    a record without key never does. What stays is copied byte for byte, but for its timestamp delta, which is
    reckoned anew from `new_base_timestamp`. The max timestamp of none is -1.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    cdef Parsed parsed
    cdef Py_ssize_t i, kept = 0, tombstones = 0
    cdef int64_t max_timestamp = -1, timestamp
    cdef _Writer writer
    open_range(buffer, &view, start, end, count, &cursor)
    try:
        writer = _Writer(HEADER + end - start + 64)
        for i in range(count):
            if not next_record(&cursor, &parsed):
                raise damaged(i)
            if parsed.key_size < 0 or (parsed.value_size < 0 and not keep_tombstones):
                continue
            if is_replaced(&parsed, wrap_add(base_offset, parsed.offset_delta), newest):
                continue
            timestamp = wrap_add(base_timestamp, parsed.timestamp_delta)
            copy_record(writer, &parsed, wrap_sub(timestamp, new_base_timestamp))
            kept += 1
            tombstones += parsed.value_size < 0
            if timestamp > max_timestamp:
                max_timestamp = timestamp
        check_end(&cursor)
    finally:
        PyBuffer_Release(&view)
    return writer.take(), kept, tombstones, max_timestamp
