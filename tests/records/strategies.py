"""Records of every kind, and ways to damage their bytes, for property tests."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from penstock.records import Buffer

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
EDGES = [0, 1, 63, 64, 127, 128, 8191, 8192, 16383, 16384]

int64s = st.one_of(
    st.integers(0, 2 * 10**12),
    st.integers(INT64_MIN, INT64_MAX),
    st.sampled_from([INT64_MIN, INT64_MIN + 1, -1, 0, 1, 2**62, INT64_MAX - 1, INT64_MAX]),
)
blobs = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.sampled_from(EDGES)),
)
names = st.one_of(st.sampled_from(["", "a", "trace", "naïve"]), st.text(max_size=6))  # names repeat, in life too
headers = st.lists(st.tuples(names, st.one_of(st.none(), st.binary(max_size=6))), max_size=4)
records = st.lists(st.tuples(int64s, blobs, blobs, headers), max_size=8)
some_records = st.lists(st.tuples(int64s, blobs, blobs, headers), min_size=1, max_size=8)

edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "flip", "insert", "delete", "cut", "repeat"]),
        st.integers(0, 10_000),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def mutate(data: Buffer, changes: Sequence[tuple[str, int, int]]) -> bytearray:
    out = bytearray(data)
    for kind, place, byte in changes:
        if not out:
            return out
        at = place % len(out)
        if kind == "set":
            out[at] = byte
        elif kind == "flip":
            out[at] ^= 1 << (byte & 7)
        elif kind == "insert":
            out.insert(at, byte)
        elif kind == "delete":
            del out[at]
        elif kind == "cut":
            del out[at:]
        else:
            out[at:at] = out[at : at + byte]
    return out
