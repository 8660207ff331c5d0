"""A small decoder's layers with random weights, and how batches go through them; slots without a token hold NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from tiled import native_backend

from pagewire.kernels import kv_elements, rope
from pagewire.kernels.cpu_stack import CpuStack
from pagewire.kernels.decoder_stack import DecoderStack, LayerWeights, StackBatch, StackShape
from pagewire.kernels.low_rank import AdaptedRows, LayerAdapter, LowRank
from pagewire.kernels.ragged import Ragged, Spilled
from pagewire.kernels.rope import Rope

HIDDEN, INNER, BLOCK, LAYERS = 48, 96, 16, 2  # of the products some go by tiles, where there are any
SHAPE = StackShape(num_q_heads=6, num_kv_heads=2, head_dim=32, norm_eps=1e-5, scale=32**-0.5, windows=(0, 20))
Q, KV = SHAPE.num_q_heads * SHAPE.head_dim, SHAPE.num_kv_heads * SHAPE.head_dim


def weights(dtype: torch.dtype, *, biases: bool, qk_norm: bool) -> list[LayerWeights]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape).div(shape[-1] ** 0.5).to(dtype)

    return [
        LayerWeights(
            input_norm=1 + random(HIDDEN), qkv=random(Q + 2 * KV, HIDDEN),
            qkv_bias=random(Q + 2 * KV) if biases else None,
            q_norm=1 + random(32) if qk_norm else None, k_norm=1 + random(32) if qk_norm else None,
            o=random(HIDDEN, Q), o_bias=random(HIDDEN) if biases else None, post_norm=1 + random(HIDDEN),
            gate_up=random(2 * INNER, HIDDEN), gate_up_bias=random(2 * INNER) if biases else None,
            down=random(HIDDEN, INNER), down_bias=random(HIDDEN) if biases else None,
        )
        for _ in range(LAYERS)
    ]  # fmt: skip


def adapter(dtype: torch.dtype, rank: int, *, has: Sequence[str] = ("qkv", "o", "gate_up", "down")) -> LayerAdapter:
    """Return what an adapter does to the products that it `has` a part in: as much as the weights do themselves."""
    sizes = {"qkv": (Q + 2 * KV, HIDDEN), "o": (HIDDEN, Q), "gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}

    def part(outputs: int, inputs: int) -> LowRank:
        down, up = torch.randn(rank, inputs).div(inputs**0.5), torch.randn(outputs, rank).div(rank**0.5)
        return LowRank(down=down.to(dtype), up=up.to(dtype))

    return LayerAdapter(**{name: part(*sizes[name]) for name in has})


def empty_pool(num_blocks: int, dtype: torch.dtype, head_outer: bool = False) -> torch.Tensor:
    width = SHAPE.head_dim + (2 if dtype in kv_elements.LARGEST else 0)
    shape = (num_blocks, LAYERS, 2, SHAPE.num_kv_heads, BLOCK, width)
    if head_outer:
        shape = (shape[0], shape[3], *shape[1:3], *shape[4:])
    pool = torch.full((*shape[:-1], width * dtype.itemsize), 255, dtype=torch.uint8).view(dtype)  # NaN, whatever it is
    return pool.permute(0, 2, 3, 1, 4, 5) if head_outer else pool


def run(
    stack: DecoderStack,
    pool: torch.Tensor,
    parts: list[tuple[torch.Tensor, int, list[int]]],
    spilled: Spilled | None = None,
    *,
    is_heard: bool = True,
    numbers: Sequence[int] = (),
) -> list[torch.Tensor]:
    """Compute a batch of (embeddings [n, H], where they start, the sequence's blocks); return each part's rows.

    `numbers` are the parts' adapters.
    """
    width = max(len(blocks) for _, _, blocks in parts)
    table = torch.tensor([blocks + blocks[-1:] * (width - len(blocks)) for _, _, blocks in parts])
    positions = torch.cat([torch.arange(start, start + len(x)) for x, start, _ in parts])
    slots = [
        blocks[at // BLOCK] * BLOCK + at % BLOCK for x, start, blocks in parts for at in range(start, start + len(x))
    ]
    cos, sin = rope.cos_sin(rope.inverse_frequencies(Rope(theta=100.0), SHAPE.head_dim), positions)
    lengths = tuple(len(x) for x, _, _ in parts)
    ragged = Ragged(
        query_lens=lengths,
        kv_lens=tuple(start + len(x) for x, start, _ in parts),
        block_table=table,
        block_size=BLOCK,
        spilled=spilled,
    )
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    adapted = tuple(
        AdaptedRows(first=end - length, end=end, number=number)
        for length, end, number in zip(lengths, ends, numbers or [0] * len(lengths), strict=True)
        if number
    )
    batch = StackBatch(ragged=ragged, slots=torch.tensor(slots), cos=cos, sin=sin, adapted=adapted)
    heard: list[int] = []
    on_layer = heard.append if is_heard else None
    hidden, residual = stack(torch.cat([x for x, _, _ in parts]), batch, pool, on_layer)
    assert heard == (list(range(LAYERS)) if is_heard else [])
    return list(torch.split((hidden.float() + residual.float()), list(lengths)))


def native(
    build: str, dtype: torch.dtype, *, biases: bool = False, qk_norm: bool = False, adapters: int = 0
) -> CpuStack:
    """Return the layers in native code, with so many adapters, of rank 4, 8 and so on."""
    layers = [
        replace(layer, adapters=tuple(adapter(dtype, 4 * number) for number in range(1, adapters + 1)))
        for layer in weights(dtype, biases=biases, qk_norm=qk_norm)
    ]
    stack = native_backend(build).decoder_stack(layers, SHAPE)
    assert isinstance(stack, CpuStack)
    return stack
