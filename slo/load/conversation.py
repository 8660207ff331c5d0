"""A session's prompts as they grow: each turn's is all that was said before, answers included, and what it adds. Pure.

Invariant: one arrival and one seed make the same first prompt in every run; later ones have in them what was answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pagewire.slo.load.ask import Chat, Part, Prompt
from pagewire.slo.load.pieces import Vocabulary, tokens_of, tokens_of_piece
from pagewire.slo.workloads.arrival import Turn

SYLLABLES = tuple(consonant + vowel for consonant in "bcdfghjklmnprstvwxyz" for vowel in "aeiou")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How pieces become prompts: token ids, or words where a server takes messages (`is_chat`)."""

    piece_tokens: int
    seed: int
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    is_chat: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said in the session of arrival `number` so far: token ids, a text or messages, as its turns are."""

    wording: Wording
    number: int
    said: Prompt | None = None

    def prompt(self, turn: Turn) -> Prompt:
        """Return the whole prompt of the next turn."""
        wording = self.wording
        if turn.text:
            return self._with(self.said, self._text("user", turn.text))
        tokens = tokens_of(turn, wording.piece_tokens, seed=wording.seed, vocabulary=wording.vocabulary)
        return self._with(self.said, self._text("user", words_of(tokens)) if wording.is_chat else tokens)

    def answered(self, prompt: Prompt, turn: Turn, parts: Sequence[Part]) -> Conversation:
        """Return the conversation behind an answer; tokens that a server did not name are made up, as many."""
        if isinstance(prompt, tuple):
            named = tuple(token for part in parts for token in part.token_ids)
            said = self._with(prompt, named or self._made_up(turn, len(prompt)))
        else:
            said = self._with(prompt, self._text("assistant", "".join(part.text for part in parts)))
        return replace(self, said=said)

    def _text(self, role: str, text: str) -> str | Chat:
        return Chat(((role, text),)) if self.wording.is_chat else text

    def _with(self, before: Prompt | None, after: Prompt) -> Prompt:
        match before, after:
            case None, _:
                return after
            case Chat(), Chat():
                return Chat((*before.messages, *after.messages))
            case str(), str():
                return before + after
            case tuple(), tuple():
                return (*before, *after)
        raise TypeError("a session changes its form: an arrival does not")

    def _made_up(self, turn: Turn, length: int) -> tuple[int, ...]:
        # Negative ids are nobody's piece; no two answers have one.
        piece = -1 - (self.number << 32) - length
        return tokens_of_piece(piece, turn.output_tokens, seed=self.wording.seed, vocabulary=self.wording.vocabulary)


def words_of(tokens: Sequence[int]) -> str:
    """Return a text of one made-up word for each token: equal tokens are equal words, in any tokenizer's count."""
    return " ".join(SYLLABLES[token // 100 % 100] + SYLLABLES[token % 100] for token in tokens)
