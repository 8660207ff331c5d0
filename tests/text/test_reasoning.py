"""Reasoning in text: what each reader finds, however the text was cut, and what grammars let come before an answer."""

from __future__ import annotations

from pathlib import Path

import byte_tokenizer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.text.reasoning.formats import (
    FORMATS,
    HARMONY,
    KIMI,
    MISTRAL,
    SEED,
    THINK,
    ReasoningFormat,
    Standing,
    format_of,
)
from pagewire.text.reasoning.grammar import behind_reasoning
from pagewire.text.reasoning.reader import ReasoningReader, Thought

BEFORE, WITHIN, AMID, BEHIND = Standing
TEMPLATES = Path(byte_tokenizer.__file__).parent / "tool_templates"


def read(reasoning_format: ReasoningFormat, standing: Standing, pieces: list[str]) -> tuple[str, str, Standing]:
    """Return reasoning and words, and where the text ended."""
    reader = ReasoningReader(reasoning_format, standing)
    thoughts = [*(reader.push(piece) for piece in pieces), reader.finish()]
    return "".join(each.reasoning for each in thoughts), "".join(each.words for each in thoughts), reader.standing


FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
READ: list[tuple[ReasoningFormat, Standing, str, str, str]] = [
    (THINK, BEFORE, "<think>\nA cat?\n\nNo.\n</think>\n\nA dog.\n", "A cat?\n\nNo.", "A dog.\n"),
    (THINK, BEFORE, " \n<think> a </think>b", "a", "b"),
    (THINK, BEFORE, "<think>\n\n</think>\n\n  indented", "", "  indented"),
    (THINK, BEFORE, "A dog <think>", "", "A dog <think>"),
    (THINK, BEFORE, " \n A </think> dog", "", " \n A </think> dog"),
    (THINK, BEFORE, "<thin air>", "", "<thin air>"),
    (THINK, BEFORE, "<thi", "", "<thi"),
    (THINK, BEFORE, "", "", ""),
    (THINK, BEFORE, "<think>cut off </thi", "cut off </thi", ""),
    (THINK, BEFORE, "<think>cut off \n", "cut off \n", ""),
    (THINK, WITHIN, "a <think> b</think>c</think>", "a <think> b", "c</think>"),
    (THINK, WITHIN, "\n a", "a", ""),
    (THINK, WITHIN, "", "", ""),
    (THINK, AMID, " \n a <b </think> c", " \n a <b", " c"),
    (THINK, AMID, "", "", ""),
    (THINK, BEHIND, "\n<think>a</think>", "", "\n<think>a</think>"),
    (SEED, BEFORE, "<seed:think>a</seed:think>\r\nb", "a", "b"),
    (MISTRAL, BEFORE, "[THINK]a[/THINK]b", "a", "b"),
    (KIMI, BEFORE, "◁think▷a◁/think▷b", "a", "b"),
    (HARMONY, BEFORE, f"<|channel|>analysis<|message|>a{FINAL}b", "a", "b"),
    (HARMONY, BEFORE, "<|channel|>final<|message|>b", "", "b"),
    (HARMONY, BEFORE, "<|channel|>fin", "", "<|channel|>fin"),
    (HARMONY, WITHIN, f"a{FINAL}b", "a", "b"),
    (HARMONY, WITHIN, f"a{FINAL[:-11]} json<|message|>" '{"b": 1}', "a", '{"b": 1}'),
    (HARMONY, BEFORE, "<|channel|>final json<|message|>{}", "", "{}"),
    (HARMONY, BEFORE, "<|channel|>final json {}", "", "<|channel|>final json {}"),
    (HARMONY, WITHIN, f"a {FINAL[:-11]} so<b{FINAL}c", f"a {FINAL[:-11]} so<b", "c"),
    (HARMONY, WITHIN, f"a{FINAL[:-11]} js", f"a{FINAL[:-11]} js", ""),
]  # fmt: skip


@pytest.mark.parametrize(("reasoning_format", "standing", "text", "reasoning", "words"), READ)
def test_reasoning_is_told_apart_however_the_text_is_cut(
    reasoning_format: ReasoningFormat, standing: Standing, text: str, reasoning: str, words: str
) -> None:
    for cut in range(len(text) + 1):
        assert read(reasoning_format, standing, [text[:cut], text[cut:]])[:2] == (reasoning, words)
    assert read(reasoning_format, standing, list(text))[:2] == (reasoning, words)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("<think>", WITHIN),
        ("<think>a", AMID),
        ("<think>a</think>", BEHIND),
        ("a", BEHIND),
        ("<th", BEFORE),
        ("\n", BEFORE),
    ],
)
def test_a_reader_says_where_it_stands_before_its_text_is_over(text: str, ends: Standing) -> None:
    reader = ReasoningReader(THINK, BEFORE)
    reader.push(text)
    assert reader.standing is ends
    assert reader.is_done is (text == "a")
    assert reader.has_reasoned is ("<think>" in text)
    reader.push("b")
    assert reader.is_done is (reader.standing is BEHIND)
    assert not reader.is_done or reader.push(" <think>") == Thought(words=" <think>"), "nothing is held back"


@pytest.mark.parametrize("standing", Standing)
def test_an_answer_that_begins_within_reasoning_has_reasoned_whatever_it_says(standing: Standing) -> None:
    reader = ReasoningReader(THINK, standing)
    reader.push("a")
    assert reader.has_reasoned is (standing in (WITHIN, AMID))


SCRAPS = st.sampled_from(
    ("<think>", "</think>", "<th", "ink>", "</", "\n", " ", "a", "b c", "[THINK]", "[/THINK]", "é")
)


ROLE = "<|end|><|start|>assistant"
CALLING: list[tuple[str, str, str]] = [
    ("<|channel|>commentary to=functions.f<|message|>{}", "", "<|channel|>commentary to=functions.f<|message|>{}"),
    (" to=functions.f<|channel|>commentary json<|message|>{}", "",
     " to=functions.f<|channel|>commentary json<|message|>{}"),
    (f"<|channel|>analysis<|message|>a{ROLE}<|channel|>commentary to=functions.f<|message|>{{}}", "a",
     "<|channel|>commentary to=functions.f<|message|>{}"),
    (f"<|channel|>analysis<|message|>a{ROLE} to=functions.f<|channel|>commentary json<|message|>{{}}", "a",
     " to=functions.f<|channel|>commentary json<|message|>{}"),
    (f"<|channel|>analysis<|message|>a{FINAL}b", "a", "b"),
    (f"<|channel|>analysis<|message|>a{ROLE}<|channel|>com", f"a{ROLE}<|channel|>com", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reasoning", "words"), CALLING)
def test_reasoning_ends_before_calls_where_there_are_any(text: str, reasoning: str, words: str) -> None:
    for cut in range(len(text) + 1):
        reader = ReasoningReader(HARMONY, BEFORE, may_call=True)
        thoughts = [reader.push(text[:cut]), reader.push(text[cut:]), reader.finish()]
        assert "".join(each.reasoning for each in thoughts) == reasoning
        assert "".join(each.words for each in thoughts) == words
    called = f"<|channel|>analysis<|message|>a{ROLE}<|channel|>commentary to=functions.f"
    assert read(HARMONY, BEFORE, [called])[0] == f"a{ROLE}<|channel|>commentary to=functions.f", "without tools"


@settings(max_examples=300)
@given(
    data=st.data(),
    reasoning_format=st.sampled_from((THINK, MISTRAL)),
    standing=st.sampled_from(Standing),
    scraps=st.lists(SCRAPS, max_size=12),
)
def test_no_cut_changes_what_is_read_and_nothing_is_lost(
    data: st.DataObject, reasoning_format: ReasoningFormat, standing: Standing, scraps: list[str]
) -> None:
    text = "".join(scraps)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = read(reasoning_format, standing, pieces)
    assert found == read(reasoning_format, standing, [text])
    opening, closing = reasoning_format.opening[0], reasoning_format.closing[0]
    begun = text if standing is AMID else text.lstrip()
    if standing is BEHIND or (standing is BEFORE and not begun.startswith(opening)):
        assert found[:2] == ("", text)
        return
    thought, _, words = begun.removeprefix(opening if standing is BEFORE else "").partition(closing)
    is_closed = closing in begun.removeprefix(opening if standing is BEFORE else "")
    thought = thought if standing is AMID else thought.lstrip()
    assert found[0] == (thought.rstrip() if is_closed else thought)
    assert found[1] == words.lstrip("\r\n")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ content.split('</think>')[-1] }}", THINK),
        ("<|im_start|>assistant\n<think>\n", THINK),
        ("</seed:think>", SEED),
        ("[THINK]draft[/THINK]", MISTRAL),
        ("◁think▷◁/think▷", KIMI),
        ("<|start|>assistant<|channel|>analysis<|message|>", HARMONY),
        ("<|channel|>", None),
        (byte_tokenizer.CHATML, None),
    ],
)
def test_a_template_tells_the_format(template: str, told: ReasoningFormat | None) -> None:
    assert format_of(template) is told


def test_a_template_of_qwen3_tells_it() -> None:
    assert format_of((TEMPLATES / "qwen3.jinja").read_text()) is THINK


def test_the_end_of_a_prompt_says_where_its_answer_begins() -> None:
    assert THINK.standing("<think>?<|im_end|>\n<|im_start|>assistant\n") is BEFORE
    assert THINK.standing("<|im_start|>assistant\n<think>\n") is WITHIN
    assert THINK.standing("<think>\n\n</think>\n\n") is BEHIND
    assert HARMONY.standing("<|start|>assistant") is BEFORE
    assert HARMONY.standing("<|start|>assistant<|channel|>analysis<|message|>") is WITHIN


def test_an_answer_that_is_continued_says_where_it_stands() -> None:
    assert THINK.standing_within("") is BEFORE
    assert THINK.standing_within("\n<think>so far") is AMID
    assert THINK.standing_within("<think>so</think>") is BEHIND
    assert THINK.standing_within("so far, <think>") is BEHIND


JSON = Grammar(kind=GrammarKind.JSON_SCHEMA, text='{\n"type": "array"\n}', field="response_format")
REGEX = Grammar(kind=GrammarKind.REGEX, text="[0-9]+/[a\n]\\/x")
LARK = Grammar(kind=GrammarKind.LARK, text='start: "yes" | no\nno: "no"')
GOOD = {JSON: "[1]", REGEX: "1/\n/x", LARK: "no"}


def follows(grammar: Grammar, text: str, special: tuple[str, ...] = ()) -> bool:
    """Return whether a text is all of what a grammar allows; pieces of it that are special are one token each."""
    tokenizer = byte_tokenizer.build()
    tokenizer.add_special_tokens(list(special))
    tokens = tokenizer.encode(text).ids
    matcher = LLMatcher(LLTokenizer(tokenizer.to_str(), eos_token=byte_tokenizer.EOS_ID), grammar.text, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


def wrapped(grammar: Grammar, reasoning_format: ReasoningFormat, standing: Standing, *special: str) -> Grammar:
    ids = {each: byte_tokenizer.build().get_vocab_size() + place for place, each in enumerate(special)}
    return behind_reasoning(grammar, reasoning_format, standing, ids)


@pytest.mark.parametrize("reasoning_format", FORMATS.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("grammar", GOOD, ids=lambda each: each.kind)
@pytest.mark.parametrize("is_special", [False, True], ids=["words", "tokens"])
def test_a_grammar_rules_the_answer_behind_reasoning(
    grammar: Grammar, reasoning_format: ReasoningFormat, is_special: bool
) -> None:
    marks = sorted(reasoning_format.marks - {"analysis", "final", "assistant"}) if is_special else []
    opening, closing = "".join(reasoning_format.opening), "".join(reasoning_format.closing)
    bare, good, thought = "".join(reasoning_format.bare), GOOD[grammar], "{ a\n\n[2]"
    before = wrapped(grammar, reasoning_format, BEFORE, *marks)
    assert (before.kind, before.field) == (GrammarKind.LARK, grammar.field)
    told = {
        bare + good: True,
        f"{opening}{thought}{closing}{good}": True,
        f"{opening}{closing}\n\n{good}": True,
        f"{opening}{thought}{good}": False,
        f"{opening}{thought}{closing}{thought}": False,
        thought: False,
    }
    for text, is_good in told.items():
        assert follows(before, text, tuple(marks)) is is_good, text
        reasoning, words, _ = read(reasoning_format, BEFORE, [text])
        assert not is_good or (reasoning in {"", thought} and words == good)
    for standing in (WITHIN, AMID):
        within = wrapped(grammar, reasoning_format, standing, *marks)
        assert follows(within, f"{thought}{closing}\n{good}", tuple(marks))
        assert not follows(within, good, tuple(marks))
    assert wrapped(grammar, reasoning_format, BEHIND, *marks) is grammar


def test_what_is_no_json_is_left_to_whoever_refuses_it() -> None:
    for text in ("{", "[" * 100_000):
        broken = Grammar(kind=GrammarKind.JSON_SCHEMA, text=text)
        assert behind_reasoning(broken, THINK, BEFORE, {}) is broken


@pytest.mark.parametrize("text", ["a\\/b", "a/b", "a\nb", "a\\\nb", "a\\\\/b", "[/]"])
def test_a_regular_expression_is_written_as_the_library_does(text: str) -> None:
    nested = behind_reasoning(Grammar(kind=GrammarKind.REGEX, text=text), THINK, WITHIN, {}).text.splitlines()[-1]
    theirs = LLMatcher.grammar_from_regex(text)
    assert nested.removeprefix("answer: ") in theirs.replace("\\\\", "\\")
