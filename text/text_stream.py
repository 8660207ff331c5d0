"""One answer as it grows: tokens in, text out, until a stop string ends it.

Joins the detokenizer and the stop strings of one sequence; knows nothing of pods or attempts, so a continued answer
keeps its text stream. Invariant: the text let through is that of the consumed tokens, less what a stop rule matched,
unless that is to stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.core.sampling import FinishReason
from pagewire.text.detokenizer import Detokenizer
from pagewire.text.stop_strings import Passed, StopStrings


@dataclass(slots=True, kw_only=True)  # not frozen, as the values of `router/inbox.py` that it is made of
class Piece:
    """Text that is certain now, the tokens that were consumed, and the stop string that ended the answer, if any."""

    text: str
    tokens: tuple[int, ...]
    stop_text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """What of an answer's tokens is text: `with_special` also the special ones, without it only those `shown`.

    `with_stop` leaves in what ended the answer, a stop string or the token that a stop rule matched.
    """

    with_special: bool = False
    with_stop: bool = False
    shown: frozenset[str] = frozenset()


PLAIN = TextRules()


class TextStream:
    """The text of one sequence. No stop string is found that ends in the first `min_tokens` tokens' text."""

    def __init__(
        self, detokenizer: Detokenizer, stops: tuple[str, ...], min_tokens: int = 0, *, with_stop: bool = False
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops) if stops else None
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._with_stop = with_stop

    def push(self, tokens: tuple[int, ...], finish_reason: FinishReason | None) -> Piece:
        """Take the next tokens; `finish_reason` is set with the last ones. Tokens behind a match are not consumed."""
        spoken = self._spoken(tokens, finish_reason)
        if self._stops is None:
            text = "".join([self._detokenizer.push(token) for token in spoken])
            return Piece(text=text if finish_reason is None else text + self._detokenizer.finish(), tokens=tokens)
        text = ""
        for count, token in enumerate(spoken, start=1):
            self._num_tokens += 1
            passed = self._passed(self._stops, self._detokenizer.push(token))
            text += passed.text
            if passed.matched is not None:
                text += passed.matched if self._with_stop else ""
                return Piece(text=text, tokens=tokens[:count], stop_text=passed.matched)
        if finish_reason is None:
            return Piece(text=text, tokens=tokens)
        passed = self._passed(self._stops, self._detokenizer.finish())
        text += passed.text
        if passed.matched is None:
            text += self._stops.finish()
        elif self._with_stop:
            text += passed.matched
        return Piece(text=text, tokens=tokens, stop_text=passed.matched)

    @property
    def has_stops(self) -> bool:
        """Whether a stop string may end it, so that somebody has to look at each token's text."""
        return self._stops is not None

    def whole(self, tokens: Sequence[int], finish_reason: FinishReason) -> str:
        """Return the text of all tokens of a sequence without stop strings, of which none was pushed."""
        return self._detokenizer.whole(self._spoken(tokens, finish_reason))

    def _passed(self, stops: StopStrings, piece: str) -> Passed:
        if self._num_tokens > self._min_tokens:
            return stops.push(piece)
        return Passed(text=stops.push_free(piece))

    def _spoken(self, tokens: Sequence[int], finish_reason: FinishReason | None) -> Sequence[int]:
        # The token that a stop rule matched (the end of sequence, say) has no place in the text.
        return tokens[:-1] if finish_reason is FinishReason.STOP and not self._with_stop else tokens
