"""A decoder's layers, however few pieces a backend makes of them, are the composition of its ops.

Natively they are so bit for bit, and no row's values depend on its company: not on the batch, not on the chunk. Slots
without a token hold NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import kernel_definition as definition
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiled import BUILDS, native_backend

from pagewire.kernels import kv_elements, rope
from pagewire.kernels.cpu_backend import CpuBackend
from pagewire.kernels.cpu_stack import CpuStack
from pagewire.kernels.decoder_stack import ComposedStack, DecoderStack, LayerWeights, StackBatch, StackShape
from pagewire.kernels.ragged import Ragged, Spilled
from pagewire.kernels.rope import Rope
from pagewire.kernels.scaled_weight import plain
from pagewire.kernels.torch_backend import TorchBackend

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
) -> list[torch.Tensor]:
    """Compute a batch of (embeddings [n, H], where they start, the sequence's blocks); return each part's rows."""
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
    batch = StackBatch(ragged=ragged, slots=torch.tensor(slots), cos=cos, sin=sin)
    heard: list[int] = []
    on_layer = heard.append if is_heard else None
    hidden, residual = stack(torch.cat([x for x, _, _ in parts]), batch, pool, on_layer)
    assert heard == (list(range(LAYERS)) if is_heard else [])
    return list(torch.split((hidden.float() + residual.float()), list(lengths)))


def native(build: str, dtype: torch.dtype, *, biases: bool = False, qk_norm: bool = False) -> CpuStack:
    stack = native_backend(build).decoder_stack(weights(dtype, biases=biases, qk_norm=qk_norm), SHAPE)
    assert isinstance(stack, CpuStack)
    return stack


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("head_outer", [False, True])
@pytest.mark.parametrize("kept", [None, torch.int8, torch.float8_e4m3fn])
def test_one_call_for_a_layer_is_its_ops_bit_for_bit(
    build: str, dtype: torch.dtype, biases: bool, qk_norm: bool, head_outer: bool, kept: torch.dtype | None
) -> None:
    torch.manual_seed(0)
    backend = native_backend(build)
    layers = weights(dtype, biases=biases, qk_norm=qk_norm)
    stacks = [
        backend.decoder_stack(layers, SHAPE),
        ComposedStack(backend, layers, SHAPE),
        TorchBackend().decoder_stack(layers, SHAPE),
    ]
    assert isinstance(stacks[0], CpuStack)
    first, second = torch.randn(37, HIDDEN).to(dtype), torch.randn(5, HIDDEN).to(dtype)
    later = torch.randn(1, HIDDEN).to(dtype)
    results, pools = [], []
    for stack in stacks:
        pool = empty_pool(8, kept or dtype, head_outer)
        rows = run(stack, pool, [(first.clone(), 0, [3, 1, 6]), (second.clone(), 0, [0])])
        rows += run(stack, pool, [(later.clone(), 37, [3, 1, 6]), (later.clone(), 5, [0])])
        results.append(torch.cat(rows))
        pools.append(pool)
    assert torch.equal(results[0], results[1])
    read = [kv_elements.decode(pool, dtype).nan_to_num(9.0) for pool in pools]
    assert torch.equal(read[0], read[1])
    # Two layers of it; a key that rounds to another code is a sixteenth away.
    tolerance = 10 * definition.TOLERANCE[dtype if kept is None else torch.bfloat16]
    torch.testing.assert_close(results[0], results[2], rtol=tolerance, atol=tolerance)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """On how many threads native ops compute meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    try:
        yield request.param
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [(1, 190), (383,), (400, 33, 2), (1000, 100)])
def test_many_rows_are_the_ops_bit_for_bit_on_any_threads(
    threads: int, build: str, dtype: torch.dtype, lengths: tuple[int, ...]
) -> None:
    torch.manual_seed(2)
    backend = native_backend(build)
    layers = weights(dtype, biases=True, qk_norm=True)
    stack, composed = backend.decoder_stack(layers, SHAPE), ComposedStack(backend, layers, SHAPE)
    assert isinstance(stack, CpuStack)
    parts, num_blocks = [], 0
    for length in lengths:
        blocks = list(range(num_blocks, num_blocks + -(-length // BLOCK)))[::-1]
        num_blocks += len(blocks)
        parts.append((torch.randn(length, HIDDEN).to(dtype), 0, blocks))
    results, pools = [], []
    for each, is_heard in ((composed, True), (stack, True), (stack, False)):
        pool = empty_pool(num_blocks, dtype)
        given = [(x.clone(), at, blocks) for x, at, blocks in parts]
        results.append(torch.cat(run(each, pool, given, is_heard=is_heard)))
        pools.append(pool.nan_to_num(9.0))
    for result, pool in zip(results[1:], pools[1:], strict=True):
        assert torch.equal(result, results[0])
        assert torch.equal(pool, pools[0])


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", [None, torch.int8])
def test_a_layer_in_parts_over_spilled_blocks_is_its_ops_bit_for_bit(
    build: str, dtype: torch.dtype, kept: torch.dtype | None
) -> None:
    torch.manual_seed(0)
    backend = native_backend(build)
    layers = weights(dtype, biases=True, qk_norm=True)
    first, later = torch.randn(37, HIDDEN).to(dtype), torch.randn(5, HIDDEN).to(dtype)
    results = []
    for stack in (backend.decoder_stack(layers, SHAPE), ComposedStack(backend, layers, SHAPE)):
        pool, host = empty_pool(8, kept or dtype), empty_pool(4, kept or dtype)
        whole = run(stack, pool, [(first.clone(), 0, [3, 1, 6])])
        (expected,) = run(stack, pool.clone(), [(later.clone(), 37, [3, 1, 6])])
        host[[2, 0]] = pool[[3, 1]]
        pool[[3, 1]] = empty_pool(2, kept or dtype)
        (streamed,) = run(stack, pool, [(later.clone(), 37, [-1, -1, 6])], Spilled(memory=host, slots=(2, 0)))
        tolerance = 10 * definition.TOLERANCE[dtype]
        torch.testing.assert_close(streamed, expected, rtol=tolerance, atol=tolerance)
        results.append(torch.cat([*whole, streamed]))
    assert torch.equal(*results)


@pytest.mark.skipif("tiled" not in BUILDS, reason="only x86-64 processors have tiles")
def test_who_computes_by_tiles_does_not_pass_for_who_does_not() -> None:
    by_tiles = native("tiled", torch.bfloat16).arithmetic
    assert by_tiles.endswith("-bf16-tiles")
    assert native("tiled", torch.float32).arithmetic == by_tiles.replace("-bf16-tiles", "-fp32")


def test_what_is_no_whole_vector_is_composed() -> None:
    backend = CpuBackend.load()
    assert backend is not None
    layers = weights(torch.float32, biases=False, qk_norm=False)
    odd = [replace(layer, down=plain(layer.down)[:, :72], gate_up=plain(layer.gate_up)[: 2 * 72]) for layer in layers]
    assert isinstance(backend.decoder_stack(odd, SHAPE), ComposedStack)


@pytest.mark.parametrize("build", BUILDS)
@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    kept=st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]),
)
def test_a_row_is_the_same_in_any_company_and_any_chunk(
    build: str, data: st.DataObject, dtype: torch.dtype, kept: torch.dtype
) -> None:
    torch.manual_seed(1)
    stack = native(build, dtype, qk_norm=True)
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    embeddings = [torch.randn(length, HIDDEN).to(dtype) for length in lengths]
    alone = []
    for x in embeddings:
        blocks = list(range(-(-len(x) // BLOCK)))
        alone += run(stack, empty_pool(len(blocks), kept), [(x.clone(), 0, blocks)])
    free = data.draw(st.permutations(range(sum(-(-length // BLOCK) for length in lengths))))
    tables = []
    for length in lengths:
        count = -(-length // BLOCK)
        tables.append(free[:count])
        free = free[count:]
    pool = empty_pool(sum(map(len, tables)), kept)
    done, found = [0] * len(lengths), [list[torch.Tensor]() for _ in lengths]
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        left = [number for number, length in enumerate(lengths) if done[number] < length]
        members = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
        sizes = [data.draw(st.sampled_from([1, 2, 7, 64, 130, 300])) for _ in members]
        parts = [
            (embeddings[number][done[number] : done[number] + size], done[number], list(tables[number]))
            for number, size in zip(members, sizes, strict=True)
        ]
        for number, rows, (x, _, _) in zip(members, run(stack, pool, parts), parts, strict=True):
            found[number].append(rows)
            done[number] += len(x)
    for expected, pieces in zip(alone, found, strict=True):
        assert torch.equal(torch.cat(pieces), expected)
