"""What the compiler makes of every attention kernel that is shipped, for an H100 or H200: none is needed here.

Says nothing of speed. A spill or a narrow load costs tens of percent and shows in no result, so it is looked for here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import sm90
import torch
from paged_batches import paged_batch

from pagewire.kernels.gpu.paged_attention import paged_attention, partial_attention, plan_attention
from pagewire.kernels.gpu.tiles import MANY, Heads, Processor, Tiles, choose
from pagewire.kernels.gpu.work_list import FEW

H200 = Processor((9, 0), 132, overlaps=True)
HEAD_DIMS = (64, 128, 256)  # the widest of each entry of the table
# Query tokens, and heads of a KV head: decodes of 16, 32 and 64 rows, chunks. Odd groups take more registers.
DECODES = ((1, 7), (8, 4), (7, 9))
CHUNKS = ((200, 4), (200, 6))


def attend(
    query_len: int, group: int, head_dim: int, block_size: int = 16, stored: torch.dtype = torch.bfloat16, *,
    dtype: torch.dtype = torch.bfloat16, window: int = 0, softcap: float = 0.0, with_sinks: bool = False,
    num_sequences: int = 1,
) -> tuple[Tiles, dict[str, sm90.Kernel]]:  # fmt: skip
    """Compile what attention of some sequences launches: its tiles, and its kernels by their names."""
    batch = paged_batch(
        [(query_len, query_len + 100)] * num_sequences, heads=(2 * group, 2), head_dim=head_dim,
        block_size=block_size, dtype=dtype, stored=stored, window=window,
    )  # fmt: skip
    sinks = torch.zeros(2 * group, dtype=dtype) if with_sinks else None
    plan = plan_attention(batch.ragged, window, H200)
    with sm90.compiled() as kernels:
        paged_attention(batch.q, batch.pool, 1, plan, 0.1, softcap, sinks)
    ((work,),) = plan.lists.values()
    assert [kernel.name for kernel in kernels] == ["_build", "_attend", *["_merge"] * work.merges_apart]
    return work.tiles, {kernel.name: kernel for kernel in kernels}


def check(tiles: Tiles, kernels: dict[str, sm90.Kernel]) -> sm90.Kernel:
    """Hold kernels to what their tiles promise, and return that of attention itself."""
    # With a window, chunks of odd groups lay one register aside around the loops over keys: it is read once an item.
    laid_aside = 1 if tiles.rows > 64 else 0
    for kernel in kernels.values():
        assert kernel.inner_spills == 0, kernel
        assert kernel.spills <= 2 * laid_aside, kernel
        assert kernel.stack <= 8 * laid_aside, kernel
        assert kernel.shared <= sm90.SHARED_BYTES, kernel
    kernel = kernels["_attend"]
    assert kernel.constants["ROWS"] == tiles.rows
    assert kernel.blocks_per_sm >= tiles.resident, kernel
    assert kernel.grid == (132 * tiles.programs,)
    return kernel


def check_16_bits(tiles: Tiles, kernel: sm90.Kernel, head_dim: int) -> None:
    """Products on the units that they are meant for; keys and values copied to shared memory 16 bytes at a time."""
    assert (kernel.hgmma > 0) == (tiles.rows >= 64), kernel
    assert (kernel.hmma > 0) == (tiles.rows < 64), kernel
    of_a_tile = 2 * tiles.keys * head_dim * 2 // (16 * 32 * tiles.num_warps)
    # In the loop and, as deep as it is pipelined, ahead of it: half of them are gone if either is copied by less.
    assert kernel.count(r"LDGSTS\..*\b128\b") >= (1 + (tiles.num_stages - 1) // 2) * of_a_tile, kernel


@pytest.mark.parametrize(("query_len", "group"), DECODES + CHUNKS)
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (128, 16), (128, 64), (256, 16)])
def test_attention(query_len: int, group: int, head_dim: int, block_size: int) -> None:
    tiles, kernels = attend(query_len, group, head_dim, block_size)
    check_16_bits(tiles, check(tiles, kernels), head_dim)


@pytest.mark.parametrize("num_sequences", [FEW + 1, MANY])
@pytest.mark.parametrize(("query_len", "group"), [(1, 2), *DECODES])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_attention_of_more_sequences(query_len: int, group: int, head_dim: int, num_sequences: int) -> None:
    tiles, kernels = attend(query_len, group, head_dim, num_sequences=num_sequences)
    check_16_bits(tiles, check(tiles, kernels), head_dim)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("query_len", "group"), DECODES)
def test_attention_of_more_sequences_over_quantised_pools(query_len: int, group: int, head_dim: int) -> None:
    check(*attend(query_len, group, head_dim, stored=torch.float8_e4m3fn, num_sequences=FEW + 1))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("query_len", "group"), [(1, 7), (7, 9), (200, 6)])
@pytest.mark.parametrize(("window", "softcap", "with_sinks"), [(40, 0.0, True), (0, 30.0, False), (40, 30.0, True)])
def test_attention_with_windows_caps_and_sinks(
    query_len: int, group: int, head_dim: int, window: int, softcap: float, with_sinks: bool
) -> None:
    tiles, kernels = attend(query_len, group, head_dim, window=window, softcap=softcap, with_sinks=with_sinks)
    check_16_bits(tiles, check(tiles, kernels), head_dim)


@pytest.mark.parametrize("head_dim", [80, 96])
@pytest.mark.parametrize(("query_len", "group"), [(1, 4), (200, 4)])
def test_attention_of_heads_between_two_powers(query_len: int, group: int, head_dim: int) -> None:
    tiles, kernels = attend(query_len, group, head_dim)
    check_16_bits(tiles, check(tiles, kernels), head_dim)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("query_len", "group"), [*DECODES, (200, 6)])
@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.int8])
def test_attention_over_quantised_pools(query_len: int, group: int, head_dim: int, stored: torch.dtype) -> None:
    """Slots of D + 2 bytes lie on multiples of 2, so their loads are of no more; all else holds."""
    tiles, kernels = attend(query_len, group, head_dim, stored=stored)
    assert (check(tiles, kernels).hgmma > 0) == (tiles.rows >= 64)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("query_len", "group"), [(1, 4), (200, 6)])
def test_attention_in_fp32(query_len: int, group: int, head_dim: int) -> None:
    tiles, kernels = attend(query_len, group, head_dim, stored=torch.float32, dtype=torch.float32)
    check(tiles, kernels)


def test_a_spill_within_a_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagewire.kernels.gpu.paged_attention.choose", lambda *_: Tiles(128, 128, 4, 3, 1, 1))
    _, kernels = attend(200, 6, 128)
    assert kernels["_attend"].inner_spills > 0


def test_decodes_have_tiles_of_their_own_rows() -> None:
    """A tile is of the smallest entry that holds a sequence; what no decode's entry holds is a chunk."""
    four = Heads(16, 4, 128, torch.bfloat16, torch.bfloat16)
    few, some, many = (choose(H200, four, query_len) for query_len in (4, 8, 16))
    assert [(each.rows, each.keys) for each in (few, some, many)] == [(16, 64), (32, 64), (64, 32)]
    assert choose(H200, four, 1) == few
    assert choose(H200, four, 40) == many, "several tiles"
    assert choose(H200, four, 1, num_sequences=MANY).keys == 128
    assert choose(H200, replace(four, num_q_heads=4 * 96), 1) == choose(H200, four, None)


@pytest.mark.parametrize("query_len", [1, 200])
def test_partial_attention(query_len: int) -> None:
    q, kv = torch.empty(query_len, 8, 128).bfloat16(), torch.empty(2, 2, 1024, 128).bfloat16()
    with sm90.compiled() as kernels:
        partial_attention(q, kv, 2000, 0, 0, 0.1, 0.0, H200)
    for kernel in kernels:
        assert kernel.stack == kernel.spills == 0, kernel


def test_rows_that_no_query_has_are_not_merged() -> None:
    """A tile has at least 16 rows, a decode those of its group."""
    for query_len, group in ((1, 2), (1, 7), (3, 4)):
        tiles, kernels = attend(query_len, group, 128)
        assert kernels["_merge"].grid == (132 * tiles.programs, query_len * group)
        assert kernels["_attend"].constants["LIVE_ROWS"] == query_len * group


@pytest.mark.parametrize(
    ("lengths", "merges_apart"),
    [([(1, 100)] * FEW, True), ([(1, 100)] * (FEW + 1), False), ([(200, 300)], False)],
)
def test_parts_of_few_decodes_are_merged_apart(lengths: list[tuple[int, int]], merges_apart: bool) -> None:
    batch = paged_batch(lengths, heads=(14, 2), head_dim=128, block_size=16, dtype=torch.bfloat16)
    plan = plan_attention(batch.ragged, 0, H200)
    with sm90.compiled() as kernels:
        paged_attention(batch.q, batch.pool, 1, plan, 0.1)
    assert [kernel.name for kernel in kernels][2:] == ["_merge"] * merges_apart
    assert kernels[1].constants["MERGES"] is not merges_apart


def test_a_grid_is_of_one_size_whatever_the_lengths() -> None:
    grids = set()
    for lengths in ([(1, 5)], [(1, 5000)] * 3, [(1, 1), (1, 100000)]):
        batch = paged_batch(lengths, heads=(4, 1), head_dim=16, block_size=16, dtype=torch.bfloat16)
        plan = plan_attention(batch.ragged, 0, H200)
        with sm90.compiled() as kernels:
            paged_attention(batch.q, batch.pool, 1, plan, 0.1)
        grids.add(tuple(kernel.grid for kernel in kernels))
    assert len(grids) == 1
