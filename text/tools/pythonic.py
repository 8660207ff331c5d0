"""Arguments written as in a Python call, `(city="Paris", days=[1, 2], exact=True)`, read into a JSON object.

Pure; knows Python's literals, and JSON's words for them, since models mix the two. Nothing is evaluated.
"""

from __future__ import annotations

import json
import re

from pagewire.text.scanner import NotACall, Scanner, Wait, json_of

MAX_DEPTH = 32
_WORD = re.compile(r"\w")
_NUMBER = re.compile(r"[\w.+\-]")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}
_CODES = {"x": 2, "u": 4, "U": 8}
_SURROGATES = range(0xD800, 0xE000)


def arguments(scanner: Scanner) -> Wait[str]:
    """Return the JSON object of the arguments that come next, with their parentheses; raises NotACall."""
    members: list[str] = []
    yield from scanner.expect("(")
    while (yield from scanner.space()) != ")":
        name = yield from scanner.run(_WORD)
        yield from scanner.space()
        yield from scanner.expect("=")
        members.append(f"{_quoted(name)}: {(yield from _value(scanner, 0))}")
        yield from _comma(scanner, ")")
    yield from scanner.expect(")")
    return "{" + ", ".join(members) + "}"


def _value(scanner: Scanner, depth: int) -> Wait[str]:
    """Return the JSON text of a literal."""
    char = yield from scanner.space()
    if depth > MAX_DEPTH or not char:
        raise NotACall
    if char in "\"'":
        return _quoted((yield from _string(scanner)))
    if char in "[(":
        return (yield from _list(scanner, depth, "]" if char == "[" else ")"))
    if char == "{":
        return (yield from _dict(scanner, depth))
    text = yield from scanner.run(_NUMBER)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    json_of(text)  # which of these characters only numbers are, beside the constants
    return text


def _list(scanner: Scanner, depth: int, end: str) -> Wait[str]:
    members: list[str] = []
    yield from scanner.take()
    while (yield from scanner.space()) != end:
        members.append((yield from _value(scanner, depth + 1)))
        yield from _comma(scanner, end)
    yield from scanner.expect(end)
    return "[" + ", ".join(members) + "]"


def _dict(scanner: Scanner, depth: int) -> Wait[str]:
    members: list[str] = []
    yield from scanner.take()
    while (char := (yield from scanner.space())) != "}":
        if not char or char not in "\"'":
            raise NotACall
        key = yield from _string(scanner)
        yield from scanner.space()
        yield from scanner.expect(":")
        members.append(f"{_quoted(key)}: {(yield from _value(scanner, depth + 1))}")
        yield from _comma(scanner, "}")
    yield from scanner.expect("}")
    return "{" + ", ".join(members) + "}"


def _comma(scanner: Scanner, end: str) -> Wait[None]:
    """Pass the comma behind a member, or stay before the end; raises NotACall where something else comes."""
    if (yield from scanner.space()) != end:
        yield from scanner.expect(",")


def _string(scanner: Scanner) -> Wait[str]:
    quote = yield from scanner.take()
    text = ""
    while (char := (yield from scanner.take())) != quote:
        text += (yield from _escaped(scanner)) if char == "\\" else char
    return text


def _escaped(scanner: Scanner) -> Wait[str]:
    char = yield from scanner.take()
    if char not in _CODES:
        return _ESCAPES.get(char, char if char in "\\'\"" else "\\" + char)
    digits = ""
    for _ in range(_CODES[char]):
        digits += yield from scanner.take()
    try:
        code = int(digits, 16)
        return "\N{REPLACEMENT CHARACTER}" if code in _SURROGATES else chr(code)
    except (ValueError, OverflowError):
        raise NotACall from None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
