# Records to bytes and back, and what a broker does with them: validation and compaction.

# ------------------------------------------------------------------------------------------------------------ to bytes

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


# --------------------------------------------------------------------------------------------------------- from bytes

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
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef int64_t length, count
    length, p = get_varint(cursor.p, cursor.end)
    if length < MIN_RECORD - 1 or length > cursor.end - p:
        return False
    end = p + length
    record.timestamp_delta, record.after_timestamp = get_varint(p + 1, end)  # p[0], attributes: none are defined
    record.offset_delta, p = get_varint(record.after_timestamp, end)
    record.key_size, record.key = get_size(p, end, -1)
    record.value_size, record.value = get_size(after(record.key, record.key_size), end, -1)
    count, p = get_varint(after(record.value, record.value_size), end)
    record.header_count = <Py_ssize_t>count
    record.headers = p
    if count:
        if count < 0 or count > (end - p) // 2:
            return False
        p = after_headers(p, end, record.header_count)
    if p != end or record.offset_delta < 0 or record.offset_delta > INT32_MAX:
        return False
    record.end = end
    cursor.p = end
    return True


cdef const uint8_t *after_headers(const uint8_t *p, const uint8_t *end, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t size, i
    for i in range(count):
        size, p = get_size(p, end, 0)
        size, p = get_size(after(p, size), end, -1)
        p = after(p, size)
        if p > end:
            break
    return p


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
    cdef Py_ssize_t size, i
    cdef tuple pairs = PyTuple_New(record.header_count), pair
    cdef str name
    for i in range(record.header_count):
        size, p = get_size(p, record.end, 0)
        name = header_name(p, size, previous, i)
        size, p = get_size(after(p, size), record.end, -1)
        pair = (name, sized_bytes(p, size))
        p = after(p, size)
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


# --------------------------------------------------------------------------------------------------------- compaction

# The keys of a batch's records, and a copy without those that a later record replaced.

def count_null_keys(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count):
    """How many records have no key. A compacted log accepts none."""
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
    """Store in `newest` (key: offset) the last offset of every key in the batch."""
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
    computed from `new_base_timestamp`. The max timestamp of none is -1.
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


# --------------------------------------------------------------------------------------------------------- validation

# What passes here every consumer can read (Kafka's LogValidator). It is stricter than `next_record`, which reads what is
# stored: an integer takes at most five bytes and fits 32 bits, as Java's consumers require, the top bit of the
# attributes is not set, and header names are UTF-8. A sound record costs no object, and other threads run while a large
# batch is checked.

cdef enum:
    UNLOCKED_BYTES = 65536  # below, letting other threads run costs more than the work

cdef enum:
    SOUND = 0
    UNREADABLE = 1
    NO_KEY = 2
    TIMESTAMP_OUT_OF_RANGE = 3
    WRONG_OFFSET_DELTA = 4

UNREADABLE_RECORD = <int>UNREADABLE
RECORD_WITHOUT_KEY = <int>NO_KEY
RECORD_OUT_OF_TIME = <int>TIMESTAMP_OUT_OF_RANGE
RECORD_OUT_OF_PLACE = <int>WRONG_OFFSET_DELTA


cdef struct Rules:
    int64_t base_timestamp
    int64_t earliest
    int64_t latest
    bint needs_keys


cdef struct Checked:
    const uint8_t *end  # NULL if the record is unreadable
    int64_t timestamp_delta
    int64_t offset_delta
    int64_t key_size


cdef inline (int64_t, const uint8_t *) get_int(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """A varint of at most five bytes that fits 32 bits."""
    cdef int64_t value
    cdef const uint8_t *behind
    value, behind = get_varint(p, end)
    if behind - p > 5 or value > INT32_MAX or value < -<int64_t>INT32_MAX - 1:
        return 0, end + 1
    return value, behind


cdef inline (int64_t, const uint8_t *) skip_sized(const uint8_t *p, const uint8_t *end, int least) noexcept nogil:
    """(length, where the bytes that follow it end). It is at least `least`, -1 where null is allowed."""
    cdef int64_t size
    size, p = get_int(p, end)
    if size < least or size > end - p:
        return 0, end + 1
    return size, after(p, size)


cdef const uint8_t *check_headers(const uint8_t *p, const uint8_t *end, int64_t count) noexcept nogil:
    cdef int64_t size, i
    for i in range(count):
        size, p = skip_sized(p, end, 0)
        if p > end or not is_utf8(p - size, p):
            return end + 1
        size, p = skip_sized(p, end, -1)
    return p


cdef inline Checked check_record(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """The fields of the record at `p` that a rule applies to; the record ends at or before `end`."""
    cdef Checked record
    cdef int64_t length, value_size, count
    record.end = NULL
    length, p = get_int(p, end)
    if length < MIN_RECORD - 1 or length > end - p:
        return record
    end = p + length
    if p[0] >= 0x80:  # no attribute is defined; aiokafka reads them as a varint, which such a byte would continue
        return record
    record.timestamp_delta, p = get_varint(p + 1, end)
    record.offset_delta, p = get_int(p, end)
    record.key_size, p = skip_sized(p, end, -1)
    value_size, p = skip_sized(p, end, -1)
    count, p = get_int(p, end)
    if count:
        if count < 0 or count > (end - p) // 2:
            return record
        p = check_headers(p, end, count)
    if p == end:
        record.end = end
    return record


cdef int next_fault(
    Cursor *cursor, Py_ssize_t *index, Py_ssize_t count, const Rules *rules, int64_t *max_timestamp
) noexcept nogil:
    """Check records from number `index` on, up to the first that is not sound; what is wrong with that one.

    The cursor is left after that record, or at it if it is unreadable.
    """
    cdef const uint8_t *p = cursor.p
    cdef const uint8_t *end = cursor.end
    cdef Py_ssize_t i = index[0]
    cdef int64_t largest = max_timestamp[0], timestamp
    cdef int problem = SOUND
    cdef Checked record
    while i < count:
        record = check_record(p, end)
        if record.end == NULL:
            problem = UNREADABLE
            break
        p = record.end
        timestamp = wrap_add(rules.base_timestamp, record.timestamp_delta)
        if timestamp > largest:
            largest = timestamp
        if record.offset_delta != i:
            problem = WRONG_OFFSET_DELTA
            break
        if rules.needs_keys and record.key_size < 0:
            problem = NO_KEY
            break
        if timestamp != -1 and (timestamp < rules.earliest or timestamp > rules.latest):
            problem = TIMESTAMP_OUT_OF_RANGE
            break
        i += 1
    cursor.p = p
    index[0] = i
    max_timestamp[0] = largest
    return problem


def validate_records(
    buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, int64_t base_timestamp, int64_t earliest,
    int64_t latest, bint needs_keys, Py_ssize_t most=100,
):
    """(the largest timestamp or -1, [(index of a record, what is wrong with it), ...]) of uncompressed records.

    Sound records follow one another with offset deltas 0, 1, 2, have a key where `needs_keys`, and a timestamp from
    `earliest` to `latest` or none (-1). At most `most` faults are listed, none after an unreadable record. CorruptBatch
    if there are more or fewer records than `count`.
    """
    cdef Py_buffer view
    cdef Cursor cursor
    cdef Rules rules
    cdef Py_ssize_t index = 0
    cdef int64_t max_timestamp = -1
    cdef int problem
    cdef list faults = []
    rules.base_timestamp, rules.earliest, rules.latest, rules.needs_keys = base_timestamp, earliest, latest, needs_keys
    open_range(buffer, &view, start, end, count, &cursor)
    try:
        while True:
            if end - start >= UNLOCKED_BYTES:
                with nogil:
                    problem = next_fault(&cursor, &index, count, &rules, &max_timestamp)
            else:
                problem = next_fault(&cursor, &index, count, &rules, &max_timestamp)
            if problem == SOUND:
                break
            PyList_Append(faults, (index, problem))
            if problem == UNREADABLE or len(faults) >= most:
                break
            index += 1
        if not faults:
            check_end(&cursor)
    finally:
        PyBuffer_Release(&view)
    return max_timestamp, faults
