"""Sampling on the device: a token is a pure function of (logits, seed, sequence index, position), as in `sampling.py`.

    token = argmax over what the filters leave of  logit / temperature + noise(seed, index, position, id)

Gumbel-max with stateless noise, one pass over the vocabulary, no softmax and no sort. The reference, with the formulas
of noise and filters, is `kernels/sampling.py`; the tokens are its tokens:

- The hash, the number in (0, 1) made of it, temperatures, top-k, min-p and all ties are the same to the last bit.
- Logarithms and exponentials in float64 may differ in their last bit from those of a CPU, and sums of probabilities in
  the order of their terms. So a token differs only where the two best scores are closer than a few units in the 16th
  digit, or where the mass ahead of a token is as near to top-p as rounding: by estimate less than once in 10^11 draws.

*Screen in fp32, decide in fp64.* Exact noise costs two logarithms in float64, and nearly all tokens are far from
winning. So a tile first gets an upper bound of its scores in fp32, and is computed exactly only if it may hold a better
one than the best so far: of the k-th tile that is one in k. Where the filters cut is found ahead of that: `cuts.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagewire.kernels import sampling
from pagewire.kernels.gpu.cuts import Cuts, find_cuts
from pagewire.kernels.gpu.dependent_launch import wait_for_earlier
from pagewire.kernels.sampling_columns import SamplingColumns
from pagewire.kernels.sampling_rows import SamplingRows

NO_TOKEN = -1  # of a row without a finite maximum
# As large as fits without spilling, with as many loads on their way as memory needs; no other sizes were measured.
TILE, WARPS = 1024, 4  # logits at once, of a part of a row
STAGES = 4  # tiles on their way
PROGRAMS = 528  # to share the rows among: four for each of 132 multiprocessors

_INF = tl.constexpr(float("inf"))
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_UNIFORM_MASK = tl.constexpr((1 << 52) - 1)
_UNIFORM_STEP, _COARSE_STEP = tl.constexpr(2.0**-52), tl.constexpr(2.0**-32)
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
_BEHIND = tl.constexpr(torch.iinfo(torch.int32).max)  # every id


@triton.jit
def _mix(value):
    """splitmix64's finaliser of uint64."""
    value = (value ^ (value >> 30)) * _MIX_1
    value = (value ^ (value >> 27)) * _MIX_2
    return value ^ (value >> 31)


@triton.jit
def _key(seed, index, position):
    key = _mix(seed.to(tl.uint64) + _GOLDEN)
    key = _mix(key + index.to(tl.uint64) + _GOLDEN)
    return _mix(key + position.to(tl.uint64) + _GOLDEN)


@triton.jit
def _random_bits(key, ids):
    return _mix(key + (ids + 1).to(tl.uint64) * _GOLDEN) & _UNIFORM_MASK


@triton.jit
def _noise(bits):
    """Standard Gumbel noise -log(-log u), u = (bits + 1/2) / 2^52, in float64."""
    uniform = (bits.to(tl.float64) + 0.5) * _UNIFORM_STEP
    return -tl.log(-tl.log(uniform))


@triton.jit
def _most_noise(bits):
    """An upper bound of `_noise` in fp32: what the next multiple of 2^-32 above u would give, and what rounding may."""
    # Near 1 that multiple is known by what it lacks, `left`, of which -log(1 - left) is the beginning of a series.
    upper = (bits >> 20).to(tl.uint32)
    left = (0xFFFFFFFF - upper).to(tl.float32) * _COARSE_STEP
    surprise = -tl.log((upper.to(tl.float32) + 1.0) * _COARSE_STEP)
    surprise = tl.where(left < 0.0078125, left * (1.0 + left * (0.5 + left * 0.33333334)), surprise)
    return -tl.log(tl.maximum(surprise, 1e-30)) + 3e-5


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["floats", "integers"])
def _draw(
    logits,  # [n, vocab_size] fp32, rows `stride` elements apart
    floats,  # [3, n] float64, see SamplingColumns
    integers,  # [4, n] int64
    floors,  # [n] fp32, see Cuts; so are the next two
    lasts,  # [n] int32
    bounds,  # [n] float64
    scores,  # [n, parts] float64: the best of each part of a row, -inf where nothing is left, inf where it is broken
    ids,  # [n, parts] int32: where that is
    num_rows,
    vocab_size,
    stride,
    part,  # logits of a program, whole tiles
    CUTS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row, number = tl.program_id(0), tl.program_id(1)
    line = logits + row.to(tl.int64) * stride
    temperature = tl.load(floats + row)
    draws = (temperature > 0.0) & (tl.load(integers + row) != 1)
    temperature = tl.where(draws, temperature, 1.0)
    slope = tl.minimum(1.0 / temperature, 1e30).to(tl.float32)
    key = _key(
        tl.load(integers + num_rows + row),
        tl.load(integers + 2 * num_rows + row),
        tl.load(integers + 3 * num_rows + row),
    )
    floor = tl.load(floors + row) if CUTS else tl.full((), _LOWEST, tl.float32)
    last = tl.load(lasts + row) if CUTS else vocab_size
    bound = tl.load(bounds + row) if CUTS else tl.full((), -_INF, tl.float64)
    best = tl.full((), -_INF, tl.float64)
    token = -1
    end = tl.minimum(number * part + part, vocab_size)
    for start in tl.range(number * part, end, TILE, num_stages=STAGES):
        column = start + tl.arange(0, TILE)
        x = tl.load(line + column, column < end, other=-_INF)
        # Not "above": what is left includes NaN, and nothing of -inf.
        is_left = ~(x < floor) & ~((x == floor) & (column > last))
        bits = _random_bits(key, column)
        at_most = x * slope
        at_most += tl.abs(at_most) * 1e-6
        if draws:
            at_most += _most_noise(bits)
        at_most = tl.where(tl.abs(at_most) < 1e30, at_most, _INF)  # which a bound must not overflow, nor be NaN
        if tl.max(tl.where(is_left, at_most, -_INF)) >= best:
            score = x.to(tl.float64) / temperature
            is_left = is_left & ~(score < bound)
            if draws:
                score += _noise(bits)
            score = tl.where(is_left, tl.where(x == x, score, _INF), -_INF)
            most = tl.max(score)
            if most > best:
                best = most
                token = tl.min(tl.where(score == most, column, _BEHIND))
    place = row * tl.num_programs(1) + number
    tl.store(scores + place, best)
    tl.store(ids + place, token)


@triton.jit(do_not_specialize=["parts"])
def _elect(
    scores,  # [n, parts] float64
    ids,  # [n, parts] int32
    tokens,  # [n] int64
    parts,
    WIDTH: tl.constexpr,  # parts, as a power of two
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row, part = tl.program_id(0), tl.arange(0, WIDTH)
    score = tl.load(scores + row * parts + part, part < parts, other=-_INF)
    best = tl.max(score)
    token = tl.min(tl.where(score == best, tl.load(ids + row * parts + part, part < parts, other=_BEHIND), _BEHIND))
    tl.store(tokens + row, tl.where(tl.abs(best) < _INF, token, -1).to(tl.int64))


def draw(
    logits: torch.Tensor, columns: SamplingColumns, cuts: bool, out: torch.Tensor | None = None, *,
    overlaps: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return a token per row of logits `[n, V]` fp32: `[n]` int64 on their device, `NO_TOKEN` for a broken row.

    `cuts` says that some row may ask for top-k, top-p or min-p; `out` is where tokens go, if anywhere; `overlaps` is
    that of `Processor`. Nothing waits for the device.
    """
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    num_rows, vocab_size = logits.shape
    stride, device = logits.stride(0), logits.device
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device) if out is None else out
    if not num_rows:
        return tokens
    num_tiles = triton.cdiv(vocab_size, TILE)
    tiles = triton.cdiv(num_tiles, max(1, PROGRAMS // num_rows))
    parts = triton.cdiv(num_tiles, tiles)
    found = find_cuts(logits, columns, tile=TILE, share=tiles, overlaps=overlaps) if cuts else Cuts.empty(0, device)
    scores = torch.empty((num_rows, parts), dtype=torch.float64, device=device)
    ids = torch.empty((num_rows, parts), dtype=torch.int32, device=device)
    _draw[(num_rows, parts)](
        logits, columns.floats, columns.integers, found.floors, found.lasts, found.bounds, scores, ids,
        num_rows, vocab_size, stride, tiles * TILE,
        CUTS=cuts, TILE=TILE, STAGES=STAGES, OVERLAPS=overlaps, num_warps=WARPS, launch_pdl=overlaps,
    )  # fmt: skip
    _elect[(num_rows,)](
        scores, ids, tokens, parts,
        WIDTH=triton.next_power_of_2(parts), OVERLAPS=overlaps, num_warps=1, launch_pdl=overlaps,
    )  # fmt: skip
    return tokens


def sample(logits: torch.Tensor, rows: SamplingRows, *, overlaps: bool = False) -> torch.Tensor:
    """Return a token per row of logits `[n, V]` fp32: `[n]` int64 on their device, `NO_TOKEN` for a broken row.

    `overlaps` is that of `Processor`.
    """
    cuts = any(rows.top_k) or min(rows.top_p, default=1.0) < 1.0 or any(rows.min_p)
    tokens = draw(logits, SamplingColumns.of(rows, logits.device), cuts, overlaps=overlaps)
    # Seldom asked for, and no cut by size: the reference's own sort, on the device.
    asked = zip(rows.temperature, rows.top_k, rows.typical_p, strict=True)
    typical = [row for row, (temperature, k, p) in enumerate(asked) if temperature > 0.0 and k != 1 and p < 1.0]
    if typical:
        places = torch.tensor(typical, device=logits.device)
        drawn = sampling.draw(logits[places], rows.take(typical))
        tokens[places] = torch.where(tokens[places] == NO_TOKEN, NO_TOKEN, drawn)
    return tokens
