# Records to Arrow columns, Arrow columns to records, and the partition of a key.

# --------------------------------------------------------------------------------------------------------- to columns

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
    gives the buffers and starts over. `timestamp_scale` turns milliseconds into a finer unit (1000: microseconds).
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
        cdef Py_ssize_t size, i
        self.header_keys.make_room(record.header_count, record.end - p)
        self.header_values.make_room(record.header_count, record.end - p)
        for i in range(record.header_count):
            size, p = get_size(p, record.end, 0)
            check_utf8(p, size)
            self.header_keys.add(p, size)
            size, p = get_size(after(p, size), record.end, -1)
            self.header_values.add(p, size)
            p = after(p, size)
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
        """Add a batch's records; how many were in range. On damage no record of the batch is added."""
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


cdef int check_utf8(const uint8_t *data, Py_ssize_t size) except -1:
    if not is_utf8(data, data + size):
        raise CorruptBatch("a header's key is not UTF-8")
    return 0


# ------------------------------------------------------------------------------------------------------- from columns

# A column's buffers are checked against its row count, and every offset against the data, once, when the rows are
# created. Another owner may write to a buffer later, so each offset is read only once and compared again before its
# bytes are: a changed offset is rejected, never followed.

cdef extern from *:
    """
    static inline int penstock_load32(const unsigned char *p, size_t i) { int v; memcpy(&v, p + i * 4, 4); return v; }
    static inline long long penstock_load64(const unsigned char *p, size_t i) {
        long long v; memcpy(&v, p + i * 8, 8); return v; }
    #if defined(__GNUC__) || defined(__clang__)
    /* The empty instruction keeps gcc from taking a function that only prefetches for one that does nothing. */
    #define penstock_prefetch(p) do { __builtin_prefetch(p); __asm__ volatile(""); } while (0)
    #else
    #define penstock_prefetch(p) ((void)(p))
    #endif
    """
    void prefetch "penstock_prefetch"(const void *p) nogil
    int32_t load32 "penstock_load32"(const uint8_t *p, size_t index) nogil
    int64_t load64 "penstock_load64"(const uint8_t *p, size_t index) nogil

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

cdef enum:
    AHEAD = 12  # rows between fetching a selected row's bytes into the cache and encoding it

cdef int64_t MOST_FIRST = 1 << 48  # rows before a slice: far beyond memory, and no sum of it overflows


cdef struct Cell:
    const uint8_t *data
    Py_ssize_t size  # -1: null


cdef struct Source:
    # one column of variable length; without ends every row is null
    const uint8_t *valid
    const uint8_t *ends
    const uint8_t *data
    Py_ssize_t data_size
    Py_ssize_t first
    bint wide


cdef inline bint bit(const uint8_t *bits, Py_ssize_t index) noexcept nogil:
    return (bits[index >> 3] >> (index & 7)) & 1


cdef inline int64_t end_of(const Source *source, Py_ssize_t index) noexcept nogil:
    if source.wide:
        return load64(source.ends, <size_t>index)
    return load32(source.ends, <size_t>index)


cdef inline bint read_span(const Source *source, Py_ssize_t row, int64_t *start, int64_t *end) noexcept nogil:
    """Where a row's bytes lie, start -1 if it is null; False if that is not in the data."""
    row += source.first
    start[0] = -1
    end[0] = -1
    if source.ends == NULL or (source.valid != NULL and not bit(source.valid, row)):
        return True
    start[0] = end_of(source, row)
    end[0] = end_of(source, row + 1)
    return 0 <= start[0] <= end[0] <= source.data_size


cdef inline bint read_cell(const Source *source, Py_ssize_t row, Cell *cell) noexcept nogil:
    """What a row holds; False if its bytes do not lie in the data."""
    cdef int64_t start = 0, end = 0
    if not read_span(source, row, &start, &end):
        return False
    cell.data = NULL
    cell.size = -1
    if start >= 0:
        cell.data = source.data + start
        cell.size = <Py_ssize_t>(end - start)
    return True


cdef inline void fetch_cell(const Source *source, Py_ssize_t row) noexcept nogil:
    """Have a row's first bytes brought into the cache."""
    cdef int64_t start = 0, end = 0
    if read_span(source, row, &start, &end) and start >= 0:
        prefetch(source.data + start)
        prefetch(source.data + end)


cdef Py_ssize_t bad_row(const Source *source, Py_ssize_t rows, int64_t most) noexcept nogil:
    """The first row whose offsets go back or beyond `most`; -1 if there is none."""
    cdef int64_t start = end_of(source, source.first), end
    cdef Py_ssize_t row
    for row in range(rows):
        end = end_of(source, source.first + row + 1)
        if start < 0 or end < start or end > most:
            return row
        start = end
    return -1


@cython.final
cdef class ColumnRows:
    """Rows of Arrow columns to encode as records. The buffers stay borrowed as long as this lives.

    A column of bytes is (validity bitmap or None, offsets, data or None, width of an offset: 4 or 8, first row of the
    slice), or None where every row is null. `timestamps` is (validity bitmap or None, int64 milliseconds, first row);
    rows without one have `timestamp_ms`. `headers` is (validity bitmap or None, offsets, width, first row, column of
    names, column of contents, how many pairs there are).
    """

    cdef readonly Py_ssize_t rows
    cdef readonly int64_t timestamp_ms
    cdef list borrowed
    cdef Source keys
    cdef Source values
    cdef Source stamps  # its ends are the numbers
    cdef Source pairs  # its ends count pairs, and it has no data
    cdef Source names
    cdef Source contents

    def __init__(self, Py_ssize_t rows, values, keys=None, int64_t timestamp_ms=-1, timestamps=None, headers=None):
        if self.borrowed is not None:
            raise ValueError("the rows are put together already")
        if not 0 <= rows <= INT32_MAX:
            raise ValueError(f"{rows} rows: there may be 0 to {INT32_MAX}")
        self.borrowed = []
        self.timestamp_ms = timestamp_ms
        self.take_bytes(&self.values, values, rows, "value")
        self.take_bytes(&self.keys, keys, rows, "key")
        if timestamps is not None:
            self.take_stamps(timestamps, rows)
        if headers is not None:
            self.take_headers(headers, rows)
        self.rows = rows

    cdef const uint8_t *borrow(self, object buffer, Py_ssize_t needed, str what, Py_ssize_t *size) except? NULL:
        cdef Py_buffer *view
        try:
            held = memoryview(buffer)
        except TypeError:
            raise TypeError(f"the {what} must be a buffer, not {type(buffer).__name__}") from None
        if not held.c_contiguous:
            raise ValueError(f"the {what} are not contiguous")
        view = PyMemoryView_GET_BUFFER(held)
        if view.len < needed:
            raise ValueError(f"the {what} are {view.len} bytes; {needed} are needed")
        self.borrowed.append(held)
        size[0] = view.len
        return <const uint8_t *>view.buf

    cdef int take_offsets(
        self, Source *source, object validity, object ends, int width, int64_t first, Py_ssize_t rows, str what
    ) except -1:
        """Everything of a column but its data."""
        cdef Py_ssize_t size
        if width != 4 and width != 8:
            raise ValueError(f"an offset of the {what} column has 4 or 8 bytes, not {width}")
        if not 0 <= first <= MOST_FIRST:
            raise ValueError(f"the {what} column cannot begin at row {first}")
        source.first = <Py_ssize_t>first
        source.wide = width == 8
        if validity is not None:
            source.valid = self.borrow(validity, (source.first + rows + 7) // 8, f"validity bits of the {what} column", &size)
        source.ends = self.borrow(
            ends, 0 if rows == 0 else (source.first + rows + 1) * width, f"offsets of the {what} column", &size
        )
        return 0

    cdef int take_bytes(self, Source *source, object column, Py_ssize_t rows, str what) except -1:
        cdef Py_ssize_t bad
        if column is None:
            return 0
        validity, ends, data, width, first = column
        self.take_offsets(source, validity, ends, width, first, rows, what)
        if data is not None:
            source.data = self.borrow(data, 0, f"data of the {what} column", &source.data_size)
        if rows == 0:
            return 0
        with nogil:
            bad = bad_row(source, rows, source.data_size)
        if bad >= 0:
            raise outside(source, bad, what)
        return 0

    cdef int take_stamps(self, object column, Py_ssize_t rows) except -1:
        cdef Py_ssize_t size
        validity, numbers, start = column
        cdef int64_t first = start
        if not 0 <= first <= MOST_FIRST:
            raise ValueError(f"the timestamp column cannot begin at row {first}")
        self.stamps.first = <Py_ssize_t>first
        if validity is not None:
            self.stamps.valid = self.borrow(
                validity, (<Py_ssize_t>first + rows + 7) // 8, "validity bits of the timestamp column", &size
            )
        self.stamps.ends = self.borrow(
            numbers, 0 if rows == 0 else (<Py_ssize_t>first + rows) * 8, "numbers of the timestamp column", &size
        )
        return 0

    cdef int take_headers(self, object column, Py_ssize_t rows) except -1:
        cdef Py_ssize_t bad, row
        cdef Cell name
        validity, ends, width, first, names, contents, count = column
        cdef Py_ssize_t pairs = count
        if not 0 <= pairs <= INT32_MAX:
            raise ValueError(f"{pairs} headers: there may be 0 to {INT32_MAX}")
        if names is None:
            raise TypeError("the header key column must be there")
        self.take_bytes(&self.names, names, pairs, "header key")
        self.take_bytes(&self.contents, contents, pairs, "header value")
        self.take_offsets(&self.pairs, validity, ends, width, first, rows, "headers")
        if rows == 0:
            self.pairs.ends = NULL
            return 0
        self.pairs.data_size = pairs
        bad = bad_row(&self.pairs, rows, pairs)
        if bad >= 0:
            raise outside(&self.pairs, bad, "headers")
        for row in range(<Py_ssize_t>end_of(&self.pairs, self.pairs.first),
                         <Py_ssize_t>end_of(&self.pairs, self.pairs.first + rows)):
            self.read(&self.names, row, &name)
            if name.size < 0:
                raise ValueError(f"header {row} has no key")
            if not is_utf8(name.data, name.data + name.size):
                raise ValueError(f"the key of header {row} is not UTF-8")
        return 0

    cdef inline int read(self, const Source *source, Py_ssize_t row, Cell *cell) except -1:
        if not read_cell(source, row, cell):
            raise changed(row)
        return 0

    cdef inline int64_t timestamp_of(self, Py_ssize_t row) noexcept:
        row += self.stamps.first
        if self.stamps.ends == NULL or (self.stamps.valid != NULL and not bit(self.stamps.valid, row)):
            return self.timestamp_ms
        return load64(self.stamps.ends, <size_t>row)

    cdef inline int span(self, Py_ssize_t row, int64_t *start, int64_t *stop) except -1:
        """The pairs of a row's headers."""
        if not read_span(&self.pairs, row, start, stop):
            raise changed(row)
        return 0

    cdef Py_ssize_t headers_size(self, Py_ssize_t row) except -1:
        cdef int64_t start = 0, stop = 0, pair
        cdef Py_ssize_t size
        cdef Cell name, content
        if self.pairs.ends == NULL:
            return 1
        self.span(row, &start, &stop)
        size = varint_size(zigzag(stop - start))
        for pair in range(start, stop):
            self.read(&self.names, pair, &name)
            self.read(&self.contents, pair, &content)
            size += sized_size(name.size) + sized_size(content.size)
        return size

    cdef uint8_t *put_headers(self, uint8_t *p, Py_ssize_t row, Py_ssize_t size) except NULL:
        """Write a row's headers, which take `size` bytes; the position after them."""
        cdef const uint8_t *end = p + size
        cdef int64_t start = 0, stop = 0, pair
        cdef Cell name, content
        if self.pairs.ends == NULL:
            p[0] = 0
            return p + 1
        self.span(row, &start, &stop)
        if varint_size(zigzag(stop - start)) > end - p:
            raise changed(row)
        p = put_varint(p, zigzag(stop - start))
        for pair in range(start, stop):
            self.read(&self.names, pair, &name)
            self.read(&self.contents, pair, &content)
            if name.size < 0 or sized_size(name.size) + sized_size(content.size) > end - p:
                raise changed(row)
            p = put_sized(p, name.data, name.size)
            p = put_sized(p, content.data, content.size)
        if p != end:
            raise changed(row)
        return p


cdef object changed(Py_ssize_t row):
    return ValueError(f"row {row} was changed after it was checked")


cdef object outside(const Source *source, Py_ssize_t row, str what):
    cdef int64_t start = end_of(source, source.first + row), end = end_of(source, source.first + row + 1)
    return ValueError(f"row {row} of the {what} column spans {start} to {end} of {source.data_size}")


cdef ColumnRows as_rows(object candidate):
    if type(candidate) is not ColumnRows:
        raise TypeError(f"ColumnRows are needed, not {type(candidate).__name__}")
    return <ColumnRows>candidate


@cython.final
cdef class _Numbers:
    """A borrowed buffer of native int32 or int64."""

    cdef object held
    cdef const uint8_t *numbers
    cdef bint wide
    cdef Py_ssize_t count

    def __cinit__(self, buffer, str what):
        cdef Py_buffer *view
        try:
            self.held = memoryview(buffer)
        except TypeError:
            raise TypeError(f"the {what} must be a buffer, not {type(buffer).__name__}") from None
        if self.held.format not in ("i", "l", "q") or self.held.ndim != 1 or not self.held.c_contiguous:
            raise TypeError(f"the {what} must be contiguous int32 or int64, not format {self.held.format}")
        view = PyMemoryView_GET_BUFFER(self.held)
        self.numbers = <const uint8_t *>view.buf
        self.wide = view.itemsize == 8
        self.count = view.len // view.itemsize

    cdef inline int64_t at(self, Py_ssize_t index) noexcept nogil:
        if self.wide:
            return load64(self.numbers, <size_t>index)
        return load32(self.numbers, <size_t>index)


@cython.final
cdef class _Selection:
    """The rows to take: those in a buffer of row numbers, or a range of all."""

    cdef _Numbers numbers
    cdef Py_ssize_t rows
    cdef Py_ssize_t stop

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t start, stop, selection):
        cdef Py_ssize_t count = rows
        self.rows = rows
        if selection is not None:
            self.numbers = _Numbers(selection, "selected rows")
            count = self.numbers.count
        self.stop = count if stop is None else stop
        if not 0 <= start <= self.stop <= count:
            raise ValueError(f"rows {start} to {self.stop} are outside of {count}")

    cdef inline void fetch_ahead(self, ColumnRows source, Py_ssize_t index) noexcept:
        """Selected rows lie apart, and waiting for memory would cost several times what encoding does."""
        cdef int64_t row
        if self.numbers is None or index >= self.stop - AHEAD:
            return
        row = self.numbers.at(index + AHEAD)
        if 0 <= row < self.rows:
            fetch_cell(&source.keys, row)
            fetch_cell(&source.values, row)

    cdef inline Py_ssize_t row(self, Py_ssize_t index) except -1:
        cdef int64_t row
        if self.numbers is None:
            return index
        row = self.numbers.at(index)
        if not 0 <= row < self.rows:
            raise ValueError(f"row {row} is not one of {self.rows}")
        return <Py_ssize_t>row


# --------------------------------------------------------------------------------------------------------- partitions

cdef enum:
    MOST_PARTITIONS = 1_000_000


cdef inline uint32_t hash_key(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Kafka's murmur2, its sign bit cleared."""
    cdef uint32_t m = 0x5BD1E995, h = <uint32_t>0x9747B28C ^ <uint32_t>size, k
    while size >= 4:
        k = <uint32_t>p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)
        k *= m
        k ^= k >> 24
        h = (h * m) ^ (k * m)
        p += 4
        size -= 4
    if size >= 3:
        h ^= <uint32_t>p[2] << 16
    if size >= 2:
        h ^= <uint32_t>p[1] << 8
    if size >= 1:
        h = (h ^ p[0]) * m
    h = (h ^ (h >> 13)) * m
    return (h ^ (h >> 15)) & 0x7FFFFFFF


def murmur2(key):
    """Java's hash of a key, 0 to 2**31 - 1. The partition is its remainder."""
    cdef bytes data
    if key is None:
        raise TypeError("a record's key must be bytes to be hashed, not None")
    data = as_bytes(key, "key")
    return hash_key(bytes_data(data), PyBytes_GET_SIZE(data))


cdef Py_ssize_t place_rows(
    ColumnRows rows, _Numbers wanted, uint32_t partition_count, int32_t *places, Py_ssize_t *counts
) noexcept nogil:
    """Note each row's partition, partition_count for none, and how many each has; -1, or the row that has no place."""
    cdef Py_ssize_t row
    cdef int64_t place
    cdef Cell key
    for row in range(rows.rows):
        place = -1 if wanted is None else wanted.at(row)
        if place < -1 or place >= partition_count:
            return row
        if place == -1:
            if not read_cell(&rows.keys, row, &key):
                return row
            place = partition_count if key.size < 0 else hash_key(key.data, key.size) % partition_count
        places[row] = <int32_t>place
        counts[place] += 1
    return -1


def partition_rows(rows, Py_ssize_t partition_count, partitions=None):
    """([the rows of each partition], the rows that have none), as int32 row numbers, ascending.

    A row's partition is its number in `partitions` (int32 or int64), if given and not -1, or else the key's by
    murmur2. A row without key has none.
    """
    cdef ColumnRows source = as_rows(rows)
    cdef _Numbers wanted = None
    cdef bytearray places, counts, numbers
    cdef int32_t *place
    cdef int32_t *number
    cdef Py_ssize_t *free
    cdef Py_ssize_t row, bad, i
    if not 1 <= partition_count <= MOST_PARTITIONS:
        raise ValueError(f"a topic has 1 to {MOST_PARTITIONS} partitions, not {partition_count}")
    if partitions is not None:
        wanted = _Numbers(partitions, "partitions")
        if wanted.count != source.rows:
            raise ValueError(f"there are {wanted.count} partitions for {source.rows} rows")
    places = PyByteArray_FromStringAndSize(NULL, source.rows * 4)
    numbers = PyByteArray_FromStringAndSize(NULL, source.rows * 4)
    counts = PyByteArray_FromStringAndSize(NULL, (partition_count + 1) * sizeof(Py_ssize_t))
    memset(PyByteArray_AS_STRING(counts), 0, (partition_count + 1) * sizeof(Py_ssize_t))
    place = <int32_t *>PyByteArray_AS_STRING(places)
    number = <int32_t *>PyByteArray_AS_STRING(numbers)
    free = <Py_ssize_t *>PyByteArray_AS_STRING(counts)
    with nogil:
        bad = place_rows(source, wanted, <uint32_t>partition_count, place, free)
    if bad >= 0:
        raise ValueError(f"row {bad} has no partition of 0 to {partition_count - 1}")
    bounds = [0]
    for i in range(partition_count + 1):
        bounds.append(bounds[i] + free[i])
        free[i] = bounds[i]
    with nogil:
        for row in range(source.rows):
            number[free[place[row]]] = <int32_t>row
            free[place[row]] += 1
    whole = memoryview(numbers).cast("i")
    parts = [whole[bounds[i]:bounds[i + 1]] for i in range(partition_count + 1)]
    return parts[:partition_count], parts[partition_count]
