# Arrow's columns as records to be encoded: no Python object a row.
#
# Rule: a column's buffers are checked against its row count, and every offset against the data, once, when the rows are
# put together. Since a buffer may be written to later, by somebody else, each offset is also read only once and compared
# again before its bytes are: what was changed behind our back is refused, never followed.

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
    """Rows of Arrow columns, which stay borrowed as long as this lives: each row is a record to be.

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
            if not is_utf8(name.data, name.size):
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
        """Write a row's headers, for which `size` bytes were reckoned; past the end of them."""
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
    """Which rows to take: some of those that a buffer of row numbers names, or a run of all."""

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
