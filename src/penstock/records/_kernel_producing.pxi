# Records of a producer: an open batch.

cdef enum:
    FIRST_ROOM = 4096  # bytes an open batch starts with


@cython.final
cdef class BatchBuilder:
    """The records of one open batch, encoded as they are appended.

    `limit_bytes` bounds the batch before compression, its header of 61 bytes included; the first record always fits.
    `build` closes it: a batch that was sent once must not change, so from then on nothing fits.
    """

    cdef readonly Py_ssize_t limit_bytes
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly bint is_closed
    cdef bint is_lent
    cdef Py_ssize_t room
    cdef bytearray out
    cdef bytes packed  # what was compressed for the last build, and how
    cdef object packed_as

    def __cinit__(self, Py_ssize_t limit_bytes):
        if not HEADER <= limit_bytes <= INT32_MAX:
            raise ValueError(f"a batch's limit is {limit_bytes} bytes; it must be {HEADER} to {INT32_MAX}")
        self.limit_bytes = limit_bytes
        self.room = min(limit_bytes, FIRST_ROOM)
        self.out = PyByteArray_FromStringAndSize(NULL, self.room)
        memset(PyByteArray_AS_STRING(self.out), 0, HEADER)
        self.size = HEADER
        self.base_timestamp = self.max_timestamp = -1

    cdef uint8_t *begin(
        self, int64_t timestamp, const uint8_t *key, Py_ssize_t key_size, const uint8_t *value, Py_ssize_t value_size,
        Py_ssize_t headers_bytes,
    ) except? NULL:
        """Write a record up to its headers and return where these go; NULL if it does not fit.

        It is not part of the batch before `commit`.
        """
        cdef uint64_t delta = zigzag(wrap_sub(timestamp, self.base_timestamp) if self.count else 0)
        cdef uint64_t index = zigzag(self.count)
        cdef Py_ssize_t body, needed
        cdef uint8_t *p
        if self.is_closed:
            return NULL
        body = (
            1 + varint_size(delta) + varint_size(index) + sized_size(key_size) + sized_size(value_size) + headers_bytes
        )
        if body > INT32_MAX:
            raise TooLarge("a record", INT32_MAX)
        needed = self.size + varint_size(zigzag(body)) + body
        if needed > self.limit_bytes and self.count:
            return NULL
        if needed - LENGTH_END > INT32_MAX:
            raise TooLarge("a batch", INT32_MAX)
        if needed > self.room:
            self.grow(needed)
        p = <uint8_t *>PyByteArray_AS_STRING(self.out) + self.size
        p = put_varint(p, zigzag(body))
        p[0] = 0  # attributes: none are defined
        p = put_varint(p + 1, delta)
        p = put_varint(p, index)
        p = put_sized(p, key, key_size)
        return put_sized(p, value, value_size)

    cdef int grow(self, Py_ssize_t needed) except -1:
        cdef Py_ssize_t room = max(needed, min(self.room * 2, self.limit_bytes))
        PyByteArray_Resize(self.out, room)
        self.room = room
        return 0

    cdef inline Py_ssize_t commit(self, const uint8_t *p, int64_t timestamp) noexcept:
        """The record that ends at `p` is part of the batch; its index."""
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.size = p - <const uint8_t *>PyByteArray_AS_STRING(self.out)
        self.count += 1
        return self.count - 1

    cdef inline Py_ssize_t add(self, int64_t timestamp, bytes key, bytes value, list pairs) except -2:
        """Append; the index in the batch, -1 if it does not fit. Runs no Python."""
        cdef uint8_t *p = self.begin(
            timestamp, bytes_data(key), bytes_size(key), bytes_data(value), bytes_size(value),
            1 if pairs is None else headers_size(pairs),
        )
        if p == NULL:
            return -1
        if pairs is None:
            p[0] = 0
            return self.commit(p + 1, timestamp)
        return self.commit(put_headers(p, pairs), timestamp)

    def append(self, int64_t timestamp, key, value, headers=()):
        """Append a record; its index in the batch, or -1 if it does not fit."""
        cdef bytes key_bytes = None if key is None else as_bytes(key, "key")
        cdef bytes value_bytes = None if value is None else as_bytes(value, "value")
        return self.add(timestamp, key_bytes, value_bytes, header_pairs(headers) if headers else None)

    def append_many(self, int64_t timestamp, values, Py_ssize_t start=0, keys=None):
        """Append values[start:], each with its key where there are `keys`, until the batch is full; how many.

        A value that is refused raises when it comes first; else those before it are in, and it raises the next time.
        """
        cdef object items = PySequence_Fast(values, "values must be a sequence")
        cdef object names = None if keys is None else PySequence_Fast(keys, "keys must be a sequence")
        cdef bytes key = None, value
        cdef Py_ssize_t row = start
        if start < 0:
            raise ValueError(f"start {start} is negative")
        if names is not None and len(names) != len(items):
            raise ValueError(f"there are {len(names)} keys for {len(items)} values")
        while row < PySequence_Fast_GET_SIZE(items):  # asked again: a list may shrink while Python runs
            try:
                item = <object>PySequence_Fast_GET_ITEM(items, row)
                value = None if item is None else as_bytes(item, "value")
                if names is not None:
                    item = names[row]
                    key = None if item is None else as_bytes(item, "key")
                if self.add(timestamp, key, value, None) < 0:
                    break
            except (TypeError, TooLarge):
                if row == start:
                    raise
                break
            row += 1
        return row - start

    def append_columns(self, rows, Py_ssize_t start=0, stop=None, selection=None):
        """Append rows[start:stop], or the rows that selection[start:stop] names, until the batch is full; how many.

        A row that is refused raises when it comes first; else those before it are in, and it raises the next time.
        """
        cdef ColumnRows source = as_rows(rows)
        cdef _Selection chosen = _Selection(source.rows, start, stop, selection)
        cdef Py_ssize_t i
        for i in range(start, chosen.stop):
            chosen.fetch_ahead(source, i)
            try:
                if not self.add_row(source, chosen.row(i)):
                    break
            except (ValueError, TooLarge):
                if i == start:
                    raise
                break
        else:
            return chosen.stop - start
        return i - start

    cdef bint add_row(self, ColumnRows source, Py_ssize_t row) except -1:
        """Append a row of columns; whether it fitted. Runs no Python."""
        cdef Cell key, value
        cdef int64_t timestamp = source.timestamp_of(row)
        cdef Py_ssize_t headers = source.headers_size(row)
        cdef uint8_t *p
        source.read(&source.keys, row, &key)
        source.read(&source.values, row, &value)
        p = self.begin(timestamp, key.data, key.size, value.data, value.size, headers)
        if p == NULL:
            return False
        self.commit(source.put_headers(p, row, headers), timestamp)
        return True

    cdef bytearray lend(self):
        """The own buffer, unless somebody still has it."""
        if self.is_lent and Py_REFCNT(self.out) > 1:
            return PyByteArray_FromStringAndSize(PyByteArray_AS_STRING(self.out), self.size)
        PyByteArray_Resize(self.out, self.size)
        self.room = self.size
        self.is_lent = True
        return self.out

    def timestamp_runs(self):
        """[(index, timestamp)]: where in a built batch a timestamp begins that the record before does not have."""
        cdef Py_buffer view
        cdef Cursor cursor
        cdef Parsed parsed
        cdef Py_ssize_t i
        cdef int64_t last = 0, timestamp
        cdef list runs = []
        if not self.is_closed:
            raise ValueError("the batch is still open")
        if self.is_lent and len(self.out) != self.size:
            raise ValueError("the batch was resized by whoever got it")
        open_range(self.out, &view, HEADER, self.size, self.count, &cursor)
        try:
            for i in range(self.count):
                if not next_record(&cursor, &parsed):
                    raise damaged(i)
                timestamp = wrap_add(self.base_timestamp, parsed.timestamp_delta)
                if i == 0 or timestamp != last:
                    runs.append((i, timestamp))
                    last = timestamp
        finally:
            PyBuffer_Release(&view)
        return runs

    def build(
        self, *, int codec=0, level=None, int64_t producer_id=-1, int16_t producer_epoch=-1,
        int32_t base_sequence=-1, bint is_transactional=False,
    ):
        """The whole batch; again, with other numbers, for a retry under a new producer id.

        It is compressed once for the same codec and level. Not compressed, it is the builder's own buffer, to be read
        only; it is rewritten by the next build if nobody has it any more, else that one makes a copy.
        """
        cdef bytearray batch
        cdef bytes packed
        if self.count == 0:
            raise ValueError("a batch holds at least one record")
        if self.is_lent and len(self.out) != self.size:
            raise ValueError("the batch was resized by whoever got it")
        self.is_closed = True
        if codec == 0:
            batch = self.lend()
        else:
            if self.packed_as != (codec, level):
                with memoryview(self.out) as whole, whole[HEADER:self.size] as records:
                    packed = compress(codec, records, level)
                self.packed, self.packed_as = packed, (codec, level)
            packed = self.packed
            batch = PyByteArray_FromStringAndSize(NULL, HEADER + PyBytes_GET_SIZE(packed))
            memset(PyByteArray_AS_STRING(batch), 0, HEADER)
            memcpy(PyByteArray_AS_STRING(batch) + HEADER, PyBytes_AS_STRING(packed), <size_t>PyBytes_GET_SIZE(packed))
        write_header(
            batch, 0, -1, codec | (16 if is_transactional else 0), self.count - 1, self.base_timestamp,
            self.max_timestamp, producer_id, producer_epoch, base_sequence, self.count,
        )
        return batch


def encode_columns(rows, Py_ssize_t limit_bytes, Py_ssize_t start=0, stop=None, selection=None):
    """(a BatchBuilder, how many rows it took): rows[start:stop], or those that selection[start:stop] names.

    A batch has room for `limit_bytes` before compression; whoever has more rows goes on at `start` plus what was taken.
    """
    cdef BatchBuilder builder = BatchBuilder(limit_bytes)
    return builder, builder.append_columns(rows, start, stop, selection)
