"""Rope and append against float64 and torch, byte for byte where nothing is rounded twice; unused slots hold NaN."""

from __future__ import annotations

from typing import Any

import kernel_definition as definition
import pytest
import torch
import triton
import triton.language as tl

from pagewire.kernels import kv_elements, rope
from pagewire.kernels.gpu import append_kv as gpu
from pagewire.kernels.head_norms import HeadNorms
from pagewire.kernels.rope import Rope
from pagewire.kernels.torch_backend import TorchBackend

COMPUTED = (torch.float32, torch.float16)
QUANTISED = (torch.int8, torch.float8_e4m3fn)
LAYERS = 2


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def poisoned(
    num_blocks: int, num_heads: int, block_size: int, dim: int, dtype: torch.dtype, order: str
) -> torch.Tensor:
    """Return a pool `[N, L, 2, Hk, B, W]` of NaN, codes and scales alike; `order` says how it lies in memory."""
    width = (dim + 2 if dtype in QUANTISED else dim) * dtype.itemsize
    more = 2 if order == "part" else 0  # heads of somebody else
    if order == "layers":
        memory = torch.full((num_blocks, LAYERS, 2, num_heads, block_size, width), 255, dtype=torch.uint8)
        return memory.view(dtype)
    memory = torch.full((num_blocks, num_heads + more, LAYERS, 2, block_size, width), 255, dtype=torch.uint8)
    return memory.view(dtype).permute(0, 2, 3, 1, 4, 5)[:, :, :, more // 2 : more // 2 + num_heads]


def fused(num_rows: int, num_q: int, num_kv: int, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return q, k and v as parts of one projection's rows."""
    return torch.split(torch.randn(num_rows, num_q + 2 * num_kv, dim).to(dtype), [num_q, num_kv, num_kv], dim=1)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", COMPUTED)
@pytest.mark.parametrize("order", ["layers", "heads", "part"])
@pytest.mark.parametrize(("num_q", "num_kv", "dim", "block_size"), [(4, 2, 8, 16), (9, 3, 24, 32), (20, 10, 16, 16)])
def test_rotates_and_writes_its_slots_only(
    dtype: torch.dtype, order: str, num_q: int, num_kv: int, dim: int, block_size: int
) -> None:
    frequencies = rope.inverse_frequencies(Rope(theta=100.0), dim)
    positions = torch.tensor([0, 3, 17, 40, 9000])
    slots = torch.tensor([0, 2 * block_size - 1, 2 * block_size, 3 * block_size + 5, block_size + 1])
    q, k, v = fused(5, num_q, num_kv, dim, dtype)
    cos, sin = rope.cos_sin(frequencies, positions)
    pool = poisoned(4, num_kv, block_size, dim, dtype, order)
    rotated = gpu.append_kv(q, k, v, cos, sin, pool, 1, slots)
    expected = poisoned(4, num_kv, block_size, dim, dtype, order)
    torch.testing.assert_close(rotated, TorchBackend().append_kv(q, k, v, cos, sin, expected, 1, slots))
    torch.testing.assert_close(pool, expected, equal_nan=True)
    for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        block, offset = divmod(slot, block_size)
        tolerance = 50 * definition.TOLERANCE[dtype]  # angles are fp32: of position 9000 they are that far off
        for head in range(num_kv):
            key = definition.rotate(k[row, head], position, frequencies.tolist())
            torch.testing.assert_close(pool[block, 1, 0, head, offset].double(), key, rtol=tolerance, atol=tolerance)
            assert torch.equal(pool[block, 1, 1, head, offset], v[row, head])
    assert int((~pool.isnan()).sum()) == 5 * 2 * num_kv * dim


@pytest.mark.parametrize("kept", [*QUANTISED, torch.float32, torch.float16])
@pytest.mark.parametrize("dtype", COMPUTED)
@pytest.mark.parametrize("order", ["layers", "heads"])
def test_keeps_the_bytes_that_torch_keeps(kept: torch.dtype, dtype: torch.dtype, order: str) -> None:
    """Of heads of all sizes, some of zeros; write_kv and append_kv alike."""
    count, num_kv, dim = 20, 3, 24
    exponents = 30.0 if dtype is torch.float32 else 4.0
    sizes = 10.0 ** torch.linspace(-exponents, exponents, count * num_kv).view(count, num_kv, 1)
    x = torch.randn(2, count, num_kv, dim) * sizes * 10.0 ** -(4 * torch.rand(2, count, num_kv, dim))
    x[:, 7] = 0
    k, v = x.clamp(-60000, 60000).to(dtype) if torch.float16 in (dtype, kept) else x
    slots = torch.randperm(3 * 16)[:count]
    q, cos, sin = torch.randn(count, 4, dim).to(dtype), torch.rand(count, dim // 2), torch.rand(count, dim // 2)
    ours, theirs = (poisoned(3, num_kv, 16, dim, kept, order) for _ in range(2))
    gpu.write_kv(k, v, ours, 1, slots)
    TorchBackend().write_kv(k, v, theirs, 1, slots)
    assert same_bytes(ours, theirs)
    rotated = gpu.append_kv(q, k, v, cos, sin, ours, 0, slots)
    assert torch.equal(rotated, TorchBackend().append_kv(q, k, v, cos, sin, theirs, 0, slots))
    assert same_bytes(ours, theirs)


@pytest.mark.parametrize("kept", QUANTISED)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_head_with_a_number_that_is_not_finite_reads_as_not_finite(kept: torch.dtype, wrong: float) -> None:
    k, v = torch.randn(2, 3, 2, 8)
    k[1, 0, 5] = wrong
    pool = poisoned(1, 2, 16, 8, kept, "layers")
    gpu.write_kv(k, v, pool, 0, torch.tensor([0, 1, 2]))
    found = kv_elements.decode(pool[0, 0, :, :, :3], torch.float32).isfinite()
    assert not found[0, 0, 1].any()
    found[0, 0, 1] = True
    assert bool(found.all())


@triton.jit  # type: ignore[untyped-decorator]
def _codes(x, codes, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(codes + at, gpu._float8_code(tl.load(x + at)))


def test_every_float8_number_and_what_lies_between() -> None:
    """The numbers themselves, the ties between neighbours, and what is just beside a tie."""
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # 0 .. 448
    ties = (numbers[1:] + numbers[:-1]) / 2
    beside = [torch.nextafter(ties, torch.tensor(end)) for end in (0.0, 500.0)]
    positive = torch.cat((numbers, ties, *beside, torch.tensor([1e-30, 1e-45])))
    x = torch.cat((positive, -positive, torch.tensor([torch.nan])))
    size = triton.next_power_of_2(len(x))
    x = torch.cat((x, torch.zeros(size - len(x))))
    codes: Any = torch.empty(size, dtype=torch.uint8)
    _codes[(1,)](x, codes, SIZE=size)
    assert torch.equal(codes, x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_no_rows_write_nothing() -> None:
    pool = poisoned(1, 2, 16, 8, torch.float32, "layers")
    q, k, v = fused(0, 4, 2, 8, torch.float32)
    cos = torch.empty(0, 4)
    assert gpu.append_kv(q, k, v, cos, cos, pool, 0, torch.empty(0, dtype=torch.int64)).shape == (0, 4, 8)
    assert bool(pool.isnan().all())


@pytest.mark.parametrize("dtype", COMPUTED)
@pytest.mark.parametrize(("num_q", "num_kv", "dim"), [(4, 2, 8), (9, 3, 24)])
def test_heads_are_normed_before_they_are_rotated(dtype: torch.dtype, num_q: int, num_kv: int, dim: int) -> None:
    """Values are kept as they come."""
    q, k, v = fused(5, num_q, num_kv, dim, dtype)
    norms = HeadNorms(q=1 + torch.randn(dim).to(dtype) / 4, k=1 + torch.randn(dim).to(dtype) / 4, eps=1e-2)
    cos, sin = rope.cos_sin(rope.inverse_frequencies(Rope(theta=100.0), dim), torch.arange(5))
    slots = torch.tensor([0, 31, 17, 40, 3])
    ours, theirs = (poisoned(3, num_kv, 16, dim, dtype, "layers") for _ in range(2))
    found = gpu.append_kv(q, k, v, cos, sin, ours, 1, slots, norms)
    backend = TorchBackend()
    q, k = backend.rms_norm(q, norms.q, norms.eps)[0], backend.rms_norm(k, norms.k, norms.eps)[0]
    tolerance = definition.TOLERANCE[dtype]
    expected = backend.append_kv(q, k, v, cos, sin, theirs, 1, slots)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert same_bytes(ours[:, 1, 1], theirs[:, 1, 1])


@pytest.mark.parametrize("kept", [torch.float16, torch.int8, torch.float8_e4m3fn])
def test_a_token_of_a_negative_slot_is_kept_nowhere(kept: torch.dtype) -> None:
    q, k, v = fused(3, 4, 2, 16, torch.float16)
    angles = torch.ones(3, 8)
    ours, theirs = (poisoned(2, 2, 16, 16, kept, "layers") for _ in range(2))
    found = gpu.append_kv(q, k, v, angles, angles, ours, 0, torch.tensor([-1, 20, -1]))
    expected = TorchBackend().append_kv(q[1:2], k[1:2], v[1:2], angles[1:2], angles[1:2], theirs, 0, torch.tensor([20]))
    torch.testing.assert_close(found[1:2], expected)
    assert same_bytes(ours, theirs)
