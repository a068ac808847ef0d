"""Every message in every version comes back as it was written, whatever kind of buffer it is read from."""

from __future__ import annotations

import pytest
from tests.wire.generate import ALL_CASES, Case, Generator

from penstock.wire.compiler import codec_for

SEEDS = 5


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_a_message_comes_back_as_it_was_written(case: Case) -> None:
    codec = codec_for(case.message, case.version)
    for seed in range(SEEDS):
        message = Generator(seed).message(case.message, case.version)
        data = codec.encode(message)
        decoded, end = codec.decode(data)
        assert (decoded, end) == (message, len(data))
        assert codec.encode(decoded) == data


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_a_message_is_read_from_any_buffer_at_any_position(case: Case) -> None:
    codec = codec_for(case.message, case.version)
    message = Generator(7).message(case.message, case.version)
    data = codec.encode(message)
    padded = b"\xee\xee\xee" + data + b"\xdd\xdd"
    for buffer in (padded, bytearray(padded), memoryview(bytearray(padded))):
        assert codec.decode(buffer, 3) == (message, 3 + len(data))


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_defaults_alone_make_a_message(case: Case) -> None:
    codec = codec_for(case.message, case.version)
    data = codec.encode(case.message())
    assert codec.decode(data) == (case.message(), len(data))
    assert b"".join(bytes(chunk) for chunk in codec.encode_chunks(case.message()) if isinstance(chunk, bytes)) == data
