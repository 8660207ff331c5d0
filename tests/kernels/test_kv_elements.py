"""Quantised KV against its definition, natively and in torch: what is kept, and what attention makes of it."""

from __future__ import annotations

import kernel_definition as definition
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.kernels import kv_elements
from pagewire.kernels.backend import Backend
from pagewire.kernels.cpu_backend import CpuBackend
from pagewire.kernels.ragged import Ragged
from pagewire.kernels.torch_backend import TorchBackend

QUANTISED = (torch.int8, torch.float8_e4m3fn)
COMPUTED = (torch.float32, torch.bfloat16)
LAYERS, HEADS, DIM, BLOCK = 2, 2, 32, 16


def native() -> CpuBackend:
    backend = CpuBackend.load()
    assert backend is not None
    return backend


def heads_of_all_sizes(count: int, dim: int = DIM) -> torch.Tensor:
    """Return `[count, Hk, D]` from 1e-30 to 1e30, some numbers far below the largest of their head, some heads zero."""
    sizes = 10.0 ** torch.linspace(-30, 30, count * HEADS).view(count, HEADS, 1)
    values = torch.randn(count, HEADS, dim) * sizes * 10.0 ** -(4 * torch.rand(count, HEADS, dim))
    values[count // 2] = 0
    return values


def empty(num_blocks: int, dtype: torch.dtype, head_outer: bool = False, dim: int = DIM) -> torch.Tensor:
    """Return a pool `[N, L, 2, Hk, B, W]` of NaN, codes and scales alike."""
    width = dim + 2 if dtype in QUANTISED else dim
    order = (num_blocks, HEADS, LAYERS, 2, BLOCK, width) if head_outer else (num_blocks, LAYERS, 2, HEADS, BLOCK, width)
    pool = torch.full((*order[:-1], width * dtype.itemsize), 255, dtype=torch.uint8).view(dtype)
    return pool.permute(0, 2, 3, 1, 4, 5) if head_outer else pool


@pytest.mark.parametrize("dtype", QUANTISED)
def test_what_is_kept_is_the_nearest_code_times_the_scale(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = heads_of_all_sizes(40)
    stored = kv_elements.encode(x, dtype)
    assert stored.shape == (40, HEADS, DIM + 2)
    found = kv_elements.decode(stored, torch.float32)
    assert torch.equal(found.double(), definition.kept(x, dtype))
    assert torch.equal(kv_elements.decode(stored, torch.bfloat16), found.bfloat16())
    scale = stored[..., -2:].contiguous().view(torch.bfloat16).double()
    error = (found.double() - x.double()).abs()
    if dtype is torch.int8:
        assert bool((error <= scale / 2).all())
    else:  # half a step of 3 bits of mantissa, and below the smallest normal number half a step of 2^-9
        assert bool((error <= torch.maximum(x.double().abs() / 16, scale * 2.0**-10)).all())


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_head_with_a_number_that_is_not_finite_reads_as_not_finite(dtype: torch.dtype, wrong: float) -> None:
    x = torch.randn(3, HEADS, DIM)
    x[1, 0, 5] = wrong
    found = kv_elements.decode(kv_elements.encode(x, dtype), torch.float32).isfinite()
    assert not found[1, 0].any()
    found[1, 0] = True
    assert bool(found.all())


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(QUANTISED))
def test_a_head_is_kept_as_if_it_were_alone(data: st.DataObject, dtype: torch.dtype) -> None:
    number = st.floats(-(2.0**100), 2.0**100, width=32)
    x = torch.tensor(data.draw(st.lists(st.lists(number, min_size=4, max_size=4), min_size=1, max_size=4)))
    together = kv_elements.encode(x, dtype).view(torch.uint8)
    alone = torch.cat([kv_elements.encode(row[None], dtype).view(torch.uint8) for row in x])
    assert torch.equal(together, alone)
    assert torch.equal(kv_elements.decode(together.view(dtype), torch.float32).double(), definition.kept(x, dtype))


@pytest.mark.parametrize("kept", [*QUANTISED, *COMPUTED])
@pytest.mark.parametrize("dtype", COMPUTED)
@pytest.mark.parametrize("head_outer", [False, True])
def test_native_appends_write_the_same_bytes(kept: torch.dtype, dtype: torch.dtype, head_outer: bool) -> None:
    torch.manual_seed(1)
    count = 40
    q = torch.randn(count, 4, DIM).to(dtype)
    k, v = heads_of_all_sizes(count).to(dtype), heads_of_all_sizes(count).to(dtype)
    k[3, 1, 7], v[5, 0, 0] = torch.nan, torch.nan
    # Turns nothing, as the backends round its products differently.
    cos, sin = torch.ones(count, DIM // 2), torch.zeros(count, DIM // 2)
    slots = torch.randperm(4 * BLOCK)[:count]
    pools = []
    for backend in (native(), TorchBackend()):
        pool = empty(4, kept, head_outer)
        assert torch.equal(backend.append_kv(q, k, v, cos, sin, pool, 1, slots), q)
        pools.append(pool)
    read = [kv_elements.decode(pool, torch.float32) for pool in pools]
    assert torch.equal(read[0].isnan(), read[1].isnan())
    whole = ~read[0].isnan()
    num_lost = 2 * DIM if kept in QUANTISED else 3  # the pair of a NaN in k is NaN as well
    assert int(whole.sum()) == count * 2 * HEADS * DIM - num_lost
    assert torch.equal(read[0].where(whole, torch.zeros(())), read[1].where(whole, torch.zeros(())))
    if kept in QUANTISED:
        tokens = whole.all(-1, keepdim=True).expand(pools[0].shape)
        assert torch.equal(*(pool.view(torch.uint8)[tokens] for pool in pools))


def filled(
    lengths: list[int], dtype: torch.dtype, computed: torch.dtype, head_outer: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a pool that holds the KV of sequences in shuffled blocks, all else NaN, and their block table `[S, M]`."""
    counts = [-(-length // BLOCK) for length in lengths]
    pool, order = empty(sum(counts) + 1, dtype, head_outer), torch.randperm(sum(counts) + 1).tolist()
    table = []
    for length, count in zip(lengths, counts, strict=True):
        ids, order = order[:count], order[count:]
        slots = torch.tensor([ids[at // BLOCK] * BLOCK + at % BLOCK for at in range(length)])
        k, v = torch.randn(2, length, HEADS, DIM).to(computed)
        TorchBackend().write_kv(k, v, pool, 1, slots)
        table.append(ids + [ids[0]] * (max(counts) - count))
    return pool, torch.tensor(table)


@pytest.mark.parametrize("kept", [*QUANTISED, *COMPUTED])
@pytest.mark.parametrize("dtype", COMPUTED)
@pytest.mark.parametrize("head_outer", [False, True])
@pytest.mark.parametrize("window", [0, 20])
def test_attention_is_over_what_was_kept(kept: torch.dtype, dtype: torch.dtype, head_outer: bool, window: int) -> None:
    """Natively bit for bit what it is over a pool of the numbers that are read; in torch as near to float64 as ever."""
    torch.manual_seed(2)
    query_lens, kv_lens = [1, 1, 30, 70], [5, 300, 47, 70]
    pool, table = filled(kv_lens, kept, dtype, head_outer)
    plain = kv_elements.decode(pool, dtype)
    ragged = Ragged(query_lens=tuple(query_lens), kv_lens=tuple(kv_lens), block_table=table, block_size=BLOCK)
    q = torch.randn(ragged.num_rows, 4, DIM).to(dtype)

    def attend(backend: Backend, over: torch.Tensor) -> torch.Tensor:
        return backend.paged_attention(q, over, 1, backend.plan_attention(ragged, window, dtype), DIM**-0.5)

    found = attend(native(), pool)
    assert torch.equal(found, attend(native(), plain))
    assert torch.equal(attend(TorchBackend(), pool), attend(TorchBackend(), plain))
    for number, (start, length) in enumerate(zip(ragged.query_starts, query_lens, strict=True)):
        kv_len = kv_lens[number]
        slots = plain[table[number], 1].permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :kv_len]  # [2, n, Hk, D]
        expected = definition.attention(
            q[start : start + length], slots[0], slots[1], kv_len - length, window, DIM**-0.5
        )
        for out in (found, attend(TorchBackend(), pool)):
            tolerance = definition.TOLERANCE[dtype]
            torch.testing.assert_close(out[start : start + length].double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("dim", [16, 48, 112])
def test_heads_of_other_widths(dtype: torch.dtype, dim: int) -> None:
    torch.manual_seed(3)
    q, k, v = torch.randn(5, 4, dim), torch.randn(5, HEADS, dim), torch.randn(5, HEADS, dim)
    cos, sin, slots = torch.ones(5, dim // 2), torch.zeros(5, dim // 2), torch.arange(5)
    ragged = Ragged(query_lens=(5,), kv_lens=(5,), block_table=torch.zeros(1, 1, dtype=torch.int64), block_size=BLOCK)
    pool = empty(1, dtype, dim=dim)
    backend = native()
    backend.append_kv(q, k, v, cos, sin, pool, 0, slots)
    out = backend.paged_attention(q, pool, 0, backend.plan_attention(ragged, 0, torch.float32), dim**-0.5)
    expected = definition.attention(q, definition.kept(k, dtype), definition.kept(v, dtype), 0, 0, dim**-0.5)
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("head_outer", [False, True])
def test_blocks_move_with_their_scales(dtype: torch.dtype, head_outer: bool) -> None:
    torch.manual_seed(4)
    backend = TorchBackend()
    pool = empty(6, dtype, head_outer)
    x = torch.randn(2, 3 * BLOCK, HEADS, DIM)
    for layer in range(LAYERS):
        backend.write_kv(x[0], x[1], pool, layer, torch.arange(3 * BLOCK))
    before = kv_elements.decode(pool, torch.float32)
    backend.copy_blocks(pool, torch.tensor([0, 1]), torch.tensor([4, 5]))
    backend.scatter_blocks(pool, torch.tensor([3]), backend.gather_blocks(pool, torch.tensor([2])))
    backend.zero_slots(pool, 2, 5)
    after = kv_elements.decode(pool, torch.float32)
    assert torch.equal(after[[0, 1, 4, 5, 3]], before[[0, 1, 0, 1, 2]])
    assert torch.equal(after[2, :, :, :, :5], before[2, :, :, :, :5])
    assert int(pool.view(torch.uint8)[2, :, :, :, 5:].count_nonzero()) == 0
