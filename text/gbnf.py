"""Grammars in GBNF, llama.cpp's EBNF (`root ::= ...`), written as Lark's EBNF, which is what pods compile.

Pure; knows text only. llguidance has a converter too, but a grammar becomes part of others, behind reasoning or beside
calls, where there is no llguidance. Invariant: the time it takes is in proportion to the text, whatever that says.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from pagewire.text import lark

ROOT, START = "root", "start"
MAX_DEPTH = 24  # of parentheses; the compiler takes a few more
NO_TEXT = '""'
_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
    | (?P<rule>[\w-]+)[ \t]*::=
    | (?P<name>[\w-]+)
    | (?P<text>"(?:[^"\\\n]|\\[^\n])*")
    | (?P<set>\[(?:[^\]\\\n]|\\[^\n])+\])
    | (?P<times>[*+?]|\{[ \t]*[0-9]{1,9}[ \t]*(?:,[ \t]*(?:[0-9]{1,9}[ \t]*)?)?\})
    | (?P<mark>[|().])""",
    re.VERBOSE,
)
_CHAR = re.compile(r'\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([nrt"\\\[\]^-])|([^\\])', re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_MOST_CHAR = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_ANY_CHAR = "/(?s:.)/"


class NoGbnf(ValueError):
    """A text is no grammar in GBNF; says where it stops being one."""


@dataclass(slots=True)
class _Rule:
    """What a rule is in words of Lark, but for the names of other rules at some places."""

    words: list[str] = field(default_factory=list)
    names: list[tuple[int, str]] = field(default_factory=list)


def is_gbnf(text: str) -> bool:
    """True where a text defines rules as GBNF does, which Lark has no sign for."""
    return _RULE.search(text) is not None


def as_lark(text: str) -> str:
    """Return a grammar in Lark's EBNF; raises NoGbnf.

    A rule that leads into no circle becomes a terminal, so that it is matched as one expression: how its pieces are cut
    counts for nothing.
    """
    rules = _rules(text)
    names = _lark_names(rules, _terminals(rules))
    lines = [] if names[ROOT] == START else [f"{START}: {names[ROOT]}"]
    for name, rule in rules.items():
        words = list(rule.words)
        for place, other in rule.names:
            words[place] = names[other]
        lines.append(f"{names[name]}: {' '.join(words)}")
    return "\n".join(lines)


def _rules(text: str) -> Mapping[str, _Rule]:
    rules: dict[str, _Rule] = {}
    writing: _Writing | None = None
    for token in _tokens(text):
        name = token["rule"]
        if name is None and writing is None:
            raise _wrong(text, token.start(), "this is within no rule")
        if name is None and writing is not None:
            writing.take(token)
            continue
        if writing is not None:
            writing.end(token.start())
        if name in rules:
            raise _wrong(text, token.start(), f"rule {name} is defined twice")
        writing = _Writing(text)
        rules[name] = writing.rule
    if writing is not None:
        writing.end(len(text))
    if ROOT not in rules:
        raise NoGbnf(f"no rule is named {ROOT}")
    for name, rule in rules.items():
        missing = next((other for _, other in rule.names if other not in rules), None)
        if missing is not None:
            raise NoGbnf(f"rule {name} leads to rule {missing}, which is not defined")
    return rules


class _Writing:
    """One rule while its tokens come."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.rule = _Rule()
        self._depth = 0
        self._may_repeat = False

    def take(self, token: re.Match[str]) -> None:
        """Take the next token."""
        words, at, mark = self.rule.words, token.start(), token["mark"]
        if token["times"] is not None:
            if not self._may_repeat:
                raise _wrong(self._text, at, "there is nothing to repeat")
            words[-1] += "".join(token["times"].split())
            self._may_repeat = False
            return
        if mark in ("|", ")"):
            self._fill()
        self._depth += {"(": 1, ")": -1}.get(mark, 0)
        if not 0 <= self._depth <= MAX_DEPTH:
            raise _wrong(self._text, at, f"parentheses are in pairs, {MAX_DEPTH} in one another at most")
        self._may_repeat = mark not in ("|", "(")
        if token["name"] is not None:
            self.rule.names.append((len(words), token["name"]))
            words.extend(("", ""))  # its name, and how often it comes
        elif token["text"] is not None:
            words.append(lark.literal("".join(_chars(self._text, token["text"][1:-1], at))))
        elif token["set"] is not None:
            words.append(_set(self._text, token["set"][1:-1], at))
        else:
            words.append(_ANY_CHAR if mark == "." else mark)

    def end(self, at: int) -> None:
        """Take the end of the rule."""
        self._fill()
        if self._depth:
            raise _wrong(self._text, at, "a parenthesis is not closed")

    def _fill(self) -> None:
        """Write out that nothing stands between two marks."""
        if not self.rule.words or self.rule.words[-1] in ("|", "("):
            self.rule.words.append(NO_TEXT)


def _tokens(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _wrong(text, at, "this is none of GBNF's signs")
        if token["space"] is None:
            yield token
        at = token.end()


def _chars(text: str, escaped: str, at: int) -> Iterator[str]:
    """Yield the characters of a string or a set that begins at a place in the text."""
    place = 0
    while place < len(escaped):
        found = _CHAR.match(escaped, place)
        if found is None:
            raise _wrong(text, at, 'what stands behind a backslash is one of nrt"\\[]^- or a code of x, u or U')
        place = found.end()
        code = next((each for each in found.groups()[:3] if each is not None), None)
        if code is None:
            yield _NAMED.get(found[4], found[4]) if found[4] is not None else found[5]
            continue
        number = int(code, 16)
        if number > _MOST_CHAR or number in _SURROGATES:
            raise _wrong(text, at, "there is no such character")
        yield chr(number)


def _set(text: str, inside: str, at: int) -> str:
    """Return a set of characters as a regular expression; a `-` between two is a range unless it is escaped."""
    negation = "^" if inside.startswith("^") else ""
    inside = inside.removeprefix("^")
    if not inside:
        raise _wrong(text, at, "a set has a character at least")
    parts = []
    place = 0
    while place < len(inside):
        first, place = _next_char(text, inside, place, at)
        last = first
        if inside[place : place + 1] == "-" and place + 1 < len(inside):
            last, place = _next_char(text, inside, place + 1, at)
            if last < first:
                raise _wrong(text, at, "a range begins with its first character")
        parts.append(_in_set(first) if first == last else f"{_in_set(first)}-{_in_set(last)}")
    return f"/[{negation}{''.join(parts)}]/"


def _next_char(text: str, inside: str, place: int, at: int) -> tuple[str, int]:
    found = _CHAR.match(inside, place)
    end = found.end() if found is not None else len(inside)
    return next(_chars(text, inside[place:end], at)), end


def _in_set(char: str) -> str:
    return char if char.isalnum() or char == " " else rf"\u{{{ord(char):x}}}"


def _terminals(rules: Mapping[str, _Rule]) -> Set[str]:
    """Return the rules from which no way leads into a circle."""
    users: dict[str, list[str]] = defaultdict(list)
    num_open = {}
    for name, rule in rules.items():
        others = {other for _, other in rule.names}
        num_open[name] = len(others)
        for other in others:
            users[other].append(name)
    found: set[str] = set()
    ready = [name for name, count in num_open.items() if not count]
    while ready:
        name = ready.pop()
        found.add(name)
        for user in users[name]:
            num_open[user] -= 1
            if not num_open[user]:
                ready.append(user)
    return found


def _lark_names(rules: Mapping[str, _Rule], terminals: Set[str]) -> Mapping[str, str]:
    """Return what each rule is called: terminals in capitals, other rules in small letters, no two alike."""
    names, taken = {ROOT: ROOT.upper() if ROOT in terminals else START}, {ROOT.upper(), START}
    for number, name in enumerate(rules):
        if name == ROOT:
            continue
        plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in name).lower()
        plain = plain if plain[0].isalpha() else f"r{plain}"
        told = plain.upper() if name in terminals else plain
        if told in taken:
            told += f"_{number}"
        while told in taken:
            told += "_"
        taken.add(told)
        names[name] = told
    return names


def _wrong(text: str, at: int, cause: str) -> NoGbnf:
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return NoGbnf(f"line {line}, column {column}: {cause}")
