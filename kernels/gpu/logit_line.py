"""What one program finds out about a line of logits by reading it again and again: its extent, and where it is cut.

A line is `size` logits in fp32 that lie side by side, `TILE` of them read at once; -inf counts for nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

_INF = tl.constexpr(float("inf"))


@triton.jit
def extent(line, size, TILE: tl.constexpr, STAGES: tl.constexpr):
    """The least and the most of some logits that are above -inf."""
    least = tl.full((TILE,), _INF, tl.float32)
    most = tl.full((TILE,), -_INF, tl.float32)
    for start in tl.range(0, size, TILE, num_stages=STAGES):
        ids = start + tl.arange(0, TILE)
        x = tl.load(line + ids, ids < size, other=-_INF)
        least = tl.minimum(least, tl.where(x > -_INF, x, _INF))
        most = tl.maximum(most, x)
    return tl.min(least), tl.max(most)


@triton.jit
def bisect(line, size, low, high, target, most, slope, WEIGHED: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr):
    """The largest logit for which those no less weigh `target`; it is from `low` to `high`, which are logits too.

    What weighs is 1, or a probability over that of the most, summed in fp32: exact for counts. Each pass halves the
    interval and draws its ends in to logits that are there, so it ends however they lie.
    """
    while low < high:
        middle = low * 0.5 + high * 0.5
        middle = tl.where(middle > low, middle, high)
        amount = tl.zeros((TILE,), tl.float32)
        above = tl.full((TILE,), _INF, tl.float32)  # the least that is no less than the middle
        below = tl.full((TILE,), -_INF, tl.float32)  # the most that is less
        for start in tl.range(0, size, TILE, num_stages=STAGES):
            ids = start + tl.arange(0, TILE)
            x = tl.load(line + ids, ids < size, other=-_INF)
            is_above = x >= middle
            amount += tl.where(is_above, tl.exp((x - most) * slope) if WEIGHED else 1.0, 0.0)
            above = tl.minimum(above, tl.where(is_above, x, _INF))
            below = tl.maximum(below, tl.where(is_above, -_INF, x))
        is_enough = tl.sum(amount) >= target
        low = tl.where(is_enough, tl.min(above), low)
        high = tl.where(is_enough, high, tl.max(below))
    return low


@triton.jit
def mass_from(line, size, floor, peak, temperature, TILE: tl.constexpr, STAGES: tl.constexpr):
    """What all logits from `floor` on weigh, in float64."""
    amount = tl.zeros((TILE,), tl.float64)
    for start in tl.range(0, size, TILE, num_stages=STAGES):
        ids = start + tl.arange(0, TILE)
        x = tl.load(line + ids, ids < size, other=-_INF)
        amount += tl.where(x >= floor, tl.exp(x.to(tl.float64) / temperature - peak), 0.0)
    return tl.sum(amount)


@triton.jit
def judge(line, size, cut, target, peak, temperature, TILE: tl.constexpr, STAGES: tl.constexpr):
    """What speaks for a cut, in float64, where logits are to weigh `target`.

    Returns the mass that is still lacking ahead of logits that equal `cut`; the weight of one of them; their number;
    which way the cut should go, 1 up, -1 down, 0 for neither; and the next logit there.
    """
    ahead = tl.zeros((TILE,), tl.float64)
    equal = tl.zeros((TILE,), tl.int32)
    above = tl.full((TILE,), _INF, tl.float32)
    below = tl.full((TILE,), -_INF, tl.float32)
    for start in tl.range(0, size, TILE, num_stages=STAGES):
        ids = start + tl.arange(0, TILE)
        x = tl.load(line + ids, ids < size, other=-_INF)
        ahead += tl.where(x > cut, tl.exp(x.to(tl.float64) / temperature - peak), 0.0)
        equal += (x == cut).to(tl.int32)
        above = tl.minimum(above, tl.where(x > cut, x, _INF))
        below = tl.maximum(below, tl.where(x < cut, x, -_INF))
    lacks = target - tl.sum(ahead)
    weight = tl.exp(cut.to(tl.float64) / temperature - peak)
    number = tl.sum(equal)
    way = tl.where(lacks <= 0.0, 1, tl.where(number * weight < lacks, -1, 0))
    return lacks, weight, number, way, tl.where(way > 0, tl.min(above), tl.max(below))


@triton.jit
def place_of(line, size, value, number, TILE: tl.constexpr):
    """The place of the logit that is the `number`-th to equal `value`, counted from 1."""
    found = 0
    last = size
    start = 0
    while (start < size) & (found < number):
        ids = start + tl.arange(0, TILE)
        x = tl.load(line + ids, ids < size, other=-_INF)
        is_equal = (x == value).to(tl.int32)
        rank = found + tl.cumsum(is_equal, 0)
        last = tl.min(tl.where((is_equal == 1) & (rank == number), ids, last))
        found += tl.sum(is_equal)
        start += TILE
    return last
