# Which partition a key belongs to, and which rows a partition.

cdef enum:
    MOST_PARTITIONS = 1_000_000


cdef inline uint32_t hash_key(const uint8_t *p, Py_ssize_t size) noexcept nogil:
    """Kafka's murmur2, its sign bit cleared."""
    cdef uint32_t m = 0x5BD1E995, h = <uint32_t>0x9747B28C ^ <uint32_t>size, k
    while size >= 4:
        k = <uint32_t>p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)
        k *= m
        k ^= k >> 24
        h = (h * m) ^ (k * m)
        p += 4
        size -= 4
    if size >= 3:
        h ^= <uint32_t>p[2] << 16
    if size >= 2:
        h ^= <uint32_t>p[1] << 8
    if size >= 1:
        h = (h ^ p[0]) * m
    h = (h ^ (h >> 13)) * m
    return (h ^ (h >> 15)) & 0x7FFFFFFF


def murmur2(key):
    """The hash by which Java's producer chooses a key's partition: 0 to 2**31 - 1, the partition is the remainder."""
    cdef bytes data
    if key is None:
        raise TypeError("a record's key must be bytes to be hashed, not None")
    data = as_bytes(key, "key")
    return hash_key(bytes_data(data), PyBytes_GET_SIZE(data))


cdef Py_ssize_t place_rows(
    ColumnRows rows, _Numbers wanted, uint32_t partition_count, int32_t *places, Py_ssize_t *counts
) noexcept nogil:
    """Note each row's partition, partition_count for none, and how many each has; -1, or the row that has no place."""
    cdef Py_ssize_t row
    cdef int64_t place
    cdef Cell key
    for row in range(rows.rows):
        place = -1 if wanted is None else wanted.at(row)
        if place < -1 or place >= partition_count:
            return row
        if place == -1:
            if not read_cell(&rows.keys, row, &key):
                return row
            place = partition_count if key.size < 0 else hash_key(key.data, key.size) % partition_count
        places[row] = <int32_t>place
        counts[place] += 1
    return -1


def partition_rows(rows, Py_ssize_t partition_count, partitions=None):
    """([the rows of each partition], the rows that have none), as int32 row numbers, ascending.

    A row's partition is its number in `partitions` (int32 or int64) where there are any and it is not -1, else it is
    the key's, as murmur2 gives it; a row without key has none.
    """
    cdef ColumnRows source = as_rows(rows)
    cdef _Numbers wanted = None
    cdef bytearray places, counts, numbers
    cdef int32_t *place
    cdef int32_t *number
    cdef Py_ssize_t *free
    cdef Py_ssize_t row, bad, i
    if not 1 <= partition_count <= MOST_PARTITIONS:
        raise ValueError(f"a topic has 1 to {MOST_PARTITIONS} partitions, not {partition_count}")
    if partitions is not None:
        wanted = _Numbers(partitions, "partitions")
        if wanted.count != source.rows:
            raise ValueError(f"there are {wanted.count} partitions for {source.rows} rows")
    places = PyByteArray_FromStringAndSize(NULL, source.rows * 4)
    numbers = PyByteArray_FromStringAndSize(NULL, source.rows * 4)
    counts = PyByteArray_FromStringAndSize(NULL, (partition_count + 1) * sizeof(Py_ssize_t))
    memset(PyByteArray_AS_STRING(counts), 0, (partition_count + 1) * sizeof(Py_ssize_t))
    place = <int32_t *>PyByteArray_AS_STRING(places)
    number = <int32_t *>PyByteArray_AS_STRING(numbers)
    free = <Py_ssize_t *>PyByteArray_AS_STRING(counts)
    with nogil:
        bad = place_rows(source, wanted, <uint32_t>partition_count, place, free)
    if bad >= 0:
        raise ValueError(f"row {bad} has no partition of 0 to {partition_count - 1}")
    bounds = [0]
    for i in range(partition_count + 1):
        bounds.append(bounds[i] + free[i])
        free[i] = bounds[i]
    with nogil:
        for row in range(source.rows):
            number[free[place[row]]] = <int32_t>row
            free[place[row]] += 1
    whole = memoryview(numbers).cast("i")
    parts = [whole[bounds[i]:bounds[i + 1]] for i in range(partition_count + 1)]
    return parts[:partition_count], parts[partition_count]
