# The lanes into open batches, and the tickets for what went in.
#
# Rule: an append is one thing to other threads. Whatever may run Python (turning a value into bytes, making a ticket)
# is done before the batch is looked at; from then on to the return nothing gives up the interpreter's lock.

cdef extern from *:
    """
    /* What `base.__new__(kind)` comes to, without looking `__new__` up and calling it. */
    static inline PyObject *penstock_new(PyTypeObject *base, PyTypeObject *kind, PyObject *no_arguments) {
        return base->tp_new(kind, no_arguments, NULL); }
    """
    object new_of "penstock_new"(PyTypeObject *base, PyTypeObject *kind, PyObject *no_arguments)

cdef extern from "Python.h":
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
    """Points `cell` at what is given: bytes as they are, text as UTF-8, None as null; whoever owns these bytes."""
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
    """What is to be called when a batch is done: arguments and callbacks, in the order in which they were added.

    From any thread. Nothing is lost between `add` and `take`: what `take` does not return, `add` has rejected.
    `guard` is for the twin: here a call is whole to other threads without one.
    """

    cdef list items

    def __init__(self, guard=None):
        self.items = []

    def add(self, argument, callback):
        """Adds a callback with its argument; False once the others were taken."""
        if self.items is None:
            return False
        PyList_Append(self.items, argument)
        PyList_Append(self.items, callback)
        return True

    def take(self):
        """All that was added, as [argument, callback, argument, callback, ...]; empty the second time."""
        items = self.items
        self.items = None
        return [] if items is None else items


@cython.freelist(256)
@cython.no_gc
cdef class Ticket:
    """Which record of which batch: what a producer gives for a record sent. Made to be subclassed, with `__slots__`.

    Millions of them may be alive, so the collector does not look at those that a lane makes, if the subclass has no
    fields of its own (`__slots__ = ()`): a batch that refers to its tickets has to let go of them when it is done.
    """

    cdef public object batch
    cdef public Py_ssize_t index

    def __init__(self, batch, Py_ssize_t index):
        self.batch = batch
        self.index = index


@cython.final
cdef class Moment:
    """The time that records appended now are stamped with, shared by many lanes. Whoever has a clock sets it."""

    cdef public int64_t now_ms

    def __init__(self, int64_t now_ms=0):
        self.now_ms = now_ms


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
    """The way into the open batch of one partition: `append` gives a ticket, or None while there is no way in.

    None says that nothing is open or that the open batch is full: close it, open another, append again. Tickets are
    made without calling `__init__`. `guard` is for the twin: here an append is whole to other threads without one.
    """

    cdef readonly type ticket_type
    cdef bint has_no_fields
    cdef readonly Moment moment
    cdef readonly BatchBuilder builder
    cdef readonly object batch
    cdef readonly Callbacks callbacks

    def __init__(self, ticket_type, moment=None, guard=None):
        self.ticket_type = ticket_type_of(ticket_type)
        self.has_no_fields = (<PyTypeObject *>ticket_type).tp_basicsize == (<PyTypeObject *>Ticket).tp_basicsize
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
        """Let appends into `builder`; their tickets name `batch`, and `callbacks` takes their on_delivery callbacks."""
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
        """Let nothing more into the open batch; that batch, or None."""
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
        if self.has_no_fields and PyObject_IS_GC(ticket):
            PyObject_GC_UnTrack(<void *>ticket)
        if on_delivery is not None:
            PyList_Append(self.callbacks.items, index)
            PyList_Append(self.callbacks.items, on_delivery)
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
    """The lanes of a topic's partitions: a key chooses its own, as in Java; without one it is the `sticky` partition.

    `sticky` is -1 while there is none: then a record without key finds no way in.
    """

    cdef readonly tuple lanes
    cdef Py_ssize_t chosen

    def __init__(self, ticket_type, Py_ssize_t partition_count, moment=None, guard=None):
        if not 1 <= partition_count <= MOST_PARTITIONS:
            raise ValueError(f"a topic has 1 to {MOST_PARTITIONS} partitions, not {partition_count}")
        shared = moment_of(moment)
        self.lanes = tuple([Lane(ticket_type, shared, guard) for _ in range(partition_count)])
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
        """Append a record to the partition that is named, or that of its key: its ticket, or None without a way in.

        None, too, for a partition that the topic does not have. For the rest see `Lane.append`.
        """
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
