"""Every message in every version is decoded as it was encoded, from any kind of buffer."""

from __future__ import annotations

import pytest
from tests.wire.generate import ALL_CASES, Case, Generator, check_every

from penstock.wire.codec import codec_for

SEEDS = 5


def test_a_message_comes_back_as_it_was_written() -> None:
    def check(case: Case) -> None:
        codec = codec_for(case.message, case.version)
        for seed in range(SEEDS):
            message = Generator(seed).message(case.message, case.version)
            data = codec.encode(message)
            decoded, end = codec.decode(data)
            assert (decoded, end) == (message, len(data))
            assert codec.encode(decoded) == data

    check_every(ALL_CASES, check)


def test_a_message_is_read_from_any_buffer_at_any_position() -> None:
    def check(case: Case) -> None:
        codec = codec_for(case.message, case.version)
        message = Generator(7).message(case.message, case.version)
        data = codec.encode(message)
        padded = b"\xee\xee\xee" + data + b"\xdd\xdd"
        for buffer in (padded, bytearray(padded), memoryview(bytearray(padded))):
            assert codec.decode(buffer, 3) == (message, 3 + len(data))

    check_every(ALL_CASES, check)


def test_defaults_alone_make_a_message() -> None:
    def check(case: Case) -> None:
        codec = codec_for(case.message, case.version)
        data = codec.encode(case.message())
        assert codec.decode(data) == (case.message(), len(data))
        assert (
            b"".join(bytes(chunk) for chunk in codec.encode_chunks(case.message()) if isinstance(chunk, bytes)) == data
        )

    check_every(ALL_CASES, check)


def test_every_mismatch_of_a_list_is_reported() -> None:
    def check(number: int) -> None:
        if number == 1:
            with pytest.raises(KeyError):
                int("5")
        if number == 3:
            raise KeyError("lost")
        assert number != 2, "an even one"

    with pytest.raises(pytest.fail.Exception) as failure:
        check_every(range(5), check)
    said = str(failure.value)
    assert said.startswith("3 of 5 fail\n1: Failed: DID NOT RAISE")
    assert "\n2: AssertionError: an even one" in said
    assert "\n3: KeyError: 'lost'" in said
    with pytest.raises(AssertionError, match="no case"):
        check_every([], check)
