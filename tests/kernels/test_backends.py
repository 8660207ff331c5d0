"""The backends of a CPU against definitions in float64. Unused slots hold NaN throughout: none may reach a result."""

from __future__ import annotations

import kernel_definition as definition
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiled import ALL_BUILDS, BUILDS, native_backend

from pagewire.kernels import rope
from pagewire.kernels.backend import Backend
from pagewire.kernels.cpu_backend import CpuBackend
from pagewire.kernels.ragged import Ragged, Spilled
from pagewire.kernels.rope import Rope
from pagewire.kernels.streamed_attention import merge
from pagewire.kernels.torch_backend import TorchBackend

DTYPES = (torch.float32, torch.bfloat16)
LAYERS = 2


def laid_out(pool: torch.Tensor, head_outer: bool) -> torch.Tensor:
    """Return a pool `[N, L, 2, Hk, B, D]` with this content, in memory as it is or heads outermost."""
    if not head_outer:
        return pool
    return pool.permute(0, 3, 1, 2, 4, 5).contiguous().permute(0, 2, 3, 1, 4, 5)  # through [N, Hk, L, 2, B, D]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["torch", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "torch":
        return TorchBackend()
    native = CpuBackend.load()
    assert native is not None
    return native


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = definition.TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("build", ALL_BUILDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_linears_of_any_size(threads: int, dtype: torch.dtype, build: str, data: st.DataObject) -> None:
    """No rows, few, many; outputs that fill no vector, no stripe, one thread only. A row does not know the others."""
    num_rows, num_outputs = data.draw(st.integers(0, 80)), data.draw(st.integers(1, 200))
    num_inputs, has_bias = data.draw(st.sampled_from([2, 6, 16, 32, 62, 64, 96])), data.draw(st.booleans())
    x, weight = torch.randn(num_rows, num_inputs).to(dtype), torch.randn(num_outputs, num_inputs).to(dtype)
    bias = torch.randn(num_outputs).to(dtype) if has_bias else None
    native = native_backend(build)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        linear = native.linear(weight, bias)
        y = linear(x)
        alone = [linear(row[None]) for row in x]
    finally:
        torch.set_num_threads(before)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    tolerance = definition.TOLERANCE[dtype]
    torch.testing.assert_close(y.double(), exact, rtol=tolerance, atol=tolerance * num_inputs**0.5)
    assert torch.equal(y, torch.cat([y[:0], *alone]))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("num_rows", "num_inputs", "num_outputs"),
    [(33, 576, 100), (64, 544, 33), (65, 576, 64), (97, 608, 70), (129, 1184, 40), (513, 96, 64)],
)
def test_many_rows_that_go_over_weights_part_by_part_are_as_they_are_alone(
    build: str, num_rows: int, num_inputs: int, num_outputs: int
) -> None:
    """Odd and even numbers of parts of the rows, whose inputs come at once, or in parts of 576."""
    x, weight = torch.randn(num_rows, num_inputs).bfloat16(), torch.randn(num_outputs, num_inputs).bfloat16()
    linear = native_backend(build).linear(weight, None)
    y = linear(x)
    exact = x.double() @ weight.double().T
    tolerance = definition.TOLERANCE[torch.bfloat16]
    torch.testing.assert_close(y.double(), exact, rtol=tolerance, atol=tolerance * num_inputs**0.5)
    for row in range(0, num_rows, 7):
        assert torch.equal(y[row], linear(x[row : row + 1])[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_adds_the_residual_first(backend: Backend, dtype: torch.dtype) -> None:
    x, residual = torch.randn(5, 64).to(dtype), torch.randn(5, 64).to(dtype)
    weight = torch.randn(64).to(dtype)
    normed, total = backend.rms_norm(x, weight, 1e-5, residual)
    assert torch.equal(total, x + residual)
    close(normed, definition.rms_norm(x + residual, weight, 1e-5))
    alone, same = backend.rms_norm(x, weight, 1e-5)
    assert torch.equal(same, x)
    close(alone, definition.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul(backend: Backend, dtype: torch.dtype) -> None:
    gate_up = torch.randn(7, 48).to(dtype)
    close(backend.silu_and_mul(gate_up), definition.silu_and_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("head_outer", [False, True])
def test_append_kv_rotates_and_writes_its_slots_only(
    backend: Backend, dtype: torch.dtype, block_size: int, head_outer: bool
) -> None:
    head_dim, frequencies = 8, rope.inverse_frequencies(Rope(theta=100.0), 8)
    pool = laid_out(torch.full((4, LAYERS, 2, 2, block_size, head_dim), torch.nan, dtype=dtype), head_outer)
    positions = torch.tensor([0, 3, 17, 40])
    slots = torch.tensor([0, 2 * block_size - 1, 2 * block_size, 3 * block_size + 5])
    q, k, v = (torch.randn(4, heads, head_dim).to(dtype) for heads in (4, 2, 2))
    cos, sin = rope.cos_sin(frequencies, positions)
    rotated = backend.append_kv(q, k, v, cos, sin, pool, 1, slots)
    for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        block, offset = divmod(slot, block_size)
        for head in range(2):
            key = definition.rotate(k[row, head], position, frequencies.tolist())
            close(pool[block, 1, 0, head, offset], key)
            assert torch.equal(pool[block, 1, 1, head, offset], v[row, head])
        for head in range(4):
            close(rotated[row, head], definition.rotate(q[row, head], position, frequencies.tolist()))
    assert int((~pool.isnan()).sum()) == 4 * 2 * 2 * head_dim


def paged(
    generator: torch.Generator, query_lens: list[int], kv_lens: list[int], block_size: int, dtype: torch.dtype,
    head_dim: int = 16,
) -> tuple[torch.Tensor, Ragged, list[torch.Tensor]]:  # fmt: skip
    """Return a pool with every sequence's KV scattered over shuffled blocks, and the KV `[2, n, Hk, D]` of each."""
    kv_heads = 2
    counts = [-(-length // block_size) for length in kv_lens]
    pool = torch.full((sum(counts) + 1, LAYERS, 2, kv_heads, block_size, head_dim), torch.nan, dtype=dtype)
    order = torch.randperm(sum(counts) + 1, generator=generator).tolist()
    table, dense, used = [], [], 0
    for length, count in zip(kv_lens, counts, strict=True):
        ids = order[used : used + count]
        used += count
        kv = torch.randn(2, length, kv_heads, head_dim, generator=generator).to(dtype)
        for place in range(length):
            pool[ids[place // block_size], 1, :, :, place % block_size] = kv[:, place]
        table.append(ids + [order[-1]] * (max(counts) - count))
        dense.append(kv)
    ragged = Ragged(
        query_lens=tuple(query_lens),
        kv_lens=tuple(kv_lens),
        block_table=torch.tensor(table),
        block_size=block_size,
    )
    return pool, ragged, dense


def check_attention(
    query_lens: list[int], kv_lens: list[int], block_size: int, window: int, dtype: torch.dtype, heads: int, seed: int,
    head_outer: bool = False,
) -> None:  # fmt: skip
    backend: Backend = TorchBackend()
    generator = torch.Generator().manual_seed(seed)
    pool, ragged, dense = paged(generator, query_lens, kv_lens, block_size, dtype)
    pool = laid_out(pool, head_outer)
    q = torch.randn(ragged.num_rows, heads, 16, generator=generator).to(dtype)
    out = backend.paged_attention(q, pool, 1, backend.plan_attention(ragged, window, dtype), 0.25)
    for start, length, kv_len, kv in zip(ragged.query_starts, query_lens, kv_lens, dense, strict=True):
        expected = definition.attention(q[start : start + length], kv[0], kv[1], kv_len - length, window, 0.25)
        close(out[start : start + length], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 1, 20])
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("head_outer", [False, True])
def test_attention_at_the_edges_of_blocks(dtype: torch.dtype, window: int, heads: int, head_outer: bool) -> None:
    query_lens = [1, 1, 1, 1, 5, 16, 17, 33, 1]
    kv_lens = [1, 16, 17, 95, 5, 32, 17, 48, 31]
    check_attention(query_lens, kv_lens, 16, window, dtype, heads, seed=0, head_outer=head_outer)


def test_attention_of_a_chunk_longer_than_a_tile() -> None:
    check_attention([300, 1], [340, 200], 32, 0, torch.float32, 4, seed=1)
    check_attention([300, 1], [340, 200], 32, 50, torch.float32, 4, seed=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_never_looks_up_blocks_that_no_window_reaches(backend: Backend, dtype: torch.dtype) -> None:
    query_lens, kv_lens, window = [1, 1, 40, 5], [700, 40, 600, 333], 50
    pool, ragged, dense = paged(torch.Generator().manual_seed(0), query_lens, kv_lens, 16, dtype)
    table = ragged.block_table.clone()
    for row, (length, kv_len) in enumerate(zip(query_lens, kv_lens, strict=True)):
        table[row, : max(0, kv_len - length - window + 1) // 16] = 1 << 40  # where no memory is
    ragged = Ragged(query_lens=ragged.query_lens, kv_lens=ragged.kv_lens, block_table=table, block_size=16)
    q = torch.randn(ragged.num_rows, 6, 16).to(dtype)
    out = backend.paged_attention(q, pool, 1, backend.plan_attention(ragged, window, dtype), 0.25)
    for start, length, kv_len, kv in zip(ragged.query_starts, query_lens, kv_lens, dense, strict=True):
        rows = q[start : start + length]
        close(out[start : start + length], definition.attention(rows, kv[0], kv[1], kv_len - length, window, 0.25))


@pytest.mark.parametrize("build", ALL_BUILDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("head_dim", [16, 48, 64, 96, 128])
def test_native_attention_over_heads_of_any_width(build: str, dtype: torch.dtype, window: int, head_dim: int) -> None:
    """By whole tiles, by parts of them, by vectors; decodes, chunks of few and of many rows; several tiles of keys."""
    query_lens, kv_lens = [1, 1, 2, 5, 90], [700, 40, 257, 333, 300]
    backend = native_backend(build)
    pool, ragged, dense = paged(torch.Generator().manual_seed(4), query_lens, kv_lens, 16, dtype, head_dim)
    q = torch.randn(ragged.num_rows, 6, head_dim).to(dtype)
    out = backend.paged_attention(q, pool, 1, backend.plan_attention(ragged, window, dtype), head_dim**-0.5)
    for start, length, kv_len, kv in zip(ragged.query_starts, query_lens, kv_lens, dense, strict=True):
        rows, first = q[start : start + length], kv_len - length
        expected = definition.attention(rows, kv[0], kv[1], first, window, head_dim**-0.5)
        close(out[start : start + length], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize(("softcap", "with_sinks"), [(0.7, False), (0.0, True), (0.7, True)])
def test_attention_with_capped_scores_and_sinks(
    backend: Backend, dtype: torch.dtype, window: int, softcap: float, with_sinks: bool
) -> None:
    query_lens, kv_lens = [1, 1, 1, 5, 17, 130], [1, 17, 95, 5, 48, 140]
    generator = torch.Generator().manual_seed(3)
    pool, ragged, dense = paged(generator, query_lens, kv_lens, 16, dtype)
    q = torch.randn(ragged.num_rows, 6, 16, generator=generator).to(dtype)
    sinks = torch.randn(6, generator=generator).to(dtype) if with_sinks else None
    out = backend.paged_attention(q, pool, 1, backend.plan_attention(ragged, window, dtype), 0.25, softcap, sinks)
    for start, length, kv_len, kv in zip(ragged.query_starts, query_lens, kv_lens, dense, strict=True):
        rows = q[start : start + length]
        expected = definition.attention(rows, kv[0], kv[1], kv_len - length, window, 0.25, softcap, sinks)
        close(out[start : start + length], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("query_len", "kv_len"), [(1, 16), (1, 2100), (70, 2100), (40, 1100), (5, 1029)])
@pytest.mark.parametrize(("window", "softcap", "with_sinks"), [(0, 0.0, False), (50, 0.0, True), (0, 0.7, True)])
@pytest.mark.parametrize("head_outer", [False, True])
def test_attention_over_what_was_spilled_too(
    backend: Backend, dtype: torch.dtype, query_len: int, kv_len: int, window: int, softcap: float, with_sinks: bool,
    head_outer: bool,
) -> None:  # fmt: skip
    """All but what this step writes may lie in host memory, or little of it; the table says nothing of that."""
    generator = torch.Generator().manual_seed(3)
    pool, ragged, (dense,) = paged(generator, [query_len], [kv_len], 16, dtype)
    pool = laid_out(pool, head_outer)
    q = torch.randn(query_len, 6, 16, generator=generator).to(dtype)
    sinks = torch.randn(6, generator=generator).to(dtype) if with_sinks else None
    expected = definition.attention(q, dense[0], dense[1], kv_len - query_len, window, 0.25, softcap, sinks)
    for num_spilled in {1, (kv_len - query_len) // 16} - {0}:
        table = ragged.block_table.clone()
        spilled = table[0, :num_spilled].tolist()
        host = torch.full_like(pool[: num_spilled + 1], torch.nan)
        host[1:] = pool[spilled]
        kept = pool.clone()
        kept[spilled] = torch.nan
        table[0, :num_spilled] = -1
        streamed = Ragged(
            query_lens=(query_len,), kv_lens=(kv_len,), block_table=table, block_size=16,
            spilled=Spilled(memory=host, slots=tuple(range(1, num_spilled + 1))),
        )  # fmt: skip
        plan = backend.plan_attention(streamed, window, dtype)
        close(backend.paged_attention(q, kept, 1, plan, 0.25, softcap, sinks), expected)


def test_partial_attention_says_how_much_weight_it_has(backend: Backend) -> None:
    """Its sums are over the keys that a row sees, in fp32; a row that sees none weighs nothing."""
    q, kv = torch.randn(3, 4, 16), torch.randn(2, 2, 20, 16)
    part = backend.partial_attention(q, kv, 28, 10, 0, 0.25, 0.0)  # rows 28 .. 30 over keys 10 .. 29
    for row in range(3):
        for head in range(4):
            seen = kv[0, head // 2, : 28 + row - 10 + 1].double() @ q[row, head].double() * 0.25
            close(part.log_sum[row, head], torch.logsumexp(seen, 0))
    close(
        part.out[:, 3],
        definition.attention(q[:, 3:], kv[0, 1:].transpose(0, 1), kv[1, 1:].transpose(0, 1), 18, 0, 0.25)[:, 0],
    )
    before = backend.partial_attention(q, kv, 5, 10, 0, 0.25, 0.0)
    assert torch.equal(before.out, torch.zeros_like(q))
    assert bool((before.log_sum == -torch.inf).all())
    behind = backend.partial_attention(q, kv, 100, 10, 30, 0.25, 0.0)
    assert bool((behind.log_sum == -torch.inf).all())


def test_a_nan_is_not_lost_between_pieces(backend: Backend) -> None:
    q, kv = torch.randn(1, 4, 16), torch.randn(2, 2, 20, 16)
    sound = backend.partial_attention(q, kv, 60, 10, 0, 0.25, 0.0)
    kv[0, 0, 7] = torch.nan
    broken = backend.partial_attention(q, kv, 60, 30, 0, 0.25, 0.0)
    for merged in (merge(sound, broken), merge(broken, sound)):
        assert bool(merged.out[:, :2].isnan().all()), "the heads that read it"
        assert not bool(merged.out[:, 2:].isnan().any())


def test_write_kv_writes_its_slots_only(backend: Backend) -> None:
    pool = torch.full((3, LAYERS, 2, 2, 16, 8), torch.nan)
    k, v = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    backend.write_kv(k, v, pool, 1, torch.tensor([0, 17, 47]))
    for row, (block, offset) in enumerate([(0, 0), (1, 1), (2, 15)]):
        assert torch.equal(pool[block, 1, :, :, offset], torch.stack((k[row], v[row])))
    assert int((~pool.isnan()).sum()) == 3 * 2 * 2 * 8


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=6),
    block_size=st.sampled_from([16, 32]),
    window=st.sampled_from([0, 1, 7, 33]),
    seed=st.integers(0, 1000),
    head_outer=st.booleans(),
)
def test_attention_of_any_ragged_batch(
    lengths: list[tuple[int, int]], block_size: int, window: int, seed: int, head_outer: bool
) -> None:
    query_lens = [query for query, _ in lengths]
    kv_lens = [query + before for query, before in lengths]
    check_attention(query_lens, kv_lens, block_size, window, torch.float32, 4, seed, head_outer)


@pytest.mark.parametrize("head_outer", [False, True])
def test_blocks_are_copied_gathered_scattered_and_zeroed(backend: Backend, head_outer: bool) -> None:
    pool = laid_out(torch.randn(6, LAYERS, 2, 2, 16, 8), head_outer)
    before = pool.clone()
    backend.copy_blocks(pool, torch.tensor([0, 1]), torch.tensor([4, 5]))
    assert torch.equal(pool[4:], before[:2])
    gathered = backend.gather_blocks(pool, torch.tensor([3, 0]))
    assert torch.equal(gathered, torch.stack((before[3], before[0])))
    assert gathered.is_contiguous()
    backend.scatter_blocks(pool, torch.tensor([1, 2]), gathered)
    assert torch.equal(pool[1:3], gathered)
    backend.zero_slots(pool, 3, 5)
    assert torch.equal(pool[3, :, :, :, :5], before[3, :, :, :, :5])
    assert int(pool[3, :, :, :, 5:].count_nonzero()) == 0


def test_an_unknown_rope_scaling_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="longrope"):
        Rope(theta=1.0, scaling="longrope")
