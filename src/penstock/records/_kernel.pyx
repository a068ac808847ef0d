# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: nonecheck=False, embedsignature=True
"""The loops over batches and records, compiled. `python_kernel.py` is the same module in pure Python.

No byte is read before its bounds are known, no length taken from the bytes allocates before it is checked against what
is there, and nothing here creates a Python object per record unless the caller asked for objects. Both kernels return
and raise the same; property tests compare them. Each part has its counterpart: `_kernel_batch.pxi` and
`python_kernel_batch.py`, and so on.

Layout of a batch (magic 2), big-endian:

    0 base offset i64   8 length i32 (of what follows)   12 leader epoch i32   16 magic i8   17 crc32c u32
    21 attributes i16   23 last offset delta i32   27 base timestamp i64   35 max timestamp i64
    43 producer id i64  51 producer epoch i16      53 base sequence i32    57 record count i32   61 records

The checksum covers byte 21 to the end, so base offset and leader epoch are patched without touching it.

Layout of a record, its lengths and deltas zigzag varints:

    length (of what follows)   attributes i8   timestamp delta   offset delta
    key length (-1: null), key   value length (-1: null), value
    header count, then for each: key length, key in UTF-8, value length (-1: null), value
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_SetItem
from cpython.list cimport PyList_Append, PyList_New, PyList_SET_ITEM
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF, Py_REFCNT
from cpython.sequence cimport PySequence_Fast, PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.string cimport memcmp, memcpy, memset

cdef extern from "Python.h":
    bint PyObject_IS_GC(object candidate)
    void PyObject_GC_UnTrack(void *candidate)

from functools import wraps
from types import GenericAlias

from crc32c import crc32c as _package_crc32c

from penstock.records.compression import compress
from penstock.records.errors import CorruptBatch, DecodeFailed, TooLarge

include "_kernel_batch.pxi"
include "_kernel_records.pxi"
include "_kernel_columns.pxi"
include "_kernel_client.pxi"
