"""What may come next in a guided output: grammars compiled once per text, matched as a fold over the output.

Wraps llguidance and the model's tokenizer. Compiling is for a thread beside the steps (`grammar_desk.py`), masks are
for the one that steps. Invariant: a mask depends on the grammar and the output alone; what is remembered only saves
time.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par, fill_next_token_bitmask_par_with_draft_tokens

from pagewire.core.errors import InvalidRequest
from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.engine.deep_stack import on_deep_stack
from pagewire.text.closed_schema import closed

log = logging.getLogger(__name__)

MAX_COMPILED = 256
MAX_MATCHED = 256
# Below the library's own: a lexer state is about 0.35 kB, which makes 10 MB of a grammar at most, and fuel for a lexer
# is time in its first masks, 2 us a unit.
_LIMITS = LLParserLimits(
    max_lexer_states=30_000, max_grammar_size=100_000, initial_lexer_fuel=200_000, verbose_errors=False
)
_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Guided:
    """A sequence whose next token a grammar rules, and those behind each of the `drafted` ones."""

    request_id: str
    grammar: Grammar
    output: tuple[int, ...]
    drafted: tuple[int, ...] = ()


@dataclass(slots=True)
class _Match:
    """A matcher, and the output that it has consumed."""

    grammar: Grammar
    matcher: LLMatcher
    output: tuple[int, ...]


class Grammars:
    """The grammars of one model, whose tokenizer.json is read when the first one comes."""

    def __init__(self, tokenizer: Path, vocab_size: int, eos_token_ids: Set[int]) -> None:
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._loading = threading.Lock()
        self._num_named = vocab_size  # and those that the tokenizer alone names, of which the model has no row
        self._tokenizer: LLTokenizer | None = None
        self._executor: LLExecutor | None = None
        self._guard = threading.Lock()  # of what is compiled
        self._compiled: OrderedDict[tuple[GrammarKind, str], LLMatcher] = OrderedDict()
        self._matches: OrderedDict[str, _Match] = OrderedDict()  # the stepping thread's
        others = np.zeros(-(-vocab_size // 32) * 32, dtype=bool)
        others[:vocab_size] = True
        others[[token for token in eos_token_ids if token < vocab_size]] = False
        self._no_ends = torch.from_numpy(np.packbits(others, bitorder="little").view(np.int32))  # all tokens but those

    def knows(self, grammar: Grammar) -> bool:
        """True when `grammar` is compiled."""
        with self._guard:
            return (grammar.kind, grammar.text) in self._compiled

    def compile(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher at its beginning, to be copied; raises InvalidRequest for a grammar that is none."""
        key = (grammar.kind, grammar.text)
        with self._guard:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
        # The library goes from rule to rule by recursion: thousands in a row need more than a thread's usual stack.
        matcher = on_deep_stack(partial(self._made, grammar))
        with self._guard:
            self._compiled[key] = matcher
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return matcher

    def _made(self, grammar: Grammar) -> LLMatcher:
        matcher = LLMatcher(self._load(grammar), _source(grammar), log_level=0, limits=_LIMITS)
        begun = matcher
        for _ in range(2):
            # Copies share a lexer, which is built by the masks that ask for it: by the first one here, where no step
            # waits. That it went beyond the bounds shows in the one after it.
            if not begun.is_error():
                begun = matcher.deep_copy()
                begun.compute_bitmask()
        if begun.is_error():
            raise _refusal(grammar, begun)
        return matcher

    def masks(self, asking: Sequence[Guided]) -> tuple[torch.Tensor, list[bool]]:
        """Return which tokens may come next, a bit each, `[g, ceil(V / 32)]` int32, and whether nothing but an end may.

        A row for each sequence, and behind it one for each of its drafted tokens. Behind one that may not come, and
        behind an end, what is drawn is thrown away, so there everything may. Raises InvalidRequest where an output does
        not follow its grammar, or following it takes too much.
        """
        ends = list(itertools.accumulate(1 + len(each.drafted) for each in asking))
        rows = [end - 1 - len(each.drafted) for each, end in zip(asking, ends, strict=True)]
        placed = [(self._match(each), row, each) for row, each in zip(rows, asking, strict=True)]
        bits = torch.full((ends[-1], -(-self._num_named // 32)), -1, dtype=torch.int32)
        self._fill(placed, bits)
        if worn := [(row, each) for matcher, row, each in placed if matcher.is_error()]:
            placed = [(self._match(each, anew=True), row, each) for row, each in worn]
            self._fill(placed, bits)
        for matcher, _, each in placed:
            if matcher.is_error():
                del self._matches[each.request_id]
                raise _refusal(each.grammar, matcher)
        bits = bits[:, : -(-self._vocab_size // 32)].contiguous()
        return bits, ((bits & self._no_ends) == 0).all(dim=-1).tolist()

    def _fill(self, placed: Sequence[tuple[LLMatcher, int, Guided]], bits: torch.Tensor) -> None:
        """Write each matcher's masks from its row on."""
        assert self._executor is not None, "a matcher came from somewhere else"
        plain = [(matcher, row) for matcher, row, each in placed if not each.drafted]
        drafted = [(matcher, row, list(each.drafted)) for matcher, row, each in placed if each.drafted]
        if plain:
            fill_next_token_bitmask_par(self._executor, plain, bits.numpy())
        if drafted:
            fill_next_token_bitmask_par_with_draft_tokens(self._executor, drafted, bits.numpy())

    def forced(self, request_id: str, grammar: Grammar, output: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens that the grammar leaves no choice about, as the tokenizer would write them."""
        try:
            matcher = self._match(Guided(request_id=request_id, grammar=grammar, output=output))
        except InvalidRequest:  # it is told where its mask is asked for
            return ()
        tokens = () if matcher.is_stopped() else matcher.compute_ff_tokens()
        return tuple(itertools.takewhile(lambda token: token < self._vocab_size, tokens))

    def _match(self, asking: Guided, *, anew: bool = False) -> LLMatcher:
        """Return the matcher behind the output: the one that is there goes on, or a new one consumes it all.

        Matchers of one compilation share a lexer, and what all their outputs made it build counts against its bound:
        one that failed may be worn, which says nothing of this output. So an error counts where a matcher was made
        `anew`, of a compilation that has seen no other's.
        """
        match = self._matches.get(asking.request_id)
        if match is None or anew or match.grammar != asking.grammar or not _begins(asking.output, match.output):
            match = _Match(asking.grammar, self._begun(asking.grammar, anew=anew), ())
        new = asking.output[len(match.output) :]
        if new and not match.matcher.consume_tokens(list(new)):
            self._matches.pop(asking.request_id, None)
            if not anew:
                return self._match(asking, anew=True)
            raise _refusal(asking.grammar, match.matcher)
        match.output = asking.output
        self._matches[asking.request_id] = match
        self._matches.move_to_end(asking.request_id)
        if len(self._matches) > MAX_MATCHED:
            self._matches.popitem(last=False)
        return match.matcher

    def _begun(self, grammar: Grammar, *, anew: bool) -> LLMatcher:
        if anew:
            with self._guard:
                self._compiled.pop((grammar.kind, grammar.text), None)
        return self.compile(grammar).deep_copy()

    def _load(self, grammar: Grammar) -> LLTokenizer:
        with self._loading:
            if self._tokenizer is None:
                eos = sorted(token for token in self._eos_token_ids if token < self._vocab_size)
                if not self._path.is_file() or not eos:
                    raise InvalidRequest(
                        f"{grammar.field}: a guided output needs a model with a tokenizer.json and an "
                        "end-of-sequence token",
                        field=grammar.field,
                    )
                self._tokenizer = self._opened(grammar, eos)
                self._num_named = self._tokenizer.vocab_size
                self._executor = LLExecutor(num_threads=1)  # cores are the model's; a mask takes microseconds
            return self._tokenizer

    def _opened(self, grammar: Grammar, eos: list[int]) -> LLTokenizer:
        """Return the tokenizer with a token for each row of the model, and those of which it has no row."""
        try:
            return LLTokenizer(str(self._path), n_vocab=self._vocab_size, eos_token=eos)
        except ValueError:
            log.debug("the tokenizer is taken to name more tokens than the model has rows", exc_info=True)
        try:
            return LLTokenizer(str(self._path), eos_token=eos)
        except ValueError as error:
            text = f"{grammar.field}: the model's tokenizer is of no use for guided outputs: {error}"
            raise InvalidRequest(text, field=grammar.field) from error


def _begins(output: tuple[int, ...], with_these: tuple[int, ...]) -> bool:
    return output[: len(with_these)] == with_these


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            try:
                return LLMatcher.grammar_from_json_schema(closed(grammar.text))
            except ValueError as error:
                raise InvalidRequest(f"{grammar.field}: {error}", field=grammar.field) from error
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)


def _refusal(grammar: Grammar, matcher: LLMatcher) -> InvalidRequest:
    said = " ".join(matcher.get_error().split())[:_ERROR_CHARS]
    return InvalidRequest(f"{grammar.field}: {said}", field=grammar.field)
