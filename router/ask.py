"""What a caller asked, through whichever door: plain values, unchecked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pagewire.core.sampling import Grammar, TokenBias
from pagewire.router.tenants import ANONYMOUS, Tenant
from pagewire.router.tool_fields import Tools
from pagewire.text.text_stream import PLAIN, TextRules

CHAT, COMPLETION = "chat", "text_completion"  # OpenTelemetry's words


class Reasoning(Enum):
    """What becomes of the reasoning in a chat's answers: told apart from them, left within them, or left out."""

    APART = "apart"
    WITHIN = "within"
    LEFT_OUT = "left_out"

    @classmethod
    def of(cls, separate: bool | None, include: bool | None) -> Reasoning:
        """Return what becomes of it where a caller says whether to tell it apart, and whether to tell it then."""
        if separate is False:
            return cls.WITHIN
        return cls.LEFT_OUT if include is False else cls.APART


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How messages become a prompt; `options` are variables of the model's chat template, which has to read them, and
    `wishes` are such as count where it does.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: tuple[Mapping[str, Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    wishes: tuple[tuple[str, Any], ...] = ()


AS_USUAL = ChatOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a caller asked, unchecked. Exactly one of `text`, `token_ids` and `messages` must be set; None is unset.

    A bad word is a text or its tokens. With `echo` the prompt's text comes back too, alone where it `is_score`: what is
    drawn behind it is neither told nor counted; with `explain` why it was placed as it was. A text gets the tokenizer's
    special tokens, a chat does not, unless `add_special_tokens` says otherwise. Of a prompt, no more than
    `truncate_prompt_tokens` are kept (-1: as many as leave room), the `truncation_side` goes. Chunks after an answer's
    first token have `stream_interval` tokens at least. `traceparent` is what the caller said of a trace of its own,
    whatever that is, `correlation_id` what it calls the work that the request is part of. An answer that
    `fits_max_tokens` is cut short by the context where its tokens do not fit there: others are refused. `called` are
    fields that the caller names otherwise, and how.
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
    reasoning: Reasoning = Reasoning.APART
    text_rules: TextRules = PLAIN
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str = "left"
    max_tokens: int | None = None
    fits_max_tokens: bool = False
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
    is_score: bool = False
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
    correlation_id: str = ""
    called: tuple[tuple[str, str], ...] = ()

    @property
    def operation(self) -> str:
        """What is asked for, in OpenTelemetry's words."""
        return COMPLETION if self.messages is None else CHAT
