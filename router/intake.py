"""From what was asked to an admitted request: check, render, tokenize, check again.

Knows one model's tokenizer and what its pods serve; nothing of pods' loads.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pagewire.core.errors import Overloaded, Unavailable
from pagewire.core.fingerprint import Fingerprint
from pagewire.router.ask import Ask
from pagewire.router.delivery import Delivery, Finder
from pagewire.router.reasoning_desk import ReasoningDesk
from pagewire.router.request import Request
from pagewire.router.tenants import ANONYMOUS, Tenant
from pagewire.router.tool_desk import AUTO, ToolDesk
from pagewire.router.validation import (
    OPEN_ANSWER_TOKENS,
    Limits,
    callers_words,
    check,
    finish,
    prompt_field,
    too_long,
    truncated,
)
from pagewire.text.tokenizer import INLINE_CHARS, Tokenizer, word_texts

SEED_BITS = 63
NONE: Mapping[str, Any] = {}

MAX_COUNTING = 16  # long prompts: one that is counted, and those that wait
MAX_COUNTING_OF_ONE = 2  # of these, of one tenant
INLINE_MESSAGES = 64
_PLAIN = ("role", "content")  # of a message: what else there may be is not counted


class Intake:
    """Turns asks into requests. `fingerprint` says what is served; None before the first pod was linked.

    `defaults` are the model's own for what a request leaves unset (`sampling_defaults.py`), but for beam searches.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        fingerprint: Callable[[], Fingerprint | None],
        *,
        max_timeout_s: float,
        open_answer_tokens: int = OPEN_ANSWER_TOKENS,
        tool_format: str = AUTO,
        reasoning_format: str = AUTO,
        defaults: Mapping[str, Any] = NONE,
    ) -> None:
        self.tools = ToolDesk(tokenizer, tool_format)
        self._reasoning = ReasoningDesk(tokenizer, reasoning_format)
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._max_timeout_s = max_timeout_s
        self._open_answer_tokens = open_answer_tokens
        self._defaults = defaults
        self._counting = asyncio.Lock()
        self._counting_for: list[str] = []  # tenants, one for each long prompt that is counted or waits

    def limits(self) -> Limits:
        """Return what is served; raises Unavailable before that is known."""
        fingerprint = self._fingerprint()
        if fingerprint is None:
            raise Unavailable("no pod has been linked yet", retry_after_s=1.0)
        return Limits(
            model=fingerprint.model_name,
            max_model_len=fingerprint.max_model_len,
            vocab_size=self._tokenizer.vocab_size,
            max_timeout_s=self._max_timeout_s,
            open_answer_tokens=self._open_answer_tokens,
            adapters=fingerprint.adapter_names,
        )

    def check(self, ask: Ask, *, has_to_fit: bool = True) -> Limits:
        """Refuse what is wrong on its face, before anything is allocated; returns the limits it was checked against."""
        limits = self.limits()
        check(ask, limits, has_to_fit=has_to_fit)
        return limits

    def is_inline(self, ask: Ask) -> bool:
        """True where the prompt of a checked ask is short enough to be encoded without a thread."""
        texts = [message["content"] for message in ask.messages or ()] if ask.text is None else [ask.text]
        fields = (item for message in ask.messages or () for item in message.items())
        is_plain = all(name in _PLAIN or value is None for name, value in fields)
        return is_plain and len(texts) <= INLINE_MESSAGES and sum(map(len, texts)) <= INLINE_CHARS

    def token_text(self, token_id: int) -> str:
        """Return what the vocabulary calls a token."""
        return self._tokenizer.token_text(token_id)

    def text_of(self, tokens: tuple[int, ...]) -> str:
        """Return the text of tokens, special ones too."""
        return self._tokenizer.decode_all(list(tokens))

    async def accept(self, ask: Ask, limits: Limits) -> Request:
        """Return the request that a checked ask makes; raises InvalidRequest when it does not fit the model."""
        ask = self._whole(self._reasoning.prepared(self.tools.prepared(ask)))
        with callers_words(ask.called):
            prompt = await self._tokenize(ask, limits)
        ask = self._reasoning.guided(ask, prompt, is_headed=self.tools.has_heads(ask))
        echo = None
        if ask.echo:
            is_whole = ask.text is not None and ask.truncate_prompt_tokens is None
            echo = ask.text if is_whole else self.text_of(prompt)
        bad_words = await self._bad_words(ask)
        return finish(ask, prompt, limits, seed=secrets.randbits(SEED_BITS), bad_words=bad_words, echo=echo)

    def delivery(self, ask: Ask, request: Request) -> Delivery:
        """Return what hands the events of an accepted ask to its caller."""
        return Delivery(self.finders(ask, request), ask.stream_interval or 1)

    def finders(self, ask: Ask, request: Request) -> tuple[Finder, ...]:
        """Return what finds reasoning, and behind it calls, in the answers to an accepted ask."""
        reasoning = self._reasoning.finder(ask, request, may_call=self.tools.has_heads(ask))
        found = (reasoning, self.tools.finder(ask, request))
        return tuple(each for each in found if each is not None)

    def _whole(self, ask: Ask) -> Ask:
        """Return the ask with what the model says of fields that it leaves unset."""
        if not self._defaults or ask.use_beam_search:
            return ask
        return replace(ask, **{name: value for name, value in self._defaults.items() if getattr(ask, name) is None})

    async def _bad_words(self, ask: Ask) -> list[tuple[int, ...]]:
        """Return the tokens of the bad words: a text's at the beginning of a word and within one."""
        found: dict[tuple[int, ...], None] = {}
        for word in ask.bad_words:
            if not isinstance(word, str):
                found[word] = None
                continue
            for text in word_texts(word):
                found[tuple(await self._tokenizer.encode(text, add_special_tokens=False))] = None
        return list(found)

    async def tokenize(self, ask: Ask) -> tuple[Limits, tuple[int, ...]]:
        """Return what is served and the tokens of a prompt, however many: what was sent bounds the work.

        Long ones are counted one at a time, so that prompts of those who want an answer have a thread. Raises
        InvalidRequest where an answer to the ask would be refused for anything else, Overloaded where too many are,
        or too many of its tenant's.
        """
        limits = self.check(ask, has_to_fit=False)
        with callers_words(ask.called):
            ask = self.tools.prepared(ask)
            if self.is_inline(ask):
                return limits, await self._tokenize(ask, limits, has_to_fit=False)
            self._check_counting(ask.tenant)
            self._counting_for.append(ask.tenant.name)
            try:
                async with self._counting:
                    return limits, await self._tokenize(ask, limits, has_to_fit=False)
            finally:
                self._counting_for.remove(ask.tenant.name)

    def _check_counting(self, tenant: Tenant) -> None:
        """Raise Overloaded where too many long prompts are counted: a tenant may have a few, who needs no key all."""
        num_own = self._counting_for.count(tenant.name)
        if num_own >= MAX_COUNTING_OF_ONE and tenant is not ANONYMOUS:
            raise Overloaded(f"{num_own} long prompts of this tenant are being counted", retry_after_s=1.0)
        if len(self._counting_for) >= MAX_COUNTING:
            raise Overloaded(f"{len(self._counting_for)} long prompts are being counted", retry_after_s=1.0)

    async def _tokenize(self, ask: Ask, limits: Limits, *, has_to_fit: bool = True) -> tuple[int, ...]:
        """Return the tokens of a prompt, cut as it asks; raises InvalidRequest where it has to fit and cannot."""
        if ask.token_ids is not None:
            return truncated(ask, ask.token_ids, limits)
        text = await self._text(ask)
        if has_to_fit and ask.truncate_prompt_tokens is None:  # nobody waits for a text that is refused anyway
            least = self._tokenizer.min_tokens(text)
            if least >= limits.max_model_len:
                raise too_long(least, limits, prompt_field(ask), at_least=True)
        # A template writes the special tokens itself.
        with_special = ask.messages is None if ask.add_special_tokens is None else ask.add_special_tokens
        tokens = await self._tokenizer.encode(text, add_special_tokens=with_special)
        return truncated(ask, tuple(tokens), limits)

    async def _text(self, ask: Ask) -> str:
        if ask.text is not None:
            return ask.text
        chat = ask.chat
        has_more = ask.tools is not None or chat.documents or chat.options or chat.wishes
        return await self._tokenizer.rendered(
            ask.messages or (),
            is_short=self.is_inline(ask) and not has_more,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            tools=ask.tools.definitions if ask.tools is not None else (),
            documents=chat.documents,
            options=dict(chat.options),
            wishes=dict(chat.wishes),
        )
