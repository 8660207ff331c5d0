"""A request on its way through the router, and what comes back: plain values, the same for HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagewire.core.report import Report
from pagewire.core.sampling import FinishReason, Grammar, SamplingParams, TokenBias
from pagewire.core.timeline import Timeline
from pagewire.router.explanation import Explanation
from pagewire.router.tenants import ANONYMOUS, Tenant
from pagewire.router.tool_fields import Tools
from pagewire.text.text_stream import PLAIN, TextRules
from pagewire.text.tools.reader import CallPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How messages become a prompt; `options` are variables of the model's chat template."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: tuple[Mapping[str, Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


AS_USUAL = ChatOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a caller asked, unchecked. Exactly one of `text`, `token_ids` and `messages` must be set; None is unset.

    A bad word is a text or its tokens. With `echo` the prompt's text comes back too, with `explain` why it was placed
    as it was. A text gets the tokenizer's special tokens, a chat does not, unless `add_special_tokens` says otherwise.
    Of a prompt, no more than `truncate_prompt_tokens` are kept (-1: as many as leave room), the `truncation_side` goes.
    Chunks after an answer's first token have `stream_interval` tokens at least. `traceparent` is what the caller said
    of a trace of its own, whatever that is.
    """

    request_id: str
    tenant: Tenant = ANONYMOUS
    model: str = ""
    n: int | None = None
    use_beam_search: bool = False
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: Tools | None = None
    chat: ChatOptions = AS_USUAL
    text_rules: TextRules = PLAIN
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str = "left"
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    logit_bias: tuple[TokenBias, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    grammar: Grammar | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    cache_salt: str | None = None
    priority: int = 0
    stream_interval: int | None = None
    timeout_s: float | None = None
    explain: bool = False
    traceparent: str = ""

    @property
    def operation(self) -> str:
        """What is asked for, in OpenTelemetry's words."""
        return "text_completion" if self.messages is None else "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An admitted request: everything in it is within bounds. `request_id` is the caller's word, for logs only.

    `echo` is the prompt's text where the caller wants it back.
    """

    request_id: str
    tenant: Tenant = ANONYMOUS
    prompt: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: str
    timeout_s: float
    echo: str | None = None
    priority: int = 0
    text_rules: TextRules = PLAIN
    explain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a finished request; `completion_tokens` is what was streamed, of all its sequences."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A token, its bytes, and how likely the model held it; `top` are the likeliest ones, which have none of their own.

    The first token of a prompt has no log probability: None.
    """

    token_id: int
    data: bytes
    logprob: float | None
    rank: int = 0
    top: tuple[ScoredToken, ...] = ()

    @property
    def text(self) -> str:
        """The token by itself; what is no whole character reads as U+FFFD."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The first event of a request that did not fail before its first token: all that is known of its prompt.

    `echo` is its text and `prompt_logprobs` its tokens' where they were asked for. Of several prompts in one request,
    `first_index` is that of this one's first answer.
    """

    prompt: tuple[int, ...]
    echo: str | None = None
    prompt_logprobs: tuple[ScoredToken, ...] = ()
    first_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """New output of the sequence `index`. The text of a token may come later than its id, since it may still change.

    `logprobs` has an entry for each token where they were asked for. `offset` counts the characters of the tokens
    before, each read by itself. The last chunk of a sequence has its `ending`. Where tools may be called, `calls`
    are the pieces of calls in it, and `text` is the rest.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ScoredToken, ...] = ()
    offset: int = 0
    index: int = 0
    ending: Ending | None = None
    calls: tuple[CallPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a sequence ended: by the stop string `stop_text`, the stop token `stop_token_id`, or neither.

    An answer that a beam search found has the sum of its tokens' log probabilities, and its score.
    """

    finish_reason: FinishReason
    stop_text: str | None = None
    stop_token_id: int | None = None
    cumulative_logprob: float | None = None
    score: float | None = None
    has_calls: bool = False

    @property
    def word(self) -> FinishReason:
        """Why it ended, as callers are told: what was complete and has calls waits for their results."""
        is_waiting = self.has_calls and self.finish_reason is FinishReason.STOP
        return FinishReason.TOOL_CALLS if is_waiting else self.finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """What stopped it, as vLLM names it."""
        return self.stop_text if self.stop_text is not None else self.stop_token_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a request that did not fail; `report` is None when its pod went away after the last token.

    `endings` are those of its answers, by index; `longest` counts the tokens of the longest one. Of several prompts
    in one request, `first_index` is that of this one's first answer.
    """

    endings: tuple[Ending, ...]
    usage: Usage
    prompt: tuple[int, ...]
    attempts: int
    predicted_cached_tokens: int
    timelines: tuple[Timeline, ...]
    report: Report | None
    longest: int = 0
    first_index: int = 0
    echo: str | None = None
    prompt_logprobs: tuple[ScoredToken, ...] = ()
    explanation: Explanation | None = None


Event = Begun | Chunk | Finished
