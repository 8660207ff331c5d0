"""From what was asked to an admitted request: check, render, tokenize, check again.

Knows the tokenizer and what the cluster serves; nothing of pods' loads.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from pagewire.core.errors import InvalidRequest, Unavailable
from pagewire.core.fingerprint import Fingerprint
from pagewire.router.request import Ask, Request
from pagewire.router.validation import Limits, check, check_model, finish, prompt_field, too_long
from pagewire.text.tokenizer import Tokenizer

SEED_BITS = 63


class Intake:
    """Turns asks into requests. `fingerprint` says what is served; None before the first pod was linked."""

    def __init__(
        self, tokenizer: Tokenizer, fingerprint: Callable[[], Fingerprint | None], *, max_timeout_s: float
    ) -> None:
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._max_timeout_s = max_timeout_s

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
        )

    def check(self, ask: Ask) -> Limits:
        """Refuse what is wrong on its face, before anything is allocated; returns the limits it was checked against."""
        limits = self.limits()
        check(ask, limits)
        return limits

    def check_model(self, model: str) -> None:
        """Raise UnknownModel unless `model` is served."""
        check_model(model, self.limits())

    async def accept(self, ask: Ask, limits: Limits) -> Request:
        """Return the request that a checked ask makes; raises InvalidRequest when it does not fit the model."""
        prompt = ask.token_ids
        if prompt is None:
            prompt = await self._tokenize(ask, limits)
        echo = None
        if ask.echo:
            echo = self._tokenizer.decode(list(prompt)) if ask.text is None else ask.text
        bad_words = await self._bad_words(ask)
        return finish(ask, prompt, limits, seed=secrets.randbits(SEED_BITS), bad_words=bad_words, echo=echo)

    async def _bad_words(self, ask: Ask) -> list[tuple[int, ...]]:
        """Return the tokens of the bad words: a text's at the beginning of a word and within one."""
        found: dict[tuple[int, ...], None] = {}
        for word in ask.bad_words:
            if not isinstance(word, str):
                found[word] = None
                continue
            for text in (word.lstrip(), " " + word.lstrip()) if word.strip() else (word,):
                found[tuple(await self._tokenizer.encode(text, add_special_tokens=False))] = None
        return list(found)

    async def _tokenize(self, ask: Ask, limits: Limits) -> tuple[int, ...]:
        field = prompt_field(ask)
        text = ask.text if ask.text is not None else self._tokenizer.render_chat(ask.messages or ())
        least = self._tokenizer.min_tokens(text)
        if least >= limits.max_model_len:
            raise too_long(least, limits, field, at_least=True)
        try:
            # A template writes the special tokens itself.
            return tuple(await self._tokenizer.encode(text, add_special_tokens=ask.text is not None))
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{field} is not valid Unicode: {error.reason}", field=field) from error
