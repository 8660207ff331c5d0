"""What a request with tools needs to know of the model, and its answers' calls found while they grow.

Knows the tokenizer and the format in which the model writes calls. Invariants: streamed or whole, the same calls are
found; a request that is made again with its seed has the same calls by the same ids.
"""

from __future__ import annotations

import string
from array import array
from dataclasses import replace
from hashlib import blake2b

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.router.ask import Ask
from pagewire.router.events import Chunk, Ending, Finished
from pagewire.router.request import Request
from pagewire.router.tool_fields import Tools, numbered
from pagewire.text.text_stream import TextRules
from pagewire.text.tokenizer import Tokenizer
from pagewire.text.tools import grammar
from pagewire.text.tools.formats import FORMATS, ToolFormat, format_of
from pagewire.text.tools.reader import ToolReader

AUTO = "auto"
_ID_CHARS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # what some chat templates insist on


class ToolDesk:
    """The tools of one model; `format_name` is one of `FORMATS`, `auto` for what the chat template tells, or `none`."""

    def __init__(self, tokenizer: Tokenizer, format_name: str = AUTO) -> None:
        self._tokenizer = tokenizer
        template = tokenizer.tool_template
        told = format_of(template.source) if template is not None else None
        is_told = told is not None and format_name in (AUTO, told.name)  # in the template's own way, where it has one
        self._format = told if is_told else FORMATS.get(format_name)

    def prepared(self, ask: Ask) -> Ask:
        """Return `ask` as its tools want it: marks shown, calls ruled, those of its messages by the model's own ids.

        Raises UnsupportedField or InvalidRequest.
        """
        if self._format is not None and self._format.is_numbered and ask.messages is not None:
            ask = replace(ask, messages=numbered(ask.messages, self._format.call_id))
        if ask.tools is None:
            return ask
        tool_format = self._known(ask.tools)
        shown = replace(ask, text_rules=self._rules(ask, tool_format))
        if ask.tools.is_forced:
            text = self._calls(ask.tools, tool_format)
            forced = Grammar(kind=GrammarKind.LARK, text=text, field=ask.tools.words.tools)  # whose schemas it is of
            return replace(shown, grammar=forced)  # of an answer that is all calls no other grammar asks anything
        if ask.grammar is None:
            return shown
        if tool_format.is_json:
            raise InvalidRequest(
                f"{ask.grammar.field} does not go with tools that may be called: this model writes calls as JSON "
                "without a mark, which could not be told from the answer",
                field=ask.grammar.field,
            )
        calls, ids = self._calls(ask.tools, tool_format), self._ids(tool_format)
        return replace(shown, grammar=grammar.calls_or(calls, ask.grammar, tool_format.head, ids))

    def has_heads(self, ask: Ask) -> bool:
        """True where answers to `ask` begin with what tells calls from words."""
        return ask.tools is not None and self._format is not None and bool(self._format.head)

    def finder(self, ask: Ask, request: Request) -> CallFinder | None:
        """Return what finds the calls of the answers to `ask`, None where there are none to find.

        `request` is what it was accepted as.
        """
        if ask.tools is None:
            return None
        is_either = ask.grammar is not None and not ask.tools.is_forced
        return CallFinder(ask.tools, self._known(ask.tools), request, is_either=is_either)

    def _known(self, tools: Tools) -> ToolFormat:
        if self._format is None:
            word = tools.words.tools
            raise UnsupportedField(f"how this model calls tools is not known: leave {word} out", field=word)
        return self._format

    def _calls(self, tools: Tools, tool_format: ToolFormat) -> str:
        """Return the grammar of an answer that is all calls."""
        try:
            return grammar.calls(tool_format, tools.callable, self._ids(tool_format), is_single=tools.is_single)
        except RecursionError as error:
            word = tools.words.tools
            raise InvalidRequest(f"{word} are nested too deeply", field=word) from error

    def _ids(self, tool_format: ToolFormat) -> dict[str, int]:
        """Return the special tokens of a format."""
        ids = {piece: self._tokenizer.special_id(piece) for piece in tool_format.pieces}
        return {piece: token_id for piece, token_id in ids.items() if token_id is not None}

    def _rules(self, ask: Ask, tool_format: ToolFormat) -> TextRules:
        return replace(ask.text_rules, shown=ask.text_rules.shown.union(tool_format.marks))


class CallFinder:
    """Finds the calls in the chunks of one request, whose answers are all calls or all words if each `is_either`."""

    def __init__(self, tools: Tools, tool_format: ToolFormat, request: Request, *, is_either: bool = False) -> None:
        self._tools = tools
        self._is_either = is_either
        self._format = tool_format
        self._readers: dict[int, ToolReader] = {}
        # Of all turns of a chat: each has a prompt of its own, though a seed may come again.
        turn = f"{request.sampling.seed}:".encode() + array("I", request.prompt).tobytes()
        self._key = blake2b(turn, digest_size=16).digest()

    def chunk(self, chunk: Chunk) -> Chunk:
        """Return a chunk with its words for its text, and its calls."""
        reader = self._readers.get(chunk.index)
        if reader is None:
            most = 1 if self._tools.is_single else None
            reader = self._readers[chunk.index] = ToolReader(
                self._format,
                self._tools.schemas,
                most=most,
                barred=self._tools.barred,
                is_forced=self._tools.is_forced,
                is_either=self._is_either,
            )
        ending = chunk.ending
        if ending is None:
            said = reader.push(chunk.text)
        else:
            said = reader.finish(chunk.text)
            ending = _told(ending, reader)
        calls = tuple(replace(part, id=self._id(chunk.index, part.index)) if part.name else part for part in said.calls)
        return replace(chunk, text=said.words, calls=calls, ending=ending)

    def finished(self, finished: Finished) -> Finished:
        """Return the last event with endings that know of calls."""
        readers = [self._readers.get(index) for index in range(len(finished.endings))]
        pairs = zip(finished.endings, readers, strict=True)
        endings = tuple(ending if reader is None else _told(ending, reader) for ending, reader in pairs)
        return replace(finished, endings=endings)

    def _id(self, index: int, place: int) -> str:
        number = int.from_bytes(blake2b(f"{index}.{place}".encode(), key=self._key, digest_size=8).digest())
        return "".join(_ID_CHARS[number // len(_ID_CHARS) ** k % len(_ID_CHARS)] for k in range(_ID_LENGTH))


def _told(ending: Ending, reader: ToolReader) -> Ending:
    return replace(ending, has_calls=reader.has_calls, is_within_call=reader.is_within_call)
