# Bytes into Arrow's columns.

cdef struct Mark:
    # how far a column was filled, to go back to
    Py_ssize_t rows
    Py_ssize_t used
    Py_ssize_t nulls


@cython.final
cdef class _Bytes:
    """One variable-length column in the making: int32 ends, data, a validity bit a row."""

    cdef bytearray ends
    cdef bytearray data
    cdef bytearray valid
    cdef Mark filled
    cdef Py_ssize_t room_rows
    cdef Py_ssize_t room_data

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t data):
        self.ends = PyByteArray_FromStringAndSize(NULL, 4)
        self.data = PyByteArray_FromStringAndSize(NULL, 0)
        self.valid = PyByteArray_FromStringAndSize(NULL, 0)
        memset(PyByteArray_AS_STRING(self.ends), 0, 4)
        self.make_room(rows, data)

    cdef int make_room(self, Py_ssize_t rows, Py_ssize_t data) except -1:
        """Room for that many more rows and bytes. The room counts once the memory is there, not before."""
        cdef Py_ssize_t room, old
        if rows > INT32_MAX - self.filled.rows or data > INT32_MAX - self.filled.used:
            raise TooLarge("a column of variable length", INT32_MAX)
        rows += self.filled.rows
        data += self.filled.used
        if rows > self.room_rows:
            room = min(rows * 3 // 2 + 1, INT32_MAX)
            old = (self.room_rows + 7) // 8
            PyByteArray_Resize(self.ends, (room + 1) * 4)
            PyByteArray_Resize(self.valid, (room + 7) // 8)
            memset(PyByteArray_AS_STRING(self.valid) + old, 0, <size_t>((room + 7) // 8 - old))
            self.room_rows = room
        if data > self.room_data:
            room = min(data * 3 // 2, INT32_MAX)
            PyByteArray_Resize(self.data, room)
            self.room_data = room
        return 0

    cdef inline void add(self, const uint8_t *data, Py_ssize_t size) noexcept:
        """Append a value (size -1: null) for which make_room made room."""
        cdef Py_ssize_t row = self.filled.rows
        if size < 0:
            self.filled.nulls += 1
        else:
            memcpy(PyByteArray_AS_STRING(self.data) + self.filled.used, data, <size_t>size)
            self.filled.used += size
            (<uint8_t *>PyByteArray_AS_STRING(self.valid))[row >> 3] |= <uint8_t>(1 << (row & 7))
        self.filled.rows = row + 1
        (<int32_t *>PyByteArray_AS_STRING(self.ends))[row + 1] = <int32_t>self.filled.used

    cdef void rewind(self, Mark mark) noexcept:
        cdef uint8_t *valid = <uint8_t *>PyByteArray_AS_STRING(self.valid)
        cdef Py_ssize_t row
        for row in range(mark.rows, self.filled.rows):
            valid[row >> 3] &= <uint8_t>~(1 << (row & 7))
        self.filled = mark

    cdef tuple take(self):
        """(ends, data, validity or None), trimmed; there is no room left."""
        self.room_rows = self.filled.rows
        self.room_data = self.filled.used
        PyByteArray_Resize(self.ends, (self.filled.rows + 1) * 4)
        PyByteArray_Resize(self.data, self.filled.used)
        PyByteArray_Resize(self.valid, (self.filled.rows + 7) // 8)
        return (self.ends, self.data, self.valid if self.filled.nulls else None)


@cython.final
cdef class ColumnBuilder:
    """Records of many batches as Arrow buffers: no Python object a record.

    `append` adds the records of one decompressed batch whose offsets lie in [from_offset, until_offset); `finish`
    gives the buffers and starts anew. `timestamp_scale` turns milliseconds into a finer unit (1000: microseconds).
    """

    cdef readonly Py_ssize_t rows
    cdef bint with_headers
    cdef int64_t scale
    cdef Py_ssize_t room
    cdef tuple sizes  # what the last round came to: the next one then grows by one allocation, not by many
    cdef bytearray offsets
    cdef bytearray timestamps
    cdef bytearray header_ends
    cdef _Bytes keys
    cdef _Bytes values
    cdef _Bytes header_keys
    cdef _Bytes header_values

    def __cinit__(self, bint headers=False, int64_t timestamp_scale=1):
        self.with_headers = headers
        self.scale = timestamp_scale
        self.sizes = (1024, 4096, 4096, 256, 1024, 1024)
        self.reset()

    cdef int reset(self) except -1:
        rows, keys, values, pairs, names, contents = self.sizes
        self.rows = 0
        self.room = 0
        self.offsets = PyByteArray_FromStringAndSize(NULL, 0)
        self.timestamps = PyByteArray_FromStringAndSize(NULL, 0)
        self.header_ends = PyByteArray_FromStringAndSize(NULL, 4)
        memset(PyByteArray_AS_STRING(self.header_ends), 0, 4)
        self.keys = _Bytes(rows, keys)
        self.values = _Bytes(rows, values)
        self.header_keys = _Bytes(pairs, names) if self.with_headers else _Bytes(0, 0)
        self.header_values = _Bytes(pairs, contents) if self.with_headers else _Bytes(0, 0)
        self.make_room(rows, 0)
        return 0

    @property
    def data_size(self):
        """Bytes of keys and values gathered so far."""
        return self.keys.filled.used + self.values.filled.used

    cdef int make_room(self, Py_ssize_t rows, Py_ssize_t data) except -1:
        """Room for that many more rows, of that many bytes in all; headers find theirs as they come."""
        cdef Py_ssize_t room
        if self.with_headers and (
            data > INT32_MAX - self.header_keys.filled.used
            or data > INT32_MAX - self.header_values.filled.used
            or data // 2 > INT32_MAX - self.header_keys.filled.rows
        ):
            raise TooLarge("a column of variable length", INT32_MAX)
        self.keys.make_room(rows, data)
        self.values.make_room(rows, data)
        if rows > self.room - self.rows:
            room = (self.rows + rows) * 3 // 2 + 1
            PyByteArray_Resize(self.offsets, room * 8)
            PyByteArray_Resize(self.timestamps, room * 8)
            if self.with_headers:
                PyByteArray_Resize(self.header_ends, (room + 1) * 4)
            self.room = room
        return 0

    cdef int add_headers(self, Parsed *record) except -1:
        cdef const uint8_t *p = record.headers
        cdef const uint8_t *data = NULL
        cdef Py_ssize_t size = 0, i
        self.header_keys.make_room(record.header_count, record.end - p)
        self.header_values.make_room(record.header_count, record.end - p)
        for i in range(record.header_count):
            get_sized(&p, record.end, &data, &size, False)
            check_utf8(data, size)
            self.header_keys.add(data, size)
            get_sized(&p, record.end, &data, &size, True)
            self.header_values.add(data, size)
        return 0

    cdef int add(self, Parsed *record, int64_t offset, int64_t timestamp) except -1:
        (<int64_t *>PyByteArray_AS_STRING(self.offsets))[self.rows] = offset
        (<int64_t *>PyByteArray_AS_STRING(self.timestamps))[self.rows] = wrap_mul(timestamp, self.scale)
        self.keys.add(record.key, record.key_size)
        self.values.add(record.value, record.value_size)
        self.rows += 1
        if self.with_headers:
            if record.header_count:
                self.add_headers(record)
            (<int32_t *>PyByteArray_AS_STRING(self.header_ends))[self.rows] = <int32_t>self.header_keys.filled.rows
        return 0

    def append(
        self, buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, int64_t base_offset,
        int64_t base_timestamp, append_time=None, int64_t from_offset=0, int64_t until_offset=INT64_MAX,
    ):
        """Add a batch's records; how many were in range. On damage nothing of the batch is added."""
        cdef Py_buffer view
        cdef Cursor cursor
        cdef Parsed parsed
        cdef Py_ssize_t i, first = self.rows
        cdef int64_t offset
        cdef bint stamped = append_time is not None
        cdef int64_t stamp = append_time if stamped else 0
        cdef Mark keys = self.keys.filled, values = self.values.filled
        cdef Mark header_keys = self.header_keys.filled, header_values = self.header_values.filled
        open_range(buffer, &view, start, end, count, &cursor)
        try:
            self.make_room(count, end - start)
            for i in range(count):
                if not next_record(&cursor, &parsed):
                    raise damaged(i)
                offset = wrap_add(base_offset, parsed.offset_delta)
                if from_offset <= offset < until_offset:
                    self.add(
                        &parsed, offset, stamp if stamped else wrap_add(base_timestamp, parsed.timestamp_delta)
                    )
            check_end(&cursor)
        except BaseException:
            self.rows = first
            self.keys.rewind(keys)
            self.values.rewind(values)
            self.header_keys.rewind(header_keys)
            self.header_values.rewind(header_values)
            raise
        finally:
            PyBuffer_Release(&view)
        return self.rows - first

    def finish(self):
        """(rows, offsets, timestamps, keys, values, headers or None) and an empty builder.

        A column of bytes is (int32 ends, data, validity bitmap or None); headers are (int32 ends, keys, values).
        """
        cdef Py_ssize_t rows = self.rows
        self.sizes = (
            rows, self.keys.filled.used, self.values.filled.used, self.header_keys.filled.rows,
            self.header_keys.filled.used, self.header_values.filled.used,
        )
        self.room = rows
        PyByteArray_Resize(self.offsets, rows * 8)
        PyByteArray_Resize(self.timestamps, rows * 8)
        headers = None
        if self.with_headers:
            PyByteArray_Resize(self.header_ends, (rows + 1) * 4)
            headers = (self.header_ends, self.header_keys.take(), self.header_values.take())
        result = (rows, self.offsets, self.timestamps, self.keys.take(), self.values.take(), headers)
        self.reset()
        return result


cdef bint is_utf8(const uint8_t *data, Py_ssize_t size) except -1:
    cdef Py_ssize_t i
    for i in range(size):
        if data[i] >= 0x80:
            try:
                PyUnicode_DecodeUTF8(<char *>data, size, NULL)
            except UnicodeDecodeError:
                return False
            break
    return True


cdef int check_utf8(const uint8_t *data, Py_ssize_t size) except -1:
    if not is_utf8(data, size):
        raise CorruptBatch("a header's key is not UTF-8")
    return 0
