# Bytes into a consumer's records: objects that know their topic, their keys and values decoded.

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
    """A record as a consumer sees it: where it stands, its time in milliseconds, key, value, headers.

    `timestamp_type` is 0 where the producer set the time, 1 where the broker did. `leader_epoch` is -1 where the
    leader's epoch is not known.
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

    With `plain` None they are in buffer[start:end], not compressed. A decoder is not called for None, nor for records
    before `from_offset`. What it raises becomes a DecodeFailed that holds the records before the one that failed.
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
