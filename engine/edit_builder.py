"""From what sequences ask to the edits of a batch's logits: a fold over each one's prompt and output, as tensors.

Stateless but for memory of what a request's parameters and prompt are as tensors. Knows no logits; what an edit does is
in `kernels/logit_edits.py`. Invariant: a row's edits depend on its own sequence alone, so any pod makes the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from pagewire.core.sampling import SamplingParams
from pagewire.engine.grammars import Grammars, Guided
from pagewire.engine.step import Draw
from pagewire.kernels.logit_edits import Allowed, Banned, Bias, Counted, LogitEdits, Masked, Repetition

MEMORY = 256  # requests whose tensors are kept
_ANY, _NONE = -1, -2  # in place of a token: matches every token, matches none

K = TypeVar("K")
V = TypeVar("V")


class _Memory(Generic[K, V]):
    """Results by the identity of what they were made of, which is kept alive with them; the oldest go first."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._known: OrderedDict[int, tuple[K, V]] = OrderedDict()

    def get(self, key: K) -> V:
        known = self._known.get(id(key))
        if known is None:
            known = self._known[id(key)] = (key, self._make(key))
            if len(self._known) > MEMORY:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(id(key))
        return known[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lists:
    """The token lists of one request's parameters."""

    bias_ids: torch.Tensor  # [b] int64
    biases: torch.Tensor  # [b] fp32
    allowed: torch.Tensor  # [a] int64
    prefixes: torch.Tensor  # [w, P] int64, bad words without their last token, padded in front with _ANY
    lasts: torch.Tensor  # [w] int64
    ends: torch.Tensor  # [e] int64, the tokens that would end the sequence


class EditBuilder:
    """Makes the edits of batches. `eos_token_ids` end a sequence that does not ignore them."""

    def __init__(self, eos_token_ids: Set[int], device: torch.device, grammars: Grammars | None = None) -> None:
        self._eos_token_ids = eos_token_ids
        self._grammars = grammars
        self._device = device
        self._lists: _Memory[SamplingParams, _Lists] = _Memory(self._make_lists)
        self._prompts: _Memory[tuple[int, ...], torch.Tensor] = _Memory(self._tensor)

    def build(self, draws: dict[str, Draw], vocab_size: int) -> LogitEdits | None:
        """Return the edits of the draws' logits, row by row; None when nobody asks for any."""
        asking = [(row, draw) for row, draw in enumerate(draws.values()) if draw.sampling.edits_logits]
        if not asking:
            return None
        masked, ended = self._masked(draws)
        return LogitEdits(
            bias=self._bias([(row, draw) for row, draw in asking if draw.sampling.logit_bias]),
            repetition=self._repetition(
                [(row, draw) for row, draw in asking if draw.sampling.repetition_penalty != 1.0], vocab_size
            ),
            counted=self._counted([(row, draw) for row, draw in asking if _counts(draw.sampling)], vocab_size),
            banned=(
                *self._bad_words([(row, draw) for row, draw in asking if draw.sampling.bad_words]),
                *self._ends(
                    [
                        (row, draw)
                        for row, draw in asking
                        if draw.position < draw.sampling.min_tokens and row not in ended
                    ],
                    vocab_size,
                ),
            ),
            allowed=self._allowed([(row, draw) for row, draw in asking if draw.sampling.allowed_token_ids]),
            masked=masked,
        )

    def _bias(self, asking: Sequence[tuple[int, Draw]]) -> Bias | None:
        if not asking:
            return None
        lists = [self._lists.get(draw.sampling) for _, draw in asking]
        return Bias(
            rows=self._spread([row for row, _ in asking], [each.bias_ids for each in lists]),
            ids=torch.cat([each.bias_ids for each in lists]),
            values=torch.cat([each.biases for each in lists]),
        )

    def _repetition(self, asking: Sequence[tuple[int, Draw]], vocab_size: int) -> Repetition | None:
        if not asking:
            return None
        tokens = [torch.cat((self._prompts.get(draw.prompt), self._tensor(draw.output))) for _, draw in asking]
        return Repetition(
            rows=self._tensor([row for row, _ in asking]),
            penalty=self._floats([draw.sampling.repetition_penalty for _, draw in asking]),
            tokens=pad_sequence(tokens, batch_first=True, padding_value=vocab_size),
        )

    def _counted(self, asking: Sequence[tuple[int, Draw]], vocab_size: int) -> Counted | None:
        if not asking:
            return None
        tokens = [self._tensor(draw.output) for _, draw in asking]
        return Counted(
            rows=self._tensor([row for row, _ in asking]),
            presence=self._floats([draw.sampling.presence_penalty for _, draw in asking]),
            frequency=self._floats([draw.sampling.frequency_penalty for _, draw in asking]),
            tokens=pad_sequence(tokens, batch_first=True, padding_value=vocab_size),
        )

    def _bad_words(self, asking: Sequence[tuple[int, Draw]]) -> tuple[Banned, ...]:
        """Ban the last token of each word whose other tokens were the last ones."""
        if not asking:
            return ()
        lists = [self._lists.get(draw.sampling) for _, draw in asking]
        width = max(each.prefixes.shape[1] for each in lists)
        prefixes = torch.cat([_widen(each.prefixes, width) for each in lists])  # [W, P]
        tails = self._tensor([_tail(draw, width) for _, draw in asking]).view(len(asking), width)  # [a, P]
        places = self._spread(range(len(asking)), [each.lasts for each in lists])  # [W]
        complete = ((prefixes == tails[places]) | (prefixes == _ANY)).all(dim=-1)
        rows = self._tensor([row for row, _ in asking])[places]
        return (Banned(rows=rows[complete], ids=torch.cat([each.lasts for each in lists])[complete]),)

    def _ends(self, asking: Sequence[tuple[int, Draw]], vocab_size: int) -> tuple[Banned, ...]:
        if not asking:
            return ()
        lists = [self._lists.get(draw.sampling) for _, draw in asking]
        ids = torch.cat([each.ends for each in lists])
        rows = self._spread([row for row, _ in asking], [each.ends for each in lists])
        known = ids < vocab_size
        return (Banned(rows=rows[known], ids=ids[known]),)

    def _allowed(self, asking: Sequence[tuple[int, Draw]]) -> Allowed | None:
        if not asking:
            return None
        lists = [self._lists.get(draw.sampling).allowed for _, draw in asking]
        return Allowed(
            rows=self._tensor([row for row, _ in asking]),
            places=self._spread(range(len(asking)), lists),
            ids=torch.cat(lists),
        )

    def _masked(self, draws: dict[str, Draw]) -> tuple[Masked | None, Set[int]]:
        """Return the grammars' masks, and the rows whose grammar lets nothing but an end come."""
        asking = [
            (row, Guided(request_id=request_id, grammar=draw.sampling.grammar, output=draw.output))
            for row, (request_id, draw) in enumerate(draws.items())
            if draw.sampling.grammar is not None
        ]
        if not asking:
            return None, frozenset()
        assert self._grammars is not None, "an engine without grammars has refused this request"
        bits, are_complete = self._grammars.masks([guided for _, guided in asking])
        rows = [row for row, _ in asking]
        ended = {row for row, is_complete in zip(rows, are_complete, strict=True) if is_complete}
        return Masked(rows=self._tensor(rows), bits=bits.to(self._device)), ended

    def _make_lists(self, sampling: SamplingParams) -> _Lists:
        words = [word.tokens for word in sampling.bad_words]
        width = max((len(word) - 1 for word in words), default=0)
        prefixes = [(_ANY,) * (width + 1 - len(word)) + word[:-1] for word in words]
        ends = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else sorted(self._eos_token_ids))]
        return _Lists(
            bias_ids=self._tensor([each.token for each in sampling.logit_bias]),
            biases=self._floats([each.bias for each in sampling.logit_bias]),
            allowed=self._tensor(sampling.allowed_token_ids),
            prefixes=self._tensor(prefixes).view(len(words), width),
            lasts=self._tensor([word[-1] for word in words]),
            ends=self._tensor(ends),
        )

    def _spread(self, rows: Sequence[int], lists: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return each row as often as its list is long."""
        return self._tensor(rows).repeat_interleave(self._tensor([len(each) for each in lists]))

    def _tensor(self, values: Sequence[object]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _floats(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)


def _counts(sampling: SamplingParams) -> bool:
    return sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


def _widen(prefixes: torch.Tensor, width: int) -> torch.Tensor:
    return functional.pad(prefixes, (width - prefixes.shape[1], 0), value=_ANY)


def _tail(draw: Draw, length: int) -> tuple[int, ...]:
    """Return the last tokens of prompt and output, padded in front."""
    if length == 0:
        return ()
    tail = (draw.prompt[-length:] + draw.output[-length:])[-length:]
    return (_NONE,) * (length - len(tail)) + tail
