"""Token ids to text, one token at a time, so that all pieces together equal the text of all ids together.

Knows a `decode` function and nothing of requests or stop strings. What may still change is held back: the last code
point while its bytes are incomplete, and a run of byte-fallback tokens until the run ends, because such a run is
decoded as a whole.

Invariant: the concatenation of everything returned, `finish()` included, is `decode(all ids)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Set

REPLACEMENT = "\ufffd"
# A window this long is cut back to its last readable tokens: the cost of a token stays bounded however long the text.
WINDOW = 24
CODE_POINT = 4  # bytes of the longest one; a token that is not left out has one at least


class Detokenizer:
    """Decodes one token stream.

    `silent_ids` are the tokens that are left out, and so is whatever is not below `num_ids`; `byte_ids` are the
    byte-fallback tokens, if there are any. Where `decode` joins the bytes of tokens and does nothing else, `wholes` may
    keep the text of those that are whole characters, None for the others, for any number of streams: behind a whole
    character it is a token's, whatever came before.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        *,
        silent_ids: Set[int] = frozenset(),
        byte_ids: Set[int] = frozenset(),
        wholes: dict[int, str | None] | None = None,
        num_ids: int = sys.maxsize,
    ) -> None:
        self._decode = decode
        self._silent_ids = silent_ids
        self._byte_ids = byte_ids
        self._wholes = wholes
        self._num_ids = num_ids
        self._ids: list[int] = []
        self._sent = 0  # how many characters of the window's text are out

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that is now certain, which may be empty."""
        if self._is_silent(token_id):
            return ""
        if self._wholes is not None and not self._ids and (whole := self._whole(self._wholes, token_id)) is not None:
            return whole
        self._ids.append(token_id)
        if token_id in self._byte_ids:
            return ""
        text = self._decode(self._ids)
        certain = len(text) - 1 if text.endswith(REPLACEMENT) else len(text)
        piece = text[self._sent : certain]
        self._sent = max(self._sent, certain)
        if self._wholes is not None and certain == len(text):
            self._ids, self._sent = [], 0
        elif len(self._ids) > WINDOW:
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
        return self._decode([token_id for token_id in token_ids if not self._is_silent(token_id)])

    def _is_silent(self, token_id: int) -> bool:
        return token_id in self._silent_ids or token_id >= self._num_ids

    def _whole(self, wholes: dict[int, str | None], token_id: int) -> str | None:
        if token_id not in wholes:
            text = self._decode([token_id])
            wholes[token_id] = None if REPLACEMENT in text else text
        return wholes[token_id]

    def _cut(self, text: str) -> None:
        # The window keeps a tail that reads the same alone as in its place, but for what it may begin with: garbage,
        # where that is inside a code point. A start of text may be decoded differently from its middle (a stripped
        # space), so the tail has text besides what is held; and nothing that is still open can have begun before it.
        held = len(text) - self._sent
        for size in range(CODE_POINT, WINDOW // 2):
            tail = self._decode(self._ids[-size:])
            if len(tail) > held and text.endswith(tail.lstrip(REPLACEMENT)):
                self._ids = self._ids[-size:]
                self._sent = len(tail) - held
                return
