"""A body of /v1/messages as a chat: its blocks as messages, its fields, and what is wrong with it by its own names."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tool_texts import SCHEMA

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.core.sampling import GrammarKind
from pagewire.router.anthropic import call
from pagewire.router.anthropic.input import messages
from pagewire.router.ask import Reasoning
from pagewire.router.bodies import REFUSED_OF_MESSAGES
from pagewire.router.openai import Call

USER: Any = {"role": "user", "content": "hi"}
TOOLS: list[Any] = [
    {"name": "get_weather", "description": "of today", "input_schema": SCHEMA, "strict": True},
    {"type": "custom", "name": "now", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]
THOUGHT = {"type": "thinking", "thinking": "so", "signature": "x"}
USED = {"type": "tool_use", "id": "c1", "name": "now", "input": {"city": "東京"}}
AS_USED = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": {"city": "東京"}}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}


def parsed(*messages: Any, **fields: Any) -> Call:
    told = {"messages": list(messages or [USER]), "max_tokens": 5, **fields}
    return call.parse(json.dumps(told).encode(), {"request_id": "r"})


def refused(*messages: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parsed(*messages, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([USER], [USER]),
        ([{"role": "user", "content": [text("a"), text("b")]}], [{"role": "user", "content": "a\nb"}]),
        ([USER, {"role": "user", "content": "b"}], [{"role": "user", "content": "hi\nb"}]),
        (
            [USER, {"role": "assistant", "content": [THOUGHT, text("a"), text("b"), USED]}],
            [
                USER,
                {"role": "assistant", "content": "a\nb", "reasoning_content": "so", "tool_calls": [AS_USED]},
            ],
        ),
        (
            [
                {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, USED]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": [text("1"), text("2")]},
                        {"type": "tool_result", "tool_use_id": "c2", "content": "3", "is_error": True},
                        {"type": "tool_result", "tool_use_id": "c3"},
                        text("and?"),
                    ],
                },
            ],
            [
                {"role": "assistant", "content": "", "tool_calls": [AS_USED]},
                {"role": "tool", "content": "1\n2", "tool_call_id": "c1"},
                {"role": "tool", "content": "3", "tool_call_id": "c2"},
                {"role": "tool", "content": "", "tool_call_id": "c3"},
                {"role": "user", "content": "and?"},
            ],
        ),
        (
            [
                {"role": "assistant", "content": [THOUGHT, text("a"), USED]},
                {"role": "assistant", "content": [{**THOUGHT, "thinking": "and"}, text("b"), {**USED, "id": "c2"}]},
                {"role": "assistant", "content": ""},
            ],
            [
                {
                    "role": "assistant",
                    "content": "a\nb",
                    "reasoning_content": "so\nand",
                    "tool_calls": [AS_USED, {**AS_USED, "id": "c2"}],
                }
            ],
        ),
        (
            [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
            [USER, {"role": "assistant", "content": "a\nb"}],
        ),
        (
            [{"role": "system", "content": "a"}, USER, USER],
            [{"role": "system", "content": "a"}, {**USER, "content": "hi\nhi"}],
        ),
        (
            [USER, {"role": "system", "content": [text("new")]}, USER],
            [USER, {"role": "system", "content": "new"}, USER],
        ),
    ],
)
def test_blocks_become_messages(given: list[Any], wanted: list[Any]) -> None:
    assert list(parsed(*given).ask.messages or ()) == wanted


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "assistant", "content": "a" * 50}, {"content": 50}),
        ({"role": "assistant", "content": [THOUGHT | {"thinking": "a" * 50}]}, {"content": 0, "reasoning_content": 50}),
        ({"role": "assistant", "content": [USED]}, {"content": 0, "tool_calls": 1}),
        ({"role": "user", "content": "a" * 50}, {"content": 50}),
    ],
)
def test_many_messages_of_one_turn_are_put_together_in_time(message: Any, said: dict[str, int]) -> None:
    num_messages, began_s = 60_000, time.thread_time()
    (found,) = messages(None, [message] * num_messages)
    assert time.thread_time() - began_s < 2  # 0.1 s, and 10 to 60 where all that came before is copied for each
    sizes = {name: len(found[name].replace("\n", "") if isinstance(found[name], str) else found[name]) for name in said}
    assert sizes == {name: num_messages * size for name, size in said.items()}


BILLS = "x-anthropic-billing-header: cc_version=1; cch=5f;"


@pytest.mark.parametrize("system", [f"{BILLS}\nbe kind", [text(BILLS), text("be kind")], [text(f"{BILLS}\nbe kind")]])
def test_what_is_other_in_each_request_of_an_agent_is_left_out(system: Any) -> None:
    assert list(parsed(system=system).ask.messages or ()) == [{"role": "system", "content": "be kind"}, USER]
    kept = f"a\n{BILLS}"
    assert list(parsed(system=kept).ask.messages or ()) == [{"role": "system", "content": kept}, USER]


def test_what_a_system_prompt_says_comes_first() -> None:
    for system in ("be kind", [text("be"), text("kind")]):
        said = "be kind" if isinstance(system, str) else "be\nkind"
        assert list(parsed(system=system).ask.messages or ()) == [{"role": "system", "content": said}, USER]
    nothings: list[Any] = ["", [], None, BILLS, [text(BILLS)]]
    for nothing in nothings:
        assert list(parsed(system=nothing).ask.messages or ()) == [USER]


@pytest.mark.parametrize(
    ("last", "is_begun"),
    [
        (USER, False),
        ({"role": "assistant", "content": "It"}, True),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": [text("It"), USED]}, False),
        ({"role": "assistant", "content": [THOUGHT]}, False),
    ],
)
def test_an_assistants_last_words_are_gone_on_with(last: Any, is_begun: bool) -> None:
    chat = parsed(USER, last).ask.chat
    assert (chat.continue_final_message, chat.add_generation_prompt) == (is_begun, not is_begun)


def test_fields_are_those_of_a_chat_by_their_own_names() -> None:
    ask = parsed(
        model="m", max_tokens=7, stop_sequences=["a", "b"], temperature=0.5, top_p=0.9, top_k=3, seed=4,
        metadata={"user_id": "u"}, stop_token_ids=[5], cache_salt="s", service_tier="auto", speed=None,
    ).ask  # fmt: skip
    assert (ask.model, ask.max_tokens, ask.fits_max_tokens) == ("m", 7, True)
    assert (ask.stop, ask.temperature, ask.top_p, ask.top_k, ask.seed) == (("a", "b"), 0.5, 0.9, 3, 4)
    assert (ask.stop_token_ids, ask.cache_salt) == ((5,), "s")
    assert parsed(stream=True).is_streaming
    assert not parsed().is_streaming
    call = parsed(metadata={}, cache_control={}, context_management={}, betas=["a"], nobody=1)
    assert call.unknown_fields == ("betas", "nobody")


def test_tools_are_functions() -> None:
    tools = parsed(tools=TOOLS).ask.tools
    assert tools is not None
    assert [each["function"] for each in tools.definitions] == [
        {"name": "get_weather", "description": "of today", "strict": True, "parameters": SCHEMA},
        {"name": "now", "parameters": {"type": "object"}},
    ]
    assert (tools.is_forced, tools.is_single) == (False, False)
    for choice, is_forced, is_single, callable_ in (
        ({"type": "auto"}, False, False, ["get_weather", "now"]),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, True, ["get_weather", "now"]),
        ({"type": "any"}, True, False, ["get_weather", "now"]),
        ({"type": "any", "disable_parallel_tool_use": False}, True, False, ["get_weather", "now"]),
        ({"type": "tool", "name": "now"}, True, True, ["now"]),
    ):
        asked = parsed(tools=TOOLS, tool_choice=choice).ask.tools
        assert asked is not None
        assert (asked.is_forced, asked.is_single) == (is_forced, is_single)
        assert [name for name, _ in asked.callable] == callable_
    assert parsed(tools=TOOLS, tool_choice={"type": "none"}).ask.tools is None


@pytest.mark.parametrize(
    ("thinking", "thinks", "reasoning"),
    [
        (None, None, Reasoning.LEFT_OUT),
        ({"type": "disabled"}, False, Reasoning.LEFT_OUT),
        ({"type": "enabled", "budget_tokens": 1024}, True, Reasoning.APART),
        ({"type": "adaptive"}, True, Reasoning.APART),
        ({"type": "between_tools"}, True, Reasoning.APART),
        ({"type": "adaptive", "display": "omitted"}, True, Reasoning.LEFT_OUT),
        ({"type": "adaptive", "display": "summarized"}, True, Reasoning.APART),
    ],
)
def test_thinking_is_a_wish_and_shown_to_who_asks_for_it(thinking: Any, thinks: Any, reasoning: Reasoning) -> None:
    ask = parsed(thinking=thinking).ask
    assert ask.reasoning is reasoning
    assert ask.chat.wishes == (() if thinks is None else (("enable_thinking", thinks),))


def test_effort_is_a_wish_and_a_format_a_grammar() -> None:
    ask = parsed(output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}}).ask
    assert ask.chat.wishes == (("reasoning_effort", "high"),)
    assert ask.grammar is not None
    assert (ask.grammar.kind, json.loads(ask.grammar.text)) == (GrammarKind.JSON_SCHEMA, {"type": "object"})
    assert ask.grammar.field == "output_config"
    assert parsed(output_config={}).ask.grammar is None
    assert parsed(chat_template_kwargs={"a": 1}).ask.chat.options == (("a", 1),)


def test_a_count_needs_no_length() -> None:
    told = json.dumps({"messages": [USER]}).encode()
    assert call.parse_count(told, {"request_id": "r"}).ask.max_tokens is None
    with pytest.raises(InvalidRequest, match="max_tokens is missing"):
        call.parse(told, {"request_id": "r"})


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"messages": []}, "messages", "one at least"),
        ({"messages": "hi"}, "messages", "one at least"),
        ({"messages": [1]}, "messages", "messages.0"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages", "messages.0"),
        ({"messages": [{"role": "user"}]}, "messages", "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages", "messages.0.content has one block at least"),
        (
            {"messages": [USER, {"role": "assistant", "content": "a"}, {"role": "user", "content": []}]},
            "messages", "messages.2.content has one block at least",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": 0}]}]},
            "messages", "messages.0.content.0.content is a text",
        ),
        ({"messages": [{"role": "system", "content": [{"type": "image"}]}]}, "messages", "'image'"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages", "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages", "an object with a type"),
        ({"messages": [{"role": "user", "content": [{"type": 5}]}]}, "messages", "an object with a type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages", "'image'"),
        ({"messages": [{"role": "user", "content": [USED]}]}, "messages", "'tool_use'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages", "0.tool_use_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
            "messages", "messages.0.content.0.content.0: blocks of type 'image'",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_result"}]}]}, "messages", "'tool_result'"),
        ({"messages": [{"role": "assistant", "content": [{**USED, "input": "{}"}]}]}, "messages", "0.input"),
        ({"messages": [{"role": "assistant", "content": [{**USED, "id": None}]}]}, "messages", "0.id"),
        ({"system": [{"type": "image"}]}, "system", "system.0"),
        ({"system": {"a": 1}}, "system", "system is a text"),
        ({"system": {}}, "system", "system is a text"),
        ({"system": 0}, "system", "system is a text"),
        ({"system": [{"type": "text"}]}, "system", "system.0.text"),
        ({"max_tokens": "5"}, "max_tokens", "max_tokens"),
        ({"stop_sequences": [1]}, "stop_sequences", "stop_sequences.0"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools", "'bash_20250124'"),
        ({"tools": [1]}, "tools", "tools.0 is not an object"),
        ({"tools": [{"type": {}, "name": "a"}]}, "tools", "tools.0: tools of type"),
        ({"tools": [{"input_schema": {}}]}, "tools", "tools.0 has a name of 1 to 128"),
        ({"tools": [{"name": "a" * 129, "input_schema": {}}]}, "tools", "tools.0 has a name of 1 to 128"),
        ({"tools": {"a": 1}}, "tools", "tools is a list"),
        ({"tools": [{"name": "a"}]}, "tools", "tools.0.input_schema"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools", "tools.0 has a name"),
        ({"tool_choice": "auto"}, "tool_choice", "tool_choice"),
        ({"tool_choice": {"type": "all"}}, "tool_choice", "tool_choice"),
        ({"tool_choice": {"type": []}}, "tool_choice", "tool_choice"),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": 1}}, "tool_choice", "disable_parallel_tool_use"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "there are no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice", "'x'"),
        ({"thinking": True}, "thinking", "thinking is an object"),
        ({"thinking": {"type": "maybe"}}, "thinking", "disabled"),
        ({"thinking": {"type": {}}}, "thinking", "disabled"),
        ({"output_config": "high"}, "output_config", "output_config"),
        ({"output_config": {"effort": 3}}, "output_config", "effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config", "json_schema"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config", "output_config.format.schema"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_its_own_name(fields: dict[str, Any], field: str, said: str) -> None:
    error = refused(**fields)
    assert error.field == field
    assert said in error.message


@pytest.mark.parametrize("name", REFUSED_OF_MESSAGES)
def test_what_is_another_endpoints_is_refused_by_name(name: str) -> None:
    error = refused(**{name: ["x"]})
    assert isinstance(error, UnsupportedField)
    assert error.field == name
    for allowed in REFUSED_OF_MESSAGES[name]:
        assert parsed(**{name: allowed}).unknown_fields == ()


@pytest.mark.parametrize(
    ("name", "nothing", "something"),
    [
        ("separate_reasoning", True, False),
        ("include_reasoning", True, False),
        ("parallel_tool_calls", True, False),
        ("top_logprobs", 0, 1),
        ("n", 1, 2),
        ("logprobs", False, True),
    ],
)
def test_what_asks_for_nothing_else_is_let_through(name: str, nothing: object, something: object) -> None:
    assert parsed(**{name: nothing}).unknown_fields == ()
    assert refused(**{name: something}).field == name
