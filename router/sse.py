"""An answer's events as bytes: what is the same for every token of a stream is written once.

Knows server-sent events and `Answer`; nothing of pods or sockets. Invariant: the bytes of a chunk are those of
`Answer.chunk`, whichever way they were made; and an event is one line, whatever its reader takes for the end of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import Any

from pagewire.router.answers import Answer
from pagewire.router.events import Chunk

DONE = b"data: [DONE]\n\n"
# Stands for the text in the event that all others are cut from; no answer's head holds it by chance.
MARK = "\x00text\x00"
# Lines end at CR and LF, which JSON escapes; for clients that split decoded text, as httpx does, at these too.
LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}


def event(body: dict[str, Any]) -> bytes:
    """Return one event."""
    return b"data: " + _line(json.dumps(body, ensure_ascii=False, separators=(",", ":"))) + b"\n\n"


def events(bodies: Iterable[dict[str, Any]]) -> bytes:
    """Return events that go out together."""
    return b"".join(map(event, bodies))


class Events:
    """Writes the chunks of one answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._is_text_alone = answer.is_text_alone
        self._frames: dict[int, tuple[bytes, bytes]] = {}  # by choice, what stands before a text and behind it

    def chunk(self, chunk: Chunk, usage: dict[str, Any] | None = None) -> bytes:
        """Return the events of new output; nothing where the caller would see nothing."""
        if chunk.calls or chunk.reasoning or not self._is_text_alone:
            return events(self._answer.chunk(chunk, usage))
        if not chunk.text:
            return b""
        before, behind = self._frames.get(chunk.index) or self._frame(chunk.index)
        return before + _line(encode_basestring(chunk.text)) + behind

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        whole = events(self._answer.chunk(Chunk(text=MARK, token_ids=(), index=index)))
        before, _, behind = whole.partition(json.dumps(MARK).encode())
        self._frames[index] = before, behind
        return before, behind


def _line(text: str) -> bytes:
    """Return JSON's text, which has such characters in strings only."""
    return (text if text.isascii() else text.translate(LINE_ENDS)).encode()
