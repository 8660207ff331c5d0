"""Arguments of a Python call: which literals are read, and to which JSON; everything else is no call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.text.scanner import NotACall, Scanner
from pagewire.text.tools.pythonic import MAX_DEPTH, arguments


def read(text: str) -> Any:
    """Return the arguments that a text begins with, and what is behind them; None where it is no call."""
    scanner = Scanner()
    reading = arguments(scanner)
    scanner.feed(text)
    scanner.is_over = True
    try:
        next(reading)
    except StopIteration as ended:
        return json.loads(ended.value), text[scanner._at :]
    except NotACall:
        return None
    raise AssertionError("nobody waits for more of a text that is over")


def nested(depth: int, opening: str, closing: str) -> str:
    return f"(a={opening * depth}{closing * depth})"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        *(("()", {}), ("( )", {}), ("(a=1)", {"a": 1}), ("( a = 1 , b = 2 , )", {"a": 1, "b": 2})),
        ("(a=[ ], b=[ 1 , 2 , ], c=( ), d=(1,), e=(1 , 2))", {"a": [], "b": [1, 2], "c": [], "d": [1], "e": [1, 2]}),
        ("(a={ }, b={ 'x' : 1 , \"y\":2 , })", {"a": {}, "b": {"x": 1, "y": 2}}),
        (
            "(a=True, b=False, c=None, d=true, e=false, f=null)",
            dict(zip("abcdef", (True, False, None) * 2, strict=True)),
        ),
        ("(a=-1, b=1.5, c=-2e-3, d=0)", {"a": -1, "b": 1.5, "c": -2e-3, "d": 0}),
        ("(a='', b=\"\", c='\"', d=\"'\", e='é, )]}')", {"a": "", "b": "", "c": '"', "d": "'", "e": "é, )]}"}),
        (r"(a='\n\t\r\b\f\0', b='\\\'\"', c='\q\é')", {"a": "\n\t\r\b\f\0", "b": "\\'\"", "c": "\\q\\é"}),
        (r"(a='\x41b', b='\u00e9b', c='\U0001F99Cb')", {"a": "Ab", "b": "éb", "c": "🦜b"}),
        (r"(a='\ud7ff\ue000', b='\ud800', c='\udfff')", {"a": "\ud7ff\ue000", "b": "\ufffd", "c": "\ufffd"}),
    ],
)
def test_literals_are_json(text: str, values: dict[str, Any]) -> None:
    assert read(text) == (values, "")
    assert read(f"{text} )]") == (values, " )]")


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "(", "(a", "(a=", "(a=1", "(a=1,", "(a 1)", "(1)", "(a=)", "(a=,)", "(a=1 b=2)", "(a=1;)", "(,)"),
        *("(a=[", "(a=[1", "(a=[1)", "(a=[1 2])", "(a=[,])", "(a=(1])", "(a=[1,,2])", "(a=(1)", "(a=['b)"),
        *("(a={", "(a={'b'", "(a={'b':", "(a={'b': 1", "(a={'b' 1})", "(a={b: 1, b: 2})", "(a={1: 2})"),
        *("(a={'b': 1 'c'})", "(a={'b': 1,,})"),
        *("(a='", "(a='b", "(a=\"b')", "(a='b\\')", "(a='\\", "(a='\\x4", "(a='\\x", "(a='\\xzz')"),
        *("(a='\\U00110000')", "(a='\\UFFFFFFFF')"),
        *("(a=NaN)", "(a=inf)", "(a=b)", "(a=1e)", "(a=--1)", "(a=01)", "(a=1+1)", "(a=f(1))", "(a=b'c')", "(a=TRUE)"),
    ],
)  # fmt: skip
def test_everything_else_is_no_call(text: str) -> None:
    assert read(text) is None


def test_lists_and_dicts_are_read_as_deep_as_is_allowed() -> None:
    for pair in ("[]", "()"):
        assert read(nested(MAX_DEPTH + 1, *pair)) == (
            {"a": json.loads("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))},
            "",
        )
        for depth in (MAX_DEPTH + 2, 10_000):
            assert read(nested(depth, *pair)) is None
    deep = "{'b': " * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    assert read(f"(a={deep})") == ({"a": json.loads(deep.replace("'", '"'))}, "")
    assert read(f"(a={{'b': {deep}}})") is None


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values=st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), LITERALS, max_size=3))
def test_what_python_writes_is_read_back(values: dict[str, Any]) -> None:
    text = ", ".join(f"{key}={value!r}" for key, value in values.items())
    assert read(f"({text})") == (values, "")
