"""Native attention of any shape against its definition in float64, by vectors and by tiles.

Slots that no row sees hold NaN, and the block table leads nowhere for them. NaN that a row does see is never lost.
"""

from __future__ import annotations

import kernel_definition as definition
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_batches import NOWHERE, PagedBatch, paged_batch
from tiled import ALL_BUILDS, native_backend

DTYPES = (torch.float32, torch.bfloat16)
TILE_KEYS = 256  # of native/paged_kv.h


def attend(
    build: str, batch: PagedBatch, pool: torch.Tensor, softcap: float = 0.0, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    backend = native_backend(build)
    plan = backend.plan_attention(batch.ragged, batch.window, batch.q.dtype)
    return backend.paged_attention(batch.q, pool, 1, plan, batch.q.shape[2] ** -0.5, softcap, sinks)


@pytest.mark.parametrize("build", ALL_BUILDS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_attention_of_any_shape(build: str, dtype: torch.dtype, data: st.DataObject) -> None:
    """Rows that are alone, that fill a tile of 16 or 32 and more; contexts of part of a block and of two tiles."""
    rows = st.integers(1, 33)
    before = st.one_of(st.integers(0, 37), st.sampled_from([TILE_KEYS - 1, TILE_KEYS, TILE_KEYS + 20]))
    lengths = data.draw(st.lists(st.tuples(rows, before), min_size=1, max_size=4))
    group, kv_heads = data.draw(st.sampled_from([1, 2, 3, 5, 7, 8])), data.draw(st.integers(1, 3))
    head_dim = data.draw(st.sampled_from([16, 32, 48, 64, 80, 96, 112, 128]))
    stored = data.draw(st.sampled_from([dtype, torch.int8, torch.float8_e4m3fn]))
    batch = paged_batch(
        [(count, count + first) for count, first in lengths], heads=(group * kv_heads, kv_heads), head_dim=head_dim,
        block_size=data.draw(st.sampled_from([16, 32, 64])), dtype=dtype, stored=stored,
        window=data.draw(st.sampled_from([0, 1, 7, 16, 33, 300])), head_outer=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 1000)),
    )  # fmt: skip
    softcap = data.draw(st.sampled_from([0.0, 0.7, 50.0, 1e6]))
    sinks = data.draw(st.sampled_from([None, torch.linspace(-3, 9, group * kv_heads), torch.full((24,), -torch.inf)]))
    sinks = None if sinks is None else sinks[: group * kv_heads].to(dtype)
    out = attend(build, batch, batch.pool, softcap, sinks)
    tolerance = definition.TOLERANCE[dtype]
    expected = batch.expected(head_dim**-0.5, softcap, sinks)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("build", ALL_BUILDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 3, 40])
@pytest.mark.parametrize(("softcap", "sinks"), [(0.0, None), (2.0, torch.zeros(4))])
def test_a_tile_of_nothing_but_nan_is_not_lost(
    build: str, dtype: torch.dtype, num_rows: int, softcap: float, sinks: torch.Tensor | None
) -> None:
    """Of 80 keys that a row sees those of the first tile have no score, those of the next have one each."""
    batch = paged_batch([(num_rows, 300)], heads=(4, 2), head_dim=32, block_size=16, dtype=dtype, window=80)
    pool = batch.pool.clone()
    table = batch.ragged.block_table[0, : TILE_KEYS // 16]
    pool[table[table != NOWHERE], 1, 0, 0] = torch.nan  # keys of the first head
    out = attend(build, batch, pool, softcap, sinks)
    assert bool(out[:, :2].isnan().all()), "the heads that read it"
    assert torch.equal(out[:, 2:], attend(build, batch, batch.pool, softcap, sinks)[:, 2:])
