"""Arguments written one by one, as `<parameter=city>\\nParis\\n</parameter>`, read into a JSON object.

Pure; knows JSON and JSON schemas. Texts stand there as they are, everything else as JSON or, since templates of models
write it so, as Python does: the schema tells which. What only texts may stand for is passed on while it grows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from dataclasses import dataclass

from pagewire.text.scanner import NotACall, Scanner, Wait, json_of
from pagewire.text.tools.parameters import TEXT, Parameters, type_of

_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What stands before a key and behind it, before its value and behind that, and behind all arguments.

    A value has lines of its own, whose ends are none of it, where `is_lined`.
    """

    key: str
    end_key: str
    value: str = ""
    end: str
    closing: str
    is_lined: bool = False


QWEN3_CODER = Marks(key="<parameter=", end_key=">", end="</parameter>", closing="</function>", is_lined=True)
GLM = Marks(key="<arg_key>", end_key="</arg_key>", value="<arg_value>", end="</arg_value>", closing="</tool_call>")


def arguments(scanner: Scanner, marks: Marks, parameters: Parameters, go_on: Callable[[str], None]) -> Wait[None]:
    """Tell the pieces of the JSON object of the arguments that come next, up to what closes the call.

    Where the text is over before, the object stays incomplete. Raises nothing: that a call is one was settled before.
    """
    go_on("{")
    comma = ""
    while True:
        yield from scanner.space()
        if (yield from scanner.ends_within(marks.key, marks.closing)):
            return
        if not (yield from scanner.found(marks.key)):
            break
        key, is_whole = yield from _all_until(scanner, marks.end_key)
        if not is_whole:
            return
        go_on(f"{comma}{_quoted(key)}: ")
        comma = ", "
        if marks.value:
            yield from scanner.space()
            if (yield from scanner.ends_within(marks.value)):
                return
            yield from scanner.found(marks.value)
        yield from _value(scanner, marks, parameters.types(key), go_on)
    yield from scanner.found(marks.closing)
    go_on("}")


def _value(scanner: Scanner, marks: Marks, allowed: Set[str], go_on: Callable[[str], None]) -> Wait[None]:
    """Tell the value that comes next; one that is cut off stays incomplete."""
    line_end = "\n" if marks.is_lined else ""
    if line_end and (yield from scanner.peek()) == line_end:
        yield from scanner.take()
    if allowed != TEXT:
        text, is_whole = yield from _all_until(scanner, marks.end)
        if is_whole:
            go_on(_json(text.removesuffix(line_end), allowed))
        return
    go_on('"')
    held, is_whole = "", False
    while not is_whole:
        piece, is_whole = yield from scanner.until(marks.end)
        piece = held + piece
        held = line_end if piece.endswith(line_end) else ""
        go_on(_quoted(piece.removesuffix(line_end))[1:-1])
        scanner.mark()
        if is_whole:
            go_on('"')
        elif scanner.is_over:
            break


def _all_until(scanner: Scanner, marker: str) -> Wait[tuple[str, bool]]:
    text, is_whole = "", False
    while not is_whole:
        piece, is_whole = yield from scanner.until(marker)
        text += piece
        scanner.mark()
        if scanner.is_over:
            break
    return text, is_whole


def _json(text: str, allowed: Set[str]) -> str:
    """Return the JSON of a value, the text itself where it is of none of the other types."""
    plain = text.strip()
    plain = _OF_PYTHON.get(plain, plain)
    try:
        found = type_of(json_of(plain))
    except NotACall:
        return _quoted(text)
    is_allowed = found in allowed or (found == "integer" and "number" in allowed)
    return plain if found != "string" and is_allowed else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
