"""Stateless sampling: a token is a pure function of (logits, seed, sequence index, position).

Gumbel-max: the token with the largest logit / temperature + noise, where the noise of a token id is a hash of
(seed, index, position, id). Filters come after the temperature, in transformers' order: top-k, top-p, min-p, typical,
each over what the one before left. All rows at once, and a filter only for those that ask. Knows no generator and no
state. Invariant: no row's result depends on its neighbours, to the last bit: sums run along a row, one after another
(`cumsum`), never in an order that the shape of the batch decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from pagewire.kernels.sampling_rows import SamplingRows

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_TILE_BYTES = 1 << 21  # of float64 logits: what is done to them stays in a core's cache
_UNIFORM_BITS = 52  # the widest for which (2^bits - 1/2) / 2^bits is still below 1 in float64


Largest = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
DrawRows = Callable[[torch.Tensor, Sequence[int], SamplingRows], list[int]]


def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest of each row `[n, V]` and where it is, the first of equals: `[n]` each.

    NaN where a row has one.
    """
    best = logits.max(dim=-1)
    return best.values, best.indices


def sample(
    logits: torch.Tensor, rows: SamplingRows, find_largest: Largest = largest, draw_rows: DrawRows | None = None
) -> list[int]:
    """Return a token for each row of logits `[n, V]`, where -inf is never chosen; see `Backend.sample`.

    `find_largest` does what `largest` does, `draw_rows` what `draw_by_tiles` does.
    """
    best, likeliest = find_largest(logits)  # the token answers greedy rows, its logit shows a broken row
    for row, value in enumerate(best.tolist()):
        if not math.isfinite(value):
            raise ValueError(f"row {row} of the logits has no finite maximum")
    tokens: list[int] = likeliest.tolist()
    drawing = [
        row
        for row, (temperature, top_k) in enumerate(zip(rows.temperature, rows.top_k, strict=True))
        if temperature > 0.0 and top_k != 1
    ]
    if not drawing:
        return tokens
    for row, token in zip(drawing, (draw_rows or draw_by_tiles)(logits, drawing, rows.take(drawing)), strict=True):
        tokens[row] = token
    return tokens


def draw_by_tiles(logits: torch.Tensor, places: Sequence[int], rows: SamplingRows) -> list[int]:
    """Return a token for each of some rows of logits `[n, V]`: those at `places`, drawn as `rows` says."""
    tokens: list[int] = []
    at_once = max(1, _TILE_BYTES // (8 * logits.shape[1])) if logits.device.type == "cpu" else max(1, len(places))
    for start in range(0, len(places), at_once):
        tile = range(start, min(len(places), start + at_once))
        at = [places[row] for row in tile]
        some = logits if len(at) == logits.shape[0] else logits[torch.tensor(at, device=logits.device)]
        tokens += draw(some, rows.take(tile)).tolist()
    return tokens


def draw(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Return a token id for each row of logits `[r, V]`: `[r]`."""
    values, ids = keep(logits.double() / _column(rows.temperature, logits.device), rows)  # [r, W]
    keys = keys_of(rows, logits.device)[:, None]
    scores = _noise(keys, ids).add_(values)
    return ids.gather(1, scores.argmax(dim=-1, keepdim=True))[:, 0]


def keep(scaled: torch.Tensor, rows: SamplingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the filters leave of logits `[r, V]` over their temperature, and the token ids: `[r, W]` each.

    What is left out is -inf, or not there at all: W is what the row with most left needs, V at most.
    """
    values, vocab_size = scaled, scaled.shape[1]
    filters = any(rows.min_p) or min(rows.top_p) < 1.0 or min(rows.typical_p) < 1.0
    asked = [row for row, top_k in enumerate(rows.top_k) if 0 < top_k < vocab_size]
    if asked:
        top_k = [rows.top_k[row] for row in asked]
        values = _replace(values, asked, _top_k(values[asked], top_k))
    ids = torch.arange(vocab_size, device=scaled.device).expand_as(values)
    if asked:
        values, ids = _compact(values, ids)
    asked = [row for row, top_p in enumerate(rows.top_p) if top_p < 1.0]
    if asked:
        bound = _column([rows.top_p[row] for row in asked], scaled.device)
        kept, order = _top_p(values[asked], bound)
        values, ids = _replace(values, asked, kept), _replace(ids, asked, ids[asked].gather(1, order))
    if any(rows.min_p):
        least = _column(rows.min_p, scaled.device).log()  # -inf where it is off
        values = values.masked_fill(values < values.amax(dim=-1, keepdim=True) + least, -torch.inf)
    asked = [row for row, typical_p in enumerate(rows.typical_p) if typical_p < 1.0]
    if asked:
        mass = _column([rows.typical_p[row] for row in asked], scaled.device)
        values = _replace(values, asked, _typical(values[asked], mass))
    return _compact(values, ids) if filters else (values, ids)


def _top_k(values: torch.Tensor, top_k: list[int]) -> torch.Tensor:
    # Ties with the last stay, whatever order topk gives them.
    best = values.topk(max(top_k), dim=-1).values
    last = best.gather(1, torch.tensor(top_k, device=values.device)[:, None] - 1)  # [a, 1]
    return values.masked_fill(values < last, -torch.inf)


def _compact(values: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the columns that are left, in the order of their ids, padded with -inf; as they are where it is most."""
    left = values > -torch.inf
    counts = left.sum(dim=-1)  # [r]
    width = int(counts.max())
    if 2 * width > values.shape[1]:
        return values, ids
    row, column = left.nonzero(as_tuple=True)
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(dim=0) - counts)[row]
    fewer = values.new_full((values.shape[0], width), -torch.inf)
    fewer_ids = ids.new_zeros((values.shape[0], width))
    fewer[row, place], fewer_ids[row, place] = values[row, column], ids[row, column]
    return fewer, fewer_ids


def _top_p(values: torch.Tensor, top_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values sorted, without those behind the bound `[a, 1]`, and where each was."""
    values, order = values.sort(dim=-1, descending=True, stable=True)  # equal logits keep the order of their ids
    weights = (values - values[:, :1]).exp()
    total = weights.cumsum(dim=-1)
    before = total - weights
    behind = before >= top_p * total[:, -1:]  # the one that crosses the bound stays
    behind[:, 0] = False
    return values.masked_fill(behind, -torch.inf), order


def _typical(values: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Return the values whose surprise is nearest the expected one, up to a mass `[a, 1]` (Meister et al., 2022)."""
    shifted = values - values.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    total = weights.cumsum(dim=-1)[:, -1:]
    probabilities, surprise = weights / total, total.log() - shifted  # inf for what was left out
    entropy = (probabilities * surprise).nan_to_num(0.0).cumsum(dim=-1)[:, -1:]
    distance, order = (surprise - entropy).abs().sort(dim=-1, stable=True)
    reached = probabilities.gather(1, order).cumsum(dim=-1)
    last = (reached < mass).sum(dim=-1, keepdim=True).clamp(max=values.shape[1] - 1)
    furthest = distance.gather(1, last)
    return values.masked_fill((surprise - entropy).abs() > furthest, -torch.inf)


def _replace(whole: torch.Tensor, rows: list[int], part: torch.Tensor) -> torch.Tensor:
    if len(rows) == whole.shape[0]:
        return part
    return whole.index_copy(0, torch.tensor(rows, device=whole.device), part)


def _column(values: list[float] | tuple[float, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)[:, None]


def gumbel(seed: int, index: int, position: int, ids: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise for token ids `[n]` int64: `[n]` float64, finite."""
    return _noise(_key(*(torch.tensor([each], device=ids.device) for each in (seed, index, position))), ids)


def keys_of(rows: SamplingRows, device: torch.device) -> torch.Tensor:
    """Return what the noise of each row follows from: `[r]` int64."""
    seed, index, position = torch.tensor([rows.seed, rows.index, rows.position], device=device)  # [r] int64 each
    return _key(seed, index, position)


def _key(seed: torch.Tensor, index: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    key = _mix(seed + _signed(_GOLDEN))
    key = _mix(key + index + _signed(_GOLDEN))
    return _mix(key + position + _signed(_GOLDEN))


def _noise(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    bits = _mix(keys + (ids + 1) * _signed(_GOLDEN))  # int64, wrapping
    bits &= (1 << _UNIFORM_BITS) - 1
    uniform = bits.double().add_(0.5).mul_(2.0**-_UNIFORM_BITS)  # in (0, 1)
    return uniform.log_().neg_().log_().neg_()


def _mix(value: torch.Tensor) -> torch.Tensor:
    # splitmix64's finaliser, in place; int64 products wrap, and a shift to the right must not copy the sign.
    value ^= _shift_right(value, 30)
    value *= _signed(_MIX_1)
    value ^= _shift_right(value, 27)
    value *= _signed(_MIX_2)
    value ^= _shift_right(value, 31)
    return value


def _shift_right(value: torch.Tensor, bits: int) -> torch.Tensor:
    shifted = value >> bits
    shifted &= (1 << (64 - bits)) - 1
    return shifted


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
