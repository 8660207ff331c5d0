"""Reads a text that arrives in pieces, as if it were all there: whoever needs more of it waits with `yield from`.

Knows characters and JSON's outline. What was read since `mark` may yet turn out to be plain words. Invariant: where a
reader stands and what it was told depend on the characters alone, not on how they were cut into pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
Wait = Generator[None, None, T]

SPACE = " \t\r\n"
_TURN = re.compile(r'["\\{}\[\]]')  # where a JSON value changes its depth, or enters or leaves a string
_NUMBER_END = re.compile(r"[\s,}\]]")


class NotACall(Exception):
    """What was read is no tool call: it is words."""


class Scanner:
    """A text from its beginning on; `is_over` once there is no more to come."""

    def __init__(self) -> None:
        self.is_over = False
        self._text = ""
        self._at = 0
        self._mark = 0

    def feed(self, piece: str) -> None:
        """Take the next piece."""
        self._text = self._text[self._mark :] + piece
        self._at -= self._mark
        self._mark = 0

    def mark(self) -> None:
        """Settle what was read so far: it is no words."""
        self._mark = self._at

    def unmarked(self) -> str:
        """Return what was read and not settled, and settle it."""
        text = self._text[self._mark : self._at]
        self.mark()
        return text

    def rewind(self) -> None:
        """Go back to the mark."""
        self._at = self._mark

    def peek(self) -> Wait[str]:
        """Return the next character, "" at the end."""
        while self._at == len(self._text):
            if self.is_over:
                return ""
            yield
        return self._text[self._at]

    def space(self) -> Wait[str]:
        """Pass white space, and return the character behind it, "" at the end."""
        while (char := (yield from self.peek())) and char in SPACE:
            self._at += 1
        return char

    def is_next(self, literal: str) -> Wait[bool]:
        """Say whether `literal` comes next."""
        while not self.is_over and len(self._text) - self._at < len(literal):
            if not literal.startswith(self._text[self._at :]):
                return False
            yield
        return self._text.startswith(literal, self._at)

    def found(self, literal: str) -> Wait[bool]:
        """Pass `literal` if it comes next, and say whether it did."""
        is_next = yield from self.is_next(literal)
        if is_next:
            self._at += len(literal)
        return is_next

    def expect(self, literal: str) -> Wait[None]:
        """Pass `literal`; raises NotACall where something else comes."""
        if not (yield from self.found(literal)):
            raise NotACall

    def words(self, *markers: str) -> Wait[tuple[str, str]]:
        """Return settled words, and which of `markers` was found behind them and passed, "" for none.

        Call it again until one was, or until the text is over. White space before a marker belongs to it. Without
        markers everything is words.
        """
        while True:
            places = [(at, marker) for marker in markers if (at := self._text.find(marker, self._at)) >= 0]
            if places:
                at, marker = min(places)
                words = self._text[self._at : at].rstrip(SPACE)
                self._mark = self._at + len(words)
                self._at = at + len(marker)
                return words, marker
            is_all = self.is_over or not markers
            keep = len(self._text) if is_all else min(self._begin_of(marker) for marker in markers)
            words = self._text[self._at : keep]
            self._at = self._mark = keep
            if words or self.is_over:
                return words, ""
            yield

    def until(self, marker: str) -> Wait[tuple[str, bool]]:
        """Pass and return text, and whether `marker` was found behind it and passed; white space is text like any.

        Call it again until it was, or until the text is over. A marker that is cut off there is dropped.
        """
        while True:
            at = self._text.find(marker, self._at)
            if at >= 0:
                piece = self._text[self._at : at]
                self._at = at + len(marker)
                return piece, True
            keep = len(self._text) - self._size_of_begun(marker)
            piece = self._text[self._at : keep]
            self._at = len(self._text) if self.is_over else keep
            if piece or self.is_over:
                return piece, False
            yield

    def ends_within(self, *literals: str) -> Wait[bool]:
        """True where the text is over in the middle, or right before, one of `literals`: then that is passed."""
        while any(self._has_begun(literal) for literal in literals):
            if self.is_over:
                self._at = self._mark = len(self._text)
                return True
            yield
        return False

    def run(self, pattern: re.Pattern[str]) -> Wait[str]:
        """Return the longest run of characters that each match `pattern`."""
        found = ""
        while (char := (yield from self.peek())) and pattern.fullmatch(char):
            found += char
            self._at += 1
        return found

    def take(self) -> Wait[str]:
        """Pass and return the next character; raises NotACall at the end."""
        char = yield from self.peek()
        if not char:
            raise NotACall
        self._at += 1
        return char

    def json_string(self) -> Wait[str]:
        """Return the JSON string that comes next; raises NotACall where none does."""
        if (yield from self.peek()) != '"':
            raise NotACall
        value: str = json_of((yield from self.json_text()))
        return value

    def json_text(self) -> Wait[str]:
        """Return the text of the JSON value that comes next; raises NotACall where it does not end."""
        text, depth = "", Depth()
        while not depth.is_done:
            text += yield from self.json_piece(depth)
        return text

    def json_piece(self, depth: Depth) -> Wait[str]:
        """Return the next piece of a JSON value, as much as is there; raises NotACall where it does not end."""
        if not (yield from self.peek()):
            raise NotACall
        end = depth.advance(self._text, self._at)
        piece = self._text[self._at : end]
        self._at = end
        return piece

    def _begin_of(self, marker: str) -> int:
        """Return from where on the text may be white space and the beginning of `marker`."""
        rest = self._text[self._at :]
        return self._at + len(rest[: len(rest) - self._size_of_begun(marker)].rstrip(SPACE))

    def _has_begun(self, literal: str) -> bool:
        """True where all that is there is the beginning of `literal`, or nothing is."""
        rest = self._text[self._at : self._at + len(literal)]
        return len(rest) < len(literal) and literal.startswith(rest)

    def _size_of_begun(self, marker: str) -> int:
        """Return how many characters of `marker` the text so far ends with, not all of them."""
        rest = self._text[self._at :]
        return next((size for size in range(min(len(marker) - 1, len(rest)), 0, -1) if rest.endswith(marker[:size])), 0)


class Depth:
    """Where in a JSON value one is. `is_done` once the value is whole."""

    def __init__(self) -> None:
        self.is_done = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_plain = False  # a number or a word, which ends before what follows it

    def advance(self, text: str, at: int) -> int:
        """Return how far the value reaches in `text` from `at` on, where it has at least one character."""
        if not self._depth and not self._in_string and (self._is_plain or text[at] not in '{["'):
            return self._plain(text, at)
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
            turn = _TURN.search(text, at)
            if turn is None:
                return len(text)
            at = turn.end()
            self._pass(turn.group())
            if self.is_done:
                return at
        return at

    def _pass(self, char: str) -> None:
        if self._in_string:
            self._is_escaped = char == "\\"
            self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        self.is_done = not self._depth and not self._in_string

    def _plain(self, text: str, at: int) -> int:
        end = _NUMBER_END.search(text, at)
        self._is_plain, self.is_done = True, end is not None
        return end.start() if end is not None else len(text)


def json_of(text: str) -> Any:
    """Return the value of a JSON text; raises NotACall where it is none."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise NotACall from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
