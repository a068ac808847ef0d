"""Validation decompresses into memory that it uses again, and checksums what is long on another thread only."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.log.log_stories import NOW_MS, ROOMY

from penstock.log import validation
from penstock.log.errors import InvalidBatch
from penstock.log.validation import LOOP_PACKED_BYTES, Budget, LongValidation, validate
from penstock.records import Buffer, Codec, CorruptBatch, Scan, decode_batch, encode_batch, scan
from penstock.records.compression import compress, decompress_pooled, release

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MEBIBYTE = 1 << 20


def batch_with(codec: Codec, size: int, letter: bytes = b"x", seed: int = 1) -> bytearray:
    """A batch of records of 1 KB, of which half compresses."""
    noise = random.Random(seed)
    rows = [(NOW_MS, None, noise.randbytes(500) + letter * 500, ()) for _ in range(size // 1000)]
    return encode_batch(rows, codec=codec)


def pooled_buffer() -> object:
    """The buffer that the pool would give out next."""
    buffer, _ = decompress_pooled(Codec.LZ4, compress(Codec.LZ4, bytes(100_000)), MEBIBYTE)
    release(buffer)
    return buffer


@pytest.mark.parametrize("codec", COMPRESSING)
def test_the_memory_of_a_valid_batch_is_used_again(codec: Codec) -> None:
    before = pooled_buffer()
    batch = batch_with(codec, 200_000)
    assert validate(ROOMY, batch, NOW_MS).batches is batch
    assert pooled_buffer() is before


FAULTS = """
import random, resource
from penstock.log.settings import LogSettings
from penstock.log.validation import validate
from penstock.records import Codec, encode_batch

noise = random.Random(1)
rows = [(1, None, noise.randbytes(500).hex().encode(), ()) for _ in range(950)]
for codec in (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
    batch = encode_batch(rows, codec=codec)
    for _ in range(3):
        validate(LogSettings(), batch, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(40):
        validate(LogSettings(), batch, 1)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 40)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the variables are those of glibc")
def test_large_batches_are_validated_without_fresh_memory() -> None:
    """With an allocator that returns whatever is large, as it does in a broker that allocates on several threads."""
    eager = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    ran = subprocess.run(
        [sys.executable, "-c", FAULTS], env={**os.environ, **eager}, capture_output=True, text=True, check=True
    )
    pages = [int(line) for line in ran.stdout.split()]
    assert len(pages) == 3
    assert max(pages) < 25, "the content of a batch takes 232 pages"


def test_rejected_batches_do_not_spoil_the_memory_of_others() -> None:
    settings = replace(ROOMY, message_timestamp_after_max_ms=1000)
    late = encode_batch([(NOW_MS + 10_000, None, b"v" * 1000, ())] * 200, codec=Codec.LZ4)
    sound = batch_with(Codec.LZ4, 200_000)
    for _ in range(10):
        with pytest.raises(InvalidBatch):
            validate(settings, late[:], NOW_MS)
        assert validate(settings, sound, NOW_MS).found.headers[0].record_count == 200


@pytest.mark.parametrize("stored", [Codec.NONE, Codec.ZSTD])
def test_batches_that_are_recompressed_keep_their_memory_until_all_are(stored: Codec) -> None:
    settings = replace(ROOMY, compression_codec=stored)
    sent = [batch_with(Codec.LZ4, 100_000, letter, seed) for seed, letter in enumerate((b"a", b"b", b"c"))]
    request = b"".join(sent)
    for _ in range(2):
        validated = validate(settings, request, NOW_MS)
        headers = validated.found.headers
        assert [header.codec for header in headers] == [stored] * 3
        assert [decode_batch(validated.batches, header.position) for header in headers] == [
            decode_batch(batch) for batch in sent
        ]


# --- the event loop


@pytest.mark.parametrize("codec", COMPRESSING)
def test_the_checksum_of_a_long_batch_is_not_computed_on_the_loop(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[int] = []

    def counted(batches: Buffer) -> Scan:
        scanned.append(len(batches))
        return scan(batches)

    monkeypatch.setattr(validation, "scan", counted)
    batch, budget = batch_with(codec, 400_000), Budget()
    with pytest.raises(LongValidation):
        validate(ROOMY, batch, NOW_MS, budget, on_loop=True)
    assert (scanned, budget.loop_bytes) == ([], Budget.loop_bytes)
    validate(ROOMY, batch, NOW_MS, budget)
    assert scanned == [len(batch)]


def test_what_is_not_compressed_is_validated_on_the_loop_up_to_its_own_limit() -> None:
    batch = batch_with(Codec.NONE, 800_000)
    assert len(batch) > LOOP_PACKED_BYTES
    assert validate(ROOMY, batch, NOW_MS, on_loop=True).batches is batch


def test_a_long_batch_behind_a_short_one_is_left_to_another_thread_too() -> None:
    request = batch_with(Codec.ZSTD, 2000) + batch_with(Codec.ZSTD, 400_000)
    with pytest.raises(LongValidation):
        validate(ROOMY, request, NOW_MS, on_loop=True)
    assert len(validate(ROOMY, request, NOW_MS).found.headers) == 2


@pytest.mark.parametrize("length", [-1, 0, 49, 2**31 - 1])
def test_a_header_that_lies_about_its_length_is_damage_on_every_thread(length: int) -> None:
    batch = batch_with(Codec.ZSTD, 400_000)
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    try:
        validate(ROOMY, batch[:], NOW_MS, on_loop=True)
    except (LongValidation, CorruptBatch):
        pass
    else:
        pytest.fail("it was accepted on the loop")
    with pytest.raises(CorruptBatch):
        validate(ROOMY, batch, NOW_MS)
