"""From what sequences ask to the edits of a batch's logits: a fold over each one's prompt and output, as tensors.

Stateless but for memory of what parameters, prompts and outputs are as arrays, so that a step handles new tokens only.
All is put together on the host and brought to the device whole. Knows no logits; what an edit does is in
`kernels/logit_edits.py`. Invariant: a row's edits depend on its own sequence alone, so any pod makes the same.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pagewire.core.sampling import SamplingParams
from pagewire.engine.grammars import Grammars, Guided
from pagewire.engine.step import Draw, name_of
from pagewire.engine.upload import upload
from pagewire.kernels.logit_edits import Allowed, Banned, Bias, Counted, LogitEdits, Masked, Repetition

MEMORY = 256  # requests whose arrays are kept
_ANY, _NONE = -1, -2  # in place of a token: matches every token, matches none

Ids = NDArray[np.int64]
Asking = Sequence[tuple[int, str, Draw]]
"""Rows that ask for something, their sequences' names and their draws."""

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


class _Outputs:
    """Outputs as arrays, by the sequence's name; of one that went on, only what is new is written."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[tuple[int, ...], Ids]] = OrderedDict()

    def get(self, name: str, output: tuple[int, ...]) -> Ids:
        """Return an output `[n]`; it stands until the next call with this name."""
        known, array = self._known.pop(name, ((), _ids(())))
        # A beam goes on as another did, and a name may be used again.
        start = len(known) if output[: len(known)] == known else 0
        if len(output) > len(array):
            array = np.concatenate((array[:start], np.empty(2 * len(output) - start, dtype=np.int64)))
        array[start : len(output)] = output[start:]
        self._known[name] = (output, array)
        if len(self._known) > MEMORY:
            self._known.popitem(last=False)
        return array[: len(output)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lists:
    """The token lists of one request's parameters."""

    bias_ids: Ids  # [b]
    biases: NDArray[np.float32]  # [b]
    allowed: Ids  # [a]
    prefixes: Ids  # [w, P], bad words without their last token, padded in front with _ANY
    lasts: Ids  # [w]
    ends: Ids  # [e], the tokens that would end the sequence


class EditBuilder:
    """Makes the edits of batches. `eos_token_ids` end a sequence that does not ignore them."""

    def __init__(self, eos_token_ids: Set[int], device: torch.device, grammars: Grammars | None = None) -> None:
        self._eos_token_ids = eos_token_ids
        self._grammars = grammars
        self._device = device
        self._lists: _Memory[SamplingParams, _Lists] = _Memory(self._make_lists)
        self._prompts: _Memory[tuple[int, ...], Ids] = _Memory(_ids)
        self._outputs = _Outputs()

    def build(self, draws: dict[str, Draw], vocab_size: int) -> LogitEdits | None:
        """Return the edits of the draws' logits, row by row; None when nobody asks for any."""
        asking = [(row, name, draw) for row, (name, draw) in enumerate(draws.items()) if draw.sampling.edits_logits]
        if not asking:
            return None

        def those(ask: Callable[[SamplingParams], object]) -> Asking:
            return [each for each in asking if ask(each[2].sampling)]

        masked, ended = self._masked(those(lambda sampling: sampling.grammar is not None))
        early = [each for each in asking if each[2].position < each[2].sampling.min_tokens and each[0] not in ended]
        return LogitEdits(
            bias=self._bias(those(lambda sampling: sampling.logit_bias)),
            repetition=self._repetition(those(lambda sampling: sampling.repetition_penalty != 1.0), vocab_size),
            counted=self._counted(
                those(lambda sampling: sampling.presence_penalty or sampling.frequency_penalty), vocab_size
            ),
            banned=(*self._bad_words(those(lambda sampling: sampling.bad_words)), *self._ends(early, vocab_size)),
            allowed=self._allowed(those(lambda sampling: sampling.allowed_token_ids)),
            masked=masked,
        )

    def _bias(self, asking: Asking) -> Bias | None:
        if not asking:
            return None
        lists = [self._lists.get(draw.sampling) for _, _, draw in asking]
        return Bias(
            rows=self._there(_spread(_rows(asking), [each.bias_ids for each in lists])),
            ids=self._there(np.concatenate([each.bias_ids for each in lists])),
            values=self._there(np.concatenate([each.biases for each in lists])),
        )

    def _repetition(self, asking: Asking, vocab_size: int) -> Repetition | None:
        if not asking:
            return None
        tokens = [(self._prompts.get(draw.prompt), self._outputs.get(name, draw.output)) for _, name, draw in asking]
        return Repetition(
            rows=self._there(_rows(asking)),
            penalty=self._there(_floats([draw.sampling.repetition_penalty for _, _, draw in asking])),
            tokens=self._there(_padded(tokens, vocab_size)),
        )

    def _counted(self, asking: Asking, vocab_size: int) -> Counted | None:
        if not asking:
            return None
        tokens = [(self._outputs.get(name, draw.output),) for _, name, draw in asking]
        return Counted(
            rows=self._there(_rows(asking)),
            presence=self._there(_floats([draw.sampling.presence_penalty for _, _, draw in asking])),
            frequency=self._there(_floats([draw.sampling.frequency_penalty for _, _, draw in asking])),
            tokens=self._there(_padded(tokens, vocab_size)),
        )

    def _bad_words(self, asking: Asking) -> tuple[Banned, ...]:
        """Ban the last token of each word whose other tokens were the last ones."""
        if not asking:
            return ()
        lists = [self._lists.get(draw.sampling) for _, _, draw in asking]
        width = max(each.prefixes.shape[1] for each in lists)
        prefixes = _stacked([each.prefixes for each in lists], width)  # [W, P]
        tails = _ids([_tail(draw, width) for _, _, draw in asking]).reshape(len(asking), width)  # [a, P]
        places = _spread(np.arange(len(asking)), [each.lasts for each in lists])  # [W]
        complete = ((prefixes == tails[places]) | (prefixes == _ANY)).all(axis=1)
        lasts = np.concatenate([each.lasts for each in lists])
        return (Banned(rows=self._there(_rows(asking)[places][complete]), ids=self._there(lasts[complete])),)

    def _ends(self, asking: Asking, vocab_size: int) -> tuple[Banned, ...]:
        if not asking:
            return ()
        lists = [self._lists.get(draw.sampling).ends for _, _, draw in asking]
        ids, rows = np.concatenate(lists), _spread(_rows(asking), lists)
        known = ids < vocab_size
        return (Banned(rows=self._there(rows[known]), ids=self._there(ids[known])),)

    def _allowed(self, asking: Asking) -> Allowed | None:
        if not asking:
            return None
        lists = [self._lists.get(draw.sampling).allowed for _, _, draw in asking]
        return Allowed(
            rows=self._there(_rows(asking)),
            places=self._there(_spread(np.arange(len(asking)), lists)),
            ids=self._there(np.concatenate(lists)),
        )

    def _masked(self, asking: Asking) -> tuple[Masked | None, Set[int]]:
        """Return the grammars' masks, and the rows whose grammar lets nothing but an end come."""
        if not asking:
            return None, frozenset()
        assert self._grammars is not None, "an engine without grammars has refused this request"
        guided: list[Guided] = []
        for name, rows in itertools.groupby(asking, key=lambda each: name_of(each[1])):
            first, *checks = [draw for _, _, draw in rows]
            grammar, output = first.sampling.grammar, first.output
            assert grammar is not None, "who asks for a mask has one"
            drafted = checks[-1].output[len(output) :] if checks else ()
            guided.append(Guided(request_id=name, grammar=grammar, output=output, drafted=drafted))
        bits, are_complete = self._grammars.masks(guided)
        ended = {row for (row, _, _), is_complete in zip(asking, are_complete, strict=True) if is_complete}
        return Masked(rows=self._there(_rows(asking)), bits=upload(bits, self._device)), ended

    def _make_lists(self, sampling: SamplingParams) -> _Lists:
        words = [word.tokens for word in sampling.bad_words]
        width = max((len(word) - 1 for word in words), default=0)
        prefixes = [(_ANY,) * (width + 1 - len(word)) + word[:-1] for word in words]
        ends = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else sorted(self._eos_token_ids))]
        return _Lists(
            bias_ids=_ids([each.token for each in sampling.logit_bias]),
            biases=_floats([each.bias for each in sampling.logit_bias]),
            allowed=_ids(sampling.allowed_token_ids),
            prefixes=_ids(prefixes).reshape(len(words), width),
            lasts=_ids([word[-1] for word in words]),
            ends=_ids(ends),
        )

    def _there(self, array: NDArray[Any]) -> torch.Tensor:
        return upload(torch.from_numpy(array), self._device)


def _ids(values: Sequence[object]) -> Ids:
    return np.array(values, dtype=np.int64)


def _floats(values: Sequence[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def _rows(asking: Asking) -> Ids:
    return _ids([row for row, _, _ in asking])


def _spread(rows: Ids, lists: Sequence[Ids]) -> Ids:
    """Return each row as often as its list is long."""
    return np.repeat(rows, [len(each) for each in lists])


def _padded(lists: Sequence[Sequence[Ids]], value: int) -> Ids:
    """Return lists, each in parts, as rows of one array `[n, P]`, with `value` behind them."""
    padded = np.full((len(lists), max(sum(map(len, parts)) for parts in lists)), value, dtype=np.int64)
    for row, parts in zip(padded, lists, strict=True):
        at = 0
        for part in parts:
            row[at : at + len(part)] = part
            at += len(part)
    return padded


def _stacked(prefixes: Sequence[Ids], width: int) -> Ids:
    """Return the prefixes of several requests below one another `[W, P]`, with _ANY in front of shorter ones."""
    stacked = np.full((sum(map(len, prefixes)), width), _ANY, dtype=np.int64)
    at = 0
    for each in prefixes:
        stacked[at : at + len(each), width - each.shape[1] :] = each
        at += len(each)
    return stacked


def _tail(draw: Draw, length: int) -> tuple[int, ...]:
    """Return the last tokens of prompt and output, padded in front."""
    if length == 0:
        return ()
    tail = (draw.prompt[-length:] + draw.output[-length:])[-length:]
    return (_NONE,) * (length - len(tail)) + tail
