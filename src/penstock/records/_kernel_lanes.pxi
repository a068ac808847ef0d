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

cdef tuple NO_ARGUMENTS = ()


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

    def open(self, builder, batch):
        """Let appends into `builder`; their tickets will name `batch`."""
        if type(builder) is not BatchBuilder:
            raise TypeError(f"a BatchBuilder is needed, not {type(builder).__name__}")
        if self.builder is not None:
            raise ValueError("the lane is open: close it first")
        self.builder = builder
        self.batch = batch

    def close(self):
        """Let nothing more into the open batch; that batch, or None."""
        batch = self.batch
        self.builder = None
        self.batch = None
        return batch

    cdef Ticket add(self, object value, bytes key, object timestamp, object headers):
        cdef bytes value_bytes = None if value is None else as_bytes(value, "value")
        cdef list pairs = header_pairs(headers) if headers else None
        cdef int64_t stamp = self.moment.now_ms if timestamp is None else timestamp
        cdef Py_ssize_t index
        cdef Ticket ticket
        if self.builder is None:
            return None
        ticket = <Ticket>new_of(<PyTypeObject *>Ticket, <PyTypeObject *>self.ticket_type, <PyObject *>NO_ARGUMENTS)
        if self.builder is None:  # that may have run a collection, and so anything
            return None
        index = self.builder.add(stamp, key, value_bytes, pairs)
        if index < 0:
            return None
        ticket.batch = self.batch
        ticket.index = index
        if self.has_no_fields and PyObject_IS_GC(ticket):
            PyObject_GC_UnTrack(<void *>ticket)
        return ticket

    def append(self, value, key=None, timestamp=None, headers=()):
        """Append a record, stamped with the lane's moment unless a timestamp is given: its ticket, or None."""
        return self.add(value, None if key is None else as_bytes(key, "key"), timestamp, headers)


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

    cdef inline Py_ssize_t place(self, bytes key) noexcept:
        return <Py_ssize_t>(hash_key(bytes_data(key), PyBytes_GET_SIZE(key)) % <size_t>PyTuple_GET_SIZE(self.lanes))

    def partition_of(self, key):
        """The partition of a key; for None the sticky one, or -1."""
        return self.chosen if key is None else self.place(as_bytes(key, "key"))

    def append(self, value, key=None, timestamp=None, headers=()):
        """Append a record to the partition of its key: its ticket, or None if that partition's lane has no way in."""
        cdef bytes key_bytes = None if key is None else as_bytes(key, "key")
        cdef Py_ssize_t partition = self.chosen if key_bytes is None else self.place(key_bytes)
        if partition < 0:
            if value is not None:
                as_bytes(value, "value")
            return None
        return (<Lane>PyTuple_GET_ITEM(self.lanes, partition)).add(value, key_bytes, timestamp, headers)
