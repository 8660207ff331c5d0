"""Token ids to text, one token at a time, so that all pieces together equal the text of all ids together.

Knows a `decode` function and nothing of requests or stop strings. What may still change is held back: the last code
point while its bytes are incomplete, and a run of byte-fallback tokens until the run ends, because such a run is
decoded as a whole.

Invariant: the concatenation of everything returned, `finish()` included, is `decode(all ids)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

REPLACEMENT = "\ufffd"
# A window this long is cut back to its last readable tokens: the cost of a token stays bounded however long the text.
WINDOW = 24


class Detokenizer:
    """Decodes one token stream.

    `silent_ids` are the tokens that `decode` leaves out, `byte_ids` the byte-fallback tokens, if there are any.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        *,
        silent_ids: Set[int] = frozenset(),
        byte_ids: Set[int] = frozenset(),
    ) -> None:
        self._decode = decode
        self._silent_ids = silent_ids
        self._byte_ids = byte_ids
        self._ids: list[int] = []
        self._sent = 0  # how many characters of the window's text are out

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that is now certain, which may be empty."""
        if token_id in self._silent_ids:
            return ""
        self._ids.append(token_id)
        if token_id in self._byte_ids:
            return ""
        text = self._decode(self._ids)
        certain = len(text) - 1 if text.endswith(REPLACEMENT) else len(text)
        piece = text[self._sent : certain]
        self._sent = max(self._sent, certain)
        if len(self._ids) > WINDOW and certain == len(text):
            self._cut(text)
        return piece

    def finish(self) -> str:
        """Return what was held back."""
        piece = self._decode(self._ids)[self._sent :]
        self._ids = []
        self._sent = 0
        return piece

    def whole(self, token_ids: Iterable[int]) -> str:
        """Return the text of all tokens of a stream that none was pushed to: what the pieces would add up to."""
        return self._decode([token_id for token_id in token_ids if token_id not in self._silent_ids])

    def _cut(self, text: str) -> None:
        # The window keeps a tail that reads the same alone as in its place: a start of text may be decoded differently
        # from its middle (a stripped space), and a tail that begins inside a code point reads as garbage.
        for size in range(1, WINDOW // 2):
            tail = self._decode(self._ids[-size:])
            if tail and REPLACEMENT not in tail and text.endswith(tail):
                self._ids = self._ids[-size:]
                self._sent = len(tail)
                return
