"""Reads the tool calls out of one answer while it grows.

Pure; knows text only. Invariants: how the text was cut into pieces changes neither the words nor the calls; of a text
that holds no call nothing is lost, unless its calls are forced: then what it ends amid is a call's beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, replace

from pagewire.text.scanner import Depth, Scanner
from pagewire.text.tools.formats import ToolFormat
from pagewire.text.tools.parameters import Schema
from pagewire.text.tools.readings import Calls, calls_or_words


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """A piece of call `index`: the first one of each has its `name`; the `arguments` of all, joined, are a JSON object.

    An answer that is cut off may leave the last call's arguments incomplete. The first piece has an `id` as well, once
    somebody gave it one. `at` characters of the words that come with it stand before it.
    """

    index: int
    name: str = ""
    arguments: str = ""
    id: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What new text turned out to be: words for the user, and pieces of calls, one of each call at most."""

    words: str = ""
    calls: tuple[CallPart, ...] = ()


def joined(first: tuple[CallPart, ...], second: tuple[CallPart, ...], num_words: int) -> tuple[CallPart, ...]:
    """Return the pieces that come with two texts, the first of `num_words` characters, as those of both together."""
    behind = tuple(replace(part, at=part.at + num_words) for part in second)
    # One piece of a call at most: of the last one of `first` there may be more in `second`.
    if not (first and behind and first[-1].index == behind[0].index):
        return first + behind
    more = replace(first[-1], arguments=first[-1].arguments + behind[0].arguments)
    return (*first[:-1], more, *behind[1:])


class ToolReader:
    """The reader of one answer. `tools` are those that there are, each with the schema of its arguments; calls beyond
    `most` are dropped, those of `barred` names are words. A grammar allows nothing but calls if they are forced, calls
    or words if the text `is_either`.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        tools: Mapping[str, Schema],
        *,
        most: int | None = None,
        barred: Collection[str] = (),
        is_forced: bool = False,
        is_either: bool = False,
    ) -> None:
        self._scanner = Scanner()
        self._calls = _Calls(tools, barred)
        self._most = most
        self._is_forced = is_forced
        read = calls_or_words(tool_format.read, "".join(tool_format.opening[:1])) if is_either else tool_format.read
        self._steps: Generator[None, None, None] = read(self._scanner, self._calls)

    @property
    def has_calls(self) -> bool:
        """True once there was a call."""
        return self._calls.count > 0

    @property
    def is_within_call(self) -> bool:
        """True while the arguments of the last call, unless that is dropped, are not whole."""
        is_dropped = self._most is not None and self._calls.count > self._most
        return self.has_calls and not is_dropped and not self._calls.depth.is_done

    def push(self, piece: str) -> Said:
        """Take the next piece of text and return what is certain now."""
        self._scanner.feed(piece)
        return self._advance()

    def finish(self, piece: str = "") -> Said:
        """Take the last piece and return what is certain now and what was held back: the text is over."""
        self._scanner.feed(piece)
        self._scanner.is_over = True
        self._calls.is_mute = self._is_forced  # what looked like a call would have become one
        return self._advance()

    def _advance(self) -> Said:
        next(self._steps, None)
        words, parts = self._calls.taken()
        return Said(words=words, calls=tuple(part for part in parts if self._most is None or part.index < self._most))


class _Calls(Calls):
    """Gathers what the reading of a format says, until it is taken."""

    def __init__(self, tools: Mapping[str, Schema], barred: Collection[str]) -> None:
        self.tools = tools
        self.barred = barred
        self.count = 0
        self.depth = Depth()  # in the arguments of the last call
        self.is_mute = False
        self._words = ""
        self._parts: dict[int, CallPart] = {}

    def say(self, words: str) -> None:
        if not self.is_mute:
            self._words += words

    def begin(self, name: str) -> None:
        self._parts[self.count] = CallPart(index=self.count, name=name, at=len(self._words))
        self.count += 1
        self.depth = Depth()

    def go_on(self, arguments: str) -> None:
        if not arguments:
            return
        self.depth.advance(arguments, 0)
        index = self.count - 1
        part = self._parts.get(index, CallPart(index=index, at=len(self._words)))
        self._parts[index] = replace(part, arguments=part.arguments + arguments)

    def taken(self) -> tuple[str, tuple[CallPart, ...]]:
        """Return what was said since the last time."""
        words, parts = self._words, tuple(self._parts.values())
        self._words, self._parts = "", {}
        return words, parts
