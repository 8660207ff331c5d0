"""A body of /v1/responses as a chat: its items as messages, its fields, and what is wrong with it by its own names."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tool_texts import SCHEMA

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.core.sampling import GrammarKind
from pagewire.router.ask import Reasoning
from pagewire.router.bodies import REFUSED_OF_RESPONSES
from pagewire.router.openai import Call, parse
from pagewire.router.responses import call
from pagewire.router.responses.input import messages

FUNCTIONS: list[Any] = [
    {"type": "function", "name": "get_weather", "description": "of today", "parameters": SCHEMA, "strict": True},
    {"type": "function", "name": "now"},
]


def parsed(given: Any, **fields: Any) -> Call:
    return call.parse(json.dumps({"input": given, **fields}).encode(), {"request_id": "r"})


TEXTS = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
CALLED = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"a": 1}'}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]}
AS_CALLED = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": {"a": 1}}}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ("hello", [{"role": "user", "content": "hello"}]),
        (
            [{"role": "user", "content": "a"}, {"type": "reasoning", "encrypted_content": "x"}, CALLED],
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [AS_CALLED]}],
        ),
        ([{"role": "user", "content": TEXTS}], [{"role": "user", "content": "a\nb"}]),
        ([{"type": None, "role": "user", "content": "a"}], [{"role": "user", "content": "a"}]),
        (
            [{"type": "message", "role": "developer", "content": "be brief"}, {"role": "user", "content": "a"}],
            [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "a"}],
        ),
        (
            [
                {"role": "user", "content": "a"}, THOUGHT,
                {"type": "message", "role": "assistant", "status": "completed", "id": "msg_1",
                 "content": [{"type": "output_text", "text": "I see.", "annotations": []}]},
                CALLED, {**CALLED, "call_id": "c2"},
                {"type": "function_call_output", "call_id": "c1", "output": "1"},
                {"type": "function_call_output", "call_id": "c2", "output": TEXTS},
                CALLED,
            ],
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "I see.", "reasoning_content": "so",
                 "tool_calls": [AS_CALLED, {**AS_CALLED, "id": "c2"}]},
                {"role": "tool", "content": "1", "tool_call_id": "c1"},
                {"role": "tool", "content": "a\nb", "tool_call_id": "c2"},
                {"role": "assistant", "content": "", "tool_calls": [AS_CALLED]},
            ],
        ),
        (
            [THOUGHT, {"role": "user", "content": "a"}, {**THOUGHT, "content": "first"}, THOUGHT],
            [
                {"role": "assistant", "content": "", "reasoning_content": "so"}, {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", "reasoning_content": "first\nso"},
            ],
        ),
        (
            [{**CALLED, "arguments": "{"}, THOUGHT, {"type": "function_call_output", "call_id": "c1", "output": "1"}],
            [
                {"role": "assistant", "content": "",
                 "tool_calls": [AS_CALLED | {"function": {"name": "now", "arguments": {}}}]},
                {"role": "assistant", "content": "", "reasoning_content": "so"},
                {"role": "tool", "content": "1", "tool_call_id": "c1"},
            ],
        ),
        (
            [{"role": "assistant", "content": "a"}, CALLED, {"role": "assistant", "content": "b"},
             {"type": "function_call_output", "call_id": "c1", "output": "1"}, {"role": "assistant", "content": "c"},
             {"role": "assistant", "content": "d"}],
            [
                {"role": "assistant", "content": "a\nb", "tool_calls": [AS_CALLED]},
                {"role": "tool", "content": "1", "tool_call_id": "c1"}, {"role": "assistant", "content": "c"},
                {"role": "assistant", "content": "d"},
            ],
        ),
        (
            [{"role": "user", "content": "a"}, CALLED, THOUGHT, CALLED,
             {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]},
             {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", "tool_calls": [AS_CALLED]},
                {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [AS_CALLED]},
                {"role": "assistant", "content": "no", "reasoning_content": "in short"},
            ],
        ),
    ],
)  # fmt: skip
def test_items_are_messages(given: Any, messages: list[Any]) -> None:
    assert list(parsed(given).ask.messages or ()) == messages
    with_instructions = parsed(given, instructions="be kind").ask.messages or ()
    assert list(with_instructions) == [{"role": "system", "content": "be kind"}, *messages]


@pytest.mark.parametrize(
    ("item", "name"),
    [({"role": "assistant", "content": "a" * 50}, "content"), ({**THOUGHT, "content": "a" * 50}, "reasoning_content")],
)
def test_many_items_of_one_turn_are_put_together_in_time(item: Any, name: str) -> None:
    num_items, began_s = 60_000, time.thread_time()
    (found,) = (
        messages(None, [CALLED, *[item] * num_items]) if name == "content" else messages(None, [item] * num_items)
    )
    assert time.thread_time() - began_s < 2  # 0.1 s, and 20 where all that came before is copied for each
    assert found[name] == "\n".join(["a" * 50] * num_items)


def test_fields_are_those_of_a_chat() -> None:
    ask = parsed(
        "a", max_output_tokens=7, temperature=0.5, top_p=0.9, top_k=3, seed=5, cache_salt="s", truncation="auto",
        top_logprobs=2, tools=FUNCTIONS, tool_choice={"type": "function", "name": "now"}, parallel_tool_calls=False,
        chat_template_kwargs={"x": 1}, reasoning={"effort": "low", "summary": "auto"}, store=True, user="u",
        include=["reasoning.encrypted_content"], max_tool_calls=3, stream_options={"include_obfuscation": False},
        context_management=[{"type": "compaction", "compact_threshold": 9000}],
    )  # fmt: skip
    assert ask.unknown_fields == ()
    (asked,) = ask.asks
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k, asked.seed) == (7, 0.5, 0.9, 3, 5)
    assert (asked.cache_salt, asked.truncate_prompt_tokens, asked.logprobs) == ("s", -1, 2)
    assert asked.tools is not None
    assert ([name for name, _ in asked.tools.callable], asked.tools.is_forced, asked.tools.is_single) == (
        ["now"], True, True,
    )  # fmt: skip
    assert asked.tools.definitions[0]["function"]["parameters"] == SCHEMA
    assert dict(asked.chat.options) == {"x": 1, "reasoning_effort": "low"}
    assert parsed("a", novel=1).unknown_fields == ("novel",)
    assert (
        parsed("a", n=1, best_of=1, echo=False, use_beam_search=False, functions=[], background=False).unknown_fields
        == ()
    )
    assert parsed("a", top_logprobs=0).ask.logprobs == 0
    assert parsed("a").ask.logprobs is None
    assert parsed("a", include=["message.output_text.logprobs"]).ask.logprobs == 0


def test_some_tools_alone_may_be_called() -> None:
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "now"}]}
        call = parsed("a", tools=FUNCTIONS, tool_choice=choice)
        assert call.ask.tools is not None
        assert call.ask.tools.barred == {"get_weather"}
        assert (call.ask.tools.is_forced, len(call.ask.tools.definitions)) == (mode == "required", 2)
        assert call.echoed["tool_choice"] == choice


def test_a_format_of_text_is_a_grammar() -> None:
    schema = {"type": "object"}
    named = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}
    objects: dict[str, Any] = {"format": {"type": "json_object"}, "verbosity": "medium"}
    for text in (named, objects):
        grammar = parsed("a", text=text).ask.grammar
        assert grammar is not None
        assert (grammar.kind, json.loads(grammar.text), grammar.field) == (GrammarKind.JSON_SCHEMA, schema, "text")
    guided = parsed("a", guided_regex="a+").ask.grammar
    assert guided is not None
    assert guided.field == "guided_regex"
    none: list[Any] = [None, {}, {"format": None}, {"format": {"type": "text"}}]
    assert all(parsed("a", text=text).ask.grammar is None for text in none)


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"input": None}, InvalidRequest, "input"),
        ({"input": ""}, InvalidRequest, "input"),
        ({"input": []}, InvalidRequest, "input"),
        ({"input": 5}, InvalidRequest, "input"),
        ({"input": ["a"]}, InvalidRequest, "input"),
        ({"input": [{"role": "nobody", "content": "a"}]}, InvalidRequest, "input"),
        ({"input": [{"role": "user"}]}, InvalidRequest, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, InvalidRequest, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, UnsupportedField, "input"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, UnsupportedField, "input"),
        ({"input": [{"type": "", "role": "user", "content": "a"}]}, UnsupportedField, "input"),
        ({"input": [{"type": False, "role": "user", "content": "a"}]}, UnsupportedField, "input"),
        ({"input": [{**CALLED, "arguments": {}}]}, InvalidRequest, "input"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, InvalidRequest, "input"),
        ({"previous_response_id": "resp_1"}, UnsupportedField, "previous_response_id"),
        ({"background": True}, UnsupportedField, "background"),
        ({"response_format": {"type": "json_object"}}, UnsupportedField, "response_format"),
        ({"max_tokens": 7}, UnsupportedField, "max_tokens"),
        ({"n": 2}, UnsupportedField, "n"),
        ({"messages": []}, UnsupportedField, "messages"),
        ({"conversation": "c"}, UnsupportedField, "conversation"),
        ({"moderation": {"model": "omni-moderation-latest"}}, UnsupportedField, "moderation"),
        ({"personality": "friendly"}, UnsupportedField, "personality"),
        ({"max_output_tokens": "7"}, InvalidRequest, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, UnsupportedField, "tools"),
        ({"tools": "now"}, InvalidRequest, "tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, InvalidRequest, "tool_choice"),
        ({"text": "json"}, InvalidRequest, "text"),
        ({"text": {"format": 5}}, InvalidRequest, "text"),
        ({"tools": FUNCTIONS, "tool_choice": {"type": "custom", "name": "now"}}, InvalidRequest, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, InvalidRequest, "text"),
        ({"text": {"format": {"type": "grammar"}}}, UnsupportedField, "text"),
        ({"text": {"verbosity": "high"}}, UnsupportedField, "text"),
        ({"reasoning": "much"}, InvalidRequest, "reasoning"),
        ({"reasoning": {"effort": 5}}, InvalidRequest, "reasoning"),
        ({"include": "logprobs"}, InvalidRequest, "include"),
        ({"top_logprobs": 99}, InvalidRequest, "top_logprobs"),
        ({"truncation": "some"}, InvalidRequest, "truncation"),
        ({"metadata": "b"}, InvalidRequest, "metadata"),
        ({"metadata": {"a": 1}}, InvalidRequest, "metadata"),
        ({"metadata": {"a": {"b": "c"}}}, InvalidRequest, "metadata"),
        ({"metadata": {"a": "v" * 513}}, InvalidRequest, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, InvalidRequest, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, InvalidRequest, "metadata"),
    ],
)
def test_what_is_wrong_is_told_by_its_own_name(fields: dict[str, Any], error: type[InvalidRequest], field: str) -> None:
    with pytest.raises(error) as refused:
        parsed(**{"given": "a", **({"given": fields["input"]} if "input" in fields else fields)})
    assert (type(refused.value), refused.value.field) == (error, field)


def test_a_response_repeats_what_was_asked_for() -> None:
    assert parsed("a").echoed == {
        "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None}, "temperature": None, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": None, "truncation": "disabled",
    }  # fmt: skip
    asked: dict[str, Any] = {
        "instructions": "be kind", "max_output_tokens": 7, "metadata": {"a": "b"}, "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"}, "temperature": 0.5,
        "text": {"format": {"type": "json_object"}}, "tool_choice": "none", "tools": FUNCTIONS, "top_logprobs": 2,
        "top_p": 0.9, "truncation": "auto",
    }  # fmt: skip
    assert parsed("a", **asked).echoed == asked
    assert parsed("a", metadata=None).echoed["metadata"] == {}
    pairs = {"k" * 64: "v" * 512, **{str(number): "" for number in range(15)}}
    assert parsed("a", metadata=pairs).echoed["metadata"] == pairs


@pytest.mark.parametrize(
    ("given", "fields", "said"),
    [
        ([{"role": "user", "content": {}}], {}, "input.0.content is"),
        ("a", {"text": {"format": {"type": "json_schema"}}}, "text.format.schema is missing"),
        ("a", {"text": {"format": {}}}, "text.format is an object with a type"),
        ("a", {"text": {"format": {"type": "xml"}}}, "text.format.type 'xml' is not supported"),
        ("a", {"top_logprobs": 99}, "top_logprobs must be between"),
        (
            "a",
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools.0 has its name and parameters beside",
        ),
        (
            "a",
            {"tools": [{"type": "function", "name": None, "function": {"name": "f"}}]},
            "tools.0 has its name and parameters beside",
        ),
        ("a", {"tools": [{"type": "function", "function": None}]}, "tools.0.function has a name"),
        ("a", {"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode is auto or required"),
        ("a", {"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools is a list"),
        (
            "a",
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools.0 is no object that names a function",
        ),
    ],
)
def test_a_refusal_names_the_place(given: Any, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(given, **fields)
    assert str(refused.value).startswith(said)


# Where true asks for nothing.
SOMETHING = {"add_generation_prompt": False}


@pytest.mark.parametrize("field", REFUSED_OF_RESPONSES)
def test_what_asks_for_nothing_is_taken_and_all_else_refused(field: str) -> None:
    for nothing in REFUSED_OF_RESPONSES[field]:
        assert parsed("a", **{field: nothing}).unknown_fields == ()
    with pytest.raises(UnsupportedField) as refused:
        parsed("a", **{field: SOMETHING.get(field, True)})
    assert refused.value.field == field


@pytest.mark.parametrize("field", ["separate_reasoning", "include_reasoning"])
def test_texts_are_not_looked_at_for_reasoning(field: str) -> None:
    parse(json.dumps({"prompt": "a", field: True}).encode(), {"request_id": "r"}, is_chat=False)
    with pytest.raises(UnsupportedField):
        parse(json.dumps({"prompt": "a", field: False}).encode(), {"request_id": "r"}, is_chat=False)


@pytest.mark.parametrize(
    ("separate", "include", "wanted"),
    [
        (None, None, Reasoning.APART), (True, True, Reasoning.APART), (None, True, Reasoning.APART),
        (True, False, Reasoning.LEFT_OUT), (None, False, Reasoning.LEFT_OUT), (False, False, Reasoning.WITHIN),
        (False, None, Reasoning.WITHIN), (False, True, Reasoning.WITHIN),
    ],
)  # fmt: skip
def test_reasoning_is_apart_unless_the_caller_wants_it_otherwise(
    separate: bool | None, include: bool | None, wanted: Reasoning
) -> None:
    assert Reasoning.of(separate, include) is wanted
    assert parsed("a", separate_reasoning=separate, include_reasoning=include).ask.reasoning is wanted
