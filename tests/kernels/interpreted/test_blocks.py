"""Blocks on the move, byte for byte, over every way that a pool may lie in memory; the others stay as they were."""

from __future__ import annotations

import mmap

import pytest
import torch

from pagewire.kernels.gpu.blocks import copy_blocks, gather_blocks, scatter_blocks, zero_slots

# (layers, heads, block size, width, dtype): blocks of one tile, of several, of words of 4, 2 and 1 bytes.
SHAPES = [
    (2, 3, 16, 8, torch.float32),
    (1, 2, 32, 80, torch.float16),
    (2, 1, 16, 34, torch.float8_e4m3fn),
    (2, 2, 5, 7, torch.float16),
    (1, 1, 3, 5, torch.int8),
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def laid_out(num_blocks: int, shape: tuple[int, int, int, int, torch.dtype], order: str) -> torch.Tensor:
    """Return a pool `[N, L, 2, Hk, B, W]` of random bytes, layers or heads outermost, or a part of its heads."""
    layers, heads, block_size, width, dtype = shape
    width *= dtype.itemsize
    if order == "layers":
        return torch.randint(0, 256, (num_blocks, layers, 2, heads, block_size, width), dtype=torch.uint8).view(dtype)
    more = 2 if order == "part" else 0
    memory = torch.randint(0, 256, (num_blocks, heads + more, layers, 2, block_size, width), dtype=torch.uint8)
    return memory.view(dtype).permute(0, 2, 3, 1, 4, 5)[:, :, :, more // 2 : more // 2 + heads]


def content(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.contiguous().view(torch.uint8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", ["layers", "heads", "part"])
def test_blocks_are_copied_gathered_scattered_and_zeroed(
    shape: tuple[int, int, int, int, torch.dtype], order: str
) -> None:
    pool = laid_out(6, shape, order)
    expected = content(pool).clone()
    copy_blocks(pool, torch.tensor([0, 1]), torch.tensor([5, 4]))
    expected[[5, 4]] = expected[[0, 1]]
    assert torch.equal(content(pool), expected)
    gathered = gather_blocks(pool, torch.tensor([3, 0, 3]))
    assert gathered.is_contiguous()
    assert gathered.dtype == pool.dtype
    assert torch.equal(content(gathered), expected[[3, 0, 3]])
    scatter_blocks(pool, torch.tensor([1, 2]), gathered[:2])
    expected[[1, 2]] = expected[[3, 0]]
    assert torch.equal(content(pool), expected)
    block_size = shape[2]
    for block, first_slot in ((3, block_size // 2), (4, 0), (5, block_size - 1), (0, block_size)):
        zero_slots(pool, block, first_slot)
        expected[block, :, :, :, first_slot:] = 0
        assert torch.equal(content(pool), expected)


def test_blocks_from_a_pool_of_one_order_into_one_of_another() -> None:
    source, target = laid_out(3, SHAPES[0], "heads"), laid_out(3, SHAPES[0], "layers")
    scatter_blocks(target, torch.tensor([2, 0]), gather_blocks(source, torch.tensor([0, 1])))
    scatter_blocks(target, torch.tensor([1]), source[2:])  # a block that is strided itself
    assert torch.equal(content(target), content(source)[[1, 2, 0]])


def test_no_blocks_move_nothing() -> None:
    pool = laid_out(2, SHAPES[0], "layers")
    before, none = content(pool).clone(), torch.empty(0, dtype=torch.int64)
    copy_blocks(pool, none, none)
    scatter_blocks(pool, none, pool[:0])
    assert gather_blocks(pool, none).shape == (0, *pool.shape[1:])
    assert torch.equal(content(pool), before)


def test_offsets_are_wider_than_32_bits() -> None:
    """Two blocks more bytes apart than 32 bits count, in words of one byte; only what is touched is in memory."""
    apart = (1 << 32) + 1
    with mmap.mmap(-1, apart + 64) as memory:
        whole = torch.frombuffer(memory, dtype=torch.int8)
        pool = whole.as_strided((2, 1, 2, 1, 4, 5), (apart, 40, 20, 20, 5, 1))
        pool[1] = torch.randint(-128, 128, pool.shape[1:], dtype=torch.int8)
        sent = pool[1].clone()
        assert torch.equal(gather_blocks(pool, torch.tensor([1]))[0], sent)
        copy_blocks(pool, torch.tensor([1]), torch.tensor([0]))
        assert torch.equal(pool[0], sent)
        scatter_blocks(pool, torch.tensor([1]), sent[None] + 1)
        assert torch.equal(pool[1], sent + 1)
        zero_slots(pool, 1, 2)
        assert torch.equal(pool[1, :, :, :, :2], (sent + 1)[:, :, :, :2])
        assert int(pool[1, :, :, :, 2:].count_nonzero()) == 0
        assert torch.equal(pool[0], sent)
        del whole, pool
