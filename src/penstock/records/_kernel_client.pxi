# Producer and consumer loops: open batches and the lanes that fill them, and consumer records.

# -------------------------------------------------------------------------------------------------------- open batches

cdef enum:
    FIRST_ROOM = 4096  # bytes an open batch starts with
    MOST_RUNS = 32  # of records with the same timestamp, noted as they are appended


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
    cdef int runs  # how many there are, MOST_RUNS + 1 for more
    cdef int64_t[MOST_RUNS] run_timestamps
    cdef Py_ssize_t[MOST_RUNS] run_starts
    cdef int64_t last_timestamp
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
        if timestamp != self.last_timestamp or self.count == 0:
            if self.runs < MOST_RUNS:
                self.run_timestamps[self.runs] = timestamp
                self.run_starts[self.runs] = self.count
            if self.runs <= MOST_RUNS:
                self.runs += 1
            self.last_timestamp = timestamp
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

        An invalid value raises if it comes first. Otherwise the values before it are appended, and it raises next time.
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

        An invalid row raises if it comes first. Otherwise the rows before it are appended, and it raises next time.
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
        """The builder's own buffer, or a copy while an earlier batch is still referenced."""
        if self.is_lent and Py_REFCNT(self.out) > 1:
            return PyByteArray_FromStringAndSize(PyByteArray_AS_STRING(self.out), self.size)
        PyByteArray_Resize(self.out, self.size)
        self.room = self.size
        self.is_lent = True
        return self.out

    def timestamp_runs(self):
        """[(index, timestamp)] of a built batch: where the timestamp changes."""
        cdef Py_buffer view
        cdef Cursor cursor
        cdef Parsed parsed
        cdef Py_ssize_t i
        cdef int64_t last = 0, timestamp
        cdef list runs = []
        if not self.is_closed:
            raise ValueError("the batch is still open")
        if self.is_lent and len(self.out) != self.size:
            raise ValueError("the batch was resized by its reader")
        if self.runs <= MOST_RUNS:
            return [(self.run_starts[i], self.run_timestamps[i]) for i in range(self.runs)]
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
        """The complete batch. It may be built again with other numbers, for a retry with a new producer id.

        It is compressed once for the same codec and level. Not compressed, it is the builder's own buffer, to be read
        only. The next build rewrites it if no reference is left, and copies it otherwise.
        """
        cdef bytearray batch
        cdef bytes packed
        if self.count == 0:
            raise ValueError("a batch holds at least one record")
        if self.is_lent and len(self.out) != self.size:
            raise ValueError("the batch was resized by its reader")
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

    A batch has room for `limit_bytes` before compression; for more rows, call again with `start` plus what was taken.
    """
    cdef BatchBuilder builder = BatchBuilder(limit_bytes)
    return builder, builder.append_columns(rows, start, stop, selection)


# -------------------------------------------------------------------------------------------------------------- lanes

# An append is atomic for other threads. Whatever may run Python (turning a value into bytes, creating a ticket) is done
# before the batch is looked at; from then on to the return nothing gives up the interpreter's lock.

cdef extern from *:
    """
    /* What `base.__new__(kind, *arguments)` comes to, without looking `__new__` up and calling it. */
    static inline PyObject *penstock_new(PyTypeObject *base, PyTypeObject *kind, PyObject *arguments) {
        return base->tp_new(kind, arguments, NULL); }
    """
    object new_of "penstock_new"(PyTypeObject *base, PyTypeObject *kind, PyObject *arguments)

cdef extern from *:
    """
    /* Instances of a subclass made by Python bear the collector's header and count as allocations for it. These need
       neither: they own one reference, to a batch. */
    static void penstock_leave_collector(PyTypeObject *kind) {
    #ifndef Py_GIL_DISABLED
        kind->tp_flags &= ~Py_TPFLAGS_HAVE_GC;
        kind->tp_traverse = NULL;
        kind->tp_clear = NULL;
        kind->tp_free = PyObject_Free;
    #endif
    }
    """
    void leave_collector "penstock_leave_collector"(PyTypeObject *kind)

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        int64_t tv_sec
        long tv_nsec
    enum: TIME_UTC
    int timespec_get(timespec *now, int base)

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    bint PyUnicode_Check(object candidate)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    bint PyCallable_Check(object candidate)
    object PyUnicode_AsUTF8String(object text)
    int PyDict_Next(dict source, Py_ssize_t *at, PyObject **key, PyObject **value)
    bint PyDict_CheckExact(object candidate)
    bint PyList_CheckExact(object candidate)
    bint PyTuple_CheckExact(object candidate)

cdef tuple NO_ARGUMENTS = ()


cdef object content_of(object given, str what, Cell *cell):
    """Points `cell` at what is given: bytes as they are, text as UTF-8, None as null. Returns the owner of the bytes."""
    if PyBytes_CheckExact(given):
        cell.data = <const uint8_t *>PyBytes_AS_STRING(given)
        cell.size = PyBytes_GET_SIZE(given)
        return given
    if given is None:
        cell.data = NULL
        cell.size = -1
        return given
    if PyUnicode_Check(given):
        if PyUnicode_IS_COMPACT_ASCII(given):
            cell.data = <const uint8_t *>PyUnicode_AsUTF8AndSize(given, &cell.size)
            return given
        owner = PyUnicode_AsUTF8String(given)  # not kept in the text, which may be large and live long
    elif isinstance(given, (bytes, bytearray, memoryview)):
        owner = bytes(given)
    else:
        raise TypeError(f"a record's {what} must be bytes, str or None, not {type(given).__name__}")
    cell.data = <const uint8_t *>PyBytes_AS_STRING(owner)
    cell.size = PyBytes_GET_SIZE(owner)
    return owner


cdef list simple_headers(object headers):
    """Headers of any kind as [(str, bytes or None)]."""
    cdef list pairs = []
    for name, value in headers.items() if hasattr(headers, "items") else headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's key must be str, not {type(name).__name__}")
        if isinstance(value, str):
            value = PyUnicode_AsUTF8String(value)
        pairs.append((str(name), None if value is None else as_bytes(value, "header value")))
    return pairs


cdef bint header_cells(object name, object value, Cell *cells) except -1:
    """Points two cells at a header; False if it is not of the simple kinds, whose bytes are there without Python."""
    if not PyUnicode_Check(name):
        return False
    cells[0].data = <const uint8_t *>PyUnicode_AsUTF8AndSize(name, &cells[0].size)
    if PyBytes_CheckExact(value):
        cells[1].data = <const uint8_t *>PyBytes_AS_STRING(value)
        cells[1].size = PyBytes_GET_SIZE(value)
    elif value is None:
        cells[1].data = NULL
        cells[1].size = -1
    elif PyUnicode_Check(value):
        cells[1].data = <const uint8_t *>PyUnicode_AsUTF8AndSize(value, &cells[1].size)
    else:
        return False
    return True


cdef bint header_at(object headers, Py_ssize_t *at, Cell *cells) except -1:
    """The header at a position, which moves on; False if it is not simple."""
    cdef PyObject *name = NULL
    cdef PyObject *value = NULL
    cdef object pair
    if PyDict_CheckExact(headers):
        return PyDict_Next(<dict>headers, at, &name, &value) and header_cells(<object>name, <object>value, cells)
    pair = <object>PySequence_Fast_GET_ITEM(headers, at[0])
    at[0] += 1
    if not PyTuple_CheckExact(pair) or PyTuple_GET_SIZE(pair) != 2:
        return False
    return header_cells(<object>PyTuple_GET_ITEM(pair, 0), <object>PyTuple_GET_ITEM(pair, 1), cells)


cdef Py_ssize_t simple_headers_size(object headers) except -2:
    """What `put_simple_headers` writes; -1 if they are not a dict, list or tuple of the simple kinds. Runs no Python."""
    cdef Py_ssize_t count, at = 0, size, i
    cdef Cell[2] cells
    if PyDict_CheckExact(headers):
        count = len(<dict>headers)
    elif PyList_CheckExact(headers) or PyTuple_CheckExact(headers):
        count = PySequence_Fast_GET_SIZE(headers)
    else:
        return -1
    size = varint_size(zigzag(count))
    for i in range(count):
        if not header_at(headers, &at, cells):
            return -1
        size += sized_size(cells[0].size) + sized_size(cells[1].size)
    return size


cdef uint8_t *put_simple_headers(uint8_t *p, object headers) except NULL:
    """Write headers that `simple_headers_size` has measured, with no Python run since."""
    cdef Py_ssize_t count, at = 0, i
    cdef Cell[2] cells
    count = len(<dict>headers) if PyDict_CheckExact(headers) else PySequence_Fast_GET_SIZE(headers)
    p = put_varint(p, zigzag(count))
    for i in range(count):
        header_at(headers, &at, cells)
        p = put_sized(p, cells[0].data, cells[0].size)
        p = put_sized(p, cells[1].data, cells[1].size)
    return p


@cython.final
cdef class Callbacks:
    """Callbacks for when a batch is done, with their arguments, in the order of addition.

    An int is the index of a record. Records in a row with the same callback are kept as one, so that a callback that
    all records share costs no object per record. From any thread. Nothing is lost between `add` and `take`: what `take`
    does not return, `add` has rejected. `guard` is for the Python kernel: here a call is atomic without one.
    """

    cdef list items
    cdef Py_ssize_t first, end  # of the records of `shared`, which are not in `items` yet
    cdef object shared

    def __init__(self, guard=None):
        self.items = []

    cdef inline int add_record(self, Py_ssize_t index, object callback) except -1:
        """A record's callback. Runs no Python."""
        if callback is self.shared and index == self.end:
            self.end += 1
            return 0
        self.keep_shared()
        self.first, self.end, self.shared = index, index + 1, callback
        return 0

    cdef int keep_shared(self) except -1:
        if self.first < self.end:
            PyList_Append(self.items, self.first if self.first + 1 == self.end else range(self.first, self.end))
            PyList_Append(self.items, self.shared)
            self.first = self.end = 0
            self.shared = None
        return 0

    def add(self, argument, callback):
        """Adds a callback with its argument; False once the others were taken."""
        if self.items is None:
            return False
        if type(argument) is int:
            self.add_record(argument, callback)
        else:
            self.keep_shared()
            PyList_Append(self.items, argument)
            PyList_Append(self.items, callback)
        return True

    def take(self):
        """Everything added, as [argument, callback, argument, callback, ...]; empty the second time.

        The argument of records in a row that share a callback is the range of their indexes.
        """
        items = self.items
        if items is None:
            return []
        self.keep_shared()
        self.items = None
        return items


cdef class _Stored:
    """The metadata of stored records, for one batch."""

    cdef type kind
    cdef object topic, partition, stamps
    cdef int64_t base_offset
    cdef object stamp
    cdef Py_ssize_t first, end  # of the records with this timestamp: neighbours mostly share theirs

    cdef object metadata(self, Py_ssize_t index):
        if not self.first <= index < self.end:
            self.stamp, self.first, self.end = self.stamps.run_at(index)
        arguments = ((self.topic, self.partition, self.base_offset + index, self.stamp),)
        return new_of(<PyTypeObject *>tuple, <PyTypeObject *>self.kind, <PyObject *>arguments)


def run_callbacks(list callbacks, tuple stored, report, on_error):
    """Call what `Callbacks.take` returned; `on_error()` is called in the handler of what a callback raises.

    The callbacks of records get (None, metadata) if `stored` is (the metadata's subclass of tuple, topic, partition,
    base offset, timestamp or timestamps), and what `report(index)` returns if it is None. With None as its argument a
    callback is called without, with any other it gets that.
    """
    cdef Py_ssize_t number, index, end
    cdef _Stored place = None
    if stored is not None:
        place = _Stored()
        place.kind, place.topic, place.partition, place.base_offset, place.stamps = stored
        if isinstance(place.stamps, int):
            place.stamp, place.end = place.stamps, PY_SSIZE_T_MAX
    for number in range(0, len(callbacks) - 1, 2):
        argument, callback = callbacks[number], callbacks[number + 1]
        if type(argument) is int:
            index, end = argument, argument + 1
        elif type(argument) is range:
            index, end = argument.start, argument.stop
        else:
            try:
                callback() if argument is None else callback(argument)
            except (Exception, SystemExit):
                on_error()
            continue
        while index < end:
            try:
                if place is not None:
                    callback(None, place.metadata(index))
                else:
                    error, metadata = report(index)
                    callback(error, metadata)
            except (Exception, SystemExit):
                on_error()
            index += 1


@cython.freelist(256)
@cython.no_gc
cdef class Ticket:
    """Which record of which batch: what a producer gives for a record sent. Subclass it, see `uncollected`."""

    cdef public object batch
    cdef public Py_ssize_t index

    def __init__(self, batch, Py_ssize_t index):
        self.batch = batch
        self.index = index


def uncollected(kind):
    """Decorates a subclass of Ticket without fields of its own (`__slots__ = ()`): the collector ignores its instances.

    Millions of them may be alive. A batch that refers to its tickets has to let go of them when it is done.
    """
    ticket_type_of(kind)
    if kind.__basicsize__ != Ticket.__basicsize__ or kind.__dictoffset__:
        raise TypeError(f"{kind!r} has fields of its own")
    if kind is not Ticket:
        leave_collector(<PyTypeObject *>kind)
    return kind


@cython.final
cdef class Moment:
    """The timestamp of records that are appended now, shared by many lanes. The owner of a clock sets it."""

    cdef public int64_t now_ms

    def __init__(self, int64_t now_ms=0):
        self.now_ms = now_ms

    cdef inline void read_clock(self) noexcept:
        cdef timespec now
        timespec_get(&now, TIME_UTC)
        self.now_ms = <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


cdef type ticket_type_of(object candidate):
    if not isinstance(candidate, type) or not issubclass(candidate, Ticket):
        raise TypeError(f"a subclass of Ticket is needed, not {candidate!r}")
    return candidate


cdef Moment moment_of(object candidate):
    if candidate is None:
        return Moment()
    if not isinstance(candidate, Moment):
        raise TypeError(f"a Moment is needed, not {type(candidate).__name__}")
    return candidate


@cython.final
cdef class Lane:
    """Appends to the open batch of one partition: `append` returns a ticket, or None if nothing fits.

    None means that no batch is open or that it is full: close it, open another, append again. Tickets are created
    without calling `__init__`. `guard` is for the Python kernel: here an append is atomic without one.
    """

    cdef readonly type ticket_type
    cdef readonly Moment moment
    cdef readonly BatchBuilder builder
    cdef readonly object batch
    cdef readonly Callbacks callbacks

    def __init__(self, ticket_type, moment=None, guard=None):
        self.ticket_type = ticket_type_of(ticket_type)
        self.moment = moment_of(moment)

    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    @property
    def now_ms(self):
        return self.moment.now_ms

    @now_ms.setter
    def now_ms(self, int64_t now_ms):
        self.moment.now_ms = now_ms

    def open(self, builder, batch, callbacks=None):
        """Append to `builder` from now on. Tickets refer to `batch`; `callbacks` takes the on_delivery callbacks."""
        if type(builder) is not BatchBuilder:
            raise TypeError(f"a BatchBuilder is needed, not {type(builder).__name__}")
        if self.builder is not None:
            raise ValueError("the lane is open: close it first")
        if callbacks is not None and type(callbacks) is not Callbacks:
            raise TypeError(f"Callbacks are needed, not {type(callbacks).__name__}")
        self.builder = builder
        self.batch = batch
        self.callbacks = callbacks

    def close(self):
        """Stop appending to the open batch. Returns that batch, or None."""
        batch = self.batch
        self.builder = None
        self.batch = None
        self.callbacks = None
        return batch

    cdef Ticket add(
        self, object value, const Cell *key, object timestamp, object headers, object on_delivery
    ):
        cdef Cell content
        cdef object owner = content_of(value, "value", &content)
        cdef int64_t stamp = self.moment.now_ms if timestamp is None else timestamp
        cdef Py_ssize_t index, headers_bytes = 1
        cdef Ticket ticket
        cdef uint8_t *p
        if on_delivery is not None and not PyCallable_Check(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        if self.builder is None and not headers:
            return None
        ticket = <Ticket>new_of(<PyTypeObject *>Ticket, <PyTypeObject *>self.ticket_type, <PyObject *>NO_ARGUMENTS)
        if headers:
            headers_bytes = simple_headers_size(headers)
            if headers_bytes < 0:
                headers = simple_headers(headers)
                headers_bytes = simple_headers_size(headers)
        else:
            headers = None
        if self.builder is None:  # all that may have run Python is behind us
            return None
        if on_delivery is not None and self.callbacks is None:
            raise ValueError("the lane was opened without callbacks")
        p = self.builder.begin(stamp, key.data, key.size, content.data, content.size, headers_bytes)
        if p == NULL:
            return None
        if headers is None:
            p[0] = 0
            index = self.builder.commit(p + 1, stamp)
        else:
            index = self.builder.commit(put_simple_headers(p, headers), stamp)
        ticket.batch = self.batch
        ticket.index = index
        if on_delivery is not None:
            self.callbacks.add_record(index, on_delivery)
        return ticket

    def append(self, value, key=None, timestamp=None, headers=(), on_delivery=None):
        """Append a record, stamped with the lane's moment unless a timestamp is given: its ticket, or None.

        Text becomes UTF-8. `headers` are pairs or a mapping of text to bytes, text or None. `on_delivery` goes to the
        batch's callbacks, with the record's index as its argument.
        """
        cdef Cell cell
        cdef object owner = content_of(key, "key", &cell)
        return self.add(value, &cell, timestamp, headers, on_delivery)


@cython.final
cdef class TopicLanes:
    """The lanes of a topic's partitions. A key chooses its own as in Java; records without key go to the `sticky` one.

    `sticky` is -1 while there is none: then records without key are not accepted.
    """

    cdef readonly tuple lanes
    cdef Py_ssize_t chosen
    cdef Moment moment

    def __init__(self, ticket_type, Py_ssize_t partition_count, moment=None, guard=None):
        if not 1 <= partition_count <= MOST_PARTITIONS:
            raise ValueError(f"a topic has 1 to {MOST_PARTITIONS} partitions, not {partition_count}")
        self.moment = moment_of(moment)
        self.lanes = tuple([Lane(ticket_type, self.moment, guard) for _ in range(partition_count)])
        self.chosen = -1

    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    @property
    def sticky(self):
        return self.chosen

    @sticky.setter
    def sticky(self, Py_ssize_t partition):
        if not -1 <= partition < PyTuple_GET_SIZE(self.lanes):
            raise ValueError(f"partition {partition} is not one of {PyTuple_GET_SIZE(self.lanes)}")
        self.chosen = partition

    cdef inline Py_ssize_t place(self, const Cell *key) noexcept:
        return <Py_ssize_t>(hash_key(key.data, key.size) % <size_t>PyTuple_GET_SIZE(self.lanes))

    def partition_of(self, key):
        """The partition of a key; for None the sticky one, or -1."""
        cdef Cell cell
        cdef object owner = content_of(key, "key", &cell)
        return self.chosen if cell.size < 0 else self.place(&cell)

    def append(self, value, key=None, timestamp=None, headers=(), partition=None, on_delivery=None):
        """Append a record to the given partition, or that of its key: its ticket, or None if nothing fits.

        Also None for a partition that the topic does not have. See `Lane.append`.
        """
        return self.put(value, key, timestamp, headers, partition, on_delivery)

    cdef Ticket put(
        self, object value, object key, object timestamp, object headers, object partition, object on_delivery
    ):
        cdef Cell cell
        cdef object owner = content_of(key, "key", &cell)
        cdef Py_ssize_t chosen
        if partition is not None:
            chosen = partition
            if chosen >= PyTuple_GET_SIZE(self.lanes):
                chosen = -1
        else:
            chosen = self.chosen if cell.size < 0 else self.place(&cell)
        if chosen < 0:
            content_of(value, "value", &cell)
            return None
        return (<Lane>PyTuple_GET_ITEM(self.lanes, chosen)).add(value, &cell, timestamp, headers, on_delivery)


def lanes_first(method):
    """Decorates a producer's `send`: first tries the lanes in `self._lanes`, TopicLanes by topic, in compiled code.

    Records without a timestamp get the real time. The method runs if the topic has no lanes, nothing fits, an argument
    is invalid, or headers are not a list, tuple or dict. Nothing was appended then, and it sees the arguments as they
    were given.
    """
    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None, on_delivery=None):
        cdef PyObject *found
        cdef Ticket ticket
        if headers is None or PyTuple_CheckExact(headers) or PyList_CheckExact(headers) or PyDict_CheckExact(headers):
            found = PyDict_GetItem(self._lanes, topic)
            if found != NULL:
                try:
                    ticket = put_now(<object>found, value, key, timestamp_ms, headers, partition, on_delivery)
                except (TypeError, ValueError, OverflowError):
                    ticket = None  # the method finds out which argument is wrong
                if ticket is not None:
                    return ticket
        return method(self, topic, value, key, headers, partition, timestamp_ms, on_delivery)

    return wraps(method)(send)


cdef Ticket put_now(
    TopicLanes lanes, object value, object key, object timestamp, object headers, object partition, object on_delivery
):
    """`TopicLanes.append`, stamped with the current time unless a timestamp is given."""
    if timestamp is None:
        lanes.moment.read_clock()
    return lanes.put(value, key, timestamp, headers, partition, on_delivery)


# --------------------------------------------------------------------------------------------------- consumer records

cdef extern from *:
    """
    static PyMemberDef penstock_consumer_record_members[] = {
        {"topic", T_OBJECT_EX, 0, READONLY, NULL},
        {"partition", T_OBJECT_EX, 0, READONLY, NULL},
        {"offset", T_OBJECT_EX, 0, READONLY, NULL},
        {"timestamp", T_OBJECT_EX, 0, READONLY, NULL},
        {"timestamp_type", T_OBJECT_EX, 0, READONLY, NULL},
        {"key", T_OBJECT_EX, 0, READONLY, NULL},
        {"value", T_OBJECT_EX, 0, READONLY, NULL},
        {"headers", T_OBJECT_EX, 0, READONLY, NULL},
        {"leader_epoch", T_OBJECT_EX, 0, READONLY, NULL},
    };
    """
    PyMemberDef *consumer_record_members "penstock_consumer_record_members"


@cython.final
@cython.freelist(512)
cdef class ConsumerRecord:
    """A record as a consumer sees it: its position, timestamp in milliseconds, key, value, headers.

    `timestamp_type` is 0 if the producer set the timestamp, 1 if the broker did. `leader_epoch` is -1 if unknown.
    """

    cdef readonly object topic
    cdef readonly object partition
    cdef readonly object offset
    cdef readonly object timestamp
    cdef readonly object timestamp_type
    cdef readonly object key
    cdef readonly object value
    cdef readonly object headers
    cdef readonly object leader_epoch

    def __init__(self, topic, partition, offset, timestamp, timestamp_type, key, value, headers=(), leader_epoch=-1):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = headers
        self.leader_epoch = leader_epoch

    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    def _fields(self):
        return (
            self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type, self.key, self.value,
            self.headers, self.leader_epoch,
        )

    def __reduce__(self):
        return ConsumerRecord, self._fields()

    def __eq__(self, other):
        if type(other) is not ConsumerRecord:
            return NotImplemented
        return self._fields() == (<ConsumerRecord>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition!r}, offset={self.offset!r}, "
            f"timestamp={self.timestamp!r}, timestamp_type={self.timestamp_type!r}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r}, leader_epoch={self.leader_epoch!r})"
        )


cdef int read_consumer_fields_as_slots() except -1:
    fields = tuple([object() for _ in range(9)])
    read_fields_as_slots(ConsumerRecord, ConsumerRecord(*fields), fields, consumer_record_members)
    return 0


read_consumer_fields_as_slots()


cdef object decode_field(ConsumerRecord raw, str field, bytes data, object decoder, list done):
    try:
        return decoder(data)
    except Exception as reason:
        raise DecodeFailed(raw, field, done) from reason


cdef class _Place:
    """What all records of a batch have in common, as the objects that each of them refers to."""

    cdef object topic
    cdef object partition
    cdef object timestamp_type
    cdef object leader_epoch

    cdef inline ConsumerRecord new_record(self, object offset, object timestamp, object key, object value, tuple headers):
        cdef ConsumerRecord record = ConsumerRecord.__new__(ConsumerRecord)
        record.topic = self.topic
        record.partition = self.partition
        record.offset = offset
        record.timestamp = timestamp
        record.timestamp_type = self.timestamp_type
        record.key = key
        record.value = value
        record.headers = headers
        record.leader_epoch = self.leader_epoch
        if not PyObject_IS_GC(key) and not PyObject_IS_GC(value):
            PyObject_GC_UnTrack(<void *>record)  # in no cycle, so the collector need not look at it
        return record


cdef BatchHeader batch_of_topic(object topic, object header):
    if not isinstance(topic, str):
        raise TypeError(f"a topic must be str, not {type(topic).__name__}")
    return as_header(header)


def decode_consumer_records(
    buffer, header, plain, Py_ssize_t start, Py_ssize_t end, topic, int32_t partition,
    int64_t from_offset, key_decoder, value_decoder,
):
    """The records of a scanned batch from `from_offset` on, which are in plain[start:end], decompressed.

    With `plain` None they are in buffer[start:end], uncompressed. A decoder is not called for None, nor for records
    before `from_offset`. If it raises, DecodeFailed carries the records before the one that failed.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    cdef Parsed parsed
    cdef BatchHeader batch = batch_of_topic(topic, header)
    cdef _Place place = _Place()
    cdef list result = []
    cdef tuple headers = NO_HEADERS
    cdef Py_ssize_t i, count = batch.record_count
    cdef int64_t offset, last_stamp = batch.max_timestamp, stamp
    cdef bint stamped = (batch.attributes & 8) != 0
    cdef bytes key, value
    cdef object timestamp = last_stamp
    place.topic = topic
    place.partition = partition
    place.timestamp_type = 1 if stamped else 0
    place.leader_epoch = batch.leader_epoch
    open_range(buffer if plain is None else plain, &view, start, end, count, &cursor)
    try:
        for i in range(count):
            if not next_record(&cursor, &parsed):
                raise damaged(i)
            offset = wrap_add(batch.base_offset, parsed.offset_delta)
            if offset < from_offset:
                continue
            if not stamped:
                stamp = wrap_add(batch.base_timestamp, parsed.timestamp_delta)
                if stamp != last_stamp:  # many records of a batch have the same
                    timestamp = last_stamp = stamp
            headers = NO_HEADERS if parsed.header_count == 0 else headers_of(&parsed, headers)
            key = sized_bytes(parsed.key, parsed.key_size)
            value = sized_bytes(parsed.value, parsed.value_size)
            position = offset
            if key_decoder is None and value_decoder is None:
                result.append(place.new_record(position, timestamp, key, value, headers))
            else:
                result.append(decode_fields(
                    place.new_record(position, timestamp, key, value, headers), place, key_decoder, value_decoder, result
                ))
        check_end(&cursor)
    finally:
        PyBuffer_Release(&view)
    return result


cdef ConsumerRecord decode_fields(
    ConsumerRecord raw, _Place place, object key_decoder, object value_decoder, list done
):
    """The record with its key and value as their decoders read them."""
    key, value = raw.key, raw.value
    if key is not None and key_decoder is not None:
        key = decode_field(raw, "key", key, key_decoder, done)
    if value is not None and value_decoder is not None:
        value = decode_field(raw, "value", value, value_decoder, done)
    return place.new_record(raw.offset, raw.timestamp, key, value, raw.headers)
