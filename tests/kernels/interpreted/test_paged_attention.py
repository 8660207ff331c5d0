"""Paged attention of `kernels/gpu` against its definition in float64 and against torch.

Whatever the kernels leave unwritten is NaN, scratch memory included, and so is every slot that holds no token; table
entries that no row needs point to where no memory is.
"""

from __future__ import annotations

import kernel_definition as definition
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_batches import PagedBatch, paged_batch

from pagewire.kernels.gpu.paged_attention import AttentionPlan, paged_attention, partial_attention, plan_attention
from pagewire.kernels.gpu.tiles import Heads, Processor
from pagewire.kernels.gpu.work_list import Sequences
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.streamed_attention import merge
from pagewire.kernels.torch_backend import TorchBackend

pytestmark = pytest.mark.usefixtures("poisoned")

SCALE = 0.25
FEW = Processor((9, 0), 2)  # multiprocessors: so few, that a program has tiles of several items


def check(
    batch: PagedBatch, processor: Processor = FEW, softcap: float = 0.0, sinks: torch.Tensor | None = None
) -> None:
    plan = plan_attention(batch.ragged, batch.window, processor)
    out = paged_attention(batch.q, batch.pool, 1, plan, SCALE, softcap, sinks)
    assert out.dtype == batch.q.dtype
    definition.close(out, batch.expected(SCALE, softcap, sinks))
    reference = TorchBackend()
    safe = Ragged(
        query_lens=batch.ragged.query_lens, kv_lens=batch.ragged.kv_lens, block_size=batch.ragged.block_size,
        block_table=batch.ragged.block_table.clamp(max=len(batch.pool) - 1),
    )  # fmt: skip
    plain = reference.plan_attention(safe, batch.window, batch.q.dtype)
    definition.close(out, reference.paged_attention(batch.q, batch.pool, 1, plain, SCALE, softcap, sinks))


@pytest.mark.parametrize(
    ("dtype", "block_size", "head_outer"),
    [
        *((torch.float16, block_size, False) for block_size in (8, 16, 32, 64, 128)),
        *((torch.float16, block_size, True) for block_size in (16, 64)),
        *((torch.float32, block_size, True) for block_size in (8, 128)),
    ],
)
def test_at_the_edges_of_blocks_and_tiles(dtype: torch.dtype, block_size: int, head_outer: bool) -> None:
    lengths = [(1, 1), (1, 16), (1, 17), (5, 5), (1, 64), (17, 17), (20, 64), (1, 65), (33, 129)]
    check(
        paged_batch(
            lengths, heads=(4, 2), head_dim=32, block_size=block_size, dtype=dtype, head_outer=head_outer
        )
    )  # fmt: skip


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (4, 2), (6, 1), (8, 1), (16, 1)])
def test_rows_of_any_group(heads: tuple[int, int]) -> None:
    lengths = [(1, 30), (7, 90), (70, 100)]
    check(paged_batch(lengths, heads=heads, head_dim=16, block_size=16, dtype=torch.float16))


@pytest.mark.parametrize("head_dim", [16, 48, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_heads_of_any_width(head_dim: int, dtype: torch.dtype) -> None:
    check(paged_batch([(1, 70), (12, 40)], heads=(2, 1), head_dim=head_dim, block_size=16, dtype=dtype))


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("window", [1, 7, 64, 100])
def test_windows(block_size: int, window: int) -> None:
    lengths = [(1, 1), (1, 200), (3, 150), (70, 210)]
    check(paged_batch(lengths, heads=(4, 2), head_dim=16, block_size=block_size, dtype=torch.float16, window=window))


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize(("softcap", "with_sinks"), [(0.7, False), (30.0, False), (0.0, True), (0.7, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_capped_scores_and_sinks(window: int, softcap: float, with_sinks: bool, dtype: torch.dtype) -> None:
    lengths = [(1, 1), (1, 95), (5, 48), (30, 140)]
    batch = paged_batch(lengths, heads=(6, 2), head_dim=16, block_size=16, dtype=dtype, window=window, seed=3)
    check(batch, softcap=softcap, sinks=3 * torch.randn(6).to(dtype) if with_sinks else None)


@pytest.mark.parametrize("num_sms", [1, 3, 16])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(("query_len", "kv_len"), [(1, 1500), (8, 1200), (80, 700)])
def test_items_in_several_parts(num_sms: int, with_sinks: bool, query_len: int, kv_len: int) -> None:
    lengths = [(1, 3), (query_len, kv_len), (1, 40)]
    batch = paged_batch(lengths, heads=(4, 1), head_dim=16, block_size=32, dtype=torch.float16)
    # Sinks that weigh about as much as all keys together.
    check(batch, Processor((9, 0), num_sms), sinks=(7 + torch.randn(4)).half() if with_sinks else None)


def test_parts_of_which_some_rows_see_nothing() -> None:
    """The last row sees a key tile more than the first, in another share."""
    batch = paged_batch([(8, 517)], heads=(2, 1), head_dim=16, block_size=16, dtype=torch.float32, window=0)
    check(batch, Processor((9, 0), 8))


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("block_size", "window"), [(16, 0), (64, 50)])
def test_quantised_pools(stored: torch.dtype, dtype: torch.dtype, block_size: int, window: int) -> None:
    lengths = [(1, 1), (1, 130), (40, 90)]
    check(
        paged_batch(
            lengths, heads=(4, 2), head_dim=32, block_size=block_size, dtype=dtype, stored=stored, window=window
        )
    )  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 90)), min_size=1, max_size=4),
    block_size=st.sampled_from([8, 16, 64]),
    window=st.sampled_from([0, 1, 33]),
    num_sms=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_any_ragged_batch(
    lengths: list[tuple[int, int]], block_size: int, window: int, num_sms: int, seed: int
) -> None:
    batch = paged_batch(
        [(query, query + before) for query, before in lengths], heads=(4, 2), head_dim=16, block_size=block_size,
        dtype=torch.float16, window=window, seed=seed,
    )  # fmt: skip
    check(batch, Processor((9, 0), num_sms))


def test_a_plan_holds_for_fewer_sequences_and_other_lengths_than_it_was_sized_for() -> None:
    """As a CUDA graph is captured for a bucket and replayed for what there is: shapes stay, lengths change."""
    batch = paged_batch([(1, 40), (1, 300), (1, 7)], heads=(4, 2), head_dim=16, block_size=16, dtype=torch.float16)
    ragged, padding = batch.ragged, 5
    sequences = Sequences(
        query_starts=torch.tensor([0, 1, 2, 3] + [3] * padding, dtype=torch.int32),
        kv_lens=torch.tensor([*ragged.kv_lens, *[0] * padding], dtype=torch.int32),
        block_table=torch.cat((ragged.block_table, ragged.block_table.new_full((padding, 19), -1))),
        block_size=16, num_rows=3 + padding, longest_decode=1, has_chunks=True,
    )  # fmt: skip
    q = torch.cat((batch.q, torch.full((padding, 4, 16), torch.nan).half()))
    plan = AttentionPlan(sequences=sequences, processor=FEW, window=0)
    out = paged_attention(q, batch.pool, 1, plan, SCALE)
    definition.close(out[:3], batch.expected(SCALE))
    assert bool(out[3:].isnan().all()), "rows of no sequence are not written"


@pytest.mark.parametrize(("first_query", "first_key"), [(28, 10), (5, 10), (100, 10), (1000, 0), (0, 0)])
@pytest.mark.parametrize("window", [0, 30])
@pytest.mark.parametrize("num_keys", [20, 300])
def test_partial_attention(first_query: int, first_key: int, window: int, num_keys: int) -> None:
    torch.manual_seed(0)
    q, kv = torch.randn(12, 4, 16), torch.randn(2, 2, num_keys + 5, 16)[:, :, :num_keys]
    arguments = (q, kv, first_query, first_key, window, SCALE, 0.0)
    part, expected = partial_attention(*arguments, processor=FEW), TorchBackend().partial_attention(*arguments)
    definition.close(part.out, expected.out)
    definition.close(part.log_sum, expected.log_sum)


def test_a_nan_is_not_lost_between_pieces() -> None:
    q, kv = torch.randn(1, 4, 16), torch.randn(2, 2, 20, 16)
    sound = partial_attention(q, kv, 60, 10, 0, SCALE, 0.0, FEW)
    kv[0, 0, 7] = torch.nan
    broken = partial_attention(q, kv, 60, 30, 0, SCALE, 0.0, FEW)
    for merged in (merge(sound, broken), merge(broken, sound)):
        assert bool(merged.out[:, :2].isnan().all()), "the heads that read it"
        assert not bool(merged.out[:, 2:].isnan().any())


def test_what_no_tile_serves_is_refused() -> None:
    batch = paged_batch([(1, 5)], heads=(2, 1), head_dim=16, block_size=16, dtype=torch.float16)
    plan = plan_attention(batch.ragged, 0, Processor((8, 0), 108))
    with pytest.raises(ValueError, match=r"compute capability \(8, 0\)"):
        paged_attention(batch.q, batch.pool, 1, plan, SCALE)
    plan = plan_attention(batch.ragged, 0, FEW)
    for heads, what in (
        (Heads(8, 8, 512, torch.float16, torch.float16), "512"),
        (Heads(256, 1, 64, torch.float16, torch.float16), "256 query heads"),
    ):
        with pytest.raises(ValueError, match=what):
            plan.work(heads)
