"""A copy that sums what it writes: its checksum is the library's at any length, seed and alignment, built or not."""

from __future__ import annotations

import random
import shutil

import pytest
import xxhash

from pagewire.kvtransfer import summed_copy as module
from pagewire.kvtransfer.summed_copy import STRIPE_BYTES, summed_copy

LENGTHS = (0, 1, 64, 240, 255, 256, 320, 960, 1024, 1088, 2048, 2112, 4096, 65_536, 65_600, 65_601, 368_640)
SEEDS = (0, 1, (1 << 64) - 1, 0x9E3779B97F4A7C15)


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("offset", [0, 1, 32])
def test_it_copies_and_sums_as_the_library_does(monkeypatch: pytest.MonkeyPatch, is_built: bool, offset: int) -> None:
    if is_built and shutil.which("cc") is None:
        pytest.skip("no C compiler on this machine")
    if not is_built:
        monkeypatch.setattr(module, "_native", lambda: None)
    generator = random.Random(offset)
    for length in LENGTHS:
        source = generator.randbytes(length + offset)
        for seed in SEEDS:
            target = bytearray(b"\xaa") * (length + offset + STRIPE_BYTES)
            place = memoryview(target)[offset : offset + length]
            assert summed_copy(place, memoryview(source)[offset:], seed) == xxhash.xxh3_64_intdigest(
                source[offset:], seed
            )
            assert place == source[offset:]
            assert target[:offset] == b"\xaa" * offset  # and nothing around it
            assert target[offset + length :] == b"\xaa" * STRIPE_BYTES


def test_a_place_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="65 bytes for a place of 64"):
        summed_copy(memoryview(bytearray(64)), bytes(65), 0)


def test_a_place_that_cannot_be_written_is_refused() -> None:
    with pytest.raises((BufferError, TypeError)):
        summed_copy(memoryview(bytes(1024)), bytes(1024), 0)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
def test_where_there_is_a_compiler_it_is_built() -> None:
    assert module.prepare()


def test_lengths_are_bytes_whatever_the_items_are() -> None:
    words, target = memoryview(bytes(range(256)) * 8).cast("Q"), bytearray(2048)
    assert summed_copy(memoryview(target).cast("Q"), words, 7) == xxhash.xxh3_64_intdigest(bytes(words), 7)
    assert target == bytes(words)
