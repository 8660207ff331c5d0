"""Where top-k, top-p and min-p cut a row of logits, found by all programs together: three readings of the row.

A cut is a value: what is left of a row is what lies above it, and of its equals those up to an id. As in the reference,
`kernels/sampling.py`, equals of the last of top-k stay, and of top-p's the lowest ids do.

    _survey   least and most of each tile
    _count    a histogram: how many logits lie in each of BINS bins of one width, from the most down
    _weigh    which bins may hold the cut; how many logits are ahead of those, and what is ahead and behind weighs
    _gather   the logits in those bins, in the order of their ids, into a list
    _settle   the cut: one program for each row, over its list

How much a bin weighs is known to within what its ends weigh, so the histogram alone proves between which bins top-p
cuts: those make up a list of a few hundred logits as a rule, ten thousand where probabilities are nearly the same. Were
a list to be longer than CAPACITY, `_settle` reads the whole row instead, slowly. Then bisection in fp32 proposes the
cut, and sums in float64 accept that or correct it, by one value as a rule.

Sums are those of tiles, added in the order of their ids, and what programs add to one place are whole numbers: a cut
is the same to the last bit each time, whatever rows are beside. Launches are the same whatever is asked, as a captured
step needs: for a row that asks for nothing each program ends at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pagewire.kernels.gpu.dependent_launch import wait_for_earlier
from pagewire.kernels.gpu.logit_line import bisect, extent, judge, mass_from, place_of
from pagewire.kernels.sampling_columns import SamplingColumns

BINS = 256
CAPACITY = 16384  # of a list
WARPS = 4
LIST_TILE, LIST_WARPS = 2048, 16  # of a list, that its program holds at once
STAGES = 4  # tiles on their way

_INF = tl.constexpr(float("inf"))
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


@dataclass(frozen=True, slots=True)
class Cuts:
    """What is left of n rows: logits above `floors`, equal ones up to the id `lasts`, none below `bounds`."""

    floors: torch.Tensor  # [n] fp32
    lasts: torch.Tensor  # [n] int32
    bounds: torch.Tensor  # [n] float64, of a logit over its temperature

    @classmethod
    def empty(cls, num_rows: int, device: torch.device) -> Cuts:
        """Return those of rows, yet to be written."""
        dtypes = (torch.float32, torch.int32, torch.float64)
        return cls(*(torch.empty(num_rows, dtype=dtype, device=device) for dtype in dtypes))


@triton.jit
def _asked(floats, integers, row, num_rows, vocab_size):
    """Return a row's temperature, top-k, top-p and log of min-p: 0, 1 and -inf where one of them cuts nothing."""
    temperature = tl.load(floats + row)
    top_k = tl.load(integers + row)
    draws = (temperature > 0.0) & (top_k != 1)
    top_p = tl.where(draws, tl.load(floats + num_rows + row), 1.0)
    log_min_p = tl.where(draws, tl.load(floats + 2 * num_rows + row), -_INF)
    cuts = draws & (top_k > 1) & (top_k < vocab_size)
    return temperature, tl.where(cuts, top_k, 0).to(tl.int32), top_p, log_min_p


@triton.jit
def _searches(floats, integers, frames, row, num_rows, vocab_size):
    """Return whether the cut of a row must be searched for: it asks for more than min-p, and its most is finite."""
    _temperature, top_k, top_p, _log_min_p = _asked(floats, integers, row, num_rows, vocab_size)
    most = tl.load(frames + row)
    return ((top_k > 0) | (top_p < 1.0)) & (most < _INF) & (most > -_INF)


@triton.jit
def _bin(x, most, scale, BINS: tl.constexpr):
    """The bin of a logit, in halves, whose difference is finite; what lies below all bins is in the last."""
    return tl.minimum((most * 0.5 - x * 0.5) * scale, BINS - 1).to(tl.int32)


@triton.jit
def _slope(temperature):
    return tl.minimum(1.0 / temperature, 1e30).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows", "share"], do_not_specialize_on_alignment=["floats", "integers"])
def _survey(
    logits,  # [n, vocab_size] fp32, rows `stride` elements apart
    floats,  # [3, n] float64, see SamplingColumns
    integers,  # [4, n] int64
    extents,  # [2, n, tiles] fp32: the least above -inf of a tile, and the most, inf for a tile with a NaN
    histograms,  # [n, BINS] int32, cleared
    num_rows,
    vocab_size,
    stride,
    share,  # tiles of a program
    TILE: tl.constexpr,
    BINS: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row, number = tl.program_id(0), tl.program_id(1)
    _temperature, top_k, top_p, log_min_p = _asked(floats, integers, row, num_rows, vocab_size)
    if (top_k == 0) & (top_p >= 1.0) & (log_min_p == -_INF):
        return
    if number == 0:
        tl.store(histograms + row * BINS + tl.arange(0, BINS), 0)
    line = logits + row.to(tl.int64) * stride
    tiles = tl.cdiv(vocab_size, TILE)
    for tile in tl.range(number * share, tl.minimum(number * share + share, tiles), num_stages=STAGES):
        ids = tile * TILE + tl.arange(0, TILE)
        x = tl.load(line + ids, ids < vocab_size, other=-_INF)
        place = extents + row * tiles + tile
        tl.store(place, tl.min(tl.where(x > -_INF, x, _INF)))
        tl.store(place + num_rows * tiles, tl.max(tl.where(x == x, x, _INF)))


@triton.jit(do_not_specialize=["num_rows", "share"], do_not_specialize_on_alignment=["floats", "integers"])
def _count(
    logits,
    floats,
    integers,
    extents,
    histograms,  # added to; of the last bin it is a bound
    frames,  # [2, n] fp32: the most of a row, and how many bins a half of its unit has
    num_rows,
    vocab_size,
    stride,
    share,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,  # tiles of a row, as a power of two
    BINS: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row, number = tl.program_id(0), tl.program_id(1)
    temperature, top_k, top_p, log_min_p = _asked(floats, integers, row, num_rows, vocab_size)
    if (top_k == 0) & (top_p >= 1.0) & (log_min_p == -_INF):
        return
    tiles = tl.cdiv(vocab_size, TILE)
    t = tl.arange(0, WIDTH)
    place = extents + row * tiles + t
    least = tl.min(tl.load(place, t < tiles, other=_INF))
    tops = tl.load(place + num_rows * tiles, t < tiles, other=-_INF)
    most = tl.max(tops)
    # Bins reach to where the cut cannot be lower, however wild the least: the nearer that is, the fewer a bin holds.
    low = least
    if top_k == 0:  # all beneath this weigh an eighth of 1 - p at most, and the most alone weighs 1
        low = tl.maximum(low, (most - temperature * tl.log(8.0 * vocab_size / (1.0 - top_p))).to(tl.float32))
    elif top_k <= tiles:  # as many tiles have one that is no less than the k-th of their mosts
        no_less = tl.zeros((WIDTH,), tl.int32)
        for start in range(0, tiles, 16):
            some = start + tl.arange(0, 16)
            others = tl.load(extents + (num_rows + row) * tiles + some, some < tiles, other=-_INF)
            no_less += tl.sum((others[None, :] >= tops[:, None]).to(tl.int32), 1)
        low = tl.maximum(low, tl.max(tl.where(no_less >= top_k, tops, -_INF)))
    scale = BINS / tl.maximum(most * 0.5 - low * 0.5, 1e-30)
    if number == 0:
        tl.store(frames + row, most)
        tl.store(frames + num_rows + row, scale)
    if ((top_k == 0) & (top_p >= 1.0)) | (most == _INF) | (most == -_INF):
        return
    line = logits + row.to(tl.int64) * stride
    counts = tl.zeros((BINS,), tl.int32)
    beneath = 0
    for tile in tl.range(number * share, tl.minimum(number * share + share, tiles), num_stages=STAGES):
        ids = tile * TILE + tl.arange(0, TILE)
        x = tl.load(line + ids, ids < vocab_size, other=-_INF)
        if tl.max(x) >= low:
            counts += tl.histogram(_bin(x, most, scale, BINS), BINS, mask=x > -_INF)
        else:  # most tiles, as a rule: counting is what costs
            beneath += TILE
    b = tl.arange(0, BINS)
    counts += tl.where(b == BINS - 1, beneath, 0)
    tl.atomic_add(histograms + row * BINS + b, counts, counts > 0, sem="relaxed")


@triton.jit
def _span(histogram, top_k, top_p, step, BINS: tl.constexpr):
    """The first and the last bin of those that hold the cuts; `step` is a bin's width over the temperature.

    Top-p cuts in the first bin up to which (1 - p) of what is ahead weighs no less than p of what is behind. A logit in
    bin b weighs exp(-b step) at most and exp(-(b + 1) step) at least, give or take what fp32 rounds.
    """
    b = tl.arange(0, BINS)
    counts = tl.load(histogram + b)
    last = tl.full((), BINS - 1, tl.int32)
    if top_k > 0:
        last = tl.minimum(tl.sum((tl.cumsum(counts, 0) < top_k).to(tl.int32)), last)
    first = last
    if top_p < 1.0:
        before = tl.load(histogram + b - 1, b > 0, other=0)
        above = tl.maximum(b - 1, 0)
        # Of the last bin any number may stay behind top-k, and without that it has no lower end.
        most_behind = tl.where(b <= last, counts * tl.exp(-b * step) * 1.0001, 0.0)
        least_behind = tl.where(b < last, counts * tl.exp(-(b + 1) * step) * 0.9999, 0.0)
        most_ahead = tl.cumsum(before * tl.exp(-above * step) * 1.0001, 0)
        least_ahead = tl.cumsum(before * tl.exp(-b * step) * 0.9999, 0)
        share, rest = top_p.to(tl.float32), (1.0 - top_p).to(tl.float32)
        is_later = rest * most_ahead < share * tl.cumsum(least_behind, 0, reverse=True)
        may_be_later = rest * least_ahead < share * tl.cumsum(most_behind, 0, reverse=True)
        is_edge = (b > 0) & (b <= last)
        first = tl.sum((is_edge & is_later).to(tl.int32))
        if top_k == 0:
            last = tl.sum((is_edge & may_be_later).to(tl.int32))
    return first, last


@triton.jit(do_not_specialize=["num_rows", "share"], do_not_specialize_on_alignment=["floats", "integers"])
def _weigh(
    logits,
    floats,
    integers,
    histograms,
    frames,
    spans,  # [2, n] int32: the first and the last bin of what is to be listed
    numbers,  # [2, n, tiles] int32: how many logits of a tile are ahead of that, and in it
    masses,  # [2, n, tiles] float64, for top-p: what those ahead weigh, and those behind, which top-k leaves out
    num_rows,
    vocab_size,
    stride,
    share,
    TILE: tl.constexpr,
    BINS: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row, number = tl.program_id(0), tl.program_id(1)
    if not _searches(floats, integers, frames, row, num_rows, vocab_size):
        return
    temperature, top_k, top_p, _log_min_p = _asked(floats, integers, row, num_rows, vocab_size)
    most, scale = tl.load(frames + row), tl.load(frames + num_rows + row)
    step = tl.minimum(2.0 / scale * _slope(temperature), 1e30)
    first, last = _span(histograms + row * BINS, top_k, top_p, step, BINS)
    if number == 0:
        tl.store(spans + row, first)
        tl.store(spans + num_rows + row, last)
    peak = most.to(tl.float64) / temperature
    line = logits + row.to(tl.int64) * stride
    tiles = tl.cdiv(vocab_size, TILE)
    for tile in tl.range(number * share, tl.minimum(number * share + share, tiles), num_stages=STAGES):
        ids = tile * TILE + tl.arange(0, TILE)
        x = tl.load(line + ids, ids < vocab_size, other=-_INF)
        at = _bin(x, most, scale, BINS)
        is_ahead = at < first
        is_listed = ~is_ahead & (at <= last) & (x > -_INF)
        place = row * tiles + tile
        ahead = tl.sum(is_ahead.to(tl.int32))
        tl.store(numbers + place, ahead)
        tl.store(numbers + num_rows * tiles + place, tl.sum(is_listed.to(tl.int32)))
        if top_p < 1.0:
            mass_ahead, mass_behind = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
            if (top_k == 0) | (ahead > 0):
                mass = tl.exp(x.to(tl.float64) / temperature - peak)
                mass_ahead = tl.sum(tl.where(is_ahead, mass, 0.0))
                mass_behind = tl.sum(tl.where(at > last, mass, 0.0))
            tl.store(masses + place, mass_ahead)
            tl.store(masses + num_rows * tiles + place, mass_behind)


@triton.jit(do_not_specialize=["num_rows", "share"], do_not_specialize_on_alignment=["floats", "integers"])
def _gather(
    logits,
    floats,
    integers,
    frames,
    spans,
    numbers,
    listed,  # [n, CAPACITY] fp32: logits in the order of their ids, filled up to a multiple of 16 with -inf
    places,  # [n, CAPACITY] int32: their ids
    num_rows,
    vocab_size,
    stride,
    share,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    BINS: tl.constexpr,
    CAPACITY: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row, number = tl.program_id(0), tl.program_id(1)
    if not _searches(floats, integers, frames, row, num_rows, vocab_size):
        return
    tiles = tl.cdiv(vocab_size, TILE)
    t = tl.arange(0, WIDTH)
    counts = tl.load(numbers + (num_rows + row) * tiles + t, t < tiles, other=0)
    size = tl.sum(counts)
    if size > CAPACITY:
        return
    listed += row * CAPACITY
    if number == 0:
        behind = size + tl.arange(0, 16)
        tl.store(listed + behind, -_INF, behind < tl.cdiv(size, 16) * 16)
    most, scale = tl.load(frames + row), tl.load(frames + num_rows + row)
    first, last = tl.load(spans + row), tl.load(spans + num_rows + row)
    line = logits + row.to(tl.int64) * stride
    for tile in range(number * share, tl.minimum(number * share + share, tiles)):
        if tl.sum(tl.where(t == tile, counts, 0)) > 0:
            ids = tile * TILE + tl.arange(0, TILE)
            x = tl.load(line + ids, ids < vocab_size, other=-_INF)
            at = _bin(x, most, scale, BINS)
            is_listed = (at >= first) & (at <= last) & (x > -_INF)
            place = tl.sum(tl.where(t < tile, counts, 0)) + tl.cumsum(is_listed.to(tl.int32), 0) - 1
            tl.store(listed + place, x, is_listed)
            tl.store(places + row * CAPACITY + place, ids, is_listed)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["floats", "integers"])
def _settle(
    logits,
    floats,
    integers,
    frames,
    numbers,
    masses,
    listed,
    places,
    floors,  # see Cuts
    lasts,
    bounds,
    num_rows,
    vocab_size,
    stride,
    SURVEYED: tl.constexpr,  # how many logits a tile of `numbers` is of
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    CAPACITY: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    row = tl.program_id(0)
    temperature, top_k, top_p, log_min_p = _asked(floats, integers, row, num_rows, vocab_size)
    floor = tl.full((), _LOWEST, tl.float32)
    last = vocab_size
    bound = tl.full((), -_INF, tl.float64)
    if (top_k > 0) | (top_p < 1.0) | (log_min_p > -_INF):
        most = tl.load(frames + row)
        if (most < _INF) & (most > -_INF):
            peak = most.to(tl.float64) / temperature
            bound = peak + log_min_p
            if (top_k > 0) | (top_p < 1.0):
                tiles = tl.cdiv(vocab_size, SURVEYED)
                t = tl.arange(0, WIDTH)
                at = row * tiles + t
                size = tl.sum(tl.load(numbers + num_rows * tiles + at, t < tiles, other=0))
                is_listed = size <= CAPACITY
                if is_listed:
                    line = listed + row * CAPACITY
                    size = tl.cdiv(size, 16) * 16
                else:
                    line = logits + row.to(tl.int64) * stride
                    size = vocab_size
                least, highest = extent(line, size, TILE, STAGES)
                slope = _slope(temperature)
                lowest = least
                if top_k > 0:
                    ahead = tl.sum(tl.load(numbers + at, is_listed & (t < tiles), other=0))
                    rank = (top_k - ahead).to(tl.float32)
                    lowest = bisect(line, size, least, highest, rank, most, slope, False, TILE, STAGES)
                    # Fewer than k, all of them equal, are in no tile's list: of nothing the least is no bound.
                    lowest = tl.where(size > 0, lowest, _LOWEST)
                    floor = lowest
                if top_p < 1.0:
                    outside = is_listed & (t < tiles)
                    mass_ahead = tl.sum(tl.load(masses + at, outside, other=0.0))
                    outside = outside & (top_k == 0)
                    total = mass_ahead + tl.sum(tl.load(masses + num_rows * tiles + at, outside, other=0.0))
                    total += mass_from(line, size, lowest, peak, temperature, TILE, STAGES)
                    target = top_p * total - mass_ahead
                    cut = bisect(line, size, lowest, highest, target.to(tl.float32), most, slope, True, TILE, STAGES)
                    lacks, weight, number, way, beside = judge(line, size, cut, target, peak, temperature, TILE, STAGES)
                    low, high, tries = lowest, highest, 0
                    while (way != 0) & (low < high):
                        low = tl.where(way > 0, tl.minimum(beside, high), low)
                        high = tl.where(way < 0, tl.maximum(beside, low), high)
                        # Its neighbour, as a rule; else by halves, so that no row takes long.
                        middle = low * 0.5 + high * 0.5
                        cut = tl.where(tries > 0, middle, tl.where(way > 0, low, high))
                        tries += 1
                        lacks, weight, number, way, beside = judge(
                            line, size, cut, target, peak, temperature, TILE, STAGES
                        )
                    floor = cut
                    stay = tl.maximum(tl.ceil(lacks / weight), 1.0)  # of equal ones, the lowest ids
                    if stay < number:
                        last = place_of(line, size, cut, stay.to(tl.int32), TILE)
                        if is_listed:
                            last = tl.load(places + row * CAPACITY + last)
    tl.store(floors + row, floor)
    tl.store(lasts + row, last)
    tl.store(bounds + row, bound)


def find_cuts(logits: torch.Tensor, columns: SamplingColumns, *, tile: int, share: int, overlaps: bool = False) -> Cuts:
    """Return where to cut logits `[n, V]` fp32, whose columns lie side by side, without waiting for the device.

    A program takes `share` tiles of `tile` logits, a power of two. `overlaps` is that of `Processor`.
    """
    (num_rows, vocab_size), stride, device = logits.shape, logits.stride(0), logits.device
    cuts = Cuts.empty(num_rows, device)
    tiles = triton.cdiv(vocab_size, tile)

    def scratch(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    extents, frames = scratch(2, num_rows, tiles, dtype=torch.float32), scratch(2, num_rows, dtype=torch.float32)
    histograms, spans = scratch(num_rows, BINS, dtype=torch.int32), scratch(2, num_rows, dtype=torch.int32)
    numbers, masses = (scratch(2, num_rows, tiles, dtype=dtype) for dtype in (torch.int32, torch.float64))
    listed, places = (scratch(num_rows, CAPACITY, dtype=dtype) for dtype in (torch.float32, torch.int32))

    asked = (logits, columns.floats, columns.integers)
    sizes = (num_rows, vocab_size, stride)
    grid = (num_rows, triton.cdiv(tiles, share))
    width = triton.next_power_of_2(tiles)
    launch = {"OVERLAPS": overlaps, "launch_pdl": overlaps, "num_warps": WARPS}
    _survey[grid](*asked, extents, histograms, *sizes, share, TILE=tile, BINS=BINS, STAGES=STAGES, **launch)
    _count[grid](
        *asked, extents, histograms, frames, *sizes, share, TILE=tile, WIDTH=width, BINS=BINS, STAGES=STAGES, **launch
    )
    _weigh[grid](
        *asked, histograms, frames, spans, numbers, masses, *sizes, share, TILE=tile, BINS=BINS, STAGES=STAGES, **launch
    )
    _gather[grid](
        *asked, frames, spans, numbers, listed, places, *sizes, share,
        TILE=tile, WIDTH=width, BINS=BINS, CAPACITY=CAPACITY, **launch,
    )  # fmt: skip
    _settle[(num_rows,)](
        *asked, frames, numbers, masses, listed, places, cuts.floors, cuts.lasts, cuts.bounds, *sizes,
        SURVEYED=tile, TILE=LIST_TILE, WIDTH=width, CAPACITY=CAPACITY, STAGES=STAGES,
        **launch | {"num_warps": LIST_WARPS},
    )  # fmt: skip
    return cuts
