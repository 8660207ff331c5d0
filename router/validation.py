"""The one check of what callers ask, whichever way they ask it.

Pure. `check` needs no tokenizer and comes before anything is allocated; `finish` adds what is only known once the
prompt's tokens are. Every refusal names the field and the bound.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Concatenate, ParamSpec, TypeVar

from pagewire.core import sampling as sampling_bounds
from pagewire.core.errors import ContextTooLong, InvalidRequest, UnknownModel
from pagewire.core.sampling import MAX_STOP_STRING_CHARS, SamplingParams, TokenSequence
from pagewire.core.sequence_spec import MAX_PRIORITY
from pagewire.router.ask import Ask
from pagewire.router.request import Request

ROLES = ("system", "developer", "user", "assistant", "tool")
DEFAULT_MAX_TOKENS = 16  # OpenAI's default for completions
OPEN_ANSWER_TOKENS = 512  # what a chat's answer is taken for that has no bound of its own
MAX_SALT_CHARS = 1024
MAX_REQUEST_ID_CHARS = 128
MAX_STREAM_INTERVAL = 1024
MAX_NAMES_TOLD = 16
MAX_PROMPT_SCORES = 1 << 20  # about 30 bytes each in an answer, whose bound is 64 MiB
MAX_BAD_WORDS = sampling_bounds.MAX_BAD_WORDS // 2  # a text may be two sequences of tokens
# Fields that an ask and its sampling parameters have in common.
_ALIKE = frozenset(field.name for field in fields(Ask)) & frozenset(field.name for field in fields(SamplingParams)) - {
    "max_tokens", "seed", "bad_words",
}  # fmt: skip
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the cluster serves now; `adapters` may be named as the model too. A chat's answer that has no bound of its
    own is taken for one of `open_answer_tokens`.
    """

    model: str
    max_model_len: int
    vocab_size: int
    max_timeout_s: float
    open_answer_tokens: int = OPEN_ANSWER_TOKENS
    adapters: tuple[str, ...] = ()


def is_request_id(text: str) -> bool:
    """True when `text` may name a request in logs and headers."""
    return 1 <= len(text) <= MAX_REQUEST_ID_CHARS and text.isascii() and text.isprintable()


def checked_request_id(text: str) -> str:
    """Return `text`; raises InvalidRequest unless it may name a request."""
    if not is_request_id(text):
        raise InvalidRequest(
            f"request_id is 1 to {MAX_REQUEST_ID_CHARS} printable ASCII characters, got {len(text)}", field="request_id"
        )
    return text


def in_words(error: InvalidRequest, called: Sequence[tuple[str, str]]) -> InvalidRequest:
    """Return a refusal that names its field as the caller does, by pairs of our names and the caller's.

    Of a field that the caller has within another one, that one is named; places in it come before the whole.
    """
    word = dict(called).get(error.field)
    if word is None:
        return error
    message = error.message
    for ours, theirs in called:
        if ours.partition(".")[0] == error.field:
            message = message.replace(ours, theirs)
    return type(error)(message, field=word.partition(".")[0])


@contextlib.contextmanager
def callers_words(called: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Have what is refused within named as the caller named it: see `in_words`."""
    try:
        yield
    except InvalidRequest as error:
        raise in_words(error, called) from None


def _in_callers_words(step: Callable[Concatenate[Ask, P], T]) -> Callable[Concatenate[Ask, P], T]:
    @functools.wraps(step)
    def told(ask: Ask, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with callers_words(ask.called):
            return step(ask, *args, **kwargs)

    return told


@_in_callers_words
def check(ask: Ask, limits: Limits, *, has_to_fit: bool = True) -> None:
    """Raise InvalidRequest, or UnknownModel, on anything that is wrong without looking at the prompt's tokens.

    A prompt that is counted alone does not have to fit the model's context.
    """
    checked_request_id(ask.request_id)
    check_model(ask.model, limits)
    if ask.cache_salt is not None and not 1 <= len(ask.cache_salt) <= MAX_SALT_CHARS:
        raise InvalidRequest(
            f"cache_salt has 1 to {MAX_SALT_CHARS} characters, got {len(ask.cache_salt)}", field="cache_salt"
        )
    if not -MAX_PRIORITY <= ask.priority <= MAX_PRIORITY:
        raise InvalidRequest(
            f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, is {ask.priority}", field="priority"
        )
    if ask.stream_interval is not None and not 1 <= ask.stream_interval <= MAX_STREAM_INTERVAL:
        raise InvalidRequest(
            f"stream_interval must be between 1 and {MAX_STREAM_INTERVAL} tokens, is {ask.stream_interval}",
            field="stream_interval",
        )
    if ask.timeout_s is not None and not (math.isfinite(ask.timeout_s) and ask.timeout_s > 0):
        raise InvalidRequest(f"timeout must be positive, is {ask.timeout_s} s", field="timeout")
    _check_prompt(ask, limits)
    if has_to_fit:
        _check_fits(ask, limits)
    most = ask.truncate_prompt_tokens
    if most is not None and most != -1 and not 1 <= most <= limits.max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1 or between 1 and {limits.max_model_len}, is {most}",
            field="truncate_prompt_tokens",
        )
    if ask.truncation_side not in ("left", "right"):
        raise InvalidRequest(
            f"truncation_side is left or right, not {ask.truncation_side[:50]!r}", field="truncation_side"
        )
    bad_words = tuple(word for word in ask.bad_words if isinstance(word, str))
    known = tuple(word for word in ask.bad_words if not isinstance(word, str))
    longest = limits.max_model_len if ask.max_tokens is None else ask.max_tokens
    sampling(ask, longest, seed=0, bad_words=known).validate(limits.vocab_size)
    if len(ask.bad_words) > MAX_BAD_WORDS:
        raise InvalidRequest(f"bad_words takes at most {MAX_BAD_WORDS}, got {len(ask.bad_words)}", field="bad_words")
    for word in bad_words:
        if not 1 <= len(word) <= MAX_STOP_STRING_CHARS:
            raise InvalidRequest(
                f"a bad word has 1 to {MAX_STOP_STRING_CHARS} characters, got {len(word)}", field="bad_words"
            )
    if ask.max_tokens is not None and ask.max_tokens >= limits.max_model_len and not ask.fits_max_tokens:
        raise ContextTooLong(
            f"max_tokens {ask.max_tokens} leaves no room for a prompt",
            field="max_tokens",
            max_tokens=limits.max_model_len,
        )


def check_token_ids(field: str, tokens: tuple[int, ...], limits: Limits) -> None:
    """Raise InvalidRequest unless the model has all tokens."""
    low, high = min(tokens, default=0), max(tokens, default=0)
    if low < 0 or high >= limits.vocab_size:
        wrong = low if low < 0 else high
        raise InvalidRequest(f"token ids are 0 to {limits.vocab_size - 1}, {field} holds {wrong}", field=field)


def check_model(model: str, limits: Limits) -> None:
    """Raise UnknownModel unless `model` is the served one or an adapter of it; no name is the served one's."""
    if model and model != limits.model and model not in limits.adapters:
        raise unknown_model(model, (limits.model, *limits.adapters))


def unknown_model(name: str, known: Sequence[str]) -> UnknownModel:
    """Return the error of a name that is none of those that are `known`, of which it says some."""
    told = ", ".join(map(repr, known[:MAX_NAMES_TOLD]))
    more = f" and {len(known) - MAX_NAMES_TOLD} more" if len(known) > MAX_NAMES_TOLD else ""
    verb = "is" if len(known) == 1 else "are"
    return UnknownModel(f"model {name[:200]!r} is not served here, {told}{more} {verb}", field="model")


@_in_callers_words
def finish(
    ask: Ask,
    prompt: tuple[int, ...],
    limits: Limits,
    *,
    seed: int,
    bad_words: Sequence[tuple[int, ...]] = (),
    echo: str | None = None,
) -> Request:
    """Return the request; raises InvalidRequest when `prompt` and the answer do not fit the model's context.

    `seed` is used where the caller gave none. `bad_words` are the tokens of all of them.
    """
    field = prompt_field(ask)
    if not prompt:
        raise InvalidRequest("the prompt has no tokens, at least 1 is needed", field=field)
    room = limits.max_model_len - len(prompt)
    if room < 1:
        raise too_long(len(prompt), limits, field)
    num_choices = ask.n or 1  # each reports the prompt's
    num_scores = 0 if ask.prompt_logprobs is None else len(prompt) * (1 + ask.prompt_logprobs) * num_choices
    if num_scores > MAX_PROMPT_SCORES:
        raise InvalidRequest(
            f"{len(prompt)} prompt tokens with {ask.prompt_logprobs} alternatives each are {num_scores} log "
            f"probabilities in {num_choices} answers, at most {MAX_PROMPT_SCORES} are reported",
            field="prompt_logprobs",
        )
    if ask.max_tokens is not None:
        max_tokens = min(ask.max_tokens, room) if ask.fits_max_tokens else ask.max_tokens
        if max_tokens > room:
            raise ContextTooLong(
                f"the prompt has {len(prompt)}, which leaves {room}; max_tokens is {max_tokens}",
                field="max_tokens",
                max_tokens=limits.max_model_len,
            )
    else:
        max_tokens = room if ask.messages is not None else min(DEFAULT_MAX_TOKENS, room)
    params = sampling(ask, max_tokens, seed=seed, bad_words=bad_words)
    params.validate(limits.vocab_size)
    timeout_s = min(ask.timeout_s or limits.max_timeout_s, limits.max_timeout_s)
    return Request(
        request_id=ask.request_id,
        tenant=ask.tenant,
        prompt=prompt,
        sampling=params,
        cache_salt=ask.cache_salt or "",
        timeout_s=timeout_s,
        echo=echo,
        is_score=ask.is_score,
        priority=max(ask.priority, ask.tenant.priority),
        text_rules=ask.text_rules,
        explain=ask.explain,
        adapter=ask.model if ask.model in limits.adapters else "",
    )


def sampling(ask: Ask, max_tokens: int, *, seed: int, bad_words: Sequence[tuple[int, ...]]) -> SamplingParams:
    """Return the sampling parameters that `ask` names; what it leaves unset has `SamplingParams`' default, OpenAI's."""
    return SamplingParams(
        max_tokens=max_tokens,
        seed=seed if ask.seed is None else ask.seed,
        bad_words=tuple([TokenSequence(tokens=word) for word in bad_words]),
        **{name: value for name in _ALIKE if (value := getattr(ask, name)) is not None},
    )


def truncated(ask: Ask, tokens: tuple[int, ...], limits: Limits) -> tuple[int, ...]:
    """Return as much of a prompt as the ask wants kept."""
    most = ask.truncate_prompt_tokens
    if most is None:
        return tokens
    if most == -1:
        most = limits.max_model_len - _reserved(ask, limits)  # not positive: such an answer is refused behind this
    return tokens[-most:] if ask.truncation_side == "left" else tokens[:most]


def _reserved(ask: Ask, limits: Limits) -> int:
    """Return how many tokens of the context are kept for the answer: as many as were asked for, else as many as one
    usually has, for which a small context gives a quarter.
    """
    if ask.max_tokens is not None:
        return ask.max_tokens
    usual = DEFAULT_MAX_TOKENS if ask.messages is None else limits.open_answer_tokens
    return max(1, min(usual, limits.max_model_len // 4))


def prompt_field(ask: Ask) -> str:
    """Return the name of the field that holds the prompt."""
    return "prompt" if ask.messages is None else "messages"


def too_long(num_tokens: int, limits: Limits, field: str, *, at_least: bool = False) -> InvalidRequest:
    """Return the error of a prompt that does not fit."""
    count = f"at least {num_tokens}" if at_least else str(num_tokens)
    return ContextTooLong(
        f"the prompt is too long with {count}, the answer takes 1 at least",
        field=field,
        max_tokens=limits.max_model_len,
    )


def _check_prompt(ask: Ask, limits: Limits) -> None:
    forms = [form for form in (ask.text, ask.token_ids, ask.messages) if form is not None]
    if not forms:
        raise InvalidRequest("prompt is missing: a text, token ids or messages", field="prompt")
    if len(forms) != 1:
        raise InvalidRequest(
            f"exactly one form of prompt is needed (text, token ids or messages), got {len(forms)}", field="prompt"
        )
    if len(forms[0]) == 0:
        raise InvalidRequest("the prompt is empty", field=prompt_field(ask))
    if ask.messages is not None:
        _check_messages(ask.messages)
    if ask.token_ids is not None:
        check_token_ids("prompt", ask.token_ids, limits)


def _check_fits(ask: Ask, limits: Limits) -> None:
    # Each message is a token at least, however a template writes it.
    if ask.messages is not None and len(ask.messages) >= limits.max_model_len:
        raise too_long(len(ask.messages), limits, "messages", at_least=True)
    is_cut = ask.truncate_prompt_tokens is not None
    if ask.token_ids is not None and not is_cut and len(ask.token_ids) >= limits.max_model_len:
        raise too_long(len(ask.token_ids), limits, "prompt")


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    for i, message in enumerate(messages):
        if message["role"] not in ROLES:
            raise InvalidRequest(
                f"messages.{i}.role is {message['role'][:50]!r}, known are {', '.join(ROLES)}", field="messages"
            )
