"""A pool in memory keeps to itself."""

from __future__ import annotations

import pytest

from pagewire.kvtransfer.memory import PoolMemory


def test_a_pool_reads_and_writes_whole_blocks_inside_itself() -> None:
    data = bytearray(10)
    memory = PoolMemory(memoryview(data), block_bytes=3, num_blocks=3)
    memory.write(2, memoryview(b"xyz"))
    assert data == bytes(6) + b"xyz" + bytes(1)
    assert bytes(memory.read(2)) == b"xyz"
    assert memory.read(0).readonly
    for block_id in (-1, 3, 2**40):
        with pytest.raises(IndexError):
            memory.read(block_id)
        with pytest.raises(IndexError):
            memory.write(block_id, memoryview(b"xyz"))
    with pytest.raises(ValueError, match="4 bytes for a block of 3"):
        memory.write(0, memoryview(b"wxyz"))
    with pytest.raises(ValueError, match="4 blocks of 3 bytes in 10"):
        PoolMemory(memoryview(data), block_bytes=3, num_blocks=4)
