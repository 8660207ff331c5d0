"""A decoder's layers, however few pieces a backend makes of them, are the composition of its ops.

Natively they are so bit for bit, and no row's values depend on its company: not on the batch, not on the chunk. Slots
without a token hold NaN.
"""

from __future__ import annotations

from dataclasses import replace

import kernel_definition as definition
import pytest
import torch
from decoder_layers import BLOCK, HIDDEN, SHAPE, empty_pool, native, run, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from tiled import ALL_BUILDS, native_backend

from pagewire.kernels import kv_elements
from pagewire.kernels.cpu_backend import CpuBackend
from pagewire.kernels.cpu_stack import CpuStack
from pagewire.kernels.decoder_stack import ComposedStack
from pagewire.kernels.ragged import Spilled
from pagewire.kernels.scaled_weight import plain
from pagewire.kernels.torch_backend import TorchBackend


@pytest.mark.parametrize("build", ALL_BUILDS)
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


@pytest.mark.parametrize("build", ALL_BUILDS)
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


@pytest.mark.parametrize("build", ALL_BUILDS)
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


@pytest.mark.skipif("tiled" not in ALL_BUILDS, reason="tiles lie beside vectors of AVX-512")
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


@pytest.mark.parametrize("build", ALL_BUILDS)
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
    stack = native(build, dtype, qk_norm=True, adapters=2)
    lengths = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    embeddings = [torch.randn(length, HIDDEN).to(dtype) for length in lengths]
    adapters = [data.draw(st.integers(0, 2)) for _ in lengths]
    alone = []
    for x, own in zip(embeddings, adapters, strict=True):
        blocks = list(range(-(-len(x) // BLOCK)))
        alone += run(stack, empty_pool(len(blocks), kept), [(x.clone(), 0, blocks)], numbers=[own])
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
        rows_of = run(stack, pool, parts, numbers=[adapters[number] for number in members])
        for number, rows, (x, _, _) in zip(members, rows_of, parts, strict=True):
            found[number].append(rows)
            done[number] += len(x)
    for expected, pieces in zip(alone, found, strict=True):
        assert torch.equal(torch.cat(pieces), expected)
