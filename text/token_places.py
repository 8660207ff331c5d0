"""Where the tokens of a text begin in it, told while it grows.

Knows a detokenizer, whose text that is; nothing of requests. All tokens that one character is made of begin where it
does; a token that is no text begins where the next one does. Invariants: how the tokens come, one by one or many at
once, changes no place; none is beyond the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence

from pagewire.text.detokenizer import Detokenizer

Fallback = Callable[[int], bytes]
"""The byte of a byte-fallback token, none of any other."""


class TokenPlaces:
    """The places of one stream of tokens, whose text has `start` characters before it."""

    def __init__(self, detokenizer: Detokenizer, fallback: Fallback, start: int = 0) -> None:
        self._detokenizer = detokenizer
        self._fallback = fallback
        self._num_out = start
        # A run of bytes is held back until it is over: what is whole in it is counted before.
        self._run = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_run = 0

    def of(self, tokens: Iterable[int]) -> list[int]:
        """Take the next tokens, and return where each begins."""
        found = []
        for token in tokens:
            found.append(self._num_out + self._num_run)
            self._num_run += len(self._run.decode(self._fallback(token)))
            if piece := self._detokenizer.push(token):
                self._num_out += len(piece)
                self._run.reset()
                self._num_run = 0
        return found

    def finish(self) -> int:
        """Return where the text ends: no more tokens come."""
        return self._num_out + len(self._detokenizer.finish())


def places_within(text: str, tokens: Sequence[int], places: TokenPlaces) -> list[int]:
    """Return where tokens begin that were made of `text`, or it of them, by the `places` of a stream.

    What a tokenizer puts before a text, a token that begins every prompt, is not in it, and begins where the text does.
    """
    found = places.of(tokens)
    before = places.finish() - len(text)
    return [max(0, place - before) for place in found]
