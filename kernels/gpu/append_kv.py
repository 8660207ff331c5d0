"""Norms of heads and rotary embedding, fused with the append of K and V to their slots in the paged pool.

    x[.., d]               = round(x[.., d] / sqrt(mean(x^2) + eps)) * weight[d]      of q and k, where heads are normed
    rotated[.., d]         = x[.., d] cos[d] - x[.., d + D/2] sin[d]
    rotated[.., d + D/2]   = x[.., d + D/2] cos[d] + x[.., d] sin[d]        for d < D/2, in fp32

Su et al., https://arxiv.org/abs/2104.09864, with the pairs of Hugging Face weights. Rotated keys are rounded to their
dtype and then kept as `kv_elements.py` says: as numbers of the pool's dtype, or as codes with a scale behind them.
The torch references are `TorchBackend.append_kv` and `TorchBackend.write_kv`.

A program takes one token and a few heads, of q, or of k and v alike: each operand is read and written once, the token's
cosines once for those heads. Heads are whole rows, so what is kept of a token depends on that token alone. A token of a
negative slot is kept nowhere: rows that fill a batch up to a captured size are such.
A float8 code is made of the bits of its number: to the nearest, ties to even, as torch rounds, on every machine.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagewire.kernels import kv_elements
from pagewire.kernels.gpu.dependent_launch import wait_for_earlier
from pagewire.kernels.head_norms import HeadNorms

HEADS = 8  # of a program
PER_THREAD = 8  # elements of a half: one access of 16 bytes in 16-bit dtypes

_INT8, _FLOAT8 = tl.constexpr(1), tl.constexpr(2)
_CODES = {torch.int8: 1, torch.float8_e4m3fn: 2}  # 0 for what is kept as numbers
_SMALLEST_SCALE = tl.constexpr(kv_elements.SMALLEST_SCALE)


@triton.jit
def _nearest_bfloat16(x):
    """The bits of positive x `[..]` fp32 as a bfloat16, ties to even: int32."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@triton.jit
def _float8_code(x):
    """The code of |x| <= 448 in e4m3fn, ties to even: its bits, uint8; 0x7f for NaN."""
    size = tl.abs(x)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)  # 20 bits less of mantissa, another bias
    # In fp32, what is added to 2^14 is rounded to a multiple of 2^-9: the step of float8's subnormal numbers.
    subnormal = (size + 16384.0).to(tl.int32, bitcast=True) & 0xFF
    code = tl.where(size < 0.015625, subnormal, normal)
    code = tl.where(size == size, code, 0x7F)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)


@triton.jit
def _int8_code(x):
    """|x| <= 127, rounded to the nearest, ties to even: its bits, uint8."""
    # In fp32, what is added to 1.5 x 2^23 is rounded to a whole number, which is then its last bits.
    return ((x + 12582912.0).to(tl.int32, bitcast=True) & 0xFF).to(tl.uint8)


@triton.jit
def _code(x, scale, CODES: tl.constexpr):
    ratio = tl.math.div_rn(x, scale)
    return _int8_code(ratio) if CODES == _INT8 else _float8_code(ratio)


@triton.jit
def _keep(first, second, target, column, inside, HALF: tl.constexpr, CODES: tl.constexpr):
    """Keep heads, given as halves `[HEADS, WIDTH]`, at `target` `[HEADS, 1]`."""
    if CODES == 0:
        dtype: tl.constexpr = target.dtype.element_ty
        tl.store(target + column, first.to(dtype), inside)
        tl.store(target + HALF + column, second.to(dtype), inside)
    else:
        largest_code: tl.constexpr = 127.0 if CODES == _INT8 else 448.0
        first, second = first.to(tl.float32), second.to(tl.float32)
        size = tl.maximum(tl.abs(first), tl.abs(second))
        # A maximum passes NaN over, but it must be seen: a head with one is all NaN when read.
        size = tl.where((first == first) & (second == second), size, float("inf"))
        largest = tl.max(tl.where(inside, size, 0.0), axis=1, keep_dims=True)  # [HEADS, 1]
        scale = _nearest_bfloat16(tl.math.div_rn(largest, largest_code))
        scale = tl.maximum((scale << 16).to(tl.float32, bitcast=True), _SMALLEST_SCALE)  # [HEADS, 1]
        tl.store(target + column, _code(first, scale, CODES), inside)
        tl.store(target + HALF + column, _code(second, scale, CODES), inside)
        behind = (target + 2 * HALF).to(tl.pointer_type(tl.int16))
        tl.store(behind + column, (scale.to(tl.int32, bitcast=True) >> 16).to(tl.int16), inside & (column == 0))


@triton.jit
def _load(source, column, inside, HALF: tl.constexpr):
    """The halves of heads, `[HEADS, WIDTH]` each, that begin at `source` `[HEADS, 1]`."""
    return tl.load(source + column, inside, other=0.0), tl.load(source + HALF + column, inside, other=0.0)


@triton.jit
def _norm(first, second, weight, eps, column, HALF: tl.constexpr):
    """Heads normed as `rms_norm.py` norms rows, in their dtype."""
    dtype: tl.constexpr = first.dtype
    first, second = first.to(tl.float32), second.to(tl.float32)
    squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)  # [HEADS, 1]
    scale = tl.rsqrt(squares / (2 * HALF) + eps)
    low = tl.load(weight + column, column < HALF, other=0.0).to(tl.float32)  # [1, WIDTH]
    high = tl.load(weight + HALF + column, column < HALF, other=0.0).to(tl.float32)
    first = (first * scale).to(dtype).to(tl.float32) * low
    return first.to(dtype), ((second * scale).to(dtype).to(tl.float32) * high).to(dtype)


@triton.jit
def _rotate(first, second, cos, sin, column, HALF: tl.constexpr):
    """Heads rotated by one token's angles, in their dtype."""
    dtype: tl.constexpr = first.dtype
    cosine = tl.load(cos + column, column < HALF, other=0.0)  # [1, WIDTH]
    sine = tl.load(sin + column, column < HALF, other=0.0)
    first, second = first.to(tl.float32), second.to(tl.float32)
    return (first * cosine - second * sine).to(dtype), (second * cosine + first * sine).to(dtype)


@triton.jit
def _append_kv(
    q,  # [T, NUM_Q_HEADS, 2 HALF], heads side by side, tokens `q_stride` elements apart; so are k and v
    k,  # [T, NUM_KV_HEADS, 2 HALF]
    v,  # [T, NUM_KV_HEADS, 2 HALF]
    cos,  # [T, HALF] fp32
    sin,  # [T, HALF] fp32
    rotated,  # [T, NUM_Q_HEADS, 2 HALF], contiguous
    pool,  # [N, 2, Hk, BLOCK_SIZE, W] of one layer; the strides below are its own, in elements
    slots,  # [T] int64
    q_norm,  # [2 HALF], None where heads are not normed
    k_norm,  # [2 HALF]
    eps,
    q_stride,
    k_stride,
    v_stride,
    block_stride,
    value_stride,
    head_stride,
    slot_stride,
    NUM_Q_HEADS: tl.constexpr,  # 0 where nothing is rotated
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,  # HALF, as a power of two
    HEADS: tl.constexpr,
    CODES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)  # of heads: those of q first
    num_q_groups: tl.constexpr = (NUM_Q_HEADS + HEADS - 1) // HEADS
    column = tl.arange(0, WIDTH)[None, :]  # [1, WIDTH]
    if group < num_q_groups:
        head = group * HEADS + tl.arange(0, HEADS)[:, None]  # [HEADS, 1]
        inside = (head < NUM_Q_HEADS) & (column < HALF)
        queries, turned = q + token * q_stride, rotated + token * (NUM_Q_HEADS * 2 * HALF)
        first, second = _load(queries + head * (2 * HALF), column, inside, HALF)
        if q_norm is not None:
            first, second = _norm(first, second, q_norm, eps, column, HALF)
        first, second = _rotate(first, second, cos + token * HALF, sin + token * HALF, column, HALF)
        _keep(first, second, turned + head * (2 * HALF), column, inside, HALF, 0)
    else:
        kv_head = (group - num_q_groups) * HEADS + tl.arange(0, HEADS)[:, None]
        is_kv = (kv_head < NUM_KV_HEADS) & (column < HALF)
        slot = tl.load(slots + token)
        is_kept = is_kv & (slot >= 0)
        target = pool + (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * slot_stride
        target = target + kv_head.to(tl.int64) * head_stride  # [HEADS, 1]
        low, high = _load(k + token * k_stride + kv_head * (2 * HALF), column, is_kv, HALF)
        if k_norm is not None:
            low, high = _norm(low, high, k_norm, eps, column, HALF)
        if NUM_Q_HEADS > 0:
            low, high = _rotate(low, high, cos + token * HALF, sin + token * HALF, column, HALF)
        _keep(low, high, target, column, is_kept, HALF, CODES)
        low, high = _load(v + token * v_stride + kv_head * (2 * HALF), column, is_kv, HALF)
        _keep(low, high, target + value_stride, column, is_kept, HALF, CODES)


def append_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    slots: torch.Tensor,
    norms: HeadNorms | None = None,
    *,
    overlaps: bool = False,
) -> torch.Tensor:
    """Norm and rotate q `[T, Hq, D]` and k `[T, Hk, D]`, write k and v `[T, Hk, D]` to `slots`; return q.

    `cos` and `sin` are `[T, D / 2]` fp32, `slots` is `[T]` int64, none that is not negative twice; the pool
    `[N, L, 2, Hk, B, W]` may be strided but for its last two axes. `overlaps` is that of `Processor`.
    """
    q = _heads_together(q)
    rotated = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    angles = (cos.contiguous(), sin.contiguous())
    _launch(q, k, v, *angles, rotated, pool[:, layer], slots, q.shape[1], norms, overlaps)
    return rotated


def write_kv(
    k: torch.Tensor, v: torch.Tensor, pool: torch.Tensor, layer: int, slots: torch.Tensor, *, overlaps: bool = False
) -> None:
    """Write k and v `[T, Hk, D]`, rotated already or never, to `slots` `[T]` int64, none that is not negative twice."""
    _launch(k, k, v, k, k, k, pool[:, layer], slots, 0, None, overlaps)


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    rotated: torch.Tensor,
    kv: torch.Tensor,  # [N, 2, Hk, B, W]
    slots: torch.Tensor,
    num_q_heads: int,
    norms: HeadNorms | None,
    overlaps: bool,
) -> None:
    k, v = _heads_together(k), _heads_together(v)
    num_rows, num_kv_heads, head_dim = k.shape
    if not num_rows:
        return
    codes = _CODES.get(kv.dtype, 0)
    width = triton.next_power_of_2(head_dim // 2)
    grid = (num_rows, triton.cdiv(num_q_heads, HEADS) + triton.cdiv(num_kv_heads, HEADS))
    _append_kv[grid](
        q, k, v, cos, sin, rotated, kv.view(torch.uint8) if codes else kv, slots,
        None if norms is None else norms.q, None if norms is None else norms.k, 0.0 if norms is None else norms.eps,
        q.stride(0), k.stride(0), v.stride(0), *kv.stride()[:4],
        NUM_Q_HEADS=num_q_heads, NUM_KV_HEADS=num_kv_heads, BLOCK_SIZE=kv.shape[3],
        HALF=head_dim // 2, WIDTH=width, HEADS=HEADS, CODES=codes, OVERLAPS=overlaps,
        num_warps=max(1, HEADS * width // (32 * PER_THREAD)), launch_pdl=overlaps,
    )  # fmt: skip


def _heads_together(x: torch.Tensor) -> torch.Tensor:
    """Return x `[T, heads, D]` with each token's heads side by side, as a fused projection has them."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
