# Records into bytes.


@cython.final
cdef class _Writer:
    """A bytearray that grows; `used` bytes of it are written."""

    cdef bytearray out
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity

    def __cinit__(self, Py_ssize_t capacity):
        """The first 61 bytes, which are the header's, count as written."""
        self.capacity = max(capacity, HEADER)
        self.out = PyByteArray_FromStringAndSize(NULL, self.capacity)
        self.used = HEADER
        memset(PyByteArray_AS_STRING(self.out), 0, HEADER)

    cdef uint8_t *reserve(self, Py_ssize_t more) except NULL:
        cdef Py_ssize_t capacity
        if more > self.capacity - self.used:
            capacity = (self.used + more) * 2
            PyByteArray_Resize(self.out, capacity)
            self.capacity = capacity
        return <uint8_t *>PyByteArray_AS_STRING(self.out) + self.used

    cdef void wrote_up_to(self, const uint8_t *p) noexcept:
        self.used = p - <const uint8_t *>PyByteArray_AS_STRING(self.out)

    cdef bytearray take(self):
        PyByteArray_Resize(self.out, self.used)
        self.capacity = self.used
        return self.out


cdef bytes as_bytes(object value, str what):
    if PyBytes_CheckExact(value):
        return <bytes>value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a record's {what} must be bytes or None, not {type(value).__name__}")


cdef list header_pairs(object headers):
    """[(key as UTF-8 bytes, value bytes or None)] of a record's headers."""
    cdef list pairs = []
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's key must be str, not {type(name).__name__}")
        pairs.append((name.encode(), None if value is None else as_bytes(value, "header value")))
    return pairs


cdef inline Py_ssize_t bytes_size(bytes value) noexcept:
    return -1 if value is None else PyBytes_GET_SIZE(value)


cdef inline const uint8_t *bytes_data(bytes value) noexcept:
    if value is None:
        return NULL
    return <const uint8_t *>PyBytes_AS_STRING(value)


cdef Py_ssize_t headers_size(list pairs) except -1:
    cdef Py_ssize_t size = varint_size(zigzag(len(pairs)))
    cdef bytes name, content
    for name, content in pairs:
        size += sized_size(bytes_size(name)) + sized_size(bytes_size(content))
    return size


cdef uint8_t *put_headers(uint8_t *p, list pairs) except NULL:
    cdef bytes name, content
    p = put_varint(p, zigzag(len(pairs)))
    for name, content in pairs:
        p = put_sized(p, bytes_data(name), bytes_size(name))
        p = put_sized(p, bytes_data(content), bytes_size(content))
    return p


cdef int write_record(
    _Writer writer, int64_t timestamp_delta, int64_t offset_delta, object key, object value, object headers
) except -1:
    cdef bytes key_bytes = None if key is None else as_bytes(key, "key")
    cdef bytes value_bytes = None if value is None else as_bytes(value, "value")
    cdef list pairs = header_pairs(headers) if headers else None
    cdef Py_ssize_t key_size = bytes_size(key_bytes), value_size = bytes_size(value_bytes), body
    cdef uint8_t *p
    body = (
        1 + varint_size(zigzag(timestamp_delta)) + varint_size(zigzag(offset_delta))
        + sized_size(key_size) + sized_size(value_size) + (1 if pairs is None else headers_size(pairs))
    )
    if body > INT32_MAX:
        raise TooLarge("a record", INT32_MAX)
    p = writer.reserve(body + 5)
    p = put_varint(p, zigzag(body))
    p[0] = 0  # attributes: none are defined
    p = put_varint(p + 1, zigzag(timestamp_delta))
    p = put_varint(p, zigzag(offset_delta))
    p = put_sized(p, bytes_data(key_bytes), key_size)
    p = put_sized(p, bytes_data(value_bytes), value_size)
    if pairs is None:
        p[0] = 0
        p += 1
    else:
        p = put_headers(p, pairs)
    writer.wrote_up_to(p)
    return 0


cdef int64_t next_delta(object deltas) except -1:
    try:
        delta = next(deltas)
    except StopIteration:
        raise ValueError("there are fewer offsets than records") from None
    if not 0 <= delta <= INT32_MAX:
        raise ValueError(f"offset delta {delta} is outside of 0 to {INT32_MAX}")
    return delta


def encode_records(records, offsets=None):
    """(a bytearray with 61 bytes left free for the header, then the records; base timestamp; max timestamp).

    `records` are (timestamp_ms, key, value, headers) tuples; `offsets` their deltas where these have gaps.
    """
    cdef _Writer writer = _Writer(4096)
    cdef int64_t base_timestamp = -1, max_timestamp = -1, timestamp, index = 0
    deltas = None if offsets is None else iter(offsets)
    for record in records:
        stamp, key, value, headers = record
        timestamp = stamp
        if index == 0:
            base_timestamp = max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        write_record(
            writer, wrap_sub(timestamp, base_timestamp), index if deltas is None else next_delta(deltas),
            key, value, headers,
        )
        index += 1
    return writer.take(), base_timestamp, max_timestamp
