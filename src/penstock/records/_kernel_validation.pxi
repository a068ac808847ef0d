# What a leader asks of the records that a client sends, before it stores them. Kafka asks the same (LogValidator).
#
# Rule: what passes here every consumer can read. So it is stricter than the parser of `_kernel_decode.pxi`, which reads
# what is stored: an integer takes at most five bytes and fits 32 bits, as the consumers in Java demand, the top bit of
# the attributes is not set, and the name of a header is UTF-8. No object is made for a record that is sound, and
# other threads run while much is looked at.

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


cdef inline bint get_int(const uint8_t **at, const uint8_t *end, int64_t *out) noexcept nogil:
    """A varint of at most five bytes that fits 32 bits."""
    cdef const uint8_t *start = at[0]
    if not get_varint(at, end, out):
        return False
    return at[0] - start <= 5 and out[0] <= INT32_MAX and out[0] >= -<int64_t>INT32_MAX - 1


cdef inline bint skip_sized(const uint8_t **at, const uint8_t *end, int64_t least, int64_t *size) noexcept nogil:
    """Read a length, at least `least` (-1 where null is allowed), and step over the bytes that follow it."""
    if not get_int(at, end, size) or size[0] < least or size[0] > end - at[0]:
        return False
    if size[0] > 0:
        at[0] += size[0]
    return True


cdef bint is_header_name(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """As Python's strict decoder judges: no surrogates, and nothing in more bytes than it needs."""
    cdef uint32_t code, least
    cdef int following
    while p < end:
        if p[0] < 0x80:
            p += 1
            continue
        if p[0] < 0xC0:
            return False
        if p[0] < 0xE0:
            following, code, least = 1, p[0] & 0x1F, 0x80
        elif p[0] < 0xF0:
            following, code, least = 2, p[0] & 0x0F, 0x800
        elif p[0] < 0xF8:
            following, code, least = 3, p[0] & 0x07, 0x10000
        else:
            return False
        if end - p <= following:
            return False
        p += 1
        while following > 0:
            if (p[0] & 0xC0) != 0x80:
                return False
            code = (code << 6) | (p[0] & 0x3F)
            p += 1
            following -= 1
        if code < least or code > 0x10FFFF or (code >= 0xD800 and code <= 0xDFFF):
            return False
    return True


cdef bint check_headers(const uint8_t **at, const uint8_t *end, int64_t count) noexcept nogil:
    cdef int64_t size, i
    for i in range(count):
        if not skip_sized(at, end, 0, &size) or not is_header_name(at[0] - size, at[0]):
            return False
        if not skip_sized(at, end, -1, &size):
            return False
    return True


cdef inline int check_record(
    Cursor *cursor, int64_t index, const Rules *rules, int64_t *max_timestamp
) noexcept nogil:
    """What is wrong with the record at the cursor, which is stepped over unless it is unreadable."""
    cdef const uint8_t *p = cursor.p
    cdef const uint8_t *end
    cdef int64_t length, timestamp, offset_delta, key_size, value_size, count
    if not get_int(&p, cursor.end, &length) or length < MIN_RECORD - 1 or length > cursor.end - p:
        return UNREADABLE
    end = p + length
    if p[0] >= 0x80:  # no attribute is defined; aiokafka reads them as a varint, which such a byte would continue
        return UNREADABLE
    p += 1
    if not get_varint(&p, end, &timestamp) or not get_int(&p, end, &offset_delta):
        return UNREADABLE
    if not skip_sized(&p, end, -1, &key_size) or not skip_sized(&p, end, -1, &value_size):
        return UNREADABLE
    if not get_int(&p, end, &count) or count < 0 or count > (end - p) // 2:
        return UNREADABLE
    if (count and not check_headers(&p, end, count)) or p != end:
        return UNREADABLE
    cursor.p = end
    timestamp = wrap_add(rules.base_timestamp, timestamp)
    if timestamp > max_timestamp[0]:
        max_timestamp[0] = timestamp
    if offset_delta != index:
        return WRONG_OFFSET_DELTA
    if rules.needs_keys and key_size < 0:
        return NO_KEY
    if timestamp != -1 and (timestamp < rules.earliest or timestamp > rules.latest):
        return TIMESTAMP_OUT_OF_RANGE
    return SOUND


cdef int next_fault(
    Cursor *cursor, Py_ssize_t *index, Py_ssize_t count, const Rules *rules, int64_t *max_timestamp
) noexcept nogil:
    """Check records from number `index` on, up to the first that is not sound; what is wrong with that one."""
    cdef int problem = SOUND
    while index[0] < count:
        problem = check_record(cursor, index[0], rules, max_timestamp)
        if problem != SOUND:
            break
        index[0] += 1
    return problem


def validate_records(
    buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, int64_t base_timestamp, int64_t earliest,
    int64_t latest, bint needs_keys, Py_ssize_t most=100,
):
    """(the largest timestamp or -1, [(number of a record, what is wrong with it), ...]) of uncompressed records.

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
