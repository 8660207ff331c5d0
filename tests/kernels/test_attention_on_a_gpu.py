"""Paged attention on a GPU, against its definition in float64: what the interpreter cannot, bfloat16 first of all.

Random numbers throughout, never zeros; what the kernels leave unwritten, scratch memory too, is NaN, and so is every
slot that holds no token.
"""

from __future__ import annotations

from collections.abc import Iterator

import kernel_definition as definition
import pytest
import torch
from paged_batches import PagedBatch, paged_batch

from pagewire.kernels.gpu.paged_attention import AttentionPlan, paged_attention, partial_attention, plan_attention
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.gpu.work_list import Sequences
from pagewire.kernels.torch_backend import TorchBackend

HOPPER = (9, 0)
SCALE = 0.125
RAGGED = [(1, 1), (1, 16), (1, 700), (5, 333), (8, 64), (9, 9), (200, 1029), (1, 5000), (64, 64)]


def has_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == HOPPER


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_hopper(), reason="no CUDA device of capability 9.0")]


@pytest.fixture(autouse=True)
def uninitialised_is_nan() -> Iterator[None]:
    """Have torch fill what `torch.empty` returns with NaN, or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = definition.TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double().cpu(), expected.double().cpu(), rtol=tolerance, atol=tolerance)


def check(batch: PagedBatch, softcap: float = 0.0, sinks: torch.Tensor | None = None) -> None:
    plan = plan_attention(batch.ragged, batch.window, Processor.of(batch.q.device))
    on_device = None if sinks is None else sinks.to(batch.q.device)
    out = paged_attention(batch.q, batch.pool, 1, plan, SCALE, softcap, on_device)
    close(out, batch.expected(SCALE, softcap, sinks))


@pytest.mark.parametrize(  # each is compiled; blocks of every dtype are smaller than a tile of keys, and larger
    ("dtype", "block_size"),
    [
        *((torch.bfloat16, block_size) for block_size in (8, 16, 64, 128)),
        *((torch.float16, block_size) for block_size in (16, 64)),
        *((torch.float32, block_size) for block_size in (8, 128)),
    ],
)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("head_outer", [False, True])
def test_ragged_batches(dtype: torch.dtype, head_dim: int, block_size: int, head_outer: bool) -> None:
    check(
        paged_batch(
            RAGGED, heads=(6, 2), head_dim=head_dim, block_size=block_size, dtype=dtype, head_outer=head_outer,
            device="cuda",
        )
    )  # fmt: skip


@pytest.mark.parametrize("heads", [(2, 2), (7, 1), (8, 2), (9, 3), (16, 1), (32, 8)])
@pytest.mark.parametrize(("window", "softcap", "with_sinks"), [(0, 0.0, True), (100, 0.0, True), (33, 30.0, False)])
def test_groups_windows_caps_and_sinks(heads: tuple[int, int], window: int, softcap: float, with_sinks: bool) -> None:
    batch = paged_batch(
        RAGGED, heads=heads, head_dim=64, block_size=16, dtype=torch.bfloat16, window=window, device="cuda"
    )
    check(batch, softcap, torch.randn(heads[0]).bfloat16() if with_sinks else None)


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_quantised_pools(stored: torch.dtype, head_dim: int) -> None:
    check(
        paged_batch(
            RAGGED, heads=(8, 2), head_dim=head_dim, block_size=16, dtype=torch.bfloat16, stored=stored, device="cuda"
        )
    )


def test_a_pool_of_more_elements_than_32_bits_count() -> None:
    """The blocks of one sequence, at the end of five gigabytes."""
    batch = paged_batch([(1, 40)], heads=(4, 2), head_dim=128, block_size=16, dtype=torch.bfloat16, device="cuda")
    num_blocks = (5 << 30) // (2 * batch.pool[0].numel())
    pool = torch.full((num_blocks, *batch.pool.shape[1:]), torch.nan, dtype=torch.bfloat16, device="cuda")
    pool[-len(batch.pool) :] = batch.pool
    batch.ragged.block_table.add_(num_blocks - len(batch.pool))
    plan = plan_attention(batch.ragged, 0, Processor.of(batch.q.device))
    close(paged_attention(batch.q, pool, 1, plan, SCALE), batch.expected(SCALE))


def test_a_graph_is_replayed_at_lengths_that_it_was_not_captured_at() -> None:
    """The work list is built in the graph: whatever the lengths are then, its grids are the same."""
    processor = Processor.of(torch.device("cuda"))
    kv_lens = [[3, 90, 17, 64], [5000, 1, 1, 700], [2000, 2100, 2200, 2300]]
    batches = [
        paged_batch([(1, kv_len) for kv_len in each], heads=(8, 2), head_dim=64, block_size=16, dtype=torch.bfloat16,
                    seed=seed, device="cuda")
        for seed, each in enumerate(kv_lens)
    ]  # fmt: skip
    table = torch.zeros(4, 5000 // 16 + 1, dtype=torch.int64, device="cuda")
    pool = torch.empty((max(len(batch.pool) for batch in batches), *batches[0].pool.shape[1:])).bfloat16().cuda()
    q = torch.empty_like(batches[0].q.contiguous())
    sequences = Sequences(
        query_starts=torch.arange(5, dtype=torch.int32, device="cuda"),
        kv_lens=torch.ones(4, dtype=torch.int32, device="cuda"),
        block_table=table, block_size=16, num_rows=4, longest_decode=1, has_chunks=False,
    )  # fmt: skip

    def attend() -> torch.Tensor:
        return paged_attention(q, pool, 1, AttentionPlan(sequences=sequences, processor=processor, window=0), SCALE)

    attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend()
    for batch in batches:
        own = batch.ragged.block_table
        table[:, : own.shape[1]].copy_(own)
        pool[: len(batch.pool)].copy_(batch.pool)
        q.copy_(batch.q)
        sequences.kv_lens.copy_(torch.tensor(batch.ragged.kv_lens))
        graph.replay()
        close(out, batch.expected(SCALE))


def test_a_result_is_the_same_bits_each_time() -> None:
    batch = paged_batch(RAGGED, heads=(8, 2), head_dim=128, block_size=16, dtype=torch.bfloat16, device="cuda")
    processor = Processor.of(batch.q.device)
    first, *others = (
        paged_attention(batch.q, batch.pool, 1, plan_attention(batch.ragged, 0, processor), SCALE) for _ in range(20)
    )
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(("first_query", "first_key"), [(1000, 10), (5, 10), (3000, 0)])
@pytest.mark.parametrize("window", [0, 500])
def test_partial_attention(first_query: int, first_key: int, window: int) -> None:
    q, kv = torch.randn(70, 8, 64).bfloat16().cuda(), torch.randn(2, 2, 1024, 64).bfloat16().cuda()
    arguments = (first_query, first_key, window, SCALE, 0.0)
    part = partial_attention(q, kv, *arguments, processor=Processor.of(q.device))
    expected = TorchBackend().partial_attention(q.cpu().float(), kv.cpu().float(), *arguments)
    torch.testing.assert_close(part.out.cpu(), expected.out, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(part.log_sum.cpu(), expected.log_sum, rtol=1e-3, atol=1e-3)
