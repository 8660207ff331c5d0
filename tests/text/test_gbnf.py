"""Grammars in GBNF: what they allow once they are Lark and llguidance compiled them, and what is none.

On a byte-level tokenizer. That llama.cpp would read them so is not tried; llguidance's own converter is, where it can.
"""

from __future__ import annotations

import contextlib
import time

import byte_tokenizer
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from pagewire.text.gbnf import MAX_DEPTH, NoGbnf, as_lark, is_gbnf

TOKENIZER = byte_tokenizer.build()
THEIRS = LLTokenizer(TOKENIZER.to_str(), eos_token=byte_tokenizer.EOS_ID)
SQL = """
    root ::= select_statement
    select_statement ::= "SELECT " column " from " table " where " condition
    column ::= "col_1 " | "col_2 "
    table ::= "table_1 " | "table_2 "
    condition ::= column "= " number
    number ::= "1 " | "2 "
"""
SUM = 'root ::= term ("+" term)*  # of numbers\nterm ::= [0-9]{1,3}\n     | "(" root ")"\n'
BOTH = [  # which llguidance converts as well
    (SQL, ["SELECT col_1  from table_2  where col_2 = 1 "], ["SELECT col_1 ", "SELECT col_3  from table_2 "]),
    ('root ::= "a" "b"? [c-e]+ "f"*', ["abc", "acdeff"], ["ab", "abcfg"]),
    ('root ::= ("a" | "b")+ x-y\nx-y ::= [^a-c\\n]', ["abd", "ax"], ["abc", "ab\n", "d"]),
    ('root ::= [0-9]{2} "-" [0-9]{1,2} "-" [0-9]{2,}', ["12-3-456"], ["1-3-45", "12-345-45", "12-3-4"]),
]
OURS = [
    ('root ::= "ab" | "a" c\nc ::= "b" "c"', ["ab", "abc"], ["a", "abcc"]),
    (SUM, ["1", "1+23+(4+567)"], ["1+", "1234", "(1"]),
    ('root ::= "a" (| "b") x? y\nx ::=\n  | "c"\ny ::= # nothing', ["a", "ab", "abc", "ac"], ["b", "acc"]),
    ('root ::= "\\x41\\u00e9\\U0001F600\\"\\\\\\[\\]" .', ['Aé😀"\\[]\n', 'Aé😀"\\[]é'], ['Aé😀"\\[]']),
    ('root ::= [^"/<\\n]', [" ", "é", "'"], ['"', "/", "<", "\n"]),
    ("root ::= [a\\-z\\]\\^-]", ["a", "-", "z", "]", "^"], ["b", "\\"]),
    ("root ::= [-a] [^^] [a-]", ["-ba", "ax-"], ["-^a", "b--"]),
    ("root ::= [\\x41-\\u0043]", ["A", "B", "C"], ["D"]),
    ('root ::= aB a-b a_b 1a start\naB ::= "1"\na-b ::= "2"\na_b ::= "3"\n1a ::= "4"\nstart ::= "5"', ["12345"], ["1"]),
    ('root ::= a-b a_b\na-b ::= "1" root?\na_b ::= "2" root?', ["12", "1122", "1212"], ["11"]),
    ('root ::= ""', [""], ["a"]),
    ('root ::= "a\\x7Fb" "\\x01\\u0085\\u2028"', ["a\x7fb\x01\x85\u2028"], ["ab"]),
    ('root\t::=\t"a"\r\n', ["a"], [""]),
]  # fmt: skip


def accepts(lark: str, text: str) -> bool:
    matcher = LLMatcher(THEIRS, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = TOKENIZER.encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(("text", "good", "bad"), [*BOTH, *OURS])
def test_a_grammar_allows_as_lark_what_it_says(text: str, good: list[str], bad: list[str]) -> None:
    assert is_gbnf(text)
    lark = as_lark(text)
    assert not is_gbnf(lark)
    for each in good:
        assert accepts(lark, each), each
        assert accepts(f"start: inner\ninner: %lark {{\n{lark}\n}}", each), each
    for each in bad:
        assert not accepts(lark, each), each


@pytest.mark.parametrize(("text", "good", "bad"), BOTH)
def test_the_library_reads_it_the_same_way(text: str, good: list[str], bad: list[str]) -> None:
    theirs = gbnf_to_lark(text)
    assert [accepts(theirs, each) for each in [*good, *bad]] == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a ::= "b"', "no rule is named root"),
        ("root ::= a", "rule root leads to rule a, which is not defined"),
        ('root ::= "a"\n  root ::= "b"', "line 2, column 3: rule root is defined twice"),
        ('"a" root ::= "b"', "line 1, column 1: this is within no rule"),
        ('root ::= "a', "line 1, column 10: this is none"),
        ("root ::= [a", "line 1, column 10: this is none"),
        ("root ::= a = b", "column 12: this is none"),
        ("root ::= [^]", "a set has a character"),
        ("root ::= [z-a]", "a range begins with its first"),
        ('root ::= "\\q"', "behind a backslash"),
        ("root ::= [\\q]", "behind a backslash"),
        ("root ::= [a-\\q]", "behind a backslash"),
        ('root ::= "\\ud800"', "no such character"),
        ('root ::= "\\U00110000"', "no such character"),
        ("root ::= *", "nothing to repeat"),
        ('root ::= "a"+*', "nothing to repeat"),
        ('root ::= ("a" | *)', "nothing to repeat"),
        ('root ::= "a")', "column 13: parentheses are in pairs"),
        ('root ::= ("a"', "a parenthesis is not closed"),
        ('root ::= ("a"\nb ::= "c"', "line 2, column 1: a parenthesis is not closed"),
        ("root ::= " + "(" * (MAX_DEPTH + 1), f"{MAX_DEPTH} in one another at most"),
    ],
)
def test_what_is_none_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(NoGbnf, match=message):
        as_lark(text)


def test_as_many_parentheses_as_may_be() -> None:
    assert accepts(as_lark("root ::= " + "(" * MAX_DEPTH + '"a"' + ")" * MAX_DEPTH), "a")


@pytest.mark.parametrize("text", ["start: A", 'start: "root ::= a"', "", "root: /a/", "// root ::= a\nstart: A"])
def test_lark_is_no_gbnf(text: str) -> None:
    assert not is_gbnf(text)


@pytest.mark.parametrize(
    "text",
    [
        "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(4000)) + 'r4000 ::= "a"',
        "root ::= " + '"a" | ' * 10_000,
        "root ::= [" + "a-z" * 20_000 + "]",
        "root ::= " + " " * 60_000 + "x",
        "x" * 60_000,
    ],
    ids=["chain", "alternatives", "set", "spaces", "name"],
)
def test_none_takes_long(text: str) -> None:
    began = time.process_time()
    for _ in range(2):
        with contextlib.suppress(NoGbnf):
            as_lark(text)
    assert time.process_time() - began < 2.0  # a tenth of that alone; what is squared takes minutes
