"""The scanner: each reading against a line that states it, over the whole text and over every cut of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.text.scanner import SPACE, Depth, NotACall, Scanner, Wait, json_of

Read = Callable[[Scanner], Wait[Any]]


def step(reading: Wait[Any]) -> tuple[Any, ...]:
    """Go on with a reading: () while it waits, then its result, NotACall where it raises that."""
    try:
        next(reading)
    except StopIteration as ended:
        return (ended.value,)
    except NotACall:
        return (NotACall,)
    return ()


def read(how: Read, *pieces: str) -> tuple[Any, str]:
    """Return what a reading of these pieces, and no more, comes to, and what text is behind it."""
    scanner, left = Scanner(), list(pieces)
    reading = how(scanner)
    while not (ended := step(reading)):
        assert not scanner.is_over
        if left:
            scanner.feed(left.pop(0))
        scanner.is_over = not left
    return ended[0], scanner._text[scanner._at :] + "".join(left)


NUMBER = re.compile("[0-9]")
READINGS: list[tuple[Read, str, Any, str]] = [
    *((Scanner.peek, text, found, text) for text, found in (("", ""), ("a", "a"), (" a", " "))),
    *((Scanner.space, text, found, rest)
      for text, found, rest in (("", "", ""), ("  ", "", ""), (" \t\r\na ", "a", "a "), ("\va", "\v", "\va"))),
    *((lambda s: s.found("abc"), text, found, rest)
      for text, found, rest in (("abcd", True, "d"), ("abc", True, ""), ("ab", False, "ab"), ("", False, ""),
                                ("abd", False, "abd"), ("xabc", False, "xabc"))),
    *((lambda s: s.expect("abc"), text, found, rest)
      for text, found, rest in (("abcd", None, "d"), ("ab", NotACall, "ab"), ("abd", NotACall, "abd"))),
    *((lambda s: s.ends_within("abc", "ax"), text, found, rest)
      for text, found, rest in (("", True, ""), ("a", True, ""), ("ab", True, ""), ("abc", False, "abc"),
                                ("ax", False, "ax"), ("ac", False, "ac"),
                                ("ba", False, "ba"), ("abcd", False, "abcd"))),
    *((lambda s: s.run(NUMBER), text, found, rest)
      for text, found, rest in (("", "", ""), ("12", "12", ""), ("12a3", "12", "a3"), ("a1", "", "a1"))),
    *((Scanner.take, text, found, rest)
      for text, found, rest in (("", NotACall, ""), ("a", "a", ""), ("ab", "a", "b"))),
    *((Scanner.json_string, text, found, rest)
      for text, found, rest in (("", NotACall, ""), ('"a"b', "a", "b"), ('"\\"\\u00e9"', '"é', ""),
                                ("5", NotACall, "5"),
                                ('["a"]', NotACall, '["a"]'), (' "a"', NotACall, ' "a"'), ('"a', NotACall, ""),
                                ('"\\x"', NotACall, ""))),
    *((Scanner.json_text, text, found, rest)
      for text, found, rest in (('{"}": [1, {}]} x', '{"}": [1, {}]}', " x"), ('"\\\\" ', '"\\\\"', " "),
                                ("12]", "12", "]"), ("12 ", "12", " "), ("12", NotACall, ""), ("1{[, ", "1{[", ", "),
                                ("", NotACall, ""), ("[", NotACall, ""), ('"\\"', NotACall, ""))),
]  # fmt: skip


@pytest.mark.parametrize(("how", "text", "found", "rest"), READINGS)
def test_a_reading_finds_the_same_however_the_text_is_cut(how: Read, text: str, found: Any, rest: str) -> None:
    for pieces in ([text], list(text), *([text[:cut], text[cut:]] for cut in range(len(text) + 1))):
        result, behind = read(how, *pieces)
        assert result is found or (result == found and isinstance(result, str)), pieces
        assert behind == rest, pieces


@pytest.mark.parametrize(
    ("how", "piece"),
    [
        *((Scanner.json_string, text) for text in ("5", "[", "{")),
        *((lambda s: s.found("abc"), text) for text in ("x", "ax", "abd")),
        *((lambda s: s.ends_within("abc"), text) for text in ("x", "ax", "abc")),
        *((lambda s: s.words("abc"), text) for text in ("x", "xab", "a b", "abc")),
        *((lambda s: s.until("abc"), text) for text in ("x", "xab", " ", "abc")),
    ],
)
def test_a_reading_that_is_certain_waits_for_nothing(how: Read, piece: str) -> None:
    scanner = Scanner()
    scanner.feed(piece)
    assert step(how(scanner))


@pytest.mark.parametrize(
    ("how", "piece"),
    [
        *((lambda s: s.found("abc"), text) for text in ("", "a", "ab")),
        *((lambda s: s.ends_within("abc"), text) for text in ("", "a", "ab")),
        *((lambda s: s.words("abc"), text) for text in ("", "a", " ", " \nab")),
        *((lambda s: s.until("abc"), text) for text in ("", "a", "ab")),
        *((Scanner.json_text, text) for text in ("",)),
    ],
)
def test_a_reading_that_may_go_either_way_waits(how: Read, piece: str) -> None:
    scanner = Scanner()
    scanner.feed(piece)
    assert not step(how(scanner))


def all_of(how: Callable[[Scanner], Wait[tuple[str, Any]]], pieces: list[str]) -> tuple[str, Any, str]:
    """Return the texts of a reading that is done again until it finds a marker or the end."""
    scanner, left, texts = Scanner(), list(pieces), ""
    while True:
        reading = how(scanner)
        while not (ended := step(reading)):
            scanner.feed(left.pop(0)) if left else None
            scanner.is_over = not left
        (text, marker), *_ = ended
        texts += text
        if marker or scanner.is_over:
            return texts, marker, scanner._text[scanner._at :] + "".join(left)


@given(pieces=st.lists(st.text("ab< ", max_size=4), max_size=6))
def test_words_end_at_the_first_marker_with_the_white_space_before_it(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = min(((text.find(marker), marker) for marker in ("<a", "<<b") if marker in text), default=None)
    words, marker, rest = all_of(lambda scanner: scanner.words("<a", "<<b"), pieces)
    if found is None:
        assert (words, marker, rest) == (text, "", "")
    else:
        at, wanted = found
        assert (words, marker, rest) == (text[:at].rstrip(SPACE), wanted, text[at + len(wanted) :])


@given(pieces=st.lists(st.text("ab< ", max_size=4), max_size=6))
def test_a_text_is_all_until_its_marker_and_less_one_that_is_cut_off(pieces: list[str]) -> None:
    text = "".join(pieces)
    before, is_there, behind = text.partition("<<b")
    found, is_whole, rest = all_of(lambda scanner: scanner.until("<<b"), pieces)
    assert is_whole == bool(is_there)
    if is_there:
        assert (found, rest) == (before, behind)
    else:
        assert (found, rest) == (text.removesuffix("<<") if text.endswith("<<") else text.removesuffix("<"), "")


def test_what_was_not_settled_is_words_and_then_settled() -> None:
    scanner = Scanner()
    scanner.feed("abcdef")
    assert step(scanner.expect("ab")) == (None,)
    scanner.mark()
    assert step(scanner.expect("cd")) == (None,)
    scanner.feed("g")
    assert scanner.unmarked() == "cd"
    assert scanner.unmarked() == ""
    assert step(scanner.expect("ef")) == (None,)
    scanner.rewind()
    assert step(scanner.take()) == ("e",)


@given(text=st.text('{}[]"\\,1 a', min_size=1), cuts=st.lists(st.integers(1, 20), max_size=5))
def test_where_a_json_value_ends_depends_on_its_characters_alone(text: str, cuts: list[int]) -> None:
    whole = Depth()
    end = whole.advance(text, 0)
    assert whole.is_done or end == len(text)
    depth, at = Depth(), 0
    for place in sorted({*(cut for cut in cuts if cut < len(text)), len(text)}):
        if depth.is_done:
            break
        at += depth.advance(text[at:place], 0)
        assert depth.is_done or at == place
    # A plain value is over once something else follows it, which may be in the next piece.
    assert (at, depth.is_done) == (end, whole.is_done)


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_a_json_value_is_whole_at_its_end_and_not_before(value: Any) -> None:
    text = json.dumps(value)
    for behind in (" ", ",", "]", "}", "\n"):
        depth = Depth()
        assert depth.advance(f"x{text}{behind}", 1) == 1 + len(text)
        assert depth.is_done
    for size in range(1, len(text)):
        depth = Depth()
        assert depth.advance(text[:size], 0) == size
        assert not depth.is_done


@pytest.mark.parametrize(
    "text", ["", "a", "NaN", "Infinity", "-Infinity", "[NaN]", "{'a': 1}", "[1", "1 2", "[" * 100_000, "9" * 5000]
)
def test_what_is_no_json_is_no_call(text: str) -> None:
    with pytest.raises(NotACall):
        json_of(text)


def test_json_is_its_value() -> None:
    assert json_of(' {"a": [1, null, "\\u00e9"]} ') == {"a": [1, None, "é"]}
