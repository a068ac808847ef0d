# Bytes into records.

cdef extern from *:
    """
    #include <structmember.h>
    static PyMemberDef penstock_record_members[] = {
        {"key", T_OBJECT_EX, 0, READONLY, NULL},
        {"value", T_OBJECT_EX, 0, READONLY, NULL},
        {"headers", T_OBJECT_EX, 0, READONLY, NULL},
        {"offset", T_OBJECT_EX, 0, READONLY, NULL},
        {"timestamp", T_OBJECT_EX, 0, READONLY, NULL},
    };
    static int penstock_set_member(PyTypeObject *type, PyMemberDef *member, Py_ssize_t offset) {
        PyObject *descriptor;
        int failed;
        member->offset = offset;
        descriptor = PyDescr_NewMember(type, member);
        failed = descriptor == NULL || PyDict_SetItemString(type->tp_dict, member->name, descriptor) < 0;
        Py_XDECREF(descriptor);
        PyType_Modified(type);
        return failed ? -1 : 0;
    }
    """
    ctypedef struct PyMemberDef:
        pass
    PyMemberDef *record_members "penstock_record_members"
    int set_member "penstock_set_member"(PyTypeObject *type, PyMemberDef *member, Py_ssize_t offset) except -1

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef tuple NO_HEADERS = ()


@cython.final
@cython.freelist(512)
@cython.no_gc
cdef class Record:
    """A record: offset, timestamp in milliseconds, key, value, headers as ((name, value), ...)."""

    cdef readonly object offset
    cdef readonly object timestamp
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers

    def __init__(self, int64_t offset, int64_t timestamp, bytes key, bytes value, tuple headers=()):
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def _fields(self):
        return (self.offset, self.timestamp, self.key, self.value, self.headers)

    def __eq__(self, other):
        if type(other) is not Record:
            return NotImplemented
        return self._fields() == (<Record>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )


cdef int read_fields_as_slots(object kind, object probe, tuple fields, PyMemberDef *members) except -1:
    """Let CPython read the fields in place, as it does with `__slots__`.

    Cython gives an attribute a getter, a call that costs 17 ns more each time: as much as decoding half a record. For the
    same reason offset and timestamp are kept as the integers that a reader would ask for, not as C numbers.
    Where the fields lie is found by looking for known objects, `fields`, in a record, `probe`.
    """
    cdef PyTypeObject *record_type = <PyTypeObject *>kind
    cdef PyObject **words = <PyObject **><void *>probe
    cdef size_t word
    cdef int index
    for index, field in enumerate(fields):
        for word in range(sizeof(PyObject) // sizeof(void *), <size_t>record_type.tp_basicsize // sizeof(void *)):
            if words[word] == <PyObject *>field:
                set_member(record_type, &members[index], <Py_ssize_t>(word * sizeof(void *)))
                break
    return 0


cdef int read_record_fields_as_slots() except -1:
    cdef Record probe = Record(1 << 40, 1 << 41, b"key", b"value", (("name", b"content"),))
    fields = (probe.key, probe.value, probe.headers, probe.offset, probe.timestamp)
    read_fields_as_slots(Record, probe, fields, record_members)
    return 0


read_record_fields_as_slots()


cdef struct Cursor:
    const uint8_t *p
    const uint8_t *end


cdef struct Parsed:
    # one record, still in the buffer
    const uint8_t *end
    int64_t timestamp_delta
    const uint8_t *after_timestamp
    int64_t offset_delta
    const uint8_t *key
    Py_ssize_t key_size  # -1: null
    const uint8_t *value
    Py_ssize_t value_size
    Py_ssize_t header_count
    const uint8_t *headers


cdef inline bint next_record(Cursor *cursor, Parsed *record) noexcept nogil:
    """Parse the record at the cursor, its headers only delimited; False if the bytes are not one."""
    cdef const uint8_t *p = cursor.p
    cdef const uint8_t *end
    cdef int64_t length, count
    if not get_varint(&p, cursor.end, &length) or length < MIN_RECORD - 1 or length > cursor.end - p:
        return False
    end = p + length
    p += 1  # attributes: none are defined
    if not get_varint(&p, end, &record.timestamp_delta):
        return False
    record.after_timestamp = p
    if not get_varint(&p, end, &record.offset_delta):
        return False
    if not get_sized(&p, end, &record.key, &record.key_size, True):
        return False
    if not get_sized(&p, end, &record.value, &record.value_size, True):
        return False
    if not get_varint(&p, end, &count) or count < 0 or count > (end - p) // 2:
        return False
    record.header_count = <Py_ssize_t>count
    record.headers = p
    if count and not skip_headers(&p, end, record.header_count):
        return False
    if p != end or record.offset_delta < 0 or record.offset_delta > INT32_MAX:
        return False
    record.end = end
    cursor.p = end
    return True


cdef bint skip_headers(const uint8_t **at, const uint8_t *end, Py_ssize_t count) noexcept nogil:
    cdef const uint8_t *data
    cdef Py_ssize_t size, i
    for i in range(count):
        if not get_sized(at, end, &data, &size, False) or not get_sized(at, end, &data, &size, True):
            return False
    return True


cdef object damaged(Py_ssize_t index):
    return CorruptBatch(f"record {index} of the batch does not parse")


cdef int check_end(Cursor *cursor) except -1:
    if cursor.p != cursor.end:
        raise CorruptBatch(f"{cursor.end - cursor.p} bytes follow the last record of the batch")
    return 0


cdef str header_name(const uint8_t *data, Py_ssize_t size, tuple previous, Py_ssize_t index):
    """The name as text: the same object as in the record before, where that has the same name in the same place."""
    cdef const char *known
    cdef Py_ssize_t known_size = 0
    if index < PyTuple_GET_SIZE(previous):
        name = <object>PyTuple_GET_ITEM(<object>PyTuple_GET_ITEM(previous, index), 0)
        known = PyUnicode_AsUTF8AndSize(name, &known_size)
        if known_size == size and memcmp(known, data, <size_t>size) == 0:
            return name
    try:
        return PyUnicode_DecodeUTF8(<char *>data, size, NULL)
    except UnicodeDecodeError:
        raise CorruptBatch("a header's key is not UTF-8") from None


cdef tuple headers_of(Parsed *record, tuple previous):
    """The record's headers; `previous` are those of the record before."""
    cdef const uint8_t *p = record.headers
    cdef const uint8_t *data = NULL
    cdef Py_ssize_t size = 0, i
    cdef tuple pairs = PyTuple_New(record.header_count), pair
    cdef str name
    for i in range(record.header_count):
        get_sized(&p, record.end, &data, &size, False)
        name = header_name(data, size, previous, i)
        get_sized(&p, record.end, &data, &size, True)
        pair = (name, sized_bytes(data, size))
        Py_INCREF(pair)
        PyTuple_SET_ITEM(pairs, i, pair)
    return pairs


cdef int open_range(
    object buffer, Py_buffer *view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, Cursor *cursor
) except -1:
    """Borrow the buffer, which the caller then has to release, if `count` records can be in buffer[start:end]."""
    cdef Py_ssize_t size
    PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
    size = view.len
    if start < 0 or end < start or end > size:
        PyBuffer_Release(view)
        raise ValueError(f"bytes {start} to {end} are outside of a buffer of {size} bytes")
    if count < 0 or count > (end - start) // MIN_RECORD:
        PyBuffer_Release(view)
        raise CorruptBatch(f"{count} records do not fit {end - start} bytes")
    cursor.p = <const uint8_t *>view.buf + start
    cursor.end = <const uint8_t *>view.buf + end
    return 0


cdef inline Record new_record(Parsed *parsed, int64_t offset, int64_t timestamp, tuple previous):
    cdef Record record = Record.__new__(Record)
    record.offset = offset
    record.timestamp = timestamp
    record.key = sized_bytes(parsed.key, parsed.key_size)
    record.value = sized_bytes(parsed.value, parsed.value_size)
    record.headers = NO_HEADERS if parsed.header_count == 0 else headers_of(parsed, previous)
    return record


def decode_records(
    buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, int64_t base_offset, int64_t base_timestamp,
    append_time=None,
):
    """The records in buffer[start:end], already decompressed, as objects.

    `append_time` overrides their timestamps.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    cdef Parsed parsed
    cdef Record record
    cdef list result
    cdef tuple previous = NO_HEADERS
    cdef Py_ssize_t i = 0
    cdef bint stamped = append_time is not None
    cdef int64_t stamp = append_time if stamped else 0
    open_range(buffer, &view, start, end, count, &cursor)
    try:
        result = PyList_New(count)
        try:
            while i < count:
                if not next_record(&cursor, &parsed):
                    raise damaged(i)
                record = new_record(
                    &parsed, wrap_add(base_offset, parsed.offset_delta),
                    stamp if stamped else wrap_add(base_timestamp, parsed.timestamp_delta), previous,
                )
                previous = record.headers
                Py_INCREF(record)
                PyList_SET_ITEM(result, i, record)
                i += 1
            check_end(&cursor)
        except BaseException:
            while i < count:  # a list may not keep empty slots
                Py_INCREF(None)
                PyList_SET_ITEM(result, i, None)
                i += 1
            raise
        return result
    finally:
        PyBuffer_Release(&view)
