# Numbers in bytes: big-endian fields, varints, wrapping arithmetic, the checksum.
#
# Rule: C leaves the overflow of signed numbers undefined and hostile bytes can cause it, so whatever is computed from
# bytes goes through `wrap_add`, `wrap_sub` and `wrap_mul`, which are two's complement everywhere.

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

cdef bint HAS_CRC32 = penstock_has_crc32()


cdef inline uint32_t checksum(const uint8_t *data, Py_ssize_t size) except? 0:
    if HAS_CRC32 and size <= SHORT_CRC:
        return penstock_crc32c_short(data, <size_t>size)
    return <uint32_t>_package_crc32c(PyMemoryView_FromMemory(<char *>data, size, 0x100))


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


cdef bint get_long_varint(const uint8_t **at, const uint8_t *end, int64_t *out) noexcept nogil:
    cdef const uint8_t *p = at[0]
    cdef uint64_t value = 0
    cdef int shift = 0
    while p < end and shift < 64:
        value |= <uint64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            if shift == 63 and p[0] > 1:
                return False
            at[0] = p + 1
            out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            return True
        p += 1
        shift += 7
    return False


cdef inline bint get_varint(const uint8_t **at, const uint8_t *end, int64_t *out) noexcept nogil:
    """Read a varint and step over it; False if it does not end before `end` or within 64 bits."""
    cdef const uint8_t *p = at[0]
    cdef uint32_t value
    if p < end and p[0] < 0x80:
        value = p[0]
        out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
        at[0] = p + 1
        return True
    if end - p >= 2 and p[1] < 0x80:
        value = (p[0] & 0x7F) | (<uint32_t>p[1] << 7)
        out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
        at[0] = p + 2
        return True
    return get_long_varint(at, end, out)


cdef inline bint get_sized(
    const uint8_t **at, const uint8_t *end, const uint8_t **data, Py_ssize_t *size, bint nullable
) noexcept nogil:
    """Read a length and step over the bytes that follow it; size -1 is null."""
    cdef int64_t length
    if not get_varint(at, end, &length):
        return False
    if length < 0:
        if length != -1 or not nullable:
            return False
        size[0] = -1
        data[0] = NULL
        return True
    if length > end - at[0]:
        return False
    data[0] = at[0]
    size[0] = <Py_ssize_t>length
    at[0] += length
    return True


cdef inline bytes sized_bytes(const uint8_t *data, Py_ssize_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *>data, size)
