"""Edits of logits on the device: bias, penalties, bans and masks, bit for bit those of `logit_edits.edit`.

The order and the formulas are there, and `TorchBackend.edit_logits`, which is it, is the reference. Tokens that a
penalty is about are counted first, by atomic additions of whole numbers, whose order does not matter; then each row is
read and written once. What asks for nothing costs nothing but the copy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagewire.kernels.logit_edits import Allowed, Counted, LogitEdits, Masked, Repetition

TILE = 1024  # logits, or tokens of a list; how long lists are changes from step to step, and compiles nothing anew
WARPS = 4


@triton.jit(do_not_specialize=["number"])
def _add(logits, rows, ids, values, number, stride, TILE: tl.constexpr):
    """logits[rows[i], ids[i]] += values[i]; no pair twice."""
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = i < number
    place = logits + tl.load(rows + i, inside, other=0) * stride + tl.load(ids + i, inside, other=0)
    tl.store(place, tl.load(place, inside) + tl.load(values + i, inside), inside)


@triton.jit(do_not_specialize=["number"])
def _ban(logits, rows, ids, number, stride, TILE: tl.constexpr):
    """logits[rows[i], ids[i]] = -inf."""
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = i < number
    place = logits + tl.load(rows + i, inside, other=0) * stride + tl.load(ids + i, inside, other=0)
    tl.store(place, -float("inf"), inside)


@triton.jit(do_not_specialize=["width"])
def _tally(tokens, counts, width, vocab_size, TILE: tl.constexpr):
    """counts[r, t] = how often token t is among tokens[r] `[width]`, int32, zero before; what is not a token pads."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    token = tl.load(tokens + row * width + i, i < width, other=vocab_size)
    tl.atomic_add(counts + row * vocab_size + token, 1, token < vocab_size, sem="relaxed")


@triton.jit
def _repeat(logits, rows, counts, penalty, vocab_size, stride, TILE: tl.constexpr):
    """Divide positive logits of tokens that were there by the row's penalty, multiply negative ones."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    was_there = tl.load(counts + row * vocab_size + token, token < vocab_size, other=0) > 0
    place = logits + tl.load(rows + row) * stride + token
    x, by = tl.load(place, was_there, other=0.0), tl.load(penalty + row)
    tl.store(place, tl.where(x < 0, x * by, tl.math.div_rn(x, by)), was_there)


@triton.jit
def _count(logits, rows, counts, presence, frequency, vocab_size, stride, TILE: tl.constexpr):
    """Subtract from the logit of a token as often as it was there, and once besides."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    count = tl.load(counts + row * vocab_size + token, token < vocab_size, other=0)
    place = logits + tl.load(rows + row) * stride + token
    x = tl.load(place, count > 0, other=0.0) - tl.load(frequency + row) * count.to(tl.float32)
    tl.store(place, x - tl.load(presence + row), count > 0)


@triton.jit(do_not_specialize=["number"])
def _set_bits(bits, places, ids, number, words, TILE: tl.constexpr):
    """Set bit ids[i] % 32 of word ids[i] // 32 of row places[i]."""
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = i < number
    token = tl.load(ids + i, inside, other=0)
    bit = 1 << (token % 32).to(tl.int32)
    tl.atomic_or(bits + tl.load(places + i, inside, other=0) * words + token // 32, bit, inside, sem="relaxed")


@triton.jit
def _mask(logits, rows, bits, words, vocab_size, stride, TILE: tl.constexpr):
    """-inf for every token whose bit is not set."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = token < vocab_size
    stays = (tl.load(bits + row * words + token // 32, inside, other=0) >> (token % 32)) & 1
    tl.store(logits + tl.load(rows + row) * stride + token, -float("inf"), inside & (stays == 0))


def edit(logits: torch.Tensor, edits: LogitEdits) -> torch.Tensor:
    """Return edited logits `[n, V]` in fp32; the given ones, of any dtype, stay as they are."""
    logits = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    stride = logits.stride(0)
    if (bias := edits.bias) is not None and len(bias.ids):
        _add[_over(bias.ids)](
            logits, bias.rows, bias.ids, bias.values, len(bias.ids), stride, TILE=TILE, num_warps=WARPS
        )  # fmt: skip
    if (repetition := edits.repetition) is not None:
        _penalise(logits, repetition)
    if (counted := edits.counted) is not None:
        _penalise(logits, counted)
    for banned in edits.banned:
        if len(banned.ids):
            _ban[_over(banned.ids)](
                logits, banned.rows, banned.ids, len(banned.ids), stride, TILE=TILE, num_warps=WARPS
            )  # fmt: skip
    if (allowed := edits.allowed) is not None:
        _keep_only(logits, Masked(rows=allowed.rows, bits=_bits(allowed, logits.shape[1])))
    if (masked := edits.masked) is not None:
        _keep_only(logits, masked)
    return logits


def _penalise(logits: torch.Tensor, asked: Repetition | Counted) -> None:
    (num_rows, width), vocab_size, stride = asked.tokens.shape, logits.shape[1], logits.stride(0)
    counts = torch.zeros((num_rows, vocab_size), dtype=torch.int32, device=logits.device)
    if width:
        _tally[(num_rows, triton.cdiv(width, TILE))](
            asked.tokens.contiguous(), counts, width, vocab_size, TILE=TILE, num_warps=WARPS
        )
    grid = (num_rows, triton.cdiv(vocab_size, TILE))
    if isinstance(asked, Repetition):
        _repeat[grid](logits, asked.rows, counts, asked.penalty, vocab_size, stride, TILE=TILE, num_warps=WARPS)
    else:
        # Without fused products: count times penalty is rounded before it is subtracted, as elsewhere.
        _count[grid](
            logits, asked.rows, counts, asked.presence, asked.frequency, vocab_size, stride,
            TILE=TILE, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip


def _bits(allowed: Allowed, vocab_size: int) -> torch.Tensor:
    words = triton.cdiv(vocab_size, 32)
    bits = torch.zeros((len(allowed.rows), words), dtype=torch.int32, device=allowed.ids.device)
    if len(allowed.ids):
        _set_bits[_over(allowed.ids)](
            bits, allowed.places, allowed.ids, len(allowed.ids), words, TILE=TILE, num_warps=WARPS
        )
    return bits


def _keep_only(logits: torch.Tensor, masked: Masked) -> None:
    vocab_size, bits = logits.shape[1], masked.bits.contiguous()
    _mask[(len(masked.rows), triton.cdiv(vocab_size, TILE))](
        logits, masked.rows, bits, bits.shape[1], vocab_size, logits.stride(0), TILE=TILE, num_warps=WARPS
    )


def _over(items: torch.Tensor) -> tuple[int]:
    """Return the grid over a list."""
    return (triton.cdiv(len(items), TILE),)
