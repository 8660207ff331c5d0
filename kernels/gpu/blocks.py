"""Whole blocks on the move: within the pool (copy-on-write), out of it and into it (swap, shipments).

    target[target_ids[i]] = source[source_ids[i]]    each id list may be missing: then block i is block i

One kernel does all three, over words of 16 bytes and with offsets in 64 bits. A block is one contiguous piece, or a
piece for each head, layer, K and V, as source and target are strided: axes that are adjacent in both are one.
The torch references are `TorchBackend.copy_blocks`, `gather_blocks`, `scatter_blocks` and `zero_slots`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

TILE_BYTES = 8192  # of a program: four accesses of 16 bytes for each of its threads
WARPS = 4


@triton.jit
def _move(
    source,
    target,
    source_ids,
    target_ids,
    num_tiles,  # of a piece
    piece,  # its size; as all sizes and strides here, in units of UNIT words
    source_block,
    target_block,
    inner,  # pieces of the innermost axis; then strides from piece to piece, innermost axis first
    middle,
    source_inner,
    source_middle,
    source_outer,
    target_inner,
    target_middle,
    target_outer,
    pieces,  # of a block
    HAS_SOURCE_IDS: tl.constexpr,
    HAS_TARGET_IDS: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,  # words
):
    tile = tl.program_id(0) % num_tiles
    number = tl.program_id(0) // num_tiles  # of the piece, among those of all blocks
    block, at = number // pieces, number % pieces
    i, j, k = (at % inner).to(tl.int64), (at // inner % middle).to(tl.int64), (at // inner // middle).to(tl.int64)
    source_id = tl.load(source_ids + block) if HAS_SOURCE_IDS else block.to(tl.int64)
    target_id = tl.load(target_ids + block) if HAS_TARGET_IDS else block.to(tl.int64)
    # A product with UNIT tells the compiler that these are multiples of 16 bytes.
    source += (source_id * source_block + i * source_inner + j * source_middle + k * source_outer) * UNIT
    target += (target_id * target_block + i * target_inner + j * target_middle + k * target_outer) * UNIT
    word = tile * TILE + tl.arange(0, TILE)
    inside = word < piece * UNIT
    tl.store(target + word, tl.load(source + word, inside), inside)


@triton.jit
def _zero(
    block,  # [L, 2, Hk, words of B slots] of one block
    first,  # the first word of a head to zero
    last,  # all words of a head
    head_stride,
    value_stride,
    layer_stride,
    NUM_HEADS: tl.constexpr,
    TILE: tl.constexpr,
):
    number = tl.program_id(0)
    word = first + tl.program_id(1) * TILE + tl.arange(0, TILE)
    head, value, layer = number % NUM_HEADS, number // NUM_HEADS % 2, number // NUM_HEADS // 2
    block += head.to(tl.int64) * head_stride + value.to(tl.int64) * value_stride + layer.to(tl.int64) * layer_stride
    tl.store(block + word, tl.zeros((TILE,), block.dtype.element_ty), word < last)


def copy_blocks(pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy whole blocks inside the pool `[N, L, 2, Hk, B, W]`; both are `[n]` int64, and no target is a source."""
    _launch(pool, pool, sources, targets, len(sources))


def gather_blocks(pool: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of the blocks `[n]` int64: `[n, L, 2, Hk, B, W]`."""
    blocks = torch.empty((len(block_ids), *pool.shape[1:]), dtype=pool.dtype, device=pool.device)
    _launch(pool, blocks, block_ids, None, len(block_ids))
    return blocks


def scatter_blocks(pool: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
    """Write `[n, L, 2, Hk, B, W]` into the pool's blocks `[n]` int64; no id twice."""
    _launch(blocks.contiguous(), pool, None, block_ids, len(block_ids))


def zero_slots(pool: torch.Tensor, block_id: int, first_slot: int) -> None:
    """Zero the slots of one block from `first_slot` on, in all layers."""
    num_layers, _, num_heads, block_size, width = pool.shape[1:]
    if first_slot >= block_size:
        return
    (words,), _ = _as_words(pool, piece=width * pool.element_size())  # slots begin anywhere, each with its scale
    first, last = first_slot * words.shape[4] // block_size, words.shape[4]
    tile = TILE_BYTES // words.element_size()
    _zero[(num_layers * 2 * num_heads, triton.cdiv(last - first, tile))](
        words[block_id], first, last, words.stride(3), words.stride(2), words.stride(1),
        NUM_HEADS=num_heads, TILE=tile, num_warps=WARPS,
    )  # fmt: skip


def _launch(
    source: torch.Tensor,
    target: torch.Tensor,
    source_ids: torch.Tensor | None,
    target_ids: torch.Tensor | None,
    num_blocks: int,
) -> None:
    if not num_blocks:
        return
    head_bytes = source.shape[4] * source.shape[5] * source.element_size()
    (source, target), unit = _as_words(source, target, piece=head_bytes)
    axes = _axes(source, target)
    size, _, _ = axes.pop(0)
    (inner, *inner_strides), (middle, *middle_strides), (outer, *outer_strides) = axes + (3 - len(axes)) * [(1, 0, 0)]
    tile = min(TILE_BYTES // source.element_size(), triton.next_power_of_2(size))
    num_tiles, pieces = triton.cdiv(size, tile), inner * middle * outer
    strides = zip(inner_strides, middle_strides, outer_strides, strict=True)
    source_strides, target_strides = ([stride // unit for stride in each] for each in strides)
    _move[(num_blocks * pieces * num_tiles,)](
        source, target, source_ids, target_ids, num_tiles, size // unit,
        source.stride(0) // unit, target.stride(0) // unit, inner, middle, *source_strides, *target_strides, pieces,
        HAS_SOURCE_IDS=source_ids is not None, HAS_TARGET_IDS=target_ids is not None, UNIT=unit, TILE=tile,
        num_warps=WARPS,
    )  # fmt: skip


def _as_words(*pools: torch.Tensor, piece: int) -> tuple[list[torch.Tensor], int]:
    """Return pools `[N, L, 2, Hk, B, W]` as `[N, L, 2, Hk, words]`, and how many words are a unit.

    Both are as wide as pieces of `piece` bytes, addresses and strides are aligned to: at most 4 and 16 bytes.
    """
    places = [
        each for pool in pools for each in (pool.data_ptr(), *(n * pool.element_size() for n in pool.stride()[:4]))
    ]
    aligned = math.gcd(16, piece, *places)  # bytes, a power of two
    dtype = {1: torch.uint8, 2: torch.int16}.get(aligned, torch.int32)
    return [pool.view(torch.uint8).flatten(4).view(dtype) for pool in pools], aligned // dtype.itemsize


def _axes(source: torch.Tensor, target: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return (size, source stride, target stride) of a block's axes, innermost first; adjacent ones made one."""
    axes = [(source.shape[4], 1, 1)]
    for axis in (3, 2, 1):
        size, source_stride, target_stride = source.shape[axis], source.stride(axis), target.stride(axis)
        inner, source_inner, target_inner = axes[-1]
        if (source_stride, target_stride) == (inner * source_inner, inner * target_inner):
            axes[-1] = (inner * size, source_inner, target_inner)
        elif size > 1:
            axes.append((size, source_stride, target_stride))
    return axes
