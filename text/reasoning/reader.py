"""Tells the reasoning of one answer from the answer while the text grows.

Pure; knows text only. Invariants: how the text was cut into pieces changes neither; nothing is lost but the marks, the
white space around reasoning and the line breaks between it and the answer.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from pagewire.text.reasoning.formats import ReasoningFormat, Standing
from pagewire.text.scanner import Scanner, Wait

_BREAK = re.compile(r"[\r\n]")
_KIND = re.compile(r"[ \w-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """What new text turned out to be: reasoning, and words of the answer."""

    reasoning: str = ""
    words: str = ""


class ReasoningReader:
    """The reader of one answer, which begins at a `standing`; that is where it stands later on too.

    Once it `is_done` nothing is held back, and what comes is the answer: nobody need ask. `has_reasoned` says whether
    there was any reasoning, however little. Where it begins amid reasoning, white space that comes first is part of it.
    If it `may_call`, reasoning ends before a call too, whose marks are words.
    """

    def __init__(self, reasoning_format: ReasoningFormat, standing: Standing, *, may_call: bool = False) -> None:
        self.standing = standing
        self.is_done = False
        self.has_reasoned = False
        self.num_closing = len(reasoning_format.closing)  # pieces of what ended it
        self._header_end = reasoning_format.header_end
        self._opening = "".join(reasoning_format.opening)
        self._closing, self._bare = (
            "".join(mark).removesuffix(self._header_end) for mark in (reasoning_format.closing, reasoning_format.bare)
        )
        # What begins a call ends it too: what is words of each such mark, and of how many pieces that is.
        self._calling: dict[str, tuple[str, int]] = {}
        for call in reasoning_format.calling if may_call else ():
            pieces = (*reasoning_format.end, *call)
            self._calling["".join(pieces)] = ("".join(call), len(pieces))
        self._scanner = Scanner()
        self._reasoning = self._words = ""
        self._steps: Generator[None, None, None] = self._read()

    def push(self, piece: str) -> Thought:
        """Take the next piece of text and return what is certain now."""
        self._scanner.feed(piece)
        return self._advance()

    def finish(self) -> Thought:
        """Return what was held back: the text is over."""
        self._scanner.is_over = True
        return self._advance()

    def _advance(self) -> Thought:
        next(self._steps, None)
        thought = Thought(reasoning=self._reasoning, words=self._words)
        self._reasoning = self._words = ""
        return thought

    def _read(self) -> Wait[None]:
        if self.standing is Standing.BEFORE:
            self.standing = yield from self._begin()
        self.has_reasoned = self.standing is not Standing.BEHIND
        if self.standing is Standing.WITHIN:
            yield from self._scanner.space()
        if self.standing is not Standing.BEHIND:
            self.standing = Standing.AMID
            yield from self._reason()
        self.is_done = True
        while True:
            words, _ = yield from self._scanner.words()
            if not words:
                return
            self._words += words

    def _begin(self) -> Wait[Standing]:
        """Pass the mark that the text begins with, if it does."""
        scanner = self._scanner
        yield from scanner.space()
        is_reasoning = yield from scanner.found(self._opening)
        is_bare = self._bare and not is_reasoning and (yield from scanner.found(self._bare))
        if not is_reasoning and not (is_bare and (yield from self._header())):
            scanner.rewind()
        return Standing.WITHIN if is_reasoning else Standing.BEHIND

    def _header(self) -> Wait[bool]:
        """Pass what a mark ends with, and a kind of answer before it; say whether it does end so."""
        if not self._header_end:
            return True
        yield from self._scanner.run(_KIND)
        return (yield from self._scanner.found(self._header_end))

    def _reason(self) -> Wait[None]:
        """Read to the closing mark, and past what separates the answer from it."""
        scanner, is_over, closing = self._scanner, False, ""
        while not is_over:
            reasoning, closing = yield from scanner.words(self._closing, *self._calling)
            self._reasoning += reasoning
            if closing == self._closing and not (yield from self._header()):
                self._reasoning += scanner.unmarked()
                continue
            is_over = bool(closing) or not reasoning
        self.standing = Standing.BEHIND
        if closing in self._calling:
            begun, self.num_closing = self._calling[closing]
            self._words += begun
        yield from scanner.run(_BREAK)
