"""What is done to logits before a token is drawn from them: bias, penalties, bans. All rows of a batch at once.

The order is transformers': logit bias, repetition penalty, presence and frequency penalties, then what may not be
chosen at all (bad words and early ends, all but the allowed tokens, what a grammar forbids), whose order among
themselves does not matter. Knows tensors; what asks for an edit is in `engine/edit_builder.py`. Invariant: a row that
no edit names is left as it is, and an edit that no row asks for costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """logits[rows[i], ids[i]] += values[i]; no pair twice."""

    rows: torch.Tensor  # [b] int64
    ids: torch.Tensor  # [b] int64
    values: torch.Tensor  # [b] fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """A positive logit of a token that was there is divided by the penalty, a negative one multiplied by it."""

    rows: torch.Tensor  # [r] int64
    penalty: torch.Tensor  # [r] fp32
    tokens: torch.Tensor  # [r, P] int64, of prompt and output, padded with V


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A token that is c times in the output loses c * frequency, and presence besides where c > 0."""

    rows: torch.Tensor  # [c] int64
    presence: torch.Tensor  # [c] fp32
    frequency: torch.Tensor  # [c] fp32
    tokens: torch.Tensor  # [c, P] int64, of the output, padded with V


@dataclass(frozen=True, slots=True, kw_only=True)
class Banned:
    """logits[rows[i], ids[i]] = -inf."""

    rows: torch.Tensor  # [k] int64
    ids: torch.Tensor  # [k] int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Of `rows`, only the tokens of the pairs stay: ids[i] in row rows[places[i]]."""

    rows: torch.Tensor  # [a] int64
    places: torch.Tensor  # [k] int64, 0 .. a - 1
    ids: torch.Tensor  # [k] int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """Of `rows`, only the tokens stay whose bit is set; token t is bit t % 32 of word t // 32."""

    rows: torch.Tensor  # [g] int64
    bits: torch.Tensor  # [g, ceil(V / 32)] int32


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitEdits:
    """Everything that the rows of one batch ask for; None where no row asks."""

    bias: Bias | None = None
    repetition: Repetition | None = None
    counted: Counted | None = None
    banned: tuple[Banned, ...] = ()
    allowed: Allowed | None = None
    masked: Masked | None = None

    @property
    def may_bar(self) -> bool:
        """True where a row may be left without a token to choose."""
        return bool(self.banned or self.allowed or self.masked)


Penalise = Callable[[torch.Tensor, Repetition | Counted], None]


def edit(logits: torch.Tensor, edits: LogitEdits, penalise: Penalise | None = None) -> torch.Tensor:
    """Return edited logits `[n, V]` in fp32; the given ones, of any dtype, stay as they are.

    `penalise` does to fp32 logits in place what a `Repetition` or a `Counted` asks.
    """
    logits = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if (bias := edits.bias) is not None:
        logits[bias.rows, bias.ids] += bias.values
    for asked in (edits.repetition, edits.counted):
        if asked is not None:
            (penalise or _penalise)(logits, asked)
    for banned in edits.banned:
        logits[banned.rows, banned.ids] = -torch.inf
    if (allowed := edits.allowed) is not None:
        stays = torch.zeros((len(allowed.rows), logits.shape[1]), dtype=torch.bool, device=logits.device)  # [a, V]
        stays[allowed.places, allowed.ids] = True
        logits[allowed.rows] = logits[allowed.rows].masked_fill(~stays, -torch.inf)
    if (masked := edits.masked) is not None:
        stays = _unpacked(masked.bits, logits.shape[1])
        logits[masked.rows] = logits[masked.rows].masked_fill(~stays, -torch.inf)
    return logits


def _penalise(logits: torch.Tensor, asked: Repetition | Counted) -> None:
    """Do to logits `[n, V]` what is asked, in place."""
    of_rows = logits[asked.rows]
    logits[asked.rows] = _repeated(of_rows, asked) if isinstance(asked, Repetition) else _counted(of_rows, asked)


def _repeated(logits: torch.Tensor, repetition: Repetition) -> torch.Tensor:
    padded = functional.pad(logits, (0, 1))  # [r, V + 1]: the last column takes the padding
    there = padded.gather(1, repetition.tokens)
    penalty = repetition.penalty[:, None]
    return padded.scatter(1, repetition.tokens, torch.where(there < 0, there * penalty, there / penalty))[:, :-1]


def _counted(logits: torch.Tensor, counted: Counted) -> torch.Tensor:
    counts = logits.new_zeros((logits.shape[0], logits.shape[1] + 1))  # [c, V + 1]
    counts = counts.scatter_add_(1, counted.tokens, counts.new_ones(()).expand_as(counted.tokens))[:, :-1]
    logits = logits - counted.frequency[:, None] * counts
    return logits - counted.presence[:, None] * (counts > 0)


def _unpacked(bits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    places = torch.arange(32, dtype=torch.int32, device=bits.device)
    return ((bits[:, :, None] >> places) & 1).bool().flatten(1)[:, :vocab_size]  # [g, V]
