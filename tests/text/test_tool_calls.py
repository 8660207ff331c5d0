"""Tool calls in text: what each reader finds, however the text was cut, and that grammars and readers agree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import byte_tokenizer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from pagewire.core.sampling import MAX_GRAMMAR_CHARS, Grammar, GrammarKind
from pagewire.text.reasoning.formats import HARMONY as REASONING
from pagewire.text.reasoning.formats import THINK, Standing
from pagewire.text.reasoning.grammar import behind_reasoning
from pagewire.text.tools import grammar
from pagewire.text.tools.formats import (
    DEEPSEEK,
    DEEPSEEK_PLAIN,
    FORMATS,
    GLM,
    GLM_INLINE,
    GRANITE,
    HARMONY,
    HERMES,
    KIMI_K2,
    LLAMA3_JSON,
    MISTRAL,
    MISTRAL_NAMED,
    PYTHONIC,
    QWEN3_CODER,
    ToolFormat,
    format_of,
)
from pagewire.text.tools.parameters import Schema
from pagewire.text.tools.reader import CallPart, Said, ToolReader, joined

WEATHERS: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "array"},
    "t": {"type": ["number", "null"]},
    "exact": {"type": "boolean"},
    "unit": {"enum": ["C", 1]},
    "more": {"anyOf": [{"type": "object"}, {"type": "string"}]},
    "any": {"$ref": "#"},
}
WRITTEN = (*FORMATS.values(), MISTRAL_NAMED, DEEPSEEK_PLAIN, GLM_INLINE)  # all ways to write calls
NAMES = (*FORMATS, "mistral_named", "deepseek_plain", "glm_inline")
KNOWN: dict[str, Schema] = {"get_weather": {"properties": WEATHERS}, "add": {"properties": None}, "now": {}}
Call = tuple[str, str]


def read(
    tool_format: ToolFormat,
    pieces: list[str],
    most: int | None = None,
    tools: Mapping[str, Schema] = KNOWN,
    barred: Collection[str] = (),
    *,
    is_either: bool = False,
) -> tuple[str, list[Call]]:
    """Return the words and the calls, names and arguments; the deltas are what a client would add up."""
    reader = ToolReader(tool_format, tools, most=most, barred=barred, is_either=is_either)
    said = [*(reader.push(piece) for piece in pieces), reader.finish()]
    calls: dict[int, Call] = {}
    for part in (part for each in said for part in each.calls):
        if part.name:
            assert part.index == len(calls)
            calls[part.index] = (part.name, part.arguments)
        else:
            name, arguments = calls[part.index]
            calls[part.index] = (name, arguments + part.arguments)
    return "".join(each.words for each in said), list(calls.values())


WEATHER = '{"name": "get_weather", "arguments": {"city": "Paris \\"{x}\\"", "days": [1, {"a": 2}]}}'
PARIS = ("get_weather", '{"city": "Paris \\"{x}\\"", "days": [1, {"a": 2}]}')
CITY = '<parameter=city>\nParis\n "x" < 5\n</parameter>\n'


def keyed(**values: str) -> str:
    return "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())


CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def of_deepseek(name: str, arguments: str) -> str:
    return f"{CALL_BEGIN}function{SEP}{name}\n```json\n{arguments}\n```{CALL_END}"


def of_glm(*, line: str = "\n", **values: str) -> str:
    return "".join(
        f"{line}<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>" for key, value in values.items()
    )


SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def of_kimi(name: str, arguments: str) -> str:
    return f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


COMMENTARY, FINAL = "<|channel|>commentary", "<|channel|>final<|message|>"
ROLE = "<|start|>assistant"


FOUND: list[tuple[ToolFormat, str, str, list[Call]]] = [
    (HERMES, f"<tool_call>\n{WEATHER}\n</tool_call>", "", [PARIS]),
    (HERMES, f"Let me see.\n\n<tool_call>{WEATHER}</tool_call>\n<tool_call>\n{{\"name\": \"now\"}}\n</tool_call>\n",
     "Let me see.", [PARIS, ("now", "{}")]),
    (HERMES, f"<tool_call>{WEATHER}</tool_call> that was it", "that was it", [PARIS]),
    (HERMES, f"<tool_call>{WEATHER[:-1]}\n</tool_call>", "", [PARIS]),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "id": 5, "name": "add"}</tool_call>', "", [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "add", "arguments": null}</tool_call>', "", [("add", "{}")]),
    (HERMES, '<tool_call>{"name": "unheard_of", "arguments": {}}</tool_call>', "", [("unheard_of", "{}")]),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": [1', "", [("add", '{"a": [1')]),
    (HERMES, '<tool_call> { "name" : "add" , "arguments" : { } } </tool_call>', "", [("add", "{ }")]),
    (HERMES, '<tool_call>{"name": "", "name": "add", "name": "now", "id": {}, "arguments": {"a": 1}}', "",
     [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "add", "id": {"b": 2}, "arguments": {"a": 1}, "parameters": {}, "name": "now"}', "",
     [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"parameters": {"a": 1}, "arguments": {"b": 2}, "name": "unheard_of"}', "",
     [("unheard_of", '{"a": 1}')]),
    (MISTRAL, f"[TOOL_CALLS] [{WEATHER}, {{\"name\":\"now\",\"arguments\":{{}}}}]", "", [PARIS, ("now", "{}")]),
    (MISTRAL, f"Well [TOOL_CALLS]{WEATHER}", "Well", [PARIS]),
    (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[CALL_ID]a1B2c3D4e[ARGS]{}', "",
     [("add", '{"a": 1}'), ("now", "{}")]),
    (MISTRAL, '[TOOL_CALLS]{"name": "unheard_of"} [TOOL_CALLS] [{"name": "unheard.of"}]', "",
     [("unheard_of", "{}"), ("unheard.of", "{}")]),
    (MISTRAL, '[TOOL_CALLS]unheard_of[ARGS] {"a": 1} so', "so", [("unheard_of", '{"a": 1}')]),
    (MISTRAL, '[TOOL_CALLS]"[TOOL_CALLS]now[ARGS]{}', '[TOOL_CALLS]"', [("now", "{}")]),
    (MISTRAL, '[TOOL_CALLS] [{"name": "add", "arguments": {}} oh', " oh", [("add", "{}")]),
    (LLAMA3_JSON, f"{WEATHER}; ", "", [PARIS]),
    (LLAMA3_JSON, '{"parameters": {"a": 1}, "name": "add"}', "", [("add", '{"a": 1}')]),
    (LLAMA3_JSON, WEATHER.replace("arguments", "parameters"), "", [PARIS]),
    (LLAMA3_JSON, f"<|python_tag|>{WEATHER}; {WEATHER}", "", [PARIS, PARIS]),
    (LLAMA3_JSON, f"\n{WEATHER} and so on", "and so on", [PARIS]),
    (PYTHONIC, "[get_weather(city=\"Paris\", exact=True, t=-1.5e3), now()]", "",
     [("get_weather", '{"city": "Paris", "exact": true, "t": -1.5e3}'), ("now", "{}")]),
    (PYTHONIC, "[add(a=[1, 'b\\'\\n', (None, null)], b={'x': {\"y\": false}}, c='\\x41\\u00e9')] ", "",
     [("add", '{"a": [1, "b\'\\n", [null, null]], "b": {"x": {"y": false}}, "c": "Aé"}')]),
    (PYTHONIC, "[now(), oh well", " oh well", [("now", "{}")]),
    (PYTHONIC, "[now() oh", " oh", [("now", "{}")]),
    (PYTHONIC, "\n[ now() , add( a = 1 ) ]\n so", "so", [("now", "{}"), ("add", '{"a": 1}')]),
    (QWEN3_CODER, f"I see.\n<tool_call>\n<function=get_weather>\n{CITY}</function>\n</tool_call>\n"
     "<tool_call>\n<function=now>\n</function>\n</tool_call>", "I see.",
     [("get_weather", '{"city": "Paris\\n \\"x\\" < 5"}'), ("now", "{}")]),
    (QWEN3_CODER, "<tool_call><function=get_weather><parameter=city>Paris</parameter><parameter=days>[1, {\"a\": 2}]"
     "</parameter></function></tool_call> well", "well",
     [("get_weather", '{"city": "Paris", "days": [1, {"a": 2}]}')]),
    (QWEN3_CODER, "<tool_call><function=get_weather>"
     + keyed(t="-1.5e3", exact="True", unit="C", more="{\"a\": 1}", any="5") + "</function></tool_call>", "",
     [("get_weather", '{"t": -1.5e3, "exact": true, "unit": "C", "more": {"a": 1}, "any": 5}')]),
    (QWEN3_CODER, "<function=get_weather>" + keyed(t="None", exact="maybe", unit="1", more="[1]", any="{oh")
     + "</function>\n</tool_call>", "",
     [("get_weather", '{"t": null, "exact": "maybe", "unit": 1, "more": "[1]", "any": "{oh"}')]),
    (QWEN3_CODER, "<tool_call><function=add>" + keyed(a="5", b="\n\n x\n\n")
     + "</tool_call> <function=now></function>", "",
     [("add", '{"a": "5", "b": "\\n\\n x\\n\\n"}'), ("now", "{}")]),
    (QWEN3_CODER, "<tool_call><function=unheard.of><parameter=a>\n1\n</parameter>", "", [("unheard.of", '{"a": "1"')]),
    (QWEN3_CODER, "<tool_call><function=get_weather><parameter=city>\nPar\n</param", "",
     [("get_weather", '{"city": "Par')]),
    (QWEN3_CODER, "<tool_call><function=get_weather><parameter=days>\n[1, 2", "", [("get_weather", '{"days": ')]),
    (QWEN3_CODER, "<tool_call><function=now>\n</func", "", [("now", "{")]),
    (QWEN3_CODER, "<tool_call><function=add><parameter=ci", "", [("add", "{")]),
    (QWEN3_CODER, "<tool_call><function=now></function></tool_c", "", [("now", "{}")]),
    (QWEN3_CODER, "<function=add>" + keyed(é="ü") + "</function>", "", [("add", '{"é": "ü"}')]),
    (QWEN3_CODER, "<tool_call><function=now> oh </function>", "oh </function>", [("now", "{}")]),
    (DEEPSEEK, f"I see.{CALLS_BEGIN}{of_deepseek('get_weather', PARIS[1])}\n{of_deepseek('now', '{}')}{CALLS_END}",
     "I see.", [PARIS, ("now", "{}")]),
    (DEEPSEEK, f"{CALLS_BEGIN}{CALL_BEGIN}get_weather{SEP}{PARIS[1]}{CALL_END}{CALL_BEGIN}unheard.of{SEP}{{}}{CALL_END}"
     f"{CALLS_END} so", "so", [PARIS, ("unheard.of", "{}")]),
    (DEEPSEEK, f"{CALL_BEGIN}function{SEP}{{}}", "", [("function", "{}")]),
    (DEEPSEEK, f"a {CALLS_BEGIN}\n{CALL_BEGIN} function{SEP}now\n{{}}{CALL_END} \n{CALLS_END}\n", "a", [("now", "{}")]),
    (DEEPSEEK, of_deepseek("add", '{"a": 1}') + of_deepseek("now", "oh"), of_deepseek("now", "oh"),
     [("add", '{"a": 1}')]),
    (DEEPSEEK, f"{CALLS_BEGIN}{CALL_BEGIN}now{SEP}{{}}{CALL_END}{CALLS_END}{CALLS_BEGIN}", CALLS_BEGIN,
     [("now", "{}")]),
    (DEEPSEEK, f"{CALLS_BEGIN}{CALL_BEGIN}function{SEP}add\n```json\n{{\"a\": [1", "", [("add", '{"a": [1')]),
    (DEEPSEEK, f"{CALLS_BEGIN}{of_deepseek('now', '{}')[:-5]}", "", [("now", "{}")]),
    (DEEPSEEK, f"{CALLS_BEGIN}{of_deepseek('now', '{}')}{CALLS_END[:9]}", "", [("now", "{}")]),
    (GLM, "I see.\n<tool_call>get_weather" + of_glm(city="\n Paris", days="[1, 2]") + "\n</tool_call>\n"
     "<tool_call>now\n</tool_call>", "I see.",
     [("get_weather", '{"city": "\\n Paris", "days": [1, 2]}'), ("now", "{}")]),
    (GLM, f"<tool_call>get_weather{of_glm(line='', city='Paris', t='-1.5e3', exact='maybe')}</tool_call>"
     "<tool_call>now</tool_call> so", "so",
     [("get_weather", '{"city": "Paris", "t": -1.5e3, "exact": "maybe"}'), ("now", "{}")]),
    (GLM, f"<tool_call> unheard.of {of_glm(a='1')} oh </tool_call>", "oh </tool_call>", [("unheard.of", '{"a": "1"}')]),
    (GLM, "<tool_call>add<arg_key>a</arg_key>1</arg_value></tool_call>", "", [("add", '{"a": "1"}')]),
    (GLM, f"<tool_call>get_weather{of_glm(city='Par')[:-5]}", "", [("get_weather", '{"city": "Par')]),
    (GLM, "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>[1, 2", "", [("get_weather", '{"days": ')]),
    (GLM, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_", "", [("get_weather", '{"city": ')]),
    (GLM, "<tool_call>add<arg_key>ci", "", [("add", "{")]),
    (GLM, f"<tool_call>now{of_glm(a='1')}\n</tool_c", "", [("now", '{"a": "1"')]),
    (KIMI_K2, f"I see.{SECTION}{of_kimi('functions.get_weather:3', PARIS[1])}{of_kimi('functions.now:12', '{}')}"
     f"{SECTION_END}", "I see.", [PARIS, ("now", "{}")]),
    (KIMI_K2, f"{SECTION}\n{of_kimi(' unheard.of:0 ', ' {} ')}\n{SECTION_END} so", "so", [("unheard.of", "{}")]),
    (KIMI_K2, of_kimi("add:0", '{"a": 1}') + of_kimi("add", "{}"), of_kimi("add", "{}"), [("add", '{"a": 1}')]),
    (KIMI_K2, f'{SECTION}{of_kimi("functions.add:0", "")[:-17]}{{"a": [1', "", [("add", '{"a": [1')]),
    (KIMI_K2, f"{SECTION}{of_kimi('functions.now:0', '{}')[:-9]}", "", [("now", "{}")]),
    (KIMI_K2, f"{SECTION}{of_kimi('functions.now:0', '{}')}{SECTION_END[:-9]}", "", [("now", "{}")]),
    (HARMONY, f"{COMMENTARY} to=functions.get_weather <|constrain|>json<|message|>{PARIS[1]}", "", [PARIS]),
    (HARMONY, f" to=functions.get_weather{COMMENTARY} json<|message|>{PARIS[1]}<|call|>", "", [PARIS]),
    (HARMONY, f"{COMMENTARY}<|message|>I see.\n\n<|end|>{ROLE}{COMMENTARY} to=functions.add<|constrain|>json<|message|>"
     f'{{"a": 1}}<|call|>{ROLE} to=functions.now<|channel|>analysis code<|message|> {{}} <|end|>', "I see.",
     [("add", '{"a": 1}'), ("now", "{}")]),
    (HARMONY, f"{COMMENTARY} to=functions.now<|message|>{{}}<|call|>{ROLE}{COMMENTARY}<|message|>So<|end|>{ROLE}{FINAL}"
     " it is.", "So it is.", [("now", "{}")]),
    (HARMONY, f"<|channel|>analysis<|message|>Hm<|end|>{ROLE}{COMMENTARY} to=functions.now<|message|>{{}}",
     "<|channel|>analysis<|message|>Hm<|end|>", [("now", "{}")]),
    (HARMONY, f'{COMMENTARY} to=functions.add<|message|>{{"a": [1', "", [("add", '{"a": [1')]),
    (HARMONY, f"{COMMENTARY} to=functions.now<|message|>{{}}<|ca", "", [("now", "{}")]),
    (GRANITE, f'I see.\n<|tool_call|>[{WEATHER}, {{"name": "now", "arguments": {{}}}}]', "I see.",
     [PARIS, ("now", "{}")]),
    (GRANITE, f"<tool_call> [{WEATHER}] so <|tool_call|> {WEATHER}", "so", [PARIS, PARIS]),
    (GRANITE, '<|tool_call|>[{"name": "add", "arguments": {"a": [1', "", [("add", '{"a": [1')]),
]  # fmt: skip
WORDS: list[tuple[ToolFormat, str]] = [
    *((each, text) for each in WRITTEN for text in ("", " ", "hello\n", "a <tool b [TOOL {x} [1, 2]", "[", "{")),
    (HERMES, "<tool_call>oh</tool_call> <tool_call></tool_call>"),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
    (HERMES, '<tool_call>{"name": "a b", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "add", "argum'),
    (MISTRAL, "[TOOL_CALLS] no [TOOL_CALLS] [5] [TOOL_CALLS] [TOOL_CALLS]"),
    (LLAMA3_JSON, '{"name": "Bob", "parameters": {}}'),
    (LLAMA3_JSON, '{"name": "add", "age": 3}'),
    (LLAMA3_JSON, '{"parameters": {}, "name": "Bob"}'),
    (LLAMA3_JSON, '  {"a": 1}\n<|python_tag|>print(1)'),
    (PYTHONIC, "[see(x=1)](http://x)"),
    (PYTHONIC, "[add(a=__import__('os'))]"),
    (PYTHONIC, "[add(a=NaN)]"),
    (PYTHONIC, "[add(1)]"),
    (PYTHONIC, "[add(a=" + "[" * 40),
    (PYTHONIC, "well [add(a=1)]"),
    (QWEN3_CODER, "in <function=sub>, or <function=, <tool_call> <function=a b></function>"),
    (QWEN3_CODER, "<tool_call>\n<function=now"),
    (QWEN3_CODER, '<tool_call>{"name": "now", "arguments": {}}</tool_call>'),
    (DEEPSEEK, f"{CALLS_BEGIN} so {CALL_BEGIN}oh{CALL_END}{CALLS_END}"),
    (DEEPSEEK, f"{CALLS_BEGIN}{CALL_BEGIN}a b{SEP}{{}}{CALL_END}{CALLS_END}"),
    (DEEPSEEK, f"{CALLS_BEGIN}{CALL_BEGIN}now{SEP}[1]{CALL_END}{CALLS_END}"),
    (DEEPSEEK, f"{CALLS_BEGIN}{CALL_BEGIN}function{SEP}now\n```py\n{{}}\n```{CALL_END}{CALLS_END}"),
    (DEEPSEEK, f"{CALLS_BEGIN}{CALL_BEGIN}function{SEP}now\n```json\n"),
    (KIMI_K2, f"a {SECTION} {SECTION}{of_kimi('functions.now', '{}')}{SECTION_END}"),
    (KIMI_K2, f"{SECTION}{of_kimi('functions.:0', '{}')}{of_kimi('functions.now:0', '1')}{SECTION_END}"),
    (KIMI_K2, f"{SECTION}<|tool_call_begin|>functions.now:0<|tool_call_arg"),
    (HARMONY, f"<|end|> so {FINAL} {COMMENTARY} to=browser.search code<|message|>{{}}<|call|>"),
    (HARMONY, f"{COMMENTARY} to=functions.now<|message|>oh<|call|>{ROLE} to=functions.now {{}}"),
    (HARMONY, f"to=functions.now {ROLE} well {COMMENTARY} to=functions.a B<|message|>{{}}"),
    (HARMONY, f"{ROLE} to=functions.now<|channel|>commentary json<|mess"),
    (GRANITE, "<|tool_call|>[] <|tool_call|>now[ARGS]{} <tool_call> [TOOL_CALLS]"),
    (GRANITE, '<|tool_call|>[{"name": "now", "argum'),
    (GLM, "<tool_call>oh</tool_call"),
    (GLM, "a <tool_call> <tool_call>oh well</tool_call> <tool_call></tool_call>"),
    (GLM, f"<tool_call>{of_glm(a='1')}</tool_call> <tool_call>now\n"),
    (GLM, '<tool_call>{"name": "now", "arguments": {}}</tool_call>'),
]


@pytest.mark.parametrize(("tool_format", "text", "words", "calls"), FOUND)
def test_calls_are_found_however_the_text_is_cut(
    tool_format: ToolFormat, text: str, words: str, calls: list[Call]
) -> None:
    assert read(tool_format, [text]) == (words, calls)
    assert read(tool_format, list(text)) == (words, calls)
    assert read(tool_format, [text], most=1) == (words, calls[:1])
    for cut in range(len(text)):
        assert read(tool_format, [text[:cut], text[cut:]]) == (words, calls)


@pytest.mark.parametrize(("tool_format", "text"), WORDS)
def test_what_is_no_call_is_words_and_nothing_is_lost(tool_format: ToolFormat, text: str) -> None:
    for cut in range(len(text) + 1):
        assert read(tool_format, [text[:cut], text[cut:]]) == (text, [])
    assert read(tool_format, list(text)) == (text, [])


@pytest.mark.parametrize(
    ("tool_format", "words", "text"),
    [
        (HERMES, "I see. ", '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'),
        (HERMES, "", '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>'),
        (MISTRAL, "I see. ", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]'),
        (MISTRAL, "", '[TOOL_CALLS]add[ARGS]{"a": 1}'),
        (LLAMA3_JSON, "", '{"name": "add", "parameters": {"a": 1}}'),
        (PYTHONIC, "", "[add(a=1)]"),
        (
            QWEN3_CODER,
            "I see. ",
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        ),
        (QWEN3_CODER, "", "<function=add>\n</function>"),
        (DEEPSEEK, "I see. ", f"{CALLS_BEGIN}{of_deepseek('add', '{}')}{CALLS_END}"),
        (DEEPSEEK, "", f"{CALL_BEGIN}add{SEP}{{}}"),
        (KIMI_K2, "I see. ", f"{SECTION}{of_kimi('functions.add:0', '{}')}{SECTION_END}"),
        (HARMONY, "I see. ", f"{COMMENTARY} to=functions.add <|constrain|>json<|message|>{{}}<|call|>"),
        (HARMONY, "", f" to=functions.add{COMMENTARY} json<|message|>{{}}"),
        (GRANITE, "I see. ", '<|tool_call|>[{"name": "add", "arguments": {}}]'),
        (GLM, "I see. ", f"<tool_call>add{of_glm(a='1')}</tool_call>"),
    ],
)
def test_a_call_of_a_tool_that_may_not_be_called_is_words(tool_format: ToolFormat, words: str, text: str) -> None:
    said = words + text
    for pieces in ([said], list(said)):
        assert read(tool_format, pieces, barred=["add"]) == (said, [])
        assert [name for name, _ in read(tool_format, pieces, barred=["now"])[1]] == ["add"]
    both = f'{HERMES.opening[0]}{{"name": "now"}}</tool_call>'
    assert read(HERMES, [both + both.replace("now", "add")], barred=["now"]) == (both, [("add", "{}")])


def said_of(tool_format: ToolFormat, pieces: list[str]) -> Said:
    """Return what is said in all pieces, put together as whoever gathers them does."""
    reader = ToolReader(tool_format, KNOWN)
    words, calls = "", tuple[CallPart, ...]()
    for said in (*(reader.push(piece) for piece in pieces), reader.finish()):
        calls, words = joined(calls, said.calls, len(words)), words + said.words
    return Said(words=words, calls=calls)


@pytest.mark.parametrize(("tool_format", "text", "words", "calls"), FOUND)
def test_pieces_put_together_are_the_calls_among_the_words(
    tool_format: ToolFormat, text: str, words: str, calls: list[Call]
) -> None:
    whole = said_of(tool_format, [text])
    assert whole.words == words
    assert [(part.index, part.name, part.arguments) for part in whole.calls] == [
        (index, *call) for index, call in enumerate(calls)
    ]
    assert said_of(tool_format, list(text)) == whole


def test_of_several_pieces_the_first_alone_goes_on_with_a_call() -> None:
    one, more, two, three = (
        CallPart(index=0, name="a", arguments="{", id="i", at=1), CallPart(index=0, arguments="}"),
        CallPart(index=1, name="b", at=1), CallPart(index=2, name="c", at=2),
    )  # fmt: skip
    behind = (replace(two, at=4), replace(three, at=5))
    assert joined((one,), (more, two, three), 3) == (replace(one, arguments="{}"), *behind)
    assert joined((one,), (two, three), 3) == (one, *behind)
    assert joined((), (two, three), 3) == behind
    assert joined((one,), (), 3) == (one,)


def test_each_call_stands_where_it_stood_among_the_words() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    said = said_of(HERMES, [f"a b {call} c {call}{call} d"])
    assert said.words == "a bcd"
    assert [part.at for part in said.calls] == [3, 4, 4]


SCRAPS = st.sampled_from((
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", WEATHER, '{"name": "add", ',
    '"arguments": {', '"parameters": ', '"name": "now"', "{}", "}", "{", "[", "]", "[add(", "a=", "'", '"',
    "\\", "\\u00",
    ", ", ":", ";", ")", "\n", " ", "None", "1e5", "now()", "é",
    "<function=", "<function=get_weather>", "<parameter=city>", "<parameter=days>", "</parameter>", "</function>", "</",
    "<|tool_call|>",
    ROLE, "<|channel|>", "commentary", " to=functions.now", "<|constrain|>", "<|message|>", "<|call|>", "<|end|>",
    SECTION, "<|tool_call_begin|>", "functions.", ":0", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    SECTION_END,
    "<arg_key>", "city</arg_key>", "<arg_value>", "</arg_value>",
    CALLS_BEGIN, CALL_BEGIN, "function", SEP, "```json", "```", CALL_END, CALLS_END,
))  # fmt: skip


@settings(max_examples=300)
@given(data=st.data(), tool_format=st.sampled_from(WRITTEN), scraps=st.lists(SCRAPS, max_size=12))
def test_no_cut_changes_what_is_read(data: st.DataObject, tool_format: ToolFormat, scraps: list[str]) -> None:
    text = "".join(scraps)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    words, calls = read(tool_format, [text])
    assert read(tool_format, pieces) == (words, calls)
    has_heads = tool_format is HARMONY and "commentary" in text and "<|message|>" in text  # which are no words
    if not calls and not has_heads:
        assert words == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYWORDS = st.from_regex(r"[a-z_]{1,5}", fullmatch=True)
CALLS = st.lists(
    st.tuples(st.sampled_from(sorted(KNOWN)), st.dictionaries(KEYWORDS, VALUES, max_size=3)), min_size=1, max_size=3
)


def kind(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def written(
    tool_format: ToolFormat, calls: list[tuple[str, dict[str, Any]]], literal: Callable[[Any], str] = repr
) -> str:
    """Return the text of calls as the format's own description has it."""
    texts: list[str] = []
    for name, arguments in calls:
        inner = as_json(arguments)
        if (keywords := tool_format.keywords) is not None:
            told = {
                key: value if keywords.text_end and isinstance(value, str) else literal(value)
                for key, value in arguments.items()
            }
            inner = keywords.between.join(
                f"{keywords.before}{key}{keywords.middle}{value}{keywords.after}" for key, value in told.items()
            )
        number = f":{len(texts)}" if tool_format.is_numbered else ""
        before = tool_format.before_name + name + number + "".join(tool_format.before_arguments)
        texts.append(before + inner + tool_format.after_arguments)
    return "".join(tool_format.opening) + "".join(tool_format.between).join(texts) + "".join(tool_format.closing)


@settings(max_examples=150)
@given(tool_format=st.sampled_from(WRITTEN), calls=CALLS, cut=st.integers(0, 200))
def test_what_is_written_as_a_format_says_is_read_back(
    tool_format: ToolFormat, calls: list[tuple[str, dict[str, Any]]], cut: int
) -> None:
    tools = KNOWN
    if tool_format.keywords is not None and tool_format.keywords.text_end:
        # The types have to be known, so each call has a schema of its own.
        calls = [(f"{name}{place}", arguments) for place, (name, arguments) in enumerate(calls)]
        tools = {
            name: {"properties": {key: {"type": kind(value)} for key, value in told.items()}} for name, told in calls
        }
    text = written(tool_format, calls, as_json if tools is not KNOWN else repr)
    words, found = read(tool_format, [text[:cut], text[cut:]], tools=tools)
    assert words == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_a_call_is_told_as_it_grows() -> None:
    reader = ToolReader(HERMES, KNOWN)
    assert reader.push('I see. <tool_call>{"name": "add", "arg').words == "I see."
    assert not reader.has_calls
    assert reader.push('uments": {"a').calls == (CallPart(index=0, name="add", arguments='{"a'),)
    assert reader.has_calls
    assert reader.push('": 1').calls == (CallPart(index=0, arguments='": 1'),)
    reader = ToolReader(QWEN3_CODER, KNOWN)
    assert reader.push("<tool_call><function=get_weather>").calls == (
        CallPart(index=0, name="get_weather", arguments="{"),
    )
    assert reader.push("<parameter=city>\nPa").calls == (CallPart(index=0, arguments='"city": "Pa'),)
    assert reader.push("ris\n").calls == (CallPart(index=0, arguments="ris"),)
    assert reader.push("</p").calls == ()


@pytest.mark.parametrize(("tool_format", "text"), [(each[0], each[1]) for each in FOUND])
def test_one_is_within_a_call_until_its_arguments_are_whole(tool_format: ToolFormat, text: str) -> None:
    every, first = (ToolReader(tool_format, KNOWN, most=most) for most in (None, 1))
    arguments: list[str] = []
    for size, char in enumerate(text, start=1):
        first.push(char)
        for part in every.push(char).calls:
            arguments += [""] if part.name else []
            arguments[-1] += part.arguments
        assert every.has_calls == bool(arguments)
        whole = ToolReader(tool_format, KNOWN)
        whole.push(text[:size])
        assert whole.is_within_call == every.is_within_call
        is_open = bool(arguments) and not is_json(arguments[-1])
        assert every.is_within_call == is_open
        assert first.is_within_call == (is_open and len(arguments) == 1)


@pytest.mark.parametrize("tool_format", WRITTEN, ids=NAMES)
def test_a_forced_call_that_is_cut_off_before_its_name_is_no_words(tool_format: ToolFormat) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("get_weather", {"city": "Paris"}), ("now", {})]
    text = written(tool_format, calls, as_json)
    are_words = set()
    for end in range(len(text) + 1):
        pieces = [text[:end]], list(text[:end])
        for each in pieces:
            forced = ToolReader(tool_format, KNOWN, is_forced=True)
            said = [*map(forced.push, each), forced.finish()]
            assert "".join(part.words for part in said) == "", text[:end]
            assert [(part.name, part.at) for one in said for part in one.calls if part.name] == [
                (name, 0) for name, _ in read(tool_format, each)[1]
            ]
        are_words.add(read(tool_format, pieces[0])[0] != "")
    assert are_words == {True, False}  # where it may as well be words, it is


def test_words_that_were_told_amid_forced_calls_stay() -> None:
    reader = ToolReader(HERMES, KNOWN, is_forced=True)
    assert reader.push("hello <tool") == Said(words="hello")
    assert reader.finish() == Said()
    # Nor is a mark that ends amid one of its characters.
    assert ToolReader(DEEPSEEK, KNOWN, is_forced=True).finish("<\ufffd") == Said()
    assert ToolReader(DEEPSEEK, KNOWN).finish("<\ufffd") == Said(words="<\ufffd")


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_what_adds_nothing_to_a_call_is_no_part_of_it() -> None:
    reader = ToolReader(QWEN3_CODER, KNOWN)
    reader.push("<tool_call><function=get_weather><parameter=city>\nParis")
    assert reader.push("\n").calls == ()
    assert reader.push("x").calls == (CallPart(index=0, arguments="\\nx"),)


@pytest.mark.parametrize(
    ("tool_format", "beginning"),
    [
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": "'),
        (QWEN3_CODER, "<tool_call><function=get_weather><parameter=city>\n"),
        (QWEN3_CODER, "<tool_call><function=get_weather><parameter=days>\n"),
        (DEEPSEEK, f'{CALLS_BEGIN}{CALL_BEGIN}add{SEP}{{"a": "'),
        (GLM, "<tool_call>get_weather<arg_key>city</arg_key><arg_value>"),
        (HERMES, "words "),
        (QWEN3_CODER, "words "),
        (DEEPSEEK, "words "),
    ],
)
def test_what_was_told_is_not_kept(tool_format: ToolFormat, beginning: str) -> None:
    """Or each piece of a long text would cost as much as all before it."""
    reader = ToolReader(tool_format, KNOWN)
    reader.push(beginning)
    for _ in range(100):
        reader.push("abcdefgh ")
        assert len(reader._scanner._text) < 100


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call></tool_call>{% endif %}", "hermes"),
        ("<tool_call>\n<function=f>", None),
        ("<tool_call>\n<function=f>\n<parameter=a>", "qwen3_coder"),
        ("{{ '<seed:tool_call>\n<function=f>\n<parameter=a>' }}", None),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>", "glm"),
        ("<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>", "glm"),
        ("<tool_call>{name}<tool_sep>\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>", None),
        ("{{ '<tool_calls><tool_call>' + call.name + '\n```json\n' + call.arguments + '\n```</tool_call>' }}", None),
        ("{{ '[TOOL_CALLS] [' }}", "mistral"),
        ('{"name": function name, "parameters": dictionary} <|start_header_id|>ipython', "llama3_json"),
        ("<|python_tag|>", "llama3_json"),
        ('"parameters": {}', None),
        ("<|start_header_id|>ipython", None),
        ("[func_name1(params_name1=params_value1), func_name2(params)] ipython <|python_tag|>", "pythonic"),
        (
            "{{ '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name + '\n```json\n' }}",
            "deepseek",
        ),
        ("{{ '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' }}", "deepseek"),
        ("{{ '<｜tool▁output▁begin｜>' }}", None),
        ("<|tool_calls_section_begin|><|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>", "kimi_k2"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", None),
        ("{{ '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}", "harmony"),
        ("{{ '<|channel|>commentary<|message|>' }}", None),
        ("respond only with <|tool_call|> followed by a JSON list of tools used", "granite"),
        ("{{ '<|tool_call|>' + (tool_call['function'] | tojson) + '<|/tool_call|>' }}", None),
        (byte_tokenizer.CHATML, None),
    ],
)
def test_a_template_tells_its_format(template: str, name: str | None) -> None:
    found = format_of(template)
    assert (found.name if found is not None else None) == name


def test_of_two_ways_to_write_one_format_a_template_tells_which() -> None:
    assert format_of("{{ '[TOOL_CALLS] [' }}") is MISTRAL
    assert format_of("{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}") is MISTRAL_NAMED
    assert format_of("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>") is GLM
    assert format_of("<tool_call>f<arg_key>a</arg_key><arg_value>") is GLM_INLINE
    assert format_of(CALL_BEGIN + SEP) is DEEPSEEK_PLAIN
    assert format_of(CALL_BEGIN + SEP + "```json") is DEEPSEEK


TOOLS: list[tuple[str, dict[str, Any]]] = [
    (
        "get_weather",
        {
            "type": "object",
            "properties": {
                "unit": {"enum": ["C", "F"]},
                "city": {"type": "string"},
                "days": {"type": "array", "items": {"$ref": "#/$defs/Day"}},
            },
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"Day": {"type": "integer"}},
        },
    ),
    ("now", {"type": "object", "properties": {}, "additionalProperties": False}),
]
ALLOWED: list[list[tuple[str, dict[str, Any]]]] = [
    [("get_weather", {"city": "Paris"})],
    [("get_weather", {"unit": "C", "city": "é", "days": [1, 2]}), ("now", {}), ("get_weather", {"city": ""})],
]
FORBIDDEN: list[list[tuple[str, dict[str, Any]]]] = [
    [("get_weather", {"unit": "C"})],
    [("get_weather", {"unit": "K", "city": "a"})],
    [("get_weather", {"city": "a", "days": ["x"]})],
    [("then", {})],
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    folder: Path = byte_tokenizer.save(tmp_path_factory.mktemp("grammar"))
    return LLTokenizer(str(folder / "tokenizer.json"), eos_token=byte_tokenizer.EOS_ID)


def accepts(tokenizer: LLTokenizer, lark: str, text: str) -> bool:
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = byte_tokenizer.build().encode(text).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("tool_format", WRITTEN, ids=NAMES)
def test_a_forced_call_follows_its_schema_and_is_one_that_the_reader_reads(
    tokenizer: LLTokenizer, tool_format: ToolFormat
) -> None:
    several = grammar.calls(tool_format, TOOLS, {}, is_single=False)
    single = grammar.calls(tool_format, TOOLS, {}, is_single=True)
    for calls in ALLOWED:
        text = written(tool_format, calls, as_json)
        assert accepts(tokenizer, several, text), text
        assert accepts(tokenizer, single, text) == (len(calls) == 1)
        assert [
            (name, json.loads(arguments)) for name, arguments in read(tool_format, [text], tools=dict(TOOLS))[1]
        ] == calls
    for calls in FORBIDDEN:
        assert not accepts(tokenizer, several, written(tool_format, calls, as_json)), calls
    assert not accepts(tokenizer, several, "hello")
    assert not accepts(tokenizer, several, "")


STRUCTURE = {
    "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False,
}  # fmt: skip
ANSWERS: list[tuple[Grammar, list[str], list[str]]] = [  # what rules them, some that are good, and some that are none
    (Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(STRUCTURE), field="response_format"),
     ['{"a": "b"}', '{"a": "<tool_call> [now()]"}'], ['{"b": "a"}', "a", "[now("]),
    (Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"type": "array"}'), ['["now", {}]', "[]"], ["{}"]),
    (Grammar(kind=GrammarKind.REGEX, text="[a-c/]+"), ["a/b"], ["d", "[a"]),
    (Grammar(kind=GrammarKind.LARK, text='start: "yes" | no\nno: "no {"'), ["yes", "no {"], ["no", "yesno {"]),
]  # fmt: skip
BESIDE = [each for each in WRITTEN if not each.is_json]


def test_what_is_said_before_calls_is_words_without_its_marks() -> None:
    said = f"{COMMENTARY}<|message|>I see.<|end|>{ROLE}{FINAL} Well."
    for pieces in ([said], list(said)):
        assert read(HARMONY, pieces) == ("I see. Well.", [])


@pytest.mark.parametrize("tool_format", BESIDE, ids=lambda each: each.name)
@pytest.mark.parametrize(("answer", "good", "bad"), ANSWERS, ids=lambda each: getattr(each, "kind", ""))
@pytest.mark.parametrize("reasoning", ["", "<think>so {\n</think>\n\n"], ids=["alone", "behind reasoning"])
def test_an_answer_is_calls_or_what_another_grammar_rules(
    tokenizer: LLTokenizer, tool_format: ToolFormat, answer: Grammar, good: list[str], bad: list[str], reasoning: str
) -> None:
    either = grammar.calls_or(grammar.calls(tool_format, TOOLS, {}, is_single=False), answer, tool_format.head)
    head = "".join(tool_format.head)
    good, bad = [head + text for text in good], [*(head + text for text in bad), head]
    assert (either.kind, either.field) == (GrammarKind.LARK, answer.field)
    either = behind_reasoning(either, THINK, Standing.BEFORE, {}) if reasoning else either
    for calls in ALLOWED:
        text = written(tool_format, calls, as_json)
        assert accepts(tokenizer, either.text, reasoning + text), text
        assert not accepts(tokenizer, either.text, reasoning + text + good[0])
        assert not accepts(tokenizer, either.text, reasoning + good[0] + text)
    for calls in FORBIDDEN:
        assert not accepts(tokenizer, either.text, reasoning + written(tool_format, calls, as_json)), calls
    for text in good:
        assert accepts(tokenizer, either.text, reasoning + text), text
    for text in [*bad, ""]:
        assert not accepts(tokenizer, either.text, reasoning + text), text


@pytest.mark.parametrize("tool_format", WRITTEN, ids=NAMES)
def test_each_mark_may_be_a_special_token(tokenizer: LLTokenizer, tool_format: ToolFormat) -> None:
    text = written(tool_format, ALLOWED[1], as_json)
    for mark in {*tool_format.pieces} & {*tool_format.marks}:
        lark = grammar.calls(tool_format, TOOLS, {mark: 0}, is_single=False)
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
        ids = ids_of(text, {mark: 0})
        assert 0 in ids or mark in tool_format.head
        assert matcher.try_consume_tokens(ids) == len(ids), mark
        assert matcher.is_accepting()


@pytest.mark.parametrize("is_special", [False, True], ids=["texts", "tokens"])
def test_calls_of_harmony_stand_behind_reasoning_in_the_place_of_the_mark_of_an_answer(
    tokenizer: LLTokenizer, *, is_special: bool
) -> None:
    token_ids = {"<|channel|>": 0, "<|message|>": 1} if is_special else {}
    calls = grammar.calls(HARMONY, TOOLS, token_ids, is_single=True)
    either = grammar.calls_or(calls, ANSWERS[0][0], HARMONY.head, token_ids)
    reasoning = f"<|channel|>analysis<|message|>so<|end|>{ROLE}"
    answer = "".join(HARMONY.head) + '{"a": "b"}'
    for ruled, is_forced in ((Grammar(kind=GrammarKind.LARK, text=calls), True), (either, False)):
        behind = behind_reasoning(ruled, REASONING, Standing.BEFORE, token_ids, is_headed=True).text
        for before in ("", reasoning):
            for text, is_good in (
                (written(HARMONY, ALLOWED[0], as_json), True),
                (written(HARMONY, FORBIDDEN[0], as_json), False),
                (answer, not is_forced),
                (answer + "x", False),
                (f"{FINAL}{written(HARMONY, ALLOWED[0], as_json)}", False),
            ):
                matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(behind), log_level=0)
                assert not matcher.is_error(), matcher.get_error()
                ids = ids_of(before + text, token_ids)
                assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) == is_good, text


def ids_of(text: str, token_ids: Mapping[str, int]) -> list[int]:
    """Return the tokens of a text in which the keys of `token_ids` are tokens."""
    parts = re.split(f"({'|'.join(map(re.escape, token_ids))})", text) if token_ids else [text]
    found: list[int] = []
    for part in parts:
        found += [token_ids[part]] if part in token_ids else byte_tokenizer.build().encode(part).ids
    return found


def test_a_schema_that_is_none_stays_as_it_is_beside_calls() -> None:
    broken = Grammar(kind=GrammarKind.JSON_SCHEMA, text="{")
    assert grammar.calls_or("start: A", broken) is broken


@pytest.mark.parametrize("tool_format", BESIDE, ids=lambda each: each.name)
def test_an_answer_that_is_either_is_calls_or_words_by_its_beginning(tool_format: ToolFormat) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("get_weather", {"city": "Paris"}), ("now", {})]
    text = written(tool_format, calls, as_json)
    opening = "".join(tool_format.opening)
    for said, are_calls in {
        text: True,
        f"\n {text}": True,
        json.dumps({"a": text}): False,
        f"so {text}": False,
        opening[:-1]: False,
        " ": False,
        "": False,
    }.items():
        for pieces in ([said], list(said)):
            words, found = read(tool_format, pieces, is_either=True)
            assert (words, [name for name, _ in found]) == (
                ("", ["get_weather", "now"]) if are_calls else (said, [])
            ), said


@pytest.mark.parametrize("tool_format", WRITTEN, ids=NAMES)
@pytest.mark.parametrize("schema", [{}, {"type": "object", "properties": None, "required": None}])
def test_a_schema_may_say_nothing(tokenizer: LLTokenizer, tool_format: ToolFormat, schema: dict[str, Any]) -> None:
    schema = {key: value for key, value in schema.items() if value is not None or tool_format.keywords is not None}
    lark = grammar.calls(tool_format, [("now", schema)], {}, is_single=True)
    assert accepts(tokenizer, lark, written(tool_format, [("now", {})]))
    assert not accepts(tokenizer, lark, written(tool_format, [("then", {})]))
    optional = grammar.calls(tool_format, [("now", {"type": "object", "properties": {"a": {}}})], {}, is_single=True)
    for arguments in ({}, {"a": "b"}):
        assert accepts(tokenizer, optional, written(tool_format, [("now", arguments)], as_json))


_CITY: dict[str, Any] = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
REFERRING: list[tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [  # with what is allowed, and not
    (
        {
            "properties": {"zip": {"$ref": "#/$defs/Zip"}, "at": {"$ref": "#/$defs/Point", "description": "where"}},
            "required": ["zip", "at"],
            "$defs": {
                "Zip": {"enum": ["90210", "None"], "type": "string"},
                "Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
            },
        },
        [{"zip": "90210", "at": {"x": 1}}, {"zip": "None", "at": {"x": 2}}],
        [{"zip": "1", "at": {"x": 1}}, {"zip": "90210", "at": "here"}, {"zip": "90210", "at": {}}],
    ),
    ({"$ref": "#/$defs/A", "$defs": {"A": _CITY}}, [{"city": "Paris"}], [{}]),
    ({"allOf": [_CITY]}, [{"city": "Paris"}], [{}]),
    (
        {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}, "required": ["a", "b"]},
        [{"a": 1, "b": 2}],
        [{"a": 1, "b": "c"}, {"a": 1}],
    ),
    (
        {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}}, "required": ["a"],
         "$defs": {"Unit": {"enum": ["C", "F"], "type": "string"}}},
        [{"a": "C"}, {"a": None}],
        [{"a": "K"}, {"a": 1}],
    ),
]  # fmt: skip


@pytest.mark.parametrize("tool_format", WRITTEN, ids=NAMES)
@pytest.mark.parametrize(("schema", "allowed", "forbidden"), REFERRING)
def test_a_forced_call_follows_what_its_schema_refers_to(
    tokenizer: LLTokenizer,
    tool_format: ToolFormat,
    schema: dict[str, Any],
    allowed: list[dict[str, Any]],
    forbidden: list[dict[str, Any]],
) -> None:
    lark = grammar.calls(tool_format, [("go", schema)], {}, is_single=True)
    for arguments in allowed:
        text = written(tool_format, [("go", arguments)], as_json)
        assert accepts(tokenizer, lark, text), text
        ((_, said),) = read(tool_format, [text], tools={"go": schema})[1]
        assert json.loads(said) == arguments
    for arguments in forbidden:
        assert not accepts(tokenizer, lark, written(tool_format, [("go", arguments)], as_json)), arguments


@pytest.mark.parametrize("tool_format", [QWEN3_CODER, HERMES])
def test_a_grammar_that_is_too_long_is_not_written_to_its_end(tool_format: ToolFormat) -> None:
    shared = {"$ref": "#/$defs/A"}
    schema = {"properties": {f"a{i}": shared for i in range(1000)}, "$defs": {"A": {"enum": list(range(10_000))}}}
    lark = grammar.calls(tool_format, [(f"go{i}", schema) for i in range(100)], {}, is_single=True)
    assert MAX_GRAMMAR_CHARS < len(lark) < 4 * MAX_GRAMMAR_CHARS


@pytest.mark.parametrize("tool_format", WRITTEN, ids=NAMES)
def test_a_tool_that_says_nothing_of_its_arguments_has_none(tokenizer: LLTokenizer, tool_format: ToolFormat) -> None:
    lark = grammar.calls(tool_format, [("now", grammar.NO_ARGUMENTS)], {}, is_single=True)
    assert accepts(tokenizer, lark, written(tool_format, [("now", {})]))
    assert not accepts(tokenizer, lark, written(tool_format, [("now", {"a": "b"})], as_json))


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"),
    [
        ({"type": "string", "enum": []}, ["", "a", "b c"], []),
        ({"type": "string", "enum": "ab"}, ["", "a", "b c"], []),
        ({"type": "string", "enum": ["a", "é", 1]}, ["a", "é", "1"], ["b", "", '"a"', "aé"]),
        ({"enum": ["a", ["é"]]}, ["a", '["é"]'], ["é"]),
        ({"const": "a"}, ["a"], ["b", ""]),
        ({"type": "string", "const": "a", "enum": ["b"]}, ["a"], ["b"]),
        ({"type": "integer"}, ["1", "-5"], ["a", "1.5", '"1"']),
        ({"enum": [1, 2]}, ["1", "2"], ["3"]),
        (True, ["", "a"], []),
    ],
)
def test_a_text_stands_as_it_is_and_is_one_that_is_allowed(
    tokenizer: LLTokenizer, schema: object, allowed: list[str], forbidden: list[str]
) -> None:
    tools = [("add", {"properties": {"a": schema}, "required": ["a"]})]
    lark = grammar.calls(QWEN3_CODER, tools, {}, is_single=True)
    for texts, is_allowed in ((allowed, True), (forbidden, False)):
        for text in texts:
            said = f"<tool_call>\n<function=add>\n{keyed(a=text)}</function>\n</tool_call>"
            assert accepts(tokenizer, lark, said) == is_allowed, text


def test_a_mark_that_is_a_special_token_is_forced_as_one(tokenizer: LLTokenizer) -> None:
    lark = grammar.calls(HERMES, TOOLS[1:], {"<tool_call>": 0, "</tool_call>": 1}, is_single=True)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
    ids = byte_tokenizer.build().encode('\n{"name": "now", "arguments": {}}\n').ids
    assert matcher.try_consume_tokens([0, *ids, 1]) == len(ids) + 2
    assert matcher.is_accepting()
    named = grammar.calls(MISTRAL_NAMED, TOOLS[1:], {"[TOOL_CALLS]": 0, "[ARGS]": 1}, is_single=True)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(named), log_level=0)
    name, arguments = (byte_tokenizer.build().encode(text).ids for text in ("now", "{}"))
    assert matcher.try_consume_tokens([0, *name, 1, *arguments]) == len(name) + len(arguments) + 2
    assert matcher.is_accepting()
    either = grammar.calls_or(lark, ANSWERS[0][0])
    for tokens, is_good in (
        ([0, *ids, 1], True),
        (byte_tokenizer.build().encode('{"a": "b"}').ids, True),
        ([0, *byte_tokenizer.build().encode('{"a": "b"}').ids], False),
        (ids, False),
    ):
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(either.text), log_level=0)
        assert (matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()) == is_good
