"""What the user asked of the sampler, checked once, and why a sequence ended.

Invariant: a token is a pure function of the logits, these parameters, the sequence's index, and its tokens so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Any

from pagewire.core.errors import InvalidRequest
from pagewire.core.unicode_text import require_unicode

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20
MAX_BIAS = 100.0
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 1 << 16
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_TOKENS = 64
MAX_GRAMMAR_CHARS = 1 << 16
MAX_N = 128
MAX_LENGTH_PENALTY = 10.0
# A temperature below this is a caller's 0: libraries that cannot say 0 say 1e-8 or so. vLLM draws the same line.
MIN_TEMPERATURE = 1e-5
# Beyond what anybody uses, and far within what keeps a penalised logit finite in fp32.
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0
_MAX_INT = 2**31 - 1

# What draws tokens, or has no meaning for several beams at once, and what of it asks for nothing.
_NOT_WITH_BEAMS: dict[str, tuple[object, ...]] = {
    "temperature": (1.0, 0.0),
    "top_k": (0,),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "logprobs": (None,),
    "stop": ((),),
}


class FinishReason(StrEnum):
    """Why a sequence ended, in the words of the OpenAI API.

    `TOOL_CALLS` is what routers call a STOP with calls in its text; pods see no text.
    """

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"


class EarlyStopping(StrEnum):
    """When a beam search is over, in transformers' words: True, False and "never" stand for these.

    FALSE: it has `beam_width` hypotheses, and the best live beam would score below all of them if it ended now. TRUE:
    it has `beam_width` hypotheses. NEVER: as FALSE, but with a positive `length_penalty` the live beam is taken to go
    on to `max_tokens` without loss, so that nothing better can be missed.
    """

    FALSE = "false"
    TRUE = "true"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBias:
    """What is added to the logit of one token."""

    token: int
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """Tokens in their order."""

    tokens: tuple[int, ...]


class GrammarKind(StrEnum):
    """How a grammar is written: a JSON schema, a regular expression, or Lark's EBNF."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What an output has to be, as text. `field` is what the caller's API calls it, for refusals."""

    kind: GrammarKind
    text: str
    field: str = "grammar"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop; the sampler's order of these is in `docs/sampling.md`.

    `seed` makes a token a pure function of (logits, seed, sequence index, position); the router draws one when the user
    gives none. `temperature` 0 is greedy, and so is all below `MIN_TEMPERATURE`, which becomes 0. `top_k` 0 is off, and
    so are 1 of `top_p`, `typical_p` and `repetition_penalty`, 0 of `min_p` and the other two penalties, empty
    `allowed_token_ids`. Repetition counts prompt and output, presence and frequency the output alone. `bad_words` are
    never completed. Nothing ends the sequence before `min_tokens`. `logprobs` n reports each token's log probability
    and the n likeliest tokens', `prompt_logprobs` the prompt's; None is off. `stop` strings are matched by whoever
    makes text of tokens; pods see tokens only. `n` sequences answer the prompt, each drawn with its own index.

    With `use_beam_search` nothing is drawn: the `n` best of the hypotheses that `beam_width` beams find (0: `n` beams)
    answer it, the best first, by log probability over length**`length_penalty`.
    """

    n: int = 1
    use_beam_search: bool = False
    beam_width: int = 0
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.FALSE
    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[TokenBias, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[TokenSequence, ...] = ()
    grammar: Grammar | None = None
    seed: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Take what users write for what is kept: a single `stop` string, lists, also of token ids for `bad_words`, a
        mapping of `logit_bias`, and transformers' True, False and "never" for `early_stopping`. Raises InvalidRequest
        for what is none of these. A temperature that is next to 0 becomes 0.
        """
        for name in _SEQUENCES:
            if (given := getattr(self, name)) != ():
                object.__setattr__(self, name, _sequence(name, given))
        if not isinstance(self.early_stopping, EarlyStopping):
            object.__setattr__(self, "early_stopping", _early_stopping(self.early_stopping))
        if isinstance(self.temperature, float) and 0.0 < self.temperature < MIN_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)

    @property
    def num_beams(self) -> int:
        """Beams that search for the answers, 0 where tokens are drawn."""
        return (self.beam_width or self.n) if self.use_beam_search else 0

    @property
    def num_sequences(self) -> int:
        """Sequences that run for the answers: one for each, or all beams."""
        return self.num_beams or self.n

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """True when the logits depend on which tokens there were."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def reads_tokens(self) -> bool:
        """True when the next token's logits are changed by a fold over prompt and output."""
        return self.has_penalties or bool(self.bad_words) or self.grammar is not None

    @property
    def edits_logits(self) -> bool:
        """True when the sampler changes the logits before it draws from them."""
        return self.reads_tokens or self.min_tokens > 0 or bool(self.logit_bias) or bool(self.allowed_token_ids)

    def validate(self, vocab_size: int | None = None) -> None:
        """Raise InvalidRequest naming the first field of a wrong type or out of bounds.

        A known `vocab_size` bounds token ids.
        """
        for name, kinds in _KINDS.items():
            if type(value := getattr(self, name)) not in kinds:
                _kind(name, value, kinds)
        _bound("n", self.n, 1, MAX_N)
        _bound("max_tokens", self.max_tokens, 1, _MAX_INT)
        _bound("min_tokens", self.min_tokens, 0, self.max_tokens)
        _bound("temperature", self.temperature, 0.0, 100.0)
        _bound("top_k", self.top_k, 0, _MAX_INT)
        _bound("min_p", self.min_p, 0.0, 1.0)
        _bound("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _bound("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _bound("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        _above_zero("top_p", self.top_p, 1.0)
        _above_zero("typical_p", self.typical_p, 1.0)
        _bound("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _bound(name, count, 0, MAX_LOGPROBS)
        self._validate_token_lists(_MAX_INT if vocab_size is None else vocab_size - 1)
        self._validate_stops()
        self._validate_grammar()
        self._validate_beams()

    def _validate_beams(self) -> None:
        _bound("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not self.use_beam_search:
            for name, unset in (("beam_width", 0), ("length_penalty", 1.0), ("early_stopping", EarlyStopping.FALSE)):
                if getattr(self, name) != unset:
                    raise InvalidRequest(f"{name} needs use_beam_search", field=name)
            return
        if self.beam_width:
            _bound("beam_width", self.beam_width, self.n, MAX_N)
        for name, allowed in _NOT_WITH_BEAMS.items():
            if getattr(self, name) not in allowed:
                raise InvalidRequest(f"{name} does not go with use_beam_search: leave it out", field=name)

    def _validate_token_lists(self, largest_id: int) -> None:
        _count("logit_bias", len(self.logit_bias), MAX_LOGIT_BIAS)
        for entry in self.logit_bias:
            _kind("logit_bias", entry.token, (int,))
            _kind("logit_bias", entry.bias, (int, float))
        _token_ids("logit_bias", [entry.token for entry in self.logit_bias], largest_id)
        for entry in self.logit_bias:
            _bound("logit_bias", entry.bias, -MAX_BIAS, MAX_BIAS)
        if len({entry.token for entry in self.logit_bias}) < len(self.logit_bias):
            raise InvalidRequest("logit_bias names a token twice", field="logit_bias")
        _count("allowed_token_ids", len(self.allowed_token_ids), MAX_ALLOWED_TOKEN_IDS)
        _token_ids("allowed_token_ids", self.allowed_token_ids, largest_id)
        _count("bad_words", len(self.bad_words), MAX_BAD_WORDS)
        for word in self.bad_words:
            if not 1 <= len(word.tokens) <= MAX_BAD_WORD_TOKENS:
                raise InvalidRequest(
                    f"a bad word has 1 to {MAX_BAD_WORD_TOKENS} tokens, got {len(word.tokens)}", field="bad_words"
                )
            _token_ids("bad_words", word.tokens, largest_id)
        banned = {word.tokens[0] for word in self.bad_words if len(word.tokens) == 1}
        if self.allowed_token_ids and banned.issuperset(self.allowed_token_ids):
            raise InvalidRequest("bad_words ban every one of allowed_token_ids", field="bad_words")

    def _validate_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", field="stop")
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
                raise InvalidRequest(
                    f"a stop string has 1 to {MAX_STOP_STRING_CHARS} characters, got {len(text)}", field="stop"
                )
            require_unicode(text, "a stop string", "stop")
        _count("stop_token_ids", len(self.stop_token_ids), MAX_STOP_TOKEN_IDS)
        _token_ids("stop_token_ids", self.stop_token_ids, _MAX_INT)  # one that no model has never comes

    def _validate_grammar(self) -> None:
        grammar = self.grammar
        if grammar is None:
            return
        if grammar.kind not in tuple(GrammarKind):
            kinds = ", ".join(GrammarKind)
            said = f"{grammar.field}: the kind of a grammar is one of {kinds}, not {grammar.kind!r:.100}"
            raise InvalidRequest(said, field=grammar.field)
        if not isinstance(grammar.text, str):
            said = f"{grammar.field}: a grammar is a text (a schema too: JSON), not {grammar.text!r:.100}"
            raise InvalidRequest(said, field=grammar.field)
        require_unicode(grammar.text, grammar.field, grammar.field)
        if not 1 <= len(grammar.text) <= MAX_GRAMMAR_CHARS:
            raise InvalidRequest(
                f"{grammar.field} has 1 to {MAX_GRAMMAR_CHARS} characters, got {len(grammar.text)}", field=grammar.field
            )
        if self.use_beam_search:
            raise InvalidRequest(f"{grammar.field} does not go with use_beam_search: leave it out", field=grammar.field)
        if self.ignore_eos:
            raise InvalidRequest("a guided output ends with the end-of-sequence token", field="ignore_eos")


# Of what type the fields are, and the members of those that are sequences. A bool is no number.
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("use_beam_search", "ignore_eos"), (bool,)),
    **dict.fromkeys(("n", "beam_width", "max_tokens", "min_tokens", "top_k", "seed"), (int,)),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), (int, NoneType)),
    **dict.fromkeys(("length_penalty", "temperature", "top_p", "min_p", "typical_p"), (int, float)),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), (int, float)),
    "grammar": (Grammar, NoneType),
}
_SEQUENCES: dict[str, type] = {
    "logit_bias": TokenBias,
    "allowed_token_ids": int,
    "bad_words": TokenSequence,
    "stop": str,
    "stop_token_ids": int,
}


def _kind(field: str, value: object, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
        raise InvalidRequest(f"{field} is of type {names}, not {value!r}", field=field)


def _sequence(field: str, value: object) -> tuple[object, ...]:
    if field == "stop" and isinstance(value, str):
        return (value,)
    if field == "logit_bias" and isinstance(value, Mapping):
        return tuple(TokenBias(token=token, bias=bias) for token, bias in value.items())
    members = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if field == "bad_words":
        members = tuple([_word(member) for member in members])
    for member in members:
        _kind(field, member, (_SEQUENCES[field],))
    return members


def _word(value: object) -> TokenSequence:
    """Return a bad word that is given as one, or as token ids."""
    tokens: Any = value.tokens if isinstance(value, TokenSequence) else value
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        of_text = "; LLM.bad_words makes tokens of a text" if isinstance(tokens, str) else ""
        raise InvalidRequest(f"a bad word is a list of token ids, not {value!r:.100}{of_text}", field="bad_words")
    for token in (word := tuple(tokens)):
        _kind("bad_words", token, (int,))
    return value if isinstance(value, TokenSequence) and type(tokens) is tuple else TokenSequence(tokens=word)


def _early_stopping(value: object) -> EarlyStopping:
    asked = str(value).lower()
    if asked not in set(EarlyStopping):
        raise InvalidRequest(f'early_stopping is true, false or "never", not {value!r}', field="early_stopping")
    return EarlyStopping(asked)


def _bound(field: str, value: float, low: float, high: float) -> None:
    # The comparison is written so that NaN fails it.
    if not low <= value <= high:
        raise InvalidRequest(f"{field} must be between {low} and {high}, is {value}", field=field)


def _above_zero(field: str, value: float, high: float) -> None:
    if not 0.0 < value <= high:
        raise InvalidRequest(f"{field} must be in (0, {high:g}], is {value}", field=field)


def _count(field: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(f"{field} takes at most {most}, got {count}", field=field)


def _token_ids(field: str, ids: Iterable[int], largest: int) -> None:
    wrong = next((token for token in ids if not 0 <= token <= largest), None)
    if wrong is not None:
        raise InvalidRequest(f"{field}: token ids are between 0 and {largest}, got {wrong}", field=field)
