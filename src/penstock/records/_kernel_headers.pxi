# Batch headers: find the batches in a buffer, patch them, write them.

@cython.final
@cython.freelist(64)
cdef class BatchHeader:
    """The 61 bytes before a batch's records, and where the batch stands in the buffer that was scanned."""

    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t size
    cdef readonly int64_t base_offset
    cdef readonly int32_t leader_epoch
    cdef readonly uint32_t crc
    cdef readonly int16_t attributes
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly int32_t record_count

    @property
    def end(self):
        return self.position + self.size

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self):
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self):
        return self.attributes & 7

    @property
    def timestamp_type(self):
        return (self.attributes >> 3) & 1

    @property
    def is_transactional(self):
        return (self.attributes & 16) != 0

    @property
    def is_control(self):
        return (self.attributes & 32) != 0

    @property
    def has_delete_horizon(self):
        return (self.attributes & 64) != 0

    @property
    def last_sequence(self):
        if self.base_sequence < 0:
            return -1
        return (<int64_t>self.base_sequence + self.last_offset_delta) & INT32_MAX

    def _fields(self):
        return (
            self.position, self.size, self.base_offset, self.leader_epoch, self.crc, self.attributes,
            self.last_offset_delta, self.base_timestamp, self.max_timestamp, self.producer_id,
            self.producer_epoch, self.base_sequence, self.record_count,
        )

    def __eq__(self, other):
        if type(other) is not BatchHeader:
            return NotImplemented
        return self._fields() == (<BatchHeader>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"BatchHeader(position={self.position}, size={self.size}, offsets={self.base_offset}.."
            f"{self.last_offset}, epoch={self.leader_epoch}, records={self.record_count})"
        )


@cython.final
cdef class Scan:
    """What a walk over a buffer found: whole batches, where they end, and why the walk stopped there.

    `problem` is None when the buffer ended with a whole batch; "incomplete" when it ended inside one that needs
    `needed` bytes in all (0: not even its length was there); else a sentence about the damage at `end`.
    """

    cdef readonly list headers
    cdef readonly Py_ssize_t end
    cdef readonly object problem
    cdef readonly Py_ssize_t needed


cdef inline BatchHeader read_header(const uint8_t *p, Py_ssize_t position, Py_ssize_t size):
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    header.position = position
    header.size = size
    header.base_offset = get64(p)
    header.leader_epoch = get32(p + 12)
    header.crc = <uint32_t>get32(p + 17)
    header.attributes = get16(p + 21)
    header.last_offset_delta = get32(p + 23)
    header.base_timestamp = get64(p + 27)
    header.max_timestamp = get64(p + 35)
    header.producer_id = get64(p + 43)
    header.producer_epoch = get16(p + 51)
    header.base_sequence = get32(p + 53)
    header.record_count = get32(p + 57)
    return header


cdef object header_damage(const uint8_t *p, Py_ssize_t size):
    """Why these whole bytes are not a sound magic-2 batch, or None. Checked before the checksum: cheap and exact."""
    cdef int32_t last_delta = get32(p + 23)
    cdef int32_t count = get32(p + 57)
    if get64(p) < 0:
        return f"base offset {get64(p)} is negative"
    if last_delta < 0:
        return f"last offset delta {last_delta} is negative"
    if get64(p) > INT64_MAX - last_delta - 1:
        return f"offsets overflow: base {get64(p)} with last offset delta {last_delta}"
    if count < 0:
        return f"record count {count} is negative"
    if count > <int64_t>last_delta + 1:
        return f"{count} records do not fit {<int64_t>last_delta + 1} offsets"
    if (get16(p + 21) & 7) == 0 and <int64_t>count * MIN_RECORD > size - HEADER:
        return f"{count} records do not fit {size - HEADER} bytes"
    if (get16(p + 21) & 7) > 4:
        return f"compression codec {get16(p + 21) & 7} is not known"
    return None


cdef object next_problem(
    const uint8_t *p, Py_ssize_t available, bint verify, bint whole, Py_ssize_t *size, Py_ssize_t *needed
):
    """Why no batch can be taken from these bytes, or None and the size of the one that is there."""
    cdef int64_t length
    cdef object damage
    if available < LENGTH_END:
        return "incomplete"
    length = get32(p + 8)
    if available > 16 and p[16] != 2:
        return f"magic {<int8_t>p[16]} is not 2"
    if length < MIN_LENGTH:
        return f"length {length} is below the {MIN_LENGTH} bytes of a header"
    size[0] = <Py_ssize_t>length + LENGTH_END
    if available < (size[0] if whole else HEADER):
        needed[0] = size[0]
        return "incomplete"
    damage = header_damage(p, size[0])
    if damage is None and verify and checksum(p + CRC_START, size[0] - CRC_START) != <uint32_t>get32(p + 17):
        return "checksum does not match"
    return damage


def scan(
    buffer, Py_ssize_t start=0, Py_ssize_t end=-1, bint verify=True, bint whole=True, Py_ssize_t most=0x7FFFFFFF
):
    """Walk the batches in buffer[start:end], at most `most` of them, checking each; never raises for bad bytes.

    With `verify` the checksum is checked too. Without `whole` (and then without `verify`) a last batch of which
    only the header is there counts as found, and `end` may lie beyond the buffer. A batch of an older magic is
    damage here: the log holds magic 2 only.
    """
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef Py_ssize_t position = start, size = 0
    cdef Scan result = Scan.__new__(Scan)
    result.headers = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if end < 0 or end > view.len:
            end = view.len
        if start < 0 or start > end:
            raise ValueError(f"start {start} is outside of a buffer of {end} bytes")
        if verify and not whole:
            raise ValueError("a batch that is not whole cannot be verified")
        while position < end and most > 0:
            p = <const uint8_t *>view.buf + position
            result.problem = next_problem(p, end - position, verify, whole, &size, &result.needed)
            if result.problem is not None:
                break
            PyList_Append(result.headers, read_header(p, position, size))
            position += size
            most -= 1
    finally:
        PyBuffer_Release(&view)
    result.end = position
    return result


def assign_offsets(buffer, headers, int64_t offset, int32_t leader_epoch):
    """Patch base offset and leader epoch of the scanned batches in place, from `offset` on; the next free offset.

    Two batches of 3 and 2 records, assigned from 10: base offsets become 10 and 13, and 15 is returned.
    """
    cdef Py_buffer view
    cdef uint8_t *p
    cdef BatchHeader header
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        for candidate in headers:
            header = as_header(candidate)
            if header.position < 0 or header.position > view.len - HEADER:
                raise ValueError(f"batch at {header.position} is outside of a buffer of {view.len} bytes")
            if offset < 0 or offset > INT64_MAX - header.last_offset_delta - 1:
                raise ValueError(f"offset {offset} cannot be the base of {<int64_t>header.last_offset_delta + 1} offsets")
            p = <uint8_t *>view.buf + header.position
            put64(p, <uint64_t>offset)
            put32(p + 12, <uint32_t>leader_epoch)
            header.base_offset = offset
            header.leader_epoch = leader_epoch
            offset += <int64_t>header.last_offset_delta + 1
    finally:
        PyBuffer_Release(&view)
    return offset


def stamp_append_time(buffer, header, int64_t now_ms):
    """Turn a batch in place into one stamped with the broker's time: attribute, max timestamp, checksum."""
    stamp(buffer, as_header(header), now_ms, True)


def stamp_create_time(buffer, header, int64_t max_timestamp):
    """Turn a batch in place into one stamped by its producer, the last at `max_timestamp`."""
    stamp(buffer, as_header(header), max_timestamp, False)


cdef int stamp(buffer, BatchHeader batch, int64_t max_timestamp, bint by_broker) except -1:
    cdef Py_buffer view
    cdef uint8_t *p
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        if batch.position < 0 or batch.size < HEADER or batch.position > view.len - batch.size:
            raise ValueError(f"batch at {batch.position} is outside of a buffer of {view.len} bytes")
        p = <uint8_t *>view.buf + batch.position
        batch.attributes = batch.attributes | 8 if by_broker else batch.attributes & ~8
        batch.max_timestamp = max_timestamp
        put16(p + 21, batch.attributes)
        put64(p + 35, <uint64_t>max_timestamp)
        batch.crc = checksum(p + CRC_START, batch.size - CRC_START)
        put32(p + 17, batch.crc)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef inline BatchHeader as_header(object candidate):
    """Cython's own cast lets None through, and there is no field to read in None."""
    if type(candidate) is not BatchHeader:
        raise TypeError(f"a BatchHeader is needed, not {type(candidate).__name__}")
    return <BatchHeader>candidate


def write_header(
    buffer, int64_t base_offset, int32_t leader_epoch, int16_t attributes, int32_t last_offset_delta,
    int64_t base_timestamp, int64_t max_timestamp, int64_t producer_id, int16_t producer_epoch,
    int32_t base_sequence, int32_t record_count,
):
    """Fill the first 61 bytes of a bytearray that holds a whole batch, checksum included."""
    cdef Py_buffer view
    cdef uint8_t *p
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        if view.len < HEADER:
            raise ValueError(f"{view.len} bytes cannot hold a batch header of {HEADER}")
        if view.len - LENGTH_END > INT32_MAX:
            raise TooLarge("a batch", INT32_MAX)
        p = <uint8_t *>view.buf
        put64(p, <uint64_t>base_offset)
        put32(p + 8, <uint32_t>(view.len - LENGTH_END))
        put32(p + 12, <uint32_t>leader_epoch)
        p[16] = 2
        put16(p + 21, attributes)
        put32(p + 23, <uint32_t>last_offset_delta)
        put64(p + 27, <uint64_t>base_timestamp)
        put64(p + 35, <uint64_t>max_timestamp)
        put64(p + 43, <uint64_t>producer_id)
        put16(p + 51, producer_epoch)
        put32(p + 53, <uint32_t>base_sequence)
        put32(p + 57, <uint32_t>record_count)
        put32(p + 17, checksum(p + CRC_START, view.len - CRC_START))
    finally:
        PyBuffer_Release(&view)
