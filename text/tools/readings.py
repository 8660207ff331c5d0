"""How each format of tool calls is read, while its text grows.

Pure; knows text only. A format without marks takes a text for calls only where it begins like one and names a tool
that there is; what only looks like a call is words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from pagewire.text.scanner import Depth, NotACall, Scanner, Wait, json_of
from pagewire.text.tools import keyed
from pagewire.text.tools.parameters import Parameters, Schema
from pagewire.text.tools.pythonic import arguments as pythonic_arguments

NAME = re.compile(r"[a-zA-Z0-9_.\-]{1,128}")
_NAME = re.compile(r"[a-zA-Z0-9_.\-]")
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[a-z]")
_ARGUMENTS = ("arguments", "parameters")
NO_ARGUMENTS = "{}"


class Calls(Protocol):
    """Who is told what a text says; `tools` are those that there are, each with the schema of its arguments, `barred`
    names of which a call is none, and `count` the calls that have begun.
    """

    tools: Mapping[str, Schema]
    barred: Collection[str]
    count: int

    def say(self, words: str) -> None:
        """These are words for the user."""
        ...

    def begin(self, name: str) -> None:
        """A call of `name` begins."""
        ...

    def go_on(self, arguments: str) -> None:
        """This is more of its arguments."""
        ...


Reading = Callable[[Scanner, Calls], Wait[None]]


@dataclass(frozen=True, slots=True)
class Section:
    """The marks of calls that stand in a section of the answer: around all of them, and around each."""

    begin: str
    call: str
    end_call: str
    end: str


# Their bars and underscores are none that a keyboard has.
DEEPSEEK = Section(
    *(
        f"<\uff5ctool\u2581{each}\uff5c>"
        for each in ("calls\u2581begin", "call\u2581begin", "call\u2581end", "calls\u2581end")
    )
)
DEEPSEEK_SEP = "<\uff5ctool\u2581sep\uff5c>"
KIMI_K2 = Section(
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"
)
KIMI_K2_SEP = "<|tool_call_argument_begin|>"
_ROLE, _CHANNEL, _MESSAGE, _END = "<|start|>assistant", "<|channel|>", "<|message|>", "<|end|>"


def hermes(scanner: Scanner, calls: Calls) -> Wait[None]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, words before and behind."""
    while (yield from _words(scanner, calls, "<tool_call>")):
        before = calls.count
        try:
            yield from scanner.space()
            yield from _json_call(scanner, calls, needs_arguments=False)
            yield from scanner.space()
        except NotACall:
            calls.say(scanner.unmarked())
        # Small models forget a brace, and the mark closes the call all the same.
        if calls.count > before and (yield from scanner.found("</tool_call>")):
            yield from scanner.space()


def mistral(scanner: Scanner, calls: Calls) -> Wait[None]:
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` once for each."""
    yield from _lists(scanner, calls, "[TOOL_CALLS]", other=_named_call)


def granite(scanner: Scanner, calls: Calls) -> Wait[None]:
    """`<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`, or `<tool_call>` before it."""
    yield from _lists(scanner, calls, "<|tool_call|>", "<tool_call>")


def llama3_json(scanner: Scanner, calls: Calls) -> Wait[None]:
    """`{"name": ..., "parameters": {...}}`, with `;` between several, from the beginning or a `<|python_tag|>` on."""
    is_call = (yield from scanner.space()) == "{"
    scanner.rewind()
    while is_call or (yield from _words(scanner, calls, "<|python_tag|>")):
        is_call = False
        try:
            while True:
                yield from scanner.space()
                yield from _json_call(scanner, calls, needs_arguments=True)
                if (yield from scanner.space()) == ";":
                    yield from scanner.expect(";")
                scanner.mark()
                if not (yield from scanner.space()):
                    break
        except NotACall:
            calls.say(scanner.unmarked())


def pythonic(scanner: Scanner, calls: Calls) -> Wait[None]:
    """`[name(argument=value, ...), ...]`, and nothing before it."""
    try:
        yield from scanner.space()
        yield from scanner.expect("[")
        while True:
            yield from scanner.space()
            name = yield from scanner.run(_NAME)
            arguments = yield from pythonic_arguments(scanner)
            _begin(scanner, calls, name, is_marked=False)
            calls.go_on(arguments)
            if (yield from scanner.space()) != ",":
                break
            yield from scanner.expect(",")
            scanner.mark()
        yield from scanner.expect("]")
        yield from scanner.space()
    except NotACall:
        calls.say(scanner.unmarked())
    yield from _words(scanner, calls)


def qwen3_coder(scanner: Scanner, calls: Calls) -> Wait[None]:
    """`<tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>`, words before and behind.

    Models forget the first mark. Then `<function=` names a tool that there is, or is words.
    """
    while marker := (yield from _words(scanner, calls, "<tool_call>", "<function=")):
        is_marked = marker == "<tool_call>"
        try:
            if is_marked:
                yield from scanner.space()
                yield from scanner.expect("<function=")
            name = yield from scanner.run(_NAME)
            yield from scanner.expect(">")
            _begin(scanner, calls, name, is_marked=is_marked)
        except NotACall:
            calls.say(scanner.unmarked())
            continue
        yield from keyed.arguments(scanner, keyed.QWEN3_CODER, Parameters(calls.tools.get(name, {})), calls.go_on)
        yield from scanner.space()
        if (yield from scanner.ends_within("</tool_call>")) or (yield from scanner.found("</tool_call>")):
            yield from scanner.space()


def deepseek(scanner: Scanner, calls: Calls) -> Wait[None]:
    """A section of calls, `name<sep>{...}`, or as older models have it "function<sep>name\\n```json\\n{...}\\n```"."""
    yield from _sections(scanner, calls, DEEPSEEK, _deepseek_name, "```")


def kimi_k2(scanner: Scanner, calls: Calls) -> Wait[None]:
    """A section of calls, each `functions.name:0`, whose numbers go on, a mark and `{...}`."""
    yield from _sections(scanner, calls, KIMI_K2, _kimi_k2_name)


def glm(scanner: Scanner, calls: Calls) -> Wait[None]:
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>`, words before and behind."""
    marks = keyed.GLM
    while (yield from _words(scanner, calls, "<tool_call>")):
        try:
            yield from scanner.space()
            name = yield from scanner.run(_NAME)
            yield from scanner.space()
            if not ((yield from scanner.is_next(marks.key)) or (yield from scanner.is_next(marks.closing))):
                raise NotACall
            _begin(scanner, calls, name, is_marked=True)
        except NotACall:
            calls.say(scanner.unmarked())
            continue
        yield from keyed.arguments(scanner, marks, Parameters(calls.tools.get(name, {})), calls.go_on)
        yield from scanner.space()


def harmony(scanner: Scanner, calls: Calls) -> Wait[None]:
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>`; `to` may come first.

    What else is said in the channel is words, and the marks around it and before the answer behind it are none.
    """
    yield from scanner.space()
    head = _ROLE if (yield from scanner.is_next("to=")) else ""  # of which the prompt had the beginning
    scanner.rewind()
    is_said = False
    while head := head or (yield from _words(scanner, calls, _ROLE, _CHANNEL, _END)):
        before = calls.count
        try:
            channel, receiver = ("", "") if head == _END else (yield from _harmony_head(scanner, head))
            if receiver.startswith("functions."):
                yield from scanner.space()
                yield from _arguments(scanner, calls, receiver.removeprefix("functions."), is_marked=True)
            elif receiver or channel not in (("", "commentary", "final") if is_said else ("commentary",)):
                raise NotACall
            else:
                scanner.mark()
                is_said = True
        except NotACall:
            calls.say(scanner.unmarked())
        if calls.count > before:
            yield from _pass(scanner, "<|call|>", _END)
        head = ""


def calls_or_words(read: Reading, opening: str) -> Reading:
    """Return the reading of a text that is all calls, as `read` reads them, if it begins with `opening`, else all
    words.
    """

    def reading(scanner: Scanner, calls: Calls) -> Wait[None]:
        yield from scanner.space()
        may_be_calls = yield from scanner.found(opening)
        scanner.rewind()
        if may_be_calls:
            yield from read(scanner, calls)
        else:
            yield from _words(scanner, calls)

    return reading


def _words(scanner: Scanner, calls: Calls, *markers: str) -> Wait[str]:
    """Say words up to one of `markers`; returns which, "" for none."""
    while True:
        words, marker = yield from scanner.words(*markers)
        calls.say(words)
        if marker or scanner.is_over:
            return marker


def _sections(
    scanner: Scanner, calls: Calls, marks: Section, named: Callable[[Scanner], Wait[str]], *ends: str
) -> Wait[None]:
    """Calls in sections, whose first mark models forget: what `named` reads, arguments, and perhaps `ends`."""
    while marker := (yield from _words(scanner, calls, marks.begin, marks.call)):
        before = calls.count
        try:
            if marker == marks.begin:
                yield from scanner.space()
                yield from scanner.expect(marks.call)
            yield from scanner.space()
            name = yield from named(scanner)
            yield from scanner.space()
            yield from _arguments(scanner, calls, name, is_marked=True)
        except NotACall:
            calls.say(scanner.unmarked())
        if calls.count > before:
            yield from _pass(scanner, *ends, marks.end_call, marks.end)


def _pass(scanner: Scanner, *ends: str) -> Wait[None]:
    """Pass what may stand behind a call, and the white space around it; the text may be over amid it."""
    yield from scanner.space()
    for end in ends:
        if (yield from scanner.ends_within(end)) or (yield from scanner.found(end)):
            yield from scanner.space()


def _deepseek_name(scanner: Scanner) -> Wait[str]:
    name = yield from scanner.run(_NAME)
    yield from scanner.expect(DEEPSEEK_SEP)
    if name == "function" and (yield from scanner.space()) != "{":
        name = yield from scanner.run(_NAME)
        yield from scanner.space()
        yield from scanner.found("```json")
    return name


def _kimi_k2_name(scanner: Scanner) -> Wait[str]:
    name = yield from scanner.run(_NAME)
    yield from scanner.expect(":")
    yield from scanner.run(_DIGIT)
    yield from scanner.space()
    yield from scanner.expect(KIMI_K2_SEP)
    return name.removeprefix("functions.")


def _harmony_head(scanner: Scanner, begun: str) -> Wait[tuple[str, str]]:
    """Pass the rest of what stands before a message, and return its channel and who receives it, "" for nobody."""
    receiver = ""
    if begun == _ROLE:
        receiver = yield from _harmony_receiver(scanner)
        yield from scanner.expect(_CHANNEL)
    channel = yield from scanner.run(_LETTER)
    receiver = (yield from _harmony_receiver(scanner)) or receiver
    yield from scanner.found("<|constrain|>")
    yield from scanner.run(_LETTER)
    yield from scanner.space()
    yield from scanner.expect(_MESSAGE)
    return channel, receiver


def _harmony_receiver(scanner: Scanner) -> Wait[str]:
    yield from scanner.space()
    receiver = (yield from scanner.run(_NAME)) if (yield from scanner.found("to=")) else ""
    yield from scanner.space()
    return receiver


def _lists(scanner: Scanner, calls: Calls, *marks: str, other: Reading | None = None) -> Wait[None]:
    """Lists of calls in JSON, or such calls alone, each behind one of `marks`, or what `other` reads."""
    while (yield from _words(scanner, calls, *marks)):
        try:
            if (yield from scanner.space()) == "[":
                yield from scanner.expect("[")
                yield from _list_of_calls(scanner, calls)
            elif other is None or (yield from scanner.peek()) == "{":
                yield from _json_call(scanner, calls, needs_arguments=False)
            else:
                yield from other(scanner, calls)
            yield from scanner.space()
        except NotACall:
            calls.say(scanner.unmarked())


def _list_of_calls(scanner: Scanner, calls: Calls) -> Wait[None]:
    while True:
        yield from scanner.space()
        yield from _json_call(scanner, calls, needs_arguments=False)
        if (yield from scanner.space()) != ",":
            break
        yield from scanner.expect(",")
    yield from scanner.expect("]")


def _json_call(scanner: Scanner, calls: Calls, *, needs_arguments: bool) -> Wait[None]:
    """An object with a name and, wherever they stand, arguments; other members are passed over."""
    name, held, has_begun = "", None, False
    yield from scanner.expect("{")
    while (yield from scanner.space()) != "}":
        key = yield from scanner.json_string()
        yield from scanner.space()
        yield from scanner.expect(":")
        yield from scanner.space()
        if key == "name" and not name:
            name = yield from scanner.json_string()
        elif key in _ARGUMENTS and held is None and not has_begun:
            if name:
                yield from _arguments(scanner, calls, name, is_marked=not needs_arguments)
                has_begun = True
            else:
                held = _object_text((yield from scanner.json_text()))
        else:
            yield from scanner.json_text()
        goes_on = (yield from scanner.space()) == ","
        if has_begun:
            scanner.mark()
        if not goes_on:
            break
        yield from scanner.expect(",")
    yield from scanner.expect("}")
    if not has_begun:
        if needs_arguments and held is None:
            raise NotACall
        _begin(scanner, calls, name, is_marked=not needs_arguments)
        calls.go_on(held or NO_ARGUMENTS)
    scanner.mark()


def _named_call(scanner: Scanner, calls: Calls) -> Wait[None]:
    name = yield from scanner.run(_NAME)
    if not name:
        raise NotACall
    if (yield from scanner.found("[CALL_ID]")):
        yield from scanner.run(_NAME)
    yield from scanner.found("[ARGS]")
    yield from scanner.space()
    yield from _arguments(scanner, calls, name, is_marked=True)


def _arguments(scanner: Scanner, calls: Calls, name: str, *, is_marked: bool) -> Wait[None]:
    """Begin the call once its arguments do, and pass them on piece by piece."""
    if (yield from scanner.peek()) != "{":
        arguments = _object_text((yield from scanner.json_text()))
        _begin(scanner, calls, name, is_marked=is_marked)
        calls.go_on(arguments)
        return
    _begin(scanner, calls, name, is_marked=is_marked)
    depth = Depth()
    while not depth.is_done:
        calls.go_on((yield from scanner.json_piece(depth)))
        scanner.mark()


def _begin(scanner: Scanner, calls: Calls, name: str, *, is_marked: bool) -> None:
    if not NAME.fullmatch(name) or (not is_marked and name not in calls.tools) or name in calls.barred:
        raise NotACall
    calls.begin(name)
    scanner.mark()


def _object_text(text: str) -> str:
    """Return the JSON object that a value is, or that its text is; none at all is one without members."""
    value = json_of(text)
    if isinstance(value, str):
        value = json_of(value)
        text = json.dumps(value)  # which has no half of a surrogate pair
    if value is None:
        return NO_ARGUMENTS
    if not isinstance(value, dict):
        raise NotACall
    return text
