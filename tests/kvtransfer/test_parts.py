"""Parts of blocks: every byte of a block is in one of them, by number as by address, and groups share them out."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.kvtransfer.memory import PoolMemory
from pagewire.kvtransfer.parts import part_ids, parts_of

NUM_BLOCKS, BLOCK_BYTES = 6, 24


def filled(fd: int | None = None) -> PoolMemory:
    view = memoryview(bytearray(i % 251 for i in range(NUM_BLOCKS * BLOCK_BYTES)))
    return PoolMemory(view, block_bytes=BLOCK_BYTES, num_blocks=NUM_BLOCKS, fd=fd)


@given(first=st.integers(0, 50), num=st.integers(0, 20), groups=st.integers(1, 8))
def test_groups_share_out_all_parts(first: int, num: int, groups: int) -> None:
    whole = parts_of(first, num, groups)
    shares = [parts_of(first, num, groups, group) for group in range(groups)]
    assert sorted(part for share in shares for part in share) == list(whole)
    for group, share in enumerate(shares):
        assert [divmod(part, groups) for part in share] == [(first + i, group) for i in range(num)]


@given(ids=st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=8), count=st.sampled_from([1, 2, 3, 4, 6]))
def test_parts_are_the_bytes_of_their_blocks(ids: list[int], count: int) -> None:
    pool = filled()
    split = pool.split(count)
    assert (split.num_blocks, split.block_bytes) == (NUM_BLOCKS * count, BLOCK_BYTES // count)
    assert b"".join(map(split.read, part_ids(ids, count))) == b"".join(map(pool.read, ids))
    size = BLOCK_BYTES // count
    for group in range(count):
        spans = [pool.read(block_id)[group * size : (group + 1) * size] for block_id in ids]
        assert list(map(split.read, part_ids(ids, count, group))) == spans


def test_a_split_is_the_same_memory_and_the_same_file() -> None:
    fd = os.memfd_create("pagewire-test")
    try:
        pool = filled(fd)
        split = pool.split(3)
        assert pool.split(3) is split
        assert pool.split(1) is pool
        assert split.fd is not None
        assert os.fstat(split.fd).st_ino == os.fstat(fd).st_ino
        split.write(4, bytes(8))
        assert pool.read(1)[8:16] == bytes(8)
        with pytest.raises(IndexError):
            split.read(NUM_BLOCKS * 3)
        pool.close()
        assert split.fd is None
    finally:
        os.close(fd)


@pytest.mark.parametrize("count", [0, -1, 5])
def test_uneven_parts_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="equal parts"):
        filled().split(count)
