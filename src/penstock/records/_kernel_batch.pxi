# Integers in bytes, and batch headers: find the batches in a buffer, patch them, write them.
#
# C leaves the overflow of signed numbers undefined and hostile bytes can cause it, so whatever is computed from bytes
# goes through `wrap_add`, `wrap_sub` and `wrap_mul`, which are two's complement everywhere.

cdef extern from *:
    """
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <cpuid.h>
    #include <string.h>
    /* One stream of the CRC32 instruction: best for short inputs, where calling out costs more than the work. */
    __attribute__((target("sse4.2")))
    static unsigned int penstock_crc32c_short(const unsigned char *p, size_t n) {
        unsigned long long crc = 0xFFFFFFFFu, word;
        while (n >= 8) { memcpy(&word, p, 8); crc = __builtin_ia32_crc32di(crc, word); p += 8; n -= 8; }
        while (n--) { crc = __builtin_ia32_crc32qi((unsigned int)crc, *p++); }
        return (unsigned int)crc ^ 0xFFFFFFFFu;
    }
    /* Asked of the processor itself: __builtin_cpu_supports does not link into a shared object with every compiler. */
    static int penstock_has_crc32(void) {
        unsigned int a, b, c, d;
        return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 20));
    }
    #else
    static unsigned int penstock_crc32c_short(const unsigned char *p, size_t n) { (void)p; (void)n; return 0; }
    static int penstock_has_crc32(void) { return 0; }
    #endif
    """
    uint32_t penstock_crc32c_short(const uint8_t *data, size_t size) nogil
    bint penstock_has_crc32() nogil

cdef extern from *:
    """
    static inline short penstock_get16(const unsigned char *p) {
        return (short)((p[0] << 8) | p[1]); }
    static inline int penstock_get32(const unsigned char *p) {
        return (int)(((unsigned)p[0] << 24) | ((unsigned)p[1] << 16) | ((unsigned)p[2] << 8) | p[3]); }
    static inline long long penstock_get64(const unsigned char *p) {
        return (long long)(((unsigned long long)(unsigned)penstock_get32(p) << 32)
                           | (unsigned)penstock_get32(p + 4)); }
    static inline void penstock_put16(unsigned char *p, int v) {
        p[0] = (unsigned char)(v >> 8); p[1] = (unsigned char)v; }
    static inline void penstock_put32(unsigned char *p, unsigned v) {
        p[0] = (unsigned char)(v >> 24); p[1] = (unsigned char)(v >> 16);
        p[2] = (unsigned char)(v >> 8); p[3] = (unsigned char)v; }
    static inline void penstock_put64(unsigned char *p, unsigned long long v) {
        penstock_put32(p, (unsigned)(v >> 32)); penstock_put32(p + 4, (unsigned)v); }
    """
    int16_t get16 "penstock_get16"(const uint8_t *p) nogil
    int32_t get32 "penstock_get32"(const uint8_t *p) nogil
    int64_t get64 "penstock_get64"(const uint8_t *p) nogil
    void put16 "penstock_put16"(uint8_t *p, int value) nogil
    void put32 "penstock_put32"(uint8_t *p, uint32_t value) nogil
    void put64 "penstock_put64"(uint8_t *p, uint64_t value) nogil

cdef enum:
    HEADER = 61
    LENGTH_END = 12
    CRC_START = 21
    MIN_LENGTH = HEADER - LENGTH_END
    MIN_RECORD = 7  # length, attributes, timestamp, offset, key, value, header count: a byte each
    SHORT_CRC = 2048  # above this the package's interleaved streams win
    QUICK_CRC = 1048576  # up to this it takes some 50 us

cdef bint HAS_CRC32 = penstock_has_crc32()


cdef inline uint32_t checksum(const uint8_t *data, Py_ssize_t size) except? 0:
    if HAS_CRC32 and size <= SHORT_CRC:
        return penstock_crc32c_short(data, <size_t>size)
    return <uint32_t>_package_crc32c(PyMemoryView_FromMemory(<char *>data, size, 0x100))


cdef inline uint32_t checksum_at_once(const uint8_t *data, Py_ssize_t size) except? 0:
    """Without giving up the interpreter's lock for short: a thread that computes keeps it for 5 ms."""
    if HAS_CRC32 and size <= SHORT_CRC:
        return penstock_crc32c_short(data, <size_t>size)
    release = -1 if size > QUICK_CRC else 0
    return <uint32_t>_package_crc32c(PyMemoryView_FromMemory(<char *>data, size, 0x100), 0, release)


cdef inline int64_t wrap_add(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef inline int64_t wrap_sub(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a - <uint64_t>b)


cdef inline int64_t wrap_mul(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a * <uint64_t>b)


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int varint_size(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t *put_varint(uint8_t *p, uint64_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        p += 1
        value >>= 7
    p[0] = <uint8_t>value
    return p + 1


cdef inline Py_ssize_t sized_size(Py_ssize_t size) noexcept nogil:
    """What `put_sized` writes for a value of that size (-1: null)."""
    return varint_size(zigzag(size)) + (size if size > 0 else 0)


cdef inline uint8_t *put_sized(uint8_t *p, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    p = put_varint(p, zigzag(size))
    if size <= 0:
        return p
    memcpy(p, data, <size_t>size)
    return p + size


# Readers return (value, where it ends) by value, so that a loop over records keeps both in registers. A varint that
# does not end before `end` or within 64 bits is (0, end + 1), an address that is compared but never read. Every read
# from there on fails in the same way, so a parser checks once, after its last field, whether it arrived at the end of
# the record.

cdef (int64_t, const uint8_t *) get_long_varint(const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    while p < end and shift < 64:
        value |= <uint64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            if shift == 63 and p[0] > 1:
                break
            return <int64_t>(value >> 1) ^ -<int64_t>(value & 1), p + 1
        p += 1
        shift += 7
    return 0, end + 1


cdef inline (int64_t, const uint8_t *) get_varint(const uint8_t *p, const uint8_t *end) noexcept nogil:
    cdef uint32_t value
    if p < end and p[0] < 0x80:
        value = p[0]
        return <int64_t>(value >> 1) ^ -<int64_t>(value & 1), p + 1
    if end - p >= 2 and p[1] < 0x80:
        value = (p[0] & 0x7F) | (<uint32_t>p[1] << 7)
        return <int64_t>(value >> 1) ^ -<int64_t>(value & 1), p + 2
    return get_long_varint(p, end)


cdef inline (Py_ssize_t, const uint8_t *) get_size(const uint8_t *p, const uint8_t *end, int least) noexcept nogil:
    """(length, where its bytes begin). It is at least `least`, -1 where null is allowed; else (0, end + 1)."""
    cdef int64_t size
    size, p = get_varint(p, end)
    if size < least or size > end - p:
        return 0, end + 1
    return <Py_ssize_t>size, p


cdef inline const uint8_t *after(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """Where the bytes that `get_size` found end."""
    return data + size if size > 0 else data


cdef inline bytes sized_bytes(const uint8_t *data, Py_ssize_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *>data, size)


cdef bint is_utf8(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """As Python's strict decoder judges: no surrogates, no overlong forms."""
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


# ------------------------------------------------------------------------------------------------------ batch headers

@cython.final
@cython.freelist(64)
cdef class BatchHeader:
    """The 61 bytes before a batch's records, and the position of the batch in the scanned buffer."""

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
    """The result of scanning a buffer: complete batches, where they end, and why the scan stopped.

    `problem` is None if the buffer ends with a complete batch, "incomplete" if it ends inside one that needs `needed`
    bytes (0: not even its length is there), or a description of the damage at `end`.
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
        return f"unknown compression codec {get16(p + 21) & 7}"
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

    With `verify` the checksum is checked too. Without `whole` (and then without `verify`) a last batch with only its
    header counts, and `end` may be beyond the buffer. A batch of an older magic is damage: the log holds magic 2
    only.
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
    """Change a batch in place to the broker's timestamp: attribute, max timestamp, checksum."""
    stamp(buffer, as_header(header), now_ms, True)


def stamp_create_time(buffer, header, int64_t max_timestamp):
    """Change a batch in place to its producer's timestamps, the largest being `max_timestamp`."""
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
        put32(p + 17, checksum_at_once(p + CRC_START, view.len - CRC_START))
    finally:
        PyBuffer_Release(&view)
